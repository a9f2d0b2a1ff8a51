"""The garbage collector of a process that is a server and nothing else."""

from __future__ import annotations

import gc
from typing import Final

__all__ = ["quieten_collector"]

_PYTHONS_OWN_THRESHOLD: Final = 700
_THRESHOLD: Final = 10_000


def quieten_collector() -> None:
    """This process is the server, so it may be tuned for it: a short call takes at least a tenth less.

    What was imported stays as long as the process does, so the garbage collector need not look through it.
    And neither requests nor connections leave reference cycles behind (tests hold that), so looking for some after
    every few hundred objects finds nothing; an application's own setting is left alone.
    """
    gc.freeze()
    if gc.get_threshold()[0] == _PYTHONS_OWN_THRESHOLD:
        gc.set_threshold(_THRESHOLD, *gc.get_threshold()[1:])
