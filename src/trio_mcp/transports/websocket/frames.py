"""WebSocket frames that this package encodes and parses itself (RFC 6455 section 5.2), and the meanings of close codes.

For each message, trio-websocket makes a frame, takes a lock and writes. Here all messages of a batch become frames in
one piece of memory, which is written at once. Of incoming frames, only the headers are parsed, to check the size limit
of a message before it is stored.
"""

from __future__ import annotations

import os
import struct
from typing import Final

from ...runtime.transport import ConnectionLost

CLOSE_FRAME: Final = 0x88
"""The first byte of a close frame. Nothing may follow a close frame (section 5.5.1)."""

_TEXT: Final = 0x81
_MASKED: Final = 0x80
_LONGEST_REASON: Final = 123
_FIRST_CONTROL: Final = 8
_LONGEST_CONTROL: Final = 125
_FREE_FRAGMENTS: Final = 1024
_LEAST_FRAGMENT: Final = 64


def _header(first: int, length: int, mask_bit: int) -> bytes:
    if length < 126:
        return bytes((first, mask_bit | length))
    if length < 65536:
        return struct.pack("!BBH", first, mask_bit | 126, length)
    return struct.pack("!BBQ", first, mask_bit | 127, length)


_SHORT_HEADERS: Final = [_header(_TEXT, length, 0) for length in range(126)]


def text_frames(messages: bytes | bytearray, *, masked: bool) -> bytearray:
    """Encode each message in ``messages`` as a WebSocket text frame. Newlines separate the messages in ``messages``,
    and aren't part of the frames.

    Clients mask their frames (section 5.3).
    """
    frames = bytearray()
    for message in messages.split(b"\n"):
        if not message:
            continue
        length = len(message)
        if masked:
            frames += _header(_TEXT, length, _MASKED)
            frames += _mask(message)
        elif length < 126:
            frames += _SHORT_HEADERS[length]
            frames += message
        else:
            frames += _header(_TEXT, length, 0)
            frames += message
    return frames


def close_frame(code: int, reason: str, *, masked: bool) -> bytes:
    """Encode a close frame. ``reason`` is truncated to 123 bytes."""
    words = reason.encode("utf-8", "replace")[:_LONGEST_REASON].decode("utf-8", "ignore").encode()
    payload = struct.pack("!H", code) + words
    if masked:
        return _header(CLOSE_FRAME, len(payload), _MASKED) + _mask(payload)
    return _header(CLOSE_FRAME, len(payload), 0) + payload


def _mask(payload: bytes | bytearray) -> bytes:
    """Return a new masking key, and ``payload`` masked with it.

    In Python, an operation on large integers is the fastest way to mask.
    """
    key, length = os.urandom(4), len(payload)
    pattern = (key * (length // 4 + 1))[:length]
    mixed = int.from_bytes(payload, "little") ^ int.from_bytes(pattern, "little")
    return key + mixed.to_bytes(length, "little")


class FrameGauge:
    """Parses the headers of received WebSocket frames, which give the size of a message before all of it has arrived.

    `violation` is the close code and the reason after a frame that ends the connection: a binary frame, a message of
    more than ``max_message_bytes``, a message in so many small fragments that they would take much more memory than the
    message, or a control frame that is too long.
    """

    def __init__(self, max_message_bytes: int) -> None:
        self._max = max_message_bytes
        self._header = b""
        self._payload_left = 0
        self._fragments = 0
        self._before = 0
        """Number of bytes of all messages before the current one."""
        self.announced = 0
        """Number of bytes of all messages so far, including the announced bytes of frames that haven't arrived
        completely."""
        self.frames = 0
        """Number of frames that have begun so far."""
        self.violation: tuple[int, str] | None = None

    @property
    def inside_frame(self) -> bool:
        """Whether the WebSocket frame that was received last is incomplete."""
        return self._payload_left > 0 or bool(self._header)

    @property
    def received_bytes(self) -> int:
        """The number of bytes of message content that have arrived so far."""
        return self.announced - self._payload_left

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Parse the next bytes of the WebSocket stream. After a protocol error, or a message that is too long, parse
        nothing more."""
        at, end = 0, len(data)
        while at < end and self.violation is None:
            if self._payload_left:
                step = min(self._payload_left, end - at)
                self._payload_left -= step
                at += step
                continue
            known = len(self._header)
            header = self._header + bytes(data[at : at + 14 - known])
            size = _header_size(header)
            if len(header) < size:
                self._header = header
                return
            self._header = b""
            at += size - known
            self._payload_left = self._start_frame(header)

    def _start_frame(self, header: bytes) -> int:
        """Process the complete header of a frame, and return the length of its payload."""
        self.frames += 1
        length = header[1] & 0x7F
        if length > 125:
            length = int.from_bytes(header[2 : 4 if length == 126 else 10], "big")
        opcode = header[0] & 0x0F
        if opcode == 2:
            self.violation = 1003, "MCP messages must be text, not binary"
        elif opcode < 2:
            self.announced += length
            self._fragments += 1
            size = self.announced - self._before
            if size > self._max:
                self.violation = 1009, f"the message is longer than {self._max} bytes"
            elif self._fragments > _FREE_FRAGMENTS + size // _LEAST_FRAGMENT:
                self.violation = 1009, "the message has too many small fragments"
            if header[0] & 0x80:
                self._before, self._fragments = self.announced, 0
        elif opcode >= _FIRST_CONTROL and length > _LONGEST_CONTROL:
            # RFC 6455 section 5.5 limits the size of control frames.
            # Check the size early: trio-websocket would first wait for the whole frame.
            self.violation = 1002, f"the control frame is longer than {_LONGEST_CONTROL} bytes"
        return length


def _header_size(header: bytes) -> int:
    """Return the size in bytes of a frame's header. ``header`` is the part of the header that has arrived."""
    if len(header) < 2:
        return 2
    length = header[1] & 0x7F
    return 2 + (8 if length == 127 else 2 if length == 126 else 0) + (4 if header[1] & _MASKED else 0)


CLOSE_WAIT: Final = 0.5
"""Seconds for which each side waits for the other side's close frame."""

_MEANINGS: Final = {
    1000: "the peer closed the connection",
    1001: "the peer is going away",
    1002: "the peer reported a protocol error",
    1003: "the peer does not accept this type of data",
    1005: "the peer closed the connection without a reason",
    1006: "the connection was lost",
    1007: "the peer reported text that is not UTF-8",
    1008: "the peer reported a violation of its policy",
    1009: "the peer reported a message that is too long",
    1011: "the peer reported an internal error",
    1012: "the peer is restarting",
    1013: "the peer is too busy",
}


def closed_by_peer(code: int, reason: str | None) -> ConnectionLost:
    """Return the error for a connection that the peer has closed with the close code ``code``. Code 1006 means that the
    peer vanished."""
    words = f"{_MEANINGS.get(code, 'the peer closed the connection')} (close code {code})"
    return ConnectionLost(f"{words}: {reason}" if reason else words)
