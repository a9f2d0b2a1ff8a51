"""Streams of server-sent events in a log that all replicas share.

A `SharedStream` answers a POST: its lines are in the log before they go to the client. A `FollowedStream` is what a
client gets that comes back to whichever replica. Lines that belong to no request go by the `OwnStream` of the session.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import count
from typing import Any, Final, TypeVar

import msgspec
import trio

from ...classes import define, frozen
from ...concurrency.time_limits import growing_delay
from ...concurrency.wakeups import ChangeSignal, Sleeper
from ...jsonrpc.codec import frame_error
from ...jsonrpc.messages import RequestId
from ...protocol.errors import REPLICA_LOST
from ...runtime.outbox import Outbox
from ...stores.letters import Letters
from ...stores.shared import EventLog, Replica, StoredEvents, StoredStream
from ...transports.http.application import ResponseHandle, nothing
from ...transports.sse import KEEP_ALIVE, STREAM_HEADERS, identified_events, priming_event, retry_line
from .entrance import unavailable

T = TypeVar("T")

PATIENCE: Final = 10.0
"""Seconds for which a response waits for a log that cannot be reached, before it ends: its client may come back."""
LOST: Final = "the process that ran this call has ended; call again"
_LOOK: Final = 1.0
"""Seconds between two looks at a stream that another replica writes, where no hint comes before."""
_FIRST_REPEAT: Final = 0.1
_LONGEST_REPEAT: Final = 1.0
_NAME_BYTES: Final = 6
_BEYOND: Final = 10**17
_MOST_DIGITS: Final = 17
_MILLISECONDS: Final = 1000


def new_stream_name() -> str:
    """Return the name of a new stream, which no other stream of any session has."""
    return secrets.token_hex(_NAME_BYTES)


def new_holder(replica: Replica) -> str:
    """Return a new name for ``replica`` as the holder of a stream."""
    return f"{replica.id}:{secrets.token_hex(_NAME_BYTES)}"


def replica_of(holder: str) -> str:
    """Return the id of the replica that ``holder`` names; empty where there is no holder."""
    return holder.partition(":")[0]


def parsed_cursor(cursor: str) -> tuple[str, int] | None:
    """Return the stream and the number that an event id names; `None` for other text."""
    name, _, digits = cursor.rpartition("-")
    if not (name and digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS):
        return None
    number = int(digits)
    return (name, number) if str(number) == digits else None


def lost_line(request_id: bytes) -> bytes:
    """Return the line that ends a stream whose replica is gone: an error for the request with this id, JSON text, or
    for all members of a batch, whose ids are an array."""
    found: RequestId | list[RequestId] = msgspec.json.decode(request_id)
    if not isinstance(found, list):
        return frame_error(found, REPLICA_LOST, LOST) + b"\n"
    return b"[" + b",".join(frame_error(each, REPLICA_LOST, LOST) for each in found) + b"]\n"


async def insist(step: Callable[[], Awaitable[T]], given_up: Callable[[OSError], None]) -> T:
    """Return what ``step`` returns, which is called again while the place that replicas share fails. ``given_up`` is
    called, once, when that has lasted for `PATIENCE`, and may raise."""
    due: float | None = trio.current_time() + PATIENCE
    for attempt in count(1):
        try:
            return await step()
        except OSError as error:
            if due is not None and trio.current_time() >= due:
                due = None
                given_up(error)
        await trio.sleep(growing_delay(attempt, first=_FIRST_REPEAT, longest=_LONGEST_REPEAT))
    raise AssertionError("unreachable")


@frozen
class StreamLog:
    """The part of the log for the streams ``log_id``, which keeps ``most`` bytes, for ``keep`` milliseconds after the
    last use."""

    events: EventLog
    log_id: str
    most: int
    keep: int

    def open(self, name: str, holder: str, request_id: bytes) -> Awaitable[None]:
        """Begin a stream: see `EventLog.open`."""
        return self.events.open(self.log_id, name, holder=holder, request_id=request_id, keep=self.keep)

    def take(self, name: str, holder: str) -> Awaitable[StoredStream]:
        """Make ``holder`` the one who appends: see `EventLog.take`."""
        return self.events.take(self.log_id, name, holder=holder, keep=self.keep)

    async def append(
        self,
        name: str,
        holder: str,
        first: int,
        lines: Sequence[bytes],
        note: bytes | None = None,
        *,
        finish: bool = False,
        more: int = 0,
    ) -> bool:
        """Append lines: see `EventLog.append`. Return false also where the log has lost events between. A larger
        bound, by ``more`` bytes, holds for now."""
        try:
            return await self.events.append(
                self.log_id,
                name,
                holder=holder,
                first=first,
                lines=lines,
                most=self.most + more,
                keep=self.keep,
                note=note,
                finish=finish,
            )
        except ValueError:
            return False

    def after(self, name: str, number: int) -> Awaitable[StoredEvents | None]:
        """Return the events behind ``number``: see `EventLog.after`."""
        return self.events.after(self.log_id, name, number, keep=self.keep)

    def touch(self, name: str) -> Awaitable[StoredEvents | None]:
        """Have the log last for `keep` from now."""
        return self.after(name, _BEYOND)

    def finish_dead(self, stream: StoredStream) -> Awaitable[bool]:
        """End a stream whose holder is dead: see `EventLog.finish_dead`."""
        return self.events.finish_dead(
            self.log_id,
            stream.name,
            dead=stream.holder,
            line=lost_line(stream.request_id),
            most=self.most,
            keep=self.keep,
        )

    def forget(self) -> Awaitable[None]:
        """Forget all streams."""
        return self.events.forget(self.log_id)


def events_of(name: str, first: int, lines: Sequence[bytes]) -> bytes:
    """Return the events of the stream ``name``, of which the first has the number ``first``."""
    return identified_events((f"{name}-{number}", line) for number, line in enumerate(lines, first))


class EventPipe:
    """The events of a stream on their way to one response, which ends at ``until`` at the latest: see `Source`.
    ``ended`` is called when the response has ended."""

    def __init__(self, high_water: int, until: float = math.inf, ended: Callable[[], None] = nothing) -> None:
        self.until = until
        self._ended = ended
        self._high_water = high_water
        self._waiting = bytearray()
        self._reader = Sleeper()
        self._writers = trio.lowlevel.ParkingLot()
        self._was_silent = False
        self._speaks = False
        self.is_open = True
        """True while events that are put go to the client."""

    def put(self, events: bytes) -> None:
        """Send ``events``, unless the response has ended."""
        if self.is_open:
            self._waiting += events
            self._reader.wake()

    def end(self) -> None:
        """End the response behind the last event. Idempotent."""
        if not self.is_open:
            return
        self.is_open = False
        self._ended()
        self._reader.wake()
        self._writers.unpark_all()

    async def room(self) -> None:
        """Wait until few bytes wait, or the response has ended."""
        while self.is_open and len(self._waiting) >= self._high_water:
            await self._writers.park()

    def send_keep_alive(self) -> None:
        """Send a comment, unless something was sent since the last call."""
        if self._was_silent:
            self._speaks = True
            self._reader.wake()
        self._was_silent = True

    async def take(self) -> bytes | bytearray:
        """Wait for the next events, or a comment. See `Source.take`."""
        while not self._waiting:
            if not self.is_open:
                return b""
            if self._speaks:
                self._speaks = False
                return KEEP_ALIVE
            await self._reader.sleep()
        events, self._waiting = self._waiting, bytearray()
        self._was_silent = self._speaks = False
        self._writers.unpark_all()
        return events


def respond(response: ResponseHandle, extra: bytes, pipe: EventPipe) -> None:
    """Answer with the events of ``pipe``."""
    response.on_gone = pipe.end
    response.stream(200, STREAM_HEADERS + extra, pipe)
    if response.is_gone:
        pipe.end()


@define(eq=False)
class _Begun:
    """A response that waits for its stream."""

    response: ResponseHandle
    extra: bytes
    retry: float | None


class SharedStream:
    """The lines in ``outbox``, which answer the requests with ``request_id``, on their way to the log and then to the
    response. ``lost`` is called when somebody else has ended the stream, or it could not be begun; ``finished`` when
    later lines are none of this stream. See `ResumableStream`.

    While the log cannot be reached, nothing goes to the client. After `PATIENCE` the response ends, and the lines wait,
    as many as the outbox takes: the handler waits then, too. A stream that was not begun by then is none: the client is
    told to try again later.
    """

    def __init__(
        self,
        log: StreamLog,
        outbox: Outbox,
        holder: str,
        request_id: bytes,
        lost: Callable[[], Awaitable[None]],
        finished: Callable[[], None],
        max_line: int,
        *,
        primes: bool,
    ) -> None:
        self._finished = finished
        self._max_line = max_line
        self.name = new_stream_name()
        self._log = log
        self._outbox = outbox
        self._holder = holder
        self._request_id = request_id
        self._lost = lost
        self._primes = primes
        self._pipe = EventPipe(outbox.high_water)
        self._begun: _Begun | None = None
        self._last = 0
        self._is_finished = False
        self._closing: float | None = None
        """Seconds after which the client shall come back, once the response has the lines in ``_ahead``."""
        self._ahead = bytearray()
        """Lines that come before those in the outbox."""
        self._rest = bytearray()
        """The last lines of a stream that is finished."""
        self.response_at = ""
        """The replica with the response that takes the lines, as far as is known; empty: this one."""
        self.scope = trio.CancelScope()
        """Scope of `run`."""
        outbox.call_writer(None)

    @property
    def is_open(self) -> bool:
        """True while a response takes the lines."""
        return self._pipe.is_open and self._begun is not None

    def attach(self, response: ResponseHandle, extra: bytes, *, retry: float | None = None) -> None:
        """Send the stream by ``response``, once it has begun. See `ResumableStream.attach`."""
        self._begun = _Begun(response, extra, retry)
        response.on_gone = self._pipe.end

    def keep(self) -> None:
        """Keep the lines in the log alone."""
        self._pipe.end()

    def close_response(self, retry: float) -> bool:
        """End the response behind the lines that were put. See `ResumableStream.close_response`."""
        if not self.is_open or not self._primes or self._is_finished:
            return False
        self._closing = retry
        self._ahead += self._waiting()
        self._outbox.nudge()
        return True

    def _waiting(self) -> bytearray:
        """Take all lines that wait."""
        waiting = bytearray()
        while lines := self._outbox.take_nowait():
            waiting += lines
        return waiting

    def finish(self, keep_until: float) -> None:
        """End the stream behind the last line. The log knows how long it keeps the events. Idempotent."""
        if not self._is_finished:
            self._is_finished = True
            self._rest = self._waiting()
            self._outbox.nudge()
            self._finished()

    def send_keep_alive(self) -> None:
        """Send a comment, unless something was sent since the last call."""
        self._pipe.send_keep_alive()

    async def run(self) -> None:
        """Carry the lines until the stream is finished, or lost."""
        begun = self._begun
        with self.scope:
            try:
                if await self._open():
                    if begun is not None:
                        self._respond(begun)
                    if await self._carry():
                        return
                await self._lost()
            finally:
                self._pipe.end()
                if begun is not None:  # nothing happens where the response has begun
                    begun.response.answer(unavailable("the events cannot be kept; try again later", begun.extra))

    async def _open(self) -> bool:
        try:
            await insist(partial(self._log.open, self.name, self._holder, self._request_id), _raise)
        except OSError:
            return False
        return True

    def _respond(self, begun: _Begun) -> None:
        first = b"" if begun.retry is None else retry_line(round(begun.retry * _MILLISECONDS))
        if self._primes:
            self._pipe.put(first + priming_event(f"{self.name}-0"))
        respond(begun.response, begun.extra, self._pipe)

    async def _carry(self) -> bool:
        """Carry the lines, and return true behind the last one; false when another one has ended the stream."""
        outbox, pipe = self._outbox, self._pipe
        while True:
            if not (self._ahead or self._is_finished or self._closing is not None):
                self._ahead += await outbox.take()
            finish = self._is_finished and self._closing is None
            lines, self._ahead = bytes(self._ahead + self._rest if finish else self._ahead), bytearray()
            if (lines or finish) and not await self._keep(lines.splitlines(keepends=True), finish=finish):
                outbox.let_go()
                return False
            if finish:
                return True
            if self._closing is not None and not self._ahead:
                retry, self._closing = retry_line(round(self._closing * _MILLISECONDS)), None
                pipe.put(retry + priming_event(f"{self.name}-{self._last}"))
                pipe.end()
            await pipe.room()

    async def _keep(self, lines: Sequence[bytes], *, finish: bool) -> bool:
        """Keep lines, then send them. Return as `EventLog.append`."""
        pipe, first = self._pipe, self._last + 1
        # The result of a call whose client is away may have the size of any message, as other results.
        more = 0 if pipe.is_open else min(sum(map(len, lines)), self._max_line)
        append = partial(self._log.append, self.name, self._holder, first, lines, finish=finish, more=more)
        if not await insist(append, lambda _: pipe.end()):
            return False
        self._last += len(lines)
        pipe.put(events_of(self.name, first, lines))
        return True


def _raise(error: OSError) -> None:
    raise error


class FollowedStream:
    """A stream of ``log`` behind the events that were ``read``, whichever replica writes it: see `Source`. ``signal``
    tells of changes. The response begins with ``first``, and ends at ``until`` at the latest. It is silent for
    ``interval`` seconds at most. ``ended`` is called when it ends."""

    def __init__(
        self,
        log: StreamLog,
        letters: Letters,
        signal: ChangeSignal,
        read: StoredEvents,
        first: bytes,
        until: float,
        interval: float,
        ended: Callable[[FollowedStream], None],
    ) -> None:
        self.name = read.stream.name
        self.until = until
        self.signal = signal
        self._log = log
        self._letters = letters
        self._interval = interval
        self._ended = ended
        self._number = read.first - 1
        self._first = first
        self._is_over = False
        self._waiting: bytes = self._read(read)

    def _read(self, read: StoredEvents) -> bytes:
        self._is_over = self._is_over or read.stream.is_finished
        self._number = read.first - 1 + len(read.lines)
        return events_of(self.name, read.first, read.lines)

    def end(self) -> None:
        """End the response: another one follows the stream, or its time is over. Idempotent."""
        self._is_over = True
        self._ended(self)
        self.signal.notice()

    async def take(self) -> bytes:
        """Wait for the next events, or a comment. See `Source.take`."""
        spoken = failing = trio.current_time()
        while not (self._first or self._waiting or self._is_over):
            await self.signal.next_look()
            if self._is_over:
                break
            try:
                read = await self._log.after(self.name, self._number)
                if read is None:
                    self._is_over = True
                else:
                    self._waiting = self._read(read)
                    if not (self._waiting or self._is_over):
                        await self._look_after(read.stream)
                failing = trio.current_time()
            except OSError:
                if trio.current_time() - failing >= PATIENCE:
                    self._is_over = True
            if not self._waiting and trio.current_time() - spoken >= self._interval:
                return KEEP_ALIVE
        if not (self._first or self._waiting):
            self._ended(self)
        events, self._first, self._waiting = self._first + self._waiting, b"", b""
        return events

    async def _look_after(self, stream: StoredStream) -> None:
        """End the stream where nobody else can."""
        holder = replica_of(stream.holder)
        if self._letters.can_tell_death and await self._letters.replica.courier.dead([holder]):
            await self._log.finish_dead(stream)
            self.signal.notice()


def new_signal() -> ChangeSignal:
    """Return the signal for one who follows a stream."""
    return ChangeSignal(_LOOK)


class _Note(msgspec.Struct, frozen=True):
    """What is noted beside the own stream of a session."""

    sent: int = 0
    """Number of the last event that a response took."""
    place: str = ""
    """Place in the log of changes, up to which lines were made of changes; empty where nobody knows."""


_decode_note: Final = msgspec.json.Decoder(_Note)


class OwnStream:
    """The session's own stream ``name``, as far as ``holder``, in this replica, has it."""

    def __init__(self, log: StreamLog, name: str, holder: str, stream: StoredStream) -> None:
        self.holder = holder
        self.pipe: EventPipe | None = None
        """The way to the client; `None` while no response takes the lines."""
        self._log = log
        self._name = name
        self._last = stream.last
        note = _decode_note.decode(stream.note) if stream.note else _Note()
        self._sent = note.sent
        self.place = note.place
        """See `_Note`."""

    @property
    def is_open(self) -> bool:
        """True while a response takes the lines."""
        return self.pipe is not None and self.pipe.is_open

    async def unsent(self, behind: int | None) -> tuple[bytes, bool] | None:
        """Return the events that no response took, or all ``behind`` a number, and whether some are missing; `None`
        where the client cannot go on from there."""
        number = self._sent if behind is None else behind
        if number >= self._last:
            return (b"", False) if number == self._last or behind is None else None
        read = await self._log.after(self._name, number)
        if read is None:
            return (b"", True) if behind is None else None
        is_gap = read.stream.dropped > number
        if is_gap and behind is not None:
            return None
        return events_of(self._name, read.first, read.lines), is_gap

    @property
    def sent_cursor(self) -> str:
        """The id of the last event that a response took."""
        return f"{self._name}-{self._sent}"

    async def write(self, lines: Sequence[bytes], place: str) -> bool:
        """Keep lines, if any, and send them. Lines were made of all changes up to ``place``, empty where nobody knows.
        Return false, with nothing changed, where another one has the stream."""
        if not await self._append(lines, place):
            return False
        if self.pipe is not None:
            self.pipe.put(events_of(self._name, self._last + 1 - len(lines), lines))
        return True

    async def _append(self, lines: Sequence[bytes], place: str) -> bool:
        last = self._last + len(lines)
        sent, place = last if self.is_open else self._sent, place or self.place
        note = msgspec.json.encode(_Note(sent, place))
        append = partial(self._log.append, self._name, self.holder, self._last + 1, lines, note)
        if not await insist(append, lambda _: self.end()):
            return False
        self._last, self._sent, self.place = last, sent, place
        return True

    def resume(self, stream: StoredStream) -> None:
        """Go on behind what another one has written meanwhile."""
        self._last = stream.last

    def end(self) -> None:
        """End the response. Idempotent."""
        if self.pipe is not None:
            self.pipe.end()

    def touch(self) -> Awaitable[Any]:
        """Have the log last."""
        return self._log.touch(self._name)
