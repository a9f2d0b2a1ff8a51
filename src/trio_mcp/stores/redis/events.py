"""RedisEvents keeps the events of legacy sessions in Redis, for clients that come back to any replica."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from functools import partial
from typing import Any, Final

from ...concurrency.contexts import asynccontextmanager
from ..decoding import LINES, STREAM, columns, decode_stored
from ..record_codec import decoded, encoded
from ..shared import StoredEvents, StoredStream
from ..task_store import Gap, Watchers
from . import event_scripts as scripts
from .link import Link, Script, Value

_PARTS: Final = (b"log", b"older", b"newest", b"finished")


class RedisEvents:
    """An `EventLog` with keys that begin with ``prefix``. Changes are told on the channel ``bus``, and come from
    there to ``watchers``.

    After an `append` that ended with `Uncertain`, the same call again leaves the events of one call. After such a
    `finish_dead`, the same call again returns false where the first call, or another replica, has finished the stream.
    """

    def __init__(self, link: Link, prefix: str, bus: str, watchers: Watchers[tuple[str, str]]) -> None:
        self._link = link
        self._tag = b"{%b:s}" % prefix.encode()
        self._bus = bus
        self._watchers = watchers

    def _keys(self, session_id: str) -> list[bytes]:
        name = encoded(session_id)
        return [b"%b:%b:%b" % (self._tag, part, name) for part in _PARTS]

    async def _call(self, script: Script, session_id: str, stream: str, keep: int, *args: Value) -> Any:
        return await self._link.script(script, self._keys(session_id), [encoded(stream), b"%d" % keep, *args])

    async def _write(self, script: Script, session_id: str, stream: str, keep: int, *args: Value) -> Any:
        return await self._call(script, session_id, stream, keep, self._bus, hint(session_id, stream), *args)

    async def open(self, session_id: str, stream: str, *, holder: str, request_id: bytes, keep: int) -> None:
        """Begin a stream. See `EventLog.open`."""
        if not await self._call(scripts.OPEN, session_id, stream, keep, encoded(holder), request_id):
            raise ValueError("the session has a stream with this name")

    async def take(self, session_id: str, stream: str, *, holder: str, keep: int) -> StoredStream:
        """Give the stream another holder. See `EventLog.take`."""
        state = await self._write(scripts.TAKE, session_id, stream, keep, encoded(holder))
        return decode_stored("a stream", partial(_stream, stream), state)

    async def append(
        self,
        session_id: str,
        stream: str,
        *,
        holder: str,
        first: int,
        lines: Sequence[bytes],
        most: int,
        keep: int,
        note: bytes | None = None,
        finish: bool = False,
    ) -> bool:
        """Append events to the stream. See `EventLog.append`."""
        numbers = [b"%d" % each for each in (most, first, finish, note is not None)]
        appended = await self._write(
            scripts.APPEND, session_id, stream, keep, encoded(holder), *numbers, note or b"", *lines
        )
        if appended < 0:
            raise ValueError(f"events before number {first} of this stream are missing")
        return bool(appended)

    async def finish_dead(self, session_id: str, stream: str, *, dead: str, line: bytes, most: int, keep: int) -> bool:
        """Finish the stream of a dead holder. See `EventLog.finish_dead`."""
        return bool(await self._write(scripts.FINISH_DEAD, session_id, stream, keep, encoded(dead), b"%d" % most, line))

    async def after(self, session_id: str, stream: str, number: int, *, keep: int) -> StoredEvents | None:
        """Return the events behind ``number``. See `EventLog.after`."""
        found = await self._call(scripts.AFTER, session_id, stream, keep, b"%d" % number)
        return None if found is None else decode_stored("a stream", partial(_events, stream, number), found)

    async def forget(self, session_id: str) -> None:
        """Forget all streams of the session. See `EventLog.forget`."""
        await self._link.pipeline([[b"UNLINK", *self._keys(session_id)]])

    @asynccontextmanager
    async def watch(self) -> AsyncGenerator[AsyncIterator[tuple[str, str] | Gap]]:
        """Open a stream of hints. See `EventLog.watch`."""
        with self._watchers.watch() as hints:
            yield hints


def _stream(name: str, state: Sequence[Any]) -> StoredStream:
    holder, request_id, last, dropped, until, note = state
    holder, request_id, last, dropped, note, until = columns(
        "a stream", (holder, request_id, last, dropped, note, until), STREAM
    )
    return StoredStream(name, decoded(holder), request_id, last, dropped, note, is_finished=until > 0)


def _events(name: str, number: int, found: Sequence[Any]) -> StoredEvents:
    state, lines = found
    stored = _stream(name, state)
    return StoredEvents(stored, max(number, stored.dropped) + 1, columns("events", lines, LINES))


def hint(session_id: str, stream: str) -> bytes:
    """Return the message on the bus that a stream of a session has changed."""
    session = encoded(session_id)
    return b"l%d:%b%b" % (len(session), session, encoded(stream))


def hinted(message: bytes) -> tuple[str, str]:
    """Return the session and the stream of a message that `hint` made."""
    length, _, names = message[1:].partition(b":")
    return decoded(names[: int(length)]), decoded(names[int(length) :])
