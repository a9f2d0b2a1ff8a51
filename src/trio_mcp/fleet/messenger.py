"""`Messenger` delivers each message between replicas exactly once, and returns an acknowledgement to the sender.
`SealedMessenger` also encrypts the messages.

A `Courier` may lose a message, or deliver it late or twice. Therefore a message is sent again until its
acknowledgement arrives, or its receiver is dead by the clock of the storage. A missing acknowledgement alone never
counts as death: a busy replica that was taken for dead would lose all calls that run there. A receiver recognizes
repeated messages by their numbers.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias, TypeVar

import msgspec
import trio

from ..classes import define
from ..concurrency.bounded import BoundedDict
from ..concurrency.contexts import contextmanager
from ..concurrency.time_limits import growing_delay
from ..concurrency.wakeups import Sleeper
from ..jsonrpc.errors import clean
from ..stores.record_codec import decode_stored
from ..stores.sealing import BadSeal
from ..stores.shared import Replica
from ..stores.task_store import HintsLost, UnreadableRecord

if TYPE_CHECKING:
    from ..server.request_state import StateCipher

logger = logging.getLogger("trio_mcp")

T = TypeVar("T", bound=msgspec.Struct)

LEASE_SECONDS: Final = 5.0
"""Seconds without a heartbeat after which a replica counts as dead."""
_HEARTBEAT_INTERVAL: Final = 1.6
"""Seconds between two heartbeats. There are three heartbeats in each lease."""
_FIRST_RETRY_DELAY: Final = 0.25
_MAX_RETRY_DELAY: Final = 1.0
"""Seconds until a message without an acknowledgement is sent again. The delay grows from `_FIRST_RETRY_DELAY` to
`_MAX_RETRY_DELAY`."""
_KNOWN_MESSAGES_LIMIT: Final = 10_000
"""The maximum number of received messages that are remembered in order to recognize copies. A message is forgotten long
after its sender has received the acknowledgement."""
_MAX_NAME_LENGTH: Final = 100
"""Maximum characters of a message kind, and of the id of the replica that gets the acknowledgement."""
_ACK_QUEUE_LIMIT: Final = 1000
"""The maximum number of queued acknowledgements. If one is dropped, the sender repeats its message, and the
acknowledgement is sent then."""


class ReplicaDead(Exception):
    """The replica that should receive a message has ended. It may have read the message, but will send no
    acknowledgement."""


class MessageRefused(Exception):
    """The receiving replica has read and refused the message. The exception's text is the reason."""


@contextmanager
def logged_failure(what: str) -> Generator[None]:
    """Run the body of the ``with`` statement. If the storage or another replica fails in it, only log the error.

    ``what`` describes the failure. No warning is logged, because the storage logs its own outages.
    """
    try:
        yield
    except (ReplicaDead, MessageRefused, OSError) as error:
        logger.debug("%s: %s", what, error)


class _MessageEnvelope(msgspec.Struct, frozen=True, array_like=True):
    """The form in which messages between replicas, and their acknowledgements, are sent.

    A replica refuses messages of an unknown kind, for example from another version. It ignores data of any other form,
    and the sender of such data waits until one of the two replicas has ended.
    """

    kind: Annotated[str, msgspec.Meta(max_length=_MAX_NAME_LENGTH)]
    """``taken`` or ``refused`` for an acknowledgement, otherwise the kind of message, which determines its handler."""
    sender: Annotated[str, msgspec.Meta(max_length=_MAX_NAME_LENGTH)]
    number: int
    """Number of the message, counted by its original sender. An acknowledgement has the number of its message."""
    content: bytes


_Ack: TypeAlias = "tuple[str, bytes] | None"
"""The kind and the content of a message's acknowledgement; `None` while the message has none."""


@define(eq=False)
class ReplicaMessage:
    """A message from another replica. The handler must acknowledge or refuse it by calling `ack` or `refuse`.

    Until then its sender sends further copies, which aren't passed to the handler.
    """

    sender: str
    """The id of the replica that sent the message."""
    content: bytes
    _reply: Callable[[str, bytes], None]

    def ack(self, content: bytes = b"") -> None:
        """Accept the message, and send the sender an acknowledgement with ``content``.

        Only the first call of `ack` or `refuse` has an effect.
        """
        self._reply("taken", content)

    def refuse(self, reason: str) -> None:
        """Refuse the message, so that the sender's call of `Messenger.send` raises `MessageRefused` with this
        reason."""
        self._reply("refused", reason.encode(errors="replace"))


class Messenger:
    """Sends messages to other replicas, and receives the messages that they send to ``replica``.

    While `run` runs, it also sends heartbeats, which show that ``replica`` is alive.

    If the courier loses messages, none is lost in the end, because they are sent again.
    """

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self._courier = replica.courier
        self._handlers: dict[str, Callable[[ReplicaMessage], None]] = {}
        self.sent_count = 0
        """The number of messages passed to `send` so far, without repeated attempts and acknowledgements."""
        self._replies: dict[int, _Reply] = {}
        """The sent messages without an acknowledgement, by number."""
        self._acks = BoundedDict[tuple[str, int], _Ack](_KNOWN_MESSAGES_LIMIT)
        self._ack_queue = deque[tuple[str, int]](maxlen=_ACK_QUEUE_LIMIT)
        """Received messages, by sender and number, whose acknowledgements are to be sent."""
        self._ack_wakeup = Sleeper()
        self._steady_since = math.inf
        """The time since which all heartbeats were on time."""

    async def is_dead(self, replica: str) -> bool:
        """Return true if ``replica`` is known to be dead. Return false if it is alive, or if its state is unknown.

        Raises an error if the storage fails.

        After an outage of the storage, leases of living replicas may have expired, until each has sent its next
        heartbeat. For that time, and for as long after the start of this replica, the answer is unknown.
        """
        if trio.current_time() - self._steady_since < 2 * _HEARTBEAT_INTERVAL:
            return False
        dead = await self._courier.find_dead([replica, self.replica.id])
        # If the storage has lost this replica's own heartbeat, it may also have lost the heartbeats of living replicas.
        return replica in dead and self.replica.id not in dead

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send and receive messages, and send heartbeats, until cancelled. Afterwards other replicas see this replica
        as dead.

        Started after the first heartbeat, which is retried while the storage fails.
        """
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
            finally:  # report the end of this replica only after its last heartbeat
                with trio.move_on_after(1, shield=True), logged_failure("could not report the end of this replica"):
                    await self._courier.leave()  # if this fails, the lease expires

    async def _start(self) -> None:
        for attempt in count(1):
            try:
                await self._courier.heartbeat(lease_ms=int(LEASE_SECONDS * 1000))
                self._steady_since = trio.current_time()
                return
            except OSError as error:
                logger.debug("could not send the first heartbeat: %s", error)
                await trio.sleep(growing_delay(attempt, first=_FIRST_RETRY_DELAY, longest=_MAX_RETRY_DELAY))

    async def _send_heartbeats(self) -> None:
        while True:
            await trio.sleep(_HEARTBEAT_INTERVAL)
            try:
                was_alive = await self._courier.heartbeat(lease_ms=int(LEASE_SECONDS * 1000))
            except OSError as error:
                # Don't log a warning: the storage logs its own outages, and the next heartbeat may still be in time.
                logger.debug("could not send a heartbeat: %s", error)
                self._steady_since = trio.current_time()
                continue
            if not was_alive:
                self._steady_since = trio.current_time()
                logger.warning(
                    "this replica sent no heartbeat for %g s, and others may have acted on its death", LEASE_SECONDS
                )

    # Sending

    async def send(self, replica: str, kind: str, content: bytes, *, patience: float) -> bytes:
        """Send ``content`` to the handler of the replica ``replica`` for messages of ``kind``. Return the content of
        the acknowledgement.

        Messages sent one after another arrive in order; messages sent concurrently arrive in any order.

        Args:
            patience: For how many seconds a failing storage is retried.

        Raises:
            ReplicaDead: The receiver is dead.
            MessageRefused: The receiver refused the message.
            OSError: The storage failed for ``patience`` seconds. The message may have arrived, or may arrive later.

        Cancellation: a message whose sending is cancelled may have arrived, or may arrive later.
        """
        self.sent_count += 1
        number, reply = self.sent_count, _Reply()
        letter = _encode(kind, self.replica.id, number, content)
        self._replies[number] = reply
        failing_since: float | None = None
        try:
            for attempt in count(1):
                is_dead, error = False, None
                try:
                    # Don't check before the first attempt whether the replica has ended.
                    # The replica nearly always acknowledges the message before a second attempt is necessary.
                    is_dead = reply.is_late and await self.is_dead(replica)
                    if not is_dead:
                        await self._courier.send(replica, letter, number=number)
                except OSError as failed:
                    error = failed
                if reply.envelope is not None:  # the message has arrived, even if the storage raised an error
                    return await reply.wait()
                if is_dead:
                    raise ReplicaDead(f"cannot send the message: the replica {replica} has ended")
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

    # Receiving

    def register(self, kind: str, handler: Callable[[ReplicaMessage], None]) -> None:
        """Register ``handler`` for the received messages of this ``kind``. It is called once for each message.

        The handler must not wait. It answers with `ReplicaMessage.ack` or `ReplicaMessage.refuse`, at once or later.
        """
        self._handlers[kind] = handler

    def _receive(self, data: bytes) -> None:
        try:
            envelope = decode_stored("a message", _decoder.decode, data)
        except UnreadableRecord as error:
            logger.warning("dropped an invalid message of another replica: %s", error)
            return
        if envelope.kind in ("taken", "refused"):
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
        if reader is None:  # from a later version
            letter.refuse(f"this replica knows no messages of the kind {clean(envelope.kind[:100])}")
            return
        try:
            reader(letter)
        except Exception:  # an exception in the handler must not end the messenger
            logger.exception("could not handle a message of the kind %s", envelope.kind)
            letter.refuse("the message could not be handled")

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
                if receipt is None:  # the acknowledgement was dropped, because too many were stored
                    continue
                # Only log an error: the sender will repeat the message, and will get another acknowledgement.
                with logged_failure("an acknowledgement could not be sent"):
                    await self._courier.send(sender, _encode(receipt[0], self.replica.id, number, receipt[1]))
            await self._ack_wakeup.sleep()


class SealedMessenger:
    """Sends and receives messages with ``messenger``, encrypted with the secrets of ``cipher``. Without a cipher, the
    messages aren't encrypted.

    A sealed message is only valid for its kind, its sender and its receiver.
    """

    def __init__(self, messenger: Messenger, cipher: StateCipher | None) -> None:
        self._messenger = messenger
        self._replica = messenger.replica.id
        self._keys = None if cipher is None else cipher.keys_for(b"trio-mcp carried retry 1 ")

    def seal(self, kind: str, receiver: str, content: object) -> bytes:
        """Return ``content``, encoded and encrypted for a message of ``kind`` to ``receiver``."""
        text = msgspec.msgpack.encode(content)
        return text if self._keys is None else self._keys.seal(text, f"{kind} {self._replica} {receiver}".encode())

    def send(self, replica: str, kind: str, content: object, *, patience: float) -> Awaitable[bytes]:
        """Seal ``content``, and send it to the replica ``replica``. See `Messenger.send`."""
        return self._messenger.send(replica, kind, self.seal(kind, replica, content), patience=patience)

    def open(self, kind: str, message: ReplicaMessage, form: type[T]) -> T | None:
        """Decrypt ``message``, and return its content as an instance of the class ``form``.

        If the message can't be read, refuse it and return `None`.
        """
        what = "a message" if self._keys is None else f"a message of the kind {kind}"
        about = f"{kind} {message.sender} {self._replica}".encode()
        try:
            content = message.content if self._keys is None else self._keys.open(message.content, about)
            return decode_stored(what, partial(msgspec.msgpack.decode, type=form), content)
        except BadSeal:
            pass
        except UnreadableRecord as error:  # from another version
            logger.warning("%s", error)
        secrets = "" if self._keys is None else "other secrets, or "
        message.refuse(f"this replica cannot read the message: it has {secrets}another version")
        return None

    def register(self, kind: str, form: type[T], handler: Callable[[ReplicaMessage, T], None]) -> None:
        """Register ``handler`` for the received messages of this ``kind``, whose content is an instance of ``form``.

        Messages that can't be read are refused. See `Messenger.register`.
        """

        def read(message: ReplicaMessage) -> None:
            content = self.open(kind, message, form)
            if content is not None:
                handler(message, content)

        self._messenger.register(kind, read)


class _Reply:
    """A future for the acknowledgement of one sent message. `Messenger.send` waits for it."""

    def __init__(self) -> None:
        self.envelope: _MessageEnvelope | None = None
        """The acknowledgement; `None` until it has arrived."""
        self._sleeper = Sleeper()
        self.is_late = False
        """True after the first attempt to send the message."""

    def deliver(self, envelope: _MessageEnvelope) -> None:
        self.envelope = envelope
        self._sleeper.wake()

    async def wait(self) -> bytes:
        while self.envelope is None:
            await self._sleeper.sleep()
        if self.envelope.kind == "refused":
            raise MessageRefused(self.envelope.content.decode(errors="replace"))
        return self.envelope.content


_decoder: Final = msgspec.msgpack.Decoder(_MessageEnvelope)


def _encode(kind: str, sender: str, number: int, content: bytes) -> bytes:
    return msgspec.msgpack.encode(_MessageEnvelope(kind, sender, number, content))
