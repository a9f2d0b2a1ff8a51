"""Runs of a program in an order of its tasks that a seed decides."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio
from trio._core import _run as internals

__all__ = ["run_in_order_of"]

T = TypeVar("T")


def run_in_order_of(seed: int, program: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
    """What ``program`` returns. ``seed`` decides which ready task runs first, and the jitter of delays; ``options`` are
    for `trio.run`."""
    before = internals._r.getstate(), internals._ALLOW_DETERMINISTIC_SCHEDULING, random.getstate()
    internals._r.seed(seed)
    random.seed(seed)
    internals._ALLOW_DETERMINISTIC_SCHEDULING = True
    try:
        return trio.run(program, *args, **options)
    finally:
        internals._r.setstate(before[0])
        internals._ALLOW_DETERMINISTIC_SCHEDULING = before[1]
        random.setstate(before[2])
