"""The opening handshake of a WebSocket, from either side, and the errors of a failed handshake."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias, cast

import h11
import trio
from trio_websocket import ConnectionRejected, WebSocketConnection, wrap_client_stream, wrap_server_stream

from ..jsonrpc.errors import ProtocolViolation
from ..runtime.channel import ConnectionLost
from .close_codes import CLOSE_WAIT
from .coalescing import CoalescingStream
from .frames import close_frame

SUBPROTOCOL: Final = "mcp"

_LONGEST_BODY: Final = 500
"""Characters of a refusal's body that `ConnectionLost` repeats."""


class UpgradeRefused(ConnectionLost):
    """The server has answered with another HTTP ``status`` than 101. ``headers`` are values by names in lower case, the
    values of a repeated header joined with commas."""

    def __init__(self, reason: str, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers


Handshake: TypeAlias = Callable[[trio.Nursery], Awaitable[WebSocketConnection]]
"""Shake hands and return the connection, whose reader runs in the nursery."""


def accepting(stream: CoalescingStream, max_message_bytes: int) -> Handshake:
    """Return a server's handshake, for an upgrade request that has been checked."""

    async def accept(nursery: trio.Nursery) -> WebSocketConnection:
        request = await wrap_server_stream(
            nursery, stream, max_message_size=max_message_bytes, receive_buffer_size=None
        )
        return await request.accept(subprotocol=SUBPROTOCOL)

    return accept


def asking(
    stream: CoalescingStream,
    max_message_bytes: int,
    host: str,
    resource: str,
    headers: Sequence[tuple[bytes, bytes]],
) -> Handshake:
    """Return a client's handshake, which raises `ProtocolViolation` when the server does not speak ``mcp``."""

    async def ask(nursery: trio.Nursery) -> WebSocketConnection:
        socket = await wrap_client_stream(
            nursery,
            cast("Any", stream),  # any stream will do
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
                f"the server speaks WebSocket, but not MCP: it selected no subprotocol {SUBPROTOCOL!r}"
            )
        return socket

    return ask


async def shake_hands(handshake: Handshake, stream: CoalescingStream, nursery: trio.Nursery) -> WebSocketConnection:
    """Return the connection after ``handshake``.

    Raises `ConnectionLost` when ``stream`` ends meanwhile, with the HTTP status and the text of a server that has
    answered. trio-websocket alone would wait for ever.
    """
    done: list[WebSocketConnection] = []
    async with trio.open_nursery() as watch:

        async def give_up() -> None:
            # trio-websocket reads the end of the stream only after it has looked at everything before it.
            await stream.ended.wait()
            watch.cancel_scope.cancel(reason="the peer closed the connection in the handshake")

        watch.start_soon(give_up)
        done.append(await handshake(nursery))
        watch.cancel_scope.cancel(reason="the handshake is done")
    if not done:
        raise _refused(stream.refusal) or ConnectionLost("the peer closed the connection in the handshake")
    return done[0]


def _refused(answer: bytes) -> ConnectionLost | None:
    """Return the refusal in an HTTP response whose body ended with the connection, or came in part; `None` without a
    response.

    wsproto finds the end of a body by its length alone (RFC 9112 section 6.3 has other ways), and trio-websocket waits
    for the end.
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
    return None if head is None else _said_no(head.status_code, list(head.headers), body)


def _said_no(status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes | bytearray) -> UpgradeRefused:
    text = body.decode("utf-8", "replace").strip()[:_LONGEST_BODY]
    words = f"the server refused the connection with HTTP status {status}"
    by_name: dict[str, str] = {}
    for raw, value in headers:
        name, text_of = raw.decode("latin-1").lower(), value.decode("latin-1")
        by_name[name] = f"{by_name[name]}, {text_of}" if name in by_name else text_of
    return UpgradeRefused(f"{words}: {text}" if text else words, status, by_name)


def refusal(error: Exception) -> Exception:
    """Return the error for a caller whose connection failed with ``error`` in the handshake."""
    match error:
        case ConnectionRejected():
            return _said_no(error.status_code, error.headers or (), error.body or b"")
        case ConnectionLost() | ProtocolViolation():
            return error
        case _:
            return ConnectionLost(f"the WebSocket handshake failed: {error!r}")
