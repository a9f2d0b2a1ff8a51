"""UnreadableMessage: what a server sent that is no message."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import attrs

__all__ = ["UnreadableMessage", "UnreadableMessages"]

logger = logging.getLogger("trio_mcp")

_MOST_BYTES: Final = 2000


@attrs.frozen
class UnreadableMessage:
    """A line of a server, or a message of its WebSocket, that is no message of JSON-RPC."""

    reason: str
    """Why not, for people."""
    text: str
    """Its first 2,000 bytes; what is not UTF-8 there is replaced. Untrusted."""


class UnreadableMessages:
    """Counts them, and tells ``callback``."""

    def __init__(self, callback: Callable[[UnreadableMessage], None] | None) -> None:
        self.count = 0
        self._callback = callback

    def received(self, reason: str, line: bytes | bytearray) -> None:
        """Take note of one more, which begins with ``line``. Raises nothing."""
        self.count += 1
        if self._callback is not None:
            try:
                self._callback(UnreadableMessage(reason, line[:_MOST_BYTES].decode("utf-8", "replace")))
            except Exception:
                logger.exception("on_unreadable failed")
