"""The system looks for machines that are gone."""

from __future__ import annotations

import math
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme
from tests.interaction.websocket.raw_peer import call, initialize, port_of, serving
from tests.interaction.websocket.servers import watched_server
from tests.patience import PATIENCE
from tests.serving.http.raw import modern, request_bytes
from tests.transports.http.clients import socket_pair
from tests.transports.vanishing import needs_filters, vanish
from trio.testing import memory_stream_pair

from trio_mcp import (
    CancelCause,
    Limits,
    open_http,
    open_tcp,
    open_websocket,
    serve_http,
    serve_tcp,
    serve_websocket,
)
from trio_mcp.transports.sockets import keep_alive

LOOKS = (socket.SOL_SOCKET, socket.SO_KEEPALIVE)


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[trio.SocketStream, trio.SocketStream]]:
    ours, theirs = await socket_pair()
    async with ours, theirs:
        yield ours, theirs


async def test_infinite_keep_alive_interval_disables_tcp_keep_alive() -> None:
    async with connected() as (stream, _):
        keep_alive(stream, math.inf, 20)
        assert not stream.getsockopt(*LOOKS)


async def test_tcp_keep_alive_is_enabled_on_the_socket_of_a_tls_stream() -> None:
    async with connected() as (stream, _):
        keep_alive(trio.SSLStream(stream, ssl.create_default_context(), server_hostname="a"), 20, 20)
        assert stream.getsockopt(*LOOKS)


async def test_enabling_tcp_keep_alive_on_a_reset_connection_does_not_raise() -> None:
    async with connected() as (stream, theirs):
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await theirs.aclose()
        keep_alive(stream, 20, 20)
        with pytest.raises(trio.BrokenResourceError):
            await stream.receive_some()


async def test_enabling_tcp_keep_alive_ignores_streams_that_are_not_tcp(tmp_path: Path) -> None:
    keep_alive(memory_stream_pair()[0], 20, 20)
    ours, theirs = socket.socketpair()
    with theirs:
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        async with stream:
            keep_alive(stream, 20, 20)
            assert not stream.getsockopt(*LOOKS)


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("kind", ["http", "tcp", "websocket"])
async def test_client_and_server_sockets_enable_tcp_keep_alive(
    kind: str, tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tls and kind == "tcp":
        pytest.skip("lines over TCP have no TLS")
    looked = set[int]()
    set_option = trio.SocketStream.setsockopt

    def note(stream: trio.SocketStream, level: int, option: int, value: Any) -> None:
        if (level, option) == LOOKS:
            looked.add(stream.socket.fileno())
        set_option(stream, level, option, value)

    monkeypatch.setattr(trio.SocketStream, "setsockopt", note)
    serve: Any = {"http": serve_http, "tcp": serve_tcp, "websocket": serve_websocket}[kind]
    options: dict[str, Any] = {}
    trust: dict[str, Any] = {}
    if tls:
        authority, ours, theirs = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
        authority.issue_cert("127.0.0.1").configure_cert(ours)
        authority.configure_trust(theirs)
        options, trust = {"ssl_context": ours}, {"ssl_context": theirs}
    with trio.fail_after(PATIENCE):
        async with serving(serve, watched_server().server, port=0, **options) as listeners:
            port = port_of([getattr(listener, "transport_listener", listener) for listener in listeners])
            address = f"{'s' if tls else ''}://127.0.0.1:{port}/mcp"
            opened: Any = {
                "http": lambda: open_http(f"http{address}", **trust),
                "tcp": lambda: open_tcp("127.0.0.1", port),
                "websocket": lambda: open_websocket(f"ws{address}", **trust),
            }[kind]
            async with opened() as client:
                await client.call_tool("echo", {"text": "hi"})
                assert len(looked) == 2


@needs_filters
async def test_handlers_are_cancelled_if_the_machine_of_their_client_vanishes() -> None:
    # The system counts in whole seconds: this takes about two.
    limits = Limits(ping_interval=1, ping_timeout=1, stream_interval=1)
    silent, lines = watched_server(limits), watched_server(limits)
    with trio.fail_after(PATIENCE):
        async with (
            serving(serve_http, silent.server, port=0) as http,
            serving(serve_tcp, lines.server, port=0) as tcp,
        ):
            one = await trio.open_tcp_stream("127.0.0.1", port_of(http))
            two = await trio.open_tcp_stream("127.0.0.1", port_of(tcp))
            headers, body = modern("tools/call", {"name": "hang"})
            await one.send_all(request_bytes("POST", {**headers}, body))
            await two.send_all(f"{initialize()}\n{call(1, 'tools/call', {'name': 'hang'})}\n".encode())
            for stream, watched in ((one, silent), (two, lines)):
                await watched.started.wait()
                vanish(stream)
            await silent.ended.wait()
            await lines.ended.wait()
            await one.aclose()
            await two.aclose()
    assert [cause for cause, _ in silent.causes + lines.causes] == [CancelCause.DISCONNECT] * 2
