"""SilentLog: a log that sends nothing."""

from __future__ import annotations

from typing import Any

import trio

from ...runtime.requests.logs import RequestLog


class SilentLog(RequestLog):
    """A log that sends nothing."""

    __slots__ = ()

    def __init__(self) -> None:
        pass

    async def _log(self, level: str, rank: int, data: Any, logger: str | None) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()

    def log_nowait(self, level: str, data: Any, logger: str | None = None) -> bool:
        """Send nothing, and return `False`."""
        return False
