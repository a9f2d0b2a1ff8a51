"""RedisCourier carries letters between replicas by the channels of Redis, and keeps their signs of life.

A letter goes out on the channel of its reader, and waits beside in a list of its reader, for a few seconds: a reader
whose subscription was lost finds there what came meanwhile. A long letter waits in a key of its own, and the channel
and the list have its name alone, since Redis ends the connection of a reader for whom too much is on the way.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from typing import Final

import trio

from ...concurrency.contexts import asynccontextmanager
from ..decoding import LINES, columns
from ..record_codec import encoded
from ..shared import MAX_LETTER
from ..task_store import GAP, Gap, Hints
from .link import Link, Script, Value

logger = logging.getLogger("trio_mcp")

_MOST_TOLD: Final = 4 * 1024
"""Bytes of the longest letter that goes through the channel and the list themselves."""
_MOST_LISTED: Final = 1000
"""Letters in the list of one reader, so that a list has 4 MiB at most."""
_LISTED: Final = 10_000
"""Milliseconds for which a letter is listed: longer than a lost subscription takes to be noticed and made again."""
_KEEP: Final = 30_000
"""Milliseconds for which a long letter waits for its reader."""
_READ_AGAIN: Final = 0.25
"""Seconds until the list is read again that could not be read."""
_LAST_WORDS: Final = 1.0
_ID_BYTES: Final = 9
_WHOLE, _IN_KEY = b"w", b"k"
"""The first byte of a message: the letter follows, or its name."""

# The list is a sorted set by time: a copy of a letter takes the place of the one before.
_POST: Final = Script(
    "letter_post",
    """
local list, channel, message = KEYS[1], ARGV[1], ARGV[2]
local most, listed = tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if KEYS[2] then
    redis.call('SET', KEYS[2], ARGV[5], 'PX', ARGV[6])
end
redis.call('ZADD', list, now, message)
redis.call('ZREMRANGEBYSCORE', list, '-inf', now - listed)
redis.call('ZREMRANGEBYRANK', list, 0, -most - 1)
redis.call('PEXPIRE', list, listed)
redis.call('PUBLISH', channel, message)
return 1
""",
)

_READ: Final = Script(
    "letters_read",
    """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
return redis.call('ZRANGEBYSCORE', KEYS[1], now - tonumber(ARGV[1]), '+inf')
""",
)


class RedisCourier:
    """A `Courier` for ``replica``, with keys and channels that begin with ``prefix``. `on_message` is called with each
    message on ``channel``, and `on_gap` where messages may have been lost.

    `post` raises `StoreDown` and `Uncertain`; after the second, the letter may have gone out. Letters that come while
    no mailbox is open are lost. After a gap, the letters of the last seconds come, perhaps once more.
    """

    def __init__(self, link: Link, prefix: str, replica: str) -> None:
        self._link = link
        self._prefix = prefix.encode()
        self._letters: Hints[bytes] | None = None
        self._replica = replica
        self.channel: Final = f"{prefix}:r:{replica}"
        """The channel of the letters to this replica."""

    def _alive(self, replica: str) -> bytes:
        # With the tag, all signs of life are in one slot.
        return b"{%b:alive}:%b" % (self._prefix, encoded(replica))

    async def post(self, replica: str, letter: bytes, *, number: int | None = None) -> None:
        """Send a letter. See `Courier.post`. Raises `ValueError` for one that is too long."""
        if len(letter) > MAX_LETTER:
            raise ValueError(f"a letter has at most {MAX_LETTER} bytes, not {len(letter)}")
        base = b"%b:r:%b" % (self._prefix, encoded(replica))
        keys, args = [_list_of(base)], list[Value]()
        if len(letter) <= _MOST_TOLD:
            message = _WHOLE + letter
        else:
            text = secrets.token_urlsafe(_ID_BYTES) if number is None else f"{self._replica}.{number}"
            name = text.encode()
            message = _IN_KEY + name
            keys.append(_key_of(base, name))
            args += [letter, _KEEP]
        await self._link.script(_POST, keys, [base, message, _MOST_LISTED, _LISTED, *args])

    @asynccontextmanager
    async def mailbox(self) -> AsyncGenerator[AsyncIterator[bytes | Gap]]:
        """Open the stream of the letters to this replica. See `Courier.mailbox`."""
        if self._letters is not None:
            raise RuntimeError("the mailbox of this replica is open already")
        self._letters, base = Hints[bytes](), encoded(self.channel)
        try:
            yield _Mailbox(self._link, base, self._letters)
        finally:
            self._letters = None
            with trio.move_on_after(_LAST_WORDS, shield=True):
                try:
                    await self._link.pipeline([[b"DEL", _list_of(base)]])
                except OSError as error:  # the list goes by itself
                    logger.debug("letters that nobody reads could not be deleted: %s", error)

    def on_message(self, message: bytes) -> None:
        """Put the letter of a message into the mailbox, if one is open."""
        if self._letters is not None:
            self._letters.tell(message)

    def on_gap(self) -> None:
        """Tell the reader of the mailbox that letters may have been lost."""
        if self._letters is not None:
            self._letters.tell(GAP)

    async def live(self, *, lease: int) -> bool:
        """Count as alive. See `Courier.live`."""
        [before] = await self._link.pipeline([[b"SET", self._alive(self._replica), b"1", b"PX", b"%d" % lease, b"GET"]])
        return before is not None

    async def leave(self) -> None:
        """Count as dead. See `Courier.leave`."""
        await self._link.pipeline([[b"DEL", self._alive(self._replica)]])

    async def dead(self, replicas: Collection[str]) -> Collection[str]:
        """Return the dead among ``replicas``. See `Courier.dead`."""
        if not replicas:
            return set()
        names = list(replicas)
        [signs] = await self._link.pipeline([[b"MGET", *map(self._alive, names)]])
        return {name for name, sign in zip(names, signs, strict=True) if sign is None}


class _Mailbox(AsyncIterator[bytes | Gap]):
    """The letters to one reader, on the channel ``base`` and in the keys that begin with it."""

    def __init__(self, link: Link, base: bytes, letters: Hints[bytes]) -> None:
        self._link = link
        self._base = base
        self._letters = letters
        self._listed = deque[bytes]()
        """Messages of the list, which are read before others."""
        self._may_miss = False
        """True from a gap on until the list was read."""

    async def __anext__(self) -> bytes | Gap:
        message = await self._next()
        if isinstance(message, Gap):
            self._may_miss = True
            return message
        if message[:1] == _WHOLE:
            return message[1:]
        if message[:1] != _IN_KEY:  # of a version to come
            return GAP
        return await self._long(message)

    async def _next(self) -> bytes | Gap:
        while not self._listed:
            if self._may_miss:
                await self._read_list()
            if self._listed:
                break
            # While the list cannot be read, letters come by the channel alone, and the list is read again soon.
            with trio.move_on_after(_READ_AGAIN if self._may_miss else float("inf")):
                return await anext(self._letters)
        return self._listed.popleft()

    async def _read_list(self) -> None:
        try:
            found = await self._link.script(_READ, [_list_of(self._base)], [_LISTED])
            self._listed += columns("the letters of this replica", found, LINES)
        except OSError as error:  # the link tells its outages
            logger.debug("letters that came meanwhile could not be read: %s", error)
        else:
            self._may_miss = False

    async def _long(self, message: bytes) -> bytes | Gap:
        # The key is one of our own, whatever the message says.
        key = _key_of(self._base, message[len(_IN_KEY) :])
        try:
            letter, _ = await self._link.pipeline([[b"GETDEL", key], [b"ZREM", _list_of(self._base), message]])
        except OSError:  # a letter that is lost, as far as its reader knows
            return GAP
        return GAP if letter is None else letter


def _list_of(base: bytes) -> bytes:
    return b"{%b}:listed" % base


def _key_of(base: bytes, name: bytes) -> bytes:
    return b"{%b}:m:%b" % (base, name)
