"""StoredTasks are the tasks in the store of a server, for code that ends tasks from outside.

`CallerTasks` are those of the caller of one request, ``ctx.caller_tasks``; `TaskContext` is the task that the
request itself is or may become, ``ctx.task``.
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
from ...protocol.plain_classes import convert
from ...protocol.revisions import REVISIONS
from ...protocol.types.content import TextContent
from ...protocol.types.tools import CallToolResult
from ...runtime.requests.scope import RequestScope
from ...stores.task_store import Outcome, TaskRecord
from ...tasks.host import TaskHost
from ...tasks.record_views import bounded, core_task, error_text, failure, raised
from ...tasks.records import TaskRecords, Transition
from ...tasks.request_task import RequestTask
from ...tasks.task_methods import milliseconds, scope_of, unknown_task
from ...tasks.task_state import TaskState, state_of
from ...tasks.transitions import cancelled, with_message, with_outcome

T = TypeVar("T")

TaskOutcome: TypeAlias = CallToolResult | str | CodedError
"""The end of a task: the result of a tool, its text alone, or an error of JSON-RPC."""


def state_in(record: TaskRecord) -> TaskState:
    """Return the state of a task, in the words of 2025-11-25: a result with ``isError`` makes a task ``failed``."""
    return state_of(core_task(record))


class StoredTasks:
    """Reads and ends tasks from anywhere: `Server.tasks`, for the tasks of all callers, and ``ctx.caller_tasks``, for
    the tasks of one caller.

    Meant are tasks with work that is done elsewhere (`CallerTasks.create_task`): by a batch system, a colleague, or
    another process, which tells the end by `store_task_result`. A task that a handler of this server runs
    can be ended, too; its handler is cancelled then.

    A task that the object cannot see is a `CodedError` (-32602). Any method raises `OSError` when the store fails. All
    methods belong to trio's thread.
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
        """Return the state of a task."""
        return state_in((await self._find(task_id))[1])

    async def get_task_result(self, task_id: str) -> CallToolResult:
        """Return the result of a task, now: nothing is waited for. Raises the error of a task that failed with one, and
        `CodedError` (-32602) for a task without a result, which works or was cancelled."""
        _, record = await self._find(task_id)
        if record.outcome is None:
            raise CodedError(INVALID_PARAMS, f"Invalid params: the task is {record.phase}, and has no result")
        if record.outcome.is_error:
            raise raised(record.outcome)
        return structure_result("tools/call", decode_value(record.outcome.json), CallToolResult)

    async def store_task_result(
        self, task_id: str, status: Literal["completed", "failed"], result: TaskOutcome
    ) -> bool:
        """End a task with its result. Return false, with nothing changed, for a task that has ended, or was cancelled:
        the first end stays.

        ``failed`` with a result or a text is a result with ``isError``, which 2025-11-25 calls ``failed`` and the
        extension ``completed``; ``failed`` with a `CodedError` is ``failed`` in both. A result with more than
        `TaskSettings.max_record_bytes` fails the task. Raises `ValueError` for another status, and for ``completed``
        with an error; `NotSerializable`.
        """
        if status not in ("completed", "failed"):
            raise ValueError(f"a result is stored as completed or failed, not as {status!r}")
        records, record = await self._find(task_id)
        outcome = _outcome(status, result, record, records.settings.max_record_bytes)
        return await self._apply(
            records, task_id, lambda kept, now: with_outcome(kept, now, outcome, error_text(outcome))
        )

    async def update_task_status(self, task_id: str, status: str, message: str | None = None) -> bool:
        """Tell how a task is: ``working`` with a ``message`` for people, ``failed`` or ``cancelled`` with the reason.
        Return false, with nothing changed, for a task that has ended. Raises `ValueError` for another status: a task is
        completed by `store_task_result`, and requires input while a handler asks."""
        if status not in ("working", "failed", "cancelled"):
            raise ValueError(f"the status of a task cannot be set to {status!r}: use store_task_result, or ask by ctx")
        records, _ = await self._find(task_id)
        words = message or f"the task was {status}"
        if status == "working":
            return await self._apply(
                records, task_id, lambda kept, now: with_message(kept, now, message) if message else None
            )
        if status == "cancelled":
            return await self._apply(records, task_id, lambda kept, now: cancelled(kept, now, message))
        outcome = failure(INTERNAL_ERROR, words)
        return await self._apply(records, task_id, lambda kept, now: with_outcome(kept, now, outcome, words))

    async def _apply(self, records: TaskRecords, task_id: str, transition: Transition) -> bool:
        """Carry out a step. Return whether the task had not ended before."""
        was_final = False

        def step(record: TaskRecord, now: int) -> TaskRecord | None:
            nonlocal was_final
            was_final = record.phase.is_final
            return transition(record, now)

        if await records.change(task_id, None, step) is None:
            raise unknown_task()
        return not was_final


def _outcome(status: str, result: TaskOutcome, record: TaskRecord, limit: int) -> Outcome:
    """Return the outcome in the terms of the revision of the record."""
    if isinstance(result, CodedError):
        if status != "failed":
            raise ValueError("a task that is completed has a result, not an error")
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
    """A page of tasks, oldest first. ``next_cursor`` leads to the next page; `None` at the end."""

    tasks: list[TaskState]
    """The tasks of the page."""
    next_cursor: str | None = None


class CallerTasks(StoredTasks):
    """The tasks of one principal; where the transport knows no principal, all tasks that belong to none."""

    def __init__(self, host: Callable[[], TaskHost], request: RequestScope) -> None:
        super().__init__(lambda: (host().records,), scope_of(request))
        self._host = host
        """Returns the host of the tasks, which may be made by that, in trio's thread: an object of this class is made
        in any."""
        self._request = request

    async def create_task(self, *, ttl: float | None = None, message: str | None = None) -> TaskState:
        """Create a task for work that is done elsewhere, and return its state. The task ends when somebody stores its
        result: see `StoredTasks`; or fails after ``ttl`` seconds, by default as the call's own task.

        In a call that is, or may become, a task, the first such task is the task of the call: the call is answered with
        the task at once (`TaskContext.start`). A handler that returns the state leaves the task to others:

            @server.tool(task="required")
            async def render(scene: str, ctx: RequestContext) -> TaskState:
                task = await ctx.caller_tasks.create_task()
                await queue.put(task.id, scene)
                return task

        A handler that raises, or returns anything else, ends the task with that. `update_task_status`, and no longer
        `TaskContext.status`, tells how the work goes. All further tasks, and a task that is
        created in an ordinary call, are tasks of their own; their ids are the handler's to tell.

        Raises `CodedError` (-31000) where there are too many tasks, and `ValueError` for a ``ttl`` that is not greater
        than 0; ``math.inf``: for ever. A ``ttl`` is shortened to `TaskSettings.max_ttl`.
        """
        own = self._request.task
        own_ttl = None if own is None else own.ttl_ms if ttl is None else self._milliseconds(ttl)
        if own is not None and await own.delegate(own_ttl, message):
            return await self.get_task(own.id)
        self._request.request.unpack()  # the parameters are kept with the new task, too
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
        """Return a page of the caller's tasks, in the order of their creation. ``cursor``: the `TaskPage.next_cursor`
        of the page before, which stays good when its tasks are gone. Raises `CodedError` (-32602) for a text that
        is no cursor."""
        page = await self._host().records.page(self._scope or "", cursor, _PAGE)
        return TaskPage([state_in(record) for record in page.records], page.next_cursor)


class TaskContext:
    """The task of a handler, ``ctx.task``. The class itself is passive: nothing is kept, and nobody is told.

    A request becomes a task when `start` is called, or after `TaskSettings.grace`; in revision 2025-11-25, where the
    requestor decides, before the handler runs. From then on the questions of the handler are questions of the task.
    """

    __slots__ = ()

    _task: RequestTask | None = None
    """The task, in a `LiveTask`; `None` in a passive context."""

    @property
    def id(self) -> str:
        """The unguessable name of the task, known before the start."""
        return "" if self._task is None else self._task.id

    @property
    def ttl(self) -> float | None:
        """Seconds from the start of the task until the task is cancelled and fails; `None`: never."""
        ttl_ms = None if self._task is None else self._task.ttl_ms
        return None if ttl_ms is None else ttl_ms / _MILLISECONDS

    @property
    def requested_ttl(self) -> float | None:
        """Seconds for which the requestor wishes the task to exist; ``math.inf``: for ever; `None`: no wish. The
        requestor has a say in revision 2025-11-25 only. `ttl` holds in any case."""
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
        """True once the request was answered with the task."""
        return self._task is not None and self._task.has_started

    @property
    def attempt(self) -> int:
        """The number of this run: more than 1 where a run before was cut off by the end of its process. Runs that were
        given up in good order, at a shutdown, do not count."""
        return 1 if self._task is None else self._task.attempt

    @property
    def restored(self) -> Any:
        """The last value given to `checkpoint` by a run before; `None` in the first run, and for a tool that is not
        declared with ``on_restart="resume"``."""
        restored = None if self._task is None else self._task.restored
        return None if restored is None else decode_value(restored)

    def restored_as(self, kind: type[T]) -> T | None:
        """Return `restored` as a ``kind``, for example a dataclass or ``list[int]``; `None` where there is nothing.
        Raises `ValueError` for a value that doesn't fit."""
        return None if (restored := self.restored) is None else convert(restored, kind)

    def status(self, message: str) -> None:
        """Tell the client how the task is: words for people, of which the latest are kept. Never waits."""
        if self._task is not None:
            self._task.set_message(message)

    async def start(self) -> None:
        """Answer the request with the task, now. The handler goes on afterwards, as long as it likes.

        Idempotent. While the request is answered with questions, waits until the client comes back. Raises `CodedError`
        (-31000) where there are too many tasks.
        """
        if self._task is None:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            await self._task.start()

    async def checkpoint(self, value: Any) -> None:
        """Keep ``value``, JSON data, for a run after a restart: see `restored`. Raises `NotSerializable`.

        A run that starts from here asks, in the same order, what this run asks from here on, and gets no answer to what
        was asked before.
        """
        if self._task is None:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            await self._task.checkpoint(value)


class LiveTask(TaskContext):
    """The context of a task that runs, a view of its `RequestTask`."""

    __slots__ = ("_task",)

    def __init__(self, task: RequestTask) -> None:
        self._task = task
