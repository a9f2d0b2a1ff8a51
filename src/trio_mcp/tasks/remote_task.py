"""RemoteTask is a task that a peer runs for us, seen by its requestor.

`CoreRemoteTask` is one in the form of 2025-11-25, whichever side we are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from math import ceil, inf
from typing import Any, Final, TypeAlias, TypeVar, cast

import trio

from ..concurrency.nurseries import ServiceNursery, open_service_nursery
from ..concurrency.wakeups import Sleeper
from ..jsonrpc.errors import INTERNAL_ERROR, INVALID_PARAMS, TOO_BUSY, MCPError, PeerError, ProtocolViolation
from ..protocol.converters import structure_result
from ..protocol.fields import JSONObject
from ..protocol.types.tools import CreatedTask, CreateTaskResult, Task, created_id
from ..runtime.transport import HTTPError
from .task_state import TaskCancelled, TaskState, state_of

T = TypeVar("T")

Ask: TypeAlias = Callable[[str, JSONObject], Awaitable[Any]]
"""Sends a request of this method with these parameters, and returns its result, plain data."""
SendCancel: TypeAlias = Callable[[str], None]
"""Sends ``tasks/cancel`` for the task with this id, without waiting for the reply."""
OnState: TypeAlias = Callable[[TaskState], Awaitable[None]]
"""Gets each state that the receiver tells."""

_USUAL_INTERVAL: Final = 1.0
_SHORTEST_INTERVAL: Final = 0.1
_LONGEST_INTERVAL: Final = 300.0
_FAILED_POLLS_LIMIT: Final = 5
_PASSING: Final = frozenset((HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS))


class RemoteTask(ABC):
    """A task that a peer runs for us. ``ask`` and ``forget`` send the requests about the task."""

    def __init__(self, task_id: str, ask: Ask, forget: SendCancel) -> None:
        self.id = task_id
        self._ask = ask
        self._forget = forget
        self.is_over = False
        """True once the peer needs no cancel for the task: the task has ended, is unknown, or was cancelled by us."""

    @abstractmethod
    async def get(self) -> TaskState:
        """Ask how the task is. Raises the error of the request, -32602 for an unknown task."""

    @abstractmethod
    async def cancel(self) -> None:
        """Ask for the cancel of the task. A task that has ended does not change; raises the error of the request."""

    async def result(self, on_state: OnState, *, cancels: bool) -> Any:
        """Wait for the end of the task, have its questions answered, and return its result, plain data.

        ``on_state`` gets each state. ``cancels``: leaving the wait before the end of the task, for any reason, is a
        `abandon`. Raises `PeerError` for a task that failed, `TaskCancelled` for a task that was cancelled,
        `ProtocolViolation`, and the error of a request that fails for good.
        """
        async with open_service_nursery("nobody waits for the task any more") as nursery:
            try:
                return await self._poll_until_done(nursery, on_state)
            except BaseException:
                if cancels:  # here, ahead of the cleanup of those who answer its questions
                    self.abandon()
                raise

    @abstractmethod
    async def _poll_until_done(self, nursery: ServiceNursery, on_state: OnState) -> Any:
        """Do as `result`, with helping tasks in ``nursery``."""

    def abandon(self) -> None:
        """Tell the peer, unless the task is over, that nobody waits for the task any more. Waits for nothing, so also a
        task of trio's that is cancelled can call this."""
        if not self.is_over:
            self.is_over = True
            self._forget(self.id)

    async def _fetch_state(self, result_type: type[T]) -> T:
        """Return the answer to ``tasks/get``."""
        try:
            return structure_result("tasks/get", await self._ask("tasks/get", {"taskId": self.id}), result_type)
        except PeerError as error:
            if error.code == INVALID_PARAMS:
                self.is_over = True  # there is no such task: it was forgotten after its time
            raise

    def _check(self, state: TaskState) -> TaskState:
        """Return ``state`` of this task. Raises `ProtocolViolation` for that of another one."""
        if state.id != self.id:
            raise ProtocolViolation(f"tasks/get: the answer is about another task: {state.id[:100]!r}")
        self.is_over = self.is_over or state.is_final
        return state


def created_state(
    method: str, result: Any, kind: type[CreatedTask] | type[CreateTaskResult], forget: SendCancel
) -> TaskState:
    """Return the state of the task that ``result``, the answer to a request of ``method``, tells of. Raises
    `ProtocolViolation` for an answer that makes no sense, and cancels the task if the answer names one."""
    try:
        made = structure_result(method, result, kind)
    except ProtocolViolation:
        task_id = created_id(result, is_flat=kind is CreatedTask)
        if task_id is not None:
            forget(task_id)
        raise
    return state_of(made if isinstance(made, CreatedTask) else made.task)


def task_params(ttl: float | None) -> JSONObject:
    """Return the wish for a task that a request of 2025-11-25 carries: for one that is kept for ``ttl`` seconds, or as
    long as the receiver likes. Raises `ValueError` for a time that is not positive and finite."""
    if ttl is None:
        return {}
    if not 0 < ttl < inf:
        raise ValueError(f"a time to live is a positive number of seconds, not {ttl!r}")
    return {"ttl": ceil(ttl * 1000)}


class PollSchedule:
    """The times to look after a task: at the pace that its receiver wishes, within bounds of ours.

    Where the receiver cannot be reached for a while, or is too busy, the next look comes later each time; the sixth
    look in a row that fails ends the wait with its error, half a minute after the first at the usual pace.
    """

    def __init__(self) -> None:
        self._due = -inf
        self._pause = _USUAL_INTERVAL
        self._failures = 0
        self._waiting = Sleeper()
        self._is_woken = False

    def update(self, state: TaskState) -> None:
        """Take the wish of the receiver, and count the time to the next look from now."""
        self._failures = 0
        wish = _USUAL_INTERVAL if state.poll_interval is None else state.poll_interval
        self._pause = min(max(wish, _SHORTEST_INTERVAL), _LONGEST_INTERVAL)
        self._due = trio.current_time() + self._pause

    def record_failure(self, error: MCPError) -> None:
        """Look again later, after a look that failed. Raises ``error`` if another look is of no use."""
        self._failures += 1
        if not _is_transient(error) or self._failures > _FAILED_POLLS_LIMIT:
            raise error
        self._due = trio.current_time() + min(
            max(self._pause, _USUAL_INTERVAL) * 2 ** (self._failures - 1), _LONGEST_INTERVAL
        )

    def poll_now(self) -> None:
        """Look now."""
        self._due = -inf

    def wake(self) -> None:
        """End the wait before its time, since there is something to do."""
        self._is_woken = True
        self._waiting.wake()

    async def wait_until_due(self) -> bool:
        """Wait for the time of the next look. Return false where `wake` was called before that time."""
        with trio.move_on_at(self._due):
            if not self._is_woken:
                await self._waiting.sleep()
        woken, self._is_woken = self._is_woken, False
        return not woken


def _is_transient(error: MCPError) -> bool:
    """Return whether ``error`` says nothing of the same request at another time."""
    if isinstance(error, HTTPError):
        if error.session_lost:  # the next look goes into a new session, and a task outlives that of its call
            return True
        status = error.status
        return status is None or status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _PASSING
    return isinstance(error, PeerError) and error.code == TOO_BUSY


class CoreRemoteTask(RemoteTask):
    """A task of a peer in the form of 2025-11-25. Its questions come as requests of the peer."""

    def __init__(self, task_id: str, ask: Ask, forget: SendCancel, known: TaskState | None = None) -> None:
        super().__init__(task_id, ask, forget)
        self._known = known
        """The state in the answer that made the task, until `result` has told it."""

    @classmethod
    def created(cls, method: str, result: Any, ask: Ask, forget: SendCancel) -> CoreRemoteTask:
        """Return the task that ``result``, the answer to a request of ``method``, tells of. Raises
        `ProtocolViolation`."""
        state = created_state(method, result, CreateTaskResult, forget)
        return cls(state.id, ask, forget, state)

    async def get(self) -> TaskState:
        return self._check(state_of(await self._fetch_state(Task)))

    async def cancel(self) -> None:
        try:
            await self._ask("tasks/cancel", {"taskId": self.id})
        except PeerError as error:
            # 2025-11-25 tasks, Task Cancellation 1: receivers MUST reject the cancel of a task that has ended.
            if error.code != INVALID_PARAMS or not (await self.get()).is_final:
                raise
        self.is_over = True

    def _raise_failure(self, state: TaskState) -> None:
        """Raise the error of a task with an empty result. The results of mcp 1.x are empty for each task that was
        cancelled, or failed by an error."""
        if state.status == "cancelled":
            raise TaskCancelled(self.id, state.message)
        if state.status == "failed":
            raise PeerError(INTERNAL_ERROR, state.message or "the task failed")

    async def _poll_until_done(self, nursery: ServiceNursery, on_state: OnState) -> Any:
        looks = PollSchedule()
        fetch = _ResultCall(self._ask, self.id, looks)
        state, self._known = self._known, None
        while True:
            is_final = False
            if state is not None:
                looks.update(state)
                await on_state(state)
                if state.status == "cancelled":
                    raise TaskCancelled(self.id, state.message)
                is_final = state.is_final
                if is_final or state.status == "input_required":
                    # 2025-11-25 tasks, Input Required Status: the requestor SHOULD call tasks/result, in the course of
                    # which the receiver asks.
                    fetch.start(nursery)
            state = None
            try:
                if is_final:
                    await fetch.ended.wait()
                elif await looks.wait_until_due():
                    state = await self.get()
                if fetch.ended.is_set():
                    result = fetch.collect()
                    if _is_empty(result):
                        self._raise_failure(await self.get())
                    self.is_over = True
                    return result
            except _TaskFailed as failed:
                if not is_final and (now := await self.get()).status == "cancelled":
                    raise TaskCancelled(self.id, now.message) from None
                raise failed.error from None
            except MCPError as error:
                looks.record_failure(error)


class _ResultCall:
    """Calls ``tasks/result``, which blocks until the end of the task, while ``looks`` go on."""

    def __init__(self, ask: Ask, task_id: str, looks: PollSchedule) -> None:
        self._ask = ask
        self._task_id = task_id
        self._looks = looks
        self._runs = False
        self.ended = trio.Event()
        """Event set when the call has ended."""
        self._result: Any = None
        self._error: MCPError | None = None

    def start(self, nursery: ServiceNursery) -> None:
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

    def collect(self) -> Any:
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
