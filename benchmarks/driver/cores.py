"""Who runs where: the measured process on one core, the driver on another, where the machine has two."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["DRIVER_CORES", "MEASURED_CORES", "on_cores"]

_ALLOWED = sorted(os.sched_getaffinity(0))

MEASURED_CORES = frozenset(_ALLOWED[:1])
"""Where what is measured runs."""
DRIVER_CORES = frozenset(_ALLOWED[-1:])
"""Where the driver runs, and what else plays its part."""


@contextmanager
def on_cores(cores: frozenset[int]) -> Iterator[None]:
    """Inside, this process and the children it starts run on ``cores``."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
