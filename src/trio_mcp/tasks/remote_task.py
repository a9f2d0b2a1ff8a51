"""`RemoteTask`: a background task that the peer runs, as used by the side that has requested it.

`CoreRemoteTask` is a task in the form of 2025-11-25, whether we are the client or the server.
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
"""Function that sends a request with this method and these parameters, and returns its result as plain data."""
SendCancel: TypeAlias = Callable[[str], None]
"""Function that sends ``tasks/cancel`` for the task with this id, without waiting for the response."""
OnState: TypeAlias = Callable[[TaskState], Awaitable[None]]
"""Function that is called with each task state that the receiver reports."""

_USUAL_INTERVAL: Final = 1.0
_SHORTEST_INTERVAL: Final = 0.1
_LONGEST_INTERVAL: Final = 300.0
_FAILED_POLLS_LIMIT: Final = 5
_PASSING: Final = frozenset((HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS))


class RemoteTask(ABC):
    """A background task that the peer runs for this side of the connection.

    The functions ``ask`` and ``forget`` send requests about the task.
    """

    def __init__(self, task_id: str, ask: Ask, forget: SendCancel) -> None:
        self.id = task_id
        self._ask = ask
        self._forget = forget
        self.is_over = False
        """True once the peer needs no cancellation: the task has ended, is unknown, or was cancelled by this side."""

    @abstractmethod
    async def get(self) -> TaskState:
        """Send ``tasks/get``, and return the state of the task.

        Raises an error if the request fails, for example -32602 for an unknown task.
        """

    @abstractmethod
    async def cancel(self) -> None:
        """Send ``tasks/cancel``. If the task has already ended, nothing changes. Raises an error if the request
        fails."""

    async def result(self, on_state: OnState, *, cancels: bool) -> Any:
        """Wait for the end of the background task, and return its result as JSON data.

        In the meantime, this side's callbacks respond to the task's input requests.

        ``on_state`` is called with each state. With ``cancels``, leaving the wait before the end of the task, for any
        reason, calls `abandon`.

        Raises `PeerError` if the task failed, `TaskCancelled` if it was cancelled, `ProtocolViolation`, and the error
        of a request that fails permanently.
        """
        async with open_service_nursery("the requestor no longer waits for the task") as nursery:
            try:
                return await self._poll_until_done(nursery, on_state)
            except BaseException:
                # Cancel the task before the callbacks for its input requests clean up, because that may take long.
                if cancels:
                    self.abandon()
                raise

    @abstractmethod
    async def _poll_until_done(self, nursery: ServiceNursery, on_state: OnState) -> Any:
        """Poll the background task until it has ended, and return its result.

        The trio tasks that poll run in ``nursery``. Subclasses implement this method for `result`.
        """

    def abandon(self) -> None:
        """Ask the peer to cancel the background task, without waiting for the response. Works even in a cancelled
        scope.

        If the task has ended, nothing is sent.
        """
        if not self.is_over:
            self.is_over = True
            self._forget(self.id)

    async def _fetch_state(self, result_type: type[T]) -> T:
        """Send ``tasks/get``, and return the result as JSON data."""
        try:
            return structure_result("tasks/get", await self._ask("tasks/get", {"taskId": self.id}), result_type)
        except PeerError as error:
            if error.code == INVALID_PARAMS:
                self.is_over = True  # the peer has deleted the task, because the task's time to live is over
            raise

    def _check(self, state: TaskState) -> TaskState:
        """Return ``state``, the state of this background task. Raises `ProtocolViolation` if it belongs to another
        task."""
        if state.id != self.id:
            raise ProtocolViolation(f"tasks/get: the peer returned the state of another task: {state.id[:100]!r}")
        self.is_over = self.is_over or state.is_final
        return state


def created_state(
    method: str, result: Any, kind: type[CreatedTask] | type[CreateTaskResult], forget: SendCancel
) -> TaskState:
    """Return the state of the background task that the peer has created for a request of ``method``.

    ``result`` is the request's result. Raises `ProtocolViolation` if it is invalid; if it contains a task id, that task
    is cancelled.
    """
    try:
        made = structure_result(method, result, kind)
    except ProtocolViolation:
        task_id = created_id(result, is_flat=kind is CreatedTask)
        if task_id is not None:
            forget(task_id)
        raise
    return state_of(made if isinstance(made, CreatedTask) else made.task)


def task_params(ttl: float | None) -> JSONObject:
    """Return the ``task`` parameter of a request that creates a background task (MCP 2025-11-25).

    This parameter asks the peer to keep the task for ``ttl`` seconds. If ``ttl`` is `None`, the peer decides how long
    it keeps the task. Raises `ValueError` unless ``ttl`` is positive and finite.
    """
    if ttl is None:
        return {}
    if not 0 < ttl < inf:
        raise ValueError(f"the time to live of a task must be a positive number of seconds, not {ttl!r}")
    return {"ttl": ceil(ttl * 1000)}


class PollSchedule:
    """Determines when a background task is polled: at the interval that the peer has requested, within fixed limits.

    While the receiver is unavailable or too busy, the interval grows. The sixth failed poll in a row raises its error.
    At the usual interval, that is half a minute after the first failure.
    """

    def __init__(self) -> None:
        self._due = -inf
        self._pause = _USUAL_INTERVAL
        self._failures = 0
        self._waiting = Sleeper()
        self._is_woken = False

    def update(self, state: TaskState) -> None:
        """From now on, poll at the interval that the peer has requested in ``state``."""
        self._failures = 0
        wish = _USUAL_INTERVAL if state.poll_interval is None else state.poll_interval
        self._pause = min(max(wish, _SHORTEST_INTERVAL), _LONGEST_INTERVAL)
        self._due = trio.current_time() + self._pause

    def record_failure(self, error: MCPError) -> None:
        """Schedule the next poll after a poll that has failed with ``error``. Raises ``error`` if polling again can't
        succeed."""
        self._failures += 1
        if not _is_transient(error) or self._failures > _FAILED_POLLS_LIMIT:
            raise error
        self._due = trio.current_time() + min(
            max(self._pause, _USUAL_INTERVAL) * 2 ** (self._failures - 1), _LONGEST_INTERVAL
        )

    def poll_now(self) -> None:
        """Make the next poll due now."""
        self._due = -inf

    def wake(self) -> None:
        """Make `wait_until_due` return early, because its caller has other work to do."""
        self._is_woken = True
        self._waiting.wake()

    async def wait_until_due(self) -> bool:
        """Wait until the next poll is due. Returns false if `wake` was called before."""
        with trio.move_on_at(self._due):
            if not self._is_woken:
                await self._waiting.sleep()
        woken, self._is_woken = self._is_woken, False
        return not woken


def _is_transient(error: MCPError) -> bool:
    """Return whether a request that failed with ``error`` may succeed later."""
    if isinstance(error, HTTPError):
        if error.session_lost:  # try again in a new session, because a task may outlive its HTTP session
            return True
        status = error.status
        if status is None or (status == HTTPStatus.OK and not error.body):  # the response broke off before the reply
            return True
        return status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _PASSING
    return isinstance(error, PeerError) and error.code == TOO_BUSY


class CoreRemoteTask(RemoteTask):
    """A background task that a peer runs, in the form of MCP 2025-11-25.

    The task's input requests arrive as requests of the peer.
    """

    def __init__(self, task_id: str, ask: Ask, forget: SendCancel, known: TaskState | None = None) -> None:
        super().__init__(task_id, ask, forget)
        self._known = known
        """The task state in the response that created the task. `None` after `result` has reported it."""

    @classmethod
    def created(cls, method: str, result: Any, ask: Ask, forget: SendCancel) -> CoreRemoteTask:
        """Return the background task that the peer has created for a request of ``method`` with the response
        ``result``.

        Raises `ProtocolViolation` if it is invalid.
        """
        state = created_state(method, result, CreateTaskResult, forget)
        return cls(state.id, ask, forget, state)

    async def get(self) -> TaskState:
        return self._check(state_of(await self._fetch_state(Task)))

    async def cancel(self) -> None:
        try:
            await self._ask("tasks/cancel", {"taskId": self.id})
        except PeerError as error:
            # 2025-11-25 tasks, Task Cancellation 1: the peer refuses to cancel an ended task. Ignore this error.
            if error.code != INVALID_PARAMS or not (await self.get()).is_final:
                raise
        self.is_over = True

    def _raise_failure(self, state: TaskState) -> None:
        """If ``state`` shows that the task was cancelled or has failed, raise the error.

        Called for an empty result, which is what a peer with mcp 1.x sends for such tasks.
        """
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
                    # 2025-11-25 tasks, Input Required Status: the peer only sends requests during tasks/result.
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
    """Sends a ``tasks/result`` request in the background. The peer responds to it when the task has ended.

    Meanwhile, ``looks`` schedules the polls of the task.
    """

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
        """Start a ``tasks/result`` request, unless such a request is already in progress."""
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
        """Return the result of the completed ``tasks/result`` request, or raise its error. Then the request can be sent
        again.

        If the peer has responded with an error, the exception is `_TaskFailed`.
        """
        error, self._error = self._error, None
        self._runs, self.ended = False, trio.Event()
        if isinstance(error, PeerError):
            raise _TaskFailed(error)
        if error is not None:
            raise error
        return self._result


class _TaskFailed(Exception):
    """Raised if the peer has responded to ``tasks/result`` with ``error``. Polling again can't succeed."""

    def __init__(self, error: PeerError) -> None:
        super().__init__(error)
        self.error = error


def _is_empty(result: object) -> bool:
    return isinstance(result, dict) and cast("JSONObject", result).keys() <= {"_meta"}
