"""RetryReceiver resumes handlers that wait on this replica, when other replicas forward the retried requests of their
clients.

Each `ForwardedExchange` sends the lines of its handler to the replica that forwarded the retry.

The messages between the two replicas are sealed, because they contain access tokens of callers, answers of users, and
results.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import trio

from ..concurrency.bounded import BoundedDict
from ..jsonrpc.codec import decode_value, pack_value
from ..jsonrpc.errors import INTERNAL_ERROR, CodedError
from ..jsonrpc.messages import ErrorResponse, Request, RequestId
from ..protocol.errors import REPLICA_LOST
from ..protocol.revisions import CORE, Vocabulary
from ..runtime.cancellation import CancelCause
from ..runtime.exchange import Exchange
from ..runtime.outbox import Outbox
from ..runtime.peer import ANY_CLIENT, Auth, Headers, Peer, Principal, PrincipalId
from ..runtime.replies import error_line
from ..runtime.requests.rounds import Retry
from ..runtime.requests.runner import unknown_state
from ..state.events import RequestReceived
from ..state.stateless import StatelessState
from ..stores.record_codec import decode_stored
from ..stores.task_store import UnreadableRecord
from .messenger import LEASE_SECONDS, MessageRefused, ReplicaDead, ReplicaMessage, SealedMessenger

if TYPE_CHECKING:
    from ..runtime.outbox import Owner
    from ..runtime.requests.host import RequestHost
    from ..state.connection import ConnectionState
    from ..state.requests import InboundRequest

RETRY: Final = "retry"
"""The kind of messages that forward a retried request to the replica where its handler waits: an encrypted
`RetryMessage`."""
LINES: Final = "retry-lines"
"""The kind of messages that send a handler's messages to the forwarding replica: an encrypted `LinesMessage`."""
CANCEL: Final = "retry-cancel"
"""The kind of messages that cancel a forwarded request: an encrypted `CancelMessage`."""
CHECK: Final = "retry-check"
"""The kind of messages that ask which forwarded requests are still running: an encrypted `CheckMessage`. The
acknowledgement is a `CheckAck`."""


class ForwardedAuth(msgspec.Struct, frozen=True, array_like=True):
    """The caller's `Auth` as it is sent to another replica. The data that server code has added (``extra``) is
    omitted."""

    token: str
    issuer: str | None
    subject: str | None
    client_id: str | None
    scopes: list[str]
    claims: bytes
    expires_at: float | None
    key_thumbprint: str | None

    def __repr__(self) -> str:  # without the token
        return f"ForwardedAuth(subject={self.subject!r})"

    @classmethod
    def of(cls, auth: Auth) -> ForwardedAuth:
        """Return the data of ``auth`` that can be sent to another replica.

        If one of the claims isn't JSON, which only a custom verifier can cause, all claims are left out.
        """
        principal = auth.principal
        try:
            claims = pack_value(dict(principal.claims))
        except (TypeError, ValueError, msgspec.MsgspecError):
            claims = b"{}"
        return cls(
            auth.token,
            principal.issuer,
            principal.subject,
            principal.client_id,
            sorted(principal.scopes),
            claims,
            principal.expires_at,
            principal.key_thumbprint,
        )

    def auth(self, before: Auth | None) -> Auth:
        """Return the `Auth` of the forwarded request's caller.

        Its field ``extra`` comes from ``before``, the `Auth` of an earlier request of the same caller to this replica.
        """
        principal = Principal(
            issuer=self.issuer,
            subject=self.subject,
            client_id=self.client_id,
            scopes=frozenset(self.scopes),
            claims=decode_value(self.claims),
            expires_at=self.expires_at,
            key_thumbprint=self.key_thumbprint,
        )
        return Auth(self.token, principal, {} if before is None else before.extra)


class RetryMessage(msgspec.Struct, frozen=True, array_like=True):
    """The message that forwards a retried request to another replica.

    The sender has already checked the request's headers, access token, scopes and encrypted state.
    """

    number: int
    """The number of the forwarded request, counted by the forwarding replica."""
    handle: bytes
    id: RequestId
    method: str
    params: bytes
    """The parameters of the request as JSON text, with the client's responses. ``_meta`` contains the remaining
    time."""
    size: int
    principal: PrincipalId | None
    auth: ForwardedAuth | None
    headers: dict[str, str] | None

    def __repr__(self) -> str:  # the client's input and headers are secret, so the repr omits them
        return f"RetryMessage(number={self.number!r}, method={self.method!r}, auth={self.auth!r})"


class LinesMessage(msgspec.Struct, frozen=True, array_like=True):
    """A batch of bytes from the JSON-RPC messages that a handler sends to its client. A batch may begin or end within a
    message.

    The owner sends a few batches before they are acknowledged. The forwarding replica acknowledges a batch when it has
    room for more.
    """

    number: int
    """The number of the forwarded request."""
    index: int
    """The number of the batch, from 0."""
    lines: bytes
    is_last: bool
    """True for the last batch. The last line of this batch is the response. If the batch is empty, the request has
    ended without a response."""


class CancelMessage(msgspec.Struct, frozen=True, array_like=True):
    """The message that cancels a forwarded request, because the client has disconnected or the request's deadline has
    passed."""

    number: int
    is_late: bool
    """True if the deadline of the client's request has passed."""
    reason: str


class CheckMessage(msgspec.Struct, frozen=True, array_like=True):
    """The message that asks another replica which forwarded requests are still running.

    It lists the requests in both directions between the two replicas, by number.
    """

    forwarded: list[int]
    """The numbers of the requests that the sender has forwarded to the receiver."""
    running: list[int]
    """The numbers of the requests that the receiver has forwarded to the sender, and that are running on the sender."""


class CheckAck(CheckMessage, frozen=True):
    """The answer to a `CheckMessage`. Of the forwarded requests in that message, it lists those that don't run on the
    answering replica."""


STORAGE_TIMEOUT: Final = LEASE_SECONDS
"""Seconds for which a failing storage is retried while a retried request is forwarded."""
_BATCH_BYTES_LIMIT: Final = 128 * 1024
BATCH_WINDOW: Final = 8
"""The maximum number of batches of one request that are sent before the first of them is acknowledged."""
_CANCELLED_LIMIT: Final = 1000

_REPLICA_LOST_TEXT: Final = "the process that ran this call has ended; call again"


def replica_lost() -> CodedError:
    """Return the error for a request whose handler ran on a replica that has ended."""
    return CodedError(REPLICA_LOST, _REPLICA_LOST_TEXT)


class ForwardedExchange(Exchange):
    """A retried request that the replica ``forwarder`` has forwarded to this replica under the number ``number``. See
    `Exchange`."""

    __slots__ = ("abort_writing", "forwarder", "is_over", "number")

    def __init__(self, state: ConnectionState, outbox: Outbox, forwarder: str, number: int) -> None:
        super().__init__(state, outbox, ANY_CLIENT)
        self.forwarder = forwarder
        self.number = number
        self.is_over = False
        """True once nothing more is sent for this request."""
        self.abort_writing = trio.CancelScope()

    @property
    def party(self) -> object:
        return ANY_CLIENT if self.peer.principal is None else self.peer.principal

    @property
    def key(self) -> tuple[str, int]:
        """The unique key of the forwarded request.

        It consists of the id of the replica that forwarded the request, and of the request's number there.
        """
        return self.forwarder, self.number

    def cancel(self, cause: CancelCause, reason: str) -> None:
        """Cancel the forwarded request and send no more messages, because its client has disconnected or its deadline
        has passed."""
        self._close_silently()
        self.cancel_all(cause, reason)

    def _close_silently(self) -> None:
        self.is_over = True
        self.outbox.close()
        self.abort_writing.cancel(reason="the client no longer waits")

    def cancelled(self, request: InboundRequest, cause: CancelCause) -> None:
        if self.is_over:
            return
        if cause is CancelCause.DEADLINE:  # the forwarding replica notices the deadline itself, so it needs no error
            self._close_silently()
        else:
            self.reply(error_line(ErrorResponse(request.id, REPLICA_LOST, _REPLICA_LOST_TEXT)))

    def reply(self, line: bytes | None, owner: Owner | None = None) -> None:
        if self.is_over:
            return
        self.is_over = True
        if line is not None:
            self.outbox.put(line, owner)
        self.outbox.nudge()

    def reply_at_once(self, line: bytes | None) -> None:
        self.reply(line)


class RetryReceiver:
    """Receives the retried requests that other replicas forward, and resumes the handlers of these requests.

    The handlers wait in ``host``. Active while `run` runs.

    ``on_open`` is called when a retry arrives. ``vocabulary`` has the known methods.
    """

    def __init__(
        self,
        host: RequestHost,
        messenger: SealedMessenger,
        on_open: Callable[[], object],
        vocabulary: Vocabulary = CORE,
    ) -> None:
        self._host = host
        self._messenger = messenger
        self._state = StatelessState(vocabulary)
        self.exchanges: dict[tuple[str, int], ForwardedExchange] = {}
        """The exchanges that haven't ended, by the keys of their requests."""
        self._cancelled = BoundedDict[tuple[str, int], None](_CANCELLED_LIMIT)
        """The keys of requests that were cancelled, possibly before they arrived."""
        self._on_open = on_open
        self._nursery: trio.Nursery | None = None
        self._all_finished = trio.lowlevel.ParkingLot()
        """The task that waits here until all exchanges have ended."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Receive forwarded requests until cancelled.

        Then cancel the requests that are still running, before any of their handlers continues, so that each handler
        sees why it was cancelled.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._messenger.register(RETRY, RetryMessage, self._read_retry)
                self._messenger.register(CANCEL, CancelMessage, self._read_cancel)
                task_status.started()
                await self._sleep_until_cancelled()
        finally:
            self._nursery = None

    async def _sleep_until_cancelled(self) -> None:
        def abort(_: Any) -> trio.lowlevel.Abort:  # when cancelling, trio calls this before it wakes a task
            self._nursery = None
            self.cancel_all("the server has ended")
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def cancel_all(self, reason: str) -> None:
        """Cancel all forwarded requests, because the server is shutting down. If there is time, send error responses
        to the replicas that forwarded them."""
        for exchange in tuple(self.exchanges.values()):
            exchange.cancel_all(CancelCause.SHUTDOWN, reason)

    async def wait_finished(self) -> None:
        """Wait until no forwarded request runs on this replica, and the last messages of these requests are sent."""
        while self.exchanges:
            await self._all_finished.park()

    # Messages

    def _read_retry(self, message: ReplicaMessage, retry: RetryMessage) -> None:
        if self._nursery is None:
            message.refuse("it is shutting down")
        elif (message.sender, retry.number) in self._cancelled:  # the cancellation has arrived before the request
            message.refuse("its client has left")
        else:
            self._accept(message, retry, self._nursery)

    def _accept(self, message: ReplicaMessage, retry: RetryMessage, nursery: trio.Nursery) -> None:
        try:
            params = decode_stored("a retry", decode_value, retry.params)
        except UnreadableRecord as error:
            message.refuse(str(error))
            return
        event = self._state.receive(Request(retry.id, retry.method, params, retry.size))
        # Only a replica with another version of trio-mcp can have forwarded an invalid request.
        if not isinstance(event, RequestReceived):
            message.refuse("it has another version")
            return
        message.ack()
        self._host.load.received_retries += 1
        request = event.request
        exchange = ForwardedExchange(self._state, Outbox(self._host.limits.high_water), message.sender, retry.number)
        self.exchanges[exchange.key] = exchange
        nursery.start_soon(self._forward_lines, exchange)
        self._on_open()
        try:
            self._resume_handler(exchange, request, retry)
        except Exception:
            exchange.reply_at_once(error_line(ErrorResponse(request.id, INTERNAL_ERROR, "Internal error")))
            raise  # the caller of this method logs the exception

    def _resume_handler(self, exchange: ForwardedExchange, request: InboundRequest, retry: RetryMessage) -> None:
        party = ANY_CLIENT if retry.principal is None else retry.principal
        parked = self._host.parking.find(retry.handle, party)
        if parked is None:
            self._state.finish(request)
            error = unknown_state()
            exchange.reply_at_once(error_line(ErrorResponse(request.id, error.code, error.message)))
            return
        before = parked.exchange.peer
        exchange.peer = Peer(
            headers=None if retry.headers is None else Headers.of_lower_case(retry.headers),
            principal=retry.principal,
            auth=None if retry.auth is None else retry.auth.auth(before.auth),
            caller=parked.ticket.caller,
            check_scopes=before.check_scopes,
        )
        parked.runner.go_on(request, exchange, Retry(retry.handle, request.params.get("inputResponses") or {}))

    def _read_cancel(self, message: ReplicaMessage, cancel: CancelMessage) -> None:
        message.ack()
        key = message.sender, cancel.number
        self._cancelled[key] = None
        exchange = self.exchanges.get(key)
        if exchange is not None:
            exchange.cancel(CancelCause.DEADLINE if cancel.is_late else CancelCause.DISCONNECT, cancel.reason)

    async def _forward_lines(self, exchange: ForwardedExchange) -> None:
        """Send the messages of a forwarded request's handler to the replica that forwarded the request, until the
        request ends."""
        lost: str | None = None
        try:
            with exchange.abort_writing:
                await self._send_all(exchange)
        except ReplicaDead:
            lost = "the replica that took the request has ended"
        except MessageRefused as error:
            lost = f"the replica that took the request no longer waits for it: {error}"
        except OSError as error:
            lost = f"the replica that took the request cannot be reached: {error}"
        finally:
            del self.exchanges[exchange.key]
            if lost is not None:
                exchange.cancel(CancelCause.DISCONNECT, lost)
            if not self.exchanges:
                self._all_finished.unpark_all()

    async def _send_all(self, exchange: ForwardedExchange) -> None:
        failed = list[Exception]()
        window = trio.Semaphore(BATCH_WINDOW)

        async def send(batch: LinesMessage) -> None:
            try:
                await self._messenger.send(exchange.forwarder, LINES, batch, patience=STORAGE_TIMEOUT)
            except (ReplicaDead, MessageRefused, OSError) as error:
                failed.append(error)
                nursery.cancel_scope.cancel(reason="a batch of lines could not be sent")
            window.release()

        async with trio.open_nursery() as nursery:
            await self._send_batches(exchange, window, partial(nursery.start_soon, send))
        if failed:
            raise failed[0]

    async def _send_batches(
        self, exchange: ForwardedExchange, window: trio.Semaphore, send: Callable[[LinesMessage], None]
    ) -> None:
        place, is_last = 0, False
        while not is_last:
            lines = await exchange.outbox.take()
            while len(lines) < _BATCH_BYTES_LIMIT and (more := exchange.outbox.take_nowait()):
                lines += more
            is_last = exchange.is_over and not exchange.outbox.size
            for start in range(0, max(len(lines), 1), _BATCH_BYTES_LIMIT):
                end = start + _BATCH_BYTES_LIMIT
                batch = LinesMessage(exchange.number, place, bytes(lines[start:end]), is_last and end >= len(lines))
                await window.acquire()
                send(batch)
                place += 1
