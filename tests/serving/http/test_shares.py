"""What is bounded for a whole server is shared by its callers, however many connections and tokens each has."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio
from tests.serving.http.protection import Tokens, bearer, protected
from tests.serving.http.raw import BASE, INITIALIZE, Answer, Connection, message, served
from tests.serving.http.scenes import MemoryEndpoint, Scene, in_memory
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import Limits


@attrs.define(eq=False)
class Party:
    """A caller of a protected endpoint, who has one token for each connection."""

    endpoint: MemoryEndpoint
    tokens: Tokens
    name: str
    connections: int = 0

    def headers(self) -> dict[str, str | None]:
        self.connections += 1
        token = f"{self.name}-{self.connections}"
        self.tokens.issue(token, self.name)
        return bearer(token)

    async def open(self) -> dict[str, str | None] | Answer:
        """Return the headers of a session that was opened, or the refusal."""
        headers = self.headers()
        answer = await self.endpoint.ask("POST", headers, INITIALIZE)
        if answer.status != 200:
            assert (answer.status, answer.code) == (503, -31000)
            return answer
        session = {**headers, "Mcp-Session-Id": answer.headers["mcp-session-id"]}
        assert (await self.endpoint.ask("POST", session, message("notifications/initialized"))).status == 202
        return session

    async def open_all(self) -> list[dict[str, str | None]]:
        """Open sessions until one is refused."""
        opened: list[dict[str, str | None]] = []
        while isinstance(session := await self.open(), dict):
            opened.append(session)
        return opened

    async def is_there(self, session: dict[str, str | None]) -> bool:
        status = (await self.endpoint.ask("POST", session, message("ping", request_id=1))).status
        assert status in (200, 404)
        return status == 200


@asynccontextmanager
async def parties(*names: str, **limits: Any) -> AsyncGenerator[list[Party]]:
    """An endpoint with callers whom a token names."""
    tokens = Tokens()
    tokens.may_answer.set()
    async with in_memory(Scene().server, auth=protected(tokens), **limits) as endpoint:
        yield [Party(endpoint, tokens, name) for name in names]


async def connect_from(address: str, port: int) -> Connection:
    """Return a connection from an address of this machine."""
    return Connection(await trio.open_tcp_stream("127.0.0.1", port, local_address=address))


async def open_from(address: str, port: int) -> int:
    """Open a session and use it; return the status."""
    connection = await connect_from(address, port)
    try:
        answer = await connection.ask("POST", {**BASE}, INITIALIZE)
        if answer.status == 200:
            session: dict[str, str | None] = {**BASE, "Mcp-Session-Id": answer.headers["mcp-session-id"]}
            assert (await connection.ask("POST", session, message("notifications/initialized"))).status == 202
        return answer.status
    finally:
        await connection.aclose()


# Sessions


async def test_one_principal_gets_half_of_the_sessions_and_the_next_one_half_of_the_rest() -> None:
    async with parties("alice", "bob", max_sessions=8) as [alice, bob]:
        assert len(await alice.open_all()) == 4
        assert len(await bob.open_all()) == 2
        assert not isinstance(await alice.open(), dict)


async def test_one_address_gets_half_of_the_sessions() -> None:
    async with served(Scene().server, limits=Limits(max_sessions=8)) as endpoint:
        statuses = [await open_from("127.0.0.1", endpoint.port) for _ in range(6)]
        assert statuses == [200] * 4 + [503] * 2
        assert [await open_from("127.0.0.2", endpoint.port) for _ in range(3)] == [200] * 2 + [503]


async def test_the_first_session_of_a_newcomer_takes_the_place_of_the_idlest_of_whoever_has_most(
    autojump_clock: MockClock,
) -> None:
    async with parties("alice", "bob", "carol", "dave", max_sessions=4) as [alice, bob, carol, dave]:
        first = await alice.open_all()
        assert len(first) == 2
        [of_bob] = await bob.open_all()
        [of_carol] = await carol.open_all()
        await trio.sleep(10)
        assert await alice.is_there(first[0])  # which is a use of it
        of_dave = await dave.open()
        assert isinstance(of_dave, dict)
        await wait_all_tasks_blocked()
        assert [await alice.is_there(each) for each in first] == [True, False]
        assert await bob.is_there(of_bob)
        assert await carol.is_there(of_carol)
        assert await dave.is_there(of_dave)


async def test_nobody_loses_the_only_session_to_a_newcomer() -> None:
    async with parties("alice", "bob", "carol", max_sessions=2) as [alice, bob, carol]:
        [of_alice], [of_bob] = await alice.open_all(), await bob.open_all()
        assert not isinstance(await carol.open(), dict)
        assert await alice.is_there(of_alice)
        assert await bob.is_there(of_bob)


async def test_who_has_a_share_of_the_sessions_gives_up_an_unused_one_of_its_own() -> None:
    async with parties("alice", "bob", max_sessions=3) as [alice, bob]:
        unused = await bob.endpoint.ask("POST", bob.headers(), INITIALIZE)
        headers = alice.headers()
        mine = await alice.endpoint.ask("POST", headers, INITIALIZE)
        assert isinstance(await alice.open(), dict)  # in the place of that one
        assert not await alice.is_there({**headers, "Mcp-Session-Id": mine.headers["mcp-session-id"]})
        assert not isinstance(await alice.open(), dict)
        session = {**bearer("bob-1"), "Mcp-Session-Id": unused.headers["mcp-session-id"]}
        assert await bob.is_there(session)
