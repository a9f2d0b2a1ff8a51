"""The outbox: a queue of lines to send, in order. A writer task writes each line, unless the line's owner withdraws it
first.

Producers put whole lines in, and one writer takes lines out in large pieces. If no other line waits, a line that the
peer waits for is written at once, because waking the writer costs several times as much as writing.

Consecutive lines of one owner share a segment, which is a bytearray: a line costs an append, and no object. A long line
becomes a segment without a copy. Until the writer takes a segment, it can be withdrawn or, if it contains a single
line, replaced. `LastFlush` limits the time in which the last replies of a connection are written.
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
"""End of the JSON line of a notification, after its parameters."""

REQUEST_MARKS: Final = 4
"""Requests and responses wait while the outbox contains more than this many times its high-water mark."""

_WAKE_AT_ONCE = 8
_WRITTEN_AT_ONCE: Final = 64 * 1024


@define(eq=False)
class Segment:
    """Consecutive messages in the outbox, which can only be withdrawn together."""

    data: bytes | bytearray
    owner: Owner | None
    taken: bool = False


@define(eq=False)
class Owner:
    """A group of messages in the outbox that can be withdrawn together, such as the messages of an outgoing request.

    The lines of an owner can be withdrawn until they are written.
    """

    segments: list[Segment] = attrs.field(factory=list[Segment], init=False)
    """Segments of this owner that wait in the outbox, in the order in which they will be written."""


def _taken(segment: Segment) -> bytes | bytearray:
    """Mark ``segment`` as taken by the writer: from now on, it can't be withdrawn or replaced. Return the messages in
    the segment."""
    segment.taken = True
    if segment.owner is not None and segment.data:
        del segment.owner.segments[0]
    return segment.data


def dropping_outbox(high_water: int) -> Outbox:
    """Return an outbox that drops every message, because the receiver can't be reached."""
    outbox = Outbox(high_water)
    outbox.call_writer(_dropping(ref(outbox)))
    return outbox


def _dropping(outbox: ref[Outbox]) -> Callable[[], None]:
    """Return a function that removes all messages from ``outbox``.

    The function holds no reference to the outbox.
    """

    def drop() -> None:
        if (over := outbox()) is not None:
            over.take_nowait()

    return drop


def _never(_: bytes) -> int:
    return 0


def cancel_line(request_id: RequestId, reason: str | None) -> bytes:
    """Encode ``notifications/cancelled`` for an outgoing request as a JSON line."""
    params: dict[str, Any] = {"requestId": request_id}
    try:
        told = params if reason is None else {**params, "reason": reason}
        return frame_notification("notifications/cancelled", told) + b"\n"
    except NotSerializable:  # the reason can't be encoded as JSON, so send the cancellation without a reason
        return frame_notification("notifications/cancelled", params) + b"\n"


class Outbox:
    """The queue of messages that wait to be written to one stream. Each message is one line.

    ``high_water`` is the number of bytes above which `room` waits. `put` itself never waits, because some lines
    (answers to pings, cancellations) come from code that can't wait. ``send_nowait`` is the transport's method; see
    `FramedTransport.send_nowait`.
    """

    def __init__(self, high_water: int, send_nowait: Callable[[bytes], int] = _never) -> None:
        self.high_water = high_water
        self._send_nowait = send_nowait
        self.size = 0
        """Number of bytes that the writer hasn't taken yet."""
        self._segments: list[Segment] = []  # Use a list: an empty deque takes 760 bytes, and most outboxes are empty.
        self._tail: Segment | None = None
        """The last segment, if more lines can be appended to it. Otherwise `None`."""
        self._writer = Sleeper()
        self._producers = trio.lowlevel.ParkingLot()
        self._watchers = trio.lowlevel.ParkingLot()
        self._blocked = 0
        """Number of tasks that wait for room in the outbox, or that watch for it."""
        self._writing = False
        self.over = False
        """True if no more lines will be written."""
        self._emptied: trio.Event | None = None
        """Event that is set when all lines are written. `None` if no task waits for it."""
        self.on_put: Callable[[], object] | None = None
        """Function to call when a line is put, if no writer task takes the lines. In this mode, producers never wait.
        `None` while a writer task takes lines."""
        self._nudged = False

    def put(self, line: bytes, owner: Owner | None = None) -> None:
        """Queue the message ``line`` to be sent. ``line`` includes its newline."""
        tail = self._tail
        if tail is not None and tail.owner is owner:
            data = tail.data
            if len(data) < self.high_water:
                data += line
                self.size += len(line)
                return
        self._append(line, owner, sealed=False)

    def put_now(self, line: bytes, owner: Owner | None = None) -> None:
        """Send the message ``line``, a reply that the peer waits for. ``line`` includes its newline.

        The line is written at once if that is possible without waiting. Otherwise it is queued.
        """
        if self._writer.task is None or not self._write(line):
            self.put(line, owner)

    def put_request(self, request_id: RequestId, method: str, params: Any, owner: Owner | None) -> None:
        """Put a request to the peer into the outbox.

        A request without an owner can't be withdrawn, and is written before all waiting lines. Raises `NotSerializable`
        if the request can't be encoded as JSON.
        """
        line = frame_request(request_id, method, params, newline=True)
        if owner is None:
            self.put_first(line)
        # Same statements as in `put_now`, inlined to save a function call.
        elif self._writer.task is None or not self._write(line):
            self.put(line, owner)

    def put_cancel(self, request_id: RequestId, reason: str | None) -> None:
        """Send the cancellation of an outgoing request before all waiting messages, even if the outbox is full."""
        self.put_first(cancel_line(request_id, reason))

    @trio.lowlevel.enable_ki_protection  # without this protection, a Ctrl-C could leave a half-written line
    def _write(self, line: bytes) -> bool:
        """Try to write the message ``line``, or the first part of it, without waiting.

        Return false if nothing was written. Call it only while the writer task sleeps and no other line waits. A long
        line is left to the writer task, because here the unwritten part of the line would have to be copied.
        """
        size = len(line)
        if size > _WRITTEN_AT_ONCE:
            return False
        count = self._send_nowait(line)
        if 0 < count < size:
            self._segments.append(Segment(bytearray(line[count:]), None, taken=True))
            self._added(size - count)
        return count > 0

    def write_nothing_now(self) -> None:
        """From now on, only the writer task writes to the stream, and tasks that send messages just queue them.

        Before this call, the task that sends a line may write it at once.
        """
        self._send_nowait = _never

    def put_sealed(self, line: bytes, owner: Owner | None = None) -> Segment:
        """Queue the message ``line`` in its own segment of the outbox. Return the segment, so that `replace` can
        replace the message until it's sent."""
        return self._append(line, owner, sealed=True)

    def put_first(self, line: bytes) -> None:
        """Queue the message ``line`` before all messages that the writer hasn't begun to write.

        If several tasks call this method at the same moment, their lines are written together.
        """
        segments = self._segments
        # The task that writes messages may already have taken the first segment of the outbox.
        # A segment of queued bytes is `taken` if it is the rest of a partly written line, or was emptied.
        segments.insert(1 if segments and segments[0].taken else 0, Segment(self._data(line), None))
        self._added(len(line))

    def _data(self, line: bytes) -> bytes | bytearray:
        """Return the message ``line`` as a bytearray, to which later messages can be appended.

        If ``line`` alone fills the outbox, it is returned unchanged, since nothing is appended to such a line.
        """
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
        """From now on, call ``call`` whenever a message is queued, instead of waking a writer task.

        `None` means that a writer task takes lines again. After `close`, lines are dropped in any case.
        """
        if not self.over:
            self.on_put = call

    def replace(self, segment: Segment, line: bytes) -> bool:
        """Replace the message in ``segment`` by ``line``. `put_sealed` returned this segment, and it hasn't been sent
        yet.

        If the writer has taken the segment, or the segment was withdrawn, change nothing and return false.
        """
        if segment.taken:
            return False
        self.size += len(line) - len(segment.data)
        segment.data = self._data(line)
        return True

    def withdraw(self, owner: Owner) -> bool:
        """Remove all unwritten messages of ``owner`` from the outbox. Return true if there were any."""
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
        """Return true if so many bytes wait in the outbox that `room` would wait."""
        return self.size >= marks * self.high_water

    async def room(self, marks: int = 1) -> None:
        """Wait until fewer than ``marks`` times `high_water` bytes wait in the outbox.

        If that is already true, return without a checkpoint.
        """
        while self.size >= marks * self.high_water:
            await self._blocked_in(self._producers)
            # Wake the next producer here, because nothing else wakes it if the current producer queues no message.
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
        """Wait until the messages of ``owner`` in the outbox have fewer bytes than ``marks`` times the outbox's limit
        ``high_water``. Messages of other owners don't count."""
        while sum(len(segment.data) for segment in owner.segments) >= marks * self.high_water:
            await self._blocked_in(self._watchers)

    async def take(self) -> bytes | bytearray:
        """Wait until the outbox contains messages, and return whole messages with about ``high_water`` bytes in total.

        The writer task calls this method. If lines are waiting, this isn't a checkpoint. Taken lines can't be withdrawn
        or replaced. Returns empty bytes after `nudge`.
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
        """Wake the task that waits in `take`. This call of `take` then returns empty bytes.

        Do nothing if lines wait in the outbox.
        """
        self._nudged = True
        self._writer.wake()

    def take_nowait(self) -> bytes | bytearray:
        """Return the messages that `take` would return now, or empty bytes if `take` would wait."""
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
        """Drop all messages that are now in the outbox, and all later messages, because the stream is closed.

        Wake the tasks that wait in `room` and `flushed`. Idempotent.
        """
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
        """Wait until the writer has written all messages, or the outbox is closed."""
        while (self.size or self._writing) and not self.over:
            if self._emptied is None:
                self._emptied = trio.Event()
            await self._emptied.wait()

    def statistics(self) -> dict[str, Any]:
        """Return the ``size`` of the outbox in bytes, and the number of ``producers`` that wait for room in it."""
        return {"size": self.size, "producers": len(self._producers)}


LEAST_FLUSH: Final = 0.4
"""Minimum seconds for the last flush of a connection. After the flush, a transport waits half a second for the peer to
close. Together, this takes less than the one second in which a connection should close."""
_HURRIED_FLUSH: Final = 0.1


class LastFlush:
    """Limits the time for writing the last messages of a connection that is closing.

    The limit is the end of the drain time, but at least `LEAST_FLUSH` seconds.
    """

    def __init__(self) -> None:
        self._end = math.inf
        self._least = LEAST_FLUSH
        self._scope = trio.CancelScope()

    def end_at(self, deadline: float) -> None:
        """Set the time limit of the last flush to ``deadline``, the end of the connection's drain time."""
        self._end = min(self._end, deadline)

    def hurry(self) -> None:
        """Limit the last flush to 0.1 seconds, because the process must end in less than a second."""
        now = trio.current_time()
        self._end, self._least, self._scope.deadline = now, _HURRIED_FLUSH, now + _HURRIED_FLUSH

    async def run(self, flushed: Callable[[], Awaitable[None]]) -> None:
        """Wait until ``flushed`` has returned, or the time limit has passed.

        Call this method only once.
        """
        self._scope.deadline = max(self._end, trio.current_time() + self._least)
        with self._scope:
            await flushed()
