"""LiveTask: the task of a request that came over a connection, as its handler sees it."""

from __future__ import annotations

import math
from typing import Any

from ...jsonrpc.codec import decode_value
from ...protocol.fields import JSONObject
from ...tasks.request_task import RequestTask
from ..context.task_context import TaskContext


class LiveTask(TaskContext):
    """A view of one `RequestTask`."""

    __slots__ = ("_task",)

    def __init__(self, task: RequestTask) -> None:
        self._task = task

    @property
    def id(self) -> str:
        return self._task.id

    @property
    def ttl(self) -> float | None:
        return None if self._task.ttl_ms is None else self._task.ttl_ms / 1000

    @property
    def requested_ttl(self) -> float | None:
        request = self._task.scope.request
        request.unpack()
        wish: JSONObject = request.params.get("task", {}) if request.revision.tasks == "core" else {}
        if "ttl" not in wish:
            return None
        return math.inf if wish["ttl"] is None else wish["ttl"] / 1000

    @property
    def has_started(self) -> bool:
        return self._task.has_started

    @property
    def attempt(self) -> int:
        return self._task.attempt

    @property
    def restored(self) -> Any:
        restored = self._task.restored
        return None if restored is None else decode_value(restored)

    def status(self, message: str) -> None:
        self._task.tell(message)

    async def start(self) -> None:
        await self._task.start()

    async def checkpoint(self, value: Any) -> None:
        await self._task.checkpoint(value)
