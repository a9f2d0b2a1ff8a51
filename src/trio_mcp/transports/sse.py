"""Server-sent events (WHATWG HTML, section 9.2.6): encodes JSON lines as events, and parses events from bytes
(`EventReader`). This module has no I/O and no timers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ..classes import value

KEEP_ALIVE: Final = b":\n\n"
"""A comment in an event stream, which isn't an event and doesn't move the cursor. It may be sent between any two
events."""

STREAM_HEADERS: Final = (
    b"Content-Type: text/event-stream\r\n"
    b"Cache-Control: no-cache, no-transform\r\n"
    b"X-Accel-Buffering: no\r\n"  # so that nginx doesn't buffer events: 2026-07-28 Streamable HTTP, Receiving Messages
)
"""The headers of a response that is a stream of events."""

_BEFORE: Final = b"event: message\ndata: "
_BETWEEN: Final = b"\n\nevent: message\ndata: "


def events(lines: bytes | bytearray) -> bytes:
    """Encode JSON texts, one on each line of ``lines``, as server-sent events. Each line ends in a newline."""
    if not lines.isascii():
        lines = _escaped(lines)
    if lines.find(b"\n") < len(lines) - 1:
        lines = lines[:-1].replace(b"\n", _BETWEEN) + b"\n"
    return b"".join((_BEFORE, lines, b"\n"))


def identified_events(pairs: Iterable[tuple[str, bytes]]) -> bytes:
    """Encode pairs of an event id and a JSON text as server-sent events. Clients send the last id to resume the
    stream."""
    return b"".join(
        [
            b"id: %b\nevent: message\ndata: %b\n" % (event_id.encode(), line if line.isascii() else _escaped(line))
            for event_id, line in pairs
        ]
    )


def numbered_events(name: str, first: int, lines: Sequence[bytes]) -> bytes:
    """Encode ``lines`` as server-sent events whose ids are ``NAME-NUMBER``. The first event has the number
    ``first``."""
    head = b"id: %b-" % name.encode()
    texts = lines if all(map(bytes.isascii, lines)) else map(_escaped, lines)
    return b"".join(
        [b"%b%d\nevent: message\ndata: %b\n" % (head, number, text) for number, text in enumerate(texts, first)]
    )


def priming_event(event_id: str) -> bytes:
    """Return a server-sent event that has an id, but no data.

    Its id allows the client to resume the stream before the first message (2025-11-25 transports, Sending Messages to
    the Server).
    """
    return b"id: %b\ndata: \n\n" % event_id.encode()


def retry_line(milliseconds: int) -> bytes:
    """Return the ``retry`` line of a server-sent event. It sets how long clients wait before they reconnect.

    An event must follow directly, because older clients would interpret a separate line as an event without data.
    """
    return b"retry: %d\n" % milliseconds


def _escaped(lines: bytes | bytearray) -> bytes | bytearray:
    """Return ``text`` with U+2028, U+2029 and U+0085 escaped, because some deployed parsers mistake them for line ends.

    In JSON they occur only inside strings.
    """
    if b"\xe2\x80" in lines:
        lines = lines.replace(b"\xe2\x80\xa8", rb"\u2028").replace(b"\xe2\x80\xa9", rb"\u2029")
    return lines.replace(b"\xc2\x85", rb"\u0085")


_BOM: Final = b"\xef\xbb\xbf"
_MOST_DIGITS: Final = 10
_COLON: Final = ord(":")
_FIELDS: Final = frozenset((b"data", b"event", b"id", b"retry"))
_FIRST: Final = frozenset(b"deir")
"""The first characters of lines with fields. All other lines of a server are skipped quickly."""


class EventTooLong(Exception):
    """Raised if the server has sent an event of more than ``limit`` bytes. No more events can be read from the
    stream."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the event is longer than {limit} bytes")
        self.limit = limit


@value
class Event:
    """A complete server-sent event.

    ``id`` is the latest event id that the server has sent. It is empty if the server has sent no id.
    """

    name: str
    data: bytes
    id: str


class EventReader:
    """Parses a stream of server-sent events, which may continue over several connections.

    The lines of one event may have ``max_event_bytes`` together, without comments. Each comment may have as many.
    """

    def __init__(self, max_event_bytes: int) -> None:
        self._max = max_event_bytes
        self.last_event_id = ""
        """The cursor to resume with, which is the last id of a complete event. If it is empty, the stream can't be
        resumed."""
        self.retry: int | None = None
        """Milliseconds to wait before reconnecting. `None` unless the server has set a value."""
        self.drop_unfinished()

    def drop_unfinished(self) -> None:
        """Drop an incomplete event, because the connection has ended. The next bytes come from a new connection.

        The last event id and ``retry`` are kept.
        """
        self._first = True
        """Whether no line has ended so far, so that the first line may begin with a byte order mark."""
        self._after_cr = False
        """Whether the last byte was a carriage return. A newline that follows belongs to the same line end."""
        self._unfinished = bytearray()
        """The beginning of an incomplete line."""
        self._data: list[bytes] = []
        self._name = b""
        self._id: str | None = None
        """The id in the lines of the incomplete event."""
        self._size = 0
        """Number of bytes of the incomplete event, without its incomplete line."""
        self._too_long = False

    def feed(self, chunk: bytes | bytearray) -> list[Event]:
        """Parse more bytes of the stream, and return the events that are now complete.

        If an event is too long, the events before it are returned first, then `EventTooLong` is raised.
        """
        if self._too_long:
            raise EventTooLong(self._max)
        if self._unfinished and b"\n" not in chunk and b"\r" not in chunk:  # a fast path for parts of a long line
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
        """Split ``text`` into lines. The last line of the result is incomplete."""
        if self._after_cr and text:
            self._after_cr = False
            text = text.removeprefix(b"\n")
        if b"\r" in text:
            self._after_cr = text.endswith(b"\r")
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return text.split(b"\n")

    def _read(self, lines: list[bytes], found: list[Event]) -> None:
        """Parse whole ``lines`` of the stream. When a blank line ends an event, add the event to ``found``."""
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
        """Complete the current event at a blank line, and add the event to ``found`` if it has data.

        The event's id is stored even without data.
        """
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
        # Collect the pieces of content, and join them only once, because the content may be long.
        content = b"" if colon < 0 else line[colon + (2 if line.startswith(b" ", colon + 1) else 1) :]
        if field == b"data":
            self._data.append(content)
        elif field == b"event":
            self._name = content
        elif field == b"id":
            if b"\0" not in content:
                self._id = content.decode("utf-8", "replace")
        elif content.isdigit():
            # Accept at most ten digits (115 days in milliseconds): Python refuses to convert thousands of digits.
            self.retry = int(content.lstrip(b"0")[:_MOST_DIGITS] or b"0")
