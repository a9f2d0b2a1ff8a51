"""RedisStorage: a storage in Redis that the replicas of a server share."""

from __future__ import annotations

import hashlib
import logging
import secrets as randomness
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from functools import partial
from itertools import count
from typing import Final
from urllib.parse import quote

import trio

from ....concurrency.contexts import asynccontextmanager
from ....concurrency.nurseries import open_service_nursery
from ....concurrency.time_limits import growing_delay
from ....concurrency.wakeups import ChangeSignal
from ....stores.record_codec import decode_columns, decode_stored, decoded
from ....stores.sealing import check_secrets
from ....stores.shared import SECRET_BYTES, ChangeHint, Replica, new_replica_id
from ....stores.task_store import HINTS_LOST, HintQueues, HintsLost, UnreadableRecord
from ...fleet import FleetStorage
from .address import parse_url
from .client import load_scripts
from .link import ChannelMessage, Link, open_link
from .messages import RedisChangeLog, RedisCourier, decode_change_hint
from .sessions import RedisEventLog, RedisSessionDirectory, decode_hint
from .task_store import RedisTaskStore

logger = logging.getLogger("trio_mcp")

_LAYOUT: Final = 1
"""Version of the keys, the scripts and the messages. Replicas with different layouts share no data."""
_PREFIX: Final = "trio-mcp"
_SAFE_EVICTION_POLICY: Final = b"noeviction"
_FIRST_DELAY: Final = 0.05
_LONGEST_DELAY: Final = 1.0
_CHECK_INTERVAL: Final = 10.0
"""Seconds between two checks of the shared secret, in case a running Redis was emptied."""
_SCRIPTS: Final = load_scripts("storage")


class RedisStorage(FleetStorage):
    """A shared storage in Redis 7 or Valkey, for any number of replicas on any machines.

    Addresses are ``redis://HOST:PORT/DB``, ``unix:///PATH?db=DB``, ``redis+cluster://HOST:PORT,HOST:PORT`` and
    ``redis+sentinel://HOST:PORT,HOST:PORT/SERVICE?db=DB``, with ``USER:PASSWORD@`` before the host. For TLS, write
    ``rediss`` in place of ``redis``.

    The data is as safe as Redis is configured to keep it. With a ``maxmemory-policy`` other than ``noeviction``, Redis
    may drop any data at any time, and an error is logged. Every key except the secret expires when no replica needs it
    any more.

    All replicas share one secret, which the first replica stores in Redis. If Redis is emptied, running replicas keep
    the secret, and store it again for replicas that start later. Only a replica that starts before that has another
    secret. Data that clients carry between this replica and the others is then refused, and an error is logged, until
    you restart this replica or all others.

    Args:
        url: The address of Redis.
        prefix: Prefix of all keys and channels; by default ``trio-mcp``. A colon and the server's name follow it. Give
            deployments of one server that share a Redis different prefixes.
        ssl_context: Used for TLS.
        limit: Seconds after which a call fails if Redis doesn't answer.

    Raises:
        ValueError: The address or the prefix is invalid.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        limit: float = 1.0,
    ) -> None:
        parse_url(url, ssl_context)  # raise the error for an invalid URL at once, and not only in `join`
        self._url = url
        self._prefix = _PREFIX if prefix is None else prefix
        if "{" in self._prefix or "}" in self._prefix:
            raise ValueError("prefix must not contain { or }: braces in a key choose its hash slot in a Redis cluster")
        self._ssl_context = ssl_context
        self._limit = limit

    @asynccontextmanager
    async def join(self, name: str, secrets: Sequence[bytes] = ()) -> AsyncGenerator[Replica]:
        """Register a new replica of the server ``name``. See `SharedStorage.join`."""
        check_secrets(secrets)
        prefix = f"{self._prefix}:{quote(name, safe='', errors='surrogatepass')}:{_LAYOUT}"
        replica = new_replica_id()
        open_one = partial(open_link, self._url, limit=self._limit, prefix=prefix, ssl_context=self._ssl_context)
        async with open_one() as link:
            secret = _SharedSecret(link, f"{prefix}:secret")
            await secret.agree(patience=self._limit)
            await _check_policy(link)
            courier = RedisCourier(link, prefix, replica)
            looks = ChangeSignal(_CHECK_INTERVAL)
            bus = Bus(f"{prefix}:bus", courier, looks.notify)
            async with (
                link.subscribe([bus.channel, courier.channel]) as messages,
                open_one(is_quiet=True) as signs,
                open_service_nursery("the replica has left") as nursery,
            ):
                # Heartbeats and leases use a separate link to Redis, so that they don't wait behind large results.
                courier.heartbeat_link = signs
                with trio.move_on_after(self._limit):
                    await signs.wait_until_up()
                nursery.start_soon(bus.run, messages)
                nursery.start_soon(secret.maintain, looks)
                yield Replica(
                    id=replica,
                    secret=secret.value,
                    tasks=RedisTaskStore(link, prefix.encode(), bus.channel.encode(), bus.tasks, secrets, leases=signs),
                    sessions=RedisSessionDirectory(link, prefix, bus.channel, bus.sessions),
                    events=RedisEventLog(link, prefix, bus.channel, bus.events),
                    changes=RedisChangeLog(link, prefix, bus.channel, bus.changes),
                    courier=courier,
                    replay_guard=RedisReplayGuard(link, prefix),
                    rate_limits=RedisRateLimits(link, prefix),
                    # Replicas don't subscribe to changes of the state that is stored for callers.
                    # So these changes are published on a channel without subscribers.
                    state=RedisSessionDirectory(link, f"{prefix}:state", f"{prefix}:state:bus", HintQueues()),
                    counts=_LinkCounters(link, signs),
                )


class _LinkCounters:
    """The metrics of a replica's two links to Redis.

    ``link`` is the link that also logs outages and has the subscriptions.
    """

    def __init__(self, link: Link, signs: Link) -> None:
        self._link = link
        self._signs = signs

    @property
    def is_up(self) -> bool:
        return self._link.is_up

    @property
    def round_trips(self) -> int:
        return self._link.round_trips + self._signs.round_trips

    @property
    def reconnects(self) -> int:
        return self._link.reconnects

    @property
    def hints_lost(self) -> int:
        return self._link.gaps

    @property
    def uncertain(self) -> int:
        return self._link.uncertain + self._signs.uncertain


class _SharedSecret:
    """The random secret that all replicas share, stored in Redis under ``key``."""

    def __init__(self, link: Link, key: str) -> None:
        self._link = link
        self._key = key
        self.value = randomness.token_bytes(SECRET_BYTES)
        self._other: bytes | None = None
        """The last different secret that was reported in the log."""

    async def agree(self, *, patience: float) -> None:
        """Read from Redis the secret that all replicas share. If Redis has no secret, store this replica's secret
        there.

        Waits until Redis is available.

        Logs a warning if Redis is unavailable for more than ``patience`` seconds; not if only this process starts
        slowly.
        """
        begun, is_told = trio.current_time(), False
        for attempt in count(1):
            try:
                self.value = await self._read_or_store()
            except OSError as error:
                if not is_told and self._link.is_lost and trio.current_time() - begun >= patience:
                    logger.warning("this replica waits until Redis is available: %s", error)
                    is_told = True
            else:
                break
            await trio.sleep(growing_delay(attempt, first=_FIRST_DELAY, longest=_LONGEST_DELAY))
        if is_told:
            logger.warning("this replica no longer waits: Redis is available")

    async def maintain(self, looks: ChangeSignal) -> None:
        """Check regularly that the replicas' shared secret is still in Redis, until cancelled. If it is missing, store
        it again."""
        while True:
            await looks.next_poll()
            try:
                kept = await self._read_or_store()
            except OSError as error:
                # Don't log a warning: the `Link` logs outages of Redis.
                # This loop soon tries again to read the replicas' shared secret.
                logger.debug("could not read the shared secret: %s", error)
                continue
            if kept not in (self.value, self._other):
                logger.error(
                    "Redis was emptied, and another replica has stored another secret there: data that clients carry"
                    " between the two is refused; restart one of them"
                )
            self._other = kept

    async def _read_or_store(self) -> bytes:
        """Return the shared secret that is stored in Redis. If no secret is stored, store this replica's secret
        first."""
        [kept] = decode_columns(
            "the shared secret", await self._link.pipeline([["GET", self._key]]), tuple[bytes | None]
        )
        if kept is None or len(kept) != SECRET_BYTES:  # the stored secret is missing or invalid
            put = await self._link.script(_SCRIPTS["secret_put"], [self._key], [self.value])
            [kept] = decode_columns("the shared secret", [put], tuple[bytes])
        return kept


async def _check_policy(link: Link) -> None:
    """Log an error if Redis may evict keys when its memory is full, because any data could then be lost."""
    try:
        answers = await link.pipeline([["CONFIG", "GET", "maxmemory-policy"]])
        [settings] = decode_columns("the settings of Redis", answers, tuple[dict[bytes, bytes]])
    except OSError as error:  # most hosted Redis services don't allow CONFIG
        logger.debug("could not read the maxmemory-policy of Redis: %s", error)
        return
    policy = settings.get(b"maxmemory-policy", _SAFE_EVICTION_POLICY)
    if policy != _SAFE_EVICTION_POLICY:
        logger.error(
            "Redis drops data when its memory is full, so any data may be lost at any time: its"
            " maxmemory-policy must be noeviction, not %s",
            policy.decode(errors="replace"),
        )


class Bus:
    """Distributes the messages that this replica receives from Redis.

    Change notifications on ``channel`` go to the readers that watch for them, and messages to this replica go to
    ``courier``.

    Calls ``on_gap`` as well if messages may have been lost, for example because Redis was unavailable.

    Each replica has one subscription, to the bus of all replicas and to the channel of its own messages. A message on
    the bus begins with ``t`` for the id of a task, ``s`` for the id of a session, ``l`` for a stream in the event log,
    and ``c`` for changes. Messages with other letters come from later versions and are ignored.
    """

    def __init__(self, channel: str, courier: RedisCourier, on_gap: Callable[[], None]) -> None:
        self.channel: Final = channel
        self._courier = courier
        self._on_hints_lost = on_gap
        self.tasks = HintQueues[str]()
        self.sessions = HintQueues[str]()
        self.events = HintQueues[tuple[str, str]]()
        self.changes = HintQueues[ChangeHint]()

    async def run(self, messages: AsyncIterator[ChannelMessage | HintsLost]) -> None:
        """Distribute the messages from Redis to their readers, until cancelled."""
        async for message in messages:
            if isinstance(message, HintsLost):
                self._notify_hints_lost()
                self._on_hints_lost()
            elif message.channel == self._courier.channel:
                self._courier.on_message(message.data)
            else:
                self._read(message.data)

    def _read(self, data: bytes) -> None:
        try:
            decode_stored("a hint", self._hint, data)
        except UnreadableRecord as error:  # no replica sends an invalid message
            logger.warning("ignored an invalid hint: %s", error)
            self._notify_hints_lost()

    def _hint(self, data: bytes) -> None:
        match data[:1]:
            case b"t":
                self.tasks.notify([decoded(data[1:])])
            case b"s":
                self.sessions.notify([decoded(data[1:])])
            case b"l":
                self.events.notify([decode_hint(data)])
            case b"c":
                self.changes.notify([decode_change_hint(data)])
            case kind:
                logger.debug("a hint of an unknown kind was ignored: %r", kind)

    def _notify_hints_lost(self) -> None:
        for watchers in (self.tasks, self.sessions, self.events, self.changes):
            watchers.notify([HINTS_LOST])
        self._courier.on_message(HINTS_LOST)


class RedisReplayGuard:
    """Stores, in Redis, values that may be used only once, in keys that begin with ``prefix``. See `ReplayGuard`.

    An `add` that ended with `Uncertain` may have stored the value. If it is repeated, it may return false although the
    value wasn't used before. Therefore treat `Uncertain` and `StoreDown` as "already used" and refuse the value; the
    client then makes a new one.
    """

    def __init__(self, link: Link, prefix: str) -> None:
        self._link = link
        self._prefix = prefix.encode()

    async def add(self, digest: bytes, *, ttl_ms: int) -> bool:
        """Store ``digest`` as used, and return whether it is new. See `ReplayGuard.add`."""
        key = b"%b:j:%b" % (self._prefix, digest.hex().encode())
        [added] = await self._link.pipeline([[b"SET", key, b"1", b"PX", b"%d" % ttl_ms, b"NX"]])
        return added is not None


class RedisRateLimits:
    """Stores the token buckets of rate limits in Redis, in keys that begin with ``prefix``. See `RateLimits`.

    A bucket is stored until it is full. Its name is stored as a hash, so it can't be read in Redis. An `acquire` that
    ended with `Uncertain` may have taken a token; if it is repeated, it may take another one.
    """

    def __init__(self, link: Link, prefix: str) -> None:
        self._link = link
        self._prefix = prefix.encode()

    async def acquire(self, key: bytes, *, limit: int, period_ms: int, burst: int) -> int:
        """Take a token from the rate limit bucket ``key``, and return 0. If the bucket is empty, return the
        milliseconds to wait.

        See `RateLimits.acquire`.
        """
        name = b"%b:b:%b" % (self._prefix, hashlib.sha256(key).hexdigest().encode())
        args = [b"%d" % each for each in (limit, period_ms, burst)]
        return int(await self._link.script(_SCRIPTS["rate_take"], [name], args))
