"""Replacements for contextlib's `contextmanager` and `asynccontextmanager` that leave no reference cycles, and
awaitables that run a coroutine in another context, or with callbacks at certain steps.

From CPython 3.12 on, the frame of a finished generator refers to the frame that last ran the generator. For a context
manager, that's contextlib's ``__exit__``, which refers to the exception that left the block; and the exception's
traceback begins with the generator's frame. If the exception is caught or replaced there, for example by a time limit,
everything in the frames of its traceback stays alive until the garbage collector runs.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import Context
from functools import partial, wraps
from types import FrameType, TracebackType
from typing import Any, Generic, ParamSpec, TypeVar

import trio

P = ParamSpec("P")
T = TypeVar("T")


def contextmanager(function: Callable[P, Generator[T]]) -> Callable[P, AbstractContextManager[T, bool | None]]:
    """Return a function that creates context managers from the generator function ``function``, like
    `contextlib.contextmanager`.

    If an exception leaves the block, the exception's original traceback is restored.
    """
    manager = contextlib.contextmanager(function)

    @wraps(function)
    def opened(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T, bool | None]:
        return _Context(manager(*args, **kwargs))

    return opened


def asynccontextmanager(
    function: Callable[P, AsyncGenerator[T]],
) -> Callable[P, AbstractAsyncContextManager[T, bool | None]]:
    """Make an async context manager of an async generator function. See `contextmanager`."""
    manager = contextlib.asynccontextmanager(function)

    @wraps(function)
    def opened(*args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[T, bool | None]:
        return _AsyncContext(manager(*args, **kwargs))

    return opened


class _Context(AbstractContextManager[T, bool | None]):
    def __init__(self, manager: AbstractContextManager[T, bool | None]) -> None:
        self._manager = manager

    def __enter__(self) -> T:
        return self._manager.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        try:
            return self._manager.__exit__(kind, value, traceback)
        finally:
            if value is not None:
                value.__traceback__ = traceback


class _AsyncContext(AbstractAsyncContextManager[T, bool | None]):
    def __init__(self, manager: AbstractAsyncContextManager[T, bool | None]) -> None:
        self._manager = manager

    async def __aenter__(self) -> T:
        return await self._manager.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        try:
            return await self._manager.__aexit__(kind, value, traceback)
        finally:
            if value is not None:
                value.__traceback__ = traceback


def _run_steps(work: Awaitable[T], run: Callable[..., Any]) -> Generator[Any, Any, T]:
    """Run the awaitable ``work`` by calling ``run(method, argument)`` for each of its steps."""
    steps: Any = work.__await__()
    value: Any = None
    thrown: BaseException | None = None
    try:
        while True:
            try:
                trap = run(steps.send, value) if thrown is None else run(steps.throw, thrown)
            except StopIteration as end:
                return end.value
            value = thrown = None
            try:
                value = yield trap
            except BaseException as error:  # catch everything, even GeneratorExit
                thrown = error
    finally:
        value = thrown = None  # break the reference cycle: the traceback of a thrown exception refers to this frame


class in_context(Generic[T]):
    """An awaitable that runs ``work`` in the current task, with the context variables of ``context``.

    Tasks and threads that ``work`` starts get copies of the context. Until ``work`` ends, nothing else may run in
    ``context``.
    """

    __slots__ = ("_context", "_work")

    def __init__(self, context: Context, work: Awaitable[T]) -> None:
        self._context = context
        self._work = work

    def __await__(self) -> Generator[Any, Any, T]:
        return _run_steps(self._work, self._context.run)


class ResumptionObserver:
    """An awaitable that wraps the awaitable ``answer`` and observes it. It calls one function when ``answer`` first
    continues after a cancellation, and another function when ``answer`` ends.

    ``on_resumed`` is called at the first step of ``answer`` after ``scope`` was cancelled, where its ``finally``
    begins. ``on_returned`` is called when ``answer`` has returned or raised. Neither may raise.
    """

    __slots__ = ("_answer", "_is_resumed", "_on_resumed", "_on_returned", "_scope")

    def __init__(
        self,
        answer: Awaitable[Any],
        scope: trio.CancelScope,
        on_resumed: Callable[[], object],
        on_returned: Callable[[], object] | None = None,
    ) -> None:
        self._answer = answer
        self._scope = scope
        self._on_resumed = on_resumed
        self._on_returned = on_returned
        self._is_resumed = False

    def __await__(self) -> Generator[Any, Any, Any]:
        try:
            return (yield from _run_steps(self._answer, self._step))
        finally:
            if self._on_returned is not None:
                self._on_returned()

    def _step(self, method: Callable[[Any], Any], argument: Any) -> Any:
        if not self._is_resumed and self._scope.cancel_called:
            self._is_resumed = True
            self._on_resumed()
        return method(argument)


@contextmanager
def cancel_on_interrupt() -> Generator[trio.CancelScope]:
    """Open a cancel scope that is cancelled by the first Ctrl-C (SIGINT) during the ``with`` block.

    The second Ctrl-C has its previous effect, which is usually to raise `KeyboardInterrupt`.

        with cancel_on_interrupt() as scope:
            result = await client.call_tool("search", {"text": "trio"})
        if scope.cancelled_caught:
            print("cancelled")

    Use it in the main thread; any other thread raises `RuntimeError`. If several tasks use it, their blocks must be
    nested, like all signal handlers. The innermost block gets the interrupt.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            "cancel_on_interrupt() must be opened in the main thread, because Python handles interrupts only there: "
            "call trio.run in the main thread"
        )
    token, scope = trio.lowlevel.current_trio_token(), trio.CancelScope()
    interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> Any:
        nonlocal interrupted
        if interrupted and callable(before):
            return before(number, frame)
        interrupted = True
        return token.run_sync_soon(partial(scope.cancel, reason="the user pressed Ctrl-C"))

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with scope:
            yield scope
    finally:
        signal.signal(signal.SIGINT, before)
