"""CoalescingStream: the stream under a trio-websocket connection. It buffers what is written, so that writers don't
wait for each other.

trio-websocket writes from any task that has something to send, holds a lock during the write, and doesn't read while
one of its pongs waits for the lock. Here trio-websocket's writes wait only while more than 1 MiB is collected. Bytes
that the operating system doesn't accept at once are collected, and one task, `pump`, writes all collected bytes
together. So a peer that doesn't read can't stop us from receiving its cancellations, and a cancelled caller never
leaves half a frame.

The frames of a batch of messages are encoded here (RFC 6455 section 5.2): for each message, trio-websocket makes a
frame, takes a lock and writes, but `text_frames` makes all frames in one piece of memory, which is written at once. Of
incoming frames, `FrameGauge` parses only the headers, to check the size limit of a message before it is stored.
"""

from __future__ import annotations

import logging
import os
import re
import struct
from contextlib import suppress
from typing import Final

import trio

from ...concurrency.fair_share import UNCOUNTED, HeldBytes
from ..streams import drop_tracebacks, nowait_writer, until_broken

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


logger = logging.getLogger("trio_mcp")

HEAD_END: Final = re.compile(rb"\n\r?\n")
"""Pattern of the end of an HTTP head, by h11's rule. Every reader of the stream must use the same rule, to agree on
where the frames begin."""
_LONGEST_HEAD: Final = 65536
_WRITE: Final = 65536
_READ: Final = 65536
_MOST_COLLECTED: Final = 1024 * 1024
_NO_ROOM: Final = (1013, "incomplete messages take too many bytes; try again later")


class CoalescingStream(trio.abc.Stream):
    """A stream between trio-websocket and ``transport``. It buffers frames, and writes them together.

    ``received`` are the bytes that were already read. ``unread`` counts the bytes of received messages until `consume`
    is called for them.

    trio-websocket never closes the transport: its call of `aclose` only records that it is done. `close_now` closes the
    transport.
    """

    def __init__(
        self, transport: trio.abc.Stream, max_message_bytes: int, received: bytes = b"", unread: HeldBytes | None = None
    ) -> None:
        self._transport = transport
        self._write_nowait = nowait_writer(transport)
        self.gauge = FrameGauge(max_message_bytes)
        """Parses the frames that arrive. The connection must end after its `FrameGauge.violation`."""
        self._unread = unread
        self._taken = 0
        """Number of bytes of messages for which `consume` was called."""
        self._received = received
        self._head: bytearray | None = bytearray()
        """The part of the peer's HTTP head that has arrived. `None` once the head is complete."""
        self._collected = bytearray()
        self._writing = False
        self._wake = trio.lowlevel.ParkingLot()
        self._moved = trio.lowlevel.ParkingLot()
        self._done = False
        self.broken = False
        """Whether writing is no longer possible."""
        self.close_sent = False
        """Whether a close frame was buffered. No frame may follow a close frame."""
        self.ended = trio.Event()
        """Event that is set when nothing more will be received."""
        self.last_received_at = trio.current_time()
        """Time at which the peer last sent anything."""
        self.came_together = False
        """Whether the last bytes from `receive_some` contain more than one frame."""
        self.moved_at = trio.current_time()
        """Time at which bytes were last written, or at which the first byte was buffered."""

    @property
    def has_received(self) -> bool:
        """Whether any byte has arrived from the peer."""
        return self._head is None or bool(self._head)

    @property
    def refusal(self) -> bytes:
        """The received bytes of the HTTP response with which the server refuses the upgrade. Empty after a successful
        upgrade."""
        return bytes(self._head or b"")

    @property
    def is_flushed(self) -> bool:
        """Whether all buffered bytes have been written."""
        return not self._collected and not self._writing

    # Reading

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Wait for bytes and return them: see `trio.abc.ReceiveStream`.

        If the peer has violated the protocol or a limit, the stream ends.
        """
        if self._done:
            raise trio.ClosedResourceError("trio-websocket has closed this stream")
        kept, begun = bytearray(), self.gauge.frames
        while True:
            was_head = self._head is not None
            data = await self._receive()
            self._measure(data)
            if self._unread is not None and self.gauge.announced - self._taken > UNCOUNTED:
                self._count(self._unread)
            if self.gauge.violation is not None:
                data = b""
            if not data:
                self.ended.set()
                return data
            kept += data
            # Collect the bytes of an incomplete frame: trio-websocket creates an object for each piece.
            # Pass on an HTTP head at once, even if an incomplete frame follows.
            if was_head or not self.gauge.inside_frame or len(kept) >= _READ:
                self.came_together = self.gauge.frames > begun + 1
                return kept

    def _count(self, unread: HeldBytes) -> None:
        """Set ``unread`` to the size of the messages that this stream and trio-websocket hold in memory.

        ``unread`` is the counter of the connection's unread bytes.

        End the connection if its caller exceeds the limit of unread bytes.
        """
        if not unread.hold(self.gauge.received_bytes - self._taken) and self.gauge.violation is None:
            self.gauge.violation = _NO_ROOM
            logger.warning("a connection ends: %s", _NO_ROOM[1])

    def consume(self, count: int) -> None:
        """Record that the transport has returned a message of ``count`` bytes, which no longer counts as unread."""
        self._taken += count
        if self._unread is not None and self._unread.size:
            self._count(self._unread)

    async def _receive(self) -> bytes | bytearray:
        if self._received:
            data, self._received = self._received, b""
            return data
        try:
            data = await self._transport.receive_some(_READ)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            drop_tracebacks(error)
            self.ended.set()
            raise
        self.last_received_at = trio.current_time()
        return data

    def _measure(self, data: bytes | bytearray) -> None:
        if self._head is None:
            self.gauge.feed(data)
            return
        self._head += data
        end = HEAD_END.search(self._head)
        refused = self._head.startswith(b"HTTP/") and not self._head.startswith(b"101", 9)
        if end is not None and not refused:  # the body of an HTTP refusal contains no frames
            frames, self._head = self._head[end.end() :], None
            self.gauge.feed(frames)
        elif len(self._head) > _LONGEST_HEAD:
            self.gauge.violation = 1002, "no HTTP head"

    # Writing

    def put(self, frames: bytes | bytearray) -> None:
        """Write complete frames. Bytes that can't be written without waiting are buffered. Synchronous.

        Frames after a close frame are dropped.
        """
        if self.put_nowait(frames) or self.close_sent or self.broken:
            return
        if self.is_flushed:
            self.moved_at = trio.current_time()
        self.close_sent = frames[0] == CLOSE_FRAME
        self._collected += frames
        self._wake.unpark()

    @trio.lowlevel.enable_ki_protection  # KeyboardInterrupt must not leave a frame half written
    def put_nowait(self, frames: bytes | bytearray) -> bool:
        """Write complete frames if this is possible without waiting. Otherwise write nothing, and return false.

        If only some bytes can be written, the rest is buffered.
        """
        if self.close_sent or self.broken or not self.is_flushed or len(frames) > _WRITE:
            return False
        count = self._write_nowait(frames)
        if not count:
            return False
        self.close_sent = frames[0] == CLOSE_FRAME
        self.moved_at = trio.current_time()
        if count < len(frames):
            self._collected += frames[count:]
            self._wake.unpark()
        return True

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Write or buffer the bytes that trio-websocket sends. Waits only while more than 1 MiB is buffered."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while len(self._collected) > _MOST_COLLECTED and not self.broken:
            await self._moved.park()
        if self.broken or self._done:
            raise trio.BrokenResourceError("the peer has stopped reading")
        self.put(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        """Return after a checkpoint, because `send_all` buffers the bytes that it can't write."""
        await trio.lowlevel.checkpoint()

    async def flushed(self) -> None:
        """Wait until all buffered bytes are written. Raises `trio.BrokenResourceError` if they can't be written."""
        while not self.is_flushed and not self.broken:
            await self._moved.park()
        if self.broken:
            raise trio.BrokenResourceError("the peer has stopped reading")

    async def pump(self) -> None:
        """Write the buffered bytes until the connection breaks. Run this as a background task.

        While bytes are buffered, no other task writes.
        """
        try:
            with until_broken():  # ignore a broken stream here, because its reader raises the error
                while True:
                    while not self._collected:
                        await self._wake.park()
                    chunk, self._collected = self._collected, bytearray()
                    self._writing = True
                    for start in range(0, len(chunk), _WRITE):
                        await self._transport.send_all(memoryview(chunk)[start : start + _WRITE])
                        self.moved_at = trio.current_time()
                    del chunk  # drop the reference, or a long chunk would stay in memory until the next chunk
                    self._writing = False
                    self._moved.unpark_all()
        finally:
            self.broken = True
            self._moved.unpark_all()

    # Closing

    async def aclose(self) -> None:
        """Record that trio-websocket has closed this stream. The connection stays open until the buffered bytes are
        written."""
        self._done = True
        self.ended.set()
        await trio.lowlevel.checkpoint()

    async def write_close(self, close: bytes) -> None:
        """Write the buffered bytes, and then the close frame ``close``.

        Call this after `pump` has ended. If a frame was written only in part, write nothing, because the close frame
        would become a part of it.
        """
        if self._writing or self.close_sent:
            return
        self.close_sent = True
        with until_broken():
            await self._transport.send_all(self._collected + close)

    async def discard(self) -> None:
        """Read and discard bytes until the peer stops sending.

        If unread bytes were left, closing would reset the connection, and the bytes written last might be lost.
        """
        with until_broken(), suppress(trio.BusyResourceError):
            while await self._transport.receive_some(_READ):
                pass

    async def close_now(self) -> None:
        """Close the connection at once, even if a read or a write is in progress. Idempotent."""
        self.broken = True
        await trio.aclose_forcefully(self._transport)
        self._moved.unpark_all()
