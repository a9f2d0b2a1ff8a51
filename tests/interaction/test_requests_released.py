"""A finished request is freed with its arguments, which may be large or secret."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_mcp import Limits, RequestContext, Server
from trio_mcp.runtime.requests.scope import RequestScope, current_request

from .memory_peer import MODERN, MemoryPeer, connected
from .rounds import ALL, ask, asked

REMAINING = "trio-mcp/remainingMs"


class Called:
    """A server, its client, and who still remembers the request that it served."""

    def __init__(self) -> None:
        self.requests: list[weakref.ref[RequestScope]] = []
        self.peer: MemoryPeer
        self.server = Server("s", limits=Limits(retry_timeout=5, deadline_grace=0))

        @self.server.tool
        async def where(ctx: RequestContext) -> str:
            self.requests.append(weakref.ref(current_request.get()))
            ctx.progress(1)
            ctx.progress(2)  # kept for later
            return (await ctx.list_roots())[0].uri

    async def is_released(self) -> bool:
        await trio.sleep(0.2)  # progress that was kept for later may wait in line for one interval
        (request,) = self.requests
        return request() is None


@pytest.fixture
async def called() -> AsyncIterator[Called]:
    called = Called()
    async with connected(called.server, MODERN, ALL) as called.peer:
        gc.disable()
        try:
            yield called
        finally:
            gc.enable()


async def test_memory_of_a_request_is_freed_after_its_retry_is_answered(
    called: Called, autojump_clock: MockClock
) -> None:
    first, result = await ask(called.peer, "where", token=1)
    await called.peer.retry(first, result)
    assert await called.is_released()


async def test_memory_of_a_request_that_awaits_input_is_freed_if_the_request_is_cancelled(
    called: Called, autojump_clock: MockClock
) -> None:
    first, _ = await ask(called.peer, "where", token=1)
    await called.peer.cancel(first["id"])
    assert await called.is_released()


async def test_memory_of_a_request_is_freed_if_its_client_never_retries(
    called: Called, autojump_clock: MockClock
) -> None:
    await ask(called.peer, "where")
    await trio.sleep(5.5)
    assert await called.is_released()


async def test_memory_of_a_request_is_freed_after_its_deadline_passes(
    called: Called, autojump_clock: MockClock
) -> None:
    message: dict[str, Any] = called.peer.message("tools/call", {"name": "where"}, meta={REMAINING: 1000})
    await called.peer.send(message)
    asked(await called.peer.reply(message["id"]))
    await trio.sleep(1.5)
    assert await called.is_released()
