"""new_record makes the record of a request that becomes a task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..jsonrpc.codec import encode_value
from ..jsonrpc.errors import TOO_BUSY, CodedError
from ..protocol.conversion.converters import unstructure
from ..stores.task_record import TaskRecord

if TYPE_CHECKING:
    from .request_task import RequestTask
    from .settings import TaskSettings

__all__ = ["new_record"]


def new_record(task: RequestTask, owner: str, settings: TaskSettings, now: int) -> TaskRecord:
    """Return the record of ``task``, which ``owner`` runs from ``now`` on. Raises `CodedError` (-31000) for parameters
    that are too long to be kept."""
    request = task.scope.request
    params = encode_value(request.params)
    if len(params) > settings.max_record_bytes:
        raise CodedError(TOO_BUSY, "Too busy: the arguments are too long to be kept with a task")
    expires = None if task.ttl_ms is None else now + task.ttl_ms
    return TaskRecord(
        id=task.id,
        scope=task.scope.exchange.peer.principal or "",
        method=request.method.name,
        name=str(request.params.get("name", "")),
        params=params,
        revision=request.revision.name,
        capabilities=encode_value(unstructure(request.capabilities, request.revision)),
        on_restart=task.on_restart,
        created_at=now,
        updated_at=now,
        expires_at=expires,
        kept_until=None if expires is None else expires + int(settings.keep * 1000),
        poll_ms=int(settings.poll_interval * 1000),
        message=task.message,
        checkpoint=task.checkpoint_before_start,
        owner=owner,
        leased_until=now + int(settings.lease * 1000),
    )
