"""LoopTask: a function of asyncio's, run in a task of an event loop in another thread, for a task of trio's."""

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
    """A task of ``loop`` that runs ``function`` in ``context``, made in the run of trio that waits for the task.

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
        """Event set when the task has ended."""
        loop.call_soon_threadsafe(self._start, context)

    # In the thread of the loop

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
        """The task of asyncio's; `None` before its start."""
        return self._task

    # In trio's thread

    def cancel(self, reason: str | None) -> None:
        """Cancel the task, with ``reason`` as the message. Does nothing if the loop is closed."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._cancel, reason)

    def _cancel(self, reason: str | None) -> None:
        if self._task is not None:
            self._task.cancel(reason)

    @property
    def was_cancelled(self) -> bool:
        """True for a task that has ended by a cancel."""
        return self._task is not None and self._task.cancelled()

    def result(self) -> T:
        """Return the result of the task, or raise its exception; `RuntimeError` for one such as a cancel of asyncio's,
        which would end all that trio runs."""
        task: Any = self._task
        try:
            return task.result()
        except Exception:
            raise
        except BaseException as error:
            raise RuntimeError(f"the handler ended in its event loop by {type(error).__name__}") from None
