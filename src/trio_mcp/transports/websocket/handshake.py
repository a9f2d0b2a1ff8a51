"""The opening handshake of a WebSocket, for clients and servers. A server parses and checks the upgrade request, and
refuses it if necessary, before trio-websocket is used."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final, TypeAlias, cast

import attrs
import h11
import trio
from trio_websocket import ConnectionRejected, WebSocketConnection, wrap_client_stream, wrap_server_stream

from ...classes import frozen
from ...jsonrpc.errors import ProtocolViolation
from ...runtime.transport import ConnectionLost
from ..host_checks import HostChecks
from ..streams import drop_tracebacks, linger, until_broken
from .stream import CLOSE_WAIT, HEAD_END, CoalescingStream, close_frame

SUBPROTOCOL: Final = "mcp"

_LONGEST_BODY: Final = 500
"""Maximum number of characters of a refusal's body that a `ConnectionLost` error repeats."""


class UpgradeRefused(ConnectionLost):
    """Raised if the server refuses the upgrade to WebSocket with an HTTP ``status``.

    The names in ``headers`` are in lower case, and the values of a repeated header are joined with commas.
    """

    def __init__(self, reason: str, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers


Handshake: TypeAlias = Callable[[trio.Nursery], Awaitable[WebSocketConnection]]
"""Type of a function that makes the handshake, and returns the connection. The connection's reader runs in the
nursery."""


async def accept(stream: CoalescingStream, max_message_bytes: int, nursery: trio.Nursery) -> WebSocketConnection:
    """Perform the server's part of the WebSocket handshake. Call `check_upgrade` before."""
    request = await wrap_server_stream(nursery, stream, max_message_size=max_message_bytes, receive_buffer_size=None)
    return await request.accept(subprotocol=SUBPROTOCOL)


async def ask(
    stream: CoalescingStream,
    max_message_bytes: int,
    host: str,
    resource: str,
    headers: Sequence[tuple[bytes, bytes]],
    nursery: trio.Nursery,
) -> WebSocketConnection:
    """Perform the client's part of the WebSocket handshake.

    Raises `ProtocolViolation` if the server doesn't select the subprotocol ``mcp``.
    """
    socket = await wrap_client_stream(
        nursery,
        cast("Any", stream),  # any stream works
        host,
        resource,
        subprotocols=[SUBPROTOCOL],
        extra_headers=list(headers),
        max_message_size=max_message_bytes,
        receive_buffer_size=None,
    )
    if socket.subprotocol != SUBPROTOCOL:
        stream.put(close_frame(1002, "the subprotocol mcp was not selected", masked=True))
        with trio.move_on_after(CLOSE_WAIT), suppress(trio.BrokenResourceError):
            await stream.flushed()
        raise ProtocolViolation(
            f"the server speaks WebSocket, but not MCP: it did not select the subprotocol {SUBPROTOCOL!r}"
        )
    return socket


async def shake_hands(handshake: Handshake, stream: CoalescingStream, nursery: trio.Nursery) -> WebSocketConnection:
    """Perform the WebSocket handshake over ``stream``, and return the connection.

    Raises `ConnectionLost` if ``stream`` ends before it is done, with the HTTP status and text if the server has
    responded. Without this, trio-websocket would wait for ever.
    """
    done: list[WebSocketConnection] = []
    async with trio.open_nursery() as watch:

        async def give_up() -> None:
            # trio-websocket reads the end of the stream only after it has processed all earlier bytes.
            await stream.ended.wait()
            watch.cancel_scope.cancel(reason="the peer closed the connection in the handshake")

        watch.start_soon(give_up)
        done.append(await handshake(nursery))
        watch.cancel_scope.cancel(reason="the handshake is done")
    if not done:
        raise _refused(stream.refusal) or ConnectionLost("the peer closed the connection in the handshake")
    return done[0]


def _refused(answer: bytes) -> ConnectionLost | None:
    """Return an `UpgradeRefused` for the HTTP response with which the server refuses the upgrade.

    The body of that response may be incomplete. Return `None` if there was no response.

    wsproto finds the end of a body only by its length, although RFC 9112 section 6.3 has other ways, and trio-websocket
    waits for that end.
    """
    parser = h11.Connection(h11.CLIENT)
    parser.send(h11.Request(method="GET", target="/", headers=[("Host", "unknown")]))
    parser.send(h11.EndOfMessage())
    parser.receive_data(answer)
    head, body = None, bytearray()
    with suppress(h11.RemoteProtocolError):
        while isinstance(event := parser.next_event(), h11.Response | h11.Data):
            if isinstance(event, h11.Response):
                head = event
            else:
                body += event.data
    return None if head is None else _upgrade_refused(head.status_code, list(head.headers), body)


def _upgrade_refused(status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes | bytearray) -> UpgradeRefused:
    text = body.decode("utf-8", "replace").strip()[:_LONGEST_BODY]
    words = f"the server refused the connection with HTTP status {status}"
    by_name: dict[str, str] = {}
    for raw, value in headers:
        name, text_of = raw.decode("latin-1").lower(), value.decode("latin-1")
        by_name[name] = f"{by_name[name]}, {text_of}" if name in by_name else text_of
    return UpgradeRefused(f"{words}: {text}" if text else words, status, by_name)


def refusal(error: Exception) -> Exception:
    """Return the exception to raise to the user after the WebSocket handshake has failed with ``error``."""
    match error:
        case ConnectionRejected():
            return _upgrade_refused(error.status_code, error.headers or (), error.body or b"")
        case ConnectionLost() | ProtocolViolation():
            return error
        case _:
            return ConnectionLost(f"the WebSocket handshake failed: {error!r}")


_LONGEST_HEAD: Final = 16 * 1024
_LONGEST_LIST: Final = 1000
"""Maximum number of characters of a list header that are read."""
_MOST_HEADERS: Final = 100
_LONGEST_END: Final = len(b"\n\r\n")
_READ: Final = 16 * 1024
_LINGER: Final = 1.0
_KEY_BYTES: Final = 16


class Rejection(Exception):
    """Raised if a server refuses to upgrade a client's connection to WebSocket. The client gets ``status`` and
    ``reason``."""

    def __init__(self, status: HTTPStatus, reason: str, **headers: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


@frozen
class UpgradeRequest:
    """A client's HTTP request to upgrade to WebSocket.

    ``received`` contains the bytes of the request head.
    """

    path: str = attrs.field(repr=False)
    headers: Mapping[str, str] = attrs.field(repr=False)
    """Header values, keyed by name in lower case. The values of a repeated header are joined with commas."""
    received: bytes = attrs.field(repr=False)
    repeated: frozenset[str] = frozenset()
    """Names of headers that occurred more than once."""
    method: str = "GET"

    def tokens(self, name: str) -> list[str]:
        """Return the comma-separated items of the header ``name``. Only the first 1,000 characters are parsed."""
        found = self.headers.get(name, "")[:_LONGEST_LIST].split(",")
        return [token.strip() for token in found if token.strip()]


async def read_upgrade(stream: trio.abc.ReceiveStream, received: bytes = b"") -> UpgradeRequest:
    """Read and parse an HTTP request to upgrade to WebSocket.

    ``received`` is the part that was already read. Raises `Rejection` if the client sends anything else, and
    `ConnectionLost` if it disconnects.
    """
    head = await _read_head(stream, bytearray(received))
    event = _parse(head)
    headers: dict[str, str] = {}
    repeated: set[str] = set()
    for name, value in event.headers:
        key, text = name.decode("ascii"), value.decode("latin-1")
        if key in headers:
            repeated.add(key)
            text = f"{headers[key]}, {text}"
        headers[key] = text
    _check_version(event.http_version)
    if event.method != b"GET":
        raise Rejection(
            HTTPStatus.METHOD_NOT_ALLOWED, "the upgrade to a WebSocket must be requested with GET", Allow="GET"
        )
    return UpgradeRequest(event.target.decode("ascii"), headers, bytes(head), frozenset(repeated))


def _check_version(version: bytes) -> None:
    # RFC 6455 section 4.2.1 requires HTTP/1.1 or higher.
    # In HTTP/2 and later, the upgrade takes another form (RFC 8441).
    if not version.startswith(b"1."):
        raise Rejection(
            HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "the upgrade to a WebSocket must be requested with HTTP/1.1"
        )
    # RFC 9110 section 7.8: a server MUST ignore an Upgrade header in HTTP/1.0.
    if version == b"1.0":
        raise _no_websocket("HTTP/1.0 doesn't support the upgrade to a WebSocket: use HTTP/1.1")


def _bad_request(reason: str) -> Rejection:
    return Rejection(HTTPStatus.BAD_REQUEST, reason)


def _too_large(reason: str) -> Rejection:
    return Rejection(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, reason)


def _no_websocket(reason: str) -> Rejection:
    return Rejection(HTTPStatus.UPGRADE_REQUIRED, reason, Upgrade="websocket", Connection="Upgrade, close")


async def _read_head(stream: trio.abc.ReceiveStream, received: bytearray) -> bytearray:
    searched = 0
    while HEAD_END.search(received, searched) is None:
        searched = max(0, len(received) + 1 - _LONGEST_END)
        if len(received) > _LONGEST_HEAD:
            raise _too_large(f"the headers are longer than {_LONGEST_HEAD} bytes")
        try:
            data = await stream.receive_some(_READ)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            drop_tracebacks(error)
            raise ConnectionLost(
                f"the connection broke before a request arrived: {error.__cause__ or error}"
            ) from error
        if not data:
            raise ConnectionLost("the connection was closed before a request arrived")
        received += data
        if not 65 <= received[0] <= 90:
            raise _bad_request("this is not an HTTP request")
    return received


def _parse(received: bytearray) -> h11.Request:
    if received.count(b"\n") > _MOST_HEADERS + 2:
        raise _too_large(f"the request has more than {_MOST_HEADERS} headers")
    parser = h11.Connection(h11.SERVER)
    parser.receive_data(bytes(received))
    try:
        event = parser.next_event()
        end = parser.next_event()
    except h11.RemoteProtocolError as error:
        raise _bad_request(f"malformed HTTP request: {error}") from None
    assert isinstance(event, h11.Request), "the head is complete"
    # RFC 6455 section 4.1: the client MUST wait for the response before it sends more.
    # If a frame arrived with the request, trio-websocket would process this frame only after the next frame.
    if event.method == b"GET" and (not isinstance(end, h11.EndOfMessage) or parser.trailing_data[0]):
        raise _bad_request("the client must wait for the response to its upgrade request before it sends more")
    return event


def check_upgrade(request: UpgradeRequest, path: str, checks: HostChecks) -> None:
    """Raise `Rejection` if ``request`` isn't a valid request for MCP over WebSocket.

    Its path must be the server's, and its origin and host must be allowed.
    """
    headers = request.headers
    host = headers.get("host", "")
    if not checks.allows_host(host):
        raise Rejection(HTTPStatus.FORBIDDEN, checks.refused_host(host))
    origin = headers.get("origin")
    if origin is not None and not checks.allows_origin(origin):
        raise Rejection(HTTPStatus.FORBIDDEN, checks.refused_origin(origin))
    if request.path.partition("?")[0] != path:
        raise Rejection(HTTPStatus.NOT_FOUND, "there is no WebSocket endpoint at this path")
    upgrades = [token.lower() for token in request.tokens("upgrade")]
    if "websocket" not in upgrades or "upgrade" not in [token.lower() for token in request.tokens("connection")]:
        raise _no_websocket("this is a WebSocket endpoint: request an upgrade")
    if headers.get("sec-websocket-version") != "13":
        raise Rejection(HTTPStatus.UPGRADE_REQUIRED, "the WebSocket version must be 13", Sec_WebSocket_Version="13")
    try:
        size = len(base64.b64decode(headers.get("sec-websocket-key", ""), validate=True))
    except ValueError:
        size = 0
    if size != _KEY_BYTES:  # RFC 6455 section 4.2.1 requires a key of 16 bytes
        raise _bad_request("the Sec-WebSocket-Key must be 16 bytes in base64")
    if SUBPROTOCOL not in request.tokens("sec-websocket-protocol"):
        raise _bad_request(f"the Sec-WebSocket-Protocol header must offer the subprotocol {SUBPROTOCOL!r}")


async def refuse(stream: trio.abc.Stream, refused: Rejection) -> None:
    """Send an HTTP error to the client, and close the connection after the client has read it, or after one second."""
    body = f"{refused.reason}\n".encode()
    headers = {
        "Content-Type": "text/plain; charset=utf-8",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **refused.headers,
    }
    lines = [f"HTTP/1.1 {refused.status.value} {refused.status.phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    try:
        with trio.move_on_after(_LINGER), until_broken():
            await stream.send_all(head + body)
            await linger(stream)
    finally:
        await trio.aclose_forcefully(stream)
