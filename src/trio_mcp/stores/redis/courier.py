"""RedisCourier carries letters between replicas by the channels of Redis, and keeps their signs of life.

A letter is published on the channel of its reader, and also kept in the reader's list for a few seconds. After a lost
subscription, the reader finds there what it has missed. A long letter is kept in its own key, and the channel and the
list only carry its name, since Redis closes the connection of a reader with too much unread data.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from typing import Final

import trio

from ...concurrency.contexts import asynccontextmanager
from ..decoding import LINES, columns
from ..record_codec import encoded
from ..shared import MAX_LETTER
from ..task_store import GAP, Gap, Hints, UnreadableRecord
from .link import Link, Script, Value

logger = logging.getLogger("trio_mcp")

_MOST_TOLD: Final = 4 * 1024
"""Bytes of the longest letter that is sent through the channel and the list directly."""
_MOST_LISTED: Final = 1000
"""Maximum letters in the list of one reader, so that a list has at most 4 MiB."""
_LISTED: Final = 10_000
"""Milliseconds that a letter stays in the list: longer than it takes to notice and renew a lost subscription."""
_KEEP: Final = 30_000
"""Milliseconds for which a long letter waits for its reader."""
_PIECE: Final = 256 * 1024
"""Bytes in one piece of a long letter, when sent or fetched."""
_MOST_PIECES: Final = 4
"""Maximum pieces of long letters that are sent to Redis concurrently."""
_SIGNS: Final = tuple[list[bytes | None]]
_TAKEN: Final = tuple[int, bytes]
_READ_AGAIN: Final = 0.25
"""Seconds until a failed read of the list is retried."""
_LAST_WORDS: Final = 1.0
_ID_BYTES: Final = 9
_WHOLE, _IN_KEY = b"w", b"k"
"""First byte of a message: the letter follows, or its name."""

# The list is a set sorted by time: a copy of a letter replaces the earlier one. The last piece of a long letter is
# sent together with its name.
_POST: Final = Script(
    "letter_post",
    """
local list, channel, message = KEYS[1], ARGV[1], ARGV[2]
local most, listed = tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if KEYS[2] then
    redis.call('SETRANGE', KEYS[2], ARGV[5], ARGV[6])
    redis.call('PEXPIRE', KEYS[2], ARGV[7])
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

# Reading the last piece deletes the letter.
_TAKE: Final = Script(
    "letter_take",
    """
local start, size = tonumber(ARGV[2]), tonumber(ARGV[3])
local whole = redis.call('STRLEN', KEYS[1])
local piece = redis.call('GETRANGE', KEYS[1], start, start + size - 1)
if start + size >= whole then
    redis.call('DEL', KEYS[1])
    redis.call('ZREM', KEYS[2], ARGV[1])
end
return {whole, piece}
""",
)


class RedisCourier:
    """A `Courier` for ``replica``, with keys and channels that begin with ``prefix``. `on_message` is called with each
    message on ``channel``, and `on_gap` where messages may have been lost.

    `post` raises `StoreDown` and `Uncertain`; after `Uncertain`, the letter may have been sent. Letters that arrive
    while no mailbox is open are lost. After a gap, the letters of the last seconds arrive, perhaps a second time.
    """

    def __init__(self, link: Link, prefix: str, replica: str) -> None:
        self._link = link
        self._prefix = prefix.encode()
        self.signs = link
        """The link for heartbeats."""
        self._bulk = trio.CapacityLimiter(_MOST_PIECES)
        """Held while a piece of a long letter is sent, so that short letters can go in between."""
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
        if len(letter) <= _MOST_TOLD:
            await self._link.script(_POST, [_list_of(base)], [base, _WHOLE + letter, _MOST_LISTED, _LISTED])
            return
        text = secrets.token_urlsafe(_ID_BYTES) if number is None else f"{self._replica}.{number}"
        name = text.encode()
        key, message = _key_of(base, name), _IN_KEY + name
        last = (len(letter) - 1) // _PIECE * _PIECE
        for start in range(0, last, _PIECE):
            piece = letter[start : start + _PIECE]
            async with self._bulk:
                # A piece is written at its offset, so repeated and late writes do no harm.
                await self._link.pipeline([[b"SETRANGE", key, start, piece], [b"PEXPIRE", key, _KEEP]])
        async with self._bulk:
            args: list[Value] = [base, message, _MOST_LISTED, _LISTED, last, letter[last:], _KEEP]
            await self._link.script(_POST, [_list_of(base), key], args)

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
                except OSError as error:  # the list expires
                    logger.debug("could not delete unread messages: %s", error)

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
        [before] = await self.signs.pipeline([[b"SET", self._alive(self._replica), b"1", b"PX", b"%d" % lease, b"GET"]])
        return before is not None

    async def leave(self) -> None:
        """Count as dead. See `Courier.leave`."""
        await self.signs.pipeline([[b"DEL", self._alive(self._replica)]])

    async def dead(self, replicas: Collection[str]) -> Collection[str]:
        """Return the dead among ``replicas``. See `Courier.dead`."""
        if not replicas:
            return set()
        names = list(replicas)
        answers = await self._link.pipeline([[b"MGET", *map(self._alive, names)]])
        [signs] = columns("signs of life", answers, _SIGNS)
        if len(signs) != len(names):
            raise UnreadableRecord("cannot read heartbeats: Redis returned the wrong number of them")
        return {name for name, sign in zip(names, signs, strict=True) if sign is None}


class _Mailbox(AsyncIterator[bytes | Gap]):
    """The letters to one reader, on the channel ``base`` and in keys that begin with ``base``."""

    def __init__(self, link: Link, base: bytes, letters: Hints[bytes]) -> None:
        self._link = link
        self._base = base
        self._letters = letters
        self._waiting = deque[bytes | Gap]()
        """Messages from the list, which are read before others."""
        self._fetched = deque[bytes | Gap]()
        """Long letters that were fetched, in order."""
        self._may_miss = False
        """True after a gap until the list has been read."""

    async def __anext__(self) -> bytes | Gap:
        if self._fetched:
            await trio.lowlevel.checkpoint()
            return self._fetched.popleft()
        message = await self._next()
        if isinstance(message, Gap):
            self._may_miss = True
            return message
        if message[:1] == _WHOLE:
            return message[1:]
        if message[:1] != _IN_KEY:  # of a version to come
            return GAP
        await self._fetch(message)
        return self._fetched.popleft()

    async def _next(self) -> bytes | Gap:
        while not self._waiting:
            if self._may_miss:
                await self._read_list()
            if self._waiting:
                break
            # If the list can't be read, letters only arrive by the channel, and the read is retried soon.
            with trio.move_on_after(_READ_AGAIN if self._may_miss else math.inf):
                return await anext(self._letters)
        return self._waiting.popleft()

    async def _read_list(self) -> None:
        try:
            found = await self._link.script(_READ, [_list_of(self._base)], [_LISTED])
            self._waiting += columns("the letters of this replica", found, LINES)
        except OSError as error:  # the link logs its outages
            logger.debug("could not read waiting messages: %s", error)
        else:
            self._may_miss = False

    async def _fetch(self, message: bytes) -> None:
        """Fetch a long letter together with the long letters right after it."""
        messages = [message]
        while len(messages) < _MOST_PIECES and (more := self._next_long()) is not None:
            messages.append(more)
        found: list[bytes | Gap] = [GAP] * len(messages)

        async def fetch(place: int, message: bytes) -> None:
            found[place] = await self._long(message)

        async with trio.open_nursery() as nursery:
            for place, each in enumerate(messages):
                nursery.start_soon(fetch, place, each)
        self._fetched += found

    def _next_long(self) -> bytes | None:
        if not self._waiting and (next_one := self._letters.take_now()) is not None:
            self._waiting.append(next_one)
        if not self._waiting or isinstance(first := self._waiting[0], Gap) or first[:1] != _IN_KEY:
            return None
        self._waiting.popleft()
        return first

    async def _long(self, message: bytes) -> bytes | Gap:
        # The key always has our own prefix, whatever the message says.
        key = _key_of(self._base, message[len(_IN_KEY) :])
        letter, whole = bytearray(), 1
        try:
            while len(letter) < whole:
                found = await self._link.script(_TAKE, [key, _list_of(self._base)], [message, len(letter), _PIECE])
                whole, piece = columns("a letter", found, _TAKEN)
                if not piece or whole > MAX_LETTER:  # it has expired, or isn't a letter
                    return GAP
                letter += piece
        except OSError:  # a letter that is lost, as far as its reader knows
            return GAP
        return bytes(letter)


def _list_of(base: bytes) -> bytes:
    return b"{%b}:listed" % base


def _key_of(base: bytes, name: bytes) -> bytes:
    return b"{%b}:m:%b" % (base, name)
