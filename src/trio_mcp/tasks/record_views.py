"""Converts task records and task outcomes to the messages of each protocol version.

Each protocol version has its own statuses. The JSON text of an outcome is copied into a response unchanged. A task that
ends without a response gets a generated outcome.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from ..jsonrpc.codec import decode_members, decode_value, encode_value
from ..jsonrpc.errors import INTERNAL_ERROR, TOO_BUSY, CodedError
from ..protocol.converters import structure_result, unstructure
from ..protocol.fields import JSONObject
from ..protocol.meta import with_related_task
from ..protocol.revisions import Revision
from ..protocol.types.input_required import InputRequest
from ..protocol.types.tools import CallToolResult, CreatedTask, CreateTaskResult, DetailedTask, Task, TaskStatus
from ..stores.task_store import Outcome, TaskPhase, TaskRecord

_RUNNING: Final[dict[TaskPhase, TaskStatus]] = {
    TaskPhase.WORKING: "working",
    TaskPhase.INPUT_REQUIRED: "input_required",
    TaskPhase.CANCELLED: "cancelled",
}


def _time(milliseconds: int) -> str:
    """Return ``milliseconds``, a time in a task record, as an ISO 8601 string."""
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _common_members(
    record: TaskRecord, *, results_fail: bool
) -> tuple[str, TaskStatus, str, str, int | None, str | None, int | None]:
    """Return the fields that the MCP task objects of 2025-11-25 and of the tasks extension have in common.

    If ``results_fail``, a tool result with isError gives the status ``failed``.
    """
    outcome, status = record.outcome, _RUNNING.get(record.phase, "completed")
    if outcome is not None and (outcome.is_error or (results_fail and outcome.tells_failure)):
        status = "failed"
    created, updated = _time(record.created_at), _time(record.updated_at)
    return record.id, status, created, updated, record.ttl_ms, record.message, record.poll_ms


def core_task(record: TaskRecord) -> Task:
    """Return the MCP task object for a task record, in the form of MCP 2025-11-25."""
    # 2025-11-25 tasks, Task Execution Errors: a tool result with isError means that the task has failed.
    return Task(*_common_members(record, results_fail=True))


def core_created(record: TaskRecord) -> CreateTaskResult:
    """Return the response that tells the client that its request has become a task, in the form of MCP 2025-11-25."""
    return CreateTaskResult(core_task(record))


def extension_created(record: TaskRecord) -> CreatedTask:
    """Return the response that tells the client that its tool call has become a task (tasks extension)."""
    # Tasks extension, Task Status: only a JSON-RPC error means that the task has failed.
    return CreatedTask(*_common_members(record, results_fail=False))


def result_in(record: TaskRecord, outcome: Outcome, revision: Revision) -> JSONObject:
    """Return the stored result of a background task as the result of a normal request, converted to the protocol
    ``revision``.

    ``outcome`` is the task's outcome, and ``revision`` the protocol revision of the result.

    If the call itself has this revision, the result's JSON text isn't decoded.
    """
    if record.revision == revision.name:
        result = decode_members(outcome.json)
    else:
        result: JSONObject = unstructure(
            structure_result("tools/call", decode_value(outcome.json), CallToolResult), revision
        )
    return {"resultType": "complete", **result} if revision.result_type else result


def core_result(record: TaskRecord, outcome: Outcome, revision: Revision) -> JSONObject:
    """Return the result for ``tasks/result``. If the task has failed with a JSON-RPC error, raise this error as
    `CodedError`."""
    if outcome.is_error:
        raise raised(outcome)
    result = result_in(record, outcome, revision)
    meta: Any = result.get("_meta")
    if type(meta) is msgspec.Raw:
        result["_meta"] = decode_value(bytes(meta))
    # 2025-11-25 tasks, Related Task Metadata: the response must contain the task's id.
    return with_related_task(result, record.id)


def extension_task(record: TaskRecord, revision: Revision) -> DetailedTask:
    """Return the MCP task object for a task record, in the form of the tasks extension.

    It contains the task's outcome, or its unanswered input requests.
    """
    outcome = record.outcome
    result: Any = None
    error: Any = None
    if outcome is not None and outcome.is_error:
        error = msgspec.Raw(outcome.json)
    elif outcome is not None:
        result = result_in(record, outcome, revision)
    questions: dict[str, InputRequest] | None = None
    if record.phase is TaskPhase.INPUT_REQUIRED:
        # Tasks extension, Task Polling 2: include all input requests that aren't answered.
        questions = {key: InputRequest(**decode_value(text)) for key, text in record.questions.items()}
    return DetailedTask(*_common_members(record, results_fail=False), result, error, questions)


TASK_LOST: Final = -31002
"""Error code of this package for a task that didn't run to its end. The effects of the task may have happened
completely, partly or not at all."""

SERVER_STOPPED: Final = "the server was shut down while the task was running"
SERVER_RESTARTED: Final = "the server was restarted while the task was running"
NOT_RUN_AGAIN: Final = "the task reached its maximum number of runs, each ended by a restart of the server"
EXPIRED: Final = "the time to live of the task was over"

_LONGEST_WORDS: Final = 1000


def failure(code: int, message: str) -> Outcome:
    """Return a task outcome that is a JSON-RPC error with this ``code`` and ``message``."""
    return Outcome(encode_value({"code": code, "message": message}), is_error=True)


def store_unreachable() -> CodedError:
    """Return the error response for a request that needs the task store while the store is unavailable."""
    return CodedError(TOO_BUSY, "The task store is unavailable; try again later")


def bounded(outcome: Outcome, limit: int) -> Outcome:
    """Return ``outcome`` if it has at most ``limit`` bytes. Otherwise return an error outcome that says that it's too
    long."""
    if len(outcome.json) > limit:
        return failure(INTERNAL_ERROR, f"Internal error: the result has more than {limit} bytes")
    return outcome


def raised(outcome: Outcome) -> CodedError:
    """Return the JSON-RPC error that a background task has failed with, as an exception."""
    error: dict[str, Any] = decode_value(outcome.json)
    return CodedError(error["code"], error["message"], error.get("data"))


def error_text(outcome: Outcome) -> str | None:
    """Return the message of a failed task's error. If the task hasn't failed, return `None`.

    The message becomes the task's status message (2025-11-25 tasks, Task Execution Errors).
    """
    if not (outcome.is_error or outcome.tells_failure):
        return None
    value: dict[str, Any] = decode_value(outcome.json)
    texts = [value["message"]] if outcome.is_error else [block.get("text") for block in value["content"]]
    return next((text[:_LONGEST_WORDS] for text in texts if isinstance(text, str)), None)
