"""Replacements for contextlib's `contextmanager` and `asynccontextmanager` that leave no reference cycles.

From CPython 3.12 on, the frame of a finished generator refers to the frame that last ran the generator. For a context
manager, that's contextlib's ``__exit__``, which refers to the exception that left the block; and the exception's
traceback begins with the generator's frame. If the exception is caught or replaced there, for example by a time limit,
everything in the frames of its traceback stays alive until the garbage collector runs.
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
