"""Connection is one TCP connection to a server or proxy, with or without TLS, over a `ClientSocket`, which counts the
bytes that the system took, and closes without waiting. The head of a request is written by hand, and checked so that no
value begins a line of its own; a `Reply` is read by h11.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Final

import h11
import trio

from ...concurrency.nurseries import ServiceNursery
from ...lazy import lazy_pattern
from ...runtime.transport import ConnectionLost
from ..streams import IS_POSIX, drop_tracebacks, is_readable

_WRITTEN_AT_ONCE: Final = 32768
"""Bytes that the system takes of a request though the server reads nothing."""


class HttpClientConnection:
    """A connection over ``wire``, on which ``stream`` speaks TLS, or which is ``stream`` itself. One exchange at a time
    uses the connection. ``name`` is for the words of errors."""

    __slots__ = ("_sent_before", "_stream", "is_closed", "is_sending", "name", "wire")

    def __init__(self, wire: ClientSocket, stream: trio.abc.Stream, name: str) -> None:
        self.wire = wire
        self._stream = stream
        self.name = name
        self._sent_before = 0
        """Bytes that the system took before the present request."""
        self.is_sending = False
        """True while not all of the request is sent, and after sending failed."""
        self.is_closed = False

    @property
    def is_stale(self) -> bool:
        """True when an idle connection is of no use: nothing but its end can have come."""
        return self.wire.is_readable()

    @property
    def has_sent(self) -> bool:
        """True when the system took a byte since `send` was called."""
        return self.wire.bytes_sent > self._sent_before

    async def send(self, head: bytes, body: bytes, nursery: ServiceNursery) -> None:
        """Send ``head`` and ``body``, the rest of a long request in the background, by a task of ``nursery``: a server
        may answer, and read no more, before the request is over. A failure is for `receive` to tell, who may find an
        answer before the failure."""
        self._sent_before = self.wire.bytes_sent
        rest = memoryview(body)[max(0, _WRITTEN_AT_ONCE - len(head)) :]  # without a copy
        await self._send(head + body[: len(body) - len(rest)])
        if rest and not self.is_sending:
            self.is_sending = True
            nursery.start_soon(self._send, rest)

    async def _send(self, data: bytes | memoryview) -> None:
        self.is_sending = True
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            drop_tracebacks(error)
        else:
            self.is_sending = False

    async def receive(self, max_bytes: int) -> bytes:
        """Wait for bytes of the answer, and return up to ``max_bytes``; empty at the end. Raises `ConnectionLost`."""
        if self.is_closed:
            raise self._closed()
        try:
            return bytes(await self._stream.receive_some(max_bytes))
        except trio.ClosedResourceError as error:
            drop_tracebacks(error)
            raise self._closed() from None
        except trio.BrokenResourceError as error:
            drop_tracebacks(error)
            raise self.lost(f"the connection to {self.name} broke: {error.__cause__ or error}") from None

    def _closed(self) -> ConnectionLost:
        return ConnectionLost(f"the connection to {self.name} was closed on this side")

    def lost(self, reason: str) -> ConnectionLost:
        """Return the error for the request that `send` sent last."""
        return ConnectionLost(reason) if self.has_sent else RequestNotSent(reason)

    def close(self) -> None:
        """Close at once, without TLS's word of farewell, which a server may be slow to take. Idempotent."""
        self.is_closed = True
        self.wire.close()


_READ: Final = 65536


class ClientSocket(trio.abc.Stream):
    """The socket of ``stream``, which belongs to the wire from now on. One task sends, one task receives."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._socket = stream.socket
        self._fd = stream.socket.fileno()
        self._plain = None if IS_POSIX else socket.socket(fileno=self._fd)
        """The socket of Python with the same number, where a socket is no descriptor."""
        self.bytes_sent = 0
        """Number of bytes that the system took."""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send ``data``. A checkpoint only where the system does not take all bytes at once. Raises
        `trio.BrokenResourceError`; `trio.ClosedResourceError` when `close` is called meanwhile."""
        rest = memoryview(data)
        while rest:
            try:
                taken = os.write(self._fd, rest) if self._plain is None else self._plain.send(rest)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._fd)
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from None
            else:
                self.bytes_sent += taken
                rest = rest[taken:]

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the system takes some bytes."""
        await trio.lowlevel.wait_writable(self._fd)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Wait for bytes, and return up to ``max_bytes``; empty at the end. Raises as `send_all`."""
        while True:
            await trio.lowlevel.wait_readable(self._fd)
            try:
                wanted = max_bytes or _READ
                return os.read(self._fd, wanted) if self._plain is None else self._plain.recv(wanted)
            except BlockingIOError:
                pass  # Linux reports a socket as readable, and finds that a checksum is wrong: select(2)
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from None

    def is_readable(self) -> bool:
        """Return whether bytes, the end or an error have come."""
        return is_readable(self._fd)

    def close(self) -> None:
        """Close at once, without a word to the peer. Who sends or receives fails. Idempotent."""
        self._fd = -1
        if self._plain is not None:
            self._plain.detach()
        self._socket.close()

    async def aclose(self) -> None:
        """Close as `close`."""
        self.close()
        await trio.lowlevel.checkpoint()


_TOKEN: Final = lazy_pattern(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""RFC 9110 section 5.6.2."""
_VALUE: Final = lazy_pattern(rb"(?![ \t])[\t\x20-\x7e\x80-\xff]*(?<![ \t])")
"""RFC 9110 section 5.5: neither control characters nor blanks around the value."""
_OURS: Final = frozenset(
    (
        *(b"host", b"content-length", b"transfer-encoding", b"connection", b"accept-encoding", b"proxy-authorization"),
        *(b"te", b"user-agent"),
    )
)
"""Headers that the client writes itself, or which have consequences that nobody here would bear."""


def request_head(method: str, target: str, given: Sequence[tuple[bytes, bytes]], ours: bytes) -> bytes:
    """Return the request line, the headers ``ours``, which are lines already, and the ``given`` headers, without the
    empty line at the end. Raises `ValueError` for a header that would not be one line; values are not in the text."""
    if not _TOKEN.fullmatch(method.encode()):
        raise ValueError(f"{method[:100]!r} is no HTTP method")
    lines = [b"%s %s HTTP/1.1\r\n%s" % (method.encode("ascii"), target.encode("ascii"), ours)]
    for name, value in given:
        if not _TOKEN.fullmatch(name):
            raise ValueError(f"{name[:100]!r} is no name of an HTTP header")
        if name.lower() in _OURS:
            raise ValueError(f"the header {name.decode('ascii')} is written by the HTTP client alone")
        if not _VALUE.fullmatch(value):
            raise ValueError(f"the value of the header {name.decode('ascii')} has a control character or outer blanks")
        lines.append(b"%s: %s\r\n" % (name, value))
    return b"".join(lines)


@cache
def default_user_agent() -> str:
    """Return the name and the version of this package, as a ``User-Agent`` names a client (RFC 9110 section 10.1.5)."""
    from importlib.metadata import version  # late: it imports fifty modules

    return f"trio-mcp/{version('trio-mcp')}"


_MOST_INTERIM: Final = 20
"""Interim responses (RFC 9110 section 15.2) before an answer. Nothing here asks for any."""
_LONGEST_REASON: Final = 200
_MOST_CHUNKS: Final = 200
"""Chunks that are read before other tasks get their turn."""
_HELD: Final = lazy_pattern(r"timeout\s*=\s*(\d{1,6})", re.IGNORECASE)
_ALERT: Final = b"\x15\x03"
"""The beginning of a TLS server's answer to a client that does not speak TLS (RFC 8446 section 5.1)."""
_END: Final = h11.EndOfMessage()


class Reply:
    """The head of an answer, and its body as the body comes. Of use while the block of the request runs."""

    __slots__ = ("_connection", "_is_over", "_parser", "_place", "headers", "status")

    def __init__(
        self,
        connection: HttpClientConnection,
        parser: h11.Connection,
        head: h11.Response,
        place: tuple[object, str] = ("", ""),
    ) -> None:
        self._connection = connection
        self._parser = parser
        self._is_over = False
        self._place = place
        self.status = head.status_code
        self.headers: Mapping[str, str] = _headers_of(head)
        """Values by names in lower case; the values of a repeated header are joined with commas; those
        of ``Set-Cookie`` have commas, and are joined with line ends."""

    @property
    def url(self) -> str:
        """The URL of the request."""
        return "{}{}".format(*self._place)

    async def receive_some(self) -> bytes | bytearray:
        """Wait for, and return, the next bytes of the body; empty at the end.

        Raises `ConnectionLost` when the body is cut short, and `BadResponse` when the body is malformed.
        """
        parts: list[bytes | bytearray] = []
        while not self._is_over:
            event = _next_event(self._parser, self._connection)
            if isinstance(event, h11.Data):
                parts.append(event.data)
                if len(parts) % _MOST_CHUNKS == 0:  # h11 takes as long for a chunk of one byte as for one of thousands
                    await trio.lowlevel.cancel_shielded_checkpoint()
            elif event is not h11.NEED_DATA:
                self._is_over = True
            elif parts:
                break
            else:
                self._parser.receive_data(await self._connection.receive(_READ))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def read(self, limit: int) -> bytes:
        """Read the body to its end. Raises as `receive_some`, and `BodyTooLong` for more than ``limit`` bytes."""
        parts: list[bytes | bytearray] = []
        length = 0
        while data := await self.receive_some():
            parts.append(data)
            length += len(data)
            if length > limit:
                raise BodyTooLong(f"the body of the answer (status {self.status}) has more than {limit} bytes")
        return b"".join(parts)

    @property
    def keep_alive_timeout(self) -> float | None:
        """Seconds for which the server says that an idle connection is kept; `None` where the server says nothing."""
        match = _HELD.search(self.headers.get("keep-alive", ""))
        return None if match is None else float(match[1])

    def finish(self) -> bool:
        """Skip all that has come of the body. Return whether that was the end, and another request can follow on the
        connection. Synchronous, never raises."""
        parser = self._parser
        try:
            while not self._is_over:
                event = parser.next_event()
                if event is h11.NEED_DATA:
                    return False
                self._is_over = type(event) is not h11.Data
        except h11.RemoteProtocolError:
            return False
        # RFC 9112 section 6.3: an answer with both lengths ends its connection. Bytes behind the answer belong to
        # nobody's request.
        return (
            parser.their_state is h11.DONE
            and parser.trailing_data == (b"", False)
            and not ("content-length" in self.headers and "transfer-encoding" in self.headers)
        )


async def read_head(
    connection: HttpClientConnection, method: bytes, longest: int
) -> tuple[h11.Connection, h11.Response]:
    """Wait for the head of the answer to a request with ``method``, which was sent, and return the head and the parser
    for the rest. A head of more than twice ``longest`` bytes is none. Raises `ConnectionLost`, `BadResponse`."""
    parser = h11.Connection(h11.CLIENT, max_incomplete_event_size=longest)
    parser.send(_request(method))
    parser.send(_END)
    interim = 0
    while True:
        event = _next_event(parser, connection)
        if isinstance(event, h11.Response):
            return parser, event
        if isinstance(event, h11.InformationalResponse):
            interim += 1
            if interim > _MOST_INTERIM:
                raise BadResponse(f"more than {_MOST_INTERIM} interim responses, and no answer")
        else:
            # h11 bounds incomplete heads alone, so no more is read at a time than a head may have.
            parser.receive_data(await connection.receive(longest))


@lru_cache(maxsize=16)
def _request(method: bytes) -> h11.Request:
    """Return a request that tells h11 the method of one that was written by hand."""
    return h11.Request(method=method, target=b"/", headers=[(b"host", b"h11 demands one")])


def _headers_of(head: h11.Response) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in head.headers:
        key, text = name.decode("ascii"), value.decode("latin-1")
        if key in headers:
            text = f"{headers[key]}\n{text}" if key == "set-cookie" else f"{headers[key]}, {text}"
        headers[key] = text
    return headers


def _next_event(
    parser: h11.Connection, connection: HttpClientConnection
) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
    try:
        return parser.next_event()
    except h11.RemoteProtocolError as error:
        error.__traceback__ = None  # whose frames hold the error: nothing is left to the garbage collector
        rest, is_closed = parser.trailing_data
        if rest.startswith(_ALERT):
            raise BadResponse(f"{connection.name} answers in TLS: use https://") from None
        if is_closed:
            raise connection.lost(f"{connection.name} closed the connection before the end of the answer") from None
        raise BadResponse(f"{connection.name} sent no HTTP/1.1 response: {str(error)[:_LONGEST_REASON]}") from None


class RequestNotSent(ConnectionLost):
    """The connection failed before the system took any byte of the request, so the server has not seen the request."""


class BadResponse(ConnectionLost):
    """The server's answer is no HTTP response that this client reads: malformed, too long, or encoded."""


class BodyTooLong(BadResponse):
    """The body of an answer is longer than its reader allows."""
