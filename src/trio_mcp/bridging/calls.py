"""BridgedCall: a function that runs in trio's thread for a caller elsewhere; Hold: a context manager open there.

A caller sees its call through to the end: an interrupt or a failure of the caller's cancels
the call, and the caller goes on when the call has ended. Callbacks of a call are errands, which its caller runs.
"""

from __future__ import annotations

import inspect
import queue
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

import trio

from ..classes import define
from ..client.current_call import CallHandlers, Made, making, present
from ..concurrency.contexts import contextmanager
from ..concurrency.nurseries import ServiceNursery, open_service_nursery
from ..jsonrpc.errors import CodedError
from ..runtime.transport import ConnectionLost
from .thread import ThreadWork, TrioThread, run_soon

T = TypeVar("T")

CLOSED: Final = "the client was closed"


@define(eq=False)
class Errand:
    """A callback with its arguments, which the caller of a call runs. ``done`` is called afterwards."""

    function: Callable[[], Any]
    done: Callable[[], object]

    def carry_out(self) -> None:
        """Run the callback, a plain function."""
        try:
            answer = self.function()
            if inspect.iscoroutine(answer) or isinstance(answer, _Serving):
                answer.close()
                raise TypeError(
                    "write a callback with def, not with async def: no event loop runs in a program that waits"
                )
        finally:
            self.done()


Tell: TypeAlias = Callable[[Errand | None], object]
"""Gives the caller an errand, or tells of the end of its call. Raises `RuntimeError` when the caller is gone."""


class BridgedCall(Generic[T]):
    """A call of ``function`` in the trio thread. ``tell`` is called there."""

    def __init__(self, function: Callable[[], Awaitable[T]], tell: Tell) -> None:
        self._function = function
        self._tell = tell
        self._scope = trio.CancelScope()
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._thread: TrioThread | None = None
        self.is_over = False
        """True once nothing is left of the call in the trio thread."""

    @property
    def has_begun(self) -> bool:
        """True once a thread runs the call, or has run it."""
        return self._thread is not None

    def began(self, thread: TrioThread) -> None:
        """Take note of the thread in which the call runs."""
        self._thread = thread

    # In the trio thread

    async def run(self) -> None:
        """See `ThreadWork.run`."""
        with self._scope:
            try:
                self._results.append(await self._function())
            except Exception as error:
                self._error = error
            except trio.Cancelled:
                raise
            except BaseException as error:  # for example SystemExit, which would end all clients if raised here
                cancelled, self._error = _split(error)
                if cancelled is not None:
                    raise cancelled from None

    def end(self) -> None:
        """See `ThreadWork.end`."""
        self.is_over = True
        with suppress(RuntimeError):
            self._tell(None)

    # In the thread of the caller

    def cancel(self, reason: str) -> None:
        """Cancel the call with ``reason``, which a server is told."""
        if self._thread is not None:
            self._thread.run_soon(partial(self._scope.cancel, reason=reason))

    def result(self) -> T:
        """Return the result of the call that has ended, or raise its exception; `ConnectionLost` for a call that the
        end of its client has ended."""
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # its traceback refers to this frame
        if not self._results:
            raise ConnectionLost(CLOSED)
        return self._results.pop()

    def raise_failure(self) -> None:
        """Raise the exception of the call that has ended, if any."""
        if self._error is not None:
            self.result()

    # For callbacks

    def asking(self, callback: Callable[..., Any]) -> Callable[..., Awaitable[None]]:
        """Return a function for trio's thread that has the caller run ``callback``, and waits until that is done."""

        async def ask(*args: Any) -> None:
            done = trio.Event()
            wake = partial(run_soon, trio.lowlevel.current_trio_token(), done.set)
            self._tell(Errand(partial(_serving, present.get(), callback, *args), wake))
            await done.wait()

        return ask

    def telling(self, callback: Callable[..., Any]) -> Callable[..., None]:
        """Return a function for trio's thread that has the caller run ``callback`` later."""

        def tell(*args: Any) -> None:
            self._tell(Errand(partial(callback, *args), _nobody_waits))

        return tell

    def with_callbacks(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments of a method, with callbacks that the caller runs."""
        ways = {"on_progress": self.asking, "on_task": self.telling}
        return {key: ways[key](value) if value and key in ways else value for key, value in options.items()}


def _split(error: BaseException) -> tuple[BaseException | None, BaseException | None]:
    """Split ``error`` into the cancels, which trio must see, and the other exceptions."""
    if isinstance(error, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", error).split(trio.Cancelled)
    return None, error


def contained(handler: Callable[..., T], *args: Any) -> T:
    """Call a plain handler in its thread. Raises `RuntimeError` if the handler raises an exception such as
    `SystemExit`: in trio's thread it would end all clients of the program, not only the question."""
    try:
        return handler(*args)
    except (Exception, trio.Cancelled):
        raise
    except BaseException as error:
        raise RuntimeError(
            f"the handler raised {type(error).__name__}: a handler may only raise subclasses of Exception"
        ) from error


def with_contained(functions: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return ``functions`` with each plain function wrapped by `contained`; others are unchanged."""
    return {
        key: partial(contained, each) if callable(each) and not is_async(each) else each
        for key, each in functions.items()
    }


def is_async(function: Any) -> bool:
    """Return whether ``function`` is an async function, or an object that is called as one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _nobody_waits() -> None:
    pass


def _serving(call: Made | None, callback: Callable[..., Any], *args: Any) -> Any:
    """Call ``callback`` in the caller's thread, with ``call`` as the current call."""
    with making(call):
        answer = callback(*args)
    return _Serving(call, answer) if inspect.iscoroutine(answer) else answer


@define(eq=False)
class _Serving:
    """Wraps the coroutine of a callback, with ``call`` as the current call."""

    call: Made | None
    coroutine: Coroutine[Any, Any, Any]

    def __await__(self) -> Generator[Any, Any, Any]:
        with making(self.call):
            return (yield from self.coroutine.__await__())

    def close(self) -> None:
        self.coroutine.close()


CALL_HANDLERS: Final = frozenset(CallHandlers.__annotations__)
"""The keyword arguments of calls that are handlers."""
CALLBACKS: Final = frozenset({"on_log", "on_list_changed", "on_resource_updated", "on_elicitation_complete"})
"""The options of a client that are callbacks, each called in turn."""
TABLES: Final = frozenset({"handlers", "on_notification"})
"""The options of a client with functions by methods."""


class Hold(Generic[T]):
    """A context manager of trio's, entered and left in the trio thread, and the calls that are made while it is open.

    ``opened`` is called there after entering, and ``is_over`` now and then, to return whether nobody can call `close`
    any more. The calls outlive the context manager, so that its end is their end, and the rest of them is cancelled.
    """

    value: T
    thread: TrioThread

    def __init__(
        self, manager: AbstractAsyncContextManager[T], opened: Callable[[], object], is_over: Callable[[], bool] = bool
    ) -> None:
        self._manager = manager
        self._opened = opened
        self._is_over = is_over
        self._closing = trio.Event()
        self._nursery: ServiceNursery | None = None

    async def run(self) -> None:
        """Enter the context manager, and leave it after `close`."""
        async with open_service_nursery(CLOSED) as self._nursery:
            try:
                async with self._manager as self.value:
                    self._opened()
                    while not (self._closing.is_set() or self._is_over()):
                        with trio.move_on_after(_LOOKS_EVERY):
                            await self._closing.wait()
            finally:
                self._nursery = None

    def close(self) -> None:
        """Exit the context manager. May be called from any thread, any number of times. Does nothing in a fork of the
        process, which doesn't own the context manager."""
        if not self.thread.is_inherited:
            self.thread.run_soon(self._closing.set)

    def begin(self, work: ThreadWork) -> TrioThread:
        """Begin ``work``, as `TrioThread.begin` does; at the latest the end of this hold ends it. Raises
        `RuntimeError` in a fork of the process."""
        self.thread.check_process()
        if not self.thread.run_soon(copy_context().run, self._start, work):
            work.end()
        return self.thread

    def _start(self, work: ThreadWork) -> None:
        if self._nursery is None:
            work.end()
        else:
            self._nursery.start_soon(_do, work)


_LOOKS_EVERY: Final = 1.0


async def _do(work: ThreadWork) -> None:
    try:
        await work.run()
    finally:
        work.end()


Begin: TypeAlias = Callable[[ThreadWork], TrioThread]
"""`TrioThread.begin` or `Hold.begin`."""


def begin(call: BridgedCall[Any], by: Begin) -> TrioThread:
    """Begin ``call``."""
    thread = by(call)
    call.began(thread)
    return thread


@contextmanager
def interrupts_held() -> Generator[None]:
    """Raise at the end of the body what a Ctrl-C raises in it: a call that began without its caller's knowledge could
    neither be cancelled nor waited for."""
    interrupt = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(interrupt):
        yield  # no other thread is interrupted, and only Python's handlers raise
        return
    held: list[tuple[int, Any]] = []
    signal.signal(signal.SIGINT, lambda number, frame: held.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, interrupt)
    if held:
        interrupt(*held[0])


def words_of(failure: BaseException) -> str:
    """Return the reason that a server is told when its caller leaves a call by ``failure``."""
    if isinstance(failure, KeyboardInterrupt):
        return "the user pressed Ctrl-C"
    if isinstance(failure, CodedError):
        return failure.message
    return "the caller is gone"


def check_may_wait() -> None:
    """Raise `RuntimeError` in a thread where trio runs, since all of its tasks would wait."""
    if trio.lowlevel.in_trio_run():
        raise RuntimeError(
            "trio runs in this thread, and must not wait for another one: use trio_mcp.open_stdio and its like, or "
            "call in a worker thread: await trio.to_thread.run_sync(client.call_tool, ...)"
        )


_LOOK: Final = 0.2
"""Seconds between two looks of a thread that waits: an interrupt that comes right before the wait does not end it, and
would be seen only after it."""


def wait_for(event: threading.Event) -> None:
    """Wait for ``event``, so that an interrupt is raised soon, whenever it comes."""
    while not event.wait(_LOOK):
        pass


def _next(inbox: queue.SimpleQueue[Errand | None], call: BridgedCall[Any]) -> Errand | None:
    while True:
        is_over = call.is_over
        try:
            return inbox.get(timeout=_LOOK)
        except queue.Empty:
            if is_over:  # an interrupt took what told of it
                return None


def run_blocking(by: Begin, make: Callable[[BridgedCall[Any]], Awaitable[T]]) -> T:
    """Run the coroutine that ``make`` returns in the trio thread, and return the result. This thread waits, and runs
    the errands of the call. An interrupt cancels the call, and is raised when the call has ended; a second one is
    raised at once."""
    check_may_wait()
    inbox: queue.SimpleQueue[Errand | None] = queue.SimpleQueue()
    call: BridgedCall[T] = BridgedCall(lambda: make(call), inbox.put)
    try:
        with interrupts_held():
            begin(call, by)
        while (errand := _next(inbox, call)) is not None:
            errand.carry_out()
    except BaseException as failure:
        if call.has_begun:
            call.cancel(words_of(failure))
            while (errand := _next(inbox, call)) is not None:
                errand.done()
        raise
    return call.result()


def run_at_once(by: Begin, function: Callable[[], T]) -> T:
    """Call ``function``, which waits for nothing, in the trio thread, and return its result. This thread waits."""

    async def call() -> T:
        return function()

    return run_blocking(by, lambda _: call())
