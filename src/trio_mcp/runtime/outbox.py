"""The outbox holds lines that wait to be written, in order, and that can still be taken back.

Producers put whole lines in, and the one writer takes lines out in large pieces. A line that the peer waits for is
written at once while no other line waits, since waking the writer costs several times as much as writing. Lines of one
owner that follow each other share a segment, a bytearray, so that a line costs an append and no object. A long line is
a segment as it is, without a copy. A segment that the writer has not taken yet can be withdrawn or, with only a single
line inside, replaced. `LastFlush` bounds the time in which the last replies of a connection go out.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any, Final
from weakref import ref

import attrs
import trio

from ..classes import define
from ..concurrency.wakeups import Sleeper
from ..jsonrpc.codec import frame_notification, frame_request
from ..jsonrpc.errors import NotSerializable
from ..jsonrpc.messages import RequestId

LINE_END: Final = b"}}\n"
"""End of the line of a notification, behind the members of its parameters."""

REQUEST_MARKS: Final = 4
"""Requests and responses wait for room at this many high-water marks."""

_WAKE_AT_ONCE = 8
_WRITTEN_AT_ONCE: Final = 64 * 1024


@define(eq=False)
class Segment:
    """Lines that are withdrawn together."""

    data: bytes | bytearray
    owner: Owner | None
    taken: bool = False


@define(eq=False)
class Owner:
    """A producer whose lines can be withdrawn."""

    segments: list[Segment] = attrs.field(factory=list[Segment], init=False)
    """Segments that wait, oldest first, in the order of the writer."""


def _taken(segment: Segment) -> bytes | bytearray:
    """Return the lines of ``segment``, which can be neither withdrawn nor replaced from now on."""
    segment.taken = True
    if segment.owner is not None and segment.data:
        del segment.owner.segments[0]
    return segment.data


def dropping_outbox(high_water: int) -> Outbox:
    """Return an outbox that drops all lines, for messages that have no way to their peer."""
    outbox = Outbox(high_water)
    outbox.call_writer(_dropping(ref(outbox)))
    return outbox


def _dropping(outbox: ref[Outbox]) -> Callable[[], None]:
    """Return a function that drops the lines in ``outbox``, which the function does not keep."""

    def drop() -> None:
        if (over := outbox()) is not None:
            over.take_nowait()

    return drop


def _never(_: bytes) -> int:
    return 0


def cancel_line(request_id: RequestId, reason: str | None) -> bytes:
    """Return the line of the cancel of a request of ours."""
    params: dict[str, Any] = {"requestId": request_id}
    try:
        told = params if reason is None else {**params, "reason": reason}
        return frame_notification("notifications/cancelled", told) + b"\n"
    except NotSerializable:  # the reason cannot be encoded; the cancel is what counts
        return frame_notification("notifications/cancelled", params) + b"\n"


class Outbox:
    """Lines on their way to one stream.

    ``high_water`` is the number of bytes from which `room` makes producers wait; `put` itself never waits, since some
    lines (answers to pings, cancels) must be written by code that cannot wait. ``send_nowait`` is the method of the
    transport; see `FramedTransport.send_nowait`.
    """

    def __init__(self, high_water: int, send_nowait: Callable[[bytes], int] = _never) -> None:
        self.high_water = high_water
        self._send_nowait = send_nowait
        self.size = 0
        """Bytes not yet taken by the writer."""
        self._segments: list[Segment] = []  # not a deque, which takes 760 bytes when empty, and most streams are silent
        self._tail: Segment | None = None
        """The last segment, if lines may be appended to it."""
        self._writer = Sleeper()
        self._producers = trio.lowlevel.ParkingLot()
        self._watchers = trio.lowlevel.ParkingLot()
        self._blocked = 0
        """Number of producers and watchers that wait for room."""
        self._writing = False
        self.over = False
        """True once no line is written any more."""
        self._emptied: trio.Event | None = None
        """Event set when all lines are written; `None` while no task waits for the event."""
        self.on_put: Callable[[], object] | None = None
        """Function called for lines that are put, which keep no producer waiting then; `None` while a task takes
        lines."""
        self._nudged = False

    def put(self, line: bytes, owner: Owner | None = None) -> None:
        """Append ``line``, newline included."""
        tail = self._tail
        if tail is not None and tail.owner is owner:
            data = tail.data
            if len(data) < self.high_water:
                data += line
                self.size += len(line)
                return
        self._append(line, owner, sealed=False)

    def put_now(self, line: bytes, owner: Owner | None = None) -> None:
        """Put ``line``, newline included, and write the line at once where writing needs no waiting. For lines that the
        peer waits for."""
        if self._writer.task is None or not self._write(line):
            self.put(line, owner)

    def put_request(self, request_id: RequestId, method: str, params: Any, owner: Owner | None) -> None:
        """Put a request of ours. A request without an owner, which nobody withdraws, goes ahead of all that waits.
        Raises `NotSerializable`."""
        line = frame_request(request_id, method, params, newline=True)
        if owner is None:
            self.put_first(line)
        elif self._writer.task is None or not self._write(line):  # as `put_now`, which would be one more call
            self.put(line, owner)

    def put_cancel(self, request_id: RequestId, reason: str | None) -> None:
        """Tell the peer that a request of ours is left, ahead of all that waits, and even when the outbox is full
        (rulings 3 and 4)."""
        self.put_first(cancel_line(request_id, reason))

    @trio.lowlevel.enable_ki_protection  # an interrupt must not come between the front of a line and its rest
    def _write(self, line: bytes) -> bool:
        """Write ``line`` or its front. Return false when nothing was written. To be called only while the writer
        sleeps, so that nothing waits and nothing is being written. A long line is left to the writer, since its rest
        would have to be copied."""
        size = len(line)
        if size > _WRITTEN_AT_ONCE:
            return False
        count = self._send_nowait(line)
        if 0 < count < size:
            self._segments.append(Segment(bytearray(line[count:]), None, taken=True))
            self._added(size - count)
        return count > 0

    def write_nothing_now(self) -> None:
        """Leave all lines to the writer from now on."""
        self._send_nowait = _never

    def put_sealed(self, line: bytes, owner: Owner | None = None) -> Segment:
        """Append ``line`` as a segment of its own, which can be given to `replace` later."""
        return self._append(line, owner, sealed=True)

    def put_first(self, line: bytes) -> None:
        """Put ``line`` ahead of all lines that are not begun. Lines put ahead by several tasks at the same moment are
        written together."""
        segments = self._segments
        # A first segment that is taken and waits is the rest of a line that was begun; or empty, since withdrawn.
        segments.insert(1 if segments and segments[0].taken else 0, Segment(self._data(line), None))
        self._added(len(line))

    def _data(self, line: bytes) -> bytes | bytearray:
        """Return ``line`` to be appended to; a line that fills the outbox as it is, since nothing is appended to
        that."""
        return bytearray(line) if len(line) < self.high_water else line

    def _append(self, line: bytes, owner: Owner | None, *, sealed: bool) -> Segment:
        segment = Segment(self._data(line), owner)
        self._segments.append(segment)
        self._tail = None if sealed else segment
        if owner is not None:
            owner.segments.append(segment)
        self._added(len(line))
        return segment

    def _added(self, count: int) -> None:
        self.size += count
        self._writer.wake()
        if self.on_put is not None:
            self.on_put()

    def call_writer(self, call: Callable[[], object] | None) -> None:
        """Have ``call`` called from now on for lines that are put, because no task takes lines; `None`: a task does.
        After `close` lines are dropped all the same."""
        if not self.over:
            self.on_put = call

    def replace(self, segment: Segment, line: bytes) -> bool:
        """Put ``line`` in the place of a sealed segment. Return false, with nothing changed, when the writer has the
        segment already, or the segment was withdrawn."""
        if segment.taken:
            return False
        self.size += len(line) - len(segment.data)
        segment.data = self._data(line)
        return True

    def withdraw(self, owner: Owner) -> bool:
        """Take back all waiting lines of ``owner``. Return true when there were any."""
        if not owner.segments:
            return False
        for segment in owner.segments:
            self.size -= len(segment.data)
            segment.taken = True
            segment.data = bytearray()
            if segment is self._tail:
                self._tail = None
        owner.segments.clear()
        self._make_room()
        return True

    def is_full(self, marks: int = 1) -> bool:
        """Return whether `room` would wait."""
        return self.size >= marks * self.high_water

    async def room(self, marks: int = 1) -> None:
        """Wait until fewer bytes wait than ``marks`` times the high-water mark. No checkpoint when there is room."""
        while self.size >= marks * self.high_water:
            await self._blocked_in(self._producers)
            # Wake the next producer: this producer may put nothing, and no other task would wake the next.
            self._make_room(1)

    async def _blocked_in(self, lot: trio.lowlevel.ParkingLot) -> None:
        self._blocked += 1
        try:
            await lot.park()
        finally:
            self._blocked -= 1

    def _make_room(self, count: int = _WAKE_AT_ONCE) -> None:
        if self._blocked and self.size < self.high_water:
            self._producers.unpark(count=count)

    async def room_of(self, owner: Owner, marks: int) -> None:
        """Wait as `room` does, but count only the lines of ``owner``."""
        while sum(len(segment.data) for segment in owner.segments) >= marks * self.high_water:
            await self._blocked_in(self._watchers)

    async def take(self) -> bytes | bytearray:
        """Wait for lines and return about ``high_water`` bytes of whole lines, for the writer.

        No checkpoint when lines are waiting. Taken lines can be neither withdrawn nor replaced. Returns nothing after
        `nudge`.
        """
        self._writing = False
        while True:
            if chunk := self.take_nowait():
                self._writing = True
                return chunk
            if self._nudged:
                self._nudged = False
                return chunk
            self._note_empty()
            await self._writer.sleep()

    def nudge(self) -> None:
        """Let `take` return once without lines, when no line waits."""
        self._nudged = True
        self._writer.wake()

    def take_nowait(self) -> bytes | bytearray:
        """Return what `take` would return now, or nothing where `take` would wait."""
        segments = self._segments
        if not segments:
            return bytearray()
        chunk, count = _taken(segments[0]), 1
        while count < len(segments) and len(chunk) < self.high_water:
            chunk += _taken(segments[count])
            count += 1
        del segments[:count]
        if not segments:
            self._tail = None
        self.size -= len(chunk)
        if self._blocked:
            self._make_room()
            self._watchers.unpark_all()
        return chunk

    def close(self) -> None:
        """Drop the lines that wait, and all lines from now on, since no line is written any more; wake the producers
        that wait for room, and who waits in `flushed`. Idempotent."""
        self.write_nothing_now()
        self.call_writer(_dropping(ref(self)))
        self.over = True
        for segment in self._segments:
            if segment.owner is not None:
                segment.owner.segments.clear()
        self._segments.clear()
        self._tail = None
        self.size = 0
        self._producers.unpark_all()
        self._note_empty()

    def _note_empty(self) -> None:
        if self._emptied is not None:
            self._emptied.set()
            self._emptied = None

    async def flushed(self) -> None:
        """Wait until all lines were taken and the writer came back for more, or until no line is written any more."""
        while (self.size or self._writing) and not self.over:
            if self._emptied is None:
                self._emptied = trio.Event()
            await self._emptied.wait()

    def statistics(self) -> dict[str, Any]:
        """Return the ``size`` in bytes and how many ``producers`` wait for room."""
        return {"size": self.size, "producers": len(self._producers)}


LEAST_FLUSH: Final = 0.4
"""Seconds that the flush gets in any case. With the half second that a transport waits for the peer's own end, the sum
is less than the second that leaving may take."""
_HURRIED_FLUSH: Final = 0.1


class LastFlush:
    """The last flush of one connection: the flush gets the rest of the time to drain, and a moment in any case."""

    def __init__(self) -> None:
        self._end = math.inf
        self._least = LEAST_FLUSH
        self._scope = trio.CancelScope()

    def end_at(self, deadline: float) -> None:
        """Note that the time to drain is over at ``deadline``."""
        self._end = min(self._end, deadline)

    def hurry(self) -> None:
        """Allow no more than a moment: less than a second is left for everything."""
        now = trio.current_time()
        self._end, self._least, self._scope.deadline = now, _HURRIED_FLUSH, now + _HURRIED_FLUSH

    async def run(self, flushed: Callable[[], Awaitable[None]]) -> None:
        """Wait until ``flushed`` has returned or the time is over. May be called only once."""
        self._scope.deadline = max(self._end, trio.current_time() + self._least)
        with self._scope:
            await flushed()
