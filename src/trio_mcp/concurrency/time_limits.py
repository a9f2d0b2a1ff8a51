"""Time limits that depend on the calls inside: the limits start anew, or pause.

Besides, `Graces` bounds how long cancelled calls may clean up before being abandoned, and `growing_delay` says how long
to wait before a retry.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Generator
from contextlib import nullcontext
from contextvars import ContextVar
from typing import Final

import trio

from .contexts import contextmanager


class TimeLimit:
    """A limit of ``seconds`` for ``scope``. Its clock can be stopped, but the limit ends at ``latest`` all the same."""

    def __init__(
        self, scope: trio.CancelScope, seconds: float, latest: float, outer_deadline: float, *, renewed: bool
    ) -> None:
        self._scope = scope
        self._seconds = self._left = seconds
        self._latest = latest
        self.never_after = min(latest, outer_deadline)
        """Time that the deadline, and the deadlines around it, never exceed."""
        self._pauses = 0
        self.restarts_on_progress = renewed
        """True when progress of the calls inside starts the limit anew."""
        self.is_over = False
        """True once its block was left. Tasks started inside may live on, but the limit holds for them no more."""
        self.hint = ""
        """Text about a possible cause, for the error when the limit is reached."""
        self._run()

    def _run(self) -> None:
        self._due = trio.current_time() + self._left
        self._scope.deadline = min(self._due, self._latest)

    @property
    def deadline(self) -> float:
        """Time of `trio.current_time` at which the limit is over, unless it moves before."""
        return self._scope.deadline

    def restart(self) -> None:
        """Start anew, if the limit does so, since progress has arrived."""
        if self.restarts_on_progress:
            self._left = self._seconds
            if not self._pauses:
                self._run()

    def pause(self) -> None:
        """Stop the clock, until `resume` was called as many times."""
        if not self._pauses:
            self._left = max(self._due - trio.current_time(), 0)
            self._scope.deadline = self._latest
        self._pauses += 1

    def resume(self) -> None:
        """Undo one `pause`."""
        self._pauses -= 1
        if not self._pauses:
            self._run()


class HandlerLimit:
    """A limit of ``seconds`` for the code that runs in ``scope``. The limit stands still while the user of the client
    is asked, as a client's own limits do (`fail_after_work`)."""

    def __init__(self, seconds: float, outer: HandlerLimit | None = None) -> None:
        self.scope = trio.CancelScope()
        self.outer = outer
        """The limit around this limit, which stands still with it; `None` for the outermost."""
        self._limit = TimeLimit(self.scope, seconds, math.inf, math.inf, renewed=False)
        self._moved = trio.Event()

    @property
    def deadline(self) -> float:
        """Time of `trio.current_time` at which the limit is over, unless the user is asked before."""
        return self._limit.deadline

    @contextmanager
    def paused(self) -> Generator[None]:
        """Stop the clock of the limit while the block runs."""
        self._limit.pause()
        try:
            with nullcontext() if self.outer is None else self.outer.paused():
                yield
        finally:
            self._limit.resume()
            self._moved.set()

    async def wait_until_over(self) -> None:
        """Wait until the limit is over."""
        while trio.current_time() < self.deadline:
            self._moved = trio.Event()
            with trio.move_on_at(self.deadline):
                await self._moved.wait()


_limits: ContextVar[tuple[TimeLimit, ...]] = ContextVar("trio_mcp.time_limits", default=())


def call_limits() -> tuple[TimeLimit, ...]:
    """Return the limits that hold for a call made here and now."""
    limits = _limits.get()
    return tuple(limit for limit in limits if not limit.is_over) if limits else ()


def latest_deadline() -> float:
    """Return the latest time at which a call made here and now is left, if certain, else `math.inf`.

    A limit that starts anew or pauses counts with its maximum.
    """
    deadline = trio.current_effective_deadline()
    if not _limits.get():
        return deadline
    limits = call_limits()
    if all(deadline < limit.deadline for limit in limits):
        return deadline
    return min(limit.never_after for limit in limits)


@contextmanager
def fail_after_silence(seconds: float, *, maximum: float) -> Generator[trio.CancelScope]:
    """Limit the time of the block; the limit starts anew with each progress notification of the calls inside.

    Like `trio.fail_after`, but only ``seconds`` without any progress count, and ``maximum`` seconds are never
    exceeded, whatever the peer reports (2025-11-25 lifecycle, Timeouts). The calls ask for progress by
    themselves; no callback is needed. While our user is asked in the course of a call, as `fail_after_work`
    says, silence does not count, but ``maximum`` holds. Limits nest.

        with fail_after_silence(5, maximum=600):
            await client.call_tool("index", {"path": "."})

    Raises `trio.TooSlowError` when the time is over, and `ValueError` for what is no time.
    """
    if not (seconds >= 0 and maximum >= 0):
        raise ValueError(f"a time limit is not negative: {seconds}, {maximum}")
    with _limited(seconds, trio.current_time() + maximum, renewed=True) as scope:
        yield scope


@contextmanager
def fail_after_work(seconds: float) -> Generator[trio.CancelScope]:
    """Limit the time of the block; the limit pauses while our user is asked in the course of the calls inside.

    Like `trio.fail_after`, but the time of elicitation handlers for these calls does not count, nor the time of
    sampling handlers that ask the user (`ClientSettings.sampling_asks_user`), nor the time in which the user signs in,
    also while a client is being opened inside. A legacy server does not say which call a
    question belongs to, so the limits of all calls in flight on the connection pause. The default limit of a client,
    ``call_timeout``, works the same way; for calls inside this limit or `fail_after_silence`, these replace the
    default. Limits nest.

    Raises `trio.TooSlowError` when the time is over, and `ValueError` for an invalid time.
    """
    if not seconds >= 0:
        raise ValueError(f"a time limit is not negative: {seconds}")
    with _limited(seconds, math.inf, renewed=False) as scope:
        yield scope


@contextmanager
def _limited(seconds: float, latest: float, *, renewed: bool) -> Generator[trio.CancelScope]:
    around = latest_deadline()  # not the effective deadline: a limit around this one may move its own
    scope = trio.CancelScope()
    limit = TimeLimit(scope, seconds, latest, around, renewed=renewed)
    with scope:
        token = _limits.set((*_limits.get(), limit))
        try:
            yield scope
        finally:
            _limits.reset(token)
            limit.is_over = True
    if scope.cancelled_caught:
        raise trio.TooSlowError(f"the time is over: {seconds:g} s{limit.hint}") if limit.hint else trio.TooSlowError


class Graces:
    """The graces of one connection, each of ``seconds``, or of less once `shorten` was called."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._scopes: set[trio.CancelScope] = set()

    def shorten(self, seconds: float) -> None:
        """Give at most ``seconds`` from now on, also to blocks whose grace has begun."""
        self.seconds = min(self.seconds, seconds)
        end = trio.current_time() + self.seconds
        for scope in self._scopes:
            scope.deadline = min(scope.deadline, end)

    def shield(self, scope: trio.CancelScope) -> None:
        """Shield ``scope``, whose block runs already, from cancels for as long as the grace lasts; the block is left
        then."""
        scope.shield, scope.deadline = True, trio.current_time() + self.seconds
        self._scopes.add(scope)

    def unshield(self, scope: trio.CancelScope) -> None:
        """Note that the block of ``scope`` was left."""
        self._scopes.discard(scope)

    @contextmanager
    def grace(self) -> Generator[None]:
        """Shield the block from cancels for as long as the grace lasts; then leave it."""
        with trio.CancelScope() as scope:
            self.shield(scope)
            try:
                yield
            finally:
                self.unshield(scope)


_LARGEST_EXPONENT: Final = 64


def growing_delay(
    attempt: int,
    *,
    first: float = 1.0,
    longest: float = 30.0,
    jitter: float = 0.5,
    random: Callable[[], float] = random.random,
) -> float:
    """Return the seconds to wait before ``attempt``, which counts from 1.

    The delay is ``first``, then twice as long each time, up to ``longest``. Each delay is shorter by up to ``jitter``,
    a share of itself, so that peers that failed together do not return together. ``random`` gives numbers from 0 to 1.
    """
    delay = min(first * 2.0 ** min(attempt - 1, _LARGEST_EXPONENT), longest)
    return delay * (1 - jitter * random())
