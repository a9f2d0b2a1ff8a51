"""Asyncio clients over each listening transport, and cancelled handlers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.bridging.seen import Seen, run, time_out_when
from tests.patience import PATIENCE

from trio_mcp import (
    Address,
    CancelCause,
    RequestContext,
    Server,
    aio,
    serve_http,
    serve_tcp,
    serve_unix,
    serve_websocket,
)
from trio_mcp.hosting import MemberDescription
from trio_mcp.types import ElicitResult, HTTPRequest, HTTPResponse


@contextmanager
def served(serve: Callable[..., Any], *args: Any, **options: Any) -> Iterator[int]:
    """Serve in a thread with a run of trio of its own; gives the port."""
    ready, ports = threading.Event(), list[int]()
    stop: list[Callable[[], None]] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(partial(serve, *args, **options))
            name = listeners[0].socket.getsockname()
            ports.append(name[1] if isinstance(name, tuple) else 0)
            token = trio.lowlevel.current_trio_token()
            stop.append(lambda: token.run_sync_soon(nursery.cancel_scope.cancel))
            ready.set()

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    assert ready.wait(PATIENCE)
    try:
        yield ports[0]
    finally:
        stop[0]()
        thread.join(PATIENCE)


async def call_and_cancel(seen: Seen, client: aio.Client) -> None:
    assert (await client.call_tool("echo", {"text": "hi"})).is_error is not True
    await time_out_when(seen.began, client.call_tool("wait"))
    assert await asyncio.to_thread(seen.ended.wait, PATIENCE)
    (cancelled,) = seen.cancelled
    assert cancelled is not None
    assert cancelled.cause in (CancelCause.PEER, CancelCause.DISCONNECT), "over HTTP, the end of the exchange"


@pytest.mark.parametrize("name", ["http", "websocket", "tcp", "unix"])
def test_asyncio_client_can_call_a_tool_and_cancel_a_call_over_each_transport(
    seen: Seen, name: str, tmp_path: Path
) -> None:
    path = tmp_path / "socket"
    serve, args, options = {
        "http": (serve_http, (seen.server,), {"port": 0}),
        "websocket": (serve_websocket, (seen.server,), {"port": 0}),
        "tcp": (serve_tcp, (seen.server,), {"port": 0}),
        "unix": (serve_unix, (seen.server, path), {}),
    }[name]

    def opened(port: int) -> AbstractAsyncContextManager[aio.Client]:
        match name:
            case "http":
                return aio.open_http(f"http://127.0.0.1:{port}/mcp")
            case "websocket":
                return aio.open_websocket(f"ws://127.0.0.1:{port}/mcp")
            case "tcp":
                return aio.open_tcp("127.0.0.1", port)
            case _:
                return aio.open_unix(path)

    with served(serve, *args, **options) as port:

        async def main() -> None:
            async with opened(port) as client:
                await call_and_cancel(seen, client)

        run(main)


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_asyncio_elicitation_handler_is_cancelled_if_its_request_is_cancelled(era: Any) -> None:
    server, asked = Server("impatient"), threading.Event()

    @server.tool
    async def ask(ctx: RequestContext) -> str:
        await ctx.elicit("Name?", {"type": "object", "properties": {"name": {"type": "string"}}})
        return "answered"

    async def main() -> None:
        ended = asyncio.Event()

        async def answer(_: object) -> ElicitResult:
            asked.set()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                ended.set()
                raise
            return ElicitResult("cancel")

        async with aio.open_memory(server, era=era, elicitation=answer) as client:
            await time_out_when(asked, client.call_tool("ask"))
            await client.ping()
            await ended.wait()

    run(main)


def test_asyncio_client_can_be_closed_from_another_event_loop(seen: Seen) -> None:
    opened = aio.open_memory(seen.server)
    with asyncio.Runner() as one, asyncio.Runner() as other:
        client = one.run(opened.__aenter__())
        other.run(client.ping())
        other.run(opened.__aexit__(None, None, None))


def test_request_and_response_hooks_of_servers_in_an_asyncio_group_run_in_the_event_loop(seen: Seen) -> None:
    with served(serve_http, seen.server, port=0) as port:
        threads = set[int]()

        async def add(request: HTTPRequest) -> None:
            await asyncio.sleep(0)
            threads.add(threading.get_ident())
            request.headers["x-tenant"] = "shop"

        def see(response: HTTPResponse) -> None:
            assert response.request.headers["x-tenant"] == "shop"
            threads.add(threading.get_ident())

        async def main() -> None:
            address = Address(f"http://127.0.0.1:{port}/mcp", on_request=add, on_response=see)
            async with aio.open_group({"a": MemberDescription(address)}) as group:
                group.add("b", MemberDescription(address))
                for member in "ab":
                    assert not (await group.call_tool(f"{member}__echo", {"text": "hi"})).is_error
            assert threads == {threading.get_ident()}

        run(main)
