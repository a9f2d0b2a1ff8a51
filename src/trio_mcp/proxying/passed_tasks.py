"""Tasks of the server behind a proxy, where client and server speak the same form of tasks: each task is passed on to
its owner alone."""

from __future__ import annotations

from typing import Any, Final, cast

import attrs

from ..jsonrpc.errors import INTERNAL_ERROR, METHOD_NOT_FOUND, CodedError
from ..protocol.errors import CapabilityMissing
from ..protocol.fields import JSONObject
from ..protocol.meta import RELATED_TASK
from ..protocol.revisions import Revision
from ..protocol.types.capabilities import ServerCapabilities
from ..protocol.types.extension_tasks import TASKS_CAPABILITY, TASKS_EXTENSION, is_task
from ..runtime.requests.request_scope import RequestScope
from ..tasks.extension_methods import unknown_task
from .downstream import Downstream
from .task_owners import LONGEST_ID, Owner
from .upstream import Upstream

_NAMES_A_TASK: Final = frozenset(("tasks/get", "tasks/result", "tasks/update", "tasks/cancel"))


def offered(upstream: Upstream, revision: Revision) -> ServerCapabilities:
    """Return the capabilities of the server behind, for a client that speaks ``revision``: with tasks where both sides
    speak the same form of tasks."""
    declared = upstream.capabilities
    if upstream.passes_tasks(revision):
        return declared
    extensions = {name: value for name, value in (declared.extensions or {}).items() if name != TASKS_EXTENSION}
    return attrs.evolve(declared, tasks=None, extensions=extensions or None)


def check_task(scope: RequestScope, downstream: Downstream, upstream: Upstream) -> None:
    """Raise `CodedError` for a method of tasks that the server behind has in another form, and for the task of another
    caller. A client that nobody knows is asked the questions of the task that it waits for."""
    request = scope.request
    method = request.method.name
    if method.startswith("tasks/") and not upstream.passes_tasks(request.revision):
        raise CodedError(METHOD_NOT_FOUND, "Method not found", {"method": method})
    if method in _NAMES_A_TASK:
        principal = scope.exchange.peer.principal
        task_id = request.params.get("taskId")
        if not upstream.tasks.of_server.exists_for(principal, task_id):
            raise unknown_task()
        if method == "tasks/result" and isinstance(task_id, str):
            upstream.tasks.of_server.note(task_id, _owner(scope, downstream))


def note_task(scope: RequestScope, downstream: Downstream, upstream: Upstream, result: JSONObject) -> None:
    """Note whose task ``result`` tells of. Raises `CodedError` for a task that the client cannot understand."""
    request = scope.request
    method = request.method.name
    told: Any = result
    if is_task(result):
        if method != "tools/call" or request.missing((TASKS_CAPABILITY,)):
            raise CodedError(INTERNAL_ERROR, "Internal error: the result of the server behind makes no sense")
        created = result.get("taskId")
    elif method == "tools/call" and request.revision.tasks == "core" and isinstance(task := result.get("task"), dict):
        told = cast("JSONObject", task)
        created = told.get("taskId")
    elif method in _NAMES_A_TASK:
        created = request.params.get("taskId")
    else:
        return
    if isinstance(created, str):
        upstream.tasks.of_server.note(created, _owner(scope, downstream))
        if method == "tasks/result":
            upstream.working.ended(created)
        elif "status" in told:
            upstream.working.note(created, told)
        if method == "tools/call" and not downstream.is_many and request.progress_token is not None:
            upstream.tasks.note_token(created, downstream, request.progress_token)


def only_own_tasks(scope: RequestScope, downstream: Downstream, upstream: Upstream, result: JSONObject) -> JSONObject:
    """Return a result of ``tasks/list`` without the tasks of other callers. A client that nobody knows sees the tasks
    that nobody has created since the start of the proxy only where no other client can come."""
    tasks = result.get("tasks")
    if not isinstance(tasks, list):
        return result
    owner, owners = _owner(scope, downstream), upstream.tasks.of_server
    seen: list[Owner | None] = [owner, None] if scope.exchange.peer.alone and not upstream.shared else [owner]
    kept: list[Any] = [
        task
        for task in cast("list[Any]", tasks)
        if isinstance(task, dict) and owners.owner(cast("JSONObject", task).get("taskId")) in seen
    ]
    return {**result, "tasks": kept}


def tasks_to_listen_for(scope: RequestScope, upstream: Upstream, asked: list[str] | None) -> list[str]:
    """Return those of the ``asked`` tasks whose changes the caller may learn. Raises `CapabilityMissing`."""
    request, declared = scope.request, upstream.capabilities.extensions or {}
    if asked is None or not upstream.passes_tasks(request.revision) or TASKS_EXTENSION not in declared:
        return []
    if missing := request.missing((TASKS_CAPABILITY,)):
        # extension tasks, Task Status Notifications: MUST be refused.
        raise CapabilityMissing(missing, request.revision)
    owners, principal = upstream.tasks.of_server, scope.exchange.peer.principal
    return [
        task_id
        for task_id in dict.fromkeys(asked)
        if len(task_id) <= LONGEST_ID and owners.exists_for(principal, task_id)
    ]


def without_related_task(result: JSONObject) -> JSONObject:
    """Return the result of a task as the result of an ordinary call."""
    meta = result.get("_meta")
    if not isinstance(meta, dict) or RELATED_TASK not in meta:
        return result
    kept = {name: value for name, value in cast("JSONObject", meta).items() if name != RELATED_TASK}
    rest = {name: value for name, value in result.items() if name != "_meta"}
    return {**rest, "_meta": kept} if kept else rest


def _owner(scope: RequestScope, downstream: Downstream) -> Owner:
    return scope.exchange.peer.principal or downstream
