"""Growing delays for retries after failures."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

_LARGEST_EXPONENT: Final = 64


def growing_delay(
    attempt: int, *, first: float, longest: float, jitter: float, random: Callable[[], float] = random.random
) -> float:
    """Return the seconds to wait before ``attempt``, which counts from 1.

    The delay is ``first``, then twice as long each time, up to ``longest``. Each delay is shorter by up to ``jitter``,
    a share of itself, so that peers that failed together do not return together. ``random`` gives numbers from 0 to 1.
    """
    delay = min(first * 2.0 ** min(attempt - 1, _LARGEST_EXPONENT), longest)
    return delay * (1 - jitter * random())
