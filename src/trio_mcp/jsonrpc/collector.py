"""The garbage collector, while much is made that is no garbage."""

from __future__ import annotations

import gc
from collections.abc import Generator

from .contexts import contextmanager

__all__ = ["collector_quiet"]


@contextmanager
def collector_quiet() -> Generator[None]:
    """Keep the garbage collector from looking through what is made inside, again and again: it finds nothing.

    It is for the whole process, so nothing may be awaited inside. Where an application has switched it off, it stays
    off. Two threads that are inside at once leave it on, and so, perhaps, one of them with it on before its end.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
