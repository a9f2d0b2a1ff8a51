"""Server-sent events (WHATWG HTML, section 9.2.6): a server makes events of JSON lines, and `EventReader` makes events
of bytes again, however the bytes are cut. Nothing here waits, and there are no clocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ..classes import value

KEEP_ALIVE: Final = b":\n\n"
"""A comment, which is no event and moves no cursor. May stand between any two events."""

STREAM_HEADERS: Final = (
    b"Content-Type: text/event-stream\r\n"
    b"Cache-Control: no-cache, no-transform\r\n"
    b"X-Accel-Buffering: no\r\n"  # 2026-07-28 Streamable HTTP, Receiving Messages: nginx shall not collect events
)
"""The headers of an answer that is a stream of events."""

_BEFORE: Final = b"event: message\ndata: "
_BETWEEN: Final = b"\n\nevent: message\ndata: "


def events(lines: bytes | bytearray) -> bytes:
    """Return an event for each of ``lines``: JSON texts, each ended by a newline and holding no other."""
    if not lines.isascii():
        lines = _escaped(lines)
    if lines.find(b"\n") < len(lines) - 1:
        lines = lines[:-1].replace(b"\n", _BETWEEN) + b"\n"
    return b"".join((_BEFORE, lines, b"\n"))


def identified_events(pairs: Iterable[tuple[str, bytes]]) -> bytes:
    """Return an event for each pair of an id that clients may come back with, and a JSON line, ended by a newline."""
    return b"".join(
        [
            b"id: %b\nevent: message\ndata: %b\n" % (event_id.encode(), line if line.isascii() else _escaped(line))
            for event_id, line in pairs
        ]
    )


def numbered_events(name: str, first: int, lines: Sequence[bytes]) -> bytes:
    """Return the `identified_events` of ``lines`` with the ids ``NAME-NUMBER``, counted from ``first``."""
    head = b"id: %b-" % name.encode()
    texts = lines if all(map(bytes.isascii, lines)) else map(_escaped, lines)
    return b"".join(
        [b"%b%d\nevent: message\ndata: %b\n" % (head, number, text) for number, text in enumerate(texts, first)]
    )


def priming_event(event_id: str) -> bytes:
    """Return an event without data, which gives a client an id to come back with (2025-11-25 transports, Sending
    Messages to the Server)."""
    return b"id: %b\ndata: \n\n" % event_id.encode()


def retry_line(milliseconds: int) -> bytes:
    """Return the line that says how long a client shall wait before coming back. The line must stand in front of an
    event: alone, older clients would take the line for an event without data."""
    return b"retry: %d\n" % milliseconds


def _escaped(lines: bytes | bytearray) -> bytes | bytearray:
    """Write the characters U+2028, U+2029 and U+0085 as escapes, since deployed parsers end lines there. JSON has these
    characters inside of strings alone."""
    if b"\xe2\x80" in lines:
        lines = lines.replace(b"\xe2\x80\xa8", rb"\u2028").replace(b"\xe2\x80\xa9", rb"\u2029")
    return lines.replace(b"\xc2\x85", rb"\u0085")


_BOM: Final = b"\xef\xbb\xbf"
_MOST_DIGITS: Final = 10
_COLON: Final = ord(":")
_FIELDS: Final = frozenset((b"data", b"event", b"id", b"retry"))
_FIRST: Final = frozenset(b"deir")
"""What the fields begin with. All else that a server sends has to be passed over, and that quickly."""


class EventTooLong(Exception):
    """The server sent an event of more than ``limit`` bytes. Nothing more can be read from this stream."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"an event has at most {limit} bytes")
        self.limit = limit


@value
class Event:
    """An event as it was dispatched. ``id`` is the last one that the server has given so far, empty before the
    first."""

    name: str
    data: bytes
    id: str


class EventReader:
    """The reader of one stream of events, which may take several connections.

    The lines of one event have ``max_event_bytes`` together at most, comments aside; so has each comment.
    """

    def __init__(self, max_event_bytes: int) -> None:
        self._max = max_event_bytes
        self.last_event_id = ""
        """Cursor to come back with: the last id of a finished event. Empty: there is nothing to come back for."""
        self.retry: int | None = None
        """Milliseconds to wait before coming back, once the server has said so."""
        self._reset()

    def _reset(self) -> None:
        self._first = True
        """No line has ended so far, so a byte order mark may stand in front of the first one."""
        self._after_cr = False
        """The last byte was a carriage return: a newline that follows belongs to the same line end."""
        self._unfinished = bytearray()
        """The beginning of a line whose end has not come."""
        self._data: list[bytes] = []
        self._name = b""
        self._id: str | None = None
        """The id in the lines of the unfinished event."""
        self._size = 0
        """Bytes of the unfinished event, without its unfinished line."""
        self._too_long = False

    def drop_unfinished(self) -> None:
        """Drop an unfinished event, since the connection is over. The cursor and ``retry`` stay; what is fed from now
        on comes by a new connection."""
        self._reset()

    def feed(self, chunk: bytes | bytearray) -> list[Event]:
        """Return the events that end in the next bytes. Raises `EventTooLong`, after the events before the long one
        were returned."""
        if self._too_long:
            raise EventTooLong(self._max)
        if self._unfinished and b"\n" not in chunk and b"\r" not in chunk:  # a piece of a long line
            lines, last = list[bytes](), chunk
        else:
            *lines, last = self._cut(bytes(chunk))
        found: list[Event] = []
        if lines:
            self._unfinished += lines[0]
            lines[0] = bytes(self._unfinished)
            self._unfinished.clear()
            if self._first:
                self._first = False
                lines[0] = lines[0].removeprefix(_BOM)
            self._read(lines, found)
        self._unfinished += last
        bom = len(_BOM) if self._first and self._unfinished.startswith(_BOM) else 0
        if self._size + len(self._unfinished) - bom > self._max:
            self._too_long = True
        if self._too_long and not found:
            raise EventTooLong(self._max)
        return found

    def _cut(self, text: bytes) -> list[bytes]:
        """Return the lines of ``text``, the last one unfinished."""
        if self._after_cr and text:
            self._after_cr = False
            text = text.removeprefix(b"\n")
        if b"\r" in text:
            self._after_cr = text.endswith(b"\r")
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return text.split(b"\n")

    def _read(self, lines: list[bytes], found: list[Event]) -> None:
        """Read whole ``lines`` and add the events that end there to ``found``."""
        for line in lines:
            if line:
                size = self._size + len(line)
                if size > self._max:
                    self._too_long = True
                    return
                first = line[0]
                if first != _COLON:
                    self._size = size
                    if first in _FIRST:
                        self._field(line)
            elif self._size:
                self._dispatch(found)

    def _dispatch(self, found: list[Event]) -> None:
        """End the event at a blank line. Without data there is no event, but an id counts all the same."""
        if self._id is not None:
            self.last_event_id, self._id = self._id, None
        if self._data:
            name = self._name.decode("utf-8", "replace") or "message"
            found.append(Event(name, b"\n".join(self._data), self.last_event_id))
            self._data = []
        self._name = b""
        self._size = 0

    def _field(self, line: bytes) -> None:
        colon = line.find(b":")
        field = line if colon < 0 else line[:colon]
        if field not in _FIELDS:
            return
        # The content, copied once.
        content = b"" if colon < 0 else line[colon + (2 if line.startswith(b" ", colon + 1) else 1) :]
        if field == b"data":
            self._data.append(content)
        elif field == b"event":
            self._name = content
        elif field == b"id":
            if b"\0" not in content:
                self._id = content.decode("utf-8", "replace")
        elif content.isdigit():
            # Ten digits are 115 days; Python refuses to read thousands of them.
            self.retry = int(content.lstrip(b"0")[:_MOST_DIGITS] or b"0")
