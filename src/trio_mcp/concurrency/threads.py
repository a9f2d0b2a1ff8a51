"""Calls from any thread into the thread in which trio runs.

What tasks share belongs to one run of trio: a change from another thread would come between two steps of a task, and
could wake none. A `TrioRun` is such a run, and `present_run` the one that the code runs in; a `Home` has the runs that
use a thing now.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator
from contextvars import copy_context
from functools import partial, wraps
from threading import get_ident
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, TypeVar

import outcome
import trio

from .contexts import contextmanager

P = ParamSpec("P")
T = TypeVar("T")

PATIENCE: Final = 10.0
"""Seconds that a thread waits for trio's thread to begin a call."""


class TrioRun:
    """One run of trio, and the way into its thread. Made by `present_run`. Methods may be called from any thread."""

    __slots__ = ("_ident", "_token")

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._ident = get_ident()

    @property
    def is_here(self) -> bool:
        """True in the thread of the run."""
        return get_ident() == self._ident

    @property
    def is_present(self) -> bool:
        """True where `present_run` returns this run."""
        if get_ident() != self._ident or not trio.lowlevel.in_trio_run():
            return False
        return trio.lowlevel.current_trio_token() is self._token  # and not a later run in a thread of the same number

    def call(self, call: Callable[[], T], *, patiently: bool = False) -> T:
        """Return what ``call`` returns, or raise what it raises, in trio's thread. Any other thread waits for that.

        Raises `trio.RunFinishedError` after the end of the run, and `RuntimeError` when trio's thread does not begin
        the call within 10 seconds, because it waits for this thread for example. The call never takes place then.
        ``patiently``: wait without a bound, in a thread that trio's thread never waits for.
        """
        if self.is_here:
            return call()
        waiting = _Waiting(call)
        self._token.run_sync_soon(waiting.run)
        return waiting.end(None if patiently else PATIENCE)

    def soon(self, call: Callable[..., object], *args: Any, idempotent: bool = False) -> bool:
        """Call ``call``, which raises nothing, in the run: now in the run itself, soon from anywhere else. Never waits.

        ``idempotent``: one call stands for all equal ones that wait. Return false after the end of the run.
        """
        if self.is_present:
            call(*args)
            return True
        try:
            self._token.run_sync_soon(call, *args, idempotent=idempotent)
        except trio.RunFinishedError:
            return False
        return True

    def check(self, what: str) -> None:
        """Raise `RuntimeError` in the thread of another run, before ``what`` is used in a task there."""
        if get_ident() != self._ident:
            raise RuntimeError(
                f"{what} belongs to the run of trio in another thread, and can be awaited only there: "
                "write trio.from_thread.run(function, trio_token=token), with the trio.lowlevel.current_trio_token() "
                "of that run"
            )


class _Waiting(Generic[T]):
    """A call that a thread waits for. It takes place at most once, and not at all after the thread has left."""

    __slots__ = ("_call", "_context", "_ends", "_turn")

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._context = copy_context()
        self._turn = threading.Lock()
        """Lock that is taken once, by the side that is first: the call, or the thread that leaves."""
        self._ends = queue.SimpleQueue[outcome.Outcome[T]]()

    def run(self) -> None:
        if self._turn.acquire(blocking=False):
            self._ends.put(outcome.capture(self._context.run, self._call))

    def end(self, patience: float | None) -> T:
        try:
            end = self._ends.get(timeout=patience)
        except BaseException as error:
            has_begun = not self._turn.acquire(blocking=False)
            if not isinstance(error, queue.Empty):  # an interrupt
                raise
            if not has_begun:
                raise RuntimeError(
                    f"trio's thread has not begun this call for {patience:g} s, and it was given up: a task there "
                    "waits for this thread without await. Write await trio.to_thread.run_sync(...) in that task"
                ) from None
            end = self._ends.get()
        try:
            return end.unwrap()
        finally:
            del end  # the traceback of an exception refers to this frame


_present: Final = trio.lowlevel.RunVar[TrioRun]("trio_mcp.run")


def present_run() -> TrioRun:
    """Return the run of trio that this code runs in. Raises `RuntimeError` elsewhere."""
    try:
        return _present.get()
    except LookupError:
        run = TrioRun()
        _present.set(run)
        return run


class Home:
    """The runs of trio in which a thing is used now; there are none before and after."""

    def __init__(self) -> None:
        self._runs: list[TrioRun] = []
        self._lock = threading.RLock()

    @contextmanager
    def entered(self) -> Generator[None]:
        """Note that the present run uses the thing inside."""
        run = present_run()
        with self._lock:  # no change is half done
            self._runs.append(run)
        try:
            yield
        finally:
            self._leave(run)

    def _leave(self, run: TrioRun) -> None:
        with self._lock:
            if run in self._runs:
                self._runs.remove(run)

    def change(self, change: Callable[[], T]) -> T:
        """Return what ``change`` returns, or raise what it raises: in the thread of the run that uses the thing, and
        right here while none does. See `TrioRun.call`.

        Raises `RuntimeError`, with nothing changed, while runs in two threads use the thing.
        """
        while True:
            with self._lock:
                runs = set(self._runs)
                if not runs:
                    return change()
            run, *others = runs
            if others:
                raise RuntimeError(
                    "this is served in two threads, each with its own run of trio, and cannot be changed meanwhile: "
                    "make one server for each thread"
                )
            try:
                return run.call(change)
            except trio.RunFinishedError:  # it has crashed, or ended just now
                if run.is_here:
                    raise
                self._leave(run)


class HasHome(Protocol):
    """A thing that is used in runs of trio."""

    @property
    def home(self) -> Home:
        """The runs in which the thing is used."""
        ...


H = TypeVar("H", bound=HasHome)


def changes_home(method: Callable[Concatenate[H, P], T]) -> Callable[Concatenate[H, P], T]:
    """Decorate a method that changes a thing with a `Home`: see `Home.change`."""

    @wraps(method)
    def change(self: H, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.home.change(partial(method, self, *args, **kwargs))

    return change
