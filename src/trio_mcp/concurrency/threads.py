"""Call functions in trio's thread from any other thread.

State that tasks share belongs to one trio run. A change from another thread could happen between two steps of a task,
and couldn't wake tasks. A `TrioRun` represents a trio run, and `current_run` returns the current one. `ActiveRuns`
holds the runs that currently use an object.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator
from contextvars import ContextVar, copy_context
from functools import partial, wraps
from threading import get_ident
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, Protocol, TypeVar

import outcome
import trio

from .contexts import contextmanager

P = ParamSpec("P")
T = TypeVar("T")


if TYPE_CHECKING:
    from .asyncio_thread import LoopCalls

loop_calls: ContextVar[LoopCalls] = ContextVar("trio_mcp.loop_calls")
"""Context variable with the `LoopCalls` through which the current asyncio task and its child tasks call into trio: see
`loop_calls_here`."""


def loop_calls_here() -> LoopCalls | None:
    """Return the `LoopCalls` of the current asyncio task, if an `AsyncioThread` runs this task.

    Return `None` anywhere else, even in a thread to which context variables were copied.
    """
    calls = loop_calls.get(None)
    return calls if calls is not None and calls.is_here else None


CALL_TIMEOUT: Final = 10.0
"""Seconds that a thread waits for trio's thread to begin a call."""


class TrioRun:
    """Represents one call of `trio.run`.

    Its methods call functions in trio's thread, from any thread. `current_run` creates it.
    """

    __slots__ = ("_ident", "_token")

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._ident = get_ident()

    @property
    def is_here(self) -> bool:
        """True if the current code runs in the thread of this trio run."""
        return get_ident() == self._ident

    @property
    def is_current(self) -> bool:
        """True if the current code runs in a task of this trio run."""
        if get_ident() != self._ident or not trio.lowlevel.in_trio_run():
            return False
        # Compare the tokens of the trio runs, because a later trio run may use the same thread.
        return trio.lowlevel.current_trio_token() is self._token

    def call(self, call: Callable[[], T], *, wait_forever: bool = False) -> T:
        """Run ``call`` in trio's thread, and return its result.

        In any other thread, this method blocks until ``call`` has ended.

        Raises the exceptions of ``call``, and `trio.RunFinishedError` after the end of the run. Raises `RuntimeError`
        if trio's thread doesn't begin the call within 10 seconds, for example because it waits for this thread. The
        call is then never made. ``wait_forever``: wait without a time limit, in a thread that trio's thread never waits
        for.
        """
        if self.is_here:
            return call()
        waiting = _ThreadCall(call)
        self._token.run_sync_soon(waiting.run)
        return waiting.wait(None if wait_forever else CALL_TIMEOUT)

    def call_soon(self, call: Callable[..., object], *args: Any, idempotent: bool = False) -> bool:
        """Run ``call`` in the trio run soon, without waiting for it.

        If the current code already runs in the trio run, run ``call`` at once. ``call`` must not raise.

        ``idempotent``: equal calls that still wait are made only once. Returns false after the end of the run.
        """
        if self.is_current:
            call(*args)
            return True
        try:
            self._token.run_sync_soon(call, *args, idempotent=idempotent)
        except trio.RunFinishedError:
            return False
        return True

    def check(self, what: str) -> None:
        """Raise `RuntimeError` if called outside trio's thread.

        ``what`` describes, for the error message, the object that is about to be used.
        """
        if get_ident() != self._ident:
            raise RuntimeError(
                f"{what} belongs to a trio.run in another thread, and can only be used there: write "
                "trio.from_thread.run(function, trio_token=token), with the trio.lowlevel.current_trio_token() of "
                "that trio.run"
            )


class _ThreadCall(Generic[T]):
    """A call that another thread makes in trio's thread. The other thread waits for the result.

    The call is made at most once, and not after the waiting thread has given up.
    """

    __slots__ = ("_call", "_context", "_outcomes", "_turn")

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._context = copy_context()
        self._turn = threading.Lock()
        """A lock that is acquired once: either when the call begins, or when the thread stops waiting."""
        self._outcomes = queue.SimpleQueue[outcome.Outcome[T]]()

    def run(self) -> None:
        if self._turn.acquire(blocking=False):
            self._outcomes.put(outcome.capture(self._context.run, self._call))

    def wait(self, timeout: float | None) -> T:
        try:
            end = self._outcomes.get(timeout=timeout)
        except BaseException as error:
            has_begun = not self._turn.acquire(blocking=False)
            if not isinstance(error, queue.Empty):  # an interrupt
                raise
            if not has_begun:
                raise RuntimeError(
                    f"trio's thread did not begin this call within {timeout:g} s, so the call was not made: a trio "
                    "task waits for this thread without await. In that task, write await trio.to_thread.run_sync(...)"
                ) from None
            end = self._outcomes.get()
        try:
            return end.unwrap()
        finally:
            del end  # break the reference cycle: an exception's traceback refers to this frame


_current: Final = trio.lowlevel.RunVar[TrioRun]("trio_mcp.run")


def current_run() -> TrioRun:
    """Return the current trio run.

    Raises `RuntimeError` outside trio.
    """
    try:
        return _current.get()
    except LookupError:
        run = TrioRun()
        _current.set(run)
        return run


class ActiveRuns:
    """The trio runs in which an object, such as a server, is used at the moment."""

    def __init__(self) -> None:
        self._runs: list[TrioRun] = []
        self._lock = threading.RLock()

    @contextmanager
    def register(self) -> Generator[None]:
        """Inside the ``with`` block, the current trio run uses the object, and other threads can find this trio run."""
        run = current_run()
        with self._lock:  # wait while `call_in_run` changes the object in another thread
            self._runs.append(run)
        try:
            yield
        finally:
            self._leave(run)

    def _leave(self, run: TrioRun) -> None:
        with self._lock:
            if run in self._runs:
                self._runs.remove(run)

    def call_in_run(self, change: Callable[[], T]) -> T:
        """Call ``change``, a function that changes a server, in the thread of the trio run that uses the server.

        If no trio run uses the server, call ``change`` in this thread. Return the result of ``change``, or raise its
        exception. See `TrioRun.call`.

        Raises `RuntimeError`, without any change, while runs in two threads use the server.
        """
        while True:
            with self._lock:
                runs = set(self._runs)
                if not runs:
                    return change()
            run, *others = runs
            if others:
                raise RuntimeError(
                    "this server can't be changed, because two threads serve it, each with its own trio.run: "
                    "create one server for each thread"
                )
            try:
                return run.call(change)
            except trio.RunFinishedError:  # this trio run has just ended, or has crashed
                if run.is_here:
                    raise
                self._leave(run)


class HasActiveRuns(Protocol):
    """Interface of objects, such as servers, that record which trio runs use them."""

    @property
    def _active_runs(self) -> ActiveRuns:
        """The trio runs in which this object is used at the moment."""
        ...


H = TypeVar("H", bound=HasActiveRuns)


def in_active_run(method: Callable[Concatenate[H, P], T]) -> Callable[Concatenate[H, P], T]:
    """Decorator for a method that must run in the trio run that uses its object: see `ActiveRuns.call_in_run`."""

    @wraps(method)
    def change(self: H, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._active_runs.call_in_run(partial(method, self, *args, **kwargs))

    return change
