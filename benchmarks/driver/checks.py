"""Nothing may be lost, repeated, reordered or changed: what is, fails the run."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Mismatch", "Stuck", "check", "within"]


class Mismatch(Exception):
    """A peer sent something else than it had to."""


class Stuck(Exception):
    """What was waited for did not come: it was lost."""


def check(found: Any, expected: Any, what: str) -> None:
    """Raise `Mismatch` unless both are equal."""
    if found != expected:
        raise Mismatch(f"{what}: expected {expected!r:.300}, found {found!r:.300}")


@contextmanager
def within(seconds: float, what: str) -> Iterator[None]:
    """Raise `Stuck` when the body takes longer. A generous limit, so that a loss ends the run; no measure."""

    def expired(*_: object) -> None:
        raise Stuck(f"{what}: nothing came for {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, expired)
    outer, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, outer)
        signal.signal(signal.SIGALRM, before)
