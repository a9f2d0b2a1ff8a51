"""Both ends over HTTP in one process, for scenarios that were written for a client and a server in memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache, partial
from types import CodeType, FunctionType
from typing import Any

import trio
from trio.testing import MockClock

from trio_mcp import Client, open_http, serve_http
from trio_mcp.concurrency.nurseries import open_service_nursery
from trio_mcp.server.servable import Servable

__all__ = ["open_by_http", "uses", "wait_for_sockets"]


@asynccontextmanager
async def open_by_http(server: Servable, *, stateless: bool = False, **options: Any) -> AsyncGenerator[Client]:
    """As `open_memory`, with HTTP between both."""
    wait_for_sockets()
    serving = partial(serve_http, server, "127.0.0.1", 0, stateless=stateless, handle_signals=False)
    async with open_service_nursery("the client was closed") as nursery:
        [listener] = await nursery.start(serving)
        port = listener.socket.getsockname()[1]
        async with open_http(f"http://127.0.0.1:{port}/mcp", **options) as client:
            yield client


def wait_for_sockets() -> None:
    """Have a virtual clock jump a moment later: what is on its way through a socket is nothing that it knows of."""
    clock = trio.lowlevel.current_clock()
    if isinstance(clock, MockClock) and clock.autojump_threshold == 0:
        clock.autojump_threshold = 0.003


@cache
def uses(function: FunctionType, wanted: object) -> bool:
    """Whether ``function`` of a test, or a function of the tests that it calls, names the global ``wanted``."""
    codes = [function.__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    named = [function.__globals__.get(name) for code in codes for name in code.co_names]
    return any(each is wanted for each in named) or any(
        uses(getattr(each, "__wrapped__", each), wanted)
        for each in named
        if isinstance(each, FunctionType) and each.__module__.startswith("tests.") and each is not function
    )
