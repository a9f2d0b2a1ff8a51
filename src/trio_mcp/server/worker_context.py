"""WorkerContext, WorkerTask and WorkerTasks: the contexts of a plain ``def`` handler, in its worker thread."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

import trio

from ..concurrency.workers import await_in_worker
from ..jsonrpc.errors import CodedError
from ..jsonrpc.messages import RequestId
from ..protocol.fields import JSONObject
from ..protocol.meta import TraceContext
from ..protocol.revisions import Revision
from ..protocol.types.sampling import CreateMessageResult, Root, SamplingMessage
from ..protocol.types.tools import CallToolResult
from ..runtime.cancellation import Cancellation
from ..runtime.peer import Auth
from ..runtime.requests.logs import RequestLog
from ..tasks.task_state import TaskState
from .client_data import ElicitAnswer
from .kept_tasks import CallerTasks, TaskOutcome, TaskPage
from .options import SamplingOptions
from .request_context import RequestContext, TaskContext

T = TypeVar("T")


def _wait_for(call: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
    return await_in_worker(partial(call, *args, **kwargs))


def _ask(call: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
    return await_in_worker(partial(call, *args, **kwargs), asks=True)


def _thread_is_cancelled() -> bool:
    try:
        trio.from_thread.check_cancelled()
    except trio.Cancelled:
        return True
    except RuntimeError:  # a thread of the handler's own, not one of trio's
        return False
    return False


class WorkerLog:
    """`RequestLog` for threads: the same methods, which block until there is room."""

    def __init__(self, log: RequestLog) -> None:
        self._log = log

    def debug(self, data: Any, logger: str | None = None) -> None:
        """Log details for finding faults."""
        _wait_for(self._log.debug, data, logger)

    def info(self, data: Any, logger: str | None = None) -> None:
        """Log an ordinary event."""
        _wait_for(self._log.info, data, logger)

    def notice(self, data: Any, logger: str | None = None) -> None:
        """Log an event that is normal, but worth a look."""
        _wait_for(self._log.notice, data, logger)

    def warning(self, data: Any, logger: str | None = None) -> None:
        """Log that something may be wrong."""
        _wait_for(self._log.warning, data, logger)

    def error(self, data: Any, logger: str | None = None) -> None:
        """Log that something went wrong."""
        _wait_for(self._log.error, data, logger)

    def critical(self, data: Any, logger: str | None = None) -> None:
        """Log that a part of the system failed."""
        _wait_for(self._log.critical, data, logger)

    def alert(self, data: Any, logger: str | None = None) -> None:
        """Log that somebody must act at once."""
        _wait_for(self._log.alert, data, logger)

    def emergency(self, data: Any, logger: str | None = None) -> None:
        """Log that the system is unusable."""
        _wait_for(self._log.emergency, data, logger)


class WorkerContext:
    """The members of `RequestContext`, for a worker thread: members that are async there block here.

    A thread cannot be interrupted, so long work calls `check_cancelled` often. Each blocking method also raises
    `trio.Cancelled` once the request was cancelled; let that exception propagate. While a thread waits for an answer of
    the client, another handler may have its place; see `Limits.max_asking_threads`.
    """

    if not TYPE_CHECKING:  # type checkers know what there is

        def __getattr__(self, name: str) -> Any:
            from .foreign_names import CONTEXT_NAMES, look_up  # late: for errors alone

            look_up(self, name, CONTEXT_NAMES)

    def __init__(self, context: RequestContext) -> None:
        self._context = context

    # Identity

    @property
    def request_id(self) -> RequestId:
        """The JSON-RPC id of this call. See `RequestContext.request_id`."""
        return self._context.request_id

    @property
    def revision(self) -> Revision:
        """The protocol revision of this request."""
        return self._context.revision

    @property
    def session_id(self) -> str | None:
        """The name of the connection, where there is one. See `RequestContext.session_id`."""
        return self._context.session_id

    @property
    def meta(self) -> Mapping[str, Any]:
        """``_meta`` of the request, unknown keys included. Treat the dict as read-only."""
        return self._context.meta

    @property
    def trace(self) -> TraceContext | None:
        """The distributed trace that the request belongs to. See `RequestContext.trace`."""
        return self._context.trace

    @property
    def headers(self) -> Mapping[str, str] | None:
        """Headers of the HTTP request, where there was one. See `RequestContext.headers`."""
        return self._context.headers

    @property
    def auth(self) -> Auth | None:
        """The caller; `None` when no authentication is configured."""
        return self._context.auth

    @property
    def stateless(self) -> bool:
        """True where nothing is kept between requests. See `RequestContext.stateless`."""
        return self._context.stateless

    @property
    def lifespan(self) -> Any:
        """The value that the server's lifespan yielded."""
        return self._context.lifespan

    @property
    def task(self) -> WorkerTask | None:
        """The task that the request is, or may become. See `RequestContext.task`."""
        task = self._context.task
        return None if task is None else WorkerTask(task)

    @property
    def task_store(self) -> WorkerTasks | None:
        """The tasks of this caller. See `RequestContext.task_store`."""
        tasks = self._context.task_store
        return None if tasks is None else WorkerTasks(tasks)

    # Cancellation

    @property
    def nursery(self) -> trio.Nursery:
        """The request's nursery, for trio's thread: ``trio.from_thread.run_sync(ctx.nursery.start_soon, task)``. See
        `RequestContext.nursery`."""
        return self._context.nursery

    @property
    def cancel_scope(self) -> trio.CancelScope:
        """The scope of the whole request, for trio's thread: ``trio.from_thread.run_sync(ctx.cancel_scope.cancel)``.
        See `RequestContext.cancel_scope`."""
        return self._context.cancel_scope

    def check_cancelled(self) -> None:
        """Raise `trio.Cancelled` if the request was cancelled."""
        trio.from_thread.check_cancelled()

    @property
    def is_cancelled(self) -> bool:
        """True once the request was cancelled. See `RequestContext.is_cancelled`."""
        return self.cancellation is not None

    @property
    def cancellation(self) -> Cancellation | None:
        """The reason why the request was cancelled. See `RequestContext.cancellation`."""
        known = self._context.cancellation
        if known is None and _thread_is_cancelled():  # for a reason that only trio's thread can read
            with suppress(trio.RunFinishedError):
                known = trio.from_thread.run_sync(getattr, self._context, "cancellation")
        return known

    @property
    def cancelled(self) -> threading.Event:
        """The event that is set when the request is cancelled. See `RequestContext.cancelled`."""
        try:
            return trio.from_thread.run_sync(getattr, self._context, "cancelled")
        except RuntimeError:  # a thread of the handler's own, which cannot call into trio, or trio has ended
            return self._context.cancelled

    # Telling the client

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> bool:
        """Call `RequestContext.progress` in trio's thread."""
        return trio.from_thread.run_sync(self._context.progress, progress, total, message)

    @property
    def log(self) -> WorkerLog:
        """The client's log."""
        return WorkerLog(self._context.log)

    def send_notification(self, method: str, params: JSONObject | None = None) -> None:
        """Call `RequestContext.send_notification`, and block until that call returns."""
        _wait_for(self._context.send_notification, method, params)

    def elicitation_complete(self, elicitation_id: str) -> bool:
        """Call `RequestContext.elicitation_complete`, and block until that call returns."""
        return _wait_for(self._context.elicitation_complete, elicitation_id)

    def close_stream(self, retry: float = 1.0) -> bool:
        """Call `RequestContext.close_stream`, and block until that call returns."""
        return trio.from_thread.run_sync(self._context.close_stream, retry)

    # Rounds, for handlers that return `InputRequired`

    @property
    def input_responses(self) -> Mapping[str, JSONObject]:
        """The client's answers to the last `InputRequired`. See `RequestContext.input_responses`."""
        return self._context.input_responses

    @property
    def request_state(self) -> str:
        """The ``state`` of the last `InputRequired`. See `RequestContext.request_state`."""
        return self._context.request_state

    @property
    def is_resubmit(self) -> bool:
        """True when the client came back with answers."""
        return self._context.is_resubmit

    def has_input_response(self, key: str) -> bool:
        """Return whether the client answered the question ``key``."""
        return self._context.has_input_response(key)

    def input_response_as(self, kind: type[T], key: str) -> T:
        """Return the answer to ``key`` as a ``kind``. See `RequestContext.input_response_as`."""
        return self._context.input_response_as(kind, key)

    def request_state_as(self, kind: type[T]) -> T:
        """Return `request_state`, a JSON text, as a ``kind``. See `RequestContext.request_state_as`."""
        return self._context.request_state_as(kind)

    # Asking the client

    def client_supports(self, capability: str) -> bool:
        """Return whether the client supports ``capability``. See `RequestContext.client_supports`."""
        return self._context.client_supports(capability)

    def no_channel(self) -> CodedError:
        """Return the error of every request to a client that no channel leads to."""
        return self._context.no_channel()

    def send_request(
        self, method: str, params: JSONObject | None, result_type: type[T], *, task_ttl: float | None = None
    ) -> T:
        """Call `RequestContext.send_request`, and block until that call returns."""
        return _ask(self._context.send_request, method, params, result_type, task_ttl=task_ttl)

    def sample(
        self,
        messages: str | Sequence[SamplingMessage],
        *,
        max_tokens: int,
        task_ttl: float | None = None,
        **options: Unpack[SamplingOptions],
    ) -> CreateMessageResult:
        """Call `RequestContext.sample`, and block until that call returns."""
        return _ask(self._context.sample, messages, max_tokens=max_tokens, task_ttl=task_ttl, **options)

    def elicit(
        self, message: str, form: type | JSONObject, *, meta: JSONObject | None = None, task_ttl: float | None = None
    ) -> ElicitAnswer:
        """Call `RequestContext.elicit`, and block until that call returns."""
        return _ask(self._context.elicit, message, form, meta=meta, task_ttl=task_ttl)

    def elicit_url(
        self,
        message: str,
        url: str,
        elicitation_id: str,
        *,
        meta: JSONObject | None = None,
        task_ttl: float | None = None,
    ) -> ElicitAnswer:
        """Call `RequestContext.elicit_url`, and block until that call returns."""
        return _ask(self._context.elicit_url, message, url, elicitation_id, meta=meta, task_ttl=task_ttl)

    def list_roots(self) -> list[Root]:
        """Call `RequestContext.list_roots`, and block until that call returns."""
        return _ask(self._context.list_roots)

    def sample_raw(self, params: JSONObject) -> JSONObject:
        """Call `RequestContext.sample_raw`, and block until that call returns."""
        return _ask(self._context.sample_raw, params)

    def elicit_raw(self, params: JSONObject) -> JSONObject:
        """Call `RequestContext.elicit_raw`, and block until that call returns."""
        return _ask(self._context.elicit_raw, params)

    def list_roots_raw(self) -> JSONObject:
        """Call `RequestContext.list_roots_raw`, and block until that call returns."""
        return _ask(self._context.list_roots_raw)


class WorkerTask:
    """The members of `TaskContext`, for a worker thread: members that are async there block here."""

    def __init__(self, task: TaskContext) -> None:
        self._task = task

    @property
    def id(self) -> str:
        """The unguessable name of the task. See `TaskContext.id`."""
        return self._task.id

    @property
    def ttl(self) -> float | None:
        """Seconds for which the task exists. See `TaskContext.ttl`."""
        return self._task.ttl

    @property
    def requested_ttl(self) -> float | None:
        """Seconds that the requestor wishes for. See `TaskContext.requested_ttl`."""
        return self._task.requested_ttl

    @property
    def has_started(self) -> bool:
        """True once the request was answered with the task. See `TaskContext.has_started`."""
        return self._task.has_started

    @property
    def attempt(self) -> int:
        """The number of this run. See `TaskContext.attempt`."""
        return self._task.attempt

    @property
    def restored(self) -> Any:
        """The last checkpoint of a run before. See `TaskContext.restored`."""
        return self._task.restored

    def status(self, message: str) -> None:
        """Tell the client how the task is. See `TaskContext.status`."""
        trio.from_thread.run_sync(self._task.status, message)

    def start(self) -> None:
        """Answer the request with the task, now. See `TaskContext.start`."""
        await_in_worker(self._task.start)

    def checkpoint(self, value: Any) -> None:
        """Keep a value for a run after a restart. See `TaskContext.checkpoint`."""
        await_in_worker(lambda: self._task.checkpoint(value))


class WorkerTasks:
    """The members of `CallerTasks`, for a worker thread: each call blocks."""

    def __init__(self, tasks: CallerTasks) -> None:
        self._tasks = tasks

    def create_task(self, *, ttl: float | None = None, message: str | None = None) -> TaskState:
        """Create a task for work that is done elsewhere. See `CallerTasks.create_task`."""
        return _wait_for(self._tasks.create_task, ttl=ttl, message=message)

    def get_task(self, task_id: str) -> TaskState:
        """Return the state of a task. See `KeptTasks.get_task`."""
        return _wait_for(self._tasks.get_task, task_id)

    def get_task_result(self, task_id: str) -> CallToolResult:
        """Return the result of a task. See `KeptTasks.get_task_result`."""
        return _wait_for(self._tasks.get_task_result, task_id)

    def store_task_result(self, task_id: str, status: Literal["completed", "failed"], result: TaskOutcome) -> bool:
        """End a task with its result. See `KeptTasks.store_task_result`."""
        return _wait_for(self._tasks.store_task_result, task_id, status, result)

    def update_task_status(self, task_id: str, status: str, message: str | None = None) -> bool:
        """Tell how a task is. See `KeptTasks.update_task_status`."""
        return _wait_for(self._tasks.update_task_status, task_id, status, message)

    def list_tasks(self, cursor: str | None = None) -> TaskPage:
        """Return a page of the caller's tasks. See `CallerTasks.list_tasks`."""
        return _wait_for(self._tasks.list_tasks, cursor)
