"""`WorkerContext`: the context of a plain ``def`` handler, which runs in a worker thread, and of a handler on asyncio.

Each member is derived from the async handlers' member by one line, which defines how a thread calls it: see
`worker_calls`. Docstrings, parameters and types are those of the original.

`handler_on_asyncio` and `run_on_asyncio` run asyncio functions in their server's asyncio event loop.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import trio

from ...concurrency.threads import loop_calls_here
from ...concurrency.workers import in_worker_thread
from ...runtime.cancellation import Cancellation
from ...runtime.requests.reports import RequestLog
from ...runtime.requests.scope import current_request
from ..options import ContextNames, L_co
from .request_context import RequestContext
from .worker_calls import (
    WorkerAdapter,
    await_in_trio,
    blocking,
    blocking_question,
    in_trio,
    is_trios_thread,
    passthrough,
    run_in_trio,
    runs_in_trio,
)

if TYPE_CHECKING:
    from .state import WorkerState
    from .tasks import WorkerTask, WorkerTasks

T = TypeVar("T")


class WorkerLog(WorkerAdapter[RequestLog]):
    """`RequestLog` for worker threads. Its methods block until the queue of outgoing messages has room."""

    debug = blocking(RequestLog.debug)
    info = blocking(RequestLog.info)
    notice = blocking(RequestLog.notice)
    warning = blocking(RequestLog.warning)
    error = blocking(RequestLog.error)
    critical = blocking(RequestLog.critical)
    alert = blocking(RequestLog.alert)
    emergency = blocking(RequestLog.emergency)


class WorkerContext(ContextNames[L_co]):
    """`RequestContext` for plain ``def`` handlers. Methods that are async in `RequestContext` block in this class.

        @server.tool
        def index(folder: str, ctx: WorkerContext) -> int:
            for number, name in enumerate(os.listdir(folder)):
                ctx.check_cancelled()
                ctx.progress(number)

    A thread cannot be interrupted, so call `check_cancelled` often in long work. Every blocking method also raises
    `trio.Cancelled` once the request was cancelled; let the exception propagate.

    While a thread waits for the client's answer, another handler may use its place; see `Limits.max_asking_threads`.
    Threads that a handler starts, for example in a ``ThreadPoolExecutor``, may use the context until the handler
    returns.

    ``nursery`` and ``cancel_scope`` may only be used in trio's thread:
    ``trio.from_thread.run_sync(ctx.nursery.start_soon, task)``, ``trio.from_thread.run_sync(ctx.cancel_scope.cancel)``.

    If a plain handler returns the coroutine of an async function, the blocking methods return awaitables in that
    function. In an async handler with ``asyncio=True``, they return asyncio awaitables; annotate the parameter as
    `RequestContext`.
    """

    def __init__(self, context: RequestContext[L_co]) -> None:
        self._original = context
        self._scope = context._live

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
        """The MCP task that runs this request, or that the request may become. See `RequestContext.task`."""
        if (task := self._original.task) is None:
            return None
        from .tasks import WorkerTask  # lazy import: most servers have no MCP tasks

        return WorkerTask(task, self._scope)

    @property
    def caller_tasks(self) -> WorkerTasks | None:
        """The MCP tasks of this request's caller. See `RequestContext.caller_tasks`."""
        if (tasks := self._original.caller_tasks) is None:
            return None
        from .tasks import WorkerTasks  # lazy import: most servers have no MCP tasks

        return WorkerTasks(tasks, self._scope)

    @property
    def state(self) -> WorkerState:
        """Values that the server keeps for this caller between requests. See `RequestContext.state`."""
        from .state import WorkerState  # lazy import: few servers keep state

        return WorkerState(self._original.state, self._scope)

    # Cancellation

    nursery = passthrough(RequestContext.nursery)
    cancel_scope = passthrough(RequestContext.cancel_scope)

    def check_cancelled(self) -> None:
        """Raise `trio.Cancelled` if the request was cancelled."""
        if runs_in_trio(self._scope):
            return cast("None", self._original.check_cancelled())
        if (calls := loop_calls_here()) is not None:
            return cast("None", calls.checkpoint())
        if self._scope is None or in_worker_thread():
            trio.from_thread.check_cancelled()
        elif self.is_cancelled:
            await_in_trio(self._scope, trio.lowlevel.checkpoint_if_cancelled)
        return None

    @property
    def is_cancelled(self) -> bool:
        """True once the request has been cancelled. See `RequestContext.is_cancelled`."""
        return self.cancellation is not None

    @property
    def cancellation(self) -> Cancellation | None:
        """The reason why the request was cancelled. See `RequestContext.cancellation`."""
        known = self._original.cancellation
        if known is None and _thread_is_cancelled():  # only trio's thread can read the reason of the cancellation
            with suppress(trio.RunFinishedError):
                known = trio.from_thread.run_sync(getattr, self._original, "cancellation")
        return known

    @property
    def cancelled(self) -> threading.Event:
        """An event that is set when the request is cancelled. See `RequestContext.cancelled`."""
        try:
            return run_in_trio(self._scope, lambda: self._original.cancelled)
        except RuntimeError:  # trio has ended
            return self._original.cancelled

    # Telling the client

    progress = in_trio(RequestContext.progress)

    @property
    def log(self) -> WorkerLog:
        """The log of this request, which sends messages to the client. See `RequestContext.log`."""
        return WorkerLog(self._original.log, self._scope)

    send_notification = blocking(RequestContext.send_notification)
    elicitation_complete = blocking(RequestContext.elicitation_complete)
    close_stream = in_trio(RequestContext.close_stream)

    # The client's answers, for handlers that return `InputRequired`

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


def _thread_is_cancelled() -> bool:
    try:
        is_trios_thread()
    except trio.Cancelled:
        return True
    return False


def handler_on_asyncio(function: Callable[..., Any], context_name: str | None) -> Callable[..., Any]:
    """Return a trio function that runs the asyncio handler ``function`` in the server's asyncio event loop."""

    @wraps(function)
    async def call(**bound: Any) -> Any:
        if context_name is not None:
            bound[context_name] = WorkerContext(bound[context_name])
        return await run_on_asyncio(partial(function, **bound))

    return call


async def run_on_asyncio(function: Callable[[], Awaitable[T]]) -> T:
    """Run the asyncio function ``function`` in the server's asyncio event loop, and return its result. The call belongs
    to the current request."""
    scope = current_request.get()
    return await scope.runner.host.asyncio.run(function, scope.runner.graces, scope.thread_abandoned)
