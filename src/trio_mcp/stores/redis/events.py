"""RedisEvents keeps the events of legacy sessions in Redis, for clients that come back to any replica.

Of each session there are four keys. A hash has the state of each stream (``s<name>``), the lines (``l<number>:<name>``)
and the bytes of all lines. Two sorted sets say which line goes first, in the order of appending: ``older`` has the
lines that are not the newest of their streams, ``newest`` has the streams, by their newest lines. ``finished`` has the
streams that are finished, in that order. So a script looks at no lines but the ones to add, to drop or to return.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, Final

from ...concurrency.contexts import asynccontextmanager
from ..record_codec import decoded, encoded
from ..shared import MOST_FINISHED, StoredEvents, StoredStream
from ..task_store import Gap, Watchers
from .link import Link, Script, Value

# The state of a stream is an array. UNTIL is the time at which a finished stream is forgotten; 0 before its end.
_PRELUDE: Final = """
local log, older, newest, finished = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local name, keep = ARGV[1], tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local HOLDER, REQUEST_ID, LAST, DROPPED, UNTIL, NOTE = 1, 2, 3, 4, 5, 6

local function line(number, name)
    return 'l' .. number .. ':' .. name
end

local function load(name)
    local packed = redis.call('HGET', log, 's' .. name)
    return packed and cmsgpack.unpack(packed)
end

local function save(name, stream)
    redis.call('HSET', log, 's' .. name, cmsgpack.pack(stream))
end

local function forget(name, stream)
    local size = 0
    for number = stream[DROPPED] + 1, stream[LAST] do
        size = size + redis.call('HSTRLEN', log, line(number, name))
        redis.call('HDEL', log, line(number, name))
        redis.call('ZREM', older, number .. ':' .. name)
    end
    redis.call('HDEL', log, 's' .. name)
    redis.call('ZREM', newest, name)
    redis.call('ZREM', finished, name)
    redis.call('HINCRBY', log, 'size', -size)
end

local function is_over(stream)
    return stream[UNTIL] > 0 and stream[UNTIL] <= now
end

local function find(name)
    local stream = load(name)
    if stream and is_over(stream) then
        forget(name, stream)
        return false
    end
    return stream
end

local function begin(holder, request_id)
    local is_first = redis.call('EXISTS', log) == 0
    local stream = {holder, request_id, 0, 0, 0, ''}
    save(name, stream)
    if is_first then
        redis.call('DEL', older, newest, finished)
    end
    return stream
end

-- The log goes first, so that no set of a log that is gone is taken for one of the next.
local function touch()
    redis.call('PEXPIRE', log, keep)
    for _, key in ipairs({older, newest, finished}) do
        redis.call('PEXPIRE', key, keep + 60000)
    end
end

local function tell()
    redis.call('PUBLISH', ARGV[3], ARGV[4])
end
"""

_WRITING: Final = (
    """
local function put(stream, from, to)
    local place = tonumber(redis.call('HGET', log, 'next') or 0)
    local size = tonumber(redis.call('HGET', log, 'size') or 0)
    local number = stream[LAST]
    local before = redis.call('ZSCORE', newest, name)
    for each = from, to do
        if before then
            redis.call('ZADD', older, before, number .. ':' .. name)
        end
        number = number + 1
        redis.call('HSET', log, line(number, name), ARGV[each])
        size = size + #ARGV[each]
        before = place
        place = place + 1
    end
    if number > stream[LAST] then
        redis.call('HSET', log, 'next', place, 'size', size)
        redis.call('ZADD', newest, before, name)
        stream[LAST] = number
    end
end

local function finish(stream)
    stream[UNTIL] = now + keep
    save(name, stream)
    redis.call('ZADD', finished, time[1] * 1000000 + time[2], name)
    local excess = redis.call('ZCARD', finished) - """
    + str(MOST_FINISHED)
    + """
    for place, each in ipairs(redis.call('ZRANGE', finished, 0, 99)) do
        local other = load(each)
        if place > excess and not is_over(other) then
            break
        end
        forget(each, other)
    end
end

local function drop(number, name)
    local stream = load(name)
    local size = redis.call('HSTRLEN', log, line(number, name))
    redis.call('HDEL', log, line(number, name))
    stream[DROPPED] = tonumber(number)
    save(name, stream)
    return size
end

local function shrink(most)
    local size = tonumber(redis.call('HGET', log, 'size') or 0)
    local before = size
    while size > most do
        local oldest = redis.call('ZPOPMIN', older)[1]
        if oldest then
            size = size - drop(string.match(oldest, '^(%d+):(.*)$'))
        else
            local other = redis.call('ZPOPMIN', newest)[1]
            size = size - drop(load(other)[LAST], other)
        end
    end
    if size < before then
        redis.call('HSET', log, 'size', size)
    end
end
"""
)

_OPEN: Final = Script(
    "events_open",
    _PRELUDE
    + """
local stream = find(name)
if not stream then
    begin(ARGV[3], ARGV[4])
elseif cmsgpack.pack(stream) ~= cmsgpack.pack({ARGV[3], ARGV[4], 0, 0, 0, ''}) then
    return 0
end
touch()
return 1
""",
)

_TAKE: Final = Script(
    "events_take",
    _PRELUDE
    + """
local stream = find(name)
if not stream then
    stream = begin(ARGV[5], '')
elseif stream[UNTIL] == 0 then
    stream[HOLDER] = ARGV[5]
    save(name, stream)
end
touch()
tell()
return stream
""",
)

_APPEND: Final = Script(
    "events_append",
    _PRELUDE
    + _WRITING
    + """
local holder, most, first = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local is_finish, has_note, note = ARGV[8] == '1', ARGV[9] == '1', ARGV[10]
local last = first + #ARGV - 11
local stream = find(name)
if not stream or stream[HOLDER] ~= holder then
    return 0
end
if stream[UNTIL] > 0 then
    if not is_finish or last ~= stream[LAST] then
        return 0
    end
    touch()
    return 1
end
if first > stream[LAST] + 1 then
    return -1
end
if last >= stream[LAST] then
    put(stream, #ARGV + 1 - (last - stream[LAST]), #ARGV)
    if has_note then
        stream[NOTE] = note
    end
    save(name, stream)
    if is_finish then
        finish(stream)
    end
    shrink(most)
    tell()
end
touch()
return 1
""",
)

_FINISH_DEAD: Final = Script(
    "events_finish_dead",
    _PRELUDE
    + _WRITING
    + """
local stream = find(name)
if not stream or stream[HOLDER] ~= ARGV[5] or stream[UNTIL] > 0 then
    return 0
end
put(stream, 7, 7)
stream[HOLDER] = ''
finish(stream)
shrink(tonumber(ARGV[6]))
touch()
tell()
return 1
""",
)

_AFTER: Final = Script(
    "events_after",
    _PRELUDE
    + """
local stream = find(name)
if not stream then
    return false
end
touch()
local lines, number = {}, math.max(tonumber(ARGV[3]), stream[DROPPED])
while number < stream[LAST] do
    local fields = {}
    for each = number + 1, math.min(number + 1000, stream[LAST]) do
        fields[#fields + 1] = line(each, name)
    end
    for _, each in ipairs(redis.call('HMGET', log, unpack(fields))) do
        lines[#lines + 1] = each
    end
    number = number + #fields
end
return {stream, lines}
""",
)

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
        if not await self._call(_OPEN, session_id, stream, keep, encoded(holder), request_id):
            raise ValueError("the session has a stream with this name")

    async def take(self, session_id: str, stream: str, *, holder: str, keep: int) -> StoredStream:
        """Give the stream another holder. See `EventLog.take`."""
        return _stream(stream, await self._write(_TAKE, session_id, stream, keep, encoded(holder)))

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
        appended = await self._write(_APPEND, session_id, stream, keep, encoded(holder), *numbers, note or b"", *lines)
        if appended < 0:
            raise ValueError(f"events before number {first} of this stream are missing")
        return bool(appended)

    async def finish_dead(self, session_id: str, stream: str, *, dead: str, line: bytes, most: int, keep: int) -> bool:
        """Finish the stream of a dead holder. See `EventLog.finish_dead`."""
        return bool(await self._write(_FINISH_DEAD, session_id, stream, keep, encoded(dead), b"%d" % most, line))

    async def after(self, session_id: str, stream: str, number: int, *, keep: int) -> StoredEvents | None:
        """Return the events behind ``number``. See `EventLog.after`."""
        found = await self._call(_AFTER, session_id, stream, keep, b"%d" % number)
        if found is None:
            return None
        state, lines = found
        stored = _stream(stream, state)
        return StoredEvents(stored, max(number, stored.dropped) + 1, lines)

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
    return StoredStream(name, decoded(holder), request_id, last, dropped, note, is_finished=until > 0)


def hint(session_id: str, stream: str) -> bytes:
    """Return the message on the bus that a stream of a session has changed."""
    session = encoded(session_id)
    return b"l%d:%b%b" % (len(session), session, encoded(stream))


def hinted(message: bytes) -> tuple[str, str]:
    """Return the session and the stream of a message that `hint` made."""
    length, _, names = message[1:].partition(b":")
    return decoded(names[: int(length)]), decoded(names[int(length) :])
