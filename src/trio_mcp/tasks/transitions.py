"""Transitions: functions that return the next version of a task record. `RunPhase`: the phases of a background task in
the process that runs it.

This module uses no trio, no clock and no store.

============== ============== ============== ============== ==========
phase          asked          answered       ended          cancelled
============== ============== ============== ============== ==========
WORKING        INPUT_REQUIRED                ENDED          CANCELLED
INPUT_REQUIRED INPUT_REQUIRED WORKING (last) ENDED          CANCELLED
ENDED
CANCELLED
============== ============== ============== ============== ==========

An empty cell is a step that changes nothing: the function returns `None`. So each record ends once, and a cancelled
task stays cancelled (2025-11-25 tasks, Task Cancellation 3). Applying a step to its own result changes nothing, so it
can be repeated if it's unknown whether it was stored. ``now`` is in milliseconds since the epoch.
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
    """The input requests that a handler has made so far. The task record stores them for a restart of the handler.

    See `TaskRecord.asked`.
    """

    asked: Mapping[str, Sequence[str]]
    answers: Mapping[str, bytes]
    """Answers that the client sent before the task had a record."""


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
    """Return the task record with new input requests added. ``questions`` maps the key of each request to its JSON
    text.

    Input requests that are already in it, or already answered, are skipped: a restarted handler makes them again.

    ``log`` has the new entries for `TaskRecord.asked`. ``given_up`` and ``forgotten``: see `withdrawn`.
    """
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
    """Return the task record with the client's answers to open input requests.

    Unknown keys, and keys that were already answered, are ignored (extension tasks, Task Update Requests).
    """
    if record.phase.is_final:
        return None
    taken = {key: answer for key, answer in answers.items() if key in record.questions}
    if not taken:
        return None
    return _without(_next(record), now, taken, {**record.answers, **taken})


def withdrawn(
    record: TaskRecord, now: int, given_up: Collection[str], forgotten: Collection[str] = ()
) -> TaskRecord | None:
    """Return the task record without the input requests that the handler has cancelled. ``given_up`` are the keys of
    these requests.

    Requests that were already answered are removed as well.

    Also remove ``forgotten``, input requests of an earlier run that the current run doesn't make.
    """
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
    """Return the mapping ``values`` without ``keys``. If nothing must be removed, return ``values`` itself, to save
    memory."""
    if not any(key in values for key in keys):
        return values
    return {key: each for key, each in values.items() if key not in keys}


def _merged(values: Mapping[str, T], others: Mapping[str, T]) -> Mapping[str, T]:
    return {**values, **others} if others else values


def with_message(record: TaskRecord, now: int, message: str) -> TaskRecord | None:
    """Return the task record with another status message."""
    if record.phase.is_final or record.message == message:
        return None
    return _next(record, message=message, updated_at=now)


def checkpointed(record: TaskRecord, value: bytes, awaits: Callable[[str], bool]) -> TaskRecord | None:
    """Return the task record with a new checkpoint.

    If a restarted handler resumes from it, earlier responses to input requests are dropped, unless the handler may
    still be waiting for them, according to ``awaits``.
    """
    changes: dict[str, Any] = {"checkpoint": value}
    if record.on_restart == "resume":
        answers = {key: each for key, each in record.answers.items() if awaits(key)}
        changes |= {"answers": answers, "asked": {}, "continuation": None}
    is_other = any(getattr(record, name) != each for name, each in changes.items())
    return _next(record, **changes) if is_other and not record.phase.is_final else None


def with_outcome(record: TaskRecord, now: int, outcome: Outcome, message: str | None = None) -> TaskRecord | None:
    """Return the record of a background task that has ended, with its ``outcome`` and final status ``message``.

    If ``message`` is empty, the current message stays.
    """
    if record.phase.is_final:
        return None
    return _final(record, now, phase=TaskPhase.ENDED, outcome=outcome, message=message or record.message)


def cancelled(record: TaskRecord, now: int, reason: str | None) -> TaskRecord | None:
    """Return the record of a cancelled task, with the ``reason`` for the cancellation."""
    if record.phase.is_final:
        return None
    return _final(record, now, phase=TaskPhase.CANCELLED, cancel_reason=reason, message=reason or record.message)


def _final(record: TaskRecord, now: int, **changes: Any) -> TaskRecord:
    """Return the record of a background task that has ended, without the data that only a restart would need.

    Otherwise clients could fill the store with such data.
    """
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
    """Return a changed ``record``: from now on, code outside of the handler does the work of this background task.

    Return `None` if the task has ended, or if its record was changed like this before. The task expires ``ttl_ms``
    milliseconds after its creation.

    No process runs or claims such a task. The record is kept for ``keep_ms`` longer.
    """
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
    """Return the task record after its process has released the task. Now any process may claim the task.

    ``counts`` is whether the handler's run counts as an attempt.
    """
    if record.phase.is_final or record.holder is None:
        return None
    return _next(record, holder=None, leased_until=0, attempt=record.attempt if counts else record.attempt - 1)


def reclaimed(record: TaskRecord, now: int, attempt: int, most_attempts: int) -> TaskRecord | None:
    """Return the record of a background task that was claimed because its process has died.

    If the task can't be restarted, the record gets an outcome, else the number of the next ``attempt``.
    """
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
    # The handler runs again from its last stored progress, and won't repeat input requests from before it.
    # So drop those input requests.
    questions = {key: each for key, each in record.questions.items() if key in record.asked}
    answers = {key: each for key, each in record.answers.items() if key in record.asked}
    phase = TaskPhase.INPUT_REQUIRED if questions else TaskPhase.WORKING
    return _next(record, attempt=attempt, questions=questions, answers=answers, phase=phase)


class RunPhase(IntEnum):
    """The phases of a background task, from the point of view of the process that runs the task.

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

    The columns are steps. An empty cell is a step that isn't possible. A task that runs again starts in `RUNNING`.
    """

    POSSIBLE = 0
    """The request may become a task."""
    RECORDING = 1
    """The task's record is being stored."""
    DECLINED = 2
    """The request won't become a task, because its response contains input requests of the handler."""
    RUNNING = 3
    """The request was answered with the task, and its handler runs in this process under a lease."""
    DELEGATED = 4
    """The handler doesn't do the work (see `TaskRecord.is_external`), but the task still ends when the handler ends."""
    DETACHED = 5
    """The handler doesn't do the work, and the task doesn't end when the handler ends."""
    LOST = 6
    """The handler is cancelled, because the task record has ended or has another holder."""
    PERSISTING = 7
    """The handler has ended, and its outcome is being persisted under the lease."""
    CLOSING = 8
    """The handler has ended without a lease."""
    OVER = 9
    """The handler, its child tasks and its cleanup have ended. The outcome is persisted, if possible."""


class RunStep(IntEnum):
    """The steps that lead a background task from one `RunPhase` to the next."""

    RECORD = 0
    """The task starts."""
    START = 1
    """The record is stored, and the request was answered with the task."""
    DELEGATE = 2
    """Code other than the handler will do the work."""
    FAIL = 3
    """The task could not start, but may start later."""
    DECLINE = 4
    """The handler has returned input requests for the client."""
    DETACH = 5
    """The handler has handed the task over to other code."""
    LOSE = 6
    """The task record has ended, or has another holder."""
    END = 7
    """The handler has ended."""
    CLOSE = 8
    """The handler and its child tasks have ended, or were interrupted by the end of the server."""


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
"""The next phase of a run for each step, by current phase."""


def phase_after(phase: RunPhase, step: RunStep) -> RunPhase:
    """Return the phase to which ``step`` leads. Raises `IllegalStep` if the step isn't allowed in the current phase."""
    after = _PHASE_AFTER.get(phase, {}).get(step)
    if after is None:
        raise IllegalStep(f"step {step.name} is not allowed for a task in phase {phase.name}")
    return after
