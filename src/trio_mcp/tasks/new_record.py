"""new_record makes the record of a request that becomes a task."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ..jsonrpc.codec import encode_value
from ..jsonrpc.errors import TOO_BUSY, CodedError
from ..protocol.converters import unstructure
from ..stores.task_store import TaskRecord, new_mark
from .extension_methods import scope_of

if TYPE_CHECKING:
    from .request_task import RequestTask
    from .settings import TaskSettings


def new_record(task: RequestTask, holder: str, settings: TaskSettings, before: TaskRecord | None) -> TaskRecord:
    """Return the record of ``task``, which ``holder`` runs, unless the work is done elsewhere; the store fills in the
    times. The capabilities, where they are the same, are shared with the record made ``before``: thousands may wait.
    Raises `CodedError` (-31000) for parameters that are too long to be kept."""
    request = task.scope.request
    params = encode_value(request.params)
    if len(params) > settings.max_record_bytes:
        raise CodedError(TOO_BUSY, "Too busy: the arguments are too long to be kept with a task")
    capabilities = encode_value(unstructure(request.capabilities, request.revision))
    if before is not None and before.capabilities == capabilities:
        capabilities = before.capabilities
    log = task.asked_before_start()
    return TaskRecord(
        id=task.id,
        scope=scope_of(task.scope),
        method=request.method.name,
        name=sys.intern(str(request.params.get("name", ""))),  # of a tool, and the same in thousands of records
        params=params,
        revision=request.revision.name,
        capabilities=capabilities,
        on_restart=task.on_restart,
        is_external=task.is_external,
        poll_ms=int(settings.poll_interval * 1000),
        message=task.message,
        checkpoint=task.checkpoint_before_start,
        holder=None if task.is_external else holder,
        mark=new_mark(),
        asked=log.asked,
        answers=log.answers,
        continuation=_continuation(task),
    )


def _continuation(task: RequestTask) -> bytes | None:
    """Return what a further run from the top is to have of the rounds before the task."""
    before = task.scope.request.continuation
    starts_later = task.on_restart == "resume" and task.checkpoint_before_start is not None
    if before is None or starts_later or not task.keeps_answers:
        return None
    return encode_value([before.responses, before.state])
