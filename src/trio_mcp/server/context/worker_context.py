"""WorkerContext, WorkerTask and WorkerTasks: the contexts of a plain ``def`` handler, in its worker thread.

Each member is made of the member that async handlers have, by one line that says how a thread comes to the member:
`passthrough`, `in_trio`, `blocking` or `asking`. Docstrings, parameters and types are those of the original.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, Union, cast, get_args, get_origin

import trio

from ...concurrency.workers import await_in_nursery, await_in_worker, in_worker_thread
from ...runtime.cancellation import Cancellation
from ...runtime.requests.reports import RequestLog
from ...runtime.requests.scope import RequestScope, current_request
from ..options import ContextNames, L_co
from .request_context import RequestContext, live_scope
from .tasks import CallerTasks, TaskContext

P = ParamSpec("P")
T = TypeVar("T")


def passthrough(member: T) -> T:
    """Return a member, a property or a method, that does in any thread what the original does."""
    if not isinstance(member, property):
        return cast("T", _calling(member, lambda _, call: call()))
    getter: Any = member.fget

    @wraps(getter)
    def read(self: Any) -> Any:
        return getattr(self._original, getter.__name__)

    return cast("T", property(read))


def in_trio(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Return a method that calls the original, which waits for nothing, in trio's thread."""
    return _calling(method, _run_in_trio)


def blocking(method: Callable[Concatenate[Any, P], Awaitable[T]]) -> Callable[Concatenate[Any, P], T]:
    """Return a method that calls the async original in trio's thread, and blocks until the call returns."""
    return _calling(method, _await_in_trio)


def blocking_question(method: Callable[Concatenate[Any, P], Awaitable[T]]) -> Callable[Concatenate[Any, P], T]:
    """Return a method as of `blocking`; another thread may run meanwhile, since the original waits for the client."""
    return _calling(method, partial(_await_in_trio, asks=True))


def _calling(method: Any, run: Callable[[RequestScope | None, Callable[[], Any]], Any]) -> Any:
    name = method.__name__

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return run(self._scope, partial(getattr(self._original, name), *args, **kwargs))

    return call


def _run_in_trio(scope: RequestScope | None, call: Callable[[], T]) -> T:
    """Call ``call`` in trio's thread for a handler of ``scope``, and return its result. Raises the exceptions of
    ``call`` and of `TrioRun.call`, and `trio.Cancelled` in the thread of a cancelled handler."""
    if scope is None:  # a passive context, which doesn't need trio
        return trio.from_thread.run_sync(call) if _is_trios_thread() else call()
    if is_own := in_worker_thread():
        trio.from_thread.check_cancelled()
    return scope.runner.trio_run.call(call, wait_forever=is_own)


def _await_in_trio(scope: RequestScope | None, call: Callable[[], Awaitable[T]], *, asks: bool = False) -> T:
    """Return the result of ``call`` in trio's thread. If this isn't the handler's own thread, ``call`` runs in the
    nursery of the request. In trio's thread itself, return the awaitable: an async function has the context there, if
    the plain handler is a wrapper around the function."""
    if _runs_in_trio(scope):
        return cast("T", call())
    if scope is None or in_worker_thread():
        return await_in_worker(call, asks=asks)
    if (nursery := scope.nursery) is None:
        raise RuntimeError(
            "the request is over: its handler returned before this thread ended. Wait for the thread in the handler"
        )

    async def in_request() -> T:
        current_request.set(scope)
        return await call()

    return await_in_nursery(scope.runner.trio_run, nursery, in_request)


class WorkerLog:
    """`RequestLog` for threads: the same methods, which block until there is room."""

    def __init__(self, log: RequestLog, scope: RequestScope | None) -> None:
        self._original = log
        self._scope = scope

    debug = blocking(RequestLog.debug)
    info = blocking(RequestLog.info)
    notice = blocking(RequestLog.notice)
    warning = blocking(RequestLog.warning)
    error = blocking(RequestLog.error)
    critical = blocking(RequestLog.critical)
    alert = blocking(RequestLog.alert)
    emergency = blocking(RequestLog.emergency)


class WorkerTask:
    """The members of `TaskContext`, for a worker thread: members that are async there block here."""

    def __init__(self, task: TaskContext, scope: RequestScope | None) -> None:
        self._original = task
        self._scope = scope

    id = passthrough(TaskContext.id)
    ttl = passthrough(TaskContext.ttl)
    requested_ttl = passthrough(TaskContext.requested_ttl)
    has_started = passthrough(TaskContext.has_started)
    attempt = passthrough(TaskContext.attempt)
    restored = passthrough(TaskContext.restored)
    status = in_trio(TaskContext.status)
    start = blocking(TaskContext.start)
    checkpoint = blocking(TaskContext.checkpoint)


class WorkerTasks:
    """The members of `CallerTasks`, for a worker thread: each call blocks."""

    def __init__(self, tasks: CallerTasks, scope: RequestScope | None) -> None:
        self._original = tasks
        self._scope = scope

    create_task = blocking(CallerTasks.create_task)
    get_task = blocking(CallerTasks.get_task)
    get_task_result = blocking(CallerTasks.get_task_result)
    store_task_result = blocking(CallerTasks.store_task_result)
    update_task_status = blocking(CallerTasks.update_task_status)
    list_tasks = blocking(CallerTasks.list_tasks)


class WorkerContext(ContextNames[L_co]):
    """The members of `RequestContext`, for a worker thread: members that are async there block here.

    If a plain handler returns the coroutine of an async function, these members return awaitables in that function.
    A thread cannot be interrupted, so long work calls `check_cancelled` often. Each blocking method also raises
    `trio.Cancelled` once the request was cancelled; let that exception propagate. While a thread waits for an answer of
    the client, another handler may have its place; see `Limits.max_asking_threads`. Threads that a handler starts, in a
    ``ThreadPoolExecutor`` for example, may use the context until the handler returns. ``nursery`` and ``cancel_scope``
    are for trio's thread: ``trio.from_thread.run_sync(ctx.nursery.start_soon, task)``,
    ``trio.from_thread.run_sync(ctx.cancel_scope.cancel)``.
    """

    def __init__(self, context: RequestContext[L_co]) -> None:
        self._original = context
        self._scope = live_scope(context)

    request_id = passthrough(RequestContext.request_id)
    revision = passthrough(RequestContext.revision)
    session_id = passthrough(RequestContext.session_id)
    peer_user = passthrough(RequestContext.peer_user)
    meta = passthrough(RequestContext.meta)
    trace = passthrough(RequestContext.trace)
    headers = passthrough(RequestContext.headers)
    auth = passthrough(RequestContext.auth)
    stateless = passthrough(RequestContext.stateless)

    @property
    def lifespan(self) -> L_co:
        """The value that the server's lifespan yielded. See `RequestContext.lifespan`."""
        return self._original.lifespan

    @property
    def task(self) -> WorkerTask | None:
        """The task that the request is, or may become. See `RequestContext.task`."""
        task = self._original.task
        return None if task is None else WorkerTask(task, self._scope)

    @property
    def caller_tasks(self) -> WorkerTasks | None:
        """The tasks of this caller. See `RequestContext.caller_tasks`."""
        tasks = self._original.caller_tasks
        return None if tasks is None else WorkerTasks(tasks, self._scope)

    # Cancellation

    nursery = passthrough(RequestContext.nursery)
    cancel_scope = passthrough(RequestContext.cancel_scope)

    def check_cancelled(self) -> None:
        """Raise `trio.Cancelled` if the request was cancelled."""
        if _runs_in_trio(self._scope):
            return cast("None", self._original.check_cancelled())
        if self._scope is None or in_worker_thread():
            trio.from_thread.check_cancelled()
        elif self.is_cancelled:
            _await_in_trio(self._scope, trio.lowlevel.checkpoint_if_cancelled)
        return None

    @property
    def is_cancelled(self) -> bool:
        """True once the request was cancelled. See `RequestContext.is_cancelled`."""
        return self.cancellation is not None

    @property
    def cancellation(self) -> Cancellation | None:
        """The reason why the request was cancelled. See `RequestContext.cancellation`."""
        known = self._original.cancellation
        if known is None and _thread_is_cancelled():  # for a reason that only trio's thread can read
            with suppress(trio.RunFinishedError):
                known = trio.from_thread.run_sync(getattr, self._original, "cancellation")
        return known

    @property
    def cancelled(self) -> threading.Event:
        """The event that is set when the request is cancelled. See `RequestContext.cancelled`."""
        try:
            return _run_in_trio(self._scope, lambda: self._original.cancelled)
        except RuntimeError:  # trio has ended
            return self._original.cancelled

    # Telling the client

    progress = in_trio(RequestContext.progress)

    @property
    def log(self) -> WorkerLog:
        """The client's log."""
        return WorkerLog(self._original.log, self._scope)

    send_notification = blocking(RequestContext.send_notification)
    elicitation_complete = blocking(RequestContext.elicitation_complete)
    close_stream = in_trio(RequestContext.close_stream)

    # Rounds, for handlers that return `InputRequired`

    input_responses = passthrough(RequestContext.input_responses)
    request_state = passthrough(RequestContext.request_state)
    is_resubmit = passthrough(RequestContext.is_resubmit)
    has_input_response = passthrough(RequestContext.has_input_response)
    input_response_as = passthrough(RequestContext.input_response_as)
    request_state_as = passthrough(RequestContext.request_state_as)

    # Asking the client

    client_supports = passthrough(RequestContext.client_supports)
    client_extension = passthrough(RequestContext.client_extension)
    no_channel = passthrough(RequestContext.no_channel)
    send_request = blocking_question(RequestContext.send_request)
    sample = blocking_question(RequestContext.sample)
    elicit = blocking_question(RequestContext.elicit)
    elicit_url = blocking_question(RequestContext.elicit_url)
    list_roots = blocking_question(RequestContext.list_roots)
    sample_raw = blocking_question(RequestContext.sample_raw)
    elicit_raw = blocking_question(RequestContext.elicit_raw)
    list_roots_raw = blocking_question(RequestContext.list_roots_raw)


def is_context(hint: Any) -> bool:
    """Return whether an annotation is that of a context, of either kind."""
    if get_origin(hint) in (Union, types.UnionType):
        return any(is_context(member) for member in get_args(hint))
    kind = get_origin(hint) or hint  # RequestContext[Database]
    return isinstance(kind, type) and issubclass(kind, RequestContext | WorkerContext)


def _runs_in_trio(scope: RequestScope | None) -> bool:
    """Return whether this is the thread of the run of trio that handles the request."""
    return trio.lowlevel.in_trio_run() and (scope is None or scope.runner.trio_run.is_here)


def _is_trios_thread() -> bool:
    """Return whether trio started this thread. Raises `trio.Cancelled` if the thread's call was cancelled."""
    try:
        trio.from_thread.check_cancelled()
    except RuntimeError:  # a thread that the handler started
        return False
    return True


def _thread_is_cancelled() -> bool:
    try:
        _is_trios_thread()
    except trio.Cancelled:
        return True
    return False
