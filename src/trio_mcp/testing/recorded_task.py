"""RecordedTask: the task of a handler that is called as a plain function."""

from __future__ import annotations

from typing import Any

import trio

from ..jsonrpc.codec import encode_value
from ..server.context.task_context import TaskContext


class RecordedTask(TaskContext):
    """Stand in for the task of a request, ``RecordingContext(task=RecordedTask())``: record messages and checkpoints.

    ``restored`` and ``attempt`` tell of a run after a restart; ``ttl`` and ``requested_ttl`` are in seconds.
    """

    def __init__(
        self,
        *,
        id: str = "task",
        ttl: float | None = 3600.0,
        requested_ttl: float | None = None,
        attempt: int = 1,
        restored: Any = None,
    ) -> None:
        self._id = id
        self._ttl = ttl
        self._requested_ttl = requested_ttl
        self._attempt = attempt
        self._restored = restored
        self._has_started = attempt > 1
        self.messages: list[str] = []
        """The messages of `status`."""
        self.checkpoints: list[Any] = []
        """The values of `checkpoint`."""

    @property
    def id(self) -> str:
        return self._id

    @property
    def ttl(self) -> float | None:
        return self._ttl

    @property
    def requested_ttl(self) -> float | None:
        return self._requested_ttl

    @property
    def has_started(self) -> bool:
        return self._has_started

    @property
    def attempt(self) -> int:
        return self._attempt

    @property
    def restored(self) -> Any:
        return self._restored

    def status(self, message: str) -> None:
        self.messages.append(message)

    async def start(self) -> None:
        await trio.lowlevel.checkpoint()
        self._has_started = True

    async def checkpoint(self, value: Any) -> None:
        encode_value(value)
        await trio.lowlevel.checkpoint()
        self.checkpoints.append(value)
