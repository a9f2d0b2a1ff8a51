"""RedisCourier carries letters between replicas by the channels of Redis, and keeps their signs of life.

A long letter waits in a key of its own, since Redis ends the connection of a reader for whom too much is on the way.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from typing import Final

from ...concurrency.contexts import asynccontextmanager
from ..record_codec import encoded
from ..shared import MAX_LETTER
from ..task_store import GAP, Gap, Hints
from .link import Link

_MOST_TOLD: Final = 64 * 1024
"""Bytes of the longest letter that goes through the channel itself."""
_KEEP: Final = 30_000
"""Milliseconds for which a long letter waits for its reader."""
_ID_BYTES: Final = 9
_WHOLE, _IN_KEY = b"w", b"k"
"""The first byte of a message: the letter follows, or its key."""


class RedisCourier:
    """A `Courier` for ``replica``, with keys and channels that begin with ``prefix``. `on_message` is called with each
    message on ``channel``, and `on_gap` where messages may have been lost.

    `post` raises `StoreDown` and `Uncertain`; after the second, the letter may have gone out. Letters that come while
    no mailbox is open are lost.
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
        if len(letter) <= _MOST_TOLD:
            message = _WHOLE + letter
        else:
            name = secrets.token_urlsafe(_ID_BYTES) if number is None else f"{self._replica}.{number}"
            key = b"%b:m:%b" % (self._prefix, name.encode())
            await self._link.pipeline([[b"SET", key, letter, b"PX", b"%d" % _KEEP]])
            message = _IN_KEY + key
        await self._link.pipeline([[b"PUBLISH", b"%b:r:%b" % (self._prefix, encoded(replica)), message]])

    @asynccontextmanager
    async def mailbox(self) -> AsyncGenerator[AsyncIterator[bytes | Gap]]:
        """Open the stream of the letters to this replica. See `Courier.mailbox`."""
        if self._letters is not None:
            raise RuntimeError("the mailbox of this replica is open already")
        self._letters = Hints[bytes]()
        try:
            yield _Mailbox(self._link, self._letters)
        finally:
            self._letters = None

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
    def __init__(self, link: Link, letters: Hints[bytes]) -> None:
        self._link = link
        self._letters = letters

    async def __anext__(self) -> bytes | Gap:
        message = await anext(self._letters)
        if isinstance(message, Gap) or message[:1] == _WHOLE:
            return message if isinstance(message, Gap) else message[1:]
        if message[:1] != _IN_KEY:  # of a version to come
            return GAP
        try:
            [letter] = await self._link.pipeline([[b"GETDEL", message[1:]]])
        except OSError:  # a letter that is lost, as far as its reader knows
            return GAP
        return GAP if letter is None else letter
