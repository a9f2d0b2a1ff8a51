"""``wss://`` with a temporary certificate, and connections where only one side uses TLS."""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trustme
from tests.interaction.websocket.raw_peer import connected, port_of, serving
from tests.interaction.websocket.servers import Watched, watched_server
from tests.patience import LONG, PATIENCE
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import CancelCause, ConnectionLost, Limits, open_websocket, serve_websocket


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Whom the clients of these tests trust."""
    return trustme.CA()


@pytest.fixture
def trusting(authority: trustme.CA) -> ssl.SSLContext:
    """A client's side."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def certified(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    """A server's side, with a certificate for ``names``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return context


@asynccontextmanager
async def served(watched: Watched, context: ssl.SSLContext, **options: Any) -> AsyncIterator[int]:
    """The port of a server over TLS."""
    async with serving(serve_websocket, watched.server, port=0, ssl_context=context, **options) as listeners:
        yield port_of([listener.transport_listener for listener in listeners])


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing of what a stranger does is worth a line in the server's log."""
    caplog.set_level(logging.INFO)
    yield
    assert not caplog.records


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_websocket_client_can_make_and_cancel_a_call_over_tls(
    authority: trustme.CA, trusting: ssl.SSLContext, era: Any, host: str
) -> None:
    watched = watched_server()
    with trio.fail_after(PATIENCE):
        async with (
            served(watched, certified(authority, "127.0.0.1", "localhost")) as port,
            open_websocket(f"wss://{host}:{port}/mcp", ssl_context=trusting, era=era) as client,
        ):
            text = "x" * 1_000_000
            assert (await client.call_tool("echo", {"text": text})).text == text
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "hang")
                await watched.started.wait()
                nursery.cancel_scope.cancel(reason="enough")
            await watched.ended.wait()
            assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"
    assert watched.causes == [(CancelCause.PEER, "enough")]


async def test_websocket_close_code_arrives_over_tls(authority: trustme.CA, trusting: ssl.SSLContext) -> None:
    watched = watched_server()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            serve = partial(serve_websocket, watched.server, port=0, ssl_context=certified(authority, "127.0.0.1"))
            listeners = await nursery.start(serve)
            port = port_of([listener.transport_listener for listener in listeners])
            with trio.CancelScope(shield=True):
                async with open_websocket(f"wss://127.0.0.1:{port}/mcp", ssl_context=trusting) as client:
                    nursery.start_soon(cancel_after, watched.started, nursery.cancel_scope)
                    with pytest.raises(ConnectionLost, match=r"going away \(close code 1001\)"):
                        await client.call_tool("hang")


async def cancel_after(event: trio.Event, scope: trio.CancelScope) -> None:
    """End ``scope`` when ``event`` has happened."""
    await event.wait()
    scope.cancel(reason="enough")


async def test_websocket_client_reads_the_refusal_of_the_server_over_tls(
    authority: trustme.CA, trusting: ssl.SSLContext, quiet: None
) -> None:
    with trio.fail_after(PATIENCE):
        async with served(watched_server(), certified(authority, "127.0.0.1")) as port:
            with pytest.raises(ConnectionLost, match="HTTP status 404: there is no WebSocket endpoint at this path"):
                async with open_websocket(f"wss://127.0.0.1:{port}/other", ssl_context=trusting):
                    pytest.fail("no such path")


@pytest.mark.parametrize(
    ("name", "trusted", "why"),
    [
        ("127.0.0.1", False, "unable to get local issuer certificate"),
        ("other.example", True, r"certificate is not valid for '127\.0\.0\.1'"),
    ],
)
async def test_untrusted_certificate_raises_connection_lost(
    authority: trustme.CA, trusting: ssl.SSLContext, quiet: None, name: str, trusted: bool, why: str
) -> None:
    watched = watched_server()
    with trio.fail_after(PATIENCE):
        async with served(watched, certified(authority, name)) as port:
            with pytest.raises(ConnectionLost, match=rf"no TLS connection to 127\.0\.0\.1:{port}: .*{why}"):
                async with open_websocket(f"wss://127.0.0.1:{port}/mcp", ssl_context=trusting if trusted else None):
                    pytest.fail("it is not to be trusted")
    assert watched.server.statistics().connections == 0


async def test_websocket_client_without_tls_on_a_tls_port_raises_and_names_the_likely_cause(
    authority: trustme.CA, trusting: ssl.SSLContext, quiet: None
) -> None:
    with trio.fail_after(PATIENCE):
        async with served(watched_server(), certified(authority, "127.0.0.1")) as port:
            url = f"127.0.0.1:{port}/mcp"
            async with open_websocket(f"wss://{url}", ssl_context=trusting) as bystander:
                with pytest.raises(ConnectionLost, match=r"the server sent no answer. If it requires TLS, use wss://"):
                    async with open_websocket(f"ws://{url}"):
                        pytest.fail("it speaks TLS")
                assert (await bystander.call_tool("echo", {"text": "hi"})).text == "hi"
            async with open_websocket(f"wss://{url}", ssl_context=trusting) as newcomer:
                assert (await newcomer.call_tool("echo", {"text": "hi"})).text == "hi"


async def test_websocket_client_with_tls_on_a_plain_port_raises_connection_lost(
    trusting: ssl.SSLContext, quiet: None
) -> None:
    with trio.fail_after(PATIENCE):
        async with serving(serve_websocket, watched_server().server, port=0) as listeners:
            port = port_of(listeners)
            async with connected(port) as bystander:
                await bystander.open_legacy()
                with pytest.raises(ConnectionLost, match=rf"no TLS connection to 127\.0\.0\.1:{port}: .*SSL"):
                    async with open_websocket(f"wss://127.0.0.1:{port}/mcp", ssl_context=trusting):
                        pytest.fail("it speaks no TLS")
                await bystander.ask(1, "ping")
                assert "result" in await bystander.reply(1)


@pytest.mark.parametrize("hello", [b"", b"\x16\x03\x01"])
async def test_unfinished_tls_handshake_of_a_client_is_closed_after_handshake_timeout(
    authority: trustme.CA, quiet: None, hello: bytes, jump_clock: MockClock
) -> None:
    limits = Limits(handshake_timeout=LONG)
    with trio.fail_after(LONG + PATIENCE):
        async with (
            served(watched_server(), certified(authority, "127.0.0.1"), limits=limits) as port,
            await trio.open_tcp_stream("127.0.0.1", port) as stream,
        ):
            await stream.send_all(hello)
            await wait_all_tasks_blocked(0.05)  # it was read: else the system would reset the connection
            jump_clock.jump(LONG)
            assert await stream.receive_some() == b""


async def test_unfinished_tls_handshake_of_a_server_raises_too_slow_error() -> None:
    closed = trio.Event()

    async def say_nothing(stream: trio.SocketStream) -> None:
        async for _ in stream:
            pass
        closed.set()

    with trio.fail_after(PATIENCE):
        async with serving(trio.serve_tcp, say_nothing, 0, host="127.0.0.1") as listeners:
            with pytest.raises(trio.TooSlowError):
                async with open_websocket(f"wss://127.0.0.1:{port_of(listeners)}/mcp", connect_timeout=0.05):
                    pytest.fail("nobody answered")
            await closed.wait()


async def test_websocket_client_raises_value_error_for_ssl_context_with_a_ws_url(trusting: ssl.SSLContext) -> None:
    with pytest.raises(ValueError, match="ssl_context= needs a wss:// URL"):
        async with open_websocket("ws://127.0.0.1:1/mcp", ssl_context=trusting):
            pytest.fail("it would not be used")
