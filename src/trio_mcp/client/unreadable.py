"""UnreadableMessage: output of a server that is no message."""

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
    """The reason, for people."""
    text: str
    """The first 2,000 bytes; bytes that are not UTF-8 are replaced. Untrusted."""


class UnreadableMessages:
    """Counts unreadable messages, and tells ``callback`` of each."""

    def __init__(self, callback: Callable[[UnreadableMessage], None] | None) -> None:
        self.count = 0
        self._callback = callback

    def received(self, reason: str, line: bytes | bytearray) -> None:
        """Count a message that begins with ``line``, and tell the callback. Raises nothing."""
        self.count += 1
        if self._callback is not None:
            try:
                self._callback(UnreadableMessage(reason, line[:_MOST_BYTES].decode("utf-8", "replace")))
            except Exception:
                logger.exception("on_unreadable failed")
