"""Restarts: a task runs once more, from its record alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..jsonrpc.codec import decode_value
from ..protocol.converters import structure
from ..protocol.revisions import REVISIONS
from ..protocol.types.lifecycle import ClientCapabilities
from ..runtime.peer import Peer
from ..runtime.principal import Auth, Principal, PrincipalId
from ..runtime.remaining_time import REMAINING_MS
from ..state.requests import Continuation, InboundRequest
from .request_task import RequestTask
from .task_exchange import TaskExchange

if TYPE_CHECKING:
    from ..runtime.requests.runner import RequestRunner
    from ..stores.task_store import TaskRecord
    from .surroundings import TaskSurroundings


def restarted(host: TaskSurroundings[RequestTask], runner: RequestRunner, record: TaskRecord, now: int) -> RequestTask:
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
