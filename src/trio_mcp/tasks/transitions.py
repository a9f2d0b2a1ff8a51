"""Transitions are the steps in the life of a task, from one record to the next. No trio, no clock, no store.

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

from collections.abc import Collection, Mapping
from typing import Any

import attrs

from ..stores.task_record import Outcome, TaskPhase, TaskRecord
from .outcomes import EXPIRED, NOT_RUN_AGAIN, SERVER_RESTARTED, TASK_LOST, failure

__all__ = [
    "answered",
    "asked",
    "cancelled",
    "checkpointed",
    "ended",
    "given_away",
    "noted",
    "released",
    "taken_over",
    "withdrawn",
]


def _next(record: TaskRecord, **changes: Any) -> TaskRecord:
    return attrs.evolve(record, version=record.version + 1, **changes)


def asked(record: TaskRecord, now: int, questions: Mapping[str, bytes]) -> TaskRecord | None:
    """Return the record with further questions, by their keys. Questions that the record has already, or that were
    answered before, are passed over: the handler runs once more, and asks again."""
    further = {
        key: each for key, each in questions.items() if key not in record.questions and key not in record.answers
    }
    if record.phase.is_final or not further:
        return None
    return _next(
        record,
        phase=TaskPhase.INPUT_REQUIRED,
        questions={**record.questions, **further},
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
    return _without(record, now, taken, {**record.answers, **taken})


def withdrawn(record: TaskRecord, now: int, keys: Collection[str]) -> TaskRecord | None:
    """Return the record without the questions ``keys``, which the handler has given up."""
    if record.phase.is_final or not any(key in record.questions for key in keys):
        return None
    return _without(record, now, keys, record.answers)


def _without(record: TaskRecord, now: int, keys: Collection[str], answers: Mapping[str, bytes]) -> TaskRecord:
    left = {key: question for key, question in record.questions.items() if key not in keys}
    phase = TaskPhase.INPUT_REQUIRED if left else TaskPhase.WORKING
    return _next(record, phase=phase, questions=left, answers=answers, updated_at=now)


def noted(record: TaskRecord, now: int, message: str) -> TaskRecord | None:
    """Return the record with another message."""
    if record.phase.is_final or record.message == message:
        return None
    return _next(record, message=message, updated_at=now)


def checkpointed(record: TaskRecord, value: bytes) -> TaskRecord | None:
    """Return the record with another checkpoint."""
    return None if record.phase.is_final or record.checkpoint == value else _next(record, checkpoint=value)


def ended(record: TaskRecord, now: int, outcome: Outcome, message: str | None = None) -> TaskRecord | None:
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
        checkpoint=None,
        updated_at=now,
        holder=None,
        leased_until=0,
        **changes,
    )


def given_away(
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


def taken_over(record: TaskRecord, now: int, attempt: int, most_attempts: int) -> TaskRecord | None:
    """Return the record of a claimed task, which a process before has run: with the outcome where the task cannot be
    run again, else with the number of the next ``attempt``."""
    if record.phase.is_final:
        return None
    if record.expires_at is not None and record.expires_at <= now:
        return ended(record, now, failure(TASK_LOST, EXPIRED), EXPIRED)
    if record.on_restart == "fail":
        return ended(record, now, failure(TASK_LOST, SERVER_RESTARTED), SERVER_RESTARTED)
    if attempt > most_attempts:
        return ended(record, now, failure(TASK_LOST, NOT_RUN_AGAIN), NOT_RUN_AGAIN)
    return None if record.attempt == attempt else _next(record, attempt=attempt)
