"""Requests that have not come whole take no more of the server's memory than the share of their caller."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest
import trio
from tests.serving.http.protection import bearer, issued, protected
from tests.serving.http.raw import Connection, modern, request_bytes
from tests.serving.http.scenes import MemoryEndpoint, Scene, in_memory
from trio.testing import MockClock, wait_all_tasks_blocked

MIB = 1024 * 1024
LIMITS: dict[str, Any] = {"max_unread_bytes": 8 * MIB, "max_message_bytes": 2 * MIB}


async def half_sent(endpoint: MemoryEndpoint, who: str, count: int, *, chunked: bool = False) -> Connection:
    """Send ``count`` bytes of a body that does not end."""
    connection = await endpoint.connect()
    length = {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(2 * MIB)}
    await connection.send("POST", {**bearer(who), **length})
    frame = b"%x\r\n" % (2 * MIB) if chunked else b""
    await connection.stream.send_all(frame + bytes(count))
    await wait_all_tasks_blocked()
    return connection


async def echoes(endpoint: MemoryEndpoint, who: str, size: int) -> int:
    headers, body = modern("tools/call", {"name": "echo", "arguments": {"text": "x" * size}})
    connection = await endpoint.connect()
    data = request_bytes("POST", {**headers, **bearer(who)}, body)
    for at in range(0, len(data), 65536):
        await connection.stream.send_all(data[at : at + 65536])
        await wait_all_tasks_blocked()
    connection.expect()
    return (await connection.answer()).status


@pytest.mark.parametrize("chunked", [False, True])
async def test_htt_22_unfinished_http_bodies_of_one_caller_leave_memory_for_a_later_request(
    autojump_clock: MockClock, chunked: bool
) -> None:
    async with in_memory(Scene().server, auth=protected(issued()), **LIMITS) as endpoint:
        tracemalloc.start()
        try:
            sent = [await half_sent(endpoint, "bob-1", 3 * MIB // 2, chunked=chunked) for _ in range(12)]
            gc.collect()
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert taken < 6 * MIB
        for connection in sent[2:]:
            refused = await connection.answer()
            assert (refused.status, refused.code) == (503, -31000)
            assert refused.headers["retry-after"].isdigit()
        assert await echoes(endpoint, "bob-1", 10_000) == 200
        assert await echoes(endpoint, "bob-1", 1_400_000) == 503
        assert await echoes(endpoint, "alice-1", 1_600_000) == 200
        await sent[0].aclose()
        await wait_all_tasks_blocked()
        assert await echoes(endpoint, "bob-1", 1_400_000) == 200
        await trio.sleep(100)
        assert (await sent[1].answer()).status == 408
        for connection in sent:
            await connection.aclose()
        await wait_all_tasks_blocked()
        assert endpoint.front._endpoint.unread.size == 0


async def test_htt_22_connection_is_closed_if_pipelined_bytes_exceed_the_memory_limit_of_the_caller(
    autojump_clock: MockClock,
) -> None:
    scene = Scene()
    async with in_memory(scene.server, auth=protected(issued()), **LIMITS) as endpoint:
        connections: list[Connection] = []
        for number in range(6):
            headers, body = modern("tools/call", {"name": "wait", "arguments": {"name": str(number)}})
            connection = await endpoint.connect()
            connections.append(connection)
            await connection.send("POST", {**headers, **bearer("bob-1")}, body)
            await scene[str(number)].started.wait()
            await connection.stream.send_all(bytes(1_000_000))
            await wait_all_tasks_blocked()
        ended = [scene[str(number)].ended.is_set() for number in range(6)]
        assert ended == [False] * 3 + [True] * 3
        assert await echoes(endpoint, "alice-1", 1_600_000) == 200
        for connection in connections:
            await connection.aclose()
        await wait_all_tasks_blocked()
        assert endpoint.front._endpoint.unread.size == 0
