"""Connections that end: over HTTP and WebSocket, a task that has started goes on, and none starts without a client."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from tests.restarts.killing import META
from tests.serving.http.raw import message
from tests.serving.http.scenes import MemoryEndpoint, in_memory
from tests.tasks.callers import Caller, settings
from tests.tasks.touchy_store import TouchyStore
from trio.testing import MockClock

from trio_mcp import RequestContext, Server, open_websocket, serve_websocket
from trio_mcp.stores.task_store import TaskPhase


def server_of(store: TouchyStore, causes: list[Any]) -> Server:
    server = Server("leaving", tasks=settings(store, grace=1.0))

    @server.tool(task="optional")
    async def sleep(seconds: float, ctx: RequestContext) -> str:
        try:
            await trio.sleep(seconds)
        finally:
            if ctx.cancellation is not None:
                causes.append(ctx.cancellation.cause)
        return "done"

    return server


async def phases(store: TouchyStore) -> list[TaskPhase]:
    return [record.phase for record in await store.page("", None, 10)]


CALL = {"name": "sleep", "arguments": {"seconds": 5}, "_meta": META}


async def leave_modern(endpoint: MemoryEndpoint, after: float) -> None:
    connection = await endpoint.connect()
    headers = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "sleep"}
    base = {"Host": "127.0.0.1", "Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    await connection.send("POST", {**base, **headers}, message("tools/call", CALL, 1))
    await trio.sleep(after)
    await connection.aclose()


async def leave_session(endpoint: MemoryEndpoint, after: float) -> None:
    session = await endpoint.initialize()
    body = message("tools/call", {"name": "sleep", "arguments": {"seconds": 5}, "task": {}}, 1)
    assert (await endpoint.ask("POST", session, body)).status == 200
    await trio.sleep(after)
    assert (await endpoint.ask("DELETE", session)).status == 204


@pytest.mark.parametrize("leave", [leave_modern, leave_session])
async def test_task_continues_when_its_http_client_disconnects(autojump_clock: MockClock, leave: Any) -> None:
    store, causes = TouchyStore(), list[Any]()
    async with in_memory(server_of(store, causes)) as endpoint:
        await leave(endpoint, 2)
        await trio.sleep(10)
        assert await phases(store) == [TaskPhase.ENDED]
    assert causes == []


async def test_http_call_whose_client_disconnects_never_becomes_a_task(autojump_clock: MockClock) -> None:
    store, causes = TouchyStore(), list[Any]()
    async with in_memory(server_of(store, causes)) as endpoint:
        await leave_modern(endpoint, 0.5)
        await trio.sleep(10)
        assert await phases(store) == []
    assert [str(cause) for cause in causes] == ["disconnect"]


async def test_task_continues_when_the_websocket_of_its_client_closes() -> None:
    store, causes = TouchyStore(), list[Any]()
    server = Server("leaving", tasks=settings(store))
    may_end, has_ended = trio.Event(), trio.Event()

    @server.tool(task="required")
    async def work(ctx: RequestContext) -> str:
        assert ctx.task is not None
        await ctx.task.start()
        try:
            await may_end.wait()
        finally:
            causes.append(ctx.cancellation)
            has_ended.set()
        return "done"

    async with trio.open_nursery() as nursery:

        async def serve(*, task_status: trio.TaskStatus[Any]) -> None:
            await serve_websocket(server, port=0, task_status=task_status)

        listeners = await nursery.start(serve)
        port = listeners[0].socket.getsockname()[1]
        async with open_websocket(f"ws://127.0.0.1:{port}/mcp", era="modern") as client:
            task_id = await Caller(client).start("work")
        async with open_websocket(f"ws://127.0.0.1:{port}/mcp", era="modern") as client:
            may_end.set()
            await has_ended.wait()
            while (await Caller(client).get(task_id))["status"] == "working":  # noqa: ASYNC110, the end is being kept
                await trio.sleep(0.01)
            assert await Caller(client).text(task_id) == "done"
        nursery.cancel_scope.cancel()
    assert causes == [None]
