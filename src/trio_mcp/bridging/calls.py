"""Runs functions and opens context managers in the trio thread, for callers in other threads.

A caller always waits until its call has ended: an interrupt or an exception in the caller cancels the call, and the
caller continues when the call has ended. The callbacks of a call run in the caller.

`TrioPortal` is the thread in which trio runs. A process has only one, from the first of its calls to the last: clients
may share a server in memory, a cache or a token storage, and none of these supports two trio runs at once.
"""

from __future__ import annotations

import atexit
import inspect
import os
import queue
import signal
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import copy_context
from functools import partial
from typing import Any, ClassVar, Final, Generic, TypeAlias, TypeVar, cast

import attrs
import trio

from ..classes import define
from ..client.current_call import CallHandlers, CallRecord, call_variable, variable_set
from ..concurrency.contexts import contextmanager
from ..concurrency.nurseries import ServiceNursery, open_service_nursery
from ..jsonrpc.errors import CodedError
from ..runtime.transport import ConnectionLost

T = TypeVar("T")


_PATIENCE: Final = 10.0
"""How many seconds the interpreter waits at its exit for clients that weren't closed."""


class TrioPortal:
    """A thread that runs trio while there is work to do."""

    _current: ClassVar[TrioPortal | None] = None
    _lock: ClassVar = threading.Lock()
    _nursery: trio.Nursery
    _token: trio.lowlevel.TrioToken

    def __init__(self) -> None:
        self._process = os.getpid()
        self._running_count = 0
        self._idle = trio.Event()
        self._ready = threading.Event()
        # Use a daemon thread: at exit, Python would wait for any other thread before it calls `_finish`.
        self._thread = threading.Thread(target=trio.run, args=(self._main,), name="trio-mcp", daemon=True)
        atexit.register(self._finish)
        self._thread.start()
        self._ready.wait()

    @classmethod
    def start(cls, work: BridgedCall[Any]) -> TrioPortal:
        """Start ``work`` in the trio thread of this process, and return the `TrioPortal` of the thread."""
        with cls._lock:
            thread = cls._current
            if thread is None or thread.is_inherited or not thread._thread.is_alive():
                thread = cls._current = TrioPortal()
            thread._running_count += 1
        thread.run_soon(copy_context().run, thread._nursery.start_soon, thread._run_work, work)
        return thread

    @property
    def is_inherited(self) -> bool:
        """True in a fork of the process that started this trio thread. The thread doesn't exist in the fork."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """Raise `RuntimeError` in a fork of the process, where a call would wait forever for the trio thread."""
        if self.is_inherited:
            raise RuntimeError(
                f"this client was opened in process {self._process} and cannot be used in process"
                f" {os.getpid()}, a fork of it: open a client in the new process, or use the start method"
                ' "spawn" or "forkserver" of multiprocessing'
            )

    def run_soon(self, function: Callable[..., Any], *args: Any) -> bool:
        """Call ``function`` soon in the trio thread, as the function `run_soon` of this module does."""
        return run_soon(self._token, function, *args)

    async def _main(self) -> None:
        async with trio.open_nursery() as self._nursery:
            self._token = trio.lowlevel.current_trio_token()
            self._ready.set()
            await self._idle.wait()

    async def _run_work(self, work: BridgedCall[Any]) -> None:
        try:
            await work.run()
        finally:
            with self._lock:
                self._running_count -= 1
                if not self._running_count:
                    self._idle.set()
                    atexit.unregister(self._finish)
                    if TrioPortal._current is self:
                        TrioPortal._current = None
            work.finish()

    def join(self) -> None:
        """If the trio thread has no more work, wait for its end, which takes only a moment."""
        if not (self._running_count or self.is_inherited):
            self._thread.join()

    def _finish(self) -> None:
        if not self.is_inherited and self.run_soon(self._cancel_all):
            self._thread.join(_PATIENCE)

    def _cancel_all(self) -> None:
        self._nursery.cancel_scope.cancel(reason="the interpreter ends")


def _forget_lock() -> None:
    """Replace the lock in a fork of the process, because a thread that doesn't exist in the fork may hold the old
    lock."""
    TrioPortal._lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_forget_lock)


def run_soon(token: trio.lowlevel.TrioToken, function: Callable[..., Any], *args: Any) -> bool:
    """Call ``function``, which must not raise, soon in the trio run that ``token`` belongs to. Returns false if the
    trio run has ended."""
    try:
        token.run_sync_soon(function, *args)
    except trio.RunFinishedError:
        return False
    return True


CLOSED: Final = "the client was closed"


@define(eq=False)
class Callback:
    """A client callback with its arguments. It runs in the caller's thread or event loop, and ``on_done`` is called
    when it has ended."""

    function: Callable[[], Any]
    on_done: Callable[[], object]

    def run(self) -> None:
        """Run the callback, which must not be async, and call ``on_done``."""
        try:
            answer = self.function()
            if inspect.iscoroutine(answer) or isinstance(answer, _ContextCoroutine):
                answer.close()
                raise TypeError("write a callback with def, not with async def: blocking programs have no event loop")
        finally:
            self.on_done()


DeliverCallback: TypeAlias = Callable[[Callback | None], object]
"""Function that passes a callback to the caller's thread. With `None` instead of a callback, it reports the end of the
call. Raises `RuntimeError` if the caller no longer exists."""


class BridgedCall(Generic[T]):
    """A call of ``function`` in the trio thread, started by another thread. ``deliver`` passes the callbacks of the
    call to the other thread."""

    def __init__(self, function: Callable[[], Awaitable[T]], deliver: DeliverCallback) -> None:
        self._function = function
        self._deliver = deliver
        self._scope = trio.CancelScope()
        self._results: list[T] = []
        self._error: BaseException | None = None
        self.portal: TrioPortal | None = None
        """The trio thread in which the call runs."""
        self.is_over = False
        """True if the call, and all its cleanup in the trio thread, have ended."""

    @property
    def has_started(self) -> bool:
        """True if the trio thread has begun to run the call."""
        return self.portal is not None

    # Methods that run in the trio thread

    async def run(self) -> None:
        """Run the call in the trio thread. Raises no exception except `trio.Cancelled`, if the call is cancelled from
        outside."""
        with self._scope:
            try:
                self._results.append(await self._function())
            except Exception as error:
                self._error = error
            except trio.Cancelled:
                raise
            except BaseException as error:  # handle SystemExit here, because it would end trio and thereby all clients
                cancelled, self._error = _split_cancelled(error)
                if cancelled is not None:
                    raise cancelled from None

    def finish(self) -> None:
        """Report to the caller that the call has ended completely. Raises nothing."""
        self.is_over = True
        with suppress(RuntimeError):
            self._deliver(None)

    # Methods that run in the caller's thread

    def cancel(self, reason: str) -> None:
        """Cancel the call with ``reason``, which is sent to the server."""
        if self.portal is not None:
            self.portal.run_soon(partial(self._scope.cancel, reason=reason))

    def result(self) -> T:
        """Return the result of the call, or raise the call's exception. The call must have ended.

        Raises `ConnectionLost` if the call ended because its client was closed.
        """
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # break the reference cycle: the traceback refers to this frame
        if not self._results:
            raise ConnectionLost(CLOSED)
        return self._results.pop()

    def raise_failure(self) -> None:
        """If the call has ended with an exception, raise the exception."""
        if self._error is not None:
            self.result()

    # For callbacks

    def awaited_callback(self, callback: Callable[..., Any]) -> Callable[..., Awaitable[None]]:
        """Wrap ``callback`` so that trio code can call it. The callback runs in the thread or event loop of the code
        that has passed it, and the trio code waits for its end."""

        async def ask(*args: Any) -> None:
            done = trio.Event()
            wake = partial(run_soon, trio.lowlevel.current_trio_token(), done.set)
            self._deliver(Callback(partial(_call_in_context, call_variable.get(), callback, *args), wake))
            await done.wait()

        return ask

    def deferred_callback(self, callback: Callable[..., Any]) -> Callable[..., None]:
        """Wrap ``callback`` so that trio code can call it. The callback is scheduled in the thread or event loop of the
        code that has passed it, and the trio code doesn't wait."""

        def tell(*args: Any) -> None:
            self._deliver(Callback(partial(callback, *args), lambda: None))

        return tell

    def with_callbacks(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments of a method with all callbacks wrapped, so that they run in the caller's thread
        or event loop."""
        ways = {"on_progress": self.awaited_callback, "on_task": self.deferred_callback}
        return {key: ways[key](value) if value and key in ways else value for key, value in options.items()}


def _split_cancelled(error: BaseException) -> tuple[BaseException | None, BaseException | None]:
    """Split ``error`` into two parts: trio's `Cancelled` exceptions, which must be raised in trio, and all other
    exceptions."""
    if isinstance(error, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", error).split(trio.Cancelled)
    return None, error


def call_contained(handler: Callable[..., T], *args: Any) -> T:
    """Call the synchronous ``handler`` in the current thread, and return its result.

    If the handler raises an exception such as `SystemExit`, raise `RuntimeError` instead: in the trio thread,
    `SystemExit` would end all clients of the program.
    """
    try:
        return handler(*args)
    except (Exception, trio.Cancelled):
        raise
    except BaseException as error:
        raise RuntimeError(
            f"the handler raised {type(error).__name__}: a handler may only raise subclasses of Exception"
        ) from error


def with_contained(functions: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return ``functions``, the handlers of a client. Each synchronous function is wrapped in `call_contained`, so that
    it can't end the trio thread with, for example, `SystemExit`."""
    return {
        key: partial(call_contained, each) if callable(each) and not is_async(each) else each
        for key, each in functions.items()
    }


def is_async(function: Any) -> bool:
    """Return whether ``function`` is an async function, or an object whose ``__call__`` is async."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _call_in_context(call: CallRecord | None, callback: Callable[..., Any], *args: Any) -> Any:
    """Call ``callback`` in the caller's thread, with ``call`` as the current call (`current_call`)."""
    with variable_set(call_variable, call):
        answer = callback(*args)
    return _ContextCoroutine(call, answer) if inspect.iscoroutine(answer) else answer


@define(eq=False)
class _ContextCoroutine:
    """Runs the coroutine of a callback with ``call`` as the current call (`current_call`)."""

    call: CallRecord | None
    coroutine: Coroutine[Any, Any, Any]

    def __await__(self) -> Generator[Any, Any, Any]:
        with variable_set(call_variable, self.call):
            return (yield from self.coroutine.__await__())

    def close(self) -> None:
        self.coroutine.close()


CALL_HANDLERS: Final = frozenset(CallHandlers.__annotations__)
"""The keyword arguments of a call that are handlers for the server's requests."""
CALLBACKS: Final = frozenset(
    ("on_log", "on_list_changed", "on_resource_updated", "on_elicitation_complete", "on_request", "on_response")
)
"""The client options that are callbacks, and may be async functions."""
METHOD_TABLES: Final = frozenset({"handlers", "on_notification"})
"""The client options that map methods to functions."""


@define(eq=False)
class OpenContext(Generic[T]):
    """A trio context manager that is entered and exited in the trio thread.

    This object also tracks the calls that are made while the context manager is open.

    ``on_opened`` is called there after entering. ``is_over`` is called now and then, and returns whether `close` can no
    longer be called. The calls end with the context manager: on exit, remaining calls are cancelled.
    """

    _manager: AbstractAsyncContextManager[T]
    _on_opened: Callable[[], object]
    _is_over: Callable[[], bool] = bool
    _closing: trio.Event = attrs.field(factory=trio.Event, init=False)
    _nursery: ServiceNursery | None = attrs.field(default=None, init=False)
    value: T = attrs.field(init=False)
    portal: TrioPortal = attrs.field(init=False)

    async def run(self) -> None:
        """Enter the context manager in the trio thread, and exit the context manager after `close` has been called."""
        async with open_service_nursery(CLOSED) as self._nursery:
            try:
                async with self._manager as self.value:
                    self._on_opened()
                    while not (self._closing.is_set() or self._is_over()):
                        with trio.move_on_after(_POLL_INTERVAL):
                            await self._closing.wait()
            finally:
                self._nursery = None

    def close(self) -> None:
        """Exit the context manager.

        Can be called from any thread, and more than once. Does nothing in a fork of the process, which doesn't own the
        context manager.
        """
        if not self.portal.is_inherited:
            self.portal.run_soon(self._closing.set)

    def start(self, work: BridgedCall[Any]) -> TrioPortal:
        """Start ``work`` in the trio thread, like `TrioPortal.start`.

        The work ends at the latest when the context manager exits. Raises `RuntimeError` in a fork of the process.
        """
        self.portal.check_process()
        if not self.portal.run_soon(copy_context().run, self._start, work):
            work.finish()
        return self.portal

    def _start(self, work: BridgedCall[Any]) -> None:
        if self._nursery is None:
            work.finish()
        else:
            self._nursery.start_soon(_run_work, work)


_POLL_INTERVAL: Final = 1.0


async def _run_work(work: BridgedCall[Any]) -> None:
    try:
        await work.run()
    finally:
        work.finish()


StartWork: TypeAlias = Callable[[BridgedCall[Any]], TrioPortal]
"""A function that starts work in the trio thread: `TrioPortal.start` or `OpenContext.start`."""


class EnteredContext(Generic[T]):
    """A trio context manager that a caller outside trio enters, at most once.

    ``manager`` creates it, when it is entered; ``start`` starts it in the trio thread. Entering returns its value,
    wrapped in the class ``view``.
    """

    _call: BridgedCall[None]
    _context: OpenContext[Any] | None = None
    _was_entered = False

    def __init__(
        self,
        manager: Callable[[], AbstractAsyncContextManager[Any]],
        view: Callable[[Any, StartWork], T],
        start: StartWork,
    ) -> None:
        self._manager = manager
        self._view = view
        self._start = start

    def _begin(self) -> AbstractAsyncContextManager[Any]:
        """Create the trio context manager. Raises `RuntimeError` in the second call: the end is reported only once."""
        if self._was_entered:
            raise RuntimeError("a context manager is entered once: call the function that made it again")
        self._was_entered = True
        return self._manager()

    def start(self, work: BridgedCall[Any]) -> TrioPortal:
        """Start ``work`` in the trio thread. The work ends at the latest when this context manager exits."""
        assert self._context is not None, "it was entered"
        return self._context.start(work)


def start_call(call: BridgedCall[Any], start: StartWork) -> TrioPortal:
    """Start ``call`` in the trio thread."""
    call.portal = thread = start(call)
    return thread


@define(eq=False)
class BridgedItems(Generic[T]):
    """Fetches the items of a trio iterator in the trio thread.

    ``make`` returns the iterator, and ``start`` starts the fetch of each item.
    """

    start: StartWork
    make: Callable[[], AsyncIterator[T]]
    items: deque[T] = attrs.field(factory=deque[Any], init=False)
    """Items that were fetched but not returned yet, so that no item is lost when a fetch is cancelled."""
    _made: AsyncIterator[T] | None = attrs.field(default=None, init=False)

    async def fetch(self, _: BridgedCall[Any]) -> None:
        """Fetch the next item of the iterator. Must be called in the trio thread."""
        if self._made is None:
            self._made = self.make()
        self.items.append(await anext(self._made))


@contextmanager
def deferred_interrupts() -> Generator[None]:
    """Defer a Ctrl-C to the end of the block.

    Right after the start of a call, a Ctrl-C could otherwise leave a call that can't be cancelled or waited for.
    """
    interrupt = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(interrupt):
        yield  # only the main thread can be interrupted, and only if Python handles the signal
        return
    held: list[tuple[int, Any]] = []
    signal.signal(signal.SIGINT, lambda number, frame: held.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, interrupt)
    if held:
        interrupt(*held[0])


def reason_of(failure: BaseException) -> str:
    """Return the reason to send to a server when a call is cancelled because its caller got the exception
    ``failure``."""
    if isinstance(failure, KeyboardInterrupt):
        return "the user pressed Ctrl-C"
    if isinstance(failure, CodedError):
        return failure.message
    return "the caller is gone"


def check_may_block() -> None:
    """Raise `RuntimeError` in a thread in which trio runs, because blocking the thread would block all trio tasks."""
    if trio.lowlevel.in_trio_run():
        raise RuntimeError(
            "trio runs in this thread, which must not block: use trio_mcp.open_stdio etc. instead, or make the call in "
            "a worker thread: await trio.to_thread.run_sync(client.call_tool, ...)"
        )


_WAIT_INTERVAL: Final = 0.2
"""How many seconds a waiting thread sleeps before it checks again. A Ctrl-C right before the sleep doesn't end the
sleep."""


def wait_for(event: threading.Event) -> None:
    """Block until ``event`` is set. If the user presses Ctrl-C, the wait ends soon with `KeyboardInterrupt`."""
    while not event.wait(_WAIT_INTERVAL):
        pass


def _next_callback(inbox: queue.SimpleQueue[Callback | None], call: BridgedCall[Any]) -> Callback | None:
    while True:
        is_over = call.is_over
        try:
            return inbox.get(timeout=_WAIT_INTERVAL)
        except queue.Empty:
            if is_over:  # a Ctrl-C may have lost the message about the end of the call
                return None


def run_blocking(start: StartWork, make: Callable[[BridgedCall[Any]], Awaitable[T]]) -> T:
    """Run a coroutine in the trio thread, and return its result.

    ``make`` returns the coroutine. The calling thread waits, and runs the callbacks of the call. Ctrl-C cancels the
    call, and is raised when the call has ended. A second Ctrl-C is raised at once.
    """
    check_may_block()
    inbox: queue.SimpleQueue[Callback | None] = queue.SimpleQueue()
    call: BridgedCall[T] = BridgedCall(lambda: make(call), inbox.put)
    try:
        with deferred_interrupts():
            start_call(call, start)
        while (errand := _next_callback(inbox, call)) is not None:
            errand.run()
    except BaseException as failure:
        if call.has_started:
            call.cancel(reason_of(failure))
            while (errand := _next_callback(inbox, call)) is not None:
                errand.on_done()
        raise
    return call.result()


def run_sync(start: StartWork, function: Callable[[], T]) -> T:
    """Call the synchronous ``function`` in the trio thread, and return its result. The calling thread blocks
    meanwhile."""

    async def call() -> T:
        return function()

    return run_blocking(start, lambda _: call())
