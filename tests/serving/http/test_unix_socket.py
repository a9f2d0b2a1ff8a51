"""HTTP over a Unix socket: one server for the programs of one user, in both eras (HTT-13)."""

from __future__ import annotations

import os
import socket
import ssl
import stat
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.interaction.websocket.raw_peer import serving
from tests.interaction.websocket.servers import watched_server
from tests.patience import PATIENCE
from tests.ports import url_on_socket
from tests.serving.http.protection import issued, protected

from trio_mcp import (
    Address,
    BadTarget,
    CancelCause,
    Client,
    ConnectionLost,
    HTTPError,
    RequestContext,
    RouteRequest,
    RouteResponse,
    Server,
    TrustedProxies,
    open_http,
    open_tcp,
    open_unix,
    serve_http,
    serve_tcp,
    serve_unix,
)
from trio_mcp.auth import Bearer, OAuth
from trio_mcp.auth.fetching import FetchFailed, UrlRules
from trio_mcp.transports import sockets
from trio_mcp.transports.http_client.client import redirected
from trio_mcp.transports.http_client.origins import split_url

ERAS = pytest.mark.parametrize("era", ["modern", "legacy"])
NOBODY = 65534
OURS = str(os.geteuid()) if hasattr(socket, "SO_PEERCRED") else "None"


def asked() -> Server:
    """A server that tells what it knows of who asks."""
    server = Server("asked")

    @server.tool
    async def user(ctx: RequestContext) -> str:
        return str(ctx.peer_user)

    @server.tool
    def user_in_a_thread(ctx: RequestContext) -> str:
        return str(ctx.peer_user)

    @server.tool
    async def host(ctx: RequestContext) -> str:
        return (ctx.headers or {})["Host"]

    @server.tool
    async def caller(ctx: RequestContext) -> str:
        return str(None if ctx.auth is None else ctx.auth.principal.subject)

    return server


async def told(client: Client, tool: str) -> str:
    return (await client.call_tool(tool)).text


async def status_of(path: Path, host: str, *headers: str) -> int:
    """The status of a request to the endpoint at the socket ``path``."""
    head = "\r\n".join(["GET /mcp HTTP/1.1", f"Host: {host}", *headers, "Accept: text/event-stream", "", ""])
    async with await trio.open_unix_socket(path) as stream:
        await stream.send_all(head.encode())
        answer = await stream.receive_some()
    return int(answer.split()[1])


@ERAS
@pytest.mark.parametrize("name", ["mcp.sock", "MCP Söcket?#%.sock"])
async def test_clients_of_the_same_user_can_call_over_a_unix_socket(socket_folder: Path, name: str, era: Any) -> None:
    path = socket_folder / name
    with trio.fail_after(PATIENCE):
        async with serving(serve_http, asked(), unix=path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            for opened in (open_http(url_on_socket(path), era=era), Address(url_on_socket(path)).open(era=era)):
                async with opened as client:
                    assert await told(client, "host") == "localhost"
                    assert await told(client, "user") == await told(client, "user_in_a_thread") == OURS
    assert os.listdir(socket_folder) == []


@ERAS
async def test_call_cancelled_over_a_unix_socket_cancels_its_handler(socket_folder: Path, era: Any) -> None:
    watched = watched_server()
    with trio.fail_after(PATIENCE):
        async with (
            serving(serve_http, watched.server, unix=socket_folder / "s"),
            open_http(url_on_socket(socket_folder / "s"), era=era) as client,
        ):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "hang")
                await watched.started.wait()
                nursery.cancel_scope.cancel(reason="enough")
            await watched.ended.wait()
            assert watched.causes[0][0] is (CancelCause.DISCONNECT if era == "modern" else CancelCause.PEER)
            assert (await client.call_tool("echo", {"text": "hi"})).text == "hi"


@ERAS
async def test_bearer_tokens_are_required_and_sent_over_a_unix_socket(socket_folder: Path, era: Any) -> None:
    url = url_on_socket(socket_folder / "s")
    with trio.fail_after(PATIENCE):
        async with serving(serve_http, asked(), unix=socket_folder / "s", auth=protected(issued())):
            for way in ({"auth": Bearer("alice-1")}, {"headers": {"Authorization": "Bearer alice-1"}}):
                async with open_http(url, era=era, **way) as client:
                    assert await told(client, "caller") == "alice"
                    assert await told(client, "user") == OURS
            with pytest.raises(HTTPError) as refused:
                async with open_http(url, era=era):
                    pytest.fail("nobody is let in without a token")
            assert refused.value.status == 401


async def test_oauth_over_a_unix_socket_raises_value_error(socket_folder: Path) -> None:
    with pytest.raises(ValueError, match="OAuth does not work with a server on a Unix socket"):
        async with open_http(url_on_socket(socket_folder / "s"), auth=OAuth()):
            pytest.fail("no authorization server could name it")


async def test_unix_socket_request_with_an_origin_or_a_disallowed_host_gets_status_403(socket_folder: Path) -> None:
    path = socket_folder / "s"
    with trio.fail_after(PATIENCE):
        async with serving(serve_http, asked(), unix=path):
            assert await status_of(path, "localhost") == 400, "no session is named"
            for origin in ("http://localhost", "https://localhost:8000", "null"):
                assert await status_of(path, "localhost", f"Origin: {origin}") == 403
            assert await status_of(path, "mcp.example.com") == 403
            assert await status_of(path, "127.0.0.1") == 403


async def test_unix_socket_accepts_configured_hosts_and_origins_behind_a_proxy(socket_folder: Path) -> None:
    path = socket_folder / "s"
    options = {
        "allowed_hosts": ["mcp.example.com"],
        "allowed_origins": ["https://app.example.com"],
        "trusted_proxies": TrustedProxies(["unix"]),
    }
    with trio.fail_after(PATIENCE):
        async with serving(serve_http, asked(), unix=path, **options):
            assert await status_of(path, "mcp.example.com", "Origin: https://app.example.com") == 400
            assert await status_of(path, "mcp.example.com", "Origin: https://evil.example.com") == 403
            assert await status_of(path, "localhost") == 403


async def test_second_server_on_a_unix_socket_raises_and_a_stale_socket_is_replaced(socket_folder: Path) -> None:
    path = socket_folder / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with trio.fail_after(PATIENCE):
        async with serving(serve_http, asked(), unix=path):
            for serve in (partial(serve_http, unix=path), partial(serve_unix, path=path)):
                with pytest.raises(OSError, match="another server is already listening on this address"):
                    await serve(Server("second"))
            async with open_http(url_on_socket(path)) as client:
                assert await told(client, "host") == "localhost"


@pytest.mark.parametrize("given", [{"listeners": []}, {"ssl_context": ssl.create_default_context()}])
async def test_unix_socket_combined_with_other_listeners_or_tls_raises(
    socket_folder: Path, given: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="can't be combined with listeners= or ssl_context="):
        await serve_http(asked(), unix=socket_folder / "s", **given)
    assert os.listdir(socket_folder) == []


async def test_many_concurrent_unix_socket_clients_connect_although_the_backlog_is_full(
    socket_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "_BACKLOG", 1)
    answers: list[str] = []
    with trio.fail_after(PATIENCE):
        async with (
            serving(serve_http, asked(), unix=socket_folder / "s"),
            open_http(url_on_socket(socket_folder / "s")) as client,
        ):

            async def call() -> None:
                answers.append(await told(client, "host"))

            async with trio.open_nursery() as nursery:
                for _ in range(50):
                    nursery.start_soon(call)
    assert answers == ["localhost"] * 50


async def test_client_follows_a_redirect_from_a_unix_socket_only_on_the_same_socket(socket_folder: Path) -> None:
    async def moved(_: RouteRequest) -> RouteResponse:
        return RouteResponse(status=307, headers={"Location": "/mcp"})

    path = socket_folder / "s"
    with trio.fail_after(PATIENCE):
        async with (
            serving(serve_http, asked(), unix=path, routes={"/old": moved}),
            open_http(url_on_socket(path, "/old")) as client,
        ):
            assert await told(client, "host") == "localhost"


def test_client_never_opens_a_unix_socket_url_received_from_a_server() -> None:
    elsewhere = "http+unix://%2Frun%2Fdocker.sock/mcp"
    for url in ("http://localhost/mcp", "https://mcp.example.com/mcp"):
        origin, target = split_url(url)
        assert redirected(origin, "POST", target, 307, elsewhere) is None
    with pytest.raises(FetchFailed):
        UrlRules(loopback=True).check(elsewhere)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http+unix://run%2Fmcp.sock/mcp", "the absolute path of the socket, percent-encoded"),
        ("http+unix:///run/mcp.sock/mcp", "the absolute path of the socket, percent-encoded"),
        ("http+unix:/run/mcp.sock", "the absolute path of the socket, percent-encoded"),
        ("http+unix://", "the absolute path of the socket, percent-encoded"),
        ("http+unix://%2Frun%2Fa%zz/mcp", "the absolute path of the socket, percent-encoded"),
        ("http+unix://me@%2Frun%2Fmcp.sock/mcp", "must not contain a user or a password"),
        ("http+unix://%2Frun%2Fmcp.sock:80/mcp", "the absolute path of the socket, percent-encoded"),
        ("http+unix://%2Frun%2Fa%00b/mcp", "must not be empty or contain NUL"),
        (f"http+unix://%2F{'a' * 107}/mcp", "too long, with 108 bytes; at most 107 are allowed"),
        (f"http+unix://%2F{'%C3%B6' * 60}/mcp", "too long, with 121 bytes"),
        ("http+unix://%2Frun%2Fmcp.sock/mcp#top", "neither a user nor a fragment"),
        ("http+unix://%2Frun%2Fmcp.sock/a b", "must be printable ASCII"),
        ("http+unix://%2Frun%2Fmcp.sock/a\nb", "printable characters only"),
    ],
)
@pytest.mark.parametrize("opened", [open_http, Address])
async def test_invalid_unix_socket_url_raises_an_error_with_the_reason(
    url: str, words: str, opened: Callable[[str], Any]
) -> None:
    with pytest.raises(BadTarget, match=words):
        async with opened(url):
            pytest.fail("there is no such server")


def test_unix_socket_path_can_have_the_maximum_length_of_the_system() -> None:
    assert Address(f"HTTP+UNIX://%2f{'a' * 106}").url.endswith("a")


def of_nothing(path: Path) -> str:
    return "No such file or directory"


def of_a_file(path: Path) -> str:
    path.write_text("precious")
    return "the path does not name a socket"


def of_a_folder(path: Path) -> str:
    path.mkdir()
    return "the path does not name a socket"


def of_the_dead(path: Path) -> str:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    return "Connection refused"


@pytest.mark.parametrize("make", [of_nothing, of_a_file, of_a_folder, of_the_dead])
async def test_unix_socket_without_a_listener_raises_an_error_with_the_reason(
    socket_folder: Path, make: Callable[[Path], str]
) -> None:
    path = socket_folder / "there"
    reason = make(path)
    ways: list[AbstractAsyncContextManager[Client]] = [open_http(url_on_socket(path)), open_unix(path)]
    for way in ways:
        with pytest.raises(ConnectionLost, match=f"no connection to {path}: .*{reason}"):
            async with way:
                pytest.fail("nobody is there")


async def test_unix_socket_without_permission_raises_an_error_with_the_reason(socket_folder: Path) -> None:
    path, user = socket_folder / "s", os.geteuid()
    async with serving(serve_http, asked(), unix=path):
        path.chmod(0)
        if user == 0:  # to whom no mode means anything
            os.seteuid(NOBODY)
        try:
            with pytest.raises(ConnectionLost, match="Permission denied"):
                async with open_http(url_on_socket(path)):
                    pytest.fail("it was closed")
        finally:
            os.seteuid(user)


@ERAS
async def test_handler_can_read_the_peer_uid_only_over_a_unix_socket(socket_folder: Path, era: Any) -> None:
    with trio.fail_after(PATIENCE):
        async with (
            serving(serve_unix, asked(), socket_folder / "lines"),
            serving(serve_tcp, asked(), port=0) as [tcp],
            serving(serve_http, asked(), port=0) as [http],
        ):
            ports = [each.socket.getsockname()[1] for each in (tcp, http)]
            ways = {
                open_unix(socket_folder / "lines", era=era): OURS,
                open_tcp("127.0.0.1", ports[0], era=era): "None",
                open_http(f"http://127.0.0.1:{ports[1]}/mcp", era=era): "None",
            }
            for way, user in ways.items():
                async with way as client:
                    assert await told(client, "user") == user
