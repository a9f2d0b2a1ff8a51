"""The HTTP request that asks for a WebSocket: read, checked and, where it must be, refused before the upgrade."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import attrs
import h11
import trio

from ..runtime.channel import ConnectionLost
from .admission import Admission
from .websocket import SUBPROTOCOL

__all__ = ["Refused", "UpgradeRequest", "check_upgrade", "read_upgrade", "refuse"]

_LONGEST_HEAD: Final = 16 * 1024
_READ: Final = 16 * 1024
_LINGER: Final = 1.0


class Refused(Exception):
    """There will be no connection. ``status`` and ``reason`` are what the client is told."""

    def __init__(self, status: HTTPStatus, reason: str, **headers: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


@attrs.frozen
class UpgradeRequest:
    """What a client asked for. ``received`` is all that was read of it."""

    path: str
    headers: Mapping[str, str]
    """Names in lower case. What came more than once is joined with commas."""
    received: bytes

    def tokens(self, name: str) -> list[str]:
        """A header that is a list."""
        return [token.strip() for token in self.headers.get(name, "").split(",") if token.strip()]


async def read_upgrade(stream: trio.abc.ReceiveStream) -> UpgradeRequest:
    """Read the head of one request. Raises `Refused` for what is none, and `ConnectionLost`."""
    received = bytearray()
    while (end := received.find(b"\r\n\r\n")) < 0:
        if len(received) > _LONGEST_HEAD:
            raise Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the head has more than {_LONGEST_HEAD} bytes")
        try:
            data = await stream.receive_some(_READ)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionLost(f"the connection broke before its request: {error.__cause__ or error}") from error
        if not data:
            raise ConnectionLost("the connection was closed before its request")
        received += data
        if not 65 <= received[0] <= 90:
            raise Refused(HTTPStatus.BAD_REQUEST, "this is no HTTP request")
    parser = h11.Connection(h11.SERVER)
    parser.receive_data(bytes(received[: end + 4]))
    try:
        event = parser.next_event()
    except h11.RemoteProtocolError as error:
        raise Refused(HTTPStatus.BAD_REQUEST, f"this is no good HTTP request: {error}") from None
    assert isinstance(event, h11.Request), "the head is complete"
    headers: dict[str, str] = {}
    for name, value in event.headers:
        key, text = name.decode("ascii"), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    if event.method != b"GET":
        raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "a WebSocket is asked for with GET", Allow="GET")
    return UpgradeRequest(event.target.decode("ascii"), headers, bytes(received))


def check_upgrade(request: UpgradeRequest, path: str, admission: Admission) -> None:
    """Raise `Refused` unless ``request`` asks for MCP over WebSocket here, from where it may."""
    headers = request.headers
    if not admission.admits_host(headers.get("host", "")):
        raise Refused(HTTPStatus.FORBIDDEN, f"the Host {headers.get('host', '')[:100]!r} is not allowed")
    origin = headers.get("origin")
    if origin is not None and not admission.admits_origin(origin):
        raise Refused(HTTPStatus.FORBIDDEN, f"the Origin {origin[:100]!r} is not allowed")
    if request.path.partition("?")[0] != path:
        raise Refused(HTTPStatus.NOT_FOUND, "there is nothing here")
    upgrades = [token.lower() for token in request.tokens("upgrade")]
    if "websocket" not in upgrades or "upgrade" not in [token.lower() for token in request.tokens("connection")]:
        raise Refused(
            HTTPStatus.UPGRADE_REQUIRED,
            "this is a WebSocket endpoint",
            Upgrade="websocket",
            Connection="Upgrade, close",
        )
    if headers.get("sec-websocket-version") != "13":
        raise Refused(HTTPStatus.UPGRADE_REQUIRED, "the WebSocket version is 13", Sec_WebSocket_Version="13")
    if not headers.get("sec-websocket-key"):
        raise Refused(HTTPStatus.BAD_REQUEST, "there is no Sec-WebSocket-Key")
    if SUBPROTOCOL not in request.tokens("sec-websocket-protocol"):
        raise Refused(HTTPStatus.BAD_REQUEST, f"offer the subprotocol {SUBPROTOCOL!r} (Sec-WebSocket-Protocol)")


async def refuse(stream: trio.abc.Stream, refused: Refused) -> None:
    """Answer with an HTTP error and close, giving the client a second to read it."""
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
        with trio.move_on_after(_LINGER):
            await stream.send_all(head + body)
            if isinstance(stream, trio.abc.HalfCloseableStream):
                await stream.send_eof()
            # Closing with unread bytes would reset the connection, and the answer might be lost.
            while await stream.receive_some(_READ):
                pass
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    finally:
        await trio.aclose_forcefully(stream)
