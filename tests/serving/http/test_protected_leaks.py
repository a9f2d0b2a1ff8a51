"""A request to a protected endpoint is kept by nothing: it has a token."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from tests.interaction.test_connections_released import garbage_of
from tests.serving.http.protection import Tokens, bearer, issued, protected, session_of
from tests.serving.http.raw import modern
from tests.serving.http.scenes import MemoryEndpoint, Scene, in_memory
from tests.serving.http.scenes import call as legacy_call

Act = Callable[[MemoryEndpoint, Tokens], Awaitable[object]]


async def known(endpoint: MemoryEndpoint, tokens: Tokens) -> None:
    headers, body = modern("tools/call", {"name": "echo", "arguments": {"text": "hi"}})
    for token in ("alice-1", "alice-1", "bob-1"):
        assert (await endpoint.ask("POST", {**headers, **bearer(token)}, body)).status == 200


async def strange(endpoint: MemoryEndpoint, tokens: Tokens) -> None:
    headers, body = modern("tools/list")
    for _ in range(2):
        assert (await endpoint.ask("POST", {**headers, **bearer("stranger")}, body)).status == 401


async def in_a_session(endpoint: MemoryEndpoint, tokens: Tokens) -> None:
    session = await session_of(endpoint, "alice-1")
    assert (await endpoint.ask("POST", session, legacy_call("echo", text="hi"))).status == 200
    assert (await endpoint.ask("DELETE", session)).status == 204


async def gone_while_asked(endpoint: MemoryEndpoint, tokens: Tokens) -> None:
    tokens.may_answer = trio.Event()
    headers, body = modern("tools/list")
    connection = await endpoint.connect()
    await connection.send("POST", {**headers, **bearer("alice-1")}, body)
    await trio.testing.wait_all_tasks_blocked()
    await connection.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert tokens.cancelled == 1


@pytest.mark.parametrize("act", [known, strange, in_a_session, gone_while_asked])
async def test_authenticated_request_leaves_no_reference_cycles(act: Act) -> None:
    async def scenario() -> None:
        tokens = issued()
        async with in_memory(Scene().server, auth=protected(tokens)) as endpoint:
            await act(endpoint, tokens)

    assert await garbage_of(scenario) == []
