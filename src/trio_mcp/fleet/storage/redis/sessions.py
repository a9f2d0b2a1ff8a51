"""Legacy sessions in Redis: `RedisSessionDirectory` stores their state, `RedisEventLog` stores the events of their
streams.

A session is a hash, which Redis deletes when the session was idle for too long. There are three kinds of sorted sets:

- one has the end times of all sessions
- one for each caller has the end times of its sessions
- one has the number of sessions of each caller

A session that was never read or changed has a score below 0, so that it is found before all others. A set may show a
live session as ended, never the reverse. The next read of the session corrects that. A session without a caller, which
an earlier version has opened, counts as ended.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, TypeVar

from ....stores.record_codec import LINES, SESSION, STREAM, decode_columns, decode_stored, decoded, encoded
from ....stores.shared import StoredEvents, StoredSession, StoredStream, WatchedByHints
from ....stores.task_store import HintQueues, StoreFull
from .client import Value, load_scripts
from .link import Link

T = TypeVar("T")

_CALLER: Final = 32
"""Number of characters of a caller's name in keys, and in the set of all end times: `CALLER` in sessions.lua."""
_SCRIPTS: Final = load_scripts("sessions")


class _SessionsPart(WatchedByHints[T]):
    """Stores a part of MCP sessions in Redis, in keys that begin with ``prefix``.

    Notifications are published on the channel ``bus``, and passed from there to ``watchers``.
    """

    def __init__(self, link: Link, prefix: str, bus: str, watchers: HintQueues[T]) -> None:
        self._link = link
        self._tag = b"{%b:s}" % prefix.encode()
        self._bus = bus
        super().__init__(watchers)


class RedisSessionDirectory(_SessionsPart[str]):
    """Stores MCP sessions in Redis. See `SessionDirectory`.

    After a `change` that ended with `Uncertain`, read the session: if it has the new mark, the change was stored. If
    you repeat the call instead, it is refused if this change, or another one, was stored meanwhile. A session may end
    early, by a second or by a hundredth of its lifetime, because not every use moves its end time.
    """

    def _keys(self, name: bytes) -> list[bytes]:
        return [b"%b:s:%b" % (self._tag, name), b"%b:sessions" % self._tag, b"%b:callers" % self._tag]

    async def open(
        self, session_id: str, state: bytes, *, caller: bytes, mark: bytes, idle_ms: int, limit: int
    ) -> str | None:
        """Store a new session. See `SessionDirectory.open`."""
        name, short = encoded(session_id), hashlib.blake2b(caller, digest_size=_CALLER // 2).hexdigest()
        args = [name, b"%d" % idle_ms, state, mark, short, b"%d" % limit, self._bus]
        match await self._link.script(_SCRIPTS["session_open"], self._keys(name), args):
            case [b"full"]:
                raise StoreFull
            case [b"there"]:
                raise ValueError("a session with this id already exists")
            case [_, ended]:
                return decoded(ended)
            case _:
                return None

    async def read(self, session_id: str, *, idle_ms: int) -> StoredSession | None:
        """Return a stored session. Return `None` if it doesn't exist. See `SessionDirectory.read`."""
        name = encoded(session_id)
        found = await self._link.script(_SCRIPTS["session_read"], self._keys(name), [name, b"%d" % idle_ms])
        return None if found is None else StoredSession(*decode_columns("a session", found, SESSION))

    async def exists(self, session_id: str) -> bool:
        """Return whether a session with this id exists. See `SessionDirectory.exists`."""
        [found] = await self._link.pipeline([[b"EXISTS", self._keys(encoded(session_id))[0]]])
        return bool(found)

    async def change(self, session_id: str, state: bytes, *, expected_mark: bytes, mark: bytes, idle_ms: int) -> bool:
        """Replace the stored data of a session. See `SessionDirectory.change`."""
        name = encoded(session_id)
        args = [name, b"%d" % idle_ms, state, mark, expected_mark, self._bus]
        return bool(await self._link.script(_SCRIPTS["session_change"], self._keys(name), args))

    async def delete(self, session_id: str) -> bool:
        """Delete a stored session. See `SessionDirectory.delete`."""
        name = encoded(session_id)
        return bool(await self._link.script(_SCRIPTS["session_end"], self._keys(name), [name, self._bus]))


_EVENT_SCRIPTS: Final = load_scripts("events")
_PARTS: Final = (b"log", b"older", b"newest", b"finished")


class RedisEventLog(_SessionsPart[tuple[str, str]]):
    """Stores SSE events in Redis. See `EventLog`.

    An `append` that ended with `Uncertain` can be repeated: its events are stored once. If a `finish_dead` call that
    ended with `Uncertain` is repeated, it returns false if the first call, or another replica, has finished the stream.
    """

    def _keys(self, session_id: str) -> list[bytes]:
        name = encoded(session_id)
        return [b"%b:%b:%b" % (self._tag, part, name) for part in _PARTS]

    async def _call(self, script: str, session_id: str, stream: str, retention_ms: int, *args: Value) -> Any:
        values = [encoded(stream), b"%d" % retention_ms, *args]
        return await self._link.script(_EVENT_SCRIPTS[script], self._keys(session_id), values)

    async def _write(self, script: str, session_id: str, stream: str, retention_ms: int, *args: Value) -> Any:
        hint = encode_hint(session_id, stream)
        return await self._call(script, session_id, stream, retention_ms, self._bus, hint, *args)

    async def open(self, session_id: str, stream: str, *, holder: str, request_id: bytes, retention_ms: int) -> None:
        """Create an SSE stream in a session's event log. See `EventLog.open`."""
        if not await self._call("events_open", session_id, stream, retention_ms, encoded(holder), request_id):
            raise ValueError("the session already has an SSE stream with this name")

    async def take_over(self, session_id: str, stream: str, *, holder: str, retention_ms: int) -> StoredStream:
        """Make ``holder`` the only writer that may append events to the SSE stream. See `EventLog.take_over`.

        If the stream doesn't exist, create it.
        """
        state = await self._write("events_take", session_id, stream, retention_ms, encoded(holder))
        return decode_stored("a stream", partial(_stream, stream), state)

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
        numbers = [b"%d" % each for each in (limit, first, finish, note is not None)]
        args = [encoded(holder), *numbers, note or b"", *lines]
        appended = await self._write("events_append", session_id, stream, retention_ms, *args)
        if appended < 0:
            raise ValueError(f"cannot append event {first} to this SSE stream: earlier events are missing")
        return bool(appended)

    async def finish_dead(
        self, session_id: str, stream: str, *, dead_holder: str, line: bytes, limit: int, retention_ms: int
    ) -> bool:
        """Finish an SSE stream that only a dead replica could continue. See `EventLog.finish_dead`."""
        args = [encoded(dead_holder), b"%d" % limit, line]
        return bool(await self._write("events_finish_dead", session_id, stream, retention_ms, *args))

    async def read_after(self, session_id: str, stream: str, number: int, *, retention_ms: int) -> StoredEvents | None:
        """Return an SSE stream with its stored events after the event ``number``. See `EventLog.read_after`."""
        found = await self._call("events_after", session_id, stream, retention_ms, b"%d" % number)
        return None if found is None else decode_stored("a stream", partial(_events, stream, number), found)

    async def delete(self, session_id: str) -> None:
        """Delete all SSE streams of a session. See `EventLog.delete`."""
        await self._link.pipeline([[b"UNLINK", *self._keys(session_id)]])


def _stream(name: str, state: Sequence[Any]) -> StoredStream:
    holder, request_id, last, dropped, until, note = state
    holder, request_id, last, dropped, note, until = decode_columns(
        "a stream", (holder, request_id, last, dropped, note, until), STREAM
    )
    return StoredStream(name, decoded(holder), request_id, last, dropped, note, is_finished=until > 0)


def _events(name: str, number: int, found: Sequence[Any]) -> StoredEvents:
    state, lines = found
    stored = _stream(name, state)
    return StoredEvents(stored, max(number, stored.dropped) + 1, decode_columns("events", lines, LINES))


def encode_hint(session_id: str, stream: str) -> bytes:
    """Return the message that notifies all replicas that an SSE stream of a session has changed."""
    session = encoded(session_id)
    return b"l%d:%b%b" % (len(session), session, encoded(stream))


def decode_hint(message: bytes) -> tuple[str, str]:
    """Return the session id and the stream name in a message that `encode_hint` has made."""
    length, _, names = message[1:].partition(b":")
    return decoded(names[: int(length)]), decoded(names[int(length) :])
