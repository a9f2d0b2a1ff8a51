"""Time limits that know about the calls inside: they start anew, and they stand still."""

from __future__ import annotations

import math
from collections.abc import Generator
from contextvars import ContextVar

import trio

from ..jsonrpc.contexts import contextmanager

__all__ = ["TimeLimit", "call_limits", "fail_after_silence", "fail_after_work", "last_deadline"]


class TimeLimit:
    """A limit of ``seconds`` for ``scope``. Its clock can be stopped; ``latest`` is kept to all the same."""

    def __init__(self, scope: trio.CancelScope, seconds: float, latest: float, around: float, *, renewed: bool) -> None:
        self._scope = scope
        self._seconds = self._left = seconds
        self._latest = latest
        self.never_after = min(latest, around)
        """What its deadline, and those around it, never exceed."""
        self._pauses = 0
        self.renewed = renewed
        """Progress of the calls inside starts it anew."""
        self.over = False
        """Its block was left. Tasks started inside may live on, and do not stand under it any more."""
        self._run()

    def _run(self) -> None:
        self._due = trio.current_time() + self._left
        self._scope.deadline = min(self._due, self._latest)

    @property
    def deadline(self) -> float:
        """When it is over, unless it moves before."""
        return self._scope.deadline

    def heard(self) -> None:
        """Progress has arrived."""
        if self.renewed:
            self._left = self._seconds
            if not self._pauses:
                self._run()

    def pause(self) -> None:
        """Stop its clock, until `resume` was called as many times."""
        if not self._pauses:
            self._left = max(self._due - trio.current_time(), 0)
            self._scope.deadline = self._latest
        self._pauses += 1

    def resume(self) -> None:
        """Undo one `pause`."""
        self._pauses -= 1
        if not self._pauses:
            self._run()


_limits: ContextVar[tuple[TimeLimit, ...]] = ContextVar("trio_mcp.time_limits", default=())


def call_limits() -> tuple[TimeLimit, ...]:
    """The limits that a call made here and now stands under."""
    limits = _limits.get()
    return tuple(limit for limit in limits if not limit.over) if limits else ()


def last_deadline() -> float:
    """When a call made here and now is left at the latest, as far as that is certain; `math.inf` when it is not.

    A limit that starts anew or stands still counts with what it never exceeds.
    """
    deadline, limits = trio.current_effective_deadline(), call_limits()
    if not limits or all(deadline < limit.deadline for limit in limits):
        return deadline
    return min(limit.never_after for limit in limits)


@contextmanager
def fail_after_silence(seconds: float, *, maximum: float) -> Generator[trio.CancelScope]:
    """A time limit that starts anew with each progress notification of the calls inside.

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
    """A time limit that stands still while our user is asked in the course of the calls inside.

    Like `trio.fail_after`, but the time that elicitation handlers take for these calls does not count, nor that of
    sampling handlers which ask the user (`ClientSettings.sampling_asks_user`). Legacy servers do not say for which call
    they ask; there the limits of all calls in flight on that connection stand still. The default limit of a client,
    ``call_timeout``, is one of these, and calls inside of this one or of `fail_after_silence` stand under it instead.
    Limits nest.

    Raises `trio.TooSlowError` when the time is over, and `ValueError` for what is no time.
    """
    if not seconds >= 0:
        raise ValueError(f"a time limit is not negative: {seconds}")
    with _limited(seconds, math.inf, renewed=False) as scope:
        yield scope


@contextmanager
def _limited(seconds: float, latest: float, *, renewed: bool) -> Generator[trio.CancelScope]:
    around = trio.current_effective_deadline()
    with trio.CancelScope() as scope:
        limit = TimeLimit(scope, seconds, latest, around, renewed=renewed)
        token = _limits.set((*_limits.get(), limit))
        try:
            yield scope
        finally:
            _limits.reset(token)
            limit.over = True
    if scope.cancelled_caught:
        raise trio.TooSlowError
