"""JSON lines become server-sent events (WHATWG HTML, section 9.2.6). Every function returns whole lines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

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
    return b"%b%b\n\n" % (_BEFORE, lines[:-1].replace(b"\n", _BETWEEN))


def identified_events(pairs: Iterable[tuple[str, bytes]]) -> bytes:
    """Return an event for each pair of an id that clients may come back with, and a JSON line, ended by a newline."""
    return b"".join(
        [
            b"id: %b\nevent: message\ndata: %b\n" % (event_id.encode(), line if line.isascii() else _escaped(line))
            for event_id, line in pairs
        ]
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
