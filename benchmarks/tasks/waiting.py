"""Tasks that wait: what each keeps in memory."""

from __future__ import annotations

import gc
import os
import sys
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count as numbers
from pathlib import Path
from typing import Literal

import trio
from trio.testing import wait_all_tasks_blocked

from trio_mcp import serve_http

from ..budget.paths import HttpClient
from ..driver.checks import check
from ..driver.http_session import Requests
from . import messages
from .lines import open_lines
from .messages import Form
from .offering import offering

__all__ = ["KINDS", "Kind", "resident", "traced"]

_WARMING = 50
"""Tasks before the first look at the memory, so that only what each further one adds is counted."""


@dataclass(frozen=True)
class Kind:
    """How tasks come, and what they wait for: ``sleep`` or the answer to a question (``ask``)."""

    way: Literal["lines", "http"]
    form: Form
    tool: Literal["sleep", "ask"]


KINDS = {
    "stdio, 2025-11-25, asleep": Kind("lines", "core", "sleep"),
    "stdio, 2025-11-25, input required": Kind("lines", "core", "ask"),
    "stdio, 2026-07-28, asleep": Kind("lines", "extension", "sleep"),
    "stdio, 2026-07-28, input required": Kind("lines", "extension", "ask"),
    "HTTP, 2026-07-28, asleep": Kind("http", "extension", "sleep"),
    "HTTP, 2026-07-28, input required": Kind("http", "extension", "ask"),
}
"""What is measured, by its title."""

_Start = Callable[[int], Awaitable[None]]


@asynccontextmanager
async def _over_lines(kind: Kind) -> AsyncIterator[_Start]:
    async with open_lines(kind.form) as lines:

        async def start(count: int) -> None:
            for _ in range(count):
                await lines.start(kind.tool)

        yield start


@asynccontextmanager
async def _over_http(kind: Kind) -> AsyncIterator[_Start]:
    ids = numbers(1)
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(serve_http, offering(), port=0, handle_signals=False))
        port = listener.socket.getsockname()[1]
        requests = Requests(port=port, era="modern")
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            client = HttpClient(stream, requests)

            async def start(count: int) -> None:
                for _ in range(count):
                    request_id = next(ids)
                    body = messages.call(kind.form, request_id, kind.tool, {"text": f"text {request_id}"})
                    response = await client.ask(messages.post(requests, body, "tools/call", kind.tool))
                    messages.task_id(response.messages()[-1])

            yield start
        nursery.cancel_scope.cancel()


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def _grown(kind: Kind, count: int, look: Callable[[], int]) -> float:
    """What ``count`` tasks that wait at the same time add to what ``look`` returns, each."""
    opened = _over_http if kind.way == "http" else _over_lines
    async with opened(kind) as start:
        await start(_WARMING)
        await wait_all_tasks_blocked()
        gc.collect()
        before = look()
        await start(count)
        await wait_all_tasks_blocked()
        gc.collect()
        return (look() - before) / count


async def resident(kind: Kind, count: int) -> float:
    """Bytes of resident memory of the process, server and client in one, for each of ``count`` tasks that wait."""
    return await _grown(kind, count, _resident)


async def traced(kind: Kind, count: int) -> float:
    """Bytes that Python has allocated for each of ``count`` tasks that wait: the same on every machine, and a little
    more than the memory that is resident."""
    check(tracemalloc.is_tracing(), False, "whether memory is traced already")
    tracemalloc.start()
    try:
        return await _grown(kind, count, lambda: tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()


if __name__ == "__main__":  # a process of its own measures each kind
    print(trio.run(resident, KINDS[sys.argv[1]], int(sys.argv[2])))
