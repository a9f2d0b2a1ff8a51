"""DuplexChannel: the trio shell of one connection.

Three tasks and one task per request of the peer::

    reader   channel.receive -> decode -> ConnectionState.receive -> act     never waits for a handler
    writer   Outbox.take -> channel.send                                     the only one that writes
    notices  NotificationQueue: our callbacks, one after another
    answer   one per request of the peer, in a nursery of its own (RequestScope)

All state of what is in flight changes in `ConnectionState`, synchronously; the tasks here only carry it out.
"""

from __future__ import annotations

import contextlib
import logging
import traceback
from typing import Any, Final, Protocol

import trio

from ..jsonrpc.codec import decode, frame_error, frame_notification, frame_request, frame_result
from ..jsonrpc.errors import INTERNAL_ERROR, CodedError, MCPError, NotSerializable, PeerError
from ..jsonrpc.messages import ErrorResponse
from ..spec.converters import NotExpressible, structure, unstructure
from ..spec.errors import TOO_BUSY
from ..spec.meta import PROGRESS_TOKEN, SERVER_INFO
from ..spec.notifications import ProgressParams
from ..spec.revisions import Revision
from ..state import events
from ..state.connection_state import ConnectionState
from ..state.requests import InboundRequest
from .batches import BatchReplies
from .calls import Call, OnProgress, Progress, Settled
from .cancellation import CancelCause, reason_of
from .channel import ConnectionLost, MessageChannel, UnreadableFrame
from .in_flight import InFlight
from .limits import Limits
from .notifications import NotificationQueue
from .outbox import Outbox, Segment
from .overruns import Overruns
from .progress import ProgressReporter
from .request_scope import RequestScope, current_request

__all__ = ["NOT_NOW", "DuplexChannel", "RequestHandler"]

logger = logging.getLogger("trio_mcp")

NOT_NOW: Final = object()
"""What `RequestHandler.answer_now` returns for a request that needs a task of its own."""

_REPLY_MARKS = 4
_READING_MARKS = 64
_NOTICES_KEPT = 10_000


class RequestHandler(Protocol):
    """What a server or a client does with what the peer sends."""

    def answer_now(self, request: InboundRequest) -> Any:
        """The result of a request that needs no waiting, or `NOT_NOW`. Runs in the reader: it must be quick.
        Raises `CodedError` for an error reply."""

    async def answer(self, scope: RequestScope) -> Any:
        """The result of a request, in its own nursery. Raises `CodedError` for an error reply; any other
        exception is reported and answered -32603 without its text."""

    def wants(self, event: events.NotificationReceived) -> bool:
        """Whether `notified` is to be called for it."""

    async def notified(self, event: events.NotificationReceived) -> None:
        """A notification, one at a time, in wire order."""


class DuplexChannel:
    """One connection, from the moment `run` starts until it returns.

    ``may_log``: handlers' log messages may go out. ``server_info``: plain data that results carry where the
    revision says so. ``workers`` bounds the threads of plain ``def`` handlers, also across connections.
    """

    def __init__(
        self,
        channel: MessageChannel,
        state: ConnectionState,
        handler: RequestHandler,
        limits: Limits,
        *,
        may_log: bool = False,
        server_info: dict[Revision, Any] | None = None,
        workers: trio.CapacityLimiter | None = None,
    ) -> None:
        self.state = state
        self.limits = limits
        self.may_log = may_log
        self.outbox = Outbox(limits.high_water)
        self.workers = workers or trio.CapacityLimiter(limits.worker_threads)
        self.trio_token = trio.lowlevel.current_trio_token()
        self._channel = channel
        self._handler = handler
        self._server_info = server_info or {}
        self._in_flight = InFlight(limits, self._start)
        self._notifications = NotificationQueue(
            limits.max_pending_notifications, handler.notified, self._callback_failed
        )
        self._overruns = Overruns(limits.cleanup_grace, self._overran)
        self._notices: dict[bytes, Segment] = {}
        self._late_progress: list[ProgressReporter] = []
        self._progress_waits = trio.lowlevel.ParkingLot()
        self._requests: trio.Nursery | None = None
        self._drain_timeout = limits.drain_timeout
        self._refuse_reason: str | None = None
        self._ending = False
        self._ended = trio.Event()
        self._sleeper: trio.lowlevel.Task | None = None
        self._no_replies: ConnectionLost | None = None
        """Why no reply can reach us any more."""
        self.lost: ConnectionLost | None = None
        """Why nothing we write reaches the peer any more, either."""

    # Life

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve the connection until its end, then close the transport.

        Returns normally however the connection ends; a lost connection is no exception here, but for those
        who wait on it (DESIGN ruling 17). At the end of input, or after `shut_down`, accepted requests go on
        for up to ``drain_timeout`` seconds and are cancelled then (ruling 14). Cancelled from outside, it
        cancels all requests at once.
        """
        try:
            async with trio.open_nursery() as service:
                for task in (self._write, self._notifications.run, self._overruns.run, self._let_progress_out):
                    service.start_soon(task)
                async with trio.open_nursery() as self._requests:
                    service.start_soon(self._read)
                    task_status.started()
                    await self._until_ending()
                    await self._drain()
                await self._flush()
                service.cancel_scope.cancel(reason="the connection has ended")
        finally:
            self._fail_calls(ConnectionLost("the connection was closed"))
            try:
                await self._channel.aclose()
            finally:
                self._ended.set()

    async def _until_ending(self) -> None:
        """Wait for the end. When we are cancelled meanwhile, all requests learn why before any of them runs:
        trio calls ``abort`` functions at once, and wakes the tasks afterwards."""
        if self._ending:
            return

        def abort(_: Any) -> trio.lowlevel.Abort:
            self._sleeper = None
            for scope in self._in_flight:
                scope.cancel(CancelCause.PARENT, None)
            return trio.lowlevel.Abort.SUCCEEDED

        self._sleeper = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(abort)

    def _end(self) -> None:
        self._ending = True
        if self._sleeper is not None:
            trio.lowlevel.reschedule(self._sleeper)
            self._sleeper = None

    def shut_down(self, reason: str, *, drain_timeout: float | None = None) -> None:
        """Refuse new requests from now on, and end the connection when the accepted ones are done.

        ``drain_timeout`` in seconds replaces the limit's. While the connection is ending already, the
        requests that are left are cancelled at once instead.
        """
        self._refuse_reason = self._refuse_reason or reason
        if self._ending:
            self._cancel_all(CancelCause.SHUTDOWN, reason)
            return
        if drain_timeout is not None:
            self._drain_timeout = drain_timeout
        self._end()

    async def close(self, reason: str) -> None:
        """`shut_down` without any drain, and wait for the end of `run`."""
        self.shut_down(reason, drain_timeout=0.0)
        await self._ended.wait()

    async def _drain(self) -> None:
        if self.lost is None:
            with trio.move_on_after(self._drain_timeout):
                await self._in_flight.idle()
        cause = CancelCause.SHUTDOWN if self.lost is None else CancelCause.DISCONNECT
        self._cancel_all(cause, self._refuse_reason or "the connection has ended")

    def _cancel_all(self, cause: CancelCause, reason: str) -> None:
        for scope in self._in_flight:
            self._cancel(scope, cause, reason)

    async def _flush(self) -> None:
        """Let the last replies out, to a peer that reads."""
        if self.lost is None:
            with trio.move_on_after(max(self._drain_timeout, 0.5)):
                await self.outbox.flushed()

    def _lose(self, error: ConnectionLost) -> None:
        """Both directions are gone: nobody will read an answer, so nothing goes on."""
        if self.lost is not None:
            return
        self.lost = error
        self._fail_calls(error)
        self._cancel_all(CancelCause.DISCONNECT, error.reason)
        self._end()

    def _fail_calls(self, error: ConnectionLost) -> None:
        self._no_replies = self._no_replies or error
        for request in self.state.abandon_all():
            request.waiter.settle(Settled(None, error))

    # Writing

    async def _write(self) -> None:
        try:
            while True:
                await self._channel.send(await self.outbox.take())
        except ConnectionLost as error:
            self._lose(error)

    def send_now(self, line: bytes) -> None:
        """Put a line in the outbox, room or not."""
        self.outbox.put(line)

    def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        """Send a notification that belongs to no request. Synchronous; raises `NotSerializable`.

        One that is still waiting to be written is not sent twice: it would tell nothing new.
        """
        line = frame_notification(method, params) + b"\n"
        waiting = self._notices.get(line)
        if waiting is not None and not waiting.taken:
            return
        if len(self._notices) >= _NOTICES_KEPT:
            self._notices = {key: segment for key, segment in self._notices.items() if not segment.taken}
        self._notices[line] = self.outbox.put_sealed(line)

    # Reading

    async def _read(self) -> None:
        receive, state, act, max_batch = self._channel.receive, self.state, self._act, self.limits.max_batch
        outbox = self.outbox
        try:
            while True:
                try:
                    line = await receive()
                except UnreadableFrame as error:
                    act(events.Refused(ErrorResponse(None, error.code, error.message)))
                else:
                    act(state.receive(decode(line, max_batch=max_batch)))
                if outbox.size > _READING_MARKS * outbox.high_water:
                    # The peer sends on and on without reading its answers: it waits for itself now.
                    await outbox.room(_READING_MARKS)
        except trio.EndOfChannel:
            # Nobody will answer us any more, so our own calls are over; theirs are finished (ruling 14).
            self._fail_calls(ConnectionLost("the peer closed the connection"))
            self._end()
        except ConnectionLost as error:
            self._lose(error)

    def _act(self, event: events.Event, batch: BatchReplies | None = None) -> None:
        match event:
            case events.RequestReceived():
                self._accept(event.request, batch)
                return
            case events.ResultReceived():
                event.request.waiter.settle(Settled(event.result, None, self._notifications.received))
            case events.NotificationReceived():
                if self._handler.wants(event):
                    self._notifications.put(event)
            case events.ProgressReceived():
                self._progressed(event)
            case events.CancelReceived():
                self._cancel_received(event)
            case events.ErrorReceived():
                error = event.error
                event.request.waiter.settle(
                    Settled(None, PeerError(error.code, error.message, error.data), self._notifications.received)
                )
            case events.Refused():
                self._send_reply(_error_line(event.reply), batch)
                return
            case events.Ignored():
                logger.log(logging.WARNING if event.noteworthy else logging.DEBUG, "ignored: %s", event.reason)
            case events.BatchReceived():
                replies = BatchReplies(len(event.events), self.outbox.put)
                for member in event.events:
                    self._act(member, replies)
                return
        if batch is not None:
            batch.settle(None)

    def _progressed(self, event: events.ProgressReceived) -> None:
        call: Call = event.request.waiter
        if not call.wants_progress:
            return
        try:
            params = structure(event.params, ProgressParams)
        except ValueError as error:
            logger.debug("ignored: progress that makes no sense: %s", error)
            return
        call.progressed(Progress(params.progress, params.total, params.message))

    # Requests of the peer

    def _accept(self, request: InboundRequest, batch: BatchReplies | None) -> None:
        try:
            result = self._handler.answer_now(request)
        except CodedError as error:
            self._finish_now(request, self._error_reply(request, error), batch)
            return
        if result is not NOT_NOW:
            self._finish_now(request, self._reply_line(request, result), batch)
        elif self._refuse_reason is not None:
            refusal = CodedError(TOO_BUSY, "Shutting down: no new requests are taken")
            self._finish_now(request, self._error_reply(request, refusal), batch)
        elif not self._in_flight.admit(RequestScope(self, request, batch)):
            refusal = CodedError(TOO_BUSY, "Too busy: too many requests are in flight or waiting; try again later")
            self._finish_now(request, self._error_reply(request, refusal), batch)

    def _finish_now(self, request: InboundRequest, line: bytes, batch: BatchReplies | None) -> None:
        self.state.finish(request)
        self._send_reply(line, batch)

    def _send_reply(self, line: bytes, batch: BatchReplies | None) -> None:
        if batch is None:
            self.outbox.put(line)
        else:
            batch.settle(line)

    def _start(self, scope: RequestScope) -> None:
        assert self._requests is not None
        self._requests.start_soon(self._answer, scope)

    async def _answer(self, scope: RequestScope) -> None:
        line: bytes | None = None
        try:
            if not scope.is_cancelled:  # cancelled before it first ran: it never runs (ruling 4)
                line = await self._outcome(scope)
                scope.close()
                if line is not None and scope.batch is None and self.outbox.size >= _REPLY_MARKS * self.outbox.high_water:
                    await self._wait_for_room(scope)
        finally:
            scope.close()
            scope.is_over = True
            answered = self.state.finish(scope.request)
            if line is not None and answered:
                self._send_reply(line, scope.batch)
            elif scope.batch is not None:
                scope.batch.settle(None)
            self._in_flight.ended(scope)

    async def _outcome(self, scope: RequestScope) -> bytes | None:
        """Run the handler and everything it starts; the reply line, or `None` when it was cancelled."""
        request = scope.request
        result: Any = None
        failure: BaseException | None = None
        current_request.set(scope)
        scope.task = trio.lowlevel.current_task()
        try:
            async with trio.open_nursery() as nursery:
                scope.nursery = nursery
                try:
                    result = await self._handler.answer(scope)
                except (trio.Cancelled, KeyboardInterrupt, GeneratorExit):
                    raise
                except BaseException as error:  # noqa: BLE001 - even SystemExit ends only this request
                    failure = error
                    nursery.cancel_scope.cancel(reason="the handler failed")
        except BaseExceptionGroup as group:
            failure = _without_cancelled(group)
        except Exception as error:  # noqa: BLE001
            failure = error
        if scope.finished:  # by its cancel
            if failure is not None:
                logger.debug("request %r failed after its cancel: %r", request.id, failure)
            return None
        if failure is None and nursery.cancel_scope.cancelled_caught:
            return self._error_reply(request, CodedError(INTERNAL_ERROR, "The request was cancelled by its own handler"))
        if failure is not None:
            return self._error_reply(request, self._coded(request, failure))
        return self._reply_line(request, result)

    async def _wait_for_room(self, scope: RequestScope) -> None:
        with trio.CancelScope() as scope.reply_scope:
            await self.outbox.room(_REPLY_MARKS)

    def _coded(self, request: InboundRequest, failure: BaseException) -> CodedError:
        single = _only_member(failure)
        if isinstance(single, CodedError):
            return single
        logger.error("%s (request %r) failed", request.method.name, request.id, exc_info=failure)
        return CodedError(INTERNAL_ERROR, "Internal error")

    def _reply_line(self, request: InboundRequest, result: Any) -> bytes:
        revision = request.revision
        try:
            data: Any = unstructure(result, revision)
            if revision.result_type:
                data = {"resultType": "complete", **data}
                if info := self._server_info.get(revision):
                    data["_meta"] = {**(data.get("_meta") or {}), SERVER_INFO: info}
            return frame_result(request.id, data) + b"\n"
        except (NotExpressible, NotSerializable) as error:
            logger.error("%s (request %r) gave what cannot be sent: %s", request.method.name, request.id, error)  # noqa: TRY400
            return self._error_reply(request, CodedError(INTERNAL_ERROR, f"Internal error: the result is {error}" if isinstance(error, NotExpressible) else "Internal error: the result cannot be sent as JSON"))

    def _error_reply(self, request: InboundRequest, error: CodedError) -> bytes:
        return _error_line(ErrorResponse(request.id, error.code, error.message, error.data))

    # Cancels

    def _cancel_received(self, event: events.CancelReceived) -> None:
        scope = self._in_flight.find(event.request)
        if scope is None:
            return
        logger.debug("request %r cancelled by the peer: %.200r", event.request.id, event.reason)
        self._cancel(scope, CancelCause.PEER, event.reason)

    def _cancel(self, scope: RequestScope, cause: CancelCause, reason: str | None) -> None:
        if not scope.cancel(cause, reason):
            return
        self.state.finish(scope.request)
        if self._in_flight.drop_waiting(scope):
            if scope.batch is not None:
                scope.batch.settle(None)
        else:
            self._overruns.watch(scope)

    def _overran(self, scope: RequestScope) -> None:
        stack = "".join(traceback.StackSummary.extract(scope.stack()).format())
        logger.warning(
            "%s (request %r) still runs %g s after its cancel; it no longer counts as in flight. It is at:\n%s",
            scope.request.method.name,
            scope.request.id,
            self.limits.cleanup_grace,
            stack,
        )
        self._in_flight.release_slot(scope)

    def _callback_failed(self, error: Exception) -> None:
        logger.error("a notification callback failed", exc_info=error)

    # Progress that the interval held back

    def flush_progress_later(self, reporter: ProgressReporter) -> None:
        """Let the kept value of ``reporter`` out when its interval is over."""
        if reporter not in self._late_progress:
            self._late_progress.append(reporter)
            self._progress_waits.unpark()

    async def _let_progress_out(self) -> None:
        while True:
            while not self._late_progress:
                await self._progress_waits.park()
            # All intervals are the same, so the first is due first.
            reporter = self._late_progress[0]
            due = reporter.due
            if due is not None and due > trio.current_time():
                await trio.sleep_until(due)
                continue
            self._late_progress.pop(0)
            reporter.flush()

    # Requests of ours

    async def request(
        self,
        method: str,
        params: dict[str, Any] | None,
        revision: Revision,
        *,
        on_progress: OnProgress | None = None,
    ) -> Any:
        """Send a request and wait for its result, plain data.

        Leaving it for any reason, cancellation or an exception of ``on_progress``, withdraws the request if
        it was not yet written, and else sends exactly one ``notifications/cancelled`` with the reason. All
        notifications that came before the result have been handled when it returns.

        Raises `PeerError` for an error reply, `ConnectionLost`, `MethodUnavailable` when the revision lets
        us not send it, and `NotSerializable` for ``params`` that are no JSON; the last two send nothing.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        await self.outbox.room(_REPLY_MARKS)
        if self._no_replies is not None:
            raise _again(self._no_replies)
        request = self.state.open_request(method, revision)
        call = Call(request, on_progress, self.limits.max_pending_notifications)
        try:
            if call.wants_progress:
                params = dict(params or {})
                params["_meta"] = {**params.get("_meta", {}), PROGRESS_TOKEN: request.id}
            self.outbox.put_sealed(frame_request(request.id, method, params) + b"\n", call)
            end = await call.outcome()
        except BaseException as error:
            self._abandon(call, error)
            raise
        await self._notifications.caught_up(end.after)
        if end.error is not None:
            raise _again(end.error)
        return end.result

    def _abandon(self, call: Call, error: BaseException) -> None:
        request = call.request
        if not self.state.abandon(request) or self.outbox.withdraw(call) or isinstance(error, NotSerializable):
            return
        if self.lost is None:
            params = {"requestId": request.id, "reason": _cancel_reason(error)}
            # Ahead of all that waits, and even when the outbox is full (rulings 3 and 4).
            with contextlib.suppress(NotSerializable):
                self.outbox.put_first(frame_notification("notifications/cancelled", params) + b"\n")


def _cancel_reason(error: BaseException) -> str:
    """The reason of the inbound request we are working for, where that was cancelled, else our own."""
    scope = current_request.get(None)
    cancellation = scope.cancellation if scope is not None else None
    if cancellation is not None and cancellation.reason is not None:
        return cancellation.reason
    return reason_of(error)


def _again(error: MCPError) -> MCPError:
    """A fresh exception of the same kind for each that waits, so that tracebacks do not pile up on one."""
    fresh = error.__class__.__new__(error.__class__)
    fresh.__dict__.update(error.__dict__)
    fresh.args = error.args
    return fresh


def _error_line(reply: ErrorResponse) -> bytes:
    try:
        return frame_error(reply.id, reply.code, reply.message, reply.data) + b"\n"
    except NotSerializable:
        return frame_error(reply.id, reply.code, "Internal error: the error cannot be sent as JSON") + b"\n"


def _only_member(failure: BaseException) -> BaseException:
    """The exception in a group of one, however deep."""
    while isinstance(failure, BaseExceptionGroup) and len(failure.exceptions) == 1:
        failure = failure.exceptions[0]
    return failure


def _without_cancelled(group: BaseExceptionGroup[Any]) -> BaseException | None:
    """What remains of ``group``, re-raising what must pass through: cancels from outside, Ctrl-C."""
    passing, rest = group.split((trio.Cancelled, KeyboardInterrupt, GeneratorExit))
    if passing is not None:
        raise passing
    return rest
