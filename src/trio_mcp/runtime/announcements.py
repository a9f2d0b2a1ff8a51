"""Announcements sends notifications of ours that belong to no request."""

from __future__ import annotations

from typing import Any, Final

from ..jsonrpc.codec import frame_notification
from .outbox import Outbox, Segment

_KEPT: Final = 10_000


class Announcements:
    """Puts notifications into ``outbox``, each notification once."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._waiting: dict[bytes, Segment] = {}
        """Segments by the line that each holds; some segments may be taken by now."""

    def put(self, method: str, params: dict[str, Any] | None = None) -> None:
        """Send a notification. Synchronous; raises `NotSerializable`.

        A notification that still waits to be written is not sent twice: a second copy would tell nothing new.
        """
        line = frame_notification(method, params) + b"\n"
        waiting = self._waiting.get(line)
        if waiting is not None and not waiting.taken:
            return
        if len(self._waiting) >= _KEPT:
            self._waiting = {key: segment for key, segment in self._waiting.items() if not segment.taken}
        self._waiting[line] = self._outbox.put_sealed(line)
