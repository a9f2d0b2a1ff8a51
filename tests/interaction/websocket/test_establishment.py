"""Which WebSocket connections are accepted, and how others are refused (WSK-01, WSK-06)."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from importlib.metadata import version

import pytest
import trio
from tests.interaction.websocket.raw_peer import RawPeer, connected, masked_frame, port_of, refusal, serving
from tests.interaction.websocket.servers import watched_server
from tests.patience import LONG, PATIENCE
from trio.testing import MockClock, wait_all_tasks_blocked
from trio_websocket import ConnectionClosed, WebSocketRequest
from trio_websocket import serve_websocket as serve_anything
from wsproto.events import AcceptConnection, Request
from wsproto.extensions import PerMessageDeflate

from trio_mcp import (
    ConnectionLost,
    Limits,
    ProtocolViolation,
    RequestContext,
    Server,
    open_websocket,
    serve_websocket,
)

served = partial(serving, serve_websocket)


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_client_calls_a_tool_over_websocket(era: str) -> None:
    with trio.fail_after(PATIENCE):
        async with served(watched_server().server, port=0) as listeners:
            url = f"ws://127.0.0.1:{port_of(listeners)}/mcp"
            async with open_websocket(url, era=era) as client:  # type: ignore[arg-type]
                assert (await client.call_tool("echo", {"text": "häh\n"})).text == "häh\n"


async def test_websocket_handler_sees_request_headers_and_session_id() -> None:
    with trio.fail_after(PATIENCE):
        async with served(watched_server().server, port=0) as listeners:
            url = f"ws://127.0.0.1:{port_of(listeners)}/mcp?x=1"
            async with (
                open_websocket(url, headers={"X-Team": "blue"}) as one,
                open_websocket(url, headers={"X-Team": "red"}) as two,
            ):
                first, again = [(await one.call_tool("who")).structured_content for _ in range(2)]
                other = (await two.call_tool("who")).structured_content
    assert first["headers"]["x-team"] == "blue"
    assert other["headers"]["x-team"] == "red"
    assert first["session"] == again["session"] != other["session"]


@pytest.mark.parametrize("offered", [["foo"], []])
async def test_websocket_client_without_mcp_subprotocol_is_refused(offered: list[str]) -> None:
    async with served(watched_server().server, port=0) as listeners:
        status, body = await refusal(port_of(listeners), subprotocols=offered)
    assert status == 400
    assert "must offer the subprotocol 'mcp'" in body


async def test_mcp_subprotocol_is_selected_among_several_offered_subprotocols() -> None:
    async with (
        served(watched_server().server, port=0) as listeners,
        connected(port_of(listeners), subprotocols=["foo", "mcp", "bar"]),
    ):
        pass


async def test_websocket_server_without_subprotocol_raises_protocol_violation() -> None:
    codes: list[int] = []

    async def accept_without(request: WebSocketRequest) -> None:
        socket = await request.accept()
        with pytest.raises(ConnectionClosed) as closed:
            await socket.get_message()
        codes.append(closed.value.reason.code)
        told.set()

    told = trio.Event()

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            other = await nursery.start(serve_anything, accept_without, "127.0.0.1", 0, None)
            with pytest.raises(ProtocolViolation, match="did not select the subprotocol 'mcp'"):
                async with open_websocket(f"ws://127.0.0.1:{other.port}/"):
                    pytest.fail("this is not MCP")
            await told.wait()
            nursery.cancel_scope.cancel()
    assert codes == [1002]


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH_9\r\n", b"HTTP/1.1 101 Oh\r\nUpgrade: websocket\r\n\r\n"])
async def test_server_that_is_not_http_raises_connection_lost_in_the_websocket_handshake(answer: bytes) -> None:
    async def talk(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(answer or b" ")

    with trio.fail_after(PATIENCE):
        async with serving(trio.serve_tcp, talk, 0, host="127.0.0.1") as listeners:
            with pytest.raises(ConnectionLost, match="handshake"):
                async with open_websocket(f"ws://127.0.0.1:{port_of(listeners)}/mcp"):
                    pytest.fail("this is not MCP")


async def test_websocket_connect_without_a_listener_raises_connection_lost() -> None:
    with pytest.raises(ConnectionLost, match=r"no connection to 127\.0\.0\.1:1"):
        async with open_websocket("ws://127.0.0.1:1/mcp"):
            pytest.fail("nobody is there")


async def test_unanswered_websocket_handshake_raises_too_slow_error_after_connect_timeout() -> None:
    async def say_nothing(stream: trio.SocketStream) -> None:
        await trio.sleep_forever()

    async with serving(trio.serve_tcp, say_nothing, 0, host="127.0.0.1") as listeners:
        with pytest.raises(trio.TooSlowError, match=r"the server was not ready within 0\.05 s \(connect_timeout\)"):
            async with open_websocket(f"ws://127.0.0.1:{port_of(listeners)}/mcp", connect_timeout=0.05):
                pytest.fail("nobody answered")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1/mcp", "WebSocket URL"),
        ("127.0.0.1:80", "WebSocket URL"),
        ("ws:///mcp", "WebSocket URL"),
        ("ws://u:p@h/mcp", "a URL must not contain a user or a password: use headers="),
    ],
)
async def test_url_that_is_not_a_websocket_url_raises_value_error(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        async with open_websocket(url):
            pytest.fail("no such URL")


async def test_refused_websocket_connection_reports_status_and_reason() -> None:
    with trio.fail_after(PATIENCE):
        async with served(watched_server().server, port=0) as listeners:
            with pytest.raises(ConnectionLost, match="HTTP status 404: there is no WebSocket endpoint at this path"):
                async with open_websocket(f"ws://127.0.0.1:{port_of(listeners)}/other"):
                    pytest.fail("no such path")


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1.evil.example", "http://localhost:80x", "file://"]
)
async def test_websocket_from_a_disallowed_origin_is_refused_with_403(origin: str) -> None:
    async with served(watched_server().server, port=0) as listeners:
        status, body = await refusal(port_of(listeners), headers={"Origin": origin})
    assert status == 403
    assert origin in body


@pytest.mark.parametrize("headers", [{}, {"Origin": "http://localhost:3000"}, {"Origin": "https://127.0.0.1"}])
async def test_websocket_without_origin_or_from_localhost_is_accepted(headers: dict[str, str]) -> None:
    async with served(watched_server().server, port=0) as listeners, connected(port_of(listeners), headers=headers):
        pass


async def test_websocket_server_accepts_the_origins_listed_in_allowed_origins() -> None:
    origins = ["null", "https://app.example"]
    async with served(watched_server().server, port=0, allowed_origins=origins) as listeners:
        port = port_of(listeners)
        for origin in origins:
            async with connected(port, headers={"Origin": origin}):
                pass
        assert (await refusal(port, headers={"Origin": "http://localhost:3000"}))[0] == 403


async def test_websocket_with_an_unknown_host_header_is_refused_with_403() -> None:
    async with served(watched_server().server, port=0) as listeners:
        port = port_of(listeners)
        status, body = await refusal(port, host=f"rebound.example:{port}")
        async with connected(port, host="localhost"):
            pass
    assert status == 403
    assert "rebound.example" in body


@pytest.mark.parametrize("host", ["0.0.0.0", "::", None, "192.0.2.1"])
async def test_websocket_on_a_public_address_requires_allowed_origins_and_hosts(host: str | None) -> None:
    with pytest.raises(ValueError, match=r"allowed_origins=\[.*allowed_hosts=\["):
        await serve_websocket(watched_server().server, host, 0)
    with pytest.raises(ValueError, match="so allowed_origins"):
        await serve_websocket(watched_server().server, host, 0, allowed_origins=[])


async def test_websocket_on_a_public_address_accepts_only_allowed_hosts() -> None:
    options = {"allowed_origins": [], "allowed_hosts": ["mcp.example"]}
    async with served(watched_server().server, "0.0.0.0", 0, **options) as listeners:
        port = port_of(listeners)
        async with connected(port, host="mcp.example:99"):
            pass
        assert (await refusal(port))[0] == 403


async def test_websocket_that_exceeds_max_connections_is_refused_with_503() -> None:
    limits = Limits(max_connections=1)
    async with served(watched_server().server, port=0, limits=limits) as listeners:
        port = port_of(listeners)
        async with connected(port) as peer:
            status, body = await refusal(port)
            await peer.open_legacy()
            await peer.ask(1, "tools/call", {"name": "echo", "arguments": {"text": "still here"}})
            assert (await peer.reply(1))["result"]["content"][0]["text"] == "still here"
        assert status == 503
        assert "too many connections" in body


async def test_new_websocket_beyond_the_limit_replaces_the_oldest_one_that_has_sent_no_message() -> None:
    limits = Limits(max_connections=2, handshake_timeout=10_000)
    async with served(watched_server().server, port=0, limits=limits) as listeners:
        port = port_of(listeners)
        async with (
            await trio.open_tcp_stream("127.0.0.1", port) as silent,
            await trio.open_tcp_stream("127.0.0.1", port),
        ):
            await wait_all_tasks_blocked(0.01)  # both have been accepted
            async with connected(port) as peer:
                await peer.open_legacy()
                with trio.fail_after(PATIENCE):
                    assert await silent.receive_some() == b""


async def http(port: int, request: bytes) -> bytes:
    """What the server answers to bytes, until it closes."""
    with trio.fail_after(PATIENCE):
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(request)
            return b"".join([data async for data in stream])


async def test_http_request_that_is_not_a_websocket_upgrade_gets_4xx() -> None:
    async with served(watched_server().server, port=0) as listeners:
        port = port_of(listeners)
        assert (await http(port, b"GET /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n")).startswith(b"HTTP/1.1 426 ")
        assert (await http(port, b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n")).startswith(b"HTTP/1.1 405 ")
        assert (await http(port, b"GET /mcp HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
        assert (await http(port, b"\x16\x03\x01\x02\x00")).startswith(b"HTTP/1.1 400 ")
        assert (await http(port, b"GET /mcp HTTP/1.1\r\nX: " + b"x" * 20_000)).startswith(b"HTTP/1.1 431 ")


def upgrade(version: str = "1.1", **headers: str) -> bytes:
    """Return a request for a WebSocket, with ``headers`` in place of the usual ones."""
    usual = {
        "Host": "localhost",
        "Upgrade": "websocket",
        "Connection": "keep-alive, Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Protocol": "mcp",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    lines = [f"GET /mcp HTTP/{version}", *(f"{name}: {value}" for name, value in usual.items() if value), "", ""]
    return "\r\n".join(lines).encode()


async def test_websocket_upgrade_with_another_http_version_is_refused() -> None:
    async with served(watched_server().server, port=0) as listeners:
        port = port_of(listeners)
        assert (await http(port, upgrade("1.0"))).startswith(b"HTTP/1.1 426 ")
        for version in ("2.0", "0.9", "3.0"):
            assert (await http(port, upgrade(version))).startswith(b"HTTP/1.1 505 ")


async def test_websocket_upgrade_with_wrong_version_or_without_key_is_refused() -> None:
    async with served(watched_server().server, port=0) as listeners:
        port = port_of(listeners)
        answer = await http(port, upgrade(Sec_WebSocket_Version="8"))
        assert answer.startswith(b"HTTP/1.1 426 ")
        assert b"Sec-WebSocket-Version: 13\r\n" in answer
        assert (await http(port, upgrade(Sec_WebSocket_Key=""))).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("key", ["c2hvcnQ=", "no base64 at all", "dGhlIHNhbXBsZSBub25jZSBpcyB0b28gbG9uZw=="])
async def test_websocket_key_that_is_not_16_bytes_is_refused(key: str) -> None:
    async with served(watched_server().server, port=0) as listeners:
        assert (await http(port_of(listeners), upgrade(Sec_WebSocket_Key=key))).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "request_bytes",
    [
        upgrade() + masked_frame(9, b""),
        upgrade(Content_Length="10"),
        upgrade(Transfer_Encoding="chunked"),
        upgrade().replace(b"\r\n", b"\n") + masked_frame(9, b"\r\n\r\n"),
    ],
    ids=["a frame", "a body", "chunks", "a frame after bare newlines"],
)
async def test_websocket_client_that_sends_data_before_the_upgrade_response_is_refused(request_bytes: bytes) -> None:
    async with served(watched_server().server, port=0) as listeners:
        answer = await http(port_of(listeners), request_bytes)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"must wait for the response" in answer


async def test_websocket_upgrade_request_with_bare_newlines_is_accepted() -> None:
    async with (
        served(watched_server().server, port=0) as listeners,
        await trio.open_tcp_stream("127.0.0.1", port_of(listeners)) as stream,
    ):
        await stream.send_all(upgrade().replace(b"\r\n", b"\n"))
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 101 ")


async def test_websocket_refused_with_503_includes_retry_after() -> None:
    limits = Limits(max_connections=1)
    async with (
        served(watched_server().server, port=0, limits=limits) as listeners,
        connected(port_of(listeners)),
    ):
        answer = await http(port_of(listeners), upgrade())
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nRetry-After: 5\r\n" in answer


async def test_websocket_server_negotiates_no_websocket_extension() -> None:
    async with served(watched_server().server, port=0) as listeners:
        offer = Request(host="localhost", target="/mcp", subprotocols=["mcp"], extensions=[PerMessageDeflate()])
        async with await trio.open_tcp_stream("127.0.0.1", port_of(listeners)) as stream:
            peer = RawPeer(stream)
            await peer.send(offer)
            accepted = await peer.next()
    assert isinstance(accepted, AcceptConnection)
    assert accepted.extensions == []


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 401 Unauthorized\r\n\r\nsign in first", "status 401: sign in first"),
        (b"HTTP/1.0 503 Busy\r\nServer: old\r\n\r\ncome back", "status 503: come back"),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 900\r\n\r\ncut sho", "status 403: cut sho"),
        (b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nnever\r\nzz", "status 404: never"),
        (b"HTTP/1.1 500 Oh\r\n\r\n", "status 500$"),
        (b"HTTP/1.1 502 Oh\r\n\r\n" + b"<html>" + b"x" * 300_000, "status 502: <html>xxx"),
    ],
)
async def test_refused_websocket_handshake_keeps_status_and_reason_although_its_body_is_incomplete(
    answer: bytes, said: str
) -> None:
    async def refuse(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        with suppress(trio.BrokenResourceError):
            await stream.send_all(answer)

    with trio.fail_after(PATIENCE):
        async with serving(trio.serve_tcp, refuse, 0, host="127.0.0.1") as listeners:
            with pytest.raises(ConnectionLost, match=said):
                async with open_websocket(f"ws://127.0.0.1:{port_of(listeners)}/mcp"):
                    pytest.fail("it was refused")


@pytest.mark.parametrize(
    ("status", "location", "place"),
    [
        (301, "/mcp/", "ws://HOST/mcp/"),
        (302, "https://user:secret@mcp.example/login?secret#secret", "https://mcp.example/login"),
        (307, "wss://mcp.example:8443/mcp", "wss://mcp.example:8443/mcp"),
        (308, "//mcp.example/x", "ws://mcp.example/x"),
        (302, "javascript:secret", None),
        (302, "", None),
        (404, "/secret", None),
    ],
)
@pytest.mark.parametrize("end", [b"Content-Length: 5\r\n\r\nMoved", b"\r\nMoved"])
async def test_websocket_client_does_not_follow_a_redirect_and_names_its_location(
    status: int, location: str, place: str, end: bytes
) -> None:
    async def redirect(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 %d No\r\nLocation: %b\r\n%b" % (status, location.encode(), end))

    with trio.fail_after(PATIENCE):
        async with serving(trio.serve_tcp, redirect, 0, host="127.0.0.1") as listeners:
            host = f"127.0.0.1:{port_of(listeners)}"
            with pytest.raises(ConnectionLost) as caught:
                async with open_websocket(f"ws://{host}/mcp"):
                    pytest.fail("it was redirected")
    words = "" if place is None else f"; it leads to {place.replace('HOST', host)}, which isn't followed"
    assert str(caught.value) == f"the server refused the connection with HTTP status {status}: Moved{words}"


async def test_incomplete_websocket_handshake_is_closed_after_handshake_timeout(jump_clock: MockClock) -> None:
    limits = Limits(handshake_timeout=LONG)
    with trio.fail_after(LONG + PATIENCE):
        async with (
            served(watched_server().server, port=0, limits=limits) as listeners,
            await trio.open_tcp_stream("127.0.0.1", port_of(listeners)) as stream,
        ):
            await stream.send_all(b"GET /mcp")
            await wait_all_tasks_blocked(0.05)  # it was read: else the system would reset the connection
            jump_clock.jump(LONG)
            assert await stream.receive_some() == b""


@pytest.mark.parametrize("given", [{}, {"user-agent": "mine/1"}])
async def test_websocket_client_sends_a_user_agent_header(given: dict[str, str]) -> None:
    server = Server("named")

    @server.tool
    async def agent(ctx: RequestContext) -> str:
        return ctx.headers["user-agent"]

    async with (
        served(server, port=0) as listeners,
        open_websocket(f"ws://127.0.0.1:{port_of(listeners)}/mcp", headers=given) as client,
    ):
        named = (await client.call_tool("agent")).text
    assert named == given.get("user-agent", f"trio-mcp/{version('trio-mcp')}")
