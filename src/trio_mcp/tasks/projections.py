"""Projections: a record in the words of each protocol. The outcome is kept, and each protocol has its own status."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from ..jsonrpc.codec import decode_value
from ..protocol.converters import structure, unstructure
from ..protocol.fields import JSONObject
from ..protocol.revisions import Revision
from ..protocol.types.input_required import InputRequest
from ..protocol.types.tasks import CreatedTask, CreateTaskResult, DetailedTask, Task, TaskStatus
from ..protocol.types.tools import CallToolResult
from ..stores.task_store import Outcome, TaskPhase, TaskRecord

_RUNNING: Final[dict[TaskPhase, TaskStatus]] = {
    TaskPhase.WORKING: "working",
    TaskPhase.INPUT_REQUIRED: "input_required",
    TaskPhase.CANCELLED: "cancelled",
}


def _time(milliseconds: int) -> str:
    """Return a time in ISO 8601."""
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _core_status(record: TaskRecord) -> TaskStatus:
    if record.outcome is None:
        return _RUNNING[record.phase]
    # 2025-11-25 tasks, Task Execution Errors: a tool result with isError makes the task fail.
    return "failed" if record.outcome.is_error or record.outcome.tells_failure else "completed"


def core_task(record: TaskRecord) -> Task:
    """Return the state of a task in the form of 2025-11-25."""
    return Task(
        record.id,
        _core_status(record),
        _time(record.created_at),
        _time(record.updated_at),
        record.ttl_ms,
        record.message,
        record.poll_ms,
    )


def core_created(record: TaskRecord) -> CreateTaskResult:
    """Return the answer to a request that asked for a task."""
    return CreateTaskResult(core_task(record))


def _extension_status(record: TaskRecord) -> TaskStatus:
    if record.outcome is None:
        return _RUNNING[record.phase]
    # extension tasks, Task Status: failed MUST NOT be used for anything but errors of JSON-RPC.
    return "failed" if record.outcome.is_error else "completed"


def extension_created(record: TaskRecord) -> CreatedTask:
    """Return the result of a call that goes on as a task."""
    return CreatedTask(
        record.id,
        _extension_status(record),
        _time(record.created_at),
        _time(record.updated_at),
        record.ttl_ms,
        record.message,
        record.poll_ms,
    )


def result_in(record: TaskRecord, outcome: Outcome, revision: Revision) -> JSONObject:
    """Return the result of a call that ended with ``outcome``, in the terms of ``revision``, as the call itself would
    have been answered."""
    result: JSONObject = decode_value(outcome.json)
    if record.revision != revision.name:
        result = unstructure(structure(result, CallToolResult), revision)
    return {"resultType": "complete", **result} if revision.result_type else result


def extension_task(record: TaskRecord, revision: Revision) -> DetailedTask:
    """Return the state of a task in the form of the extension, with its outcome or its questions."""
    outcome, result, error = record.outcome, None, None
    if outcome is not None and outcome.is_error:
        error: JSONObject | None = decode_value(outcome.json)
    elif outcome is not None:
        result = result_in(record, outcome, revision)
    questions: dict[str, InputRequest] | None = None
    if record.phase is TaskPhase.INPUT_REQUIRED:
        # extension tasks, Task Polling 2: MUST contain all outstanding requests.
        questions = {key: InputRequest(**decode_value(text)) for key, text in record.questions.items()}
    return DetailedTask(
        record.id,
        _extension_status(record),
        _time(record.created_at),
        _time(record.updated_at),
        record.ttl_ms,
        record.message,
        record.poll_ms,
        result,
        error,
        questions,
    )
