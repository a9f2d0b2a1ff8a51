"""RedisChangeLog keeps in Redis the things that have changed on any replica, each by the number of its last change.

Numbers are microseconds of the clock of Redis, made to grow. A failover may lose the last numbers; all numbers behind
the failover are greater than the lost ones, so that a reader who has seen the lost ones misses nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from typing import Any, Final

import msgspec

from ....concurrency.contexts import asynccontextmanager
from ....stores.decoding import decode_stored
from ....stores.record_codec import decoded, encoded
from ....stores.shared import CHANGES_LIMIT, ChangeCursor, ChangeHint, ChangesSince
from ....stores.task_store import HINTS_LOST, HintQueues, HintsLost, UnreadableRecord
from .link import Link, Script

_KEEP: Final = 25 * 3_600_000
"""Milliseconds for which the log is kept when nobody notes or asks: a day and an hour."""
_HINT_BYTES_LIMIT: Final = 64 * 1024
"""Bytes of things that a hint tells. A reader asks for more."""
_ID_BYTES: Final = 6
_MOST_DIGITS: Final = 16

# `cut` is the number up to which things were forgotten. A new log has forgotten all that was before it.
_PRELUDE: Final = """
local log, things = KEYS[1], KEYS[2]
local found = redis.call('HMGET', log, 'id', 'last', 'cut')
local id, last, cut = found[1], tonumber(found[2] or 0) or 0, tonumber(found[3] or 0) or 0
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- Numbers far ahead of the clock, which no replica writes, would never advance.
if not (last <= now + 86400000000 and cut <= last) then
    id = false
end

local function text(number)
    return string.format('%.0f', number)
end

local function begin()
    id, last, cut = ARGV[1], now, now
    redis.call('HSET', log, 'id', id, 'last', text(last), 'cut', text(cut))
    redis.call('DEL', things)
end

local function touch()
    redis.call('PEXPIRE', log, ARGV[2])
    redis.call('PEXPIRE', things, ARGV[2] + 60000)
end
"""

_NOTE: Final = Script(
    "changes_note",
    _PRELUDE
    + """
if not id then
    begin()
end
local was = last
last = math.max(last + 1, now)
redis.call('HSET', log, 'last', text(last))
for each = 6, #ARGV do
    redis.call('ZADD', things, last, ARGV[each])
end
local excess = redis.call('ZCARD', things) - tonumber(ARGV[3])
if excess > 0 then
    local first = redis.call('ZRANGE', things, excess - 1, excess - 1, 'WITHSCORES')
    redis.call('ZREMRANGEBYRANK', things, 0, excess - 1)
    redis.call('HSET', log, 'cut', first[2])
end
touch()
redis.call('PUBLISH', ARGV[4], 'c' .. id .. '.' .. text(was) .. ' ' .. id .. '.' .. text(last) .. ' ' .. ARGV[5])
return 1
""",
)

_SINCE: Final = Script(
    "changes_since",
    _PRELUDE
    + """
if not id then
    begin()
end
touch()
local place = id .. '.' .. text(last)
if ARGV[3] == '' then
    return {place, 0}
end
local number = tonumber(ARGV[4])
if ARGV[3] ~= id or number > last or number < cut then
    return {place, 1}
end
return {place, 0, redis.call('ZRANGEBYSCORE', things, '(' .. text(number), '+inf')}
""",
)


class RedisChangeLog:
    """A `ChangeLog` with keys that begin with ``prefix``. Changes are told on the channel ``bus``, and come from
    there to ``watchers``.

    A log that nobody uses is forgotten after a day. After a `record` that ended with `Uncertain`, the same call again
    tells of the things once more, which readers have to bear in any case.
    """

    def __init__(self, link: Link, prefix: str, bus: str, watchers: HintQueues[ChangeHint]) -> None:
        self._link = link
        self._keys = [f"{{{prefix}:c}}:log", f"{{{prefix}:c}}:things"]
        self._bus = bus
        self._hint_queues = watchers

    async def record(self, changed: Collection[str]) -> None:
        """Note that things have changed. See `ChangeLog.record`."""
        if not changed:
            return
        things = [encoded(each) for each in changed]
        told = msgspec.msgpack.encode(things) if sum(map(len, things)) <= _HINT_BYTES_LIMIT else b""
        args = [_new_id(), b"%d" % _KEEP, b"%d" % CHANGES_LIMIT, self._bus, told, *things]
        await self._link.script(_NOTE, self._keys, args)

    async def read_since(self, cursor: ChangeCursor | None) -> ChangesSince:
        """Return the changes behind ``cursor``. See `ChangeLog.read_since`."""
        log, number = ("", 0) if cursor is None else _parse_cursor(cursor)
        args = [_new_id(), b"%d" % _KEEP, encoded(log), b"%d" % number]
        return decode_stored("the log of changes", _decode_changes, await self._link.script(_SINCE, self._keys, args))

    @asynccontextmanager
    async def watch(self) -> AsyncGenerator[AsyncIterator[ChangeHint | HintsLost]]:
        """Open a stream of hints. See `ChangeLog.watch`."""
        with self._hint_queues.watch() as hints:
            yield hints


def _new_id() -> bytes:
    return secrets.token_urlsafe(_ID_BYTES).encode()


def _decode_changes(reply: Any) -> ChangesSince:
    now, everything, *found = reply
    place = now.decode(errors="replace")
    try:
        things = [decoded(each) for each in found[0]] if found else []
    except UnreadableRecord:  # otherwise readers would never get past this position
        return ChangesSince(place, (), everything=True)
    return ChangesSince(place, things, bool(everything))


def _parse_cursor(cursor: ChangeCursor) -> tuple[str, int]:
    """Return the log and the number of a place; a log that never was for text that is no place."""
    log, _, number = cursor.partition(".")
    is_place = bool(log) and number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS
    return (log, int(number)) if is_place else ("?", 0)


def decode_change_hint(message: bytes) -> ChangeHint | HintsLost:
    """Return the contents of a message on the bus; `GAP` for a message without, since there was too much to tell."""
    was, place, told = message[1:].split(b" ", 2)
    if not told:
        return HINTS_LOST
    things = msgspec.msgpack.decode(told, type=list[bytes])
    return ChangeHint(was.decode(), place.decode(), [decoded(each) for each in things])
