"""The task objects that handlers and other server code use.

- `StoredTasks`: the tasks in a server's store, for code outside of handlers.
- `CallerTasks`: the tasks of one request's caller, ``ctx.caller_tasks``.
- `TaskContext`: the task that the request itself is or may become, ``ctx.task``.
- `WorkerTask` and `WorkerTasks`: the last two for plain ``def`` handlers, which run in worker threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast

import attrs
import trio

from ...classes import value
from ...jsonrpc.codec import decode_value, encode_readable
from ...jsonrpc.errors import INTERNAL_ERROR, INVALID_PARAMS, CodedError
from ...protocol.converters import structure_result, unstructure
from ...protocol.fields import JSONObject
from ...protocol.revisions import REVISIONS
from ...protocol.types.content import TextContent
from ...protocol.types.tools import CallToolResult
from ...protocol.user_types import convert
from ...runtime.requests.scope import RequestScope
from ...stores.task_store import Outcome, TaskRecord
from ...tasks.host import TaskHost
from ...tasks.record_views import bounded, core_task, error_text, failure, raised
from ...tasks.records import TaskRecords, Transition
from ...tasks.request_task import RequestTask
from ...tasks.task_methods import milliseconds, scope_of, unknown_task
from ...tasks.task_state import TaskState, state_of
from ...tasks.transitions import cancelled, with_message, with_outcome
from .worker_calls import WorkerAdapter, blocking, in_trio, passthrough

T = TypeVar("T")

TaskOutcome: TypeAlias = CallToolResult | str | CodedError
"""What a task ends with: the result of a tool, only the text of a result, or a JSON-RPC error."""


def state_in(record: TaskRecord) -> TaskState:
    """Return the state of an MCP task in the form of revision 2025-11-25: if the task's tool result has ``isError``,
    the state is ``failed``."""
    return state_of(core_task(record))


class StoredTasks:
    """Reads, completes and cancels MCP tasks. You can use this object in any code of the server, not only in handlers.

    `Server.tasks` has the tasks of all callers, ``ctx.caller_tasks`` those of one caller. It is meant for tasks whose
    work is done elsewhere (`CallerTasks.create_task`), for example by a batch system, a person or another process, and
    completed with `store_task_result`. A task that a handler of this server runs can be ended as well: its handler is
    cancelled.

    A task that doesn't exist for this object raises `CodedError` (-32602). Any method raises `OSError` if the store
    fails. Call all methods in trio's thread.
    """

    def __init__(self, records: Callable[[], Sequence[TaskRecords]], scope: str | None = None) -> None:
        self._records = records
        self._scope = scope

    async def _find(self, task_id: str) -> tuple[TaskRecords, TaskRecord]:
        for records in self._records():
            record = await records.read(self._scope, task_id)
            if record is not None:
                return records, record
        raise unknown_task()

    async def get_task(self, task_id: str) -> TaskState:
        """Return the current state of an MCP task."""
        return state_in((await self._find(task_id))[1])

    async def get_task_result(self, task_id: str) -> CallToolResult:
        """Return the result of an MCP task, without waiting for the task.

        If the task failed with an error, raise that error. Raises `CodedError` (-32602) if the task has no result,
        because the task is still running or was cancelled.
        """
        _, record = await self._find(task_id)
        if record.outcome is None:
            raise CodedError(INVALID_PARAMS, f"Invalid params: the task is {record.phase}, and has no result")
        if record.outcome.is_error:
            raise raised(record.outcome)
        return structure_result("tools/call", decode_value(record.outcome.json), CallToolResult)

    async def store_task_result(
        self, task_id: str, status: Literal["completed", "failed"], result: TaskOutcome
    ) -> bool:
        """Complete an MCP task with its result. Return false, and change nothing, if the task has already ended or was
        cancelled.

        ``failed`` with a result or a text means a result with ``isError``, which 2025-11-25 calls ``failed`` and the
        extension ``completed``. ``failed`` with a `CodedError` is ``failed`` in both. A result with more than
        `TaskSettings.max_record_bytes` bytes fails the task.

        Raises:
            ValueError: For any other status, and for ``completed`` with an error.
            NotSerializable: If the result has no JSON form.
        """
        if status not in ("completed", "failed"):
            raise ValueError(f"the status of a stored result must be 'completed' or 'failed', not {status!r}")
        records, record = await self._find(task_id)
        outcome = _outcome(status, result, record, records.settings.max_record_bytes)
        return await self._apply(
            records, task_id, lambda kept, now: with_outcome(kept, now, outcome, error_text(outcome))
        )

    async def update_task_status(self, task_id: str, status: str, message: str | None = None) -> bool:
        """Set the status of an MCP task to ``working``, ``failed`` or ``cancelled``. ``message`` is text for people: it
        describes the work, or says why the task failed or was cancelled.

        Returns false, with nothing changed, if the task has ended. Raises `ValueError` for any other status: use
        `store_task_result` to complete a task; a task has the status ``input_required`` while its handler waits for the
        client's answer.
        """
        if status not in ("working", "failed", "cancelled"):
            raise ValueError(
                f"update_task_status cannot set the status {status!r}: to complete a task, call store_task_result. "
                "A task gets the status input_required when its handler calls ctx.elicit or ctx.sample"
            )
        records, _ = await self._find(task_id)
        words = message or f"the task was {status}"

        def change(record: TaskRecord, now: int) -> TaskRecord | None:
            match status:
                case "working":
                    return with_message(record, now, message) if message else None
                case "cancelled":
                    return cancelled(record, now, message)
                case _:
                    return with_outcome(record, now, failure(INTERNAL_ERROR, words), words)

        return await self._apply(records, task_id, change)

    async def _apply(self, records: TaskRecords, task_id: str, transition: Transition) -> bool:
        """Change the record of an MCP task by the function ``transition``. Return false, and change nothing, if the
        task had already ended."""
        if (changed := await records.change_unended(task_id, transition)) is None:
            raise unknown_task()
        return changed[1]


def _outcome(status: str, result: TaskOutcome, record: TaskRecord, limit: int) -> Outcome:
    """Convert ``result`` to the outcome of an MCP task, in the form of the protocol revision of the task's
    ``record``."""
    if isinstance(result, CodedError):
        if status != "failed":
            raise ValueError("a completed task must have a result, not an error")
        error = {"code": result.code, "message": result.message}
        return Outcome(encode_readable(error if result.data is None else {**error, "data": result.data}), is_error=True)
    value = CallToolResult([TextContent(result)]) if isinstance(result, str) else result
    if status == "failed":
        value = attrs.evolve(value, is_error=True)
    text = encode_readable(cast("object", unstructure(value, REVISIONS[record.revision])))
    return bounded(Outcome(text, tells_failure=value.is_error is True), limit)


_PAGE: Final = 100
_MILLISECONDS: Final = 1000


@value
class TaskPage:
    """A page of MCP tasks, with the oldest task first."""

    tasks: list[TaskState]
    """The tasks on this page."""
    next_cursor: str | None = None
    """The cursor of the next page, for `CallerTasks.list_tasks`. `None` on the last page."""


class CallerTasks(StoredTasks):
    """The MCP tasks of one principal. Without authentication, all tasks that were created without a principal."""

    def __init__(self, host: Callable[[], TaskHost], request: RequestScope) -> None:
        super().__init__(lambda: (host().records,), scope_of(request))
        self._host = host
        """Function that returns the host of the tasks. It may create the host, so it must be called in trio's thread.
        This object itself may be created in any thread."""
        self._request = request

    async def create_task(self, *, ttl: float | None = None, message: str | None = None) -> TaskState:
        """Create an MCP task whose work is done outside of a handler, and return the new task's state.

        The task ends when its result is stored (see `StoredTasks`), or fails after ``ttl`` seconds. By default, ``ttl``
        is that of the call's own task. It is shortened to `TaskSettings.max_ttl`; with ``math.inf`` and no maximum, the
        task never expires.

        In a call that is, or may become, a task, the first task created is the task of the call. The call is answered
        with it at once (`TaskContext.start`). If the handler returns its state, the task continues without the handler:

            @server.tool(task="required")
            async def render(scene: str, ctx: RequestContext) -> TaskState:
                task = await ctx.caller_tasks.create_task()
                await queue.put(task.id, scene)
                return task

        If the handler raises, or returns anything else, that ends the task. Report progress with `update_task_status`,
        not with `TaskContext.status`. Further tasks, and tasks created in an ordinary call, are independent: your
        handler must return their ids to the client.

        Raises:
            CodedError: (-31000) If there are too many tasks.
            ValueError: If ``ttl`` isn't greater than 0.
        """
        own = self._request.task
        own_ttl = None if own is None else own.ttl_ms if ttl is None else self._milliseconds(ttl)
        if own is not None and await own.delegate(own_ttl, message):
            return await self.get_task(own.id)
        self._request.request.unpack()  # decode the request's parameters again, because the new task stores them
        host = self._host()
        settings = host.settings
        ttl_ms = self._milliseconds(settings.ttl if ttl is None else ttl)
        task = RequestTask(host, self._request, ttl_ms=ttl_ms, on_restart="fail")
        if message is not None:
            task.set_message(message)
        return state_in(await host.create_record(task, delegated=True))

    def _milliseconds(self, ttl: float) -> int | None:
        if not ttl > 0:
            raise ValueError(f"ttl must be greater than 0, not {ttl!r}")
        return milliseconds(min(ttl, self._host().settings.max_ttl))

    async def list_tasks(self, cursor: str | None = None) -> TaskPage:
        """Return a page of the caller's MCP tasks, in order of creation.

        ``cursor`` is the `TaskPage.next_cursor` of the previous page. It stays valid when that page's tasks are gone.
        Raises `CodedError` (-32602) if it isn't a cursor.
        """
        page, following = await self._host().records.page(self._scope or "", cursor, _PAGE)
        return TaskPage([state_in(record) for record in page], following)


class TaskContext:
    """The MCP task in which a handler runs: ``ctx.task``. Tests can create an instance of this class, which stores
    nothing.

    In revision 2025-11-25, the client decides whether the request is a task, and it is one before the handler runs. In
    later revisions, it becomes a task when `start` is called, or after `TaskSettings.grace`. From then on, the
    handler's requests to the client are sent as requests of the task.
    """

    __slots__ = ()

    _task: RequestTask | None = None
    """The running task, in a `LiveTask`. `None` in a passive context, which tests create."""

    @property
    def id(self) -> str:
        """The task's id, which other clients cannot guess. The id is available before the task starts."""
        return "" if self._task is None else self._task.id

    @property
    def ttl(self) -> float | None:
        """Seconds that the MCP task may run at most. After that time, the task is cancelled and fails. `None` for no
        limit."""
        ttl_ms = None if self._task is None else self._task.ttl_ms
        return None if ttl_ms is None else ttl_ms / _MILLISECONDS

    @property
    def requested_ttl(self) -> float | None:
        """Seconds for which the client asked the server to keep the task: ``math.inf`` for no limit, `None` if the
        client gave no time.

        Only clients of revision 2025-11-25 can give a time. The time that applies is `ttl`.
        """
        if self._task is None:
            return None
        request = self._task.scope.request
        request.unpack()
        wish: JSONObject = request.params.get("task", {}) if request.revision.tasks == "core" else {}
        if "ttl" not in wish:
            return None
        return math.inf if wish["ttl"] is None else wish["ttl"] / _MILLISECONDS

    @property
    def has_started(self) -> bool:
        """True once the client has received the task as the response to its request."""
        return self._task is not None and self._task.has_started

    @property
    def attempt(self) -> int:
        """The number of this run of the task's handler, starting with 1.

        It grows if the server process ends during a run, and the handler runs again. Runs that were handed over in a
        graceful shutdown don't count.
        """
        return 1 if self._task is None else self._task.attempt

    @property
    def restored(self) -> Any:
        """The last value that an earlier run of the task passed to `checkpoint`. `None` in the first run, and for tools
        without ``on_restart="resume"``."""
        restored = None if self._task is None else self._task.restored
        return None if restored is None else decode_value(restored)

    def restored_as(self, kind: type[T]) -> T | None:
        """Convert `restored`, the last checkpoint of the task's earlier run, to an instance of ``kind``, for example a
        dataclass or ``list[int]``.

        Return `None` if there is no value. Raises `ValueError` if the value doesn't fit.
        """
        return None if (restored := self.restored) is None else convert(restored, kind)

    def status(self, message: str) -> None:
        """Set the task's status message, for people. Only the latest message is stored. Doesn't wait."""
        if self._task is not None:
            self._task.set_message(message)

    async def start(self) -> None:
        """Respond to the client's request with the task now, while the handler continues to run.

        Idempotent. While the client is answering questions sent in the response, this waits until it returns. Raises
        `CodedError` (-31000) if there are too many tasks.
        """
        if self._task is None:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            await self._task.start()

    async def checkpoint(self, value: Any) -> None:
        """Save ``value``, as JSON data, so that a later run of this task can continue from it after a restart.

        See `restored`. Raises `NotSerializable` if ``value`` can't be encoded as JSON.

        A run that resumes from this checkpoint must send the client the same requests, in the same order, as this run
        sends after the checkpoint. It gets no answers to requests sent before the checkpoint.
        """
        if self._task is None:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            await self._task.checkpoint(value)


class LiveTask(TaskContext):
    """The `TaskContext` of a running task. Its values come from the task's `RequestTask`."""

    __slots__ = ("_task",)

    def __init__(self, task: RequestTask) -> None:
        self._task = task


class WorkerTask(WorkerAdapter[TaskContext]):
    """`TaskContext` for worker threads. Methods that are async in `TaskContext` block in this class."""

    id = passthrough(TaskContext.id)
    ttl = passthrough(TaskContext.ttl)
    requested_ttl = passthrough(TaskContext.requested_ttl)
    has_started = passthrough(TaskContext.has_started)
    attempt = passthrough(TaskContext.attempt)
    restored = passthrough(TaskContext.restored)
    restored_as = passthrough(TaskContext.restored_as)
    status = in_trio(TaskContext.status)
    start = blocking(TaskContext.start)
    checkpoint = blocking(TaskContext.checkpoint)


class WorkerTasks(WorkerAdapter[CallerTasks]):
    """`CallerTasks` for worker threads. Every method blocks."""

    create_task = blocking(CallerTasks.create_task)
    get_task = blocking(CallerTasks.get_task)
    get_task_result = blocking(CallerTasks.get_task_result)
    store_task_result = blocking(CallerTasks.store_task_result)
    update_task_status = blocking(CallerTasks.update_task_status)
    list_tasks = blocking(CallerTasks.list_tasks)
