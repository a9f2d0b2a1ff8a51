"""Questions that the client runs as tasks of its own (2025-11-25 tasks, Client Capabilities)."""

from __future__ import annotations

from math import inf
from typing import Any

from ...protocol.errors import NoWayBack
from ...protocol.fields import JSONObject
from ...runtime.calls.unheeded import send_unheeded
from ...runtime.requests.request_scope import RequestScope
from ...tasks.remote_task import CoreRemoteTask, wish_for_task
from ...tasks.task_state import TaskState


def capability_for_task(method: str) -> str:
    """Return the capability of clients that run requests of ``method`` as tasks."""
    return f"tasks.requests.{method.replace('/', '.')}"


async def ask_as_task(scope: RequestScope, method: str, params: JSONObject | None, ttl: float) -> Any:
    """Have the client run a question of ``scope`` as a task that the client is to keep for ``ttl`` seconds, and return
    its result, plain data.

    Leaving the call for any reason cancels the task. Raises as `RequestScope.ask`, `TaskCancelled` for a task that was
    cancelled over there, and `ValueError` for a ``ttl`` that is no time.
    """
    if not scope.sends_questions:
        raise NoWayBack("the questions of a task go to its requestor, and are no tasks themselves")
    revision = scope.request.revision

    async def ask(method: str, params: JSONObject) -> Any:
        return await scope.ask(method, params, revision)

    def forget(task_id: str) -> None:
        send_unheeded(scope.exchange.state, scope.outbox, "tasks/cancel", {"taskId": task_id}, revision)

    asked = {**(params or {}), "task": wish_for_task(None if ttl == inf else ttl)}
    result = await scope.ask(method, asked, revision, cancel_task=forget)
    return await CoreRemoteTask.created(method, result, ask, forget).result(_told, cancels=True)


async def _told(_: TaskState) -> None:
    """Take a state that nobody wants to know."""
