"""`RequestTask`: the background task that a request becomes, if it is answered with a task."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from ..classes import define
from ..jsonrpc.codec import encode_value
from ..jsonrpc.errors import TOO_BUSY, CodedError
from ..protocol.errors import NoBackChannel
from ..runtime.cancellation import CancelCause
from ..runtime.requests.reports import reportable
from ..stores.task_store import OnRestart, TaskRecord
from .core_questions import decode_answer
from .record_views import TASK_LOST, store_unreachable
from .transitions import RunPhase, RunStep, checkpointed, made_external, phase_after

if TYPE_CHECKING:
    from ..concurrency.fair_share import Caller
    from ..concurrency.wakeups import Alarm
    from ..protocol.revisions import Revision
    from ..runtime.calls import OnProgress
    from ..runtime.requests.scope import RequestScope
    from ..state.requests import InboundRequest
    from ..stores.task_store import Outcome
    from .core_questions import CoreClient
    from .host import TaskHost
    from .records import Transition

_ID_BYTES = 18
_HOLDER_BYTES = 9

RUNS_ELSEWHERE: Final = "another process runs the task now"
"""The reason for a cancellation, for people."""


def new_holder(process: str) -> str:
    """Return a new random token with which ``process`` claims tasks in the store. See `TaskStore`.

    A process uses one token for all tasks that it creates, and a new token for each call that claims tasks.
    """
    return f"{process}:{secrets.token_urlsafe(_HOLDER_BYTES)}"


def _process_of(holder: str) -> str:
    return holder.partition(":")[0]


class NotStarted(CodedError):
    """Raised in the handler of a call that should become a background task, but couldn't be started as a task.

    The call isn't retried: a retry could return a task that has already failed.
    """


@define(eq=False)
class _StartAttempt:
    """An attempt to store the record of a new background task.

    ``over`` is set when the attempt has finished. If it has failed, ``failure`` creates the error.
    """

    over: trio.Event = attrs.field(factory=trio.Event)
    failure: Callable[[], NotStarted] | None = None


class RequestTask:
    """The background task that one client's request becomes or may still become. It runs in ``host``.

    Until `start` is called, the request may still be answered without a task. Afterwards, the task is in the store.

    ``ttl_ms``: milliseconds from creation; `None` for no limit. ``must_be``: the request must be answered with a task.
    ``record``: the stored record, for a task that runs again.
    """

    __slots__ = (
        *("_alarm", "_host", "_starting", "attempt", "caller", "checkpoint_before_start", "client", "epoch"),
        *("held_until", "holder", "id", "mark", "message", "must_be", "on_restart", "part", "phase", "restored"),
        *("scope", "ttl_ms"),
    )

    def __init__(
        self,
        host: TaskHost,
        scope: RequestScope,
        *,
        ttl_ms: int | None,
        on_restart: OnRestart,
        must_be: bool = False,
        record: TaskRecord | None = None,
    ) -> None:
        self._host = host
        self.scope = scope
        # Begin the id with a letter: on a command line, an id with a leading hyphen would look like an option.
        self.id = f"t{secrets.token_urlsafe(_ID_BYTES)}" if record is None else record.id
        """The task's id, which cannot be guessed (2025-11-25 tasks, Task Isolation)."""
        self.ttl_ms = ttl_ms
        self.on_restart: OnRestart = on_restart
        self.must_be = must_be
        peer = scope.exchange.peer
        self.caller: object = peer.principal or ("" if record is not None else scope.ticket.caller.whole)
        """The caller, for the limits of running tasks. It is the principal or, without a principal, the `Caller`, which
        doesn't keep a connection alive."""
        caller = scope.ticket.caller
        self.part: Caller | None = None if record is not None or caller.within is None else caller
        """The part of the caller that sent the request, for example its connection, for dividing the caller's limit.
        `None` if it is unknown, or after a restart."""
        self.phase = RunPhase.POSSIBLE if record is None else RunPhase.RUNNING
        self.epoch = 0
        """Number of the claim under which this process runs the task."""
        self.holder: str | None = None
        """Holder token under which this process runs the task. Each write of the record checks that the token is still
        the same. `None` if no process runs the task."""
        self.held_until = 0.0
        """Time on trio's clock after which another process may run the task."""
        self.mark = b""
        """Mark of the task record that was read last."""
        self.message: str | None = None
        """The handler's latest status message for people."""
        self.restored: bytes | None = None if record is None or on_restart != "resume" else record.checkpoint
        """Checkpoint of the previous run. `None` if that run stored none."""
        self.checkpoint_before_start: bytes | None = None
        """Checkpoint to store with the new task record."""
        self.attempt = 1 if record is None else record.attempt
        self._starting: _StartAttempt | None = None
        """The attempt to store the task record. `None` except in the phase RECORDING."""
        self._alarm: Alarm | None = None
        self.client: CoreClient | None = None
        """The client that created the task. `None` unless the task has the form of 2025-11-25 and the client is
        known."""

    # Start

    @property
    def has_started(self) -> bool:
        """True after the client was sent a response with a task id, because its request has become a task."""
        return self.phase >= RunPhase.RUNNING

    @property
    def is_delegated(self) -> bool:
        """True if the task's work is done by other code than the request's handler."""
        return self.phase in (RunPhase.DELEGATED, RunPhase.DETACHED)

    def start_later(self) -> None:
        """Turn the client's request into a background task after `TaskSettings.grace`. If the request is answered
        earlier, no task is started. Idempotent."""
        if self._alarm is None:
            due = trio.current_time() + self._host.settings.grace
            self._alarm = self.scope.runner.alarms.set(due, partial(self._start_now, self.scope.request))

    def _start_now(self, request: InboundRequest) -> None:
        nursery, self._alarm = self.scope.nursery, None
        if nursery is None or self.has_started:
            return
        if self.scope.sends and self.scope.request is request:
            nursery.start_soon(self._start_where_possible)
        else:
            self.start_later()  # the client has an open input request, or has just responded to one, so wait again

    async def _start_where_possible(self) -> None:
        try:
            await self.start()
        except CodedError:
            if self.must_be:
                raise

    def stop_alarm(self) -> None:
        """Stop the timer of the background task: the timer that starts the task, or the one that ends it.

        The request is about to get its response, or the task has ended.
        """
        if self._alarm is not None:
            self._alarm.stop()
            self._alarm = None

    async def start(self, *, delegated: bool = False) -> None:
        """Store the record of the background task, and send its task id to the client as the response to the request.

        Does nothing if this was already done. With ``delegated``, other code than the handler does the work.

        While the client is answering input requests from the response, this waits until the client repeats the request.
        Raises `CodedError` (-31000), with nothing started, if there are too many tasks or the store fails. All callers
        that wait for the same attempt get the error. Under cancellation, either the request was answered with a stored
        task, or there is no task.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        while (starting := self._starting) is not None:
            await starting.over.wait()
            if starting.failure is not None:
                raise starting.failure()
        if self.phase is RunPhase.POSSIBLE:
            await self._start(delegated=delegated)

    async def _start(self, *, delegated: bool) -> None:
        scope, host = self.scope, self._host
        self.phase = phase_after(self.phase, RunStep.RECORD)
        self._starting = starting = _StartAttempt()
        record: TaskRecord | None = None
        try:
            await self._between_rounds()
            if scope.sends:  # store the task, unless the client has cancelled the request
                record = await host.create(self, delegated=delegated)
                await self._between_rounds()
                if not await host.has_lease_left(self):
                    raise store_unreachable()
                await self._between_rounds()
            may_start = scope.sends and self.phase is not RunPhase.DECLINED
            if record is not None and may_start and not host.ending.is_set():
                self.stop_alarm()
                self.phase = phase_after(self.phase, RunStep.DELEGATE if delegated else RunStep.START)
                host.adopt(self, record)
                # If a status message was set while the record was being stored, write it now.
                if self.message != record.message:
                    host.message_writer.write_soon(self)
                return
        except CodedError as error:
            starting.failure = partial(NotStarted, error.code, error.message, error.data)
            raise starting.failure() from None
        finally:
            try:
                # If the task wasn't started, the client won't receive its id, so delete the record.
                if record is not None and not self.has_started:
                    await host.abandon(self, record)
            finally:
                if self.phase is RunPhase.RECORDING:
                    self.phase = phase_after(self.phase, RunStep.FAIL)
                starting.over.set()
                self._starting = None
        await trio.lowlevel.checkpoint()
        if record is not None and scope.sends and not (self.has_started or self.phase is RunPhase.DECLINED):
            raise CodedError(TOO_BUSY, "Shutting down: new tasks are refused")

    def decline(self) -> None:
        """From now on, don't turn the request into a background task, because its response contains input requests
        instead of a task."""
        if not self.has_started:
            self.phase = phase_after(self.phase, RunStep.DECLINE)

    async def delegate(self, ttl_ms: int | None, message: str | None) -> bool:
        """Record that the task's work is done by other code than the handler. If the task hasn't started, start it.

        The task expires ``ttl_ms`` milliseconds after its creation.

        The end of the handler still ends the task, unless `detach` is called. Returns false, with nothing changed, if
        the work is already done by other code. Raises the errors of `start`.
        """
        while self._starting is not None:
            await self._starting.over.wait()
        if self.is_delegated:
            return False
        self.ttl_ms, self.message = ttl_ms, message or self.message
        if not self.has_started:
            await self.start(delegated=True)
            return True
        if self.phase is RunPhase.RUNNING:
            self.phase = phase_after(self.phase, RunStep.DELEGATE)
        words, keep_ms = self.message, int(self._host.settings.retention * 1000)
        await self.change(lambda record, now: made_external(record, now, words, ttl_ms, keep_ms))
        return True

    def detach(self) -> None:
        """Let the background task continue after its handler ends, because other code does the task's work.

        The handler's result isn't stored.
        """
        self.phase = phase_after(self.phase, RunStep.DETACH)

    async def _between_rounds(self) -> None:
        """After a response with input requests, wait until the client has repeated the request with its responses."""
        while self.scope.rounds is not None and not self.scope.sends and self.scope.from_outside is None:
            await self.scope.rounds.resumed()
            await trio.lowlevel.checkpoint()

    # Questions

    def collect_questions(self) -> None:
        """From now on, store the handler's input requests in the task record, from which the client gets them."""
        self._host.collect_questions(self)

    @property
    def keeps_answers(self) -> bool:
        """True if the client's responses to input requests are stored for a later run of the handler. See `AnswerLog`.

        They are, if a restarted handler may make the same input requests again.
        """
        return self.on_restart != "fail" and self._host.settings.store is not None

    def deliver(self, answers: Mapping[str, bytes]) -> None:
        """Pass the client's responses ``answers`` to the handler. Skip those for which the handler doesn't wait."""
        rounds = self.scope.rounds
        if rounds is not None:
            rounds.deliver({key: decode_answer(text) for key, text in answers.items() if rounds.waits_for(key)})

    def awaits(self, key: str) -> bool:
        """Return whether the handler waits for the client's response to the input request ``key``."""
        return self.scope.rounds is not None and self.scope.rounds.waits_for(key)

    async def change(self, transition: Transition) -> None:
        """Apply ``transition`` to the task record. See `TaskHost.change`. Raises `CodedError` if the task has ended."""
        record = await self._host.change(self, transition)
        if record is None or record.phase.is_final:
            # A cancelled handler gets trio.Cancelled instead of the error below. This is safe: no change was stored.
            await trio.lowlevel.checkpoint()
            raise CodedError(
                TASK_LOST, "the change of the task was not stored: the task has ended, or runs in another process"
            )

    def ask(
        self, method: str, params: dict[str, Any] | None, revision: Revision, on_progress: OnProgress | None
    ) -> Awaitable[Any]:
        """Send a request of the handler directly to the client. Unlike an input request, it isn't stored in the task
        record. See `RequestScope.ask`."""
        if self.client is None:
            raise NoBackChannel("cannot send a request to the client: the client that requested this task is unknown")
        return self.client.ask(method, params, on_progress)

    # Telling

    def report_progress(self, progress: float, total: float | None, message: str | None) -> bool:
        """Use a progress report as the task's status message, because tasks have no progress notifications (tasks
        extension, Task Status Notifications)."""
        if (report := reportable(progress, total, message)) is None:
            return False
        done, of, words = report
        self.set_message(words or (f"{done:g}" if of is None else f"{done:g} of {of:g}"))
        return True

    def set_message(self, message: str) -> None:
        """Set the task's status message, a text for users.

        The message is written to the record soon. If several messages are set before the write, only the last one is
        written.
        """
        self.message = message
        if self.has_started:
            self.scope.runner.trio_run.call_soon(self._host.message_writer.write_soon, self)

    async def checkpoint(self, value: Any) -> None:
        """Store ``value`` as the checkpoint from which a restarted handler resumes.

        `encode_value` must be able to encode it. Waits while the store fails.

        Raises `ValueError` if the value is too long. If the task has ended or runs elsewhere, its handler is cancelled
        here; in a shielded scope, raises `CodedError` (-31002).
        """
        text, most = encode_value(value), self._host.settings.max_record_bytes
        if len(text) > most:
            raise ValueError(f"a checkpoint may have at most {most} bytes, not {len(text)}")
        await trio.lowlevel.checkpoint_if_cancelled()
        while self._starting is not None:
            await self._starting.over.wait()
        if self.on_restart == "resume" and self.scope.rounds is not None:
            # After a restart, the handler begins at this checkpoint, so earlier input requests are no longer needed.
            self.scope.rounds.forget()
        if self.has_started:
            await self.change(lambda record, _: checkpointed(record, text, self.awaits))
        else:
            self.checkpoint_before_start = text

    # End

    @property
    def is_at_risk(self) -> bool:
        """True while the handler runs, and another process may run it again after this process's lease has expired. The
        handler must end before that.

        A handler that is never restarted may run longer than its lease: other processes can only record that the task
        has failed.
        """
        return self.phase is RunPhase.RUNNING and self.on_restart != "fail"

    @property
    def needs_lease(self) -> bool:
        """True while this process must renew the task's lease, because the task runs here or its outcome is being
        stored.

        It does until the outcome is stored, or until the record has ended or has another holder.
        """
        return self.phase is RunPhase.RUNNING or self.phase is RunPhase.PERSISTING

    @property
    def has_ended(self) -> bool:
        """True once the request's handler has ended, even if the task's outcome isn't stored yet."""
        return self.phase >= RunPhase.PERSISTING

    def acquire(self, record: TaskRecord, until: float) -> None:
        """Record that this process has claimed the task, as ``record`` shows, and that its lease on the task expires at
        the time ``until``.

        Until the time ``until``, no other process may run the task.
        """
        self.holder, self.epoch, self.mark, self.held_until = record.holder, record.epoch, record.mark, until

    def reacquire(self, record: TaskRecord) -> bool:
        """If ``record`` shows that this process has claimed the task again in a later `claim` call, continue the
        handler under the new claim.

        The store's response to that claim was lost, or is still on its way.

        Returns false if there is none, or if another process has run the task meanwhile.
        """
        if self.holder is None or record.holder is None or record.epoch != self.epoch + 1:
            return False
        if _process_of(record.holder) != _process_of(self.holder):
            return False
        # The record doesn't contain the time until which the new claim lets this process run the task.
        # So keep the earlier claim's time until the next renewal.
        self.acquire(record, self.held_until)
        return True

    def is_of(self, record: TaskRecord) -> bool:
        """Return whether this process is running the task, or has finished it, according to ``record``."""
        return record.epoch == self.epoch and (record.phase.is_final or record.holder == self.holder)

    def accepts(self, record: TaskRecord) -> bool:
        """Return whether ``record``, which was stored during this run of the handler, is up to date.

        If it has another holder, it may be older than this process's own claim, and must be read again.
        """
        return record.phase.is_final or self.reacquire(record) or self.is_of(record)

    async def persist(self, outcome: Outcome | None) -> None:
        """Store the outcome of the request in the task record. ``outcome`` is `None` if the request was cancelled."""
        is_detached = self.phase is RunPhase.DETACHED
        self.phase = phase_after(self.phase, RunStep.END)
        if not is_detached:
            await self._host.outcome_writer.persist(self, outcome)

    def close(self) -> None:
        """End the background task, because its handler and all child tasks have ended in this process."""
        self.stop_alarm()
        # The task has no outcome if its handler was cancelled from outside, or because of a bug.
        was_cut_off = not self.has_ended
        self.phase = phase_after(self.phase, RunStep.CLOSE)
        self._host.remove(self, was_cut_off=was_cut_off)

    def set_expiry(self, due: float) -> None:
        """Set the timer that ends the background task at the time ``due`` on trio's clock.

        Then its time to live is over. `close` stops the timer.
        """
        self.stop_alarm()
        self._alarm = self._host.alarms.set(due, partial(self._host.expire, self))

    def cancel(self, cause: CancelCause, reason: str | None) -> None:
        """Cancel the handler and all its child tasks, unless they have ended."""
        if not self.has_ended:
            if cause in (CancelCause.LEASE, CancelCause.TASK) and self.phase in (RunPhase.RUNNING, RunPhase.DELEGATED):
                self.phase = phase_after(self.phase, RunStep.LOSE)
            self.scope.abort(cause, reason)
