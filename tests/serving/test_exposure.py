"""A server that lets everybody in says so where other machines reach it, once, and what to write."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.serving.http.protection import issued, protected

from trio_mcp import Server, serve_http, serve_tcp, serve_unix, serve_websocket

REACHED = "other machines can reach this server at {} without authentication: "


class Socket:
    """A socket that says where it listens."""

    def __init__(self, name: Any) -> None:
        self._name = name

    def getsockname(self) -> Any:
        return self._name


class Listener(trio.abc.Listener[trio.abc.Stream]):
    """A listener that nobody comes to."""

    def __init__(self, name: Any) -> None:
        self.socket = Socket(name)

    async def accept(self) -> trio.abc.Stream:
        return await trio.sleep_forever()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class Secure(Listener):
    """The same with TLS around."""

    def __init__(self, name: Any) -> None:
        super().__init__(name)
        self.transport_listener = Listener(name)
        del self.socket


@asynccontextmanager
async def serving(serve: Callable[..., Any], *where: Any, **options: Any) -> AsyncGenerator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve, Server("s"), *where, handle_signals=False, **options))
        yield
        nursery.cancel_scope.cancel(reason="the test is over")


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "other machines" in record.getMessage()]


ANYBODY: dict[str, Any] = {"allowed_origins": [], "allowed_hosts": ["mcp.example.com"]}
HTTP = [serve_http, partial(serve_http, websocket=True), serve_websocket]


@pytest.mark.parametrize("serve", HTTP)
@pytest.mark.parametrize("kind", [Listener, Secure])
@pytest.mark.parametrize("name", [("0.0.0.0", 80), ("192.0.2.1", 80), ("::", 80, 0, 0)])
async def test_server_reachable_from_other_hosts_without_authorization_logs_one_warning(
    serve: Callable[..., Any], kind: type[Listener], name: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(serve, listeners=[kind(name), kind(name), kind(("127.0.0.1", 80))], **ANYBODY):
        pass
    (warning,) = warnings_in(caplog)
    assert warning.startswith(REACHED.format(name[0]) + "pass auth=Protected(")


@pytest.mark.parametrize("serve", HTTP)
async def test_server_with_authorization_logs_no_exposure_warning(
    serve: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(serve, listeners=[Listener(("0.0.0.0", 80))], auth=protected(issued()), **ANYBODY):
        pass
    assert warnings_in(caplog) == []


@pytest.mark.parametrize("serve", HTTP)
async def test_server_with_client_certificates_logs_no_exposure_warning(
    serve: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    listeners = [Listener(("0.0.0.0", 80))]
    async with serving(serve, listeners=listeners, ssl_context=context, **ANYBODY):
        pass
    assert warnings_in(caplog) == []


@pytest.mark.parametrize("serve", [*HTTP, serve_tcp])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_server_on_a_loopback_address_logs_no_exposure_warning(
    serve: Callable[..., Any], host: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(serve, host, 0):
        pass
    assert warnings_in(caplog) == []


async def test_unix_socket_server_logs_no_exposure_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(serve_unix, tmp_path / "s"):
        pass
    assert warnings_in(caplog) == []
    theirs, ours = socket.socketpair()
    with theirs, ours:
        async with serving(serve_http, listeners=[Listener(theirs.getsockname())], **ANYBODY):
            pass
    assert warnings_in(caplog) == []


async def test_tcp_server_reachable_from_other_hosts_logs_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def opened(port: int, *, host: str | None) -> list[Listener]:
        return [Listener((host, port))]

    monkeypatch.setattr(trio, "open_tcp_listeners", opened)
    async with serving(serve_tcp, "0.0.0.0", 0):
        pass
    (warning,) = warnings_in(caplog)
    assert warning.startswith(REACHED.format("0.0.0.0"))
    assert "serve_unix" in warning
