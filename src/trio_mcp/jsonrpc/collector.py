"""collector_quiet switches the garbage collector off while many objects are made that are no garbage."""

from __future__ import annotations

import gc
from collections.abc import Generator

from .contexts import contextmanager

__all__ = ["collector_quiet"]


@contextmanager
def collector_quiet() -> Generator[None]:
    """Keep the garbage collector from looking again and again through the objects made inside: it would find nothing.

    The collector is switched off for the whole process, so nothing may be awaited inside. Where an application has
    switched it off, it stays off. When two threads are inside at once, it is on after both have left, and may already
    be on while the second is still inside.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
