"""Clients at one address share a limit, but a flood by one client leaves capacity for the next."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from tests.patience import PATIENCE
from tests.ports import url_on_socket
from trio.testing import wait_all_tasks_blocked

from trio_mcp import (
    Client,
    Server,
    gateway,
    open_http,
    open_memory,
    open_tcp,
    open_unix,
    open_websocket,
    proxy,
    serve_http,
    serve_tcp,
    serve_unix,
    serve_websocket,
)
from trio_mcp.hosting import MemberDescription, open_group

FLOOD = 120
"""Calls of a client that wants every thread of a server."""

Open = Callable[[], AbstractAsyncContextManager[Client]]


@attrs.define(eq=False)
class Blocking:
    """A server with a tool that blocks its thread until all are released."""

    server: Server = attrs.Factory(lambda: Server("s"))
    released: threading.Event = attrs.Factory(threading.Event)

    def __attrs_post_init__(self) -> None:
        @self.server.tool
        def block() -> str:
            self.released.wait(PATIENCE)
            return "done"

        @self.server.tool
        def hello() -> str:
            return "hello"


async def flood(client: Client, tool: str, ends: list[str], number: int = FLOOD) -> None:
    async def call() -> None:
        ends.append((await client.call_tool(tool)).text)

    async with trio.open_nursery() as nursery:
        for _ in range(number):
            nursery.start_soon(call)


async def all_taken(server: Server) -> None:
    """Wait until the server has the calls of the flood."""
    while server.statistics().in_flight < FLOOD:
        await wait_all_tasks_blocked(0.001)


async def leaves_a_place(blocking: Blocking, open_client: Open, member: str = "") -> None:
    """Have a client flood the server, and check that the next client is served meanwhile."""
    ends = list[str]()
    with trio.fail_after(PATIENCE):
        async with open_client() as greedy, open_client() as other, trio.open_nursery() as nursery:
            try:
                nursery.start_soon(flood, greedy, f"{member}block", ends)
                await all_taken(blocking.server)
                assert (await other.call_tool(f"{member}hello")).text == "hello"
                assert ends == []
            finally:
                blocking.released.set()
    assert ends == ["done"] * FLOOD


@asynccontextmanager
async def serving(serve: Any, *args: Any, **options: Any) -> AsyncGenerator[int]:
    """Serve, and return the port."""
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(serve, *args, **options))
        name = listeners[0].socket.getsockname()
        yield name[1] if isinstance(name, tuple) else 0
        nursery.cancel_scope.cancel(reason="the test is over")


async def test_tcp_client_that_floods_the_server_leaves_a_worker_thread_for_the_next_client() -> None:
    blocking = Blocking()
    async with serving(serve_tcp, blocking.server, "127.0.0.1", 0) as port:
        await leaves_a_place(blocking, partial(open_tcp, "127.0.0.1", port))


async def test_websocket_client_that_floods_the_server_leaves_a_worker_thread_for_the_next_client() -> None:
    blocking = Blocking()
    async with serving(serve_websocket, blocking.server, "127.0.0.1", 0) as port:
        await leaves_a_place(blocking, partial(open_websocket, f"ws://127.0.0.1:{port}/mcp"))


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("websocket", [False, True])
async def test_http_client_that_floods_the_server_leaves_a_worker_thread_for_the_next_client(
    era: Any, websocket: bool
) -> None:
    blocking = Blocking()
    async with serving(serve_http, blocking.server, "127.0.0.1", 0, websocket=websocket) as port:
        await leaves_a_place(blocking, partial(open_http, f"http://127.0.0.1:{port}/mcp", era=era))


async def test_unix_socket_client_that_floods_the_server_leaves_a_worker_thread_for_the_next_client(
    tmp_path: Path,
) -> None:
    blocking = Blocking()
    async with serving(serve_unix, blocking.server, tmp_path / "s"):
        await leaves_a_place(blocking, partial(open_unix, tmp_path / "s"))


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_client_that_floods_http_over_a_unix_socket_leaves_a_worker_thread_for_the_next_client(
    tmp_path: Path, era: Any
) -> None:
    blocking = Blocking()
    async with serving(serve_http, blocking.server, unix=tmp_path / "s"):
        await leaves_a_place(blocking, partial(open_http, url_on_socket(tmp_path / "s"), era=era))


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_client_that_floods_a_proxy_leaves_a_backend_thread_for_the_next_client(era: Any) -> None:
    blocking = Blocking()
    async with (
        serving(serve_tcp, blocking.server, "127.0.0.1", 0) as behind,
        serving(serve_http, proxy(partial(open_tcp, "127.0.0.1", behind)), "127.0.0.1", 0) as port,
    ):
        await leaves_a_place(blocking, partial(open_http, f"http://127.0.0.1:{port}/mcp", era=era))


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_client_that_floods_a_proxy_with_a_shared_connection_leaves_a_backend_thread_free(era: Any) -> None:
    blocking = Blocking()
    async with (
        open_memory(blocking.server) as client,
        serving(serve_http, proxy(client), "127.0.0.1", 0) as port,
    ):
        await leaves_a_place(blocking, partial(open_http, f"http://127.0.0.1:{port}/mcp", era=era))


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("wire", ["memory", "http"])
async def test_client_that_floods_a_gateway_leaves_a_thread_of_the_server_behind_it_for_the_next_client(
    era: Any, wire: str
) -> None:
    blocking = Blocking()
    async with serving(serve_http, blocking.server, "127.0.0.1", 0) as behind:
        member = blocking.server if wire == "memory" else f"http://127.0.0.1:{behind}/mcp"
        async with open_group({"one": MemberDescription(member)}) as group:
            await group.settled()
            async with serving(serve_http, gateway(group), "127.0.0.1", 0) as port:
                await leaves_a_place(blocking, partial(open_http, f"http://127.0.0.1:{port}/mcp", era=era), "one__")


async def test_two_clients_that_flood_the_server_leave_a_worker_thread_for_a_third_client() -> None:
    blocking, ends = Blocking(), list[str]()
    async with serving(serve_tcp, blocking.server, "127.0.0.1", 0) as port:
        with trio.fail_after(PATIENCE):
            async with (
                open_tcp("127.0.0.1", port) as one,
                open_tcp("127.0.0.1", port) as two,
                open_tcp("127.0.0.1", port) as three,
                trio.open_nursery() as nursery,
            ):
                try:
                    for greedy in (one, two):
                        nursery.start_soon(flood, greedy, "block", ends, FLOOD // 2)
                    await all_taken(blocking.server)
                    assert (await three.call_tool("hello")).text == "hello"
                finally:
                    blocking.released.set()
    assert ends == ["done"] * FLOOD
