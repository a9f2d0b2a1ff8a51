"""Inbound runs the requests of the peer, each in a nursery of its own."""

from __future__ import annotations

import logging
import math
import traceback
from collections import deque
from typing import TYPE_CHECKING, Any

import trio

from ...concurrency.together import only_member
from ...jsonrpc.errors import INTERNAL_ERROR, TOO_BUSY, CodedError
from ..batches import BatchReplies
from ..channel import ConnectionLost
from ..outbox import REQUEST_MARKS, Owner
from ..replies import Replies
from .abort_signal import NOT_WATCHED
from .admission import InFlight
from .cancellation import DEADLINE_PASSED, CancelCause
from .deadlines import Deadlines
from .handler import NOT_NOW
from .overruns import Overruns
from .parking import Parking
from .request_scope import Ask, RequestScope, current_request
from .retry import Retry

if TYPE_CHECKING:
    from ...state.events import CancelReceived
    from ...state.requests import InboundRequest
    from .handler import RequestHandler
    from .tracing import HandlerSpan, Tracer
    from .wiring import Wiring

__all__ = ["Inbound"]

logger = logging.getLogger("trio_mcp")


class Inbound:
    """Runs the peer's requests and answers them, each at most once, and never after its cancel."""

    def __init__(
        self, wiring: Wiring, handler: RequestHandler, replies: Replies, ask: Ask, tracer: Tracer | None
    ) -> None:
        self._wiring = wiring
        self._ask = ask
        self._state = wiring.state
        self._outbox = wiring.outbox
        self._handler = handler
        self._replies = replies
        self._tracer = tracer
        self._in_flight = InFlight(wiring.limits, self._start, wiring.load, alone=wiring.peer.alone)
        self._beginning = deque[RequestScope]()
        """Requests that were given a task and have not begun, oldest first."""
        self.parking = Parking(wiring, replies, self._in_flight, self._cancel)
        self.at_once = Owner()
        """Owner of replies written directly by the reader, without any task."""
        self.deadlines = Deadlines(self._expire)
        self.overruns = Overruns(wiring.limits.cleanup_grace, self._overran)
        self.nursery: trio.Nursery | None = None
        """Nursery that handlers run in; set before the first request is accepted."""
        self.refuse_reason: str | None = None
        """Reason why no new request is taken; `None` while they are."""

    def refuse_new(self, reason: str) -> None:
        """Take no new request from now on. The first reason stays."""
        self.refuse_reason = self.refuse_reason or reason

    def accept(self, request: InboundRequest, batch: BatchReplies | None) -> None:
        """Answer ``request`` at once, start it, let it wait for its turn, let a parked handler go on with it, or refuse
        it. Synchronous."""
        try:
            result = self._handler.answer_now(request)
        except Exception as error:  # whatever it is, the reader reads on
            self._finish_now(request, self._replies.failure(request, error), batch)
            return
        if result is not NOT_NOW and type(result) is not Retry:
            self._finish_now(request, self._replies.result(request, result), batch)
        elif self.refuse_reason is not None:
            self._refuse(request, "Shutting down: no new requests are taken", batch)
        elif result is not NOT_NOW:
            self._resume(request, result)
        else:
            scope = RequestScope(self._wiring, request, batch, self._ask, self.parking.park)
            if not self._in_flight.admit(scope):
                self._refuse(request, "Too busy: too many requests are in flight or waiting; try again later", batch)
                return
            if not (scope.holds_slot or request.method.streams):
                request.pack()
            if scope.due != math.inf:
                self.deadlines.add(scope)

    def _resume(self, request: InboundRequest, retry: Retry) -> None:
        try:
            scope = self.parking.resume(request, retry)
        except CodedError as error:
            self._finish_now(request, self._replies.error(request, error), None)
            return
        self.deadlines.forget(scope)
        if scope.due != math.inf:
            self.deadlines.add(scope)

    def _refuse(self, request: InboundRequest, reason: str, batch: BatchReplies | None) -> None:
        self._finish_now(request, self._replies.error(request, CodedError(TOO_BUSY, reason)), batch)

    def _finish_now(self, request: InboundRequest, line: bytes, batch: BatchReplies | None) -> None:
        self._state.finish(request)
        self.reply_now(line, batch)

    def reply_now(self, line: bytes, batch: BatchReplies | None) -> None:
        """Reply to what needs no task, from the reader."""
        if batch is None:
            self._outbox.put_now(line, self.at_once)
        else:
            batch.settle(line)

    def put_batch(self, line: bytes) -> None:
        """Send the replies to a batch."""
        self._outbox.put_now(line, self.at_once)

    def _start(self, scope: RequestScope) -> None:
        assert self.nursery is not None
        if scope.rounds is not None and scope.parked:
            scope.resume()
        else:
            if scope.request.packed is not None:
                scope.request.unpack()
            self._beginning.append(scope)
            self.nursery.start_soon(self._answer)

    async def _answer(self) -> None:
        """Run the handler of the oldest request that has not begun, and everything it starts, and answer.

        trio runs tasks that are ready in any order. So each task takes the next request when it comes to run, and
        handlers begin in the order in which their requests came, those in threads included.
        """
        scope = self._beginning.popleft()
        line: bytes | None = None
        result: Any = None
        failure: BaseException | None = None
        span: HandlerSpan | None = None
        try:
            if scope.finished:  # cancelled before it first ran: it never runs (DESIGN ruling 4)
                return
            current_request.set(scope)
            if self._tracer is not None:
                span = self._tracer.handling(scope)
            scope.task = trio.lowlevel.current_task()
            try:
                async with trio.open_nursery() as scope.nursery:
                    if scope.due != math.inf:  # setting a deadline costs as much as all that is done with a reply
                        scope.nursery.cancel_scope.deadline = scope.due
                    try:
                        result = await self._handler.answer(scope)
                        watching, scope.watching = scope.watching, NOT_WATCHED
                        if watching is not None:
                            watching.cancel(reason="the handler has ended")
                    except (trio.Cancelled, KeyboardInterrupt, GeneratorExit):
                        raise
                    except BaseException as error:  # even SystemExit ends only this request
                        failure = error
                        scope.nursery.cancel_scope.cancel(reason="the handler failed")
            except BaseExceptionGroup as group:
                failure = _without_cancelled(group)
            scope.leave_nursery()
            if scope.due != math.inf and scope.due <= trio.current_time():  # this task may wake before `Deadlines`
                self._expire(scope)
            if scope.rounds is not None:
                await scope.next_round()  # a result returned while it is parked is kept for the retry
            line = self._reply_line(scope, result, failure)
            scope.close()
            if line is not None and scope.batch is None and self._outbox.is_full(REQUEST_MARKS):
                with trio.CancelScope() as scope.reply_scope:
                    await self._outbox.room(REQUEST_MARKS)
        finally:
            del failure  # its traceback refers to this frame: only the garbage collector could free the two
            if not scope.finished:
                scope.close()
            scope.let_go()
            if span is not None:
                span.end(result)
            answered = self._state.finish(scope.request)
            if scope.batch is not None:
                scope.batch.settle(line if answered else None)
            elif line is not None and answered:
                self._outbox.put_now(line)
            self.overruns.forget(scope)
            if scope.due != math.inf:
                self.deadlines.forget(scope)
            self._in_flight.ended(scope)

    def _reply_line(self, scope: RequestScope, result: Any, failure: BaseException | None) -> bytes | None:
        """Return the reply, or `None`: a cancelled request never gets one, whatever its handler did (ruling 1)."""
        request = scope.request
        if scope.finished:
            if failure is not None:
                logger.debug("request %.100r failed after its cancel: %r", request.id, failure)
            return None
        if scope.instead is not None:
            return self._replies.result(request, scope.instead)
        if failure is not None:
            if self._wiring.ending.is_set() and isinstance(only_member(failure), ConnectionLost):
                # The handler asked a peer that is gone, which is no defect: no traceback for each peer that hangs up.
                logger.info("%s (request %.100r) lost its peer: %s", request.method.name, request.id, failure)
                return self._replies.error(request, CodedError(INTERNAL_ERROR, "Internal error"))
            return self._replies.failure(request, failure)
        if scope.cancelled_inside:
            own = CodedError(INTERNAL_ERROR, "The request was cancelled by its own handler")
            return self._replies.error(request, own)
        return self._replies.result(request, result)

    # Cancels

    def cancel_received(self, event: CancelReceived) -> None:
        """Cancel a request that the peer gave up on, at once, ahead of every queue."""
        scope = self._in_flight.find(event.request) or self.parking.find(event.request)
        if scope is not None:
            logger.debug("request %.100r cancelled by the peer: %.200r", event.request.id, event.reason)
            self._cancel(scope, CancelCause.PEER, event.reason)

    def _expire(self, scope: RequestScope) -> None:
        self._cancel(scope, CancelCause.DEADLINE, DEADLINE_PASSED)

    def cancel_all(self, cause: CancelCause, reason: str | None) -> None:
        """Cancel all requests that have not ended."""
        for scope in self._in_flight:
            self._cancel(scope, cause, reason)
        self.cancel_parked(cause, reason)

    def cancel_parked(self, cause: CancelCause, reason: str | None) -> None:
        """Cancel all requests that wait for the client to come back with answers."""
        for scope in self.parking:
            self._cancel(scope, cause, reason)

    def _cancel(self, scope: RequestScope, cause: CancelCause, reason: str | None) -> None:
        if not scope.cancel(cause, reason):
            return
        self._wiring.load.cancelled += 1
        self._state.finish(scope.request)
        if scope.parked:
            self.parking.forget(scope)
            self._in_flight.clean_up(scope)
        elif self._in_flight.drop_waiting(scope):
            self.deadlines.forget(scope)
            if scope.batch is not None:
                scope.batch.settle(None)
            return
        self.overruns.watch(scope)

    def _overran(self, scope: RequestScope) -> None:
        self._wiring.load.overrun += 1
        stack = "".join(traceback.StackSummary.extract(scope.stack()).format())
        logger.warning(
            "%s (request %.100r) still runs %g s after its cancel; it no longer counts as in flight. It is at:\n%s",
            scope.request.method.name,
            scope.request.id,
            self._wiring.limits.cleanup_grace,
            stack,
        )
        self._in_flight.release_slot(scope)

    def let_go(self) -> None:
        """Let go of the parts and of the handler, since the connection is over, and so are all requests."""
        self.nursery = None
        for part in (self._in_flight, self.parking, self.deadlines, self.overruns):
            part.let_go()
        del self._handler

    async def idle(self) -> None:
        """Wait until no request runs or waits for its turn."""
        await self._in_flight.idle()

    async def streams_idle(self) -> None:
        """Wait until no stream is left."""
        await self._in_flight.streams_idle()


def _without_cancelled(group: BaseExceptionGroup[Any]) -> BaseException | None:
    """Return what remains of ``group``, and raise what must pass through: cancels from outside, Ctrl-C."""
    passing, rest = group.split((trio.Cancelled, KeyboardInterrupt, GeneratorExit))
    try:
        if passing is not None:
            raise passing
        return rest
    finally:
        del passing, rest  # their tracebacks refer to this frame, as above
