"""ProgressReporter: at most one notification per interval, the latest value never lost."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from ..jsonrpc.codec import encode_value
from ..jsonrpc.errors import NotSerializable
from ..spec.meta import ProgressToken

if TYPE_CHECKING:
    from .outbox import Outbox, Owner, Segment

__all__ = ["ProgressReporter"]

_NEVER = -math.inf


class ProgressReporter:
    """Progress of one request, towards one token.

    ``interval`` in seconds is the least time between two notifications. ``later`` is called when a value starts
    to be kept, so that somebody calls `let_out` once the interval is over. ``with_message``: the revision has
    the ``message`` member. `report` never blocks and never raises.
    """

    __slots__ = (
        "_due",
        "_head",
        "_interval",
        "_last",
        "_later",
        "_outbox",
        "_owner",
        "_pending",
        "_segment",
        "_with_message",
    )

    def __init__(
        self,
        outbox: Outbox,
        owner: Owner,
        token: ProgressToken,
        interval: float,
        later: Callable[[ProgressReporter], None],
        *,
        with_message: bool,
    ) -> None:
        self._outbox = outbox
        self._owner = owner
        self._interval = interval
        self._later = later
        self._with_message = with_message
        self._head = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":' + encode_value(
            token
        )
        self._last: float = _NEVER
        self._due: float = _NEVER
        self._pending: tuple[float, float | None, str | None] | None = None
        self._segment: Segment | None = None

    def report(self, progress: float, total: float | None = None, message: str | None = None) -> bool:
        """Note ``progress``. True when a notification was put on its way now; a slow peer may find a later value
        in its place.

        False when it was kept for later because the interval is not over, and when it was dropped because it
        does not exceed the value before it or is no finite number (2025-11-25 progress: MUST increase).
        """
        kind = type(progress)
        if not (kind is int or kind is float or _is_number(progress)) or not self._last < progress < math.inf:
            return False
        self._last = progress
        if trio.current_time() < self._due:
            if self._pending is None:
                self._later(self)
            self._pending = (progress, total, message)
            return False
        return self._send(progress, total, message)

    def let_out(self) -> bool:
        """Send the kept value if its time has come. True when a notification went out."""
        if self._pending is None or trio.current_time() < self._due:
            return False
        return self._send(*self._pending)

    @property
    def due(self) -> float | None:
        """When the kept value may go out (`trio.current_time`), `None` when none is kept."""
        return self._due if self._pending is not None else None

    def flush(self) -> bool:
        """Send the kept value now, whatever the interval says. True when there was one."""
        if self._pending is None:
            return False
        return self._send(*self._pending)

    def forget(self) -> None:
        """Keep no value any more: its request was cancelled."""
        self._pending = None

    def _send(self, progress: float, total: float | None, message: str | None) -> bool:
        self._pending = None
        if total is not None and not _is_number(total):
            return False
        try:
            line = self._line(progress, total, message)
        except NotSerializable:
            return False
        self._due = trio.current_time() + self._interval
        # A peer that reads slowly finds the latest value only: it takes the place of the one still waiting.
        if self._segment is None or not self._outbox.replace(self._segment, line):
            self._segment = self._outbox.put_sealed(line, self._owner)
        return True

    def _line(self, progress: float, total: float | None, message: str | None) -> bytes:
        line = self._head + b',"progress":' + encode_value(progress)
        if total is not None:
            line += b',"total":' + encode_value(total)
        if message is not None and self._with_message:
            line += b',"message":' + encode_value(message)
        return line + b"}}\n"


def _is_number(value: object) -> bool:
    """Whether JSON has it as a number: what handlers report comes from anywhere, and must not fail them."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
