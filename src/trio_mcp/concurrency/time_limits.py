"""Time limits that restart on progress, or pause while the user answers.

`Graces` limits how long cancelled calls can clean up before they are abandoned, and `growing_delay` returns how long to
wait before a retry.
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
    """A time limit of ``seconds`` for the cancel scope ``scope``, which can be paused and restarted.

    The limit can be paused and restarted, but the scope is cancelled at the time ``latest`` in any case.
    """

    def __init__(
        self, scope: trio.CancelScope, seconds: float, latest: float, outer_deadline: float, *, renewed: bool
    ) -> None:
        self.scope = scope
        self._seconds = self._left = seconds
        self._latest = latest
        self.never_after = min(latest, outer_deadline)
        """The latest time at which the limit can end, also because of the deadlines around it."""
        self._pauses = 0
        self.restarts_on_progress = renewed
        """True if progress notifications of calls inside the block restart the limit."""
        self.is_over = False
        """True if the limit's block has ended. Tasks that were started in the block may continue, but the limit no
        longer applies to them."""
        self.hint = ""
        """Text about a possible cause that is added to the error if the limit is reached."""
        self._run()

    def _run(self) -> None:
        self._due = trio.current_time() + self._left
        self.scope.deadline = min(self._due, self._latest)

    @property
    def deadline(self) -> float:
        """Time on trio's clock at which the scope is cancelled, unless the limit is restarted or paused before."""
        return self.scope.deadline

    def restart(self) -> None:
        """Restart the time limit, because a progress notification has arrived.

        Does nothing unless `restarts_on_progress` is true.
        """
        if self.restarts_on_progress:
            self._left = self._seconds
            if not self._pauses:
                self._run()

    def pause(self) -> None:
        """Pause the time limit until `resume` has been called as often as `pause`."""
        if not self._pauses:
            self._left = max(self._due - trio.current_time(), 0)
            self.scope.deadline = self._latest
        self._pauses += 1

    def resume(self) -> None:
        """Undo one call of `pause`.

        The time limit continues when all calls are undone.
        """
        self._pauses -= 1
        if not self._pauses:
            self._run()


class HandlerLimit(TimeLimit):
    """A time limit of ``seconds`` for a handler that runs in the cancel scope ``scope``.

    While the client's user is asked for input, the limit is paused, like the limit of a client's `fail_after_work`.
    """

    def __init__(self, seconds: float, outer: HandlerLimit | None = None) -> None:
        super().__init__(trio.CancelScope(), seconds, math.inf, math.inf, renewed=False)
        self.outer = outer
        """The time limit around this one, which pauses together with it. `None` for the outermost limit."""
        self._moved = trio.Event()

    @contextmanager
    def paused(self) -> Generator[None]:
        """Pause the time limit while the ``with`` block runs."""
        self.pause()
        try:
            with nullcontext() if self.outer is None else self.outer.paused():
                yield
        finally:
            self.resume()
            self._moved.set()

    async def wait_until_over(self) -> None:
        """Wait until the time limit has passed."""
        while trio.current_time() < self.deadline:
            self._moved = trio.Event()
            with trio.move_on_at(self.deadline):
                await self._moved.wait()


_limits: ContextVar[tuple[TimeLimit, ...]] = ContextVar("trio_mcp.time_limits", default=())


def call_limits() -> tuple[TimeLimit, ...]:
    """Return the time limits that apply to a call made now in this task."""
    limits = _limits.get()
    return tuple(limit for limit in limits if not limit.is_over) if limits else ()


def latest_deadline() -> float:
    """Return the time on trio's clock at which a call that this task begins now is cancelled at the latest.

    Return `math.inf` if no limit applies. For a limit that restarts or pauses, its maximum counts.
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
    """Limit how long calls in the ``with`` block may take without a progress notification.

    Each progress notification restarts the limit. Like `trio.fail_after`, but only ``seconds`` without any progress
    count. The block never takes longer than ``maximum`` seconds, whatever the server reports (2025-11-25 lifecycle,
    Timeouts). The calls request progress automatically, so you don't need a callback. Time in which your user is asked
    doesn't count as silence (see `fail_after_work`), but it counts for ``maximum``. Limits can be nested.

        with fail_after_silence(5, maximum=600):
            await client.call_tool("index", {"path": "."})

    Raises `trio.TooSlowError` when the time is over, and `ValueError` if a time is negative or NaN.
    """
    if not (seconds >= 0 and maximum >= 0):
        raise ValueError(f"a time limit must not be negative or NaN: seconds={seconds}, maximum={maximum}")
    with _limited(seconds, trio.current_time() + maximum, renewed=True) as scope:
        yield scope


@contextmanager
def fail_after_work(seconds: float) -> Generator[trio.CancelScope]:
    """Limit the time of the ``with`` block. The time in which your user answers the server's requests doesn't count.

    Like `trio.fail_after`, but the limit pauses while an elicitation handler runs for these calls, while a sampling
    handler asks the user (`ClientSettings.sampling_asks_user`), and while the user signs in, even if a client is being
    opened inside. A request of a legacy server doesn't name the call that it belongs to, so the limits of all calls in
    flight on the connection pause.

    The default limit of a client, ``call_timeout``, works the same way. For calls inside this limit or
    `fail_after_silence`, these limits replace the default. Limits can be nested.

    Raises `trio.TooSlowError` when the time is over, and `ValueError` if the time is negative or NaN.
    """
    if not seconds >= 0:
        raise ValueError(f"a time limit must not be negative or NaN: {seconds}")
    with _limited(seconds, math.inf, renewed=False) as scope:
        yield scope


@contextmanager
def _limited(seconds: float, latest: float, *, renewed: bool) -> Generator[trio.CancelScope]:
    around = latest_deadline()  # don't use trio's effective deadline, because outer time limits can move
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
    """Limits the time for the cleanup of cancelled calls, for all calls of one connection.

    Each call gets ``seconds`` for its cleanup, until `shorten` reduces this time.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._scopes: set[trio.CancelScope] = set()

    def shorten(self, seconds: float) -> None:
        """From now on, allow at most ``seconds`` for cleanup, even for blocks that are already cleaning up."""
        self.seconds = min(self.seconds, seconds)
        end = trio.current_time() + self.seconds
        for scope in self._scopes:
            scope.deadline = min(scope.deadline, end)

    def shield(self, scope: trio.CancelScope) -> None:
        """Shield the running block of ``scope`` from cancellation until the cleanup time is over.

        Then cancel the block.
        """
        scope.shield, scope.deadline = True, trio.current_time() + self.seconds
        self._scopes.add(scope)

    def unshield(self, scope: trio.CancelScope) -> None:
        """Stop limiting the cleanup in ``scope``, because its block has ended."""
        self._scopes.discard(scope)

    @contextmanager
    def grace(self) -> Generator[None]:
        """Shield the ``with`` block from cancellation until the cleanup time is over.

        Then cancel the block.
        """
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
    """Return for how many seconds to wait before the next retry. The delay grows with each attempt.

    ``attempt`` is the number of the retry, counted from 1. The delay is ``first``, and doubles each time, up to
    ``longest``. Each delay is shortened by up to the fraction ``jitter`` of itself, so that peers that failed together
    don't return together. ``random`` returns numbers from 0 to 1.
    """
    delay = min(first * 2.0 ** min(attempt - 1, _LARGEST_EXPONENT), longest)
    return delay * (1 - jitter * random())
