"""TaskStates: the states of tasks on a stream of ``subscriptions/listen``, between the server behind and a client."""

from __future__ import annotations

from collections.abc import Collection

import trio

from ..protocol.fields import JSONObject
from ..server.listen_stream import ListenStream
from ..state.events import NotificationReceived


class TaskStates:
    """The latest state of each of the tasks ``task_ids``, until the client has room for the state."""

    def __init__(self, task_ids: Collection[str], most_bytes: int) -> None:
        self._task_ids = frozenset(task_ids)
        self._most_bytes = most_bytes
        self._waiting: dict[str, tuple[JSONObject, int]] = {}
        self._bytes = 0
        self._changed = trio.Event()
        self.overflowed = trio.Event()
        """Event set when the client reads so slowly that a state was dropped."""

    def told(self, event: NotificationReceived, size: int) -> None:
        """Take a notification of ``size`` bytes. A task that was not asked for is ignored."""
        task_id = event.params.get("taskId")
        if task_id not in self._task_ids:
            return
        _, before = self._waiting.pop(task_id, (None, 0))
        self._bytes += size - before
        self._waiting[task_id] = (event.params, size)
        while self._bytes > self._most_bytes and len(self._waiting) > 1:
            self._take()
            self.overflowed.set()
        self._changed.set()

    def _take(self) -> JSONObject:
        state, size = self._waiting.pop(next(iter(self._waiting)))
        self._bytes -= size
        return state

    async def tell(self, stream: ListenStream) -> None:
        """Tell the client of the states, as the client has room, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            while self._waiting:
                await stream.room()
                if self._waiting:
                    stream.task_told(self._take())

    def tell_all(self, stream: ListenStream) -> None:
        """Tell the client of the rest, because the stream ends."""
        while self._waiting:
            stream.task_told(self._take())
