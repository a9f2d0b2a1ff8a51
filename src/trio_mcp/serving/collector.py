"""The garbage collector of a process that is a server and nothing else."""

from __future__ import annotations

import gc
from typing import Final

__all__ = ["quieten_collector"]

_PYTHONS_OWN_THRESHOLD: Final = 700
_THRESHOLD: Final = 10_000


def quieten_collector() -> None:
    """Tune the garbage collector for a process that is the server: a short call takes at least a tenth less time.

    What was imported stays as long as the process does, so the collector need not look through it. Neither requests nor
    connections leave reference cycles behind (tests hold that), so a collection after every few hundred objects finds
    nothing. An application's own threshold is left alone.
    """
    gc.freeze()
    if gc.get_threshold()[0] == _PYTHONS_OWN_THRESHOLD:
        gc.set_threshold(_THRESHOLD, *gc.get_threshold()[1:])
