"""StreamLog is the log of the streams of one session, which all replicas share, as used by one replica."""

from __future__ import annotations

import errno
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Final, TypeVar, cast

import attrs
import trio

from ...classes import frozen
from ...concurrency.time_limits import growing_delay
from ...jsonrpc.codec import decode_value, encode_value, frame_error
from ...jsonrpc.messages import RequestId, is_request_id
from ...protocol.errors import REPLICA_LOST
from ...stores.decoding import decode_stored
from ...stores.sealing import BadSeal, KeyRing
from ...stores.shared import EventLog, Replica, StoredEvents, StoredStream
from ...stores.task_store import UnreadableRecord

logger = logging.getLogger("trio_mcp")

T = TypeVar("T")

STORAGE_TIMEOUT: Final = 10.0
"""Seconds for which a response waits for a log that cannot be reached, before it ends: its client may come back."""
LOST: Final = "the process that ran this call has ended; call again"
_FIRST_REPEAT: Final = 0.1
_LONGEST_REPEAT: Final = 1.0
_NAME_BYTES: Final = 6
_BEYOND: Final = 10**17
_MOST_DIGITS: Final = 17


def new_stream_name() -> str:
    """Return the name of a new stream, which no other stream of any session has."""
    return secrets.token_hex(_NAME_BYTES)


def new_holder(replica: Replica) -> str:
    """Return a new name for ``replica`` as the holder of a stream."""
    return f"{replica.id}:{secrets.token_hex(_NAME_BYTES)}"


def replica_of(holder: str) -> str:
    """Return the id of the replica that ``holder`` names; empty where there is no holder."""
    return holder.partition(":")[0]


def parse_cursor(cursor: str) -> tuple[str, int] | None:
    """Return the stream and the number that an event id names; `None` for other text."""
    name, _, digits = cursor.rpartition("-")
    if not (name and digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS):
        return None
    number = int(digits)
    return (name, number) if str(number) == digits else None


def lost_line(request_id: bytes) -> bytes:
    """Return the line that ends a stream whose replica is gone. It is an error for the request with this id (JSON
    text), or, for an array of ids, for all members of a batch. Raises `UnreadableRecord`."""
    ids = decode_stored("the id of a request", _ids, request_id)
    lines = [frame_error(each, REPLICA_LOST, LOST) for each in ids]
    return (b"[%b]\n" if request_id.startswith(b"[") else b"%b\n") % b",".join(lines)


def _ids(request_id: bytes) -> list[RequestId]:
    found = decode_value(request_id)
    ids = cast("list[object]", found if isinstance(found, list) else [found])
    if not all(map(is_request_id, ids)):
        raise ValueError("it is no id")
    return cast("list[RequestId]", ids)


def standalone_log_id(session_id: str) -> str:
    """Return the id of the log for the session's own stream. `StreamLog.log_id` for others is the session's id."""
    return f"{session_id} own"


async def forget_events(events: EventLog, session_id: str) -> None:
    """Delete the events of a session that has ended. If this fails, the events expire later."""
    try:
        await events.delete(session_id)
        await events.delete(standalone_log_id(session_id))
    except OSError as failed:
        logger.debug("could not delete the events of a session: %s", failed)


async def retry_while_unavailable(call: Callable[[], Awaitable[T]], on_timeout: Callable[[OSError], None]) -> T:
    """Return the result of ``call``, which is called again while the shared storage fails. ``on_timeout`` is
    called, once, when that has lasted for `PATIENCE`, and may raise."""
    due: float | None = trio.current_time() + STORAGE_TIMEOUT
    for attempt in count(1):
        try:
            return await call()
        except OSError as error:
            if due is not None and trio.current_time() >= due:
                due = None
                on_timeout(error)
        await trio.sleep(growing_delay(attempt, first=_FIRST_REPEAT, longest=_LONGEST_REPEAT))
    raise AssertionError("unreachable")


@frozen
class StreamLog:
    """The part of the log for the streams ``log_id``, which keeps ``limit`` bytes, for ``retention_ms`` milliseconds
    after the last use."""

    events: EventLog
    log_id: str
    limit: int
    retention_ms: int
    keys: KeyRing | None = None
    """Keys that seal events, if the author has given secrets. An event is only valid for its stream and owner."""
    owner: str = ""
    """The principal that owns the session, in the form of facts."""

    def open(self, name: str, holder: str, request_id: bytes) -> Awaitable[None]:
        """Begin a stream: see `EventLog.open`."""
        return self.events.open(self.log_id, name, holder=holder, request_id=request_id, retention_ms=self.retention_ms)

    def take_over(self, name: str, holder: str) -> Awaitable[StoredStream]:
        """Make ``holder`` the one who appends: see `EventLog.take_over`."""
        return self.events.take_over(self.log_id, name, holder=holder, retention_ms=self.retention_ms)

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
        lines = self._seal(name, lines)
        try:
            return await self.events.append(
                self.log_id,
                name,
                holder=holder,
                first=first,
                lines=lines,
                limit=self.limit + more,
                retention_ms=self.retention_ms,
                note=note,
                finish=finish,
            )
        except ValueError:
            return False

    async def read_after(self, name: str, number: int) -> StoredEvents | None:
        """Return the events behind ``number``: see `EventLog.read_after`. Raises `UnreadableRecord`, an `OSError`, for
        events that were sealed with none of the keys."""
        found = await self.events.read_after(self.log_id, name, number, retention_ms=self.retention_ms)
        if found is None or self.keys is None:
            return found
        about = self._about(name)
        try:
            return attrs.evolve(found, lines=[self.keys.open(line, about) for line in found.lines])
        except BadSeal:
            raise UnreadableRecord(errno.EIO, "an event was changed, or sealed with another secret") from None

    def touch(self, name: str) -> Awaitable[StoredEvents | None]:
        """Have the log last for `retention_ms` from now."""
        return self.read_after(name, _BEYOND)

    def finish_dead(self, stream: StoredStream) -> Awaitable[bool]:
        """End a stream whose holder is dead: see `EventLog.finish_dead`."""
        return self.events.finish_dead(
            self.log_id,
            stream.name,
            dead_holder=stream.holder,
            line=self._seal(stream.name, [lost_line(stream.request_id)])[0],
            limit=self.limit,
            retention_ms=self.retention_ms,
        )

    def _about(self, name: str) -> bytes:
        return encode_value([self.log_id, name, self.owner])

    def _seal(self, name: str, lines: Sequence[bytes]) -> Sequence[bytes]:
        if self.keys is None:
            return lines
        about = self._about(name)
        return [self.keys.seal(line, about) for line in lines]
