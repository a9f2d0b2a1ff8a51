"""Messages between replicas through Redis: `RedisChangeLog` records changes, and `RedisCourier` sends messages.

The change log stores each changed thing with the number of its last change. Numbers are microseconds of the clock of
Redis, and always grow. A failover may lose the last numbers. All later numbers are greater than the lost ones, so a
reader that has seen lost numbers misses nothing.

A message is published on the channel of its reader, and also stored in the reader's list for a few seconds. After a
lost subscription, the reader reads the missed messages there. A long message is stored in its own key, and the channel
and the list only carry its name, since Redis closes the connection of a reader with too much unread data.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from typing import Any, Final

import msgspec
import trio

from ....concurrency.contexts import asynccontextmanager
from ....stores.record_codec import LINES, decode_columns, decode_stored, decoded, encoded
from ....stores.shared import CHANGES_LIMIT, MAX_MESSAGE_BYTES, ChangeCursor, ChangeHint, ChangesSince, WatchedByHints
from ....stores.task_store import HINTS_LOST, HintQueue, HintQueues, HintsLost, UnreadableRecord
from .client import load_scripts
from .link import Link, Value

logger = logging.getLogger("trio_mcp")

_KEEP: Final = 25 * 3_600_000
"""Milliseconds after which an unused change log is deleted: 25 hours."""
_HINT_BYTES_LIMIT: Final = 64 * 1024
"""The maximum size of the changes in a notification, in bytes. If the changes are larger, readers read the log
instead."""
_LOG_ID_BYTES: Final = 6
_MOST_DIGITS: Final = 16
_SCRIPTS: Final = load_scripts("messages")


class RedisChangeLog(WatchedByHints[ChangeHint]):
    """Stores changes of tools, resources and prompts in Redis, in keys that begin with ``prefix``. See `ChangeLog`.

    Notifications are published on the channel ``bus``, and passed from there to ``watchers``. An unused log is deleted
    after 25 hours. If a `record` call that ended with `Uncertain` is repeated, readers may get its changes twice, which
    is always allowed.
    """

    def __init__(self, link: Link, prefix: str, bus: str, watchers: HintQueues[ChangeHint]) -> None:
        self._link = link
        self._keys = [f"{{{prefix}:c}}:log", f"{{{prefix}:c}}:things"]
        self._bus = bus
        super().__init__(watchers)

    async def record(self, changed: Collection[str]) -> None:
        """Record changes of tools, resources and prompts in the log. See `ChangeLog.record`."""
        if not changed:
            return
        things = [encoded(each) for each in changed]
        told = msgspec.msgpack.encode(things) if sum(map(len, things)) <= _HINT_BYTES_LIMIT else b""
        args = [_new_id(), b"%d" % _KEEP, b"%d" % CHANGES_LIMIT, self._bus, told, *things]
        await self._link.script(_SCRIPTS["changes_note"], self._keys, args)

    async def read_since(self, cursor: ChangeCursor | None) -> ChangesSince:
        """Return the changes that were recorded after the position ``cursor``. See `ChangeLog.read_since`."""
        log, number = ("", 0) if cursor is None else _parse_cursor(cursor)
        args = [_new_id(), b"%d" % _KEEP, encoded(log), b"%d" % number]
        return decode_stored(
            "the change log", _decode_changes, await self._link.script(_SCRIPTS["changes_since"], self._keys, args)
        )


def _new_id() -> bytes:
    return secrets.token_urlsafe(_LOG_ID_BYTES).encode()


def _decode_changes(reply: Any) -> ChangesSince:
    now, everything, *found = reply
    place = now.decode(errors="replace")
    try:
        things = [decoded(each) for each in found[0]] if found else []
    except UnreadableRecord:  # an unreadable record must not stop readers forever, so skip it
        return ChangesSince(place, (), everything=True)
    return ChangesSince(place, things, bool(everything))


def _parse_cursor(cursor: ChangeCursor) -> tuple[str, int]:
    """Return the log's id and the record's number in ``cursor``.

    For an invalid cursor, return the id of a log that doesn't exist.
    """
    log, _, number = cursor.partition(".")
    is_place = bool(log) and number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS
    return (log, int(number)) if is_place else ("?", 0)


def decode_change_hint(message: bytes) -> ChangeHint | HintsLost:
    """Return the change notification in ``message``, a message from the Redis channel that all replicas share.

    Returns `HINTS_LOST` if the changes were too long for the message.
    """
    was, place, told = message[1:].split(b" ", 2)
    if not told:
        return HINTS_LOST
    things = msgspec.msgpack.decode(told, type=list[bytes])
    return ChangeHint(was.decode(), place.decode(), [decoded(each) for each in things])


_INLINE_MESSAGE_LIMIT: Final = 4 * 1024
"""Maximum bytes of a message that is sent directly through the channel and the list."""
_LIST_LIMIT: Final = 1000
"""Maximum messages in the list of one reader, so that a list has at most 4 MiB."""
_LISTED: Final = 10_000
"""Milliseconds for which a message stays in the list. This is longer than it takes to notice and renew a lost
subscription."""
_RETENTION_MS: Final = 30_000
"""Milliseconds for which a long message is stored for its reader."""
_PIECE: Final = 256 * 1024
"""Bytes in one piece of a long message, when sent or fetched."""
_MOST_PIECES: Final = 4
"""Maximum pieces of long messages that are sent to Redis concurrently."""
_SIGNS: Final = tuple[list[bytes | None]]
_TAKEN: Final = tuple[int, bytes]
_READ_AGAIN: Final = 0.25
"""Seconds until a failed read of the list is retried."""
_FAREWELL_TIMEOUT: Final = 1.0
_ID_BYTES: Final = 9
_WHOLE, _IN_KEY = b"w", b"k"
"""The first byte of a message. It says whether the message itself follows, or the name of the key that contains the
message."""


class RedisCourier:
    """Sends and receives the messages of the replica ``replica`` over Redis, in keys and channels that begin with
    ``prefix``. See `Courier`.

    The owner must call `on_message` with each message on ``channel``, and with `HINTS_LOST` if messages may be lost.

    `send` raises `StoreDown` and `Uncertain`. After `Uncertain`, the message may have been sent. Messages that arrive
    while no mailbox is open are lost. After `HINTS_LOST`, the messages of the last seconds arrive, perhaps a second
    time.
    """

    def __init__(self, link: Link, prefix: str, replica: str) -> None:
        self._link = link
        self._prefix = prefix.encode()
        self.heartbeat_link = link
        """The link that is used for heartbeats."""
        self._bulk = trio.CapacityLimiter(_MOST_PIECES)
        """This lock is held while a piece of a long message is sent, so that short messages can be sent between two
        pieces."""
        self._mailbox: HintQueue[bytes] | None = None
        self._replica = replica
        self.channel: Final = f"{prefix}:r:{replica}"
        """The channel of the messages to this replica."""

    def _heartbeat_key(self, replica: str) -> bytes:
        # The braces put all heartbeats into one hash slot of a Redis cluster, so that a single MGET can read them.
        return b"{%b:alive}:%b" % (self._prefix, encoded(replica))

    async def send(self, replica: str, content: bytes, *, number: int | None = None) -> None:
        """Send a message to another replica. Raises `ValueError` if the message is too long. See `Courier.send`."""
        if len(content) > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message must have at most {MAX_MESSAGE_BYTES} bytes, not {len(content)}")
        base = b"%b:r:%b" % (self._prefix, encoded(replica))
        if len(content) <= _INLINE_MESSAGE_LIMIT:
            await self._link.script(
                _SCRIPTS["letter_post"], [_list_of(base)], [base, _WHOLE + content, _LIST_LIMIT, _LISTED]
            )
            return
        text = secrets.token_urlsafe(_ID_BYTES) if number is None else f"{self._replica}.{number}"
        name = text.encode()
        key, message = _key_of(base, name), _IN_KEY + name
        last = (len(content) - 1) // _PIECE * _PIECE
        for start in range(0, last, _PIECE):
            piece = content[start : start + _PIECE]
            async with self._bulk:
                # Each piece is written at a fixed offset, so a piece that is sent twice or arrives late does no harm.
                await self._link.pipeline([[b"SETRANGE", key, start, piece], [b"PEXPIRE", key, _RETENTION_MS]])
        async with self._bulk:
            args: list[Value] = [base, message, _LIST_LIMIT, _LISTED, last, content[last:], _RETENTION_MS]
            await self._link.script(_SCRIPTS["letter_post"], [_list_of(base), key], args)

    @asynccontextmanager
    async def mailbox(self) -> AsyncGenerator[AsyncIterator[bytes | HintsLost]]:
        """Open the stream of messages that are sent to this replica. See `Courier.mailbox`."""
        if self._mailbox is not None:
            raise RuntimeError("mailbox() was called twice: the mailbox of this replica is already open")
        self._mailbox, base = HintQueue[bytes](), encoded(self.channel)
        try:
            yield _RedisMailbox(self._link, base, self._mailbox)
        finally:
            self._mailbox = None
            with trio.move_on_after(_FAREWELL_TIMEOUT, shield=True):
                try:
                    await self._link.pipeline([[b"DEL", _list_of(base)]])
                except OSError as error:  # the list expires
                    logger.debug("could not delete unread messages: %s", error)

    def on_message(self, message: bytes | HintsLost) -> None:
        """Put a message from this replica's channel, or `HINTS_LOST`, into the mailbox, if the mailbox is open."""
        if self._mailbox is not None:
            self._mailbox.put(message)

    async def heartbeat(self, *, lease_ms: int) -> bool:
        """Mark this replica as alive for ``lease_ms`` milliseconds. See `Courier.heartbeat`."""
        [before] = await self.heartbeat_link.pipeline(
            [[b"SET", self._heartbeat_key(self._replica), b"1", b"PX", b"%d" % lease_ms, b"GET"]]
        )
        return before is not None

    async def leave(self) -> None:
        """Mark this replica as dead. See `Courier.leave`."""
        await self.heartbeat_link.pipeline([[b"DEL", self._heartbeat_key(self._replica)]])

    async def find_dead(self, replicas: Collection[str]) -> Collection[str]:
        """Return the dead replicas among ``replicas``. See `Courier.find_dead`."""
        if not replicas:
            return set()
        names = list(replicas)
        answers = await self._link.pipeline([[b"MGET", *map(self._heartbeat_key, names)]])
        [signs] = decode_columns("heartbeats", answers, _SIGNS)
        if len(signs) != len(names):
            raise UnreadableRecord("Redis returned an unexpected number of heartbeats")
        return {name for name, sign in zip(names, signs, strict=True) if sign is None}


class _RedisMailbox(AsyncIterator[bytes | HintsLost]):
    """The stream of messages to one replica, from the channel ``base`` and from keys that begin with ``base``."""

    def __init__(self, link: Link, base: bytes, messenger: HintQueue[bytes]) -> None:
        self._link = link
        self._base = base
        self._queue = messenger
        self._waiting = deque[bytes | HintsLost]()
        """Messages from the list, which are read before others."""
        self._fetched = deque[bytes | HintsLost]()
        """Long messages that were fetched, in order."""
        self._may_have_missed = False
        """True from the loss of messages until the list has been read."""

    async def __anext__(self) -> bytes | HintsLost:
        if self._fetched:
            await trio.lowlevel.checkpoint()
            return self._fetched.popleft()
        message = await self._next()
        if isinstance(message, HintsLost):
            self._may_have_missed = True
            return message
        if message[:1] == _WHOLE:
            return message[1:]
        if message[:1] != _IN_KEY:  # from a later version
            return HINTS_LOST
        await self._fetch(message)
        return self._fetched.popleft()

    async def _next(self) -> bytes | HintsLost:
        while not self._waiting:
            if self._may_have_missed:
                await self._read_list()
            if self._waiting:
                break
            # While this replica's list of messages in Redis can't be read, messages arrive only on the pub/sub channel.
            # So read the list again soon.
            with trio.move_on_after(_READ_AGAIN if self._may_have_missed else math.inf):
                return await anext(self._queue)
        return self._waiting.popleft()

    async def _read_list(self) -> None:
        try:
            found = await self._link.script(_SCRIPTS["letters_read"], [_list_of(self._base)], [_LISTED])
            self._waiting += decode_columns("the messages to this replica", found, LINES)
        except OSError as error:  # the `Link` logs outages of Redis, so don't log a warning here
            logger.debug("could not read waiting messages: %s", error)
        else:
            self._may_have_missed = False

    async def _fetch(self, message: bytes) -> None:
        """Read a long message from Redis. If more long messages directly follow it, read them concurrently."""
        messages = [message]
        while len(messages) < _MOST_PIECES and (more := self._next_long()) is not None:
            messages.append(more)
        found: list[bytes | HintsLost] = [HINTS_LOST] * len(messages)

        async def fetch(place: int, message: bytes) -> None:
            found[place] = await self._read_long(message)

        async with trio.open_nursery() as nursery:
            for place, each in enumerate(messages):
                nursery.start_soon(fetch, place, each)
        self._fetched += found

    def _next_long(self) -> bytes | None:
        if not self._waiting and (next_one := self._queue.get_nowait()) is not None:
            self._waiting.append(next_one)
        if not self._waiting or isinstance(first := self._waiting[0], HintsLost) or first[:1] != _IN_KEY:
            return None
        self._waiting.popleft()
        return first

    async def _read_long(self, message: bytes) -> bytes | HintsLost:
        # An invalid message could name any key, so build the key with this mailbox's own prefix.
        key = _key_of(self._base, message[len(_IN_KEY) :])
        letter, whole = bytearray(), 1
        try:
            while len(letter) < whole:
                found = await self._link.script(
                    _SCRIPTS["letter_take"], [key, _list_of(self._base)], [message, len(letter), _PIECE]
                )
                whole, piece = decode_columns("a message", found, _TAKEN)
                if not piece or whole > MAX_MESSAGE_BYTES:  # the message has expired, or its size is invalid
                    return HINTS_LOST
                letter += piece
        except OSError:  # the message can't be read from Redis, so report it as lost
            return HINTS_LOST
        return bytes(letter)


def _list_of(base: bytes) -> bytes:
    return b"{%b}:listed" % base


def _key_of(base: bytes, name: bytes) -> bytes:
    return b"{%b}:m:%b" % (base, name)
