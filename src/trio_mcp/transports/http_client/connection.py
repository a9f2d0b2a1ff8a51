"""HttpClientConnection: one TCP connection to a server or proxy, with or without TLS. It uses a `ClientSocket`, which
counts the bytes that were sent, and closes without waiting. This module writes request heads itself, after checking
that no value can add a line. h11 parses the responses."""

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
"""Number of bytes of a request that the operating system accepts even if the server reads nothing."""


class HttpClientConnection:
    """A connection of the HTTP client to a server, over the socket ``wire``.

    ``stream`` is a TLS stream over this socket, or the socket itself. One request at a time uses the connection.
    ``name`` is used in error messages.
    """

    __slots__ = ("_sent_before", "_stream", "is_closed", "is_sending", "name", "wire")

    def __init__(self, wire: ClientSocket, stream: trio.abc.Stream, name: str) -> None:
        self.wire = wire
        self._stream = stream
        self.name = name
        self._sent_before = 0
        """Number of bytes that the operating system had accepted before the current request."""
        self.is_sending = False
        """Whether the request is being sent, or sending has failed."""
        self.is_closed = False

    @property
    def is_stale(self) -> bool:
        """Whether an idle connection can't be used again, because the server has closed it.

        If anything arrives on an idle connection, be it bytes or the end, the connection counts as closed.
        """
        return self.wire.is_readable()

    @property
    def has_sent(self) -> bool:
        """Whether any byte of the current request was sent."""
        return self.wire.bytes_sent > self._sent_before

    async def send(self, head: bytes, body: bytes, nursery: ServiceNursery) -> None:
        """Send the ``head`` and ``body`` of a request.

        If they are long, a task in ``nursery`` sends the rest in the background, because a server may respond without
        reading the whole request. A failure to send is raised by `receive`, unless there is a response.
        """
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
        """Wait for bytes of the response, and return up to ``max_bytes``. Empty bytes mean the end of the connection.

        Raises `ConnectionLost` if the connection breaks.
        """
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
        """Return the error for a connection that broke: `RequestNotSent` if no byte of the current request was sent,
        otherwise `ConnectionLost`."""
        return ConnectionLost(reason) if self.has_sent else RequestNotSent(reason)

    def close(self) -> None:
        """Close the connection at once, without TLS's close message. Idempotent.

        To send this message, the client might have to wait for a slow server.
        """
        self.is_closed = True
        self.wire.close()


_READ: Final = 65536


class ClientSocket(trio.abc.Stream):
    """A stream that takes over the socket of the trio stream ``stream``, and counts the bytes that are sent.

    One task can send while another task receives.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        self._socket = stream.socket
        self._fd = stream.socket.fileno()
        self._plain = None if IS_POSIX else socket.socket(fileno=self._fd)
        """Python's socket with the same number, on systems where sockets aren't file descriptors."""
        self.bytes_sent = 0
        """Number of bytes that the operating system has accepted so far."""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of ``data``. Executes a trio checkpoint only if it has to wait.

        Raises `trio.BrokenResourceError` if the connection breaks, and `trio.ClosedResourceError` if `close` is called
        in the meantime.
        """
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
        """Wait until some bytes can be sent."""
        await trio.lowlevel.wait_writable(self._fd)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Wait for bytes, and return up to ``max_bytes``. Empty bytes mean the end of the stream.

        Raises the same errors as `send_all`.
        """
        while True:
            await trio.lowlevel.wait_readable(self._fd)
            try:
                wanted = max_bytes or _READ
                return os.read(self._fd, wanted) if self._plain is None else self._plain.recv(wanted)
            except BlockingIOError:
                pass  # wait again: Linux may report a socket as readable, then drop bytes with a wrong checksum
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from None

    def is_readable(self) -> bool:
        """Return whether `receive_some` has a result at once: bytes, the end of the stream, or an error."""
        return is_readable(self._fd)

    def close(self) -> None:
        """Close the socket at once, without notifying the peer. Pending sends and receives fail. Idempotent."""
        self._fd = -1
        if self._plain is not None:
            self._plain.detach()
        self._socket.close()

    async def aclose(self) -> None:
        """Close the socket at once, without notifying the peer. See `close`."""
        self.close()
        await trio.lowlevel.checkpoint()


_TOKEN: Final = lazy_pattern(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""Pattern of a token in HTTP: RFC 9110 section 5.6.2."""
_VALUE: Final = lazy_pattern(rb"(?![ \t])[\t\x20-\x7e\x80-\xff]*(?<![ \t])")
"""Pattern of a header value, without control characters or surrounding blanks: RFC 9110 section 5.5."""
_OURS: Final = frozenset(
    (
        *(b"host", b"content-length", b"transfer-encoding", b"connection", b"accept-encoding", b"proxy-authorization"),
        *(b"te", b"user-agent"),
    )
)
"""Headers that users can't set, because the client writes them itself, or doesn't handle their consequences."""


def request_head(method: str, target: str, given: Sequence[tuple[bytes, bytes]], ours: bytes) -> bytes:
    """Encode the head of a request, without the empty line at its end.

    The head contains the request line, the header lines ``ours``, and the ``given`` headers.

    Raises `ValueError` for an invalid header. The error's message doesn't contain the header's value.
    """
    if not _TOKEN.fullmatch(method.encode()):
        raise ValueError(f"{method[:100]!r} is not an HTTP method")
    lines = [b"%s %s HTTP/1.1\r\n%s" % (method.encode("ascii"), target.encode("ascii"), ours)]
    for name, value in given:
        if not _TOKEN.fullmatch(name):
            raise ValueError(f"{name[:100]!r} is not a valid name of an HTTP header")
        if name.lower() in _OURS:
            raise ValueError(f"the header {name.decode('ascii')} must not be set: the HTTP client sets it")
        if not _VALUE.fullmatch(value):
            raise ValueError(
                f"the value of the header {name.decode('ascii')} must not have control characters or surrounding blanks"
            )
        lines.append(b"%s: %s\r\n" % (name, value))
    return b"".join(lines)


@cache
def default_user_agent() -> str:
    """Return the default ``User-Agent``: the name and version of this package (RFC 9110 section 10.1.5)."""
    from importlib.metadata import version  # imported late, because importlib.metadata imports fifty modules

    return f"trio-mcp/{version('trio-mcp')}"


_MOST_INTERIM: Final = 20
"""Maximum number of interim responses (RFC 9110 section 15.2). This client doesn't request any."""
_LONGEST_REASON: Final = 200
_MOST_CHUNKS: Final = 200
"""Number of chunks that are read before other tasks run."""
_HELD: Final = lazy_pattern(r"timeout\s*=\s*(\d{1,6})", re.IGNORECASE)
_ALERT: Final = b"\x15\x03"
"""The first bytes of a TLS server's answer to a client that doesn't use TLS (RFC 8446 section 5.1)."""
_END: Final = h11.EndOfMessage()


class Reply:
    """An HTTP response, whose body you can read as it arrives. Use it only in the request's ``async with`` block."""

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
        """Header values, keyed by name in lower case. The values of a repeated header are joined with commas. Values of
        ``Set-Cookie`` contain commas, so they are joined with line ends."""

    @property
    def url(self) -> str:
        """The URL from which the response came."""
        return "{}{}".format(*self._place)

    async def receive_some(self) -> bytes | bytearray:
        """Wait for the next bytes of the body, and return them. Empty bytes mean the end of the body.

        Raises `ConnectionLost` if the body is cut short, and `BadResponse` if it is malformed.
        """
        parts: list[bytes | bytearray] = []
        while not self._is_over:
            event = _next_event(self._parser, self._connection)
            if isinstance(event, h11.Data):
                parts.append(event.data)
                # let other tasks run: h11 parses a chunk of one byte as slowly as one of thousands
                if len(parts) % _MOST_CHUNKS == 0:
                    await trio.lowlevel.cancel_shielded_checkpoint()
            elif event is not h11.NEED_DATA:
                self._is_over = True
            elif parts:
                break
            else:
                self._parser.receive_data(await self._connection.receive(_READ))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def read(self, limit: int) -> bytes:
        """Read and return the rest of the body.

        Raises the errors of `receive_some`, and `BodyTooLong` if the body is longer than ``limit`` bytes.
        """
        parts: list[bytes | bytearray] = []
        length = 0
        while data := await self.receive_some():
            parts.append(data)
            length += len(data)
            if length > limit:
                raise BodyTooLong(f"the response (status {self.status}) is longer than {limit} bytes")
        return b"".join(parts)

    @property
    def keep_alive_timeout(self) -> float | None:
        """The number of seconds for which the server keeps an idle connection open. `None` if the response doesn't
        specify it."""
        match = _HELD.search(self.headers.get("keep-alive", ""))
        return None if match is None else float(match[1])

    def finish(self) -> bool:
        """Discard the part of the response body that has arrived, and return whether the body is complete.

        If so, the connection can be used for another request. Synchronous. Doesn't raise.

        Return whether the body is complete, and the connection can be used for another request. Synchronous. Doesn't
        raise.
        """
        parser = self._parser
        try:
            while not self._is_over:
                event = parser.next_event()
                if event is h11.NEED_DATA:
                    return False
                self._is_over = type(event) is not h11.Data
        except h11.RemoteProtocolError:
            return False
        # RFC 9112 section 6.3: close the connection after a response with both Content-Length and Transfer-Encoding.
        # Also close the connection if bytes follow the response, because they don't belong to any request.
        return (
            parser.their_state is h11.DONE
            and parser.trailing_data == (b"", False)
            and not ("content-length" in self.headers and "transfer-encoding" in self.headers)
        )


async def read_head(
    connection: HttpClientConnection, method: bytes, longest: int
) -> tuple[h11.Connection, h11.Response]:
    """Wait for the head of the response to a ``method`` request.

    Return the head, and the h11 parser for the body. A head of more than twice ``longest`` bytes is invalid. Raises
    `ConnectionLost` if the connection breaks, and `BadResponse` if the head is invalid.
    """
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
                raise BadResponse(
                    f"the server sent more than {_MOST_INTERIM} interim (1xx) responses, without a final one"
                )
        else:
            # h11 limits only incomplete heads, so read at most as many bytes as a head may have.
            parser.receive_data(await connection.receive(longest))


@lru_cache(maxsize=16)
def _request(method: bytes) -> h11.Request:
    """Return a request object for h11, which must know the method to parse the response.

    The actual request was sent without h11.
    """
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
        error.__traceback__ = None  # avoid a reference cycle: the frames of the traceback refer to the error
        rest, is_closed = parser.trailing_data
        if rest.startswith(_ALERT):
            raise BadResponse(f"{connection.name} responds with TLS: use https://") from None
        if is_closed:
            raise connection.lost(f"{connection.name} closed the connection before the response was complete") from None
        raise BadResponse(
            f"{connection.name} sent no valid HTTP/1.1 response: {str(error)[:_LONGEST_REASON]}"
        ) from None


class RequestNotSent(ConnectionLost):
    """Raised if connecting or sending failed before any byte of the request was sent.

    The server can't have received the request, so you can send it again.
    """


class BadResponse(ConnectionLost):
    """Raised if the server's response can't be parsed, because it is malformed, too long, or compressed."""


class BodyTooLong(BadResponse):
    """Raised if the body of a response is longer than the ``limit`` of `Reply.read`."""
