"""CoalescingStream: what trio-websocket is given for a stream.

trio-websocket writes from whatever task has something to say, holds a lock while it does, and does not read while
its own pong waits for that lock. Here nothing it writes waits: bytes are collected, and one task, `pump`, writes
them, as many as there are at once. So a peer that does not read can never keep us from hearing its cancel, and no
cancelled caller leaves half a frame behind.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final

import trio

from .broken import let_go_of_cause, until_broken
from .frames import CLOSE_FRAME, FrameGauge

__all__ = ["HEAD_END", "CoalescingStream"]

HEAD_END: Final = re.compile(rb"\n\r?\n")
"""The end of an HTTP head, as h11 sees it: frames must begin at the same place for all who look at them."""
_LONGEST_HEAD: Final = 65536
_WRITE: Final = 65536
_READ: Final = 65536
_MOST_COLLECTED: Final = 1024 * 1024


class CoalescingStream(trio.abc.Stream):
    """A stream over ``transport``, of which ``received`` was read already.

    It is never closed by trio-websocket, whose `aclose` only says that it is done; `end` closes it.
    """

    def __init__(self, transport: trio.abc.Stream, max_message_bytes: int, received: bytes = b"") -> None:
        self._transport = transport
        self._gauge = FrameGauge(max_message_bytes)
        self._received = received
        self._head: bytearray | None = bytearray()
        """The HTTP head of the peer as far as it is there; `None` after it."""
        self._collected = bytearray()
        self._writing = False
        self._wake = trio.lowlevel.ParkingLot()
        self._moved = trio.lowlevel.ParkingLot()
        self._done = False
        self.broken = False
        """Nothing can be written any more."""
        self.close_sent = False
        """A close frame was collected: nothing follows it."""
        self.ended = trio.Event()
        """Nothing more will be received."""
        self.heard_at = trio.current_time()
        """When the peer last sent anything."""
        self.moved_at = trio.current_time()
        """When something last went out, or had nothing before it to wait for."""

    @property
    def violation(self) -> tuple[int, str] | None:
        """Close code and reason, when the peer has sent what ends the connection."""
        return self._gauge.violation

    @property
    def heard_nothing(self) -> bool:
        """Whether the peer has sent nothing at all."""
        return self._head is not None and not self._head

    @property
    def refusal(self) -> bytes:
        """The HTTP answer of a server that refuses the upgrade, as far as it has come; empty after an upgrade."""
        return bytes(self._head or b"")

    @property
    def is_flushed(self) -> bool:
        """Whether all that was collected was written."""
        return not self._collected and not self._writing

    # Reading

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """As `trio.abc.ReceiveStream`; the end of the stream too when the peer has violated a limit."""
        if self._done:
            raise trio.ClosedResourceError("trio-websocket has closed this stream")
        kept = bytearray()
        while True:
            was_head = self._head is not None
            data = await self._receive()
            self._measure(data)
            if self.violation is not None:
                data = b""
            if not data:
                self.ended.set()
                return data
            kept += data
            # Bytes of an incomplete frame are kept here until they are worth while: each piece that
            # trio-websocket gets of a message is an object there. A head is passed on at once, whatever is behind it.
            if was_head or not self._gauge.inside_frame or len(kept) >= _READ:
                return kept

    async def _receive(self) -> bytes | bytearray:
        if self._received:
            data, self._received = self._received, b""
            return data
        try:
            data = await self._transport.receive_some(_READ)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            let_go_of_cause(error)
            self.ended.set()
            raise
        self.heard_at = trio.current_time()
        return data

    def _measure(self, data: bytes | bytearray) -> None:
        if self._head is None:
            self._gauge.feed(data)
            return
        self._head += data
        end = HEAD_END.search(self._head)
        refused = self._head.startswith(b"HTTP/") and not self._head.startswith(b"101", 9)
        if end is not None and not refused:  # what follows a refusal is text for people
            frames, self._head = self._head[end.end() :], None
            self._gauge.feed(frames)
        elif len(self._head) > _LONGEST_HEAD:
            self._gauge.violation = 1002, "no HTTP head"

    # Writing

    def put(self, frames: bytes | bytearray) -> None:
        """Collect whole frames. Dropped after a close frame. Synchronous."""
        if self.close_sent or self.broken:
            return
        if self.is_flushed:
            self.moved_at = trio.current_time()
        self.close_sent = frames[0] == CLOSE_FRAME
        self._collected += frames
        self._wake.unpark()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Collect what trio-websocket says. It waits only when very much is collected."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while len(self._collected) > _MOST_COLLECTED and not self.broken:
            await self._moved.park()
        if self.broken or self._done:
            raise trio.BrokenResourceError("the peer reads no more")
        self.put(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        """Nothing to wait for."""
        await trio.lowlevel.checkpoint()

    async def flushed(self) -> None:
        """Wait until all that was collected is written. Raises `trio.BrokenResourceError` when it cannot be."""
        while not self.is_flushed and not self.broken:
            await self._moved.park()
        if self.broken:
            raise trio.BrokenResourceError("the peer reads no more")

    async def pump(self) -> None:
        """Write what is collected, until nothing can be written any more. The one task that writes."""
        try:
            with until_broken():  # whoever reads learns it, too
                while True:
                    while not self._collected:
                        await self._wake.park()
                    chunk, self._collected = self._collected, bytearray()
                    self._writing = True
                    for start in range(0, len(chunk), _WRITE):
                        await self._transport.send_all(memoryview(chunk)[start : start + _WRITE])
                        self.moved_at = trio.current_time()
                    self._writing = False
                    self._moved.unpark_all()
        finally:
            self.broken = True
            self._moved.unpark_all()

    # Closing

    async def aclose(self) -> None:
        """trio-websocket is done with it. The transport stays open for what is still to be said."""
        self._done = True
        self.ended.set()
        await trio.lowlevel.checkpoint()

    async def say_last(self, close: bytes) -> None:
        """After the end of `pump`: write the close frame, and before it what was collected. Not after half a
        frame, which it would become a part of."""
        if self._writing or self.close_sent:
            return
        self.close_sent = True
        with until_broken():
            await self._transport.send_all(self._collected + close)

    async def discard(self) -> None:
        """Read until the peer closes its side. A connection closed with unread bytes is reset by the system,
        and the peer might never see what we said last."""
        with until_broken(), suppress(trio.BusyResourceError):
            while await self._transport.receive_some(_READ):
                pass

    async def end(self) -> None:
        """Close the transport at once, whatever is under way. Idempotent."""
        self.broken = True
        await trio.aclose_forcefully(self._transport)
        self._moved.unpark_all()
