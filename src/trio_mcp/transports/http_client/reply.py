"""Reply: the answer to one request, as read from a connection by h11."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import h11
import trio

from .connection import Connection
from .errors import BadResponse, BodyTooLong

_READ: Final = 65536
_MOST_INTERIM: Final = 20
"""Interim responses (RFC 9110 section 15.2) before an answer. Nothing here asks for any."""
_LONGEST_REASON: Final = 200
_AT_ONCE: Final = 200
"""Chunks that are read before other tasks get their turn."""
_HELD: Final = re.compile(r"timeout\s*=\s*(\d{1,6})", re.IGNORECASE)
_ALERT: Final = b"\x15\x03"
"""The beginning of a TLS server's answer to a client that does not speak TLS (RFC 8446 section 5.1)."""
_END: Final = h11.EndOfMessage()


class Reply:
    """The head of an answer, and its body as the body comes. Of use while the block of the request runs."""

    __slots__ = ("_connection", "_is_over", "_parser", "headers", "status")

    def __init__(self, connection: Connection, parser: h11.Connection, head: h11.Response) -> None:
        self._connection = connection
        self._parser = parser
        self._is_over = False
        self.status = head.status_code
        self.headers: Mapping[str, str] = _headers_of(head)
        """Values by names in lower case; the values of a repeated header are joined with commas."""

    async def receive_some(self) -> bytes:
        """Wait for, and return, the next bytes of the body; empty at the end.

        Raises `ConnectionLost` when the body is cut short, and `BadResponse` when the body is malformed.
        """
        parts: list[bytes | bytearray] = []
        while not self._is_over:
            event = _next_event(self._parser, self._connection)
            if isinstance(event, h11.Data):
                parts.append(event.data)
                if len(parts) % _AT_ONCE == 0:  # h11 takes as long for a chunk of one byte as for one of thousands
                    await trio.lowlevel.cancel_shielded_checkpoint()
            elif event is not h11.NEED_DATA:
                self._is_over = True
            elif parts:
                break
            else:
                self._parser.receive_data(await self._connection.receive(_READ))
        return parts[0] if len(parts) == 1 and type(parts[0]) is bytes else b"".join(parts)

    async def read(self, limit: int) -> bytes:
        """Read the body to its end. Raises as `receive_some`, and `BodyTooLong` for more than ``limit`` bytes."""
        parts: list[bytes] = []
        length = 0
        while data := await self.receive_some():
            parts.append(data)
            length += len(data)
            if length > limit:
                raise BodyTooLong(f"the body of the answer (status {self.status}) has more than {limit} bytes")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def held(self) -> float | None:
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


async def read_head(connection: Connection, method: bytes, longest: int) -> tuple[h11.Connection, h11.Response]:
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
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


def _next_event(parser: h11.Connection, connection: Connection) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
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
