"""Transitions are the steps in the life of a task, from one record to the next, and in the process that runs the task
(`RunPhase`). No trio, no clock, no store.

============== ============== ============== ============== ==========
phase          asked          answered       ended          cancelled
============== ============== ============== ============== ==========
WORKING        INPUT_REQUIRED                ENDED          CANCELLED
INPUT_REQUIRED INPUT_REQUIRED WORKING (last) ENDED          CANCELLED
ENDED
CANCELLED
============== ============== ============== ============== ==========

An empty cell is a step that changes nothing: the function returns `None`. So each record ends once, and a cancelled
task stays cancelled (2025-11-25 tasks, Task Cancellation 3). A step that is applied to its own result changes nothing,
so that it can be repeated when nobody knows whether it was kept. ``now`` is in milliseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final, TypeVar

import attrs

from ..classes import frozen
from ..state.requests import IllegalStep
from ..stores.task_store import Outcome, TaskPhase, TaskRecord
from .record_views import EXPIRED, NOT_RUN_AGAIN, SERVER_RESTARTED, TASK_LOST, failure

T = TypeVar("T")


@frozen
class QuestionLog:
    """Questions that a handler has asked, as a record keeps them for a further run: see `TaskRecord.asked`."""

    asked: Mapping[str, Sequence[str]]
    answers: Mapping[str, bytes]
    """Answers that came before the task had a record."""


EMPTY_LOG: Final = QuestionLog(MappingProxyType({}), MappingProxyType({}))


def _next(record: TaskRecord, **changes: Any) -> TaskRecord:
    return attrs.evolve(record, version=record.version + 1, **changes)


def asked(
    record: TaskRecord,
    now: int,
    questions: Mapping[str, bytes],
    log: QuestionLog = EMPTY_LOG,
    given_up: Collection[str] = (),
    forgotten: Collection[str] = (),
) -> TaskRecord | None:
    """Return the record with further questions, by their keys. Questions that the record has already, or that were
    answered before, are passed over: the handler runs once more, and asks again. ``log``: their entries
    for `TaskRecord.asked`, and entries of others. ``given_up`` and ``forgotten``: see `withdrawn`."""
    further = {
        key: each for key, each in questions.items() if key not in record.questions and key not in record.answers
    }
    log_of_these = _excluding(log.asked, record.asked)
    if record.phase.is_final or not (further or log_of_these):
        return withdrawn(record, now, given_up, forgotten)
    gone = {*given_up, *forgotten}
    left = _merged(_excluding(record.questions, gone), further)
    return _next(
        record,
        phase=TaskPhase.INPUT_REQUIRED if left else TaskPhase.WORKING,
        questions=left,
        answers=_merged(_excluding(record.answers, gone), _excluding(log.answers, record.answers)),
        asked=_merged(_excluding(record.asked, forgotten), log_of_these),
        updated_at=now,
    )


def answered(record: TaskRecord, now: int, answers: Mapping[str, bytes]) -> TaskRecord | None:
    """Return the record with the answers that are to a question without an answer. All others are ignored: unknown
    keys, and keys that were answered before (extension tasks, Task Update Requests)."""
    if record.phase.is_final:
        return None
    taken = {key: answer for key, answer in answers.items() if key in record.questions}
    if not taken:
        return None
    return _without(_next(record), now, taken, {**record.answers, **taken})


def withdrawn(
    record: TaskRecord, now: int, given_up: Collection[str], forgotten: Collection[str] = ()
) -> TaskRecord | None:
    """Return the record without the questions that the handler has ``given_up``, answered meanwhile or not, by their
    keys; and without questions of a run before that the present run goes past, which are ``forgotten``."""
    gone = {*given_up, *forgotten}
    if record.phase.is_final or (gone.isdisjoint(record.questions) and gone.isdisjoint(record.answers)):
        return None
    return _without(
        _next(record, asked=_excluding(record.asked, forgotten)), now, gone, _excluding(record.answers, gone)
    )


def _without(record: TaskRecord, now: int, keys: Collection[str], answers: Mapping[str, bytes]) -> TaskRecord:
    left = _excluding(record.questions, keys)
    phase = TaskPhase.INPUT_REQUIRED if left else TaskPhase.WORKING
    return attrs.evolve(record, phase=phase, questions=left, answers=answers, updated_at=now)


def _excluding(values: Mapping[str, T], keys: Collection[str]) -> Mapping[str, T]:
    """Return ``values`` without ``keys``: the same object where nothing goes, since there may be many tasks."""
    if not any(key in values for key in keys):
        return values
    return {key: each for key, each in values.items() if key not in keys}


def _merged(values: Mapping[str, T], others: Mapping[str, T]) -> Mapping[str, T]:
    return {**values, **others} if others else values


def with_message(record: TaskRecord, now: int, message: str) -> TaskRecord | None:
    """Return the record with another message."""
    if record.phase.is_final or record.message == message:
        return None
    return _next(record, message=message, updated_at=now)


def checkpointed(record: TaskRecord, value: bytes, awaits: Callable[[str], bool]) -> TaskRecord | None:
    """Return the record with another checkpoint. Of a task that resumes there, no answer before the checkpoint is kept
    but those that the handler, which ``awaits`` them, may not have yet."""
    changes: dict[str, Any] = {"checkpoint": value}
    if record.on_restart == "resume":
        answers = {key: each for key, each in record.answers.items() if awaits(key)}
        changes |= {"answers": answers, "asked": {}, "continuation": None}
    is_other = any(getattr(record, name) != each for name, each in changes.items())
    return _next(record, **changes) if is_other and not record.phase.is_final else None


def with_outcome(record: TaskRecord, now: int, outcome: Outcome, message: str | None = None) -> TaskRecord | None:
    """Return the record with its ``outcome``, and a last ``message``; by default, the message stays."""
    if record.phase.is_final:
        return None
    return _final(record, now, phase=TaskPhase.ENDED, outcome=outcome, message=message or record.message)


def cancelled(record: TaskRecord, now: int, reason: str | None) -> TaskRecord | None:
    """Return the record of a task that was cancelled, with the ``reason`` of the cancelling party."""
    if record.phase.is_final:
        return None
    return _final(record, now, phase=TaskPhase.CANCELLED, cancel_reason=reason, message=reason or record.message)


def _final(record: TaskRecord, now: int, **changes: Any) -> TaskRecord:
    """Return the record at its end, without all that only another run would need: clients could fill the store with
    their arguments and answers."""
    return _next(
        record,
        params=b"{}",
        capabilities=b"{}",
        questions={},
        answers={},
        asked={},
        continuation=None,
        checkpoint=None,
        updated_at=now,
        holder=None,
        leased_until=0,
        **changes,
    )


def made_external(
    record: TaskRecord, now: int, message: str | None, ttl_ms: int | None, keep_ms: int
) -> TaskRecord | None:
    """Return the record of a task for work that is done elsewhere from now on, within ``ttl_ms`` from the creation: no
    process runs or claims the task. The record is kept for ``keep_ms`` longer."""
    if record.phase.is_final or record.is_external:
        return None
    expires = None if ttl_ms is None else record.created_at + ttl_ms
    return _next(
        record,
        is_external=True,
        message=message,
        updated_at=now,
        holder=None,
        leased_until=0,
        expires_at=expires,
        kept_until=None if expires is None else expires + keep_ms,
    )


def released(record: TaskRecord, *, counts: bool = True) -> TaskRecord | None:
    """Return the record of a task that no process runs any more, and that any may claim. ``counts``: whether the run
    until now is one of the attempts."""
    if record.phase.is_final or record.holder is None:
        return None
    return _next(record, holder=None, leased_until=0, attempt=record.attempt if counts else record.attempt - 1)


def reclaimed(record: TaskRecord, now: int, attempt: int, most_attempts: int) -> TaskRecord | None:
    """Return the record of a claimed task, which a process before has run: with the outcome where the task cannot be
    run again, else with the number of the next ``attempt``."""
    if record.phase.is_final:
        return None
    if record.expires_at is not None and record.expires_at <= now:
        return with_outcome(record, now, failure(TASK_LOST, EXPIRED), EXPIRED)
    if record.on_restart == "fail":
        return with_outcome(record, now, failure(TASK_LOST, SERVER_RESTARTED), SERVER_RESTARTED)
    if attempt > most_attempts:
        return with_outcome(record, now, failure(TASK_LOST, NOT_RUN_AGAIN), NOT_RUN_AGAIN)
    if record.attempt == attempt:
        return None
    # Questions before the checkpoint that this run starts from are asked by nobody any more.
    questions = {key: each for key, each in record.questions.items() if key in record.asked}
    answers = {key: each for key, each in record.answers.items() if key in record.asked}
    phase = TaskPhase.INPUT_REQUIRED if questions else TaskPhase.WORKING
    return _next(record, attempt=attempt, questions=questions, answers=answers, phase=phase)


class RunPhase(IntEnum):
    """The phases in the life of a task in the process that runs the task.

    ========== ========== ========== ========== ========== ========== ========== ========== ========== ==========
    phase      RECORD     START      DELEGATE   FAIL       DECLINE    DETACH     LOSE       END        CLOSE
    ========== ========== ========== ========== ========== ========== ========== ========== ========== ==========
    POSSIBLE   RECORDING                                   DECLINED
    RECORDING             RUNNING    DELEGATED  POSSIBLE   DECLINED
    DECLINED
    RUNNING                          DELEGATED                                   LOST       PERSISTING OVER
    DELEGATED                                                         DETACHED   LOST       CLOSING    OVER
    DETACHED                                                                                CLOSING    OVER
    LOST                                                                                    CLOSING    OVER
    PERSISTING                                                                                         OVER
    CLOSING                                                                                            OVER
    OVER
    ========== ========== ========== ========== ========== ========== ========== ========== ========== ==========

    The columns are steps, and an empty cell is a step that cannot be taken. A task that runs once more starts in
    `RUNNING`.
    """

    POSSIBLE = 0
    """The request may become a task."""
    RECORDING = 1
    """The store is about to keep the record."""
    DECLINED = 2
    """The request never becomes a task: the questions of its handler are the answer."""
    RUNNING = 3
    """The request was answered with the task, and its handler runs here, under a lease."""
    DELEGATED = 4
    """The work is done elsewhere: see `TaskRecord.is_external`. The end of the handler is the end of the task."""
    DETACHED = 5
    """The work is done elsewhere, and the end of the handler means nothing."""
    LOST = 6
    """The handler is cancelled, because its record has ended or is not ours any more."""
    PERSISTING = 7
    """The handler has ended, and its outcome is about to be persisted, under the lease."""
    CLOSING = 8
    """The handler has ended without a lease."""
    OVER = 9
    """The handler, all its tasks and its cleanup have ended, and the outcome is persisted, as far as possible."""


class RunStep(IntEnum):
    """The steps from phase to phase."""

    RECORD = 0
    """The task starts."""
    START = 1
    """The record is kept, and the request was answered with the task."""
    DELEGATE = 2
    """The work is to be done elsewhere."""
    FAIL = 3
    """The task did not start, and may start later."""
    DECLINE = 4
    """The handler has returned its questions."""
    DETACH = 5
    """The handler has left the task to others."""
    LOSE = 6
    """The record has ended, or is not ours any more."""
    END = 7
    """The handler has ended."""
    CLOSE = 8
    """Everything has ended, or was cut off by the end of the server."""


_P, _S = RunPhase, RunStep
_PHASE_AFTER: Final = {
    _P.POSSIBLE: {_S.RECORD: _P.RECORDING, _S.DECLINE: _P.DECLINED},
    _P.RECORDING: {_S.START: _P.RUNNING, _S.DELEGATE: _P.DELEGATED, _S.FAIL: _P.POSSIBLE, _S.DECLINE: _P.DECLINED},
    _P.RUNNING: {_S.DELEGATE: _P.DELEGATED, _S.LOSE: _P.LOST, _S.END: _P.PERSISTING, _S.CLOSE: _P.OVER},
    _P.DELEGATED: {_S.DETACH: _P.DETACHED, _S.LOSE: _P.LOST, _S.END: _P.CLOSING, _S.CLOSE: _P.OVER},
    _P.DETACHED: {_S.END: _P.CLOSING, _S.CLOSE: _P.OVER},
    _P.LOST: {_S.END: _P.CLOSING, _S.CLOSE: _P.OVER},
    _P.PERSISTING: {_S.CLOSE: _P.OVER},
    _P.CLOSING: {_S.CLOSE: _P.OVER},
}
"""Phase after each step, by the phase before."""


def phase_after(phase: RunPhase, step: RunStep) -> RunPhase:
    """Return the phase that follows by ``step``. Raises `IllegalStep` where the table has no such step."""
    after = _PHASE_AFTER.get(phase, {}).get(step)
    if after is None:
        raise IllegalStep(f"{step.name} is no step of a task that is {phase.name}")
    return after
