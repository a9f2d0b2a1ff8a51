"""A call sends its deadline, and the deadline ends the handler even if the cancel doesn't arrive."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from trio_mcp import CancelCause, Limits, RequestContext, Server, open_memory
from trio_mcp.protocol.types.sampling import CreateMessageResult
from trio_mcp.runtime.cancellation import REMAINING_MS
from trio_mcp.types import CreateMessageParams, TextContent

from .conversation import ANSWERS
from .memory_peer import LATEST_LEGACY, MODERN, connected
from .rounds import ALL, ask, asked, text

ERAS = pytest.mark.parametrize("revision", [LATEST_LEGACY, MODERN])


class Watched:
    """A server whose tools note how they end."""

    def __init__(self, **limits: Any) -> None:
        self.server = Server("s", limits=Limits(**limits))
        self.ends: list[tuple[float, Any]] = []
        self.seen: list[Any] = []

        @self.server.tool
        async def hang(ctx: RequestContext) -> None:
            start = trio.current_time()
            self.seen.append((ctx.meta.get(REMAINING_MS), trio.current_effective_deadline() - start))
            try:
                await trio.sleep_forever()
            finally:
                assert ctx.cancellation is not None
                self.ends.append((trio.current_time() - start, ctx.cancellation.cause))

        @self.server.tool
        async def where(ctx: RequestContext) -> str:
            try:
                return (await ctx.list_roots())[0].uri
            except trio.Cancelled:
                assert ctx.cancellation is not None
                self.ends.append((trio.current_time(), ctx.cancellation.cause))
                raise


@ERAS
async def test_handler_is_cancelled_without_an_answer_after_remaining_ms_plus_deadline_grace(
    autojump_clock: MockClock, revision: str
) -> None:
    watched = Watched(deadline_grace=1)
    async with connected(watched.server, revision) as peer:
        message = peer.call_message("hang")
        message["params"].setdefault("_meta", {})[REMAINING_MS] = 4000
        await peer.send(message)
        assert await peer.everything() == []
        assert watched.seen == [(4000, 5)]
        assert watched.ends == [(5, CancelCause.DEADLINE)]
        counts = watched.server.statistics()
        assert (counts.cancelled, counts.in_flight) == (1, 0)
        assert "result" in await peer.request("tools/list")


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_handler_is_cancelled_as_soon_as_its_caller_cancels_even_if_the_deadline_is_later(
    autojump_clock: MockClock, era: Any
) -> None:
    watched = Watched()
    async with open_memory(watched.server, era=era) as client:
        with trio.move_on_after(3):
            await client.call_tool("hang")
        await trio.testing.wait_all_tasks_blocked()
        assert watched.seen == [(3000, 4)]
        assert watched.ends == [(3, CancelCause.PEER)]


async def test_call_without_deadline_sends_no_remaining_ms(autojump_clock: MockClock) -> None:
    watched = Watched()
    async with open_memory(watched.server) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "hang")
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert watched.seen == [(None, math.inf)]


async def test_client_with_tell_deadlines_false_sends_no_remaining_ms(autojump_clock: MockClock) -> None:
    watched = Watched()
    async with open_memory(watched.server, tell_deadlines=False) as client:
        with trio.move_on_after(3):
            await client.call_tool("hang")
    assert watched.seen == [(None, math.inf)]


async def test_request_whose_deadline_passes_in_the_queue_never_runs(autojump_clock: MockClock) -> None:
    watched = Watched(max_in_flight=1, deadline_grace=0)
    async with connected(watched.server) as peer:
        busy = await peer.start("hang")
        message = peer.call_message("hang")
        message["params"]["_meta"] = {REMAINING_MS: 2000}
        await peer.send(message)
        await trio.sleep(3)
        await peer.cancel(busy)
        assert len(watched.seen) == 1
        assert watched.server.statistics().queued == 0


async def test_handler_that_awaits_input_uses_the_deadline_of_the_latest_retry(
    autojump_clock: MockClock,
) -> None:
    watched = Watched(deadline_grace=0)
    async with connected(watched.server, MODERN, ALL) as peer:
        first = peer.call_message("where")
        first["params"]["_meta"][REMAINING_MS] = 10_000
        await peer.send(first)
        result = asked(await peer.reply(first["id"]))
        await trio.sleep(9)
        result = asked(await peer.retry(first, result, {}, meta={REMAINING_MS: 10_000}))
        await trio.sleep(9)
        assert watched.ends == []
        await trio.sleep(2)
        assert [cause for _, cause in watched.ends] == [CancelCause.DEADLINE]
        assert (await peer.retry(first, result))["error"]["code"] == -32602


async def test_retry_without_remaining_ms_has_no_deadline(autojump_clock: MockClock) -> None:
    watched = Watched(deadline_grace=0)
    async with connected(watched.server, MODERN, ALL) as peer:
        first, result = await ask(peer, "where")
        first["params"]["_meta"][REMAINING_MS] = 1000
        result = asked(await peer.retry(first, result, {}, meta={REMAINING_MS: 5000}))
        result = asked(await peer.retry(first, result, {}))
        await trio.sleep(50)
        assert text(await peer.retry(first, result)) == "file:///a"


async def test_requests_to_the_client_inherit_the_deadline_of_the_handler(autojump_clock: MockClock) -> None:
    watched = Watched(deadline_grace=1)
    async with connected(watched.server, LATEST_LEGACY, ALL) as peer:
        message = peer.call_message("where")
        message["params"]["_meta"] = {REMAINING_MS: 4000}
        await peer.send(message)
        question = await peer.question("roots/list")
        assert question["params"]["_meta"] == {REMAINING_MS: 5000}
        await peer.answer(question, ANSWERS["roots/list"])
        assert text_of(await peer.reply(message["id"])) == "file:///a"


def text_of(reply: dict[str, Any]) -> str:
    return reply["result"]["content"][0]["text"]


async def test_handler_that_calls_a_backend_server_passes_its_deadline_on(autojump_clock: MockClock) -> None:
    watched, front = Watched(), Server("front")
    async with open_memory(watched.server) as behind:

        @front.tool
        async def forward() -> None:
            await behind.call_tool("hang")

        async with open_memory(front) as client:
            with trio.move_on_after(3):
                await client.call_tool("forward")
    assert watched.seen == [(4000, 5)], "each hop adds its grace"


async def test_sampling_handler_of_client_gets_the_deadline_of_its_request(autojump_clock: MockClock) -> None:
    server, seen = Server("s"), list[float]()

    @server.tool
    async def think(ctx: RequestContext) -> str:
        with trio.move_on_after(2):
            return (await ctx.sample("?", max_tokens=1)).model
        return "no answer in time"

    async def sampling(_: CreateMessageParams) -> CreateMessageResult:
        seen.append(trio.current_effective_deadline() - trio.current_time())
        return CreateMessageResult("assistant", TextContent("!"), "m")

    async with open_memory(server, era="legacy", sampling=sampling) as client:
        assert (await client.call_tool("think")).text == "m"
    assert seen == [3]
