"""RetryForwarder: forwards a client's retried request to the replica where the request's handler waits, and sends the
messages of that handler to the client.

The forwarding replica checks a retry like any other, and runs it as an ordinary request, which takes a slot; its cancel
scope cancels the remote handler. The owner runs the handler. Each replica reports the end of a call to the other. Since
messages are lost when their sender dies, each also checks its open calls at intervals.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import trio

from ..concurrency.wakeups import Sleeper
from ..jsonrpc.codec import decode, pack_value
from ..jsonrpc.errors import INTERNAL_ERROR, TOO_BUSY, CodedError
from ..jsonrpc.messages import ErrorResponse, Response
from ..protocol.errors import REPLICA_LOST
from ..protocol.revisions import CORE, Vocabulary
from ..runtime.cancellation import REMAINING_MS, CancelCause
from ..stores.record_codec import decode_stored
from ..stores.task_store import UnreadableRecord
from .messenger import MessageRefused, Messenger, ReplicaDead, ReplicaMessage, SealedMessenger, logged_failure
from .retry_receiver import (
    BATCH_WINDOW,
    CANCEL,
    CHECK,
    LINES,
    RETRY,
    STORAGE_TIMEOUT,
    CancelMessage,
    CheckAck,
    CheckMessage,
    ForwardedAuth,
    LinesMessage,
    RetryMessage,
    RetryReceiver,
    replica_lost,
)

if TYPE_CHECKING:
    from ..runtime.requests.host import RequestHost
    from ..runtime.requests.scope import RequestScope
    from ..server.request_state import RemoteRetry, StateCipher

logger = logging.getLogger("trio_mcp")

_CHECK_INTERVAL: Final = 1.0
_SEND_TIMEOUT: Final = 1.0
"""Seconds for which a failing storage is retried before a retried request is forwarded. The client of the request
waits, and can send the request again."""
_CANCEL_TIME: Final = 2.0
"""The maximum number of seconds for sending a `CancelMessage`. If the message is lost, the next check (`_check`)
notices this."""
_FAREWELL_TIMEOUT: Final = 1.0
"""Seconds for sending the ends of running forwarded requests when the server ends."""
_UNREACHABLE: Final = "Too busy: the process that runs this call cannot be reached now; try again later"


_check_acks: Final = msgspec.msgpack.Decoder(CheckAck)


class _ForwardedCall:
    """A client's retry of a request. This replica has forwarded the retry to the replica ``owner``, in which the
    request's handler waits for it."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.is_accepted = False
        """True once ``owner`` has received the retried request."""
        self.is_over = False
        """True once ``owner`` sends nothing more for this request."""
        self.batches: dict[int, tuple[ReplicaMessage, LinesMessage]] = {}
        """Batches of messages without an acknowledgement, by number, which may arrive out of order."""
        self.next_index = 0
        """The number of the batch that is passed on next."""
        self._failure: CodedError | None = None
        self._sleeper = Sleeper()

    def deliver(self, message: ReplicaMessage, batch: LinesMessage) -> None:
        """Store a batch of a handler's messages, which the replica that runs the handler has sent. Batches may arrive
        out of order."""
        if batch.index < self.next_index:  # a batch that was sent twice: the client already has its messages
            message.ack()
        elif batch.index >= self.next_index + BATCH_WINDOW:
            message.refuse("too many batches")
        else:
            self.batches[batch.index] = message, batch
            self._sleeper.wake()

    def fail(self, error: CodedError) -> None:
        """Make `next_batch` raise ``error``, because no more batches will arrive from the replica that runs the
        handler."""
        self.is_over, self._failure = True, error
        self._sleeper.wake()

    async def next_batch(self) -> LinesMessage:
        """Wait for the next batch of messages from the replica that runs the handler, and return it.

        The batch stays in ``batches`` until `ack` is called.
        """
        while self.next_index not in self.batches:
            if self._failure is not None:
                raise self._failure
            await self._sleeper.sleep()
        return self.batches[self.next_index][1]

    def ack(self) -> None:
        """Acknowledge the current batch of messages, so that the replica that runs the handler may send another
        batch."""
        letter, _ = self.batches.pop(self.next_index)
        self.next_index += 1
        letter.ack()

    def refuse_batches(self) -> None:
        """Refuse all batches of messages that wait to be sent to the client, because the client has disconnected."""
        for letter, _ in self.batches.values():
            letter.refuse("the client has left")
        self.batches.clear()


class RetryForwarder:
    """Forwards clients' retried requests to the replicas where the handlers of these requests wait for input.

    ``host`` runs the requests of this replica.

    `receiver` handles the retried requests that other replicas forward to this replica.
    """

    def __init__(
        self, host: RequestHost, messenger: Messenger, cipher: StateCipher, vocabulary: Vocabulary = CORE
    ) -> None:
        self._host = host
        self._messenger = SealedMessenger(messenger, cipher)
        self._check_wakeup = Sleeper()
        self.receiver = RetryReceiver(host, self._messenger, self._check_wakeup.wake, vocabulary)
        self._last = 0
        self._forwarded: dict[int, _ForwardedCall] = {}
        """The forwarded requests that haven't ended, by number."""
        self._drain_scope = trio.CancelScope()
        """This cancel scope limits the time that forwarded requests and waiting handlers have when the server ends."""

    @property
    def is_idle(self) -> bool:
        """True if this replica waits for no request that it has forwarded, and runs no request for another replica."""
        return not (self._forwarded or self.receiver.exchanges)

    # Lifecycle

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Forward retried requests to other replicas, and receive retried requests from them, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._messenger.register(LINES, LinesMessage, self._read_lines)
            self._messenger.register(CHECK, CheckMessage, self._read_check)
            nursery.start_soon(self._check)
            await self.receiver.run(task_status=task_status)

    def shut_down(self, *, hurry: bool = False) -> None:
        """Begin the shutdown of this replica. Its waiting handlers and forwarded requests must finish within
        `Limits.drain_timeout`.

        These are the handlers that wait for a client's input, and the requests that other replicas have forwarded.

        Clients can send their answers to any replica meanwhile. With ``hurry``, less than a second is left for
        everything.
        """
        end = trio.current_time() + (0.0 if hurry else self._host.limits.drain_timeout)
        self._drain_scope.deadline = min(self._drain_scope.deadline, end)

    async def drain(self) -> None:
        """Call `shut_down`, and wait until this replica has no waiting handler and no forwarded request.

        A waiting handler waits for a client's input. A forwarded request comes from another replica.
        """
        self.shut_down()
        with self._drain_scope:
            while self._host.parking or self.receiver.exchanges:
                await self._host.parking.emptied()
                await self.receiver.wait_finished()
        self.receiver.cancel_all("the server is shutting down")
        for scope in self._host.parking:
            scope.abort(CancelCause.SHUTDOWN, "the server is shutting down")
        with trio.move_on_after(_FAREWELL_TIMEOUT):
            await self.receiver.wait_finished()

    # The following methods forward a client's retry to the replica where the request's handler is waiting.

    async def forward(self, scope: RequestScope, retry: RemoteRetry) -> Any:
        """Resume the handler of ``retry``, which waits for the client's input on another replica, and return the
        handler's result.

        The result is plain data.

        The lines of the handler are sent to the client. If this call ends for any reason, the handler is cancelled.
        ``scope`` is the request that carries the retry.

        Raises:
            CodedError: The error of the handler; -31003 if its replica has ended; -31000 if the storage fails.
        """
        self._last += 1
        self._host.load.forwarded_retries += 1
        number, call = self._last, _ForwardedCall(retry.replica)
        self._forwarded[number] = call
        self._check_wakeup.wake()
        try:
            await self._send(scope, retry, number, call)
            return await self._relay_lines(scope, call)
        finally:
            del self._forwarded[number]
            call.refuse_batches()
            if not call.is_over:
                await self._cancel(scope, number, call.owner)

    async def _send(self, scope: RequestScope, retry: RemoteRetry, number: int, call: _ForwardedCall) -> None:
        message = _retry_message(scope, retry, number)
        try:
            await self._messenger.send(call.owner, RETRY, message, patience=_SEND_TIMEOUT)
        except ReplicaDead:
            call.is_over = True
            raise replica_lost() from None
        except MessageRefused as error:
            call.is_over = True
            words = f"the process that ran this call cannot continue it: {error}; call again"
            raise CodedError(REPLICA_LOST, words) from None
        except OSError as error:  # don't log a warning, because the storage logs its own outages
            logger.debug("could not forward a retry to the replica %s: %s", call.owner, error)
            raise scope.exchange.unavailable(_UNREACHABLE) from None
        call.is_accepted = True

    async def _relay_lines(self, scope: RequestScope, call: _ForwardedCall) -> Any:
        lines = bytearray()
        while True:
            batch = await call.next_batch()
            before = len(lines)  # the length of the incomplete line with which the previous batch ended
            lines += batch.lines
            # Each batch of messages except the last may end within a message, so forward only complete lines.
            # The last line of the last batch is the response to the client's request, so it isn't forwarded here.
            end = lines.rfind(b"\n", before, max(len(lines) - 1, 0) if batch.is_last else len(lines)) + 1
            if end:
                scope.put(bytes(lines[:end]))
                del lines[:end]
            if batch.is_last:
                call.is_over = True
                call.ack()
                return _result_in(lines, scope)
            await scope.outbox.room()
            call.ack()

    async def _cancel(self, scope: RequestScope, number: int, owner: str) -> None:
        cancellation = scope.cancellation
        is_late = cancellation is not None and cancellation.cause is CancelCause.DEADLINE
        reason = "the request has ended" if cancellation is None else cancellation.text
        cancel = CancelMessage(number, is_late, reason)
        # Only log that the cancellation couldn't be sent, because `_check` runs at intervals.
        # The next `_check` will end the cancelled request on the replica that runs its handler.
        with (
            logged_failure(f"could not send a cancel to the replica {owner}"),
            trio.move_on_after(_CANCEL_TIME, shield=True),
        ):
            await self._messenger.send(owner, CANCEL, cancel, patience=0)

    # Messages

    def _read_lines(self, message: ReplicaMessage, batch: LinesMessage) -> None:
        call = self._forwarded.get(batch.number)
        if call is None or call.owner != message.sender:
            message.refuse("the client has left")
        else:
            call.deliver(message, batch)

    def _read_check(self, message: ReplicaMessage, check: CheckMessage) -> None:
        carried = [each for each in check.forwarded if (message.sender, each) not in self.receiver.exchanges]
        running = [number for number in check.running if number not in self._forwarded]
        message.ack(msgspec.msgpack.encode(CheckAck(carried, running)))

    async def _check(self) -> None:
        """Ask the other replicas, at intervals, which of the forwarded requests are still running.

        This is necessary because the message about the end of a request may be lost.
        """
        while True:
            while self.is_idle:
                await self._check_wakeup.sleep()
            await trio.sleep(_CHECK_INTERVAL)
            async with trio.open_nursery() as nursery:
                owners = {call.owner for call in self._forwarded.values()}
                for replica in owners.union(taker for taker, _ in self.receiver.exchanges):
                    nursery.start_soon(self._check_with, replica)

    async def _check_with(self, replica: str) -> None:
        carried = [number for number, call in self._forwarded.items() if call.owner == replica and call.is_accepted]
        running = [number for taker, number in self.receiver.exchanges if taker == replica]
        check, error, reason = CheckMessage(carried, running), replica_lost(), "the client has left"
        try:
            receipt = await self._messenger.send(replica, CHECK, check, patience=STORAGE_TIMEOUT)
            unknown = decode_stored("a receipt", _check_acks.decode, receipt)
        except ReplicaDead:
            unknown, reason = CheckAck(carried, running), "the replica that took the request has ended"
        except (MessageRefused, UnreadableRecord) as refused:
            unknown, reason = CheckAck(carried, running), str(refused)
        except OSError as failed:
            logger.warning(
                "calls between the replica %s and this one end, since it cannot be reached: %s", replica, failed
            )
            unknown, reason = CheckAck(carried, running), "the replica that took the request cannot be reached"
            error = CodedError(TOO_BUSY, _UNREACHABLE)
        for number in unknown.forwarded:
            if number in self._forwarded:
                self._forwarded[number].fail(error)
        for number in unknown.running:
            exchange = self.receiver.exchanges.get((replica, number))
            if exchange is not None:
                exchange.cancel(CancelCause.DISCONNECT, reason)


def _retry_message(scope: RequestScope, retry: RemoteRetry, number: int) -> RetryMessage:
    request, peer = scope.request, scope.exchange.peer
    params = request.params
    if scope.due < math.inf:
        left = scope.due - scope.runner.limits.deadline_grace - trio.current_time()
        params = {**params, "_meta": {**request.meta, REMAINING_MS: max(0, math.ceil(left * 1000))}}
    return RetryMessage(
        number,
        retry.handle,
        request.id,
        request.method.name,
        pack_value(params),
        request.size,
        peer.principal,
        None if peer.auth is None else ForwardedAuth.of(peer.auth),
        None if peer.headers is None else dict(peer.headers),
    )


def _result_in(line: bytearray, scope: RequestScope) -> Any:
    """Return the result in ``line``, the JSON-RPC response to a request, which ``scope`` represents. Raises
    `CodedError` for an error response."""
    if not line:
        raise replica_lost()
    match decode(line):
        case Response(_, result) if type(result) is dict:  # the result of an MCP response must be an object
            found = cast("dict[str, Any]", result)
            scope.request.failed = found.get("isError") is True
            return found
        case ErrorResponse(_, code, message, data):
            raise CodedError(code, message, data)
        case _:
            raise CodedError(INTERNAL_ERROR, "Internal error: the replica that ran this call sent an invalid response")
