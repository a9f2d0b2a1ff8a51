"""contextmanager and asynccontextmanager work as those of contextlib, but leave nothing to the garbage collector.

From CPython 3.12 on, the frame of a finished generator refers to the frame that last ran the generator. For a context
manager, this is ``__exit__`` of contextlib, which refers to the exception that left the block; and the traceback of the
exception begins with the frame of the generator. An exception that is caught or replaced there, as by a time limit,
would therefore keep everything in the frames of its traceback alive, a connection for example, until the garbage
collector runs.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial, wraps
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

import trio

P = ParamSpec("P")
T = TypeVar("T")


def contextmanager(function: Callable[P, Generator[T]]) -> Callable[P, AbstractContextManager[T, bool | None]]:
    """Make a context manager of a generator ``function``, as `contextlib.contextmanager` does. Afterwards the traceback
    of the exception that left the block is restored."""
    manager = contextlib.contextmanager(function)

    @wraps(function)
    def opened(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T, bool | None]:
        return _Context(manager(*args, **kwargs))

    return opened


def asynccontextmanager(
    function: Callable[P, AsyncGenerator[T]],
) -> Callable[P, AbstractAsyncContextManager[T, bool | None]]:
    """Make an async context manager of an async generator ``function``, as `contextmanager` does of a generator."""
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


@contextmanager
def cancel_on_interrupt() -> Generator[trio.CancelScope]:
    """Open a scope that the first Ctrl-C (SIGINT) inside cancels. The second one does what it did before the block:
    raise `KeyboardInterrupt`, usually.

        with cancel_on_interrupt() as scope:
            result = await client.call_tool("search", {"text": "trio"})
        if scope.cancelled_caught:
            print("cancelled")

    For the main thread; elsewhere `RuntimeError`. Blocks of several tasks must be nested, as the handlers of a signal
    are: the innermost gets the interrupt.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("interrupts come to the main thread: open cancel_on_interrupt() where trio runs there")
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
