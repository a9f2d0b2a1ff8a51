"""RedisSessionDirectory keeps the legacy sessions of a fleet in Redis.

A session is a hash, which Redis deletes when the session was idle for too long. There are three kinds of sorted sets:

- one has the end times of all sessions
- one for each caller has the end times of its sessions
- one has the number of sessions of each caller

A session that was never read or changed has a score below 0, so that it is found before all others. A set may show a
live session as ended, never the reverse. The next read of the session corrects that. A session
without a caller, which an earlier version has opened, counts as ended.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

from ....concurrency.contexts import asynccontextmanager
from ....stores.decoding import SESSION, decode_columns
from ....stores.record_codec import decoded, encoded
from ....stores.shared import StoredSession
from ....stores.task_store import HintQueues, HintsLost, StoreFull
from .link import Link, Script

# In all scripts of this folder, the first command that writes is one that a full Redis refuses, unless the script makes
# nothing bigger: then the script has changed nothing, and afterwards Redis refuses nothing in it.

_CALLER: Final = 32
"""Characters of a caller's name in keys and in the set of all end times, where a session id follows the name."""

# The keys of the callers' sets, and of sessions that are ended for others, are made from ``ends`` and ``session``. One
# hash tag keeps all of them in one slot.
_PRELUDE: Final = """
local call, session, ends, callers, id = redis.call, KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local UNUSED = 2 ^ 43
local function of(caller)
    return ends .. ':' .. caller
end
local function count(caller)
    local held = call('ZCARD', of(caller))
    if held == 0 then
        call('ZREM', callers, caller)
    else
        call('ZADD', callers, held, caller)
    end
end
-- True if the session was never used, or if a use would move its end by a second or a hundredth of ``idle``. Otherwise
-- the end stays, since moving the end is most of the cost of a use.
local function is_stale(caller, idle)
    local left = tonumber(call('ZSCORE', ends, caller .. id) or 0) - now
    return left > idle or left < idle - math.min(1000, idle / 100)
end
local function last(caller, idle, score)
    call('PEXPIRE', session, idle)
    call('ZADD', ends, score, caller .. id)
    if call('ZADD', of(caller), score, id) == 1 then
        count(caller)
    end
    for _, set in ipairs({ends, of(caller), callers}) do
        if call('PTTL', set) < idle + 3600000 then
            call('PEXPIRE', set, idle + 3600000)
        end
    end
end
local function leave(caller, name)
    call('ZREM', ends, caller .. name)
    call('ZREM', of(caller), name)
    count(caller)
end
"""

_OPEN: Final = Script(
    "session_open",
    _PRELUDE
    + f"""
if call('EXISTS', session) == 1 then
    return {{'there'}}
end
local idle, caller, most, bus = tonumber(ARGV[2]), ARGV[5], tonumber(ARGV[6]), ARGV[7]
call('HSET', session, 'facts', ARGV[3], 'mark', ARGV[4], 'caller', caller)
local function below(score)
    return '(' .. string.format('%.0f', score)
end
local function split(member)
    return string.sub(member, 1, {_CALLER}), string.sub(member, {_CALLER + 1})
end
local function sweep(least, most)
    for _, member in ipairs(call('ZRANGEBYSCORE', ends, least, most, 'LIMIT', 0, 100)) do
        leave(split(member))
    end
end
sweep('-inf', below(now - UNUSED))
sweep(0, below(now))

local function alive(set)
    return call('ZCOUNT', set, now - UNUSED, '(0') + call('ZCOUNT', set, now, '+inf')
end
local function unused(set)
    return call('ZRANGEBYSCORE', set, now - UNUSED, '(0', 'LIMIT', 0, 1)[1]
end
local function first(set)
    return unused(set) or call('ZRANGEBYSCORE', set, now, '+inf', 'LIMIT', 0, 1)[1]
end
local function biggest()
    for _ = 1, 100 do
        local top = call('ZREVRANGE', callers, 0, 0, 'WITHSCORES')
        local held = top[1] and alive(of(top[1])) or 0
        if held == tonumber(top[2] or 0) then
            return top[1], held
        end
        call('ZREMRANGEBYSCORE', of(top[1]), '-inf', below(now - UNUSED))
        call('ZREMRANGEBYSCORE', of(top[1]), 0, below(now))
        count(top[1])
    end
    return nil, 0
end
local function place()
    if alive(of(caller)) > 0 then
        return caller, unused(of(caller))
    end
    local top, held = biggest()
    if held > 1 then
        return top, first(of(top))
    end
    local member = unused(ends)
    if member then
        return split(member)
    end
end

local total, ended = alive(ends), nil
if alive(of(caller)) + 1 > most - total then
    local who, name
    if total <= most then
        who, name = place()
    end
    if not name then
        call('DEL', session)
        return {{'full'}}
    end
    leave(who, name)
    call('DEL', string.sub(session, 1, #session - #id) .. name)
    call('PUBLISH', bus, 's' .. name)
    ended = name
end
last(caller, idle, now + idle - UNUSED)
return {{'open', ended}}
""",
)

_READ: Final = Script(
    "session_read",
    _PRELUDE
    + """
local idle, found = tonumber(ARGV[2]), call('HMGET', session, 'facts', 'mark', 'caller')
if not (found[2] and found[3]) then
    return false
end
if is_stale(found[3], idle) then
    last(found[3], idle, now + idle)
end
return {found[1], found[2]}
""",
)

_CHANGE: Final = Script(
    "session_change",
    _PRELUDE
    + """
local idle, found = tonumber(ARGV[2]), call('HMGET', session, 'mark', 'caller')
if found[1] ~= ARGV[5] or not found[2] then
    return 0
end
call('HSET', session, 'facts', ARGV[3], 'mark', ARGV[4])
if is_stale(found[2], idle) then
    last(found[2], idle, now + idle)
end
call('PUBLISH', ARGV[6], 's' .. id)
return 1
""",
)

_END: Final = Script(
    "session_end",
    _PRELUDE
    + """
local caller = call('HGET', session, 'caller')
if not caller and call('EXISTS', session) == 0 then
    return 0
end
call('DEL', session)
if caller then
    leave(caller, id)
end
call('PUBLISH', ARGV[2], 's' .. id)
return 1
""",
)


class RedisSessionDirectory:
    """A `SessionDirectory` with keys that begin with ``prefix``. Changes are told on the channel ``bus``, and come from
    there to ``watchers``.

    After a `change` that ended with `Uncertain`, a reading that shows the new mark proves the change; else the same
    call again is refused where the change, or another one, has happened meanwhile. A session may end early, by a second
    or a hundredth of its time, since not every use moves the end.
    """

    def __init__(self, link: Link, prefix: str, bus: str, watchers: HintQueues[str]) -> None:
        self._link = link
        self._tag = b"{%b:s}" % prefix.encode()
        self._bus = bus
        self._hint_queues = watchers

    def _keys(self, name: bytes) -> list[bytes]:
        return [b"%b:s:%b" % (self._tag, name), b"%b:sessions" % self._tag, b"%b:callers" % self._tag]

    async def open(
        self, session_id: str, state: bytes, *, caller: bytes, mark: bytes, idle_ms: int, limit: int
    ) -> str | None:
        """Keep a new session. See `SessionDirectory.open`."""
        name, short = encoded(session_id), hashlib.blake2b(caller, digest_size=_CALLER // 2).hexdigest()
        args = [name, b"%d" % idle_ms, state, mark, short, b"%d" % limit, self._bus]
        match await self._link.script(_OPEN, self._keys(name), args):
            case [b"full"]:
                raise StoreFull
            case [b"there"]:
                raise ValueError("there is a session with this id")
            case [_, ended]:
                return decoded(ended)
            case _:
                return None

    async def read(self, session_id: str, *, idle_ms: int) -> StoredSession | None:
        """Return the session. See `SessionDirectory.read`."""
        name = encoded(session_id)
        found = await self._link.script(_READ, self._keys(name), [name, b"%d" % idle_ms])
        return None if found is None else StoredSession(*decode_columns("a session", found, SESSION))

    async def exists(self, session_id: str) -> bool:
        """Return whether there is a session with this id. See `SessionDirectory.exists`."""
        [found] = await self._link.pipeline([[b"EXISTS", self._keys(encoded(session_id))[0]]])
        return bool(found)

    async def change(self, session_id: str, state: bytes, *, expected_mark: bytes, mark: bytes, idle_ms: int) -> bool:
        """Keep other facts of the session. See `SessionDirectory.change`."""
        name = encoded(session_id)
        args = [name, b"%d" % idle_ms, state, mark, expected_mark, self._bus]
        return bool(await self._link.script(_CHANGE, self._keys(name), args))

    async def delete(self, session_id: str) -> bool:
        """Forget the session. See `SessionDirectory.delete`."""
        name = encoded(session_id)
        return bool(await self._link.script(_END, self._keys(name), [name, self._bus]))

    @asynccontextmanager
    async def watch(self) -> AsyncGenerator[AsyncIterator[str | HintsLost]]:
        """Open a stream of hints. See `SessionDirectory.watch`."""
        with self._hint_queues.watch() as hints:
            yield hints
