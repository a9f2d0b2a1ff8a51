"""RedisReplayGuard and RedisRateLimits bound the use of values and the rates of calls, on all replicas together."""

from __future__ import annotations

import hashlib
from typing import Final

from .link import Link, Script


class RedisReplayGuard:
    """A `ReplayGuard` with keys that begin with ``prefix``.

    An `add` that ended with `Uncertain` may have been done: then the same call again returns false, although nobody
    else has used the value. So a caller takes `Uncertain` and `StoreDown` for "seen" and refuses the value; the client
    makes another one.
    """

    def __init__(self, link: Link, prefix: str) -> None:
        self._link = link
        self._prefix = prefix.encode()

    async def add(self, digest: bytes, *, ttl_ms: int) -> bool:
        """Remember ``digest``. See `ReplayGuard.add`."""
        key = b"%b:j:%b" % (self._prefix, digest.hex().encode())
        [added] = await self._link.pipeline([[b"SET", key, b"1", b"PX", b"%d" % ttl_ms, b"NX"]])
        return added is not None


# The generic cell rate algorithm, in microseconds: a bucket is kept as the time at which it is full again. A time that
# no bucket of this size can have, since somebody has set the clock back, is taken for an empty bucket.
_TAKE: Final = Script(
    "rate_take",
    """
local each, burst = ARGV[2] * 1000 / ARGV[1], tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local full = math.min(math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now), now + burst * each)
local wait = full + each - burst * each - now
if wait > 0 then
    return math.ceil(wait / 1000)
end
redis.call('SET', KEYS[1], string.format('%.17g', full + each), 'PX', math.ceil((full + each - now) / 1000))
return 0
""",
)


class RedisRateLimits:
    """A `RateLimits` with keys that begin with ``prefix``. A bucket is kept until the time at which the bucket is full;
    the names of buckets cannot be read in Redis.

    A `acquire` that ended with `Uncertain` may have taken a token; the same call again may take another one.
    """

    def __init__(self, link: Link, prefix: str) -> None:
        self._link = link
        self._prefix = prefix.encode()

    async def acquire(self, key: bytes, *, limit: int, period_ms: int, burst: int) -> int:
        """Take a token, or return the time until there is one. See `RateLimits.acquire`."""
        name = b"%b:b:%b" % (self._prefix, hashlib.sha256(key).hexdigest().encode())
        args = [b"%d" % each for each in (limit, period_ms, burst)]
        return int(await self._link.script(_TAKE, [name], args))
