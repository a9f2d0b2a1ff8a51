"""`Messenger` brings messages from replica to replica, each once, and tells the sender of the end of each.

A `Courier` may lose a message, or bring a message late or twice. So a message goes out again until its receipt comes,
or until its receiver is dead by the clock of the storage: a missing receipt alone never means death, since a busy
replica that is taken for dead would lose all that runs there. A receiver knows the messages that were read by their
numbers.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Annotated, Final, TypeAlias

import msgspec
import trio

from ..classes import define
from ..concurrency.bounded import BoundedDict
from ..concurrency.time_limits import growing_delay
from ..concurrency.wakeups import Sleeper
from ..jsonrpc.errors import clean
from ..stores.record_codec import decode_stored
from ..stores.shared import Replica
from ..stores.task_store import HintsLost, UnreadableRecord

logger = logging.getLogger("trio_mcp")

LEASE_SECONDS: Final = 5.0
"""Seconds without a sign of life after which a replica counts as dead."""
_HEARTBEAT_INTERVAL: Final = 1.6
"""Seconds between two signs of life: three in the length of a lease."""
_FIRST_RETRY_DELAY: Final = 0.25
_MAX_RETRY_DELAY: Final = 1.0
"""Seconds until a message without a receipt goes out again: the first time, and at most."""
_KNOWN_MESSAGES_LIMIT: Final = 10_000
"""Messages of others that are known again. Each is forgotten long after its sender has its receipt."""
_MAX_NAME_LENGTH: Final = 100
"""Maximum characters of a message kind, and of the id of the replica that gets the receipt."""
_ACK_QUEUE_LIMIT: Final = 1000
"""Receipts that wait to go out. One that is dropped is asked for by the same message, which comes again."""


class ReplicaDead(Exception):
    """The receiver of a message is not alive. The message may have been read, and nothing can come of that any more."""


class MessageRefused(Exception):
    """The receiver has read the message, and refuses: the text says why."""


class _MessageEnvelope(msgspec.Struct, frozen=True, array_like=True):
    """A message, or a receipt, on its way. A message of a kind that is unknown, to a replica of another version for
    example, is refused; one of another form altogether is not read, and its sender waits until one of the two has
    ended."""

    kind: Annotated[str, msgspec.Meta(max_length=_MAX_NAME_LENGTH)]
    """``taken`` or ``refused`` for a receipt; else the subject, by which the reader is found."""
    sender: Annotated[str, msgspec.Meta(max_length=_MAX_NAME_LENGTH)]
    number: int
    """Number of the message, among all messages of its first sender."""
    content: bytes


_ACK_KINDS: Final = frozenset(("taken", "refused"))

_Ack: TypeAlias = "tuple[str, bytes] | None"
"""The kind and the content of the receipt of a message; `None` while there is none."""


@define(eq=False)
class ReplicaMessage:
    """A message that has come, and waits for its receipt: until `ack` or `refuse`, its sender sends more copies,
    and none of the copies is read."""

    sender: str
    """The replica that has sent the message."""
    content: bytes
    _reply: Callable[[str, bytes], None]

    def ack(self, content: bytes = b"") -> None:
        """Tell the sender that the message was read. The first `ack` or `refuse` counts."""
        self._reply("taken", content)

    def refuse(self, reason: str) -> None:
        """Tell the sender that the message was read, and why that is of no use."""
        self._reply("refused", reason.encode(errors="replace"))


class Messenger:
    """The messages of ``replica``. While `run` runs, the replica gives signs of life. Nothing is lost behind a gap,
    since missing messages come again."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self._courier = replica.courier
        self._handlers: dict[str, Callable[[ReplicaMessage], None]] = {}
        self._last = 0
        self._replies: dict[int, _Reply] = {}
        """The messages of ours without a receipt, by number."""
        self._acks = BoundedDict[tuple[str, int], _Ack](_KNOWN_MESSAGES_LIMIT)
        self._ack_queue = deque[tuple[str, int]](maxlen=_ACK_QUEUE_LIMIT)
        """Messages of others, by their names: their receipts are to go out."""
        self._ack_wakeup = Sleeper()
        self._steady_since = math.inf
        """Time since which all signs of life were given in time."""

    async def is_dead(self, replica: str) -> bool:
        """Return whether ``replica`` has ended; false, too, where nobody can tell. Raises the errors of the storage.

        For a while after the storage could not be reached, the leases of replicas that live may be over: until each has
        given its next sign of life. So a replica that has only begun cannot tell, either."""
        if trio.current_time() - self._steady_since < 2 * _HEARTBEAT_INTERVAL:
            return False
        dead = await self._courier.find_dead([replica, self.replica.id])
        # A storage that has forgotten our own sign of life knows nothing of others.
        return replica in dead and self.replica.id not in dead

    @property
    def sent_count(self) -> int:
        """Number of the messages that `send` was asked to bring so far: copies and receipts do not count."""
        return self._last

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Live, and carry messages and receipts, until cancelled; then count as dead. Started once the replica lives,
        for which a storage that fails is waited for."""
        async with self._courier.mailbox() as mailbox:
            try:
                async with trio.open_nursery() as nursery:
                    await self._start()
                    nursery.start_soon(self._send_heartbeats)
                    nursery.start_soon(self._send_acks)
                    task_status.started()
                    async for letter in mailbox:
                        if not isinstance(letter, HintsLost):
                            self._receive(letter)
            finally:  # behind the last sign of life, which may have been on its way
                with trio.move_on_after(1, shield=True):
                    await self._leave()

    async def _start(self) -> None:
        for attempt in count(1):
            try:
                await self._courier.heartbeat(lease_ms=_milliseconds(LEASE_SECONDS))
                self._steady_since = trio.current_time()
                return
            except OSError as error:
                logger.debug("this replica cannot live yet: %s", error)
                await trio.sleep(growing_delay(attempt, first=_FIRST_RETRY_DELAY, longest=_MAX_RETRY_DELAY))

    async def _leave(self) -> None:
        try:
            await self._courier.leave()
        except OSError as error:  # the lease runs out by itself
            logger.debug("the end of this replica could not be told: %s", error)

    async def _send_heartbeats(self) -> None:
        while True:
            await trio.sleep(_HEARTBEAT_INTERVAL)
            try:
                was_alive = await self._courier.heartbeat(lease_ms=_milliseconds(LEASE_SECONDS))
            except OSError as error:  # the storage logs its outages; the next sign may come in time
                logger.debug("no sign of life could be given: %s", error)
                self._steady_since = trio.current_time()
                continue
            if not was_alive:
                self._steady_since = trio.current_time()
                logger.warning(
                    "this replica gave no sign of life for %g s, and others may have acted on that", LEASE_SECONDS
                )

    # Messages of ours

    async def send(self, replica: str, kind: str, content: bytes, *, patience: float) -> bytes:
        """Bring ``content`` to the reader of this ``kind`` in ``replica``, and return the receipt. Messages that are
        sent one after another arrive in order; messages that are sent at the same time, in any.

        Raises `ReplicaDead` and `MessageRefused`; and the error of the storage, an `OSError`, after ``patience``
        seconds of failures: the message may have arrived then, or may arrive later. So may a message whose sending is
        cancelled.
        """
        self._last += 1
        number, reply = self._last, _Reply()
        letter = _encode(kind, self.replica.id, number, content)
        self._replies[number] = reply
        failing_since: float | None = None
        try:
            for attempt in count(1):
                is_dead, error = False, None
                try:
                    # Asked for before the second copy at the earliest: nearly all messages have a receipt by then.
                    is_dead = reply.is_late and await self.is_dead(replica)
                    if not is_dead:
                        await self._courier.send(replica, letter, number=number)
                except OSError as failed:
                    error = failed
                if reply.has_arrived:  # which counts for more than what the storage said meanwhile
                    return await reply.wait()
                if is_dead:
                    raise ReplicaDead(f"the replica {replica} has ended")
                now = trio.current_time()
                failing_since = None if error is None else now if failing_since is None else failing_since
                if error is not None and failing_since is not None and now - failing_since >= patience:
                    raise error
                reply.is_late = True
                with trio.move_on_after(growing_delay(attempt, first=_FIRST_RETRY_DELAY, longest=_MAX_RETRY_DELAY)):
                    return await reply.wait()
        finally:
            del self._replies[number]
        raise AssertionError("unreachable")

    # Messages of others

    def register(self, kind: str, handler: Callable[[ReplicaMessage], None]) -> None:
        """Have ``handler`` called with each message of this ``kind`` that comes, once. A reader must not wait, and
        decides by `ReplicaMessage.ack` or `ReplicaMessage.refuse`, then or later."""
        self._handlers[kind] = handler

    def _receive(self, data: bytes) -> None:
        try:
            envelope = decode_stored("a letter", _decoder.decode, data)
        except UnreadableRecord as error:
            logger.warning("a letter that makes no sense was dropped: %s", error)
            return
        if envelope.kind in _ACK_KINDS:
            reply = self._replies.get(envelope.number)
            if reply is not None:
                reply.deliver(envelope)
            return
        key = envelope.sender, envelope.number
        if key in self._acks:
            if self._acks[key] is not None:
                self._queue_ack(key)
            return
        self._acks[key] = None
        letter = ReplicaMessage(envelope.sender, envelope.content, partial(self._store_ack, key))
        reader = self._handlers.get(envelope.kind)
        if reader is None:  # of a version to come
            letter.refuse(f"this replica knows no letters of the kind {clean(envelope.kind[:100])}")
            return
        try:
            reader(letter)
        except Exception:  # a defect, which concerns this message alone
            logger.exception("a letter of the kind %s could not be read", envelope.kind)
            letter.refuse("the letter could not be read")

    def _store_ack(self, key: tuple[str, int], kind: str, content: bytes) -> None:
        if self._acks.get(key, ()) is None:
            self._acks[key] = kind, content
            self._queue_ack(key)

    def _queue_ack(self, key: tuple[str, int]) -> None:
        self._ack_queue.append(key)
        self._ack_wakeup.wake()

    async def _send_acks(self) -> None:
        while True:
            while self._ack_queue:
                sender, number = self._ack_queue.popleft()
                receipt = self._acks.get((sender, number))
                if receipt is None:  # forgotten meanwhile
                    continue
                try:
                    await self._courier.send(sender, _encode(receipt[0], self.replica.id, number, receipt[1]))
                except OSError as error:  # the message comes again, and asks for its receipt
                    logger.debug("a receipt could not be sent: %s", error)
            await self._ack_wakeup.sleep()


class _Reply:
    """The receipt of one message of ours, which its sender waits for."""

    def __init__(self) -> None:
        self._envelope: _MessageEnvelope | None = None
        self._sleeper = Sleeper()
        self.is_late = False
        """True when one copy has gone out, and no receipt came."""

    @property
    def has_arrived(self) -> bool:
        return self._envelope is not None

    def deliver(self, envelope: _MessageEnvelope) -> None:
        self._envelope = envelope
        self._sleeper.wake()

    async def wait(self) -> bytes:
        while self._envelope is None:
            await self._sleeper.sleep()
        if self._envelope.kind == "refused":
            raise MessageRefused(self._envelope.content.decode(errors="replace"))
        return self._envelope.content


_decoder: Final = msgspec.msgpack.Decoder(_MessageEnvelope)


def _encode(kind: str, sender: str, number: int, content: bytes) -> bytes:
    return msgspec.msgpack.encode(_MessageEnvelope(kind, sender, number, content))


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)
