"""Plain ``def`` handlers, in worker threads that can be abandoned."""

from __future__ import annotations

import logging
import queue
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from itertools import takewhile
from types import FrameType
from typing import Any, Final, Generic, TypeVar, cast

import outcome
import trio

from .graces import Graces
from .places import Place, WorkerShare

T = TypeVar("T")

logger = logging.getLogger("trio_mcp")


async def run_in_worker(call: Callable[[], T], share: WorkerShare, graces: Callable[[], Graces]) -> T:
    """Run ``call`` in one of the threads of ``share`` and return its result.

    Tasks that call this function one after another, with no other task running in between, get their threads in the
    same order. A cancelled task informs its thread at the next `trio.from_thread.check_cancelled` or `await_in_worker`;
    the thread has one of ``graces``, as they are then, to end, and is then abandoned: it runs on, gives its place back,
    and its result is ignored (DESIGN ruling 8). A call that has not started by then never does. Raises the exceptions
    of ``call``, and `CodedError` when too many abandoned threads still run.
    """
    ends: list[outcome.Outcome[T]] = []
    try:
        async with trio.open_nursery() as nursery:
            work = _Work(call, Place(share), nursery)
            token = _here.set(work)
            ends.append(await outcome.acapture(work.run, graces))
            _here.reset(token)  # the nursery refers to this task, whose context is not to refer to the nursery
            nursery.cancel_scope.cancel(reason="the thread has ended")
        return ends.pop().unwrap()  # outside of the nursery, which would put an exception into a group
    finally:
        ends.clear()  # the traceback of an exception refers to this frame: only the garbage collector could free both


def await_in_worker(call: Callable[[], Awaitable[T]], *, asks: bool = False) -> T:
    """Run ``call`` in trio, from a thread that `run_in_worker` started, and return its result.

    ``asks``: ``call`` waits for the peer, so another thread may run meanwhile. Raises the exceptions of ``call``,
    `trio.Cancelled` when the thread's call is or was cancelled, and `CodedError` when too many threads ask. In any
    other thread of trio's, this function does what `trio.from_thread.run` does.
    """
    here = _here.get(None)
    if here is None:
        return trio.from_thread.run(_awaiting, call)
    nursery = here.nursery
    wait = here.while_asking if asks else _awaiting
    # trio would run it in a system task, which nothing cancels, since the thread may be abandoned.
    ends = queue.SimpleQueue[outcome.Outcome[T]]()

    async def run() -> None:
        end = await outcome.acapture(wait, call)
        ends.put(end)
        try:
            if isinstance(end, outcome.Error) and isinstance(end.error, trio.Cancelled):
                end.unwrap()
        finally:
            del end

    trio.from_thread.check_cancelled()
    try:
        trio.from_thread.run_sync(nursery.start_soon, run)
    except RuntimeError:  # the nursery is closed: the thread was abandoned
        trio.from_thread.check_cancelled()
        raise
    end = ends.get()
    try:
        if isinstance(end, outcome.Error) and isinstance(end.error, trio.Cancelled):
            trio.from_thread.check_cancelled()  # raises a `trio.Cancelled` of this thread's own
        return end.unwrap()
    finally:
        del end


async def _awaiting(call: Callable[[], Awaitable[T]]) -> T:
    return await call()


class _Work(Generic[T]):
    """A call that is run in a thread."""

    __slots__ = ("_call", "_ends", "_given_up", "_ident", "_place", "_started", "nursery")

    def __init__(self, call: Callable[[], T], place: Place, nursery: trio.Nursery) -> None:
        self._call = call
        self._place = place
        self.nursery = nursery
        """Nursery for tasks that the thread waits for, cancelled together with the thread's call."""
        self._started = self._given_up = False
        self._ident: int | None = None
        """Identifier of the thread, while the call runs."""
        self._ends: list[outcome.Outcome[T]] = []
        """Outcome of the call. `_body` does not return or raise the outcome: the traceback of an exception refers to
        the frames of the thread, and only the garbage collector could free the objects held by the frames."""

    async def run(self, graces: Callable[[], Graces]) -> T:
        """Run the call, as `run_in_worker` says."""
        try:
            await trio.to_thread.run_sync(self._body, limiter=cast("Any", self._place), abandon_on_cancel=True)
        except trio.Cancelled:
            self._given_up = True
            self._ends.clear()
            if self._started:
                present = graces()
                with present.grace():
                    await self._place.given_back.wait()
                if not self._place.given_back.is_set():
                    told = "a thread that did not end within %g s of its cancel is abandoned: %s"
                    logger.warning(told, present.seconds, self.describe())
                    self._place.abandon(self)
            raise
        return self._ends.pop().unwrap()

    def _body(self) -> None:
        # Each side raises its own flag before it looks at the other's, so one of them always sees.
        self._started = True
        if self._given_up:
            return
        self._ident = threading.get_ident()
        try:
            self._ends.append(outcome.capture(self._call))
            if self._given_up:
                self._ends.clear()
        finally:
            self._ident = None

    async def while_asking(self, call: Callable[[], Awaitable[T]]) -> T:
        """Wait for ``call``, and let another thread run meanwhile."""
        self._place.ask()
        try:
            return await call()
        finally:
            await self._place.go_on()

    def frames(self) -> list[tuple[FrameType, int]]:
        """Return the position of the thread, outermost first: in the author's function and its callees. The list is
        empty outside of the function."""
        ident = self._ident
        if ident is None:
            return []
        frame = sys._current_frames().get(ident)  # pyright: ignore[reportPrivateUsage] - documented, for this purpose
        if frame is None or self._ident is None:  # it has ended meanwhile, and the thread may do something else
            return []
        inside = list(takewhile(lambda one: one[0].f_code is not _BODY, traceback.walk_stack(frame)))
        return inside[-2::-1]  # the last one is that of `outcome.capture`

    def describe(self) -> str:
        """Return the name of the function and its current position, for the log. The arguments are not shown, because
        they may be private, and of any length."""
        function = getattr(self._call, "func", self._call)  # the function of a partial
        name = getattr(function, "__qualname__", type(function).__qualname__)
        return f"{name}, at:\n{''.join(traceback.StackSummary.extract(self.frames()).format())}"


_BODY: Final = cast("Any", _Work)._body.__code__
"""Code of the frame whose callers belong to the thread's owner, and not to the call."""

_here: ContextVar[_Work[Any]] = ContextVar("trio_mcp.worker")
"""The call run by this thread, or whose thread this task waits for."""


def frames_of(task: trio.lowlevel.Task) -> Iterable[tuple[FrameType, int]]:
    """Return the position of ``task``, as `traceback.StackSummary` takes it: in its thread, when the task waits for
    one."""
    work = task.context.get(_here)
    return (work is not None and work.frames()) or task.iter_await_frames()
