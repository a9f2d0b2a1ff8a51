"""Worker threads for plain ``def`` handlers. A thread that ignores its cancellation can be abandoned.

`run_in_worker` runs a call in a thread; `await_in_worker` calls from there back into trio. `Workers` decide how many
threads there are, and which waiting call gets the next one. Each call in a thread has a `WorkerSlot`.
"""

from __future__ import annotations

import inspect
import logging
import queue
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from enum import IntEnum
from functools import partial
from itertools import takewhile
from types import FrameType
from typing import Any, Final, Generic, TypeVar, cast
from weakref import WeakValueDictionary

import outcome
import trio

from ..jsonrpc.errors import TOO_BUSY, CodedError
from .fair_share import Caller, leaves_enough
from .threads import TrioRun
from .time_limits import Graces

T = TypeVar("T")

logger = logging.getLogger("trio_mcp")


async def run_in_worker(
    call: Callable[[], T],
    share: WorkerShare,
    graces: Callable[[], Graces],
    abandoned: Callable[[], object] | None = None,
) -> T:
    """Run ``call`` in a worker thread, and return its result. ``share`` limits how many threads one caller can use.

    Tasks that call this function one after another, with no other task running in between, get their threads in the
    same order.

    If the task is cancelled, its thread notices at the next `trio.from_thread.check_cancelled` or `await_in_worker`.
    The thread has one of ``graces``, with its current length, to end. After that it's abandoned: it continues, but it
    releases its slot, its result is ignored, and ``abandoned`` is called (ruling 8). A call that has not started by
    then never starts.

    Raises the exceptions of ``call``, and `CodedError` if too many abandoned threads still run.
    """
    ends: list[outcome.Outcome[T]] = []
    try:
        async with trio.open_nursery() as nursery:
            work = Work(call, WorkerSlot(share), nursery)
            token = _here.set(work)
            ends.append(await outcome.acapture(work.run, graces, abandoned))
            _here.reset(token)  # break a reference cycle: the nursery refers to this task and its context
            nursery.cancel_scope.cancel(reason="the thread has ended")
        return ends.pop().unwrap()  # raise an error outside the nursery, which would wrap the error in a group
    finally:
        ends.clear()  # break the reference cycle: an exception's traceback refers to this frame


async def await_result(call: Awaitable[Any]) -> Any:
    """Await ``call`` and return its result. If a plain function has returned a coroutine, await the coroutine too.

    If the result is awaitable, because a plain function returned a coroutine, await it in this task.
    """
    result = await call
    return await result if inspect.isawaitable(result) else result


def await_in_worker(call: Callable[[], Awaitable[T]], *, asks: bool = False) -> T:
    """Run the async function ``call`` in trio, from a thread that `run_in_worker` started. Return its result.

    ``asks``: true if ``call`` waits for the peer, so that another thread can run meanwhile. Raises the exceptions of
    ``call``, `trio.Cancelled` if the thread's call is or was cancelled, and `CodedError` if too many threads ask. In
    any other trio thread, this does the same as `trio.from_thread.run`.
    """
    here = _here.get(None)
    if here is None:
        return trio.from_thread.run(_awaiting, call)
    nursery = here.nursery
    wait = here.while_asking if asks else _awaiting
    # Don't use `trio.from_thread.run`, which runs `call` in a system task of trio if the thread can be abandoned.
    # A system task wouldn't be cancelled together with the request.
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
    except RuntimeError:  # this thread was abandoned, so the nursery is closed
        trio.from_thread.check_cancelled()
        raise
    end = ends.get()
    try:
        if isinstance(end, outcome.Error) and isinstance(end.error, trio.Cancelled):
            # `check_cancelled` raises `trio.Cancelled`, because the trio task that waits for this thread is cancelled.
            trio.from_thread.check_cancelled()
        return end.unwrap()
    finally:
        del end


def await_in_nursery(run: TrioRun, nursery: trio.Nursery, call: Callable[[], Awaitable[T]]) -> T:
    """Run the async function ``call`` in ``nursery``, from a thread outside trio. Return its result.

    ``run`` is the trio run of the nursery.

    Raises the exceptions of ``call`` and of `TrioRun.call`, and `trio.Cancelled` if the nursery is cancelled.
    """
    ends = queue.SimpleQueue[outcome.Outcome[T]]()

    async def capture() -> None:
        ends.put(await outcome.acapture(call))  # capture a cancellation: only the calling thread should raise it

    run.call(partial(nursery.start_soon, capture))
    return ends.get().unwrap()


def in_worker_thread() -> bool:
    """Return true if the current code runs in a thread that `run_in_worker` started, where it may block.

    Return false in another thread to which context variables were copied, and in a trio run inside the thread.
    """
    here = _here.get(None)
    return here is not None and here.is_here and not trio.lowlevel.in_trio_run()


async def _awaiting(call: Callable[[], Awaitable[T]]) -> T:
    return await call()


class Work(Generic[T]):
    """One call of a synchronous function in a worker thread."""

    __slots__ = ("_call", "_ends", "_given_up", "_ident", "_slot", "_started", "nursery")

    def __init__(self, call: Callable[[], T], slot: WorkerSlot, nursery: trio.Nursery) -> None:
        self._call = call
        self._slot = slot
        self.nursery = nursery
        """Nursery for the trio tasks for which the thread waits. The cancellation of the thread's call also cancels
        these tasks."""
        self._started = self._given_up = False
        self._ident: int | None = None
        """Identifier of the worker thread while the call runs."""
        self._ends: list[outcome.Outcome[T]] = []
        """Outcome of the call. `_body` stores it instead of returning or raising it, because the traceback of an
        exception refers to the thread's frames, and only the garbage collector could free the objects in them."""

    @property
    def is_here(self) -> bool:
        """True if the code that reads this property runs in the worker thread that calls the synchronous function."""
        return self._ident == threading.get_ident()

    async def run(self, graces: Callable[[], Graces], abandoned: Callable[[], object] | None) -> T:
        """Run the call in a worker thread, as `run_in_worker` describes, and return its result."""
        try:
            await trio.to_thread.run_sync(self._body, limiter=cast("Any", self._slot), abandon_on_cancel=True)
        except trio.Cancelled:
            self._given_up = True
            self._ends.clear()
            if self._started:
                present = graces()
                with present.grace():
                    await self._slot.released.wait()
                if not self._slot.released.is_set():
                    told = "a thread that did not end within %g s of its cancel is abandoned: %s"
                    logger.warning(told, present.seconds, self.describe())
                    self._slot.abandon(self)
                    if abandoned is not None:
                        abandoned()
            raise
        return self._ends.pop().unwrap()

    def _body(self) -> None:
        # This thread sets `_started`, then checks `_given_up`. trio's thread sets `_given_up`, then checks `_started`.
        # Each thread sets its own flag before it checks the other's, so at least one of them sees the other's flag.
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
        """Await ``call``, which asks the client on behalf of this worker thread, and return the result. While this
        thread waits for the client, another worker thread may run."""
        self._slot.ask()
        try:
            return await call()
        finally:
            await self._slot.resume()

    def frames(self) -> list[tuple[FrameType, int]]:
        """Return the stack frames of the called function and its callees in the worker thread, outermost first.

        Return an empty list if the thread isn't in the function.
        """
        ident = self._ident
        if ident is None:
            return []
        frame = sys._current_frames().get(ident)  # pyright: ignore[reportPrivateUsage] - documented, for this purpose
        if frame is None or self._ident is None:  # the call has ended, and its thread may now do other work
            return []
        inside = list(takewhile(lambda one: one[0].f_code is not _BODY, traceback.walk_stack(frame)))
        return inside[-2::-1]  # omit the frame of `outcome.capture`

    def describe(self) -> str:
        """Return the name of the called function and its current position, for the log.

        Arguments aren't shown, because arguments may be private, and of any length.
        """
        function = getattr(self._call, "func", self._call)  # a `partial` has no name, so name the function inside
        name = getattr(function, "__qualname__", type(function).__qualname__)
        return f"{name}, at:\n{''.join(traceback.StackSummary.extract(self.frames()).format())}"


_BODY: Final = cast("Any", Work)._body.__code__
"""Code object of the frame in which the call begins. Frames outside of it belong to the thread, not to the call."""

_here: ContextVar[Work[Any]] = ContextVar("trio_mcp.worker")
"""Context variable with the `Work` that this worker thread runs, or for whose thread this task waits."""


def frames_of(task: trio.lowlevel.Task) -> Iterable[tuple[FrameType, int]]:
    """Return the stack frames of ``task``, for `traceback.StackSummary`.

    If the task waits for a worker thread, return the frames of that thread.
    """
    work = task.context.get(_here)
    return (work is not None and work.frames()) or task.iter_await_frames()


_LOGGED_LIMIT: Final = 10


class SlotState(IntEnum):
    """The states of a worker thread: not counted, running, waiting for a client's answer, or abandoned.

    The order is OUTSIDE, RUNNING, perhaps ASKING and RUNNING again, perhaps ABANDONED, OUTSIDE.
    """

    OUTSIDE = 0
    RUNNING = 1
    ASKING = 2
    ABANDONED = 3


class Workers:
    """The worker threads in which a server runs its synchronous handlers. The threads are shared by all callers.

    Up to ``running`` threads run. Up to ``asking`` more wait for an answer of their peer, so that a call that waits for
    a thread never waits for a client's user. Abandoned threads count separately: if there are ``abandoned`` of them, no
    other call gets a thread. Each caller has a `WorkerShare`, and so does each part of a caller. Callers take turns,
    and so do the parts of a caller within its turns.
    """

    def __init__(self, running: int, asking: int, abandoned: int) -> None:
        self._limits = {SlotState.RUNNING: running, SlotState.ASKING: asking, SlotState.ABANDONED: abandoned}
        self._counts = [0] * len(SlotState)
        self._shares = WeakValueDictionary[Caller, WorkerShare]()
        self.queue: dict[WorkerShare, None] = {}
        """Shares of whole callers that have waiting calls, in the order in which they are served."""
        self._abandoned_calls: dict[WorkerSlot, Work[Any]] = {}
        """Calls that still run in abandoned threads, by their slots."""
        self._has_logged = True
        """True if all calls in abandoned threads have been logged since the last thread was abandoned."""

    def share(self, caller: Caller) -> WorkerShare:
        """Return the object that counts and limits the worker threads of ``caller``.

        The same object is returned while anything, such as a thread, refers to it.
        """
        share = self._shares.get(caller)
        if share is None:
            share = WorkerShare(self, caller, None if caller.within is None else self.share(caller.within))
            self._shares[caller] = share
        return share

    def free(self, state: SlotState) -> int:
        """Return how many more worker threads may enter the state ``state``, for example RUNNING.

        The number is 0 or negative if the limit is reached.
        """
        return self._limits[state] - self._counts[state]

    def move(self, before: SlotState, after: SlotState) -> None:
        """Record that a worker thread has changed from the state ``before`` to the state ``after``."""
        self._counts[before] -= 1
        self._counts[after] += 1

    def wake_waiting(self) -> None:
        """Wake the calls that wait for a worker thread, as many as threads are free now. The callers take turns.

        One call of each caller is woken, then the next call of each caller.
        """
        found = True
        while found:
            found = False
            for share in tuple(self.queue):
                if self.free(SlotState.RUNNING) <= 0:
                    return
                if share.wake_next():
                    found = True
                    del self.queue[share]
                    if share.queue:
                        self.queue[share] = None

    def add_abandoned(self, slot: WorkerSlot, work: Work[Any]) -> None:
        """Record that the worker thread that ``slot`` counts is abandoned: it still runs ``work``, although the call
        was cancelled."""
        self._abandoned_calls[slot] = work
        self._has_logged = False

    def remove_abandoned(self, slot: WorkerSlot) -> None:
        """Forget an abandoned call, because its worker thread has ended. ``slot`` is the thread's slot in the thread
        limit."""
        self._abandoned_calls.pop(slot, None)

    def refusal(self) -> CodedError:
        """Return the error for a call that is refused because too many abandoned threads still run.

        Log where these threads are blocked, but only once until another thread is abandoned.
        """
        if not self._has_logged:
            self._has_logged = True
            most = Counter(work.describe() for work in self._abandoned_calls.values()).most_common(_LOGGED_LIMIT)
            logger.error(
                "plain def handlers are refused: %d threads that were abandoned still run (max_abandoned_threads: %d)."
                " They are in:\n%s",
                len(self._abandoned_calls),
                self._limits[SlotState.ABANDONED],
                "".join(f"{count} x {work}" for work, count in most),
            )
        return CodedError(TOO_BUSY, "Too busy: too many cancelled calls are still running; try again later")


class WorkerShare:
    """Limits how many worker threads the caller ``caller`` may use.

    Their number is limited so that enough threads are left for other callers. ``within`` is the share of the caller
    that ``caller`` belongs to, or `None`.
    """

    __slots__ = ("__weakref__", "_caller", "_counts", "_waiting", "_within", "queue", "workers")

    def __init__(self, workers: Workers, caller: Caller, within: WorkerShare | None = None) -> None:
        self.workers = workers
        self._caller = caller
        self._within = within
        self._counts = [0] * len(SlotState)
        self._waiting: dict[WorkerSlot, trio.lowlevel.Task] = {}
        """Tasks that wait for a worker thread, by their slots, oldest first."""
        self.queue: dict[WorkerShare, None] = {}
        """The shares within this share that have waiting calls, in the order in which they are served. Includes this
        share if its own calls wait."""

    def may_have(self, state: SlotState) -> bool:
        """Return true if the limits allow the caller one more worker thread in the state ``state``, for example
        RUNNING."""
        held, share = 0, self
        while share is not None:
            if not share._caller.alone:
                held += share._counts[state]
            share = share._within
        return leaves_enough(held, self.workers.free(state))

    def move(self, before: SlotState, after: SlotState) -> None:
        """Record that a worker thread of the caller has changed from the state ``before`` to the state ``after``.

        If a thread became free, waiting calls can run.
        """
        share: WorkerShare | None = self
        while share is not None:
            share._counts[before] -= 1
            share._counts[after] += 1
            share = share._within
        self.workers.move(before, after)
        if before is SlotState.RUNNING:
            self.workers.wake_waiting()

    def _enqueue(self) -> None:
        """Append this `WorkerShare` to the queue of shares with waiting calls, because it now has a waiting call.

        Also append each share that contains this share.
        """
        self.queue[self] = None
        share = self
        while share is not None and share not in (line := share._parent_queue()):
            line[share] = None
            share = share._within

    def _dequeue(self) -> None:
        """Remove this `WorkerShare` from the queue of shares with waiting calls, because it has no waiting call any
        more."""
        del self.queue[self]
        share = self
        while share is not None and not share.queue:
            del share._parent_queue()[share]
            share = share._within

    def _parent_queue(self) -> dict[WorkerShare, None]:
        return self.workers.queue if self._within is None else self._within.queue

    async def acquire(self, slot: WorkerSlot) -> None:
        """Wait until the worker thread that ``slot`` stands for may run.

        The threads of one caller run in the order in which they called this method. If a slot can run at once, no other
        task runs in between, so that threads start in the same order. Raises `CodedError` if ``slot`` is refused. Then,
        and after a cancelled wait, nothing has changed.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if not self._waiting and self.may_have(SlotState.RUNNING):
            slot.run()
            return

        def abort(_: Any) -> trio.lowlevel.Abort:
            del self._waiting[slot]
            if not self._waiting:
                self._dequeue()
            return trio.lowlevel.Abort.SUCCEEDED

        if not self._waiting:
            self._enqueue()
        self._waiting[slot] = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(abort)

    def wake_next(self) -> bool:
        """Of the caller's calls that wait for a worker thread, wake the oldest.

        Return false if no waiting call can run.
        """
        if not self.may_have(SlotState.RUNNING):
            return False
        for share in tuple(self.queue):
            if share is self:
                place = next(iter(self._waiting))
                trio.lowlevel.reschedule(self._waiting.pop(place), outcome.capture(place.run))
                waits = bool(self._waiting)
            elif share.wake_next():
                waits = bool(share.queue)
            else:
                continue
            del self.queue[share]
            if waits:
                self.queue[share] = None
            return True
        return False


class WorkerSlot:
    """Counts one worker thread towards the limits on threads, from its start to its end.

    An abandoned thread is counted until it ends. A `WorkerSlot` is passed to `trio.to_thread.run_sync` as its limiter.
    """

    __slots__ = ("_share", "_state", "released")

    def __init__(self, share: WorkerShare) -> None:
        self._share = share
        self._state = SlotState.OUTSIDE
        self.released = trio.Event()
        """Event that is set when the thread has ended and is no longer counted."""

    def _move(self, state: SlotState) -> None:
        before, self._state = self._state, state
        self._share.move(before, state)

    def run(self) -> None:
        """Count this worker thread as running.

        Raises `CodedError` if the thread must not start, because too many threads were abandoned.
        """
        if self._state is SlotState.OUTSIDE and not self._share.may_have(SlotState.ABANDONED):
            raise self._share.workers.refusal()
        self._move(SlotState.RUNNING)

    async def acquire_on_behalf_of(self, _: object) -> None:
        """Wait until the thread that is about to start may run.

        trio calls this method.
        """
        await self._share.acquire(self)

    def release_on_behalf_of(self, _: object) -> None:
        """Stop counting the worker thread that this slot stands for, because the thread has ended.

        trio calls this method.
        """
        self._share.workers.remove_abandoned(self)
        self._move(SlotState.OUTSIDE)
        self.released.set()

    def ask(self) -> None:
        """Stop counting this thread as running while it waits for the client's answer. Then another worker thread may
        run.

        Raises `CodedError` if too many threads wait.
        """
        if not self._share.may_have(SlotState.ASKING):
            raise CodedError(
                TOO_BUSY, "Too busy: too many handlers in threads wait for answers of clients; try again later"
            )
        self._move(SlotState.ASKING)

    async def resume(self) -> None:
        """Wait until the limits allow one more running thread, so that this thread may continue with the client's
        answer.

        A cancelled thread doesn't wait, because it is about to end.
        """
        await self._share.acquire(self)

    def abandon(self, work: Work[Any]) -> None:
        """Stop counting this thread as running, because its call ``work`` didn't end in time after a cancellation. Then
        another worker thread may run."""
        self._share.workers.add_abandoned(self, work)
        self._move(SlotState.ABANDONED)
