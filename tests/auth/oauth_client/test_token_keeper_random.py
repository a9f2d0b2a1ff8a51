"""Many callers, two keepers with one storage, tokens that end, and callers who leave, in any order."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest
import trio
from tests.auth.oauth_client.fake_source import URL, FakeSource, opened
from tests.patience import PATIENCE
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp.auth import AuthorizationError, MemoryTokenStorage
from trio_mcp.auth.credentials import RefusedRequest
from trio_mcp.auth.fetching import Fetch, Fetched
from trio_mcp.auth.oauth_client.acquisition import token_in
from trio_mcp.auth.oauth_client.grants import Visit
from trio_mcp.auth.oauth_client.token_keeper import TokenKeeper


class SlowSource(FakeSource):
    """Answers after a while."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random = random
        self.good_ones = set[str]()
        """The refresh tokens of all sign-ins that are good."""

    async def fetch(self, request: Fetch) -> Fetched:
        await trio.sleep(self.random.choice((0, 0.1, 3)))
        body, status = b"", 200
        if request.method == "POST":
            given = request.body.decode()
            self.asked.append(given)
            if given == "code" or given in self.good_ones:
                self.good_ones.discard(given)
                self.issued += 1
                self.good_ones.add(f"refresh-{self.issued}")
                body = str(self.issued).encode()
            else:
                body, status = b"invalid_grant", 400
        await trio.sleep(self.random.choice((0, 0.1, 3)))
        return Fetched(status=status, headers={}, body=body)

    async def _visit(self, visit: Visit) -> str:
        await trio.sleep(self.random.choice((0, 1, 20)))
        return await super()._visit(visit)


@pytest.mark.parametrize("seed", range(40))
async def test_each_refresh_token_is_used_at_most_once_under_random_failures(
    seed: int, autojump_clock: MockClock
) -> None:
    random = Random(seed)
    source, storage = SlowSource(random), MemoryTokenStorage()
    over, served = set[str | None]((None,)), 0

    async def call(keeper: TokenKeeper) -> None:
        nonlocal served
        await trio.sleep(random.uniform(0, 100))
        begun = trio.current_time()
        with trio.move_on_after(random.choice((0.05, 2, 1000))), suppress(AuthorizationError):  # of a token of no luck
            for attempt in range(1, 6):
                sent = await keeper.headers("POST")
                await trio.sleep(random.choice((0, 0.01)))
                if token_in(sent) not in over:
                    served += 1
                    return
                await keeper.refused(RefusedRequest(401, "Bearer", sent, attempt, begun))

    async def end_tokens() -> None:
        for _ in range(5):
            await trio.sleep(random.uniform(5, 25))
            over.update(f"access-{number}" for number in range(source.issued + 1))

    with trio.fail_after(100 * PATIENCE):
        async with opened(source, storage) as one, opened(source, storage) as other:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(end_tokens)
                for number in range(30):
                    nursery.start_soon(call, (one, other)[number % 2])
            await trio.sleep(100)
            await wait_all_tasks_blocked()
            stored = await storage.load(URL)
    used = [given for given in source.asked if given.startswith("refresh-")]
    assert len(used) == len(set(used))
    assert stored is not None
    assert stored.tokens is not None
    assert stored.tokens.refresh_token in source.good_ones
    assert served > 0
    assert source.prepared == 0
