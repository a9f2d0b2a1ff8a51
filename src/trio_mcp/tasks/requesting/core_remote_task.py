"""CoreRemoteTask: a task in the form of 2025-11-25 that a peer runs for us, whichever side we are."""

from __future__ import annotations

from typing import Any, cast

import trio

from ...concurrency.nurseries import ServiceNursery
from ...jsonrpc.errors import INTERNAL_ERROR, INVALID_PARAMS, MCPError, PeerError
from ...protocol.fields import JSONObject
from ...protocol.types.tasks import CreateTaskResult, Task
from ..task_state import TaskCancelled, TaskState, state_of
from .remote_task import Ask, Forget, Looks, RemoteTask, Told, created_state


class CoreRemoteTask(RemoteTask):
    """A task of a peer in the form of 2025-11-25. Its questions come as requests of the peer."""

    def __init__(self, task_id: str, ask: Ask, forget: Forget, known: TaskState | None = None) -> None:
        super().__init__(task_id, ask, forget)
        self._known = known
        """The state in the answer that made the task, until `result` has told it."""

    @classmethod
    def created(cls, method: str, result: Any, ask: Ask, forget: Forget) -> CoreRemoteTask:
        """Return the task that ``result``, the answer to a request of ``method``, tells of. Raises
        `ProtocolViolation`."""
        state = created_state(method, result, CreateTaskResult, forget)
        return cls(state.id, ask, forget, state)

    async def get(self) -> TaskState:
        return self._check(state_of(await self._look(Task)))

    async def cancel(self) -> None:
        try:
            await self._ask("tasks/cancel", {"taskId": self.id})
        except PeerError as error:
            # 2025-11-25 tasks, Task Cancellation 1: receivers MUST reject the cancel of a task that has ended.
            if error.code != INVALID_PARAMS or not (await self.get()).is_final:
                raise
        self.is_over = True

    def _blame(self, state: TaskState) -> None:
        """Raise the error of a task with an empty result. The results of mcp 1.x are empty for each task that was
        cancelled, or failed by an error."""
        if state.status == "cancelled":
            raise TaskCancelled(self.id, state.message)
        if state.status == "failed":
            raise PeerError(INTERNAL_ERROR, state.message or "the task failed")

    async def _follow(self, nursery: ServiceNursery, told: Told) -> Any:
        looks = Looks()
        fetch = _Fetch(self._ask, self.id, looks)
        state, self._known = self._known, None
        while True:
            is_final = False
            if state is not None:
                looks.follow(state)
                await told(state)
                if state.status == "cancelled":
                    raise TaskCancelled(self.id, state.message)
                is_final = state.is_final
                if is_final or state.status == "input_required":
                    # 2025-11-25 tasks, Input Required Status: the requestor SHOULD call tasks/result, in the course of
                    # which the receiver asks.
                    fetch.begin(nursery)
            state = None
            try:
                if is_final:
                    await fetch.ended.wait()
                elif await looks.until_due():
                    state = await self.get()
                if fetch.ended.is_set():
                    result = fetch.take()
                    if _is_empty(result):
                        self._blame(await self.get())
                    self.is_over = True
                    return result
            except _TaskFailed as failed:
                if not is_final and (now := await self.get()).status == "cancelled":
                    raise TaskCancelled(self.id, now.message) from None
                raise failed.error from None
            except MCPError as error:
                looks.failed(error)


class _Fetch:
    """Calls ``tasks/result``, which blocks until the end of the task, while ``looks`` go on."""

    def __init__(self, ask: Ask, task_id: str, looks: Looks) -> None:
        self._ask = ask
        self._task_id = task_id
        self._looks = looks
        self._runs = False
        self.ended = trio.Event()
        """Event set when the call has ended."""
        self._result: Any = None
        self._error: MCPError | None = None

    def begin(self, nursery: ServiceNursery) -> None:
        """Call, unless a call is in flight."""
        if not self._runs:
            self._runs = True
            nursery.start_soon(self._run)

    async def _run(self) -> None:
        try:
            self._result = await self._ask("tasks/result", {"taskId": self._task_id})
        except MCPError as error:
            self._error = error
        self.ended.set()
        self._looks.wake()

    def take(self) -> Any:
        """Return the result of the call that has ended. Raises its error, and `_TaskFailed`. Another call may begin."""
        error, self._error = self._error, None
        self._runs, self.ended = False, trio.Event()
        if isinstance(error, PeerError):
            raise _TaskFailed(error)
        if error is not None:
            raise error
        return self._result


class _TaskFailed(Exception):
    """The peer answered ``tasks/result`` with ``error``: that of the request that the task has run, so that another
    look is of no use."""

    def __init__(self, error: PeerError) -> None:
        super().__init__(error)
        self.error = error


def _is_empty(result: object) -> bool:
    return isinstance(result, dict) and cast("JSONObject", result).keys() <= {"_meta"}
