"""Meanings of WebSocket close codes, for tasks that wait for the connection (RFC 6455 section 7.4.1)."""

from __future__ import annotations

from typing import Final

from ..runtime.channel import ConnectionLost

CLOSE_WAIT: Final = 0.5
"""Seconds that each side waits for the other's close frame."""

_MEANINGS: Final = {
    1000: "the peer closed the connection",
    1001: "the peer is going away",
    1002: "the peer found a protocol error",
    1003: "the peer takes no such data",
    1005: "the peer closed the connection without saying why",
    1006: "the connection was lost",
    1007: "the peer found text that is not UTF-8",
    1008: "the peer found its policy violated",
    1009: "the peer found a message too big",
    1011: "the peer failed",
    1012: "the peer restarts",
    1013: "the peer is too busy",
}


def closed_by_peer(code: int, reason: str | None) -> ConnectionLost:
    """Return the loss of a connection that the peer closed with ``code``, or that the peer vanished from (1006)."""
    words = f"{_MEANINGS.get(code, 'the peer closed the connection')} (close code {code})"
    return ConnectionLost(f"{words}: {reason}" if reason else words)


def closed_by_us(code: int, reason: str) -> ConnectionLost:
    """Return the loss of a connection that we close with ``code``, because of a fault of the peer."""
    return ConnectionLost(f"{reason} (close code {code})")
