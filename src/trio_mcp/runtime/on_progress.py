"""Progress: the reports that a caller's callback gets while the call goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import attrs


@attrs.frozen
class Progress:
    """The progress of a call: ``progress`` only grows, ``total`` is in the same unit, ``message`` is for people."""

    progress: float
    total: float | None = None
    message: str | None = None


OnProgress: TypeAlias = Callable[[Progress], Awaitable[None] | None]
"""Callback that runs in the caller's own task, in wire order, before the call returns. May be async."""
