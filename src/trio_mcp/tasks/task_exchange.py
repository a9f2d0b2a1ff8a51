"""Parts of a background task that work on its record: `TaskExchange` stores the outcome, `TaskQuestions` the input
requests of the handler and the client's responses. This module also creates task records, and restarts tasks from them.

The request's messages go to its `TaskExchange` instead of its connection, and its response is stored as the outcome.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ..jsonrpc.codec import decode_value, encode_value
from ..jsonrpc.errors import TOO_BUSY, CodedError
from ..protocol.converters import structure, unstructure
from ..protocol.revisions import REVISIONS
from ..protocol.types.input_required import InputRequest
from ..protocol.types.lifecycle import ClientCapabilities
from ..runtime.cancellation import REMAINING_MS
from ..runtime.exchange import Exchange
from ..runtime.peer import Auth, Peer, Principal, PrincipalId
from ..runtime.requests.questions import AnswerLog, AskedBefore
from ..runtime.requests.rounds import Rounds, keeps_answers
from ..state.requests import Continuation, InboundRequest
from ..stores.task_store import Outcome, TaskRecord, new_mark
from .core_questions import CoreClient, TaskClientChannel, decode_answer
from .request_task import RequestTask
from .task_methods import scope_of
from .transitions import EMPTY_LOG, QuestionLog, asked, withdrawn

if TYPE_CHECKING:
    import trio

    from ..runtime.outbox import Outbox, Owner
    from ..runtime.requests.questions import Question
    from ..runtime.requests.runner import RequestRunner
    from ..runtime.requests.scope import RequestScope
    from ..state.connection import ConnectionState
    from .host import TaskHost
    from .records import TaskSettings

_IN_THE_RECORD: Final = InputRequest("roots/list")
"""Placeholder for the text of each input request that is stored in the task record. It saves memory, because ten
thousand tasks may be waiting."""
_RUN: Final = 8
"""Number of characters of a holder token's hash that identify one run of a task."""


class TaskExchange(Exchange):
    """Carries the request of a background task in place of a connection: it stores the response in the task record.

    It belongs to no connection, and stores the outcome instead of sending it.

    Only a cancel or the end of the server ends the task, and its response is stored. Notifications go to ``outbox``,
    and name ``related_task``. The data of the first request's ``connection`` belongs to the task as well.
    """

    __slots__ = ("_connection", "related_task", "task")

    keeps_outcomes: ClassVar[bool] = True

    def __init__(
        self,
        host: TaskHost,
        state: ConnectionState,
        outbox: Outbox,
        peer: Peer,
        related_task: str | None = None,
        connection: trio.Event | None = None,
    ) -> None:
        # Ten thousand tasks may exist, so skip the __init__ of the base class, which creates tables for many requests.
        self.state = state
        self.outbox = outbox
        self.peer = peer
        self.ending = host.ending
        self.task: RequestTask | None = None
        """The task that stores the response and is notified when the exchange ends. It is set until then."""
        self.related_task = related_task
        self._connection = connection

    @property
    def connection(self) -> trio.Event | None:
        return self._connection

    @property
    def is_keeping(self) -> bool:
        return self.task is not None and self.task.has_ended

    def hold(self, request: InboundRequest, held: RequestScope) -> None:
        """Do nothing, because ``task`` already refers to the only request of this exchange. Other exchanges register
        their running requests here."""

    def release(self, request: InboundRequest) -> None:
        if self.task is not None:
            task, self.task = self.task, None
            task.close()

    def find(self, request: InboundRequest) -> RequestScope | None:
        return None if self.task is None else self.task.scope

    async def keep(self, request: InboundRequest, line: bytes | None) -> None:
        """Store the outcome of the task in its record. ``line`` is the outcome as JSON text. See `OutcomeReplies`."""
        assert self.task is not None, "it was told before the handler ran"
        is_error, scope = request.error is not None, self.task.scope
        if scope.is_overdue:  # the deadline has passed, but its timer hasn't fired yet
            scope.expire()
            line = None
        outcome = None if line is None else Outcome(line, is_error, request.failed and not is_error)
        await self.task.persist(outcome)

    def reply(self, line: bytes | None, owner: Owner | None = None) -> None:
        """Do nothing, because the outcome is stored instead of sent."""


class _RestartedExchange(TaskExchange):
    """Carries the request of a background task whose handler was restarted from the task record."""

    __slots__ = ()

    forgot_client: ClassVar[bool] = True


def exchange_for(task: RequestTask, host: TaskHost) -> TaskExchange:
    """Return an `Exchange` for the request of ``task``, which now runs in ``host``. It stores the response in the task
    record instead of sending it."""
    scope = task.scope
    here = scope.exchange
    if scope.request.revision.tasks == "core":
        way = TaskClientChannel(scope.request, scope.runner, here.client_channel)
        task.client = CoreClient(host.questions, task.id, way)
        exchange = TaskExchange(host, here.state, way.outbox, here.peer, task.id, here.connection)
    else:
        exchange = TaskExchange(host, host.state, host.silence, here.peer, connection=here.connection)
    exchange.task = task
    return exchange


def new_record(task: RequestTask, holder: str | None, settings: TaskSettings, before: TaskRecord | None) -> TaskRecord:
    """Return a record for the new background task ``task``.

    ``holder`` is the process that runs the task; `None` if its handler doesn't do the work. The store sets the times.

    Equal capabilities are shared with the record created ``before``, since thousands of records may exist. Raises
    `CodedError` (-31000) if the parameters are too long to store.
    """
    request = task.scope.request
    params = encode_value(request.params)
    if len(params) > settings.max_record_bytes:
        most = settings.max_record_bytes
        raise CodedError(TOO_BUSY, f"the arguments of a task may have at most {most} bytes, not {len(params)}")
    capabilities = encode_value(unstructure(request.capabilities, request.revision))
    if before is not None and before.capabilities == capabilities:
        capabilities = before.capabilities
    log = EMPTY_LOG if task.scope.rounds is None else log_before_start(task, settings.max_record_bytes)
    return TaskRecord(
        id=task.id,
        scope=scope_of(task.scope),
        method=request.method.name,
        # Intern the tool's name, because thousands of records may contain the same name.
        name=sys.intern(str(request.params.get("name", ""))),
        params=params,
        revision=request.revision.name,
        capabilities=capabilities,
        on_restart=task.on_restart,
        is_external=holder is None,
        poll_ms=int(settings.poll_interval * 1000),
        message=task.message,
        checkpoint=task.checkpoint_before_start,
        holder=holder,
        mark=new_mark(),
        asked=log.asked,
        answers=log.answers,
        continuation=_continuation(task),
    )


def _continuation(task: RequestTask) -> bytes | None:
    """Return the input requests and responses that the handler needs again after a restart, as JSON text."""
    before = task.scope.request.continuation
    starts_later = task.on_restart == "resume" and task.checkpoint_before_start is not None
    if before is None or starts_later or not task.keeps_answers:
        return None
    return encode_value([before.responses, before.state])


def restarted(host: TaskHost, runner: RequestRunner, record: TaskRecord, now: int) -> RequestTask:
    """Create a background task from its stored ``record``, so that ``runner`` can run its handler again.

    The handler gets the arguments, capabilities and the principal of the first run, and the answers that were already
    given to the same questions. Raises `LookupError` and `ValueError` for a record that cannot be read.
    """
    request = request_of(record, now)
    principal = PrincipalId.from_json(record.scope) if record.scope else None
    auth = None if principal is None else Auth("", Principal._known_by(principal))
    exchange = _RestartedExchange(host, host.state, host.silence, Peer(principal=principal, auth=auth))
    scope = runner.new_scope(request, exchange)
    task = RequestTask(host, scope, ttl_ms=record.ttl_ms, on_restart=record.on_restart, record=record)
    exchange.task = scope.task = task
    TaskQuestions(task).replay(record)
    return task


def request_of(record: TaskRecord, now: int) -> InboundRequest:
    """Return the client's request that ``record`` contains, so that the handler of the background task can run again.

    Raises the errors of `restarted`.
    """
    revision = REVISIONS[record.revision]
    params: dict[str, Any] = decode_value(record.params)
    meta: dict[str, Any] = params.get("_meta") or {}
    # The record contains the time that remained when it was created, so subtract the time since then.
    if type(remaining := meta.get(REMAINING_MS)) is int:
        meta[REMAINING_MS] = max(0, remaining - (now - record.created_at))
    return InboundRequest(
        id=record.id,
        method=revision._methods[record.method],
        params=params,
        revision=revision,
        meta=meta,
        capabilities=structure(decode_value(record.capabilities), ClientCapabilities),
        client_info=None,
        log_level=None,
        progress_token=None,
        size=len(record.params),
        continuation=None if record.continuation is None else Continuation(*decode_value(record.continuation)),
    )


def log_before_start(task: RequestTask, limit: int) -> QuestionLog:
    """Return the input requests and responses that were sent before the task had a record, to store them in its record.

    Returns nothing if the responses have more than ``limit`` bytes.
    """
    log = _log_of_run(task)
    if log is None:
        return EMPTY_LOG
    noted = _log_entries(log.noted)
    if sum(map(len, noted.answers.values())) <= limit:
        return noted
    log.switch_off()
    return EMPTY_LOG


def _log_of_run(task: RequestTask) -> AnswerLog | None:
    """Return the log of the input requests and responses of ``task``. If the task record stores no such log, return
    `None`."""
    rounds = task.scope.rounds
    return rounds.log if rounds is not None and keeps_answers(task.scope) else None


class TaskQuestions:
    """Writes the input requests of a task's handler into the task record."""

    __slots__ = ("_task",)

    def __init__(self, task: RequestTask) -> None:
        self._task = task

    def collect(self) -> None:
        """From now on, store the handler's input requests in the task record. Earlier ones that weren't sent yet are
        stored as well."""
        if self._task.scope.rounds is not None:
            self._task.scope.rounds.redirect(self._send, self._given_up)

    def replay(self, record: TaskRecord) -> None:
        """Use the stored responses in ``record`` when the restarted handler makes the same input requests as before.

        Store new input requests as `collect` does.
        """
        self._task.scope.rounds = Rounds(self._task.scope, self._send, None, _log_in(record))
        self.collect()

    def _send(self, questions: Sequence[Question]) -> None:
        nursery = self._task.scope.nursery
        assert nursery is not None, "who asks has a nursery"
        nursery.start_soon(self._publish, questions)

    async def _publish(self, questions: Sequence[Question]) -> None:
        texts = {
            each.key: encode_value({"method": each.request.method, "params": each.request.params or {}})
            for each in questions
        }
        for each in questions:
            each.request = _IN_THE_RECORD
        log = _log_of_run(self._task)
        if log is None:
            await self._task.change(lambda record, now: asked(record, now, texts))
        else:
            # Store all new input requests in one change, so that no request is stored without the earlier ones.
            noted, given_up, forgotten = log.drain(), log.given_up, log.take_forgotten()
            await self._task.change(
                lambda record, now: asked(record, now, texts, _log_entries(noted), given_up, forgotten)
            )
            for question in noted:
                question.beside = ()
        given_up_meanwhile = [each.key for each in questions if each.is_open and not self._task.awaits(each.key)]
        await self._withdraw(given_up_meanwhile)

    def _given_up(self, key: str) -> None:
        nursery = self._task.scope.nursery
        if nursery is not None:
            nursery.start_soon(self._withdraw, [key])

    async def _withdraw(self, keys: Sequence[str]) -> None:
        if keys:
            log = _log_of_run(self._task)
            forgotten = () if log is None else log.take_forgotten()
            await self._task.change(lambda record, now: withdrawn(record, now, keys, forgotten))
            if log is not None:
                log.given_up = tuple(key for key in log.given_up if key not in keys)


def _log_entries(questions: Sequence[Question]) -> QuestionLog:
    """Return the log entries for the handler's input requests ``questions`` in the format of the task record."""
    kept = {each.key: each for each in questions if each.beside is not None}
    return QuestionLog(
        {key: tuple(other.key for other in each.beside or ()) for key, each in kept.items()},
        {key: encode_value(each.answer) for key, each in kept.items() if each.answer is not None},
    )


def _log_in(record: TaskRecord) -> AnswerLog:
    """Return the log of input requests and responses in ``record``, for a handler that is restarted."""
    before = [
        AskedBefore(
            key,
            frozenset(beside),
            decode_answer(record.answers[key]) if key in record.answers else None,
            is_open=key in record.questions,
        )
        for key, beside in record.asked.items()
    ]
    return AnswerLog(before, hashlib.sha256((record.holder or "").encode()).hexdigest()[:_RUN])
