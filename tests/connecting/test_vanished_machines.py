"""TCP keep-alive on each connection of a client detects machines that vanish."""

from __future__ import annotations

import socket
import ssl
from functools import partial
from typing import Any

import pytest
import trio
import trustme
from tests.interaction.websocket.raw_peer import port_of, serving
from tests.interaction.websocket.servers import watched_server
from tests.patience import PATIENCE

from trio_mcp import open_http, open_tcp, open_websocket, serve_http, serve_tcp, serve_websocket


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> set[tuple[int, int]]:
    """The port and the option of each connection for which the system was asked."""
    found = set[tuple[int, int]]()
    set_option = trio.SocketStream.setsockopt

    def note(stream: trio.SocketStream, level: int, option: int, value: Any) -> None:
        found.add((stream.socket.getpeername()[1], option))
        set_option(stream, level, option, value)

    monkeypatch.setattr(trio.SocketStream, "setsockopt", note)
    return found


@pytest.mark.parametrize("transport", ["tcp", "websocket", "wss", "http"])
async def test_tcp_keep_alive_is_enabled_on_client_connections(transport: str, looked: set[tuple[int, int]]) -> None:
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    serve, connect = {
        "tcp": (serve_tcp, partial(open_tcp, "127.0.0.1")),
        "websocket": (serve_websocket, lambda port: open_websocket(f"ws://127.0.0.1:{port}/mcp")),
        "wss": (
            partial(serve_websocket, ssl_context=context),
            lambda port: open_websocket(f"wss://127.0.0.1:{port}/mcp", ssl_context=trusting),
        ),
        "http": (serve_http, lambda port: open_http(f"http://127.0.0.1:{port}/mcp")),
    }[transport]
    with trio.fail_after(PATIENCE):
        async with serving(serve, watched_server().server, port=0) as listeners:
            port = port_of([getattr(each, "transport_listener", each) for each in listeners])
            async with connect(port) as client:
                assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
    assert {(port, socket.SO_KEEPALIVE), (port, socket.TCP_USER_TIMEOUT)} <= looked
