"""`LoopTask` runs an asyncio function in an event loop in another thread, for a trio task that waits for it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context
from typing import Any, Generic, TypeVar, cast

import trio

from .threads import TrioRun

T = TypeVar("T")


class LoopTask(Generic[T]):
    """An asyncio task in the event loop ``loop`` that runs ``function`` in ``context``.

    Create this object in the trio run that waits for the asyncio task.

    Raises `RuntimeError` if the loop is closed.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, function: Callable[[], T | Awaitable[T]], context: Context
    ) -> None:
        self._loop = loop
        self._function = function
        self._trio_run = TrioRun()
        self._task: asyncio.Task[T] | None = None
        self.over = trio.Event()
        """Event that is set when the task has ended."""
        loop.call_soon_threadsafe(self._start, context)

    # The methods below run in the thread of the asyncio event loop

    def _start(self, context: Context) -> None:
        self._task = self._loop.create_task(self._run(), context=context)
        self._task.add_done_callback(self._tell)

    async def _run(self) -> T:
        answer = self._function()
        return await cast("Awaitable[T]", answer) if inspect.isawaitable(answer) else cast("T", answer)

    def _tell(self, _: object) -> None:
        self._trio_run.call_soon(self.over.set)

    @property
    def task(self) -> asyncio.Task[T] | None:
        """The asyncio task that runs the function. `None` before it starts."""
        return self._task

    # In trio's thread

    def cancel(self, reason: str | None) -> None:
        """Cancel the asyncio task. ``reason`` is the message of the cancellation.

        Does nothing if the loop is closed.
        """
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._cancel, reason)

    def _cancel(self, reason: str | None) -> None:
        if self._task is not None:
            self._task.cancel(reason)

    @property
    def was_cancelled(self) -> bool:
        """True if the asyncio task ended because it was cancelled."""
        return self._task is not None and self._task.cancelled()

    def result(self) -> T:
        """Return the result of the task, or raise the task's exception.

        Exceptions that would end the whole trio run, such as asyncio's cancellation, are replaced by `RuntimeError`.
        """
        task: Any = self._task
        try:
            return task.result()
        except Exception:
            raise
        except BaseException as error:
            raise RuntimeError(f"the handler raised {type(error).__name__} in the asyncio event loop") from None
