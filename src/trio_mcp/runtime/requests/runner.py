"""`RequestRunner` runs the incoming requests, each in its own nursery."""

from __future__ import annotations

import logging
import secrets
import traceback
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import trio

from ...concurrency.fair_share import Caller
from ...concurrency.nurseries import sole_exception
from ...concurrency.threads import current_run
from ...concurrency.workers import frames_of
from ...diagnostics.log import new_share, set_share
from ...jsonrpc.errors import INTERNAL_ERROR, INVALID_PARAMS, TOO_BUSY, CodedError
from ...protocol.meta import CLIENT, CLIENT_INFO
from ...protocol.types.input_required import InputRequiredResult
from ...state.requests import InboundRequest, Phase, Step
from ..cancellation import CancelCause, Cancellation
from ..outbox import REQUEST_MARKS
from ..transport import ConnectionLost, HandlerSpan, Tracer
from .admission import Admission
from .host import LATER, Now, RequestHandler, RequestHost
from .scope import RequestScope

if TYPE_CHECKING:
    from ...concurrency.time_limits import Graces
    from ...state.events import CancelReceived
    from ..calls import Ask, SendDetached
    from ..exchange import Exchange
    from ..peer import Peer
    from ..replies import Replies
    from .questions import Question
    from .rounds import Retry

logger = logging.getLogger("trio_mcp")

_HANDLE_BYTES: Final = 16
_TASK_NAME: Final = "trio_mcp.runtime.requests.runner.RequestRunner._answer"
"""Name of the trio tasks that handle requests. It is a constant, because trio would compute the name again for each
task."""

_UNKNOWN: Final = (
    "Invalid params: this requestState was used already, has expired, or belongs to another connection; "
    "call again without it"
)
_LONGEST_NAME: Final = 256
"""Maximum number of characters of a client name that is used. A longer name is ignored."""
_BUSY: Final = "Too busy: too many requests are in flight or waiting; try again later"


class RequestRunner:
    """Runs the incoming requests of one connection in the nursery of ``host``.

    Each request is answered at most once, and isn't answered after its cancellation.

    ``peer``: the other end of the connection, to which the limits apply. ``ask`` and ``post`` send requests to the
    peer.
    """

    def __init__(
        self,
        host: RequestHost,
        handler: RequestHandler,
        graces: Graces,
        replies: Replies,
        ask: Ask,
        tracer: Tracer | None,
        *,
        peer: Peer,
        post: SendDetached | None = None,
    ) -> None:
        self.limits = host.limits
        limits = host.limits._server_wide() if peer.everybody else host.limits
        self.load = host.load
        self.alarms = host.alarms
        self.stateless = host.stateless
        self.may_log = host.may_log
        self.endings = host.endings
        self.workers = host.workers
        self.graces = graces
        self.trio_run = current_run()
        """The trio run that the requests belong to, for use from other threads."""
        self.seal = handler.seal
        self.ask = ask
        self.post = post
        self.replies = replies
        self.admission = Admission[RequestScope](limits, host.load)
        self.refuse_reason: str | None = None
        """Reason why new requests are refused. `None` while they are accepted."""
        self.host = host
        """The host that owns the handlers. All connections share it."""
        self._handler = handler
        self._is_for_everybody = peer.everybody
        self._part = Caller()
        """The part of the caller for the client that the last request named. The next request probably names the same
        client."""
        self.caller = Caller(alone=peer.alone)
        self.caller = self._party(peer)
        """The caller whose limits apply if the exchange of a request names no caller."""
        self._tracer = tracer
        self._beginning = list[RequestScope]()
        """Requests that have a task but whose handler has not started yet, oldest first."""

    def _party(self, peer: Peer) -> Caller:
        """Return the `Caller` with the limits that apply to the requests of ``peer``."""
        if peer.caller is not None:
            return peer.caller
        return self.caller if peer.principal is None else self.load.callers.of_principal(peer.principal)

    def _caller_of(self, request: InboundRequest, exchange: Exchange) -> Caller:
        """Return the `Caller` with the limits that apply to ``request``.

        If a connection carries requests of several clients, each client has its own `Caller`. The request names its
        client in ``_meta`` or, over HTTP, by the name of the program.
        """
        caller = exchange.peer.caller or self.caller
        meta = request.meta
        if CLIENT in meta:
            name = meta[CLIENT]
        elif self._is_for_everybody and CLIENT_INFO in meta:
            name = _name_of(meta[CLIENT_INFO])
        else:
            return caller
        if type(name) is not str or len(name) > _LONGEST_NAME:
            return caller
        if name != self._part.key or self._part.within is not caller:
            self._part = caller.part(name)
        return self._part

    def refuse_new(self, reason: str) -> None:
        """Refuse new requests from now on, with the error message ``reason``.

        A later call doesn't change the message.
        """
        self.refuse_reason = self.refuse_reason or reason

    def accept(self, request: InboundRequest, exchange: Exchange) -> None:
        """Handle a new incoming ``request``: answer, start, queue or refuse it.

        If the request is a retry, its answers go to the handler that waits for them. Synchronous.
        """
        try:
            decision = self._handler.answer_now(request, exchange)
        except Exception as error:  # catch every exception, because the reader task must continue
            self._finish_now(request, self.replies.failure(request, error, peer=exchange.peer), exchange)
            return
        if isinstance(decision, Now):
            self._finish_now(request, self.replies.result(request, decision.result), exchange)
        elif self.refuse_reason is not None:
            self._refuse(request, "Shutting down: no new requests are taken", exchange)
        elif decision is LATER:
            ticket = self.admission.admit(request, self._caller_of(request, exchange))
            if ticket is None:
                self._refuse(request, _BUSY, exchange)
                return
            scope = RequestScope(self, exchange, request, ticket)
            exchange.hold(request, scope)
            if ticket.runs:
                self.start(scope)
            else:
                self.admission.wait(ticket, scope, None if self._tracer is None else trio.current_time())
                request.pack()
        else:
            self.go_on(request, exchange, decision)

    def go_on(self, request: InboundRequest, exchange: Exchange, retry: Retry) -> None:
        """Let a handler continue that waits for its client's answers to input requests. ``request`` is the client's
        retry with these answers.

        If the handler can't continue, refuse the retry. Synchronous.
        """
        try:
            self._resume(request, exchange, retry)
        except CodedError as error:
            self._finish_now(request, self.replies.error(request, error), exchange)

    def _refuse(self, request: InboundRequest, reason: str, exchange: Exchange) -> None:
        self._finish_now(request, self.replies.error(request, CodedError(TOO_BUSY, reason)), exchange)

    def _finish_now(self, request: InboundRequest, line: bytes, exchange: Exchange) -> None:
        exchange.state.finish(request)
        exchange.reply_at_once(line)

    def start(self, scope: RequestScope) -> None:
        """Start a task for a request that may run now, or continue the handler that waits for its retry."""
        if scope.handler_task is not None:
            assert scope.rounds is not None, "only what is parked goes on"
            scope.advance(Step.START)
            scope.rounds.resume()
            return
        request = scope.request
        if request.packed is not None:
            request.unpack()
        self._beginning.append(scope)
        nursery = self.host.nursery
        assert nursery is not None, "the host runs before its connections do"
        nursery.start_soon(self._answer, name=_TASK_NAME)

    async def _answer(self) -> None:
        """Take the oldest request whose handler hasn't begun, run its handler and the handler's tasks, and send the
        reply.

        trio runs ready tasks in any order. So each task takes the next request when its turn comes, and handlers begin
        in the order in which their requests arrived, including handlers in threads.
        """
        scope = self._beginning.pop(0)
        caller = scope.ticket.caller
        # Set this caller's log limit, because another caller's request may have started this trio task.
        if not caller.alone:
            set_share(caller.log_share or new_share(caller))
        line = result = failure = span = None
        try:
            if scope.phase is Phase.MUTED:  # the request was cancelled before its handler began
                return
            try:
                async with trio.open_nursery() as nursery:
                    scope.start(nursery)
                    if self._tracer is not None:
                        span = self._tracer.handling(scope.request, scope.ticket.waited(trio.current_time()))
                    try:
                        answer = self._handler.answer(scope)
                        if span is not None:
                            answer = span.follow(answer, nursery.cancel_scope)
                        # Delete `self`, because a request that becomes a background task may outlive this connection.
                        del self
                        result = await answer
                        is_over = scope.handler_returned()
                    except (trio.Cancelled, KeyboardInterrupt, GeneratorExit):
                        raise
                    # Catch every exception, even SystemExit, so that a handler can end only its own request.
                    except BaseException as error:
                        failure = error
                        nursery.cancel_scope.cancel(reason="the handler failed")
                    else:
                        if is_over:  # reply before the checkpoint that trio makes at the end of any nursery
                            line = _reply_line(scope, result, None, cancelled_inside=False)
                            _reply_and_release(scope, line, span, result)
                            return
            except BaseExceptionGroup as group:
                failure = _without_cancelled(group)
            cancelled_inside = scope.leave()
            # Check the deadline here, because this task may wake before the deadline's alarm has run.
            if scope.request.meta and scope.is_overdue:
                scope.expire()
            if scope.rounds is not None and scope.from_outside is None:
                # If the handler returns before the client has retried, wait for the retry, which then gets the result.
                await scope.until_cancelled(scope.rounds.resumed())
            line = _reply_line(scope, result, failure, cancelled_inside)
            if scope.exchange.keeps_outcomes or (line is not None and scope.exchange.outbox.is_full(REQUEST_MARKS)):
                await _ready_to_reply(scope, line)
        # A bug outside the handler, for example in a tracing observer, must not end the server.
        except Exception as error:
            line = scope.runner.replies.failure(scope.request, error, scope)
        finally:
            del failure  # break the reference cycle: the traceback refers to this frame
            if scope.phase is not Phase.OVER:
                _reply_and_release(scope, line, span, result)

    # Rounds

    def park(self, scope: RequestScope, questions: Sequence[Question]) -> None:
        """Send the input requests ``questions`` as the response to a request, which ``scope`` represents. The handler
        of the request then waits for the client's retry.

        Synchronous. Raises `NotSerializable`, without any effect, if the input requests can't be encoded.

        A parked request is answered and no longer in flight. Its handler waits where it asked, in its nursery, for up
        to `Limits.retry_timeout`. If more than `Limits.max_parked` handlers wait, the oldest is cancelled. Nothing is
        sent for a parked request.
        """
        exchange, request = scope.exchange, scope.request
        assert self.seal is not None, "who cannot park has no way back"
        handle = secrets.token_bytes(_HANDLE_BYTES)
        asked = {question.key: question.request for question in questions}
        state = self.seal(request, exchange.peer.principal, handle=handle)
        line = self.replies.line(request, InputRequiredResult(asked, state))
        scope.park()
        exchange.state.park(request)
        exchange.reply(line, scope.lines)
        exchange.release(request)
        for ready in self.admission.park(scope.ticket):
            self.start(ready)
        self.host.parking.add(handle, scope, request, exchange.party, scope.ticket.caller)

    def _resume(self, request: InboundRequest, exchange: Exchange, retry: Retry) -> None:
        """Pass the answers in ``request`` to the handler that waits for them.

        The handler continues as soon as the limits allow it.

        Raises `CodedError`, without any effect: -32602 if the handle isn't valid, or no longer valid; "too busy" if
        there are too many requests.
        """
        scope = self.host.parking.find(retry.handle, exchange.party)
        if scope is None or scope.is_overdue:
            raise unknown_state()
        caller = self._caller_of(request, exchange)
        if not self.admission.has_room(request.size, caller, scope.ticket if scope.runner is self else None):
            raise CodedError(TOO_BUSY, _BUSY)
        scope.runner.unpark(scope)
        ticket = self.admission.reserve(request, caller)
        assert scope.rounds is not None, "what is parked has asked"
        scope.rounds.receive(retry.responses)
        scope.bind(self, exchange, request, ticket)
        exchange.hold(request, scope)
        if ticket.runs:
            self.start(scope)
        else:
            self.admission.wait(ticket, scope, None if self._tracer is None else trio.current_time())

    def hand_over(self, scope: RequestScope, runner: RequestRunner, exchange: Exchange, answer: Any) -> None:
        """Send ``answer`` as the response to a request, which ``scope`` represents, while the handler of the request
        still runs.

        The handler continues in ``exchange``, within the limits of ``runner``. Synchronous.
        """
        here, request, ticket = scope.exchange, scope.request, scope.ticket
        line = self.replies.line(request, answer)
        scope.move(runner, exchange, runner.admission.reserve(request, ticket.caller))
        here.state.finish(request)
        here.reply(line)
        here.release(request)
        exchange.hold(request, scope)
        for ready in self.admission.release(ticket):
            self.start(ready)

    def new_scope(self, request: InboundRequest, exchange: Exchange) -> RequestScope:
        """Return the `RequestScope` of a request that didn't arrive over a connection, to pass it to `start`."""
        ticket = self.admission.reserve(request, self._party(exchange.peer))
        scope = RequestScope(self, exchange, request, ticket)
        exchange.hold(request, scope)
        return scope

    def unpark(self, scope: RequestScope) -> None:
        """Stop counting a request, which ``scope`` represents, as waiting for the client's retry, because the retry has
        arrived.

        From now on, the ticket of the retry counts.
        """
        self._forget(scope)
        # The retry has arrived, so a cancellation with the id of the request that it continues has no more effect.
        scope.exchange.state.finish(scope.request)
        self.admission.release(scope.ticket)

    def _forget(self, scope: RequestScope) -> None:
        if self.host.parking.remove(scope.request):
            self.admission.unpark(scope.ticket)

    # Cancels

    def cancel_received(self, event: CancelReceived, exchange: Exchange) -> None:
        """Cancel a request at once, because the peer has cancelled it.

        This happens before everything that is queued.
        """
        held = exchange.find(event.request) or self.host.parking.named(event.request)
        if held is not None:
            logger.debug("request %.100r cancelled by the peer: %.200r", event.request.id, event.reason)
            held.runner.cancel(held, CancelCause.PEER, event.reason)

    def cancel_parked(self, exchange: Exchange, cause: CancelCause, reason: str | None) -> None:
        """Cancel the requests whose handlers wait for the client's retry, if that retry can arrive only over
        ``exchange``.

        Other handlers keep waiting: a principal can retry over another exchange, and an anonymous client can retry
        at another replica.
        """
        party = exchange.party
        if party is exchange or (exchange.peer.everybody and self.host.replica is None):
            for scope in self.host.parking.of(party):
                self.cancel(scope, cause, reason)

    def cancel(self, scope: RequestScope, cause: CancelCause, reason: str | None) -> None:
        """Cancel a request. ``cause`` and ``reason`` say why.

        Do nothing if the request was already cancelled or has ended.
        """
        cancellation = Cancellation(cause, reason, trio.current_time())
        if not scope.cancel(cancellation):
            return
        self.load.cancelled += 1
        exchange, request, ticket = scope.exchange, scope.request, scope.ticket
        exchange.state.finish(request)
        exchange.cancelled(request, cause)
        if scope.handler_task is not None:
            if not ticket.runs:
                self._forget(scope)
                exchange.hold(request, scope)
                self.admission.clean_up(ticket)
        elif self.admission.drop_waiting(ticket):
            if scope.ending is not None:
                scope.ending.end(scope, has_reply=False)
            scope.detach()
            exchange.release(request)
            exchange.reply(None)
            return
        due = cancellation.at + self.limits.cleanup_grace
        scope.cleanup_alarm = self.alarms.set(due, partial(self._overran, scope))

    def _overran(self, scope: RequestScope) -> None:
        self.load.overrun += 1
        if scope.exchange.is_keeping:  # the handler has ended, but its result isn't stored yet
            logger.warning(
                "%s (request %.100r) has ended, but its result is not stored yet; it no longer counts as in flight",
                scope.request.method.name,
                scope.request.id,
            )
        else:
            self._tell_overrun(scope)
        for ready in self.admission.release_slot(scope.ticket):
            self.start(ready)

    def _tell_overrun(self, scope: RequestScope) -> None:
        request, task = scope.request, scope.handler_task
        frames: Any = () if task is None else frames_of(task)
        warn = partial(
            logger.warning,
            "%s (request %.100r) still runs %g s after its cancel; it no longer counts as in flight. It is at:\n%s",
            request.method.name,
            request.id,
            self.limits.cleanup_grace,
            "".join(traceback.StackSummary.extract(frames).format()),
        )
        if task is None:
            warn()
        else:  # log in the context of the request's task, so that the log record names the request
            task.context.run(warn)

    def detach(self) -> None:
        """Remove the reference to the request handler, because the connection and all its requests have ended."""
        del self._handler


def unknown_state() -> CodedError:
    """Return the error for a retry for which no handler waits, or whose handler waits for another client."""
    return CodedError(INVALID_PARAMS, _UNKNOWN)


def _name_of(info: Any) -> str | None:
    """Return the name and version of the client program. ``info`` is the ``clientInfo`` that the client sent.

    Return `None` if ``info`` isn't valid.
    """
    if type(info) is not dict:
        return None
    told = cast("dict[str, Any]", info)
    name, version = told.get("name"), told.get("version")
    return f"{name} {version}" if type(name) is str and type(version) is str else None


def _reply_and_release(scope: RequestScope, line: bytes | None, span: HandlerSpan | None, result: Any) -> None:
    """Send ``line``, the reply to a request whose handler and tasks have ended, and release what the request held.

    ``line`` is `None` for a cancelled request, which gets no reply. Synchronous.
    """
    if scope.ending is not None:
        scope.ending.end(scope, has_reply=line is not None)
    scope.detach()
    if span is not None:
        _end_span(span, scope, result)
    exchange, request = scope.exchange, scope.request
    exchange.reply(line if exchange.state.finish(request) else None)
    exchange.release(request)
    for ready in scope.runner.admission.release(scope.ticket):
        scope.runner.start(ready)


async def _ready_to_reply(scope: RequestScope, line: bytes | None) -> None:
    """Prepare the reply ``line``: let the exchange store it, or wait until the outbox has room for it."""
    scope.mute()
    if scope.exchange.keeps_outcomes:
        await scope.exchange.keep(scope.request, line)
    else:
        await scope.until_cancelled(scope.outbox.room(REQUEST_MARKS))


def _end_span(span: HandlerSpan, scope: RequestScope, result: Any) -> None:
    cancellation = scope.cancellation
    if cancellation is None:
        span.end(result, scope.request, None)
    else:
        span.end(result, scope.request, str(cancellation.cause), cancellation.at)


def _reply_line(
    scope: RequestScope, result: Any, failure: BaseException | None, cancelled_inside: bool
) -> bytes | None:
    """Return the reply to a request as a JSON line, or `None` for a cancelled request.

    A cancelled request never gets a reply, whatever its handler did.
    """
    request, replies = scope.request, scope.runner.replies
    if scope.from_outside is not None:
        if failure is not None:
            logger.debug("request %.100r failed after its cancellation: %r", request.id, failure)
        return None
    if scope.answered_instead is not None:
        return replies.result(request, scope.answered_instead)
    if failure is not None:
        if scope.exchange.ending.is_set() and isinstance(sole_exception(failure), ConnectionLost):
            # The handler's own request to the peer has failed, because the connection was lost.
            # A lost connection isn't a bug in the handler, so log no traceback.
            logger.info(
                "%s (request %.100r) failed, because the connection was lost: %s",
                request.method.name,
                request.id,
                failure,
            )
            return replies.error(request, CodedError(INTERNAL_ERROR, "Internal error"))
        return replies.failure(request, failure, scope)
    if cancelled_inside:
        own = CodedError(INTERNAL_ERROR, "The request was cancelled by its own handler")
        return replies.error(request, own)
    return replies.result(request, result, scope)


def _without_cancelled(group: BaseExceptionGroup[Any]) -> BaseException | None:
    """Return the exception group ``group`` without the `Cancelled` and `KeyboardInterrupt` exceptions in it.

    If the group contains such exceptions, raise them, because they must propagate.
    """
    passing, rest = group.split((trio.Cancelled, KeyboardInterrupt, GeneratorExit))
    try:
        if passing is not None:
            raise passing
        return rest
    finally:
        del passing, rest  # break reference cycles: the tracebacks refer to this frame
