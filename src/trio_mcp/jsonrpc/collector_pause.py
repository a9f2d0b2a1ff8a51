"""CollectorPause keeps the garbage collector off while many objects are made that are no garbage."""

from __future__ import annotations

import gc
from types import TracebackType


class CollectorPause:
    """Keep the garbage collector from repeatedly searching the objects made inside, without finding anything.

    The collector is switched off for the whole process, so nothing may be awaited inside. A collector that an
    application has switched off stays off. With two threads inside at once, the collector is on after both have left,
    and may already be on while the second is still inside.
    """

    __slots__ = ("_was_on",)

    def __enter__(self) -> None:
        self._was_on = gc.isenabled()
        gc.disable()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._was_on:
            gc.enable()
