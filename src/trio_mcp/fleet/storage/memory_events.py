"""`MemoryEventLog` stores the events of legacy sessions in this process's memory."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from itertools import islice

import attrs

from ...classes import define
from ...stores.memory_sessions import Expiring
from ...stores.shared import FINISHED_STREAMS_LIMIT, StoredEvents, StoredStream, WatchedByHints
from ...stores.task_store import HintQueues


@define(eq=False)
class _MemoryStream:
    name: str
    holder: str
    request_id: bytes
    events: deque[tuple[int, bytes]] = attrs.Factory(deque[tuple[int, bytes]])
    """The stored events, each with its sequence number in the session."""
    last: int = 0
    note: bytes = b""
    kept_until: int | None = None
    """Time at which the finished stream is deleted; `None` before it is finished."""

    @property
    def dropped(self) -> int:
        return self.last - len(self.events)

    def stored(self) -> StoredStream:
        is_finished = self.kept_until is not None
        return StoredStream(self.name, self.holder, self.request_id, self.last, self.dropped, self.note, is_finished)


class _SessionStreams:
    """The SSE streams of one MCP session, with their events."""

    def __init__(self) -> None:
        self._streams: dict[str, _MemoryStream] = {}
        self._finished: dict[str, int] = {}
        """Times at which finished streams are deleted, in the order in which they were finished."""
        self._order: OrderedDict[int, _MemoryStream] = OrderedDict()
        """The streams of all stored events, by the sequence numbers of the events, oldest first."""
        self._next_sequence = 0
        self._size = 0
        """Bytes of all stored lines."""

    def find(self, name: str, now: int) -> _MemoryStream | None:
        for finished in [name for name, until in self._finished.items() if until <= now]:
            self._delete(finished)
        return self._streams.get(name)

    def open(self, name: str, holder: str, request_id: bytes) -> _MemoryStream:
        self._streams[name] = stream = _MemoryStream(name, holder, request_id)
        return stream

    def append(self, stream: _MemoryStream, lines: Sequence[bytes], limit: int) -> None:
        for line in lines:
            stream.events.append((self._next_sequence, line))
            self._order[self._next_sequence] = stream
            self._next_sequence += 1
            self._size += len(line)
        stream.last += len(lines)
        self._drop_oldest(limit, 1)
        self._drop_oldest(limit, 0)

    def _drop_oldest(self, limit: int, spared: int) -> None:
        """Drop the session's oldest events until the remaining events fit into ``limit`` bytes.

        The newest ``spared`` events of each SSE stream are never dropped.
        """
        dropped = list[int]()
        for place, stream in self._order.items():
            if self._size <= limit:
                break
            if len(stream.events) > spared:
                self._size -= len(stream.events.popleft()[1])
                dropped.append(place)
        for place in dropped:
            del self._order[place]

    def finish(self, stream: _MemoryStream, until: int) -> None:
        stream.kept_until = self._finished[stream.name] = until
        if len(self._finished) > FINISHED_STREAMS_LIMIT:
            self._delete(next(iter(self._finished)))

    def _delete(self, name: str) -> None:
        del self._finished[name]
        for place, line in self._streams.pop(name).events:
            del self._order[place]
            self._size -= len(line)


class MemoryEventLog(WatchedByHints[tuple[str, str]]):
    """Stores SSE events in memory, for replicas in one process. Its methods never wait. See `EventLog`."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._logs = Expiring[str, _SessionStreams](now)
        super().__init__(HintQueues[tuple[str, str]]())

    async def open(self, session_id: str, stream: str, *, holder: str, request_id: bytes, retention_ms: int) -> None:
        """Create an SSE stream in a session's event log. See `EventLog.open`."""
        log = self._logs.get(session_id) or _SessionStreams()
        found = log.find(stream, self._now())
        if found is None:
            log.open(stream, holder, request_id)
        elif found.stored() != _MemoryStream(stream, holder, request_id).stored():
            raise ValueError("the session already has an SSE stream with this name")
        self._logs.put(session_id, log, retention_ms)

    async def take_over(self, session_id: str, stream: str, *, holder: str, retention_ms: int) -> StoredStream:
        """Make ``holder`` the only writer that may append events to the SSE stream. See `EventLog.take_over`.

        If the stream doesn't exist, create it.
        """
        log = self._logs.get(session_id) or _SessionStreams()
        found = log.find(stream, self._now()) or log.open(stream, holder, b"")
        if found.kept_until is None:
            found.holder = holder
        self._logs.put(session_id, log, retention_ms)
        self._hint_queues.notify([(session_id, stream)])
        return found.stored()

    async def append(
        self,
        session_id: str,
        stream: str,
        *,
        holder: str,
        first: int,
        lines: Sequence[bytes],
        limit: int,
        retention_ms: int,
        note: bytes | None = None,
        finish: bool = False,
    ) -> bool:
        """Append events to an SSE stream of a session. See `EventLog.append`."""
        log, found = self._find(session_id, stream)
        if log is None or found is None or found.holder != holder:
            return False
        last = first + len(lines) - 1
        if found.kept_until is not None and not (finish and last == found.last):
            return False
        if first > found.last + 1:
            raise ValueError(f"the next event of this SSE stream must have the number {found.last + 1}, not {first}")
        if last >= found.last and found.kept_until is None:
            log.append(found, lines[found.last + 1 - first :], limit)
            if note is not None:
                found.note = note
            if finish:
                log.finish(found, self._now() + retention_ms)
            self._hint_queues.notify([(session_id, stream)])
        self._logs.put(session_id, log, retention_ms)
        return True

    def _find(self, session_id: str, stream: str) -> tuple[_SessionStreams | None, _MemoryStream | None]:
        log = self._logs.get(session_id)
        return log, None if log is None else log.find(stream, self._now())

    async def finish_dead(
        self, session_id: str, stream: str, *, dead_holder: str, line: bytes, limit: int, retention_ms: int
    ) -> bool:
        """Finish an SSE stream that only a dead replica could continue. See `EventLog.finish_dead`."""
        log, found = self._find(session_id, stream)
        if log is None or found is None or found.holder != dead_holder or found.kept_until is not None:
            return False
        found.holder = ""
        log.append(found, [line], limit)
        log.finish(found, self._now() + retention_ms)
        self._logs.put(session_id, log, retention_ms)
        self._hint_queues.notify([(session_id, stream)])
        return True

    async def read_after(self, session_id: str, stream: str, number: int, *, retention_ms: int) -> StoredEvents | None:
        """Return an SSE stream with its stored events after the event ``number``. See `EventLog.read_after`."""
        log, found = self._find(session_id, stream)
        if log is None or found is None:
            return None
        self._logs.put(session_id, log, retention_ms)
        before = max(number, found.dropped)
        lines = [line for _, line in islice(found.events, min(before, found.last) - found.dropped, None)]
        return StoredEvents(found.stored(), before + 1, lines)

    async def delete(self, session_id: str) -> None:
        """Delete all SSE streams of a session. See `EventLog.delete`."""
        self._logs.pop(session_id)
