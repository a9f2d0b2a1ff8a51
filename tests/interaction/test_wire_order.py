"""Handlers start, and get their worker threads, in the order of their requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio
from tests.patience import PATIENCE

from trio_mcp import Limits, Server

from .memory_peer import LATEST_LEGACY, MODERN, MemoryPeer, connected

READS = 12
"""trio turns every second one around, at random."""
CALLS = 30


def noting(began: list[int], **limits: Any) -> Server:
    """A server whose handlers note that they began."""
    server = Server("s", limits=Limits(**limits))
    lock = threading.Lock()

    @server.tool
    async def task(number: int) -> None:
        began.append(number)

    @server.tool
    def thread(number: int) -> None:
        with lock:
            began.append(number)

    @server.tool(max_concurrency=CALLS)
    def limited(number: int) -> None:
        thread(number)

    @server.tool(max_concurrency=1, timeout=PATIENCE)
    def one_by_one(number: int) -> None:
        thread(number)

    return server


async def call_together(peer: MemoryPeer, tool_of: Callable[[int], str]) -> None:
    """Make `CALLS` calls, which are read at once, and wait for all answers."""
    calls = [peer.call_message(tool_of(number), {"number": number}) for number in range(CALLS)]
    await peer.send(b"\n".join(json.dumps(call).encode() for call in calls))
    for call in calls:
        assert "result" in await peer.reply(call["id"])


@pytest.mark.parametrize("revision", [LATEST_LEGACY, MODERN])
async def test_handlers_start_in_the_order_of_their_calls(revision: str) -> None:
    for _ in range(READS):
        began = list[int]()
        async with connected(noting(began), revision) as peer:
            await call_together(peer, lambda _: "task")
        assert began == list(range(CALLS))


async def test_queued_handlers_start_in_the_order_of_their_calls() -> None:
    for _ in range(READS):
        began = list[int]()
        async with connected(noting(began, max_in_flight=7)) as peer:
            await call_together(peer, lambda _: "task")
        assert began == list(range(CALLS))


@pytest.mark.parametrize("tools", [["thread"], ["one_by_one"], ["thread", "limited"]])
async def test_worker_threads_are_assigned_in_the_order_of_the_calls(tools: list[str]) -> None:
    for _ in range(READS):
        began = list[int]()
        async with connected(noting(began, worker_threads=1)) as peer:
            with trio.fail_after(PATIENCE):
                await call_together(peer, lambda number: tools[number % len(tools)])
        assert began == list(range(CALLS))
