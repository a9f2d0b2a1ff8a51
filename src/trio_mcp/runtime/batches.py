"""The replies to one batch, which go out together in one array (JSON-RPC 2.0, section 6)."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["BatchReplies"]


class BatchReplies:
    """Collects the reply lines of ``members`` members and gives them to ``send`` when the last is settled."""

    def __init__(self, members: int, send: Callable[[bytes], None]) -> None:
        self._open = members
        self._lines: list[bytes] = []
        self._send = send

    def settle(self, line: bytes | None) -> None:
        """Note that one member is done, with this reply line or, as notifications and cancelled requests, without."""
        self._open -= 1
        if line is not None:
            self._lines.append(line.rstrip(b"\n"))
        if self._open == 0 and self._lines:
            self._send(b"[" + b",".join(self._lines) + b"]\n")
