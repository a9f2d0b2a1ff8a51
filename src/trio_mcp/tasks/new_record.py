"""new_record makes the record of a request that becomes a task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..jsonrpc.codec import encode_value
from ..jsonrpc.errors import TOO_BUSY, CodedError
from ..protocol.conversion.converters import unstructure
from ..stores.task_record import TaskRecord
from .extension_methods import scope_of

if TYPE_CHECKING:
    from .request_task import RequestTask
    from .settings import TaskSettings

__all__ = ["new_record"]


def new_record(task: RequestTask, owner: str, settings: TaskSettings, now: int) -> TaskRecord:
    """Return the record of ``task``, which ``owner`` runs from ``now`` on, unless the work is done elsewhere. Raises
    `CodedError` (-31000) for parameters that are too long to be kept."""
    request = task.scope.request
    params = encode_value(request.params)
    if len(params) > settings.max_record_bytes:
        raise CodedError(TOO_BUSY, "Too busy: the arguments are too long to be kept with a task")
    expires = None if task.ttl_ms is None else now + task.ttl_ms
    return TaskRecord(
        id=task.id,
        scope=scope_of(task.scope),
        method=request.method.name,
        name=str(request.params.get("name", "")),
        params=params,
        revision=request.revision.name,
        capabilities=encode_value(unstructure(request.capabilities, request.revision)),
        on_restart=task.on_restart,
        is_external=task.is_external,
        created_at=now,
        updated_at=now,
        expires_at=expires,
        kept_until=None if expires is None else expires + int(settings.keep * 1000),
        poll_ms=int(settings.poll_interval * 1000),
        message=task.message,
        checkpoint=task.checkpoint_before_start,
        owner=None if task.is_external else owner,
        leased_until=0 if task.is_external else now + int(settings.lease * 1000),
    )
