"""ProgressReporter sends at most one notification per interval, and never loses the latest value."""

from __future__ import annotations

import sys
import threading
from math import inf
from typing import TYPE_CHECKING, Final, TypeAlias

from trio import current_time

from ...jsonrpc.codec import encode_value, plain_scalar
from ...protocol.meta import ProgressToken
from ..outbox import LINE_END

if TYPE_CHECKING:
    from ...concurrency.wakeups import Alarm, Alarms
    from ..outbox import Outbox, Owner, Segment

Report: TypeAlias = tuple[float, float | None, str | None]
"""The progress, the total in the same unit, and words for people."""

_LATE: Final = threading.Lock()
_LARGEST: Final = sys.float_info.max
"""Largest number that may be sent: a number further from zero is not finite in most JSON readers."""


def reportable(progress: object, total: object = None, message: object = None) -> Report | None:
    """Return a report in the form that travels, with plain numbers and plain text; `None` when the report cannot
    travel.

    Reported values come from anywhere, and must not make a handler fail. A number is any finite `numbers.Real` (numpy's
    are), booleans excepted; a message is text that UTF-8 can carry.
    """
    number = _plain_number(progress)
    if number is None:
        return None
    plain_total = None if total is None else _plain_number(total)
    plain_message = None if message is None else _plain_text(message)
    if (plain_total is None) is not (total is None) or (plain_message is None) is not (message is None):
        return None
    return number, plain_total, plain_message


def _plain_number(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        number = plain_scalar(value)
    except Exception:  # no number, or of a class that only looks like a number
        return None
    return number if not isinstance(number, str) and -_LARGEST <= number <= _LARGEST else None


def _plain_text(value: object) -> str | None:
    if not isinstance(value, str):
        return None
    text = str.__str__(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return None
    return text


class ProgressReporter:
    """Reports the progress of one request, under one token.

    ``interval`` in seconds is the least time between two notifications; ``alarms`` send a stored value once the
    interval is over. ``with_message``: the revision has the ``message`` member. `report` never blocks.
    """

    __slots__ = (
        *("_alarm", "_alarms", "_due", "_end", "_head", "_interval", "_last", "_late", "_outbox", "_owner", "_pending"),
        *("_segment", "_total", "_with_message"),
    )

    def __init__(
        self, outbox: Outbox, owner: Owner, token: ProgressToken, interval: float, alarms: Alarms, *, with_message: bool
    ) -> None:
        self._outbox = outbox
        self._owner = owner
        self._interval = interval
        self._alarms = alarms
        self._with_message = with_message
        self._head = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":' + encode_value(
            token
        )
        self._end = LINE_END
        self._last: float = -inf
        self._total: float | None = None
        """Total that was checked last and is fit to be sent: most handlers give the same total each time."""
        self._due: float = -_LARGEST
        self._pending: Report | None = None
        self._segment: Segment | None = None
        self._alarm: Alarm | None = None
        self._late: list[tuple[float, float | None, str | None]] | None = None
        """Reports from other threads, which `let_in` makes; `None` if there are none."""

    def redirect(self, outbox: Outbox, owner: Owner, end: bytes) -> None:
        """Send to ``outbox`` from now on, and end each line with ``end``: see `RequestScope.line_end`."""
        self._outbox, self._owner, self._segment, self._end = outbox, owner, None, end

    def report(self, progress: float, total: float | None = None, message: str | None = None) -> bool:
        """Note ``progress``. Return true when a notification was put on its way now; a slow peer may read a later value
        instead.

        Return false when the value was kept for later because the interval is not over, and when the value was dropped,
        for not exceeding the value before (2025-11-25 progress: MUST increase) or for not being `reportable`. A dropped
        value changes nothing. Raises `RuntimeError` in another thread than trio's, with nothing reported.
        """
        if (
            total is not self._total
            or message is not None
            or (type(progress) is not int and type(progress) is not float)
        ):
            plain = reportable(progress, total, message)
            if plain is None:
                return False
            progress, total, message = plain
            self._total = total
        if not self._last < progress <= _LARGEST:
            return False
        if self._pending is not None and current_time() < self._due:
            self._last = progress
            self._pending = progress, total, message
            return False
        return self._report_first(progress, total, message)

    def _report_first(self, progress: float, total: float | None, message: str | None) -> bool:
        """Report a value if no value is stored, or the interval is over."""
        if self._alarms.are_elsewhere:
            raise RuntimeError("progress is reported in the thread of the request's run of trio")
        now = current_time()
        self._last = progress
        if now >= self._due:
            return self._send(progress, total, message)
        self._alarm = self._alarms.set(self._due, self.let_out)
        self._pending = progress, total, message
        return False

    def report_later(self, progress: float, total: float | None, message: str | None) -> None:
        """Store a report for `let_in`, which `flush` calls at the latest. May be called from any thread."""
        with _LATE:
            if self._late is None:
                self._late = []
            self._late.append((progress, total, message))

    def let_in(self) -> None:
        """Make the reports from other threads, in order."""
        with _LATE:
            late, self._late = self._late, None
        for report in late or ():
            self.report(*report)

    def let_out(self) -> bool:
        """Send the kept value if its time has come. Return true when a notification went out."""
        if self._pending is None or current_time() < self._due:
            return False
        return self._send(*self._pending)

    @property
    def due(self) -> float | None:
        """Time at which the kept value may go out (`trio.current_time`), `None` when no value is kept."""
        return self._due if self._pending is not None else None

    def flush(self) -> bool:
        """Send the kept value now, regardless of the interval. Return true when a value was kept."""
        if self._late is not None:
            self.let_in()
        if self._pending is None:
            return False
        return self._send(*self._pending)

    def forget(self) -> None:
        """Drop the kept value: its request was cancelled, or is over."""
        self._pending = None
        if self._alarm is not None:
            self._alarm.stop()

    def _send(self, progress: float, total: float | None, message: str | None) -> bool:
        self.forget()
        line = self._line(progress, total, message)
        self._due = current_time() + self._interval
        # A peer that reads slowly reads the latest value only, which takes the place of the value still waiting.
        if self._segment is None or not self._outbox.replace(self._segment, line):
            self._segment = self._outbox.put_sealed(line, self._owner)
        return True

    def _line(self, progress: float, total: float | None, message: str | None) -> bytes:
        line = self._head + b',"progress":' + encode_value(progress)
        if total is not None:
            line += b',"total":' + encode_value(total)
        if message is not None and self._with_message:
            line += b',"message":' + encode_value(message)
        return line + self._end
