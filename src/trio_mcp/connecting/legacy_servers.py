"""LegacyServers remembers which servers have turned out to be legacy ones, so that they are not asked again."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

__all__ = ["LegacyServers"]

_MOST_KNOWN: Final = 256


class LegacyServers:
    """The latest 256 servers that were legacy ones the last time, for the life of the process (2026-07-28 versioning:
    clients SHOULD cache the result)."""

    def __init__(self) -> None:
        self._known: dict[Hashable, None] = {}

    def holds(self, server: Hashable) -> bool:
        """Return whether ``server`` was a legacy one."""
        return server in self._known

    def note(self, server: Hashable, *, is_legacy: bool) -> None:
        """Note the era of ``server``."""
        self._known.pop(server, None)
        if is_legacy:
            self._known[server] = None
            if len(self._known) > _MOST_KNOWN:
                del self._known[next(iter(self._known))]
