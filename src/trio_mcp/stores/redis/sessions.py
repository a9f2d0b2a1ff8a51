"""RedisSessions keeps the legacy sessions of a fleet in Redis.

A session is a hash, which Redis deletes when the session was idle for too long. Beside all sessions stands one sorted
set of their ends, for counting. The set may say that a session has ended which has not, never the reverse:
the next reading of the session puts that right.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

from ...concurrency.contexts import asynccontextmanager
from ..decoding import SESSION, columns
from ..record_codec import encoded
from ..shared import StoredSession
from ..task_store import Gap, StoreFull, Watchers
from .link import Link, Script

# In all scripts of this folder, the first command that writes is one that a full Redis refuses, unless the script makes
# nothing bigger: then the script has changed nothing, and afterwards Redis refuses nothing in it.

_PRELUDE: Final = """
local session, ends, id, idle = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function last()
    redis.call('PEXPIRE', session, idle)
    redis.call('ZADD', ends, now + idle, id)
    if redis.call('PTTL', ends) < idle + 3600000 then
        redis.call('PEXPIRE', ends, idle + 3600000)
    end
end
"""

_OPEN: Final = Script(
    "session_open",
    _PRELUDE
    + """
if redis.call('EXISTS', session) == 1 then
    return 'there'
end
if redis.call('ZCOUNT', ends, now, '+inf') >= tonumber(ARGV[5]) then
    return 'full'
end
redis.call('HSET', session, 'facts', ARGV[3], 'mark', ARGV[4])
redis.call('ZREMRANGEBYSCORE', ends, '-inf', '(' .. string.format('%.0f', now))
last()
return 'open'
""",
)

_READ: Final = Script(
    "session_read",
    _PRELUDE
    + """
local found = redis.call('HMGET', session, 'facts', 'mark')
if not found[2] then
    return false
end
last()
return found
""",
)

_CHANGE: Final = Script(
    "session_change",
    _PRELUDE
    + """
if redis.call('HGET', session, 'mark') ~= ARGV[5] then
    return 0
end
redis.call('HSET', session, 'facts', ARGV[3], 'mark', ARGV[4])
last()
redis.call('PUBLISH', ARGV[6], 's' .. id)
return 1
""",
)

_END: Final = Script(
    "session_end",
    """
local was = redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[1])
if was == 1 then
    redis.call('PUBLISH', ARGV[2], 's' .. ARGV[1])
end
return was
""",
)


class RedisSessions:
    """A `SessionDirectory` with keys that begin with ``prefix``. Changes are told on the channel ``bus``, and come from
    there to ``watchers``.

    After a `change` that ended with `Uncertain`, a reading that shows the new mark proves the change; else the same
    call again is refused where the change, or another one, has happened meanwhile.
    """

    def __init__(self, link: Link, prefix: str, bus: str, watchers: Watchers[str]) -> None:
        self._link = link
        self._tag = b"{%b:s}" % prefix.encode()
        self._bus = bus
        self._watchers = watchers

    def _keys(self, name: bytes) -> list[bytes]:
        return [b"%b:s:%b" % (self._tag, name), b"%b:sessions" % self._tag]

    async def open(self, session_id: str, facts: bytes, *, mark: bytes, idle: int, most: int) -> None:
        """Keep a new session. See `SessionDirectory.open`."""
        name = encoded(session_id)
        match await self._link.script(_OPEN, self._keys(name), [name, b"%d" % idle, facts, mark, b"%d" % most]):
            case b"full":
                raise StoreFull
            case b"there":
                raise ValueError("there is a session with this id")
            case _:
                pass

    async def read(self, session_id: str, *, idle: int) -> StoredSession | None:
        """Return the session. See `SessionDirectory.read`."""
        name = encoded(session_id)
        found = await self._link.script(_READ, self._keys(name), [name, b"%d" % idle])
        return None if found is None else StoredSession(*columns("a session", found, SESSION))

    async def change(self, session_id: str, facts: bytes, *, was: bytes, mark: bytes, idle: int) -> bool:
        """Keep other facts of the session. See `SessionDirectory.change`."""
        name = encoded(session_id)
        args = [name, b"%d" % idle, facts, mark, was, self._bus]
        return bool(await self._link.script(_CHANGE, self._keys(name), args))

    async def end(self, session_id: str) -> bool:
        """Forget the session. See `SessionDirectory.end`."""
        name = encoded(session_id)
        return bool(await self._link.script(_END, self._keys(name), [name, self._bus]))

    @asynccontextmanager
    async def watch(self) -> AsyncGenerator[AsyncIterator[str | Gap]]:
        """Open a stream of hints. See `SessionDirectory.watch`."""
        with self._watchers.watch() as hints:
            yield hints
