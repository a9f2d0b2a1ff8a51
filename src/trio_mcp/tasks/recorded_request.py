"""A request that becomes a task is written into a record, and a task runs once more from its record alone."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ..jsonrpc.codec import decode_value, encode_value
from ..jsonrpc.errors import TOO_BUSY, CodedError
from ..protocol.converters import structure, unstructure
from ..protocol.revisions import REVISIONS
from ..protocol.types.lifecycle import ClientCapabilities
from ..runtime.cancellation import REMAINING_MS
from ..runtime.peer import Auth, Peer, Principal, PrincipalId
from ..state.requests import Continuation, InboundRequest
from ..stores.task_store import TaskRecord, new_mark
from .request_task import RequestTask
from .task_exchange import TaskExchange
from .task_methods import scope_of

if TYPE_CHECKING:
    from ..runtime.requests.runner import RequestRunner
    from .settings import TaskSettings
    from .task_exchange import HostOfTasks


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
    """Return the rounds before the task, as far as a further run from the top is to know."""
    before = task.scope.request.continuation
    starts_later = task.on_restart == "resume" and task.checkpoint_before_start is not None
    if before is None or starts_later or not task.keeps_answers:
        return None
    return encode_value([before.responses, before.state])


def restarted(host: HostOfTasks[RequestTask], runner: RequestRunner, record: TaskRecord, now: int) -> RequestTask:
    """Return the task of ``record``, which is to be given to ``runner``. Raises `LookupError` and `ValueError` for a
    record that cannot be read.

    The handler gets the arguments, capabilities and the principal of the first run, and the answers given so far to
    the same questions.
    """
    request = request_of(record, now)
    principal = PrincipalId.from_json(record.scope) if record.scope else None
    auth = None if principal is None else Auth("", Principal.known_by(principal))
    exchange = TaskExchange(host.state, host.silence, Peer(principal=principal, auth=auth), host.ending)
    scope = runner.take_up(request, exchange)
    task = RequestTask(host, scope, ttl_ms=record.ttl_ms, on_restart=record.on_restart, record=record)
    exchange.belong_to(task)
    task.take_up(record)
    return task


def request_of(record: TaskRecord, now: int) -> InboundRequest:
    """Return the request that a task runs once more. Raises as `restarted`."""
    revision = REVISIONS[record.revision]
    params: dict[str, Any] = decode_value(record.params)
    meta: dict[str, Any] = params.get("_meta") or {}
    if type(remaining := meta.get(REMAINING_MS)) is int:  # as told at the first arrival
        meta[REMAINING_MS] = max(0, remaining - (now - record.created_at))
    return InboundRequest(
        id=record.id,
        method=revision.methods[record.method],
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
