"""Limits on the number of log records per peer, so that no peer can fill the log, or hide records about others.

The length of a record is limited as well (`bound`, `resolve`).
"""

from __future__ import annotations

import heapq
import logging
import os
import threading
from collections.abc import Callable, Hashable
from typing import Final, TypeAlias
from weakref import WeakValueDictionary

LONGEST: Final = 10_000
"""Maximum number of characters of a log message, and of a traceback. Longer texts keep only their beginning and end."""

_FORMATTER: Final = logging.Formatter()


def message_of(record: logging.LogRecord) -> str:
    """Return the formatted message of ``record``, or its format string if formatting fails."""
    try:
        return record.getMessage()
    except Exception:  # formatting may raise any exception, which the logging handlers will report
        return str(record.msg)


def bound(record: logging.LogRecord) -> None:
    """Truncate the message and the traceback of ``record`` to `LONGEST` characters."""
    message = message_of(record)
    if len(message) > LONGEST:
        record.msg, record.args = _cut(message), None
    if record.exc_info and not record.exc_text:
        text = _FORMATTER.formatException(record.exc_info)
        if len(text) > LONGEST:
            # Logging formatters take the text of the traceback from `exc_text`, if it is set.
            record.exc_text = _cut(text)


def resolve(record: logging.LogRecord, *, keep_exception: bool) -> int:
    """Replace the objects in the log ``record`` by text, so that the record keeps no objects alive.

    Return the length of the text. With ``keep_exception``, leave the exception for handlers that use more than its
    text.
    """
    bound(record)
    record.msg, record.args = message_of(record), None
    if record.exc_info and not record.exc_text and not keep_exception:
        record.exc_text = _FORMATTER.formatException(record.exc_info)
    if not keep_exception:
        record.exc_info = None
    return len(record.msg) + len(record.exc_text or "")


def _cut(text: str) -> str:
    half = LONGEST // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters are left out here …\n{text[-half:]}"


WINDOW: Final = 10.0
"""Length of a window in seconds. Log records of one kind are counted per window."""
BURST: Final = 10
"""Maximum number of log records of one kind that one peer can cause in a window."""
OVERALL: Final = 100
"""Maximum number of log records of one kind that all peers together can cause in a window."""
_MOST_KINDS: Final = 100
_LONGEST_EXAMPLE: Final = 200

_Kind: TypeAlias = tuple[object, ...]
_Report: TypeAlias = tuple[logging.LogRecord, int]
"""A report of suppressed log records: one record as an example, and the number of records."""

_lock = threading.RLock()
"""Lock of all log limits of the process. There is only one lock, so that a forked child can replace it: otherwise the
lock could stay locked in the child forever. The lock is reentrant, because the text of an exception, or a signal
handler, can log while an example is created."""


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # false on Windows, which has no fork
    os.register_at_fork(after_in_child=_renew_lock)


def _kind_of(record: logging.LogRecord) -> _Kind:
    """Return the kind of a log ``record``. The limits on log records count each kind separately.

    The kind is the line of code that logs, and the line that raised the logged exception. So each failing tool is a
    kind of its own, and text from a peer doesn't affect the kind.
    """
    kind = record.name, record.levelno, record.pathname, record.lineno
    if not record.exc_info or record.exc_info[0] is None:
        return kind
    place = record.exc_info[2]
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    raised_at = None if place is None else (place.tb_frame.f_code.co_filename, place.tb_lineno)
    return *kind, record.exc_info[0], raised_at


class _KindCount:
    """Counts the log records of one kind within a time window.

    The window begins with the first record.
    """

    __slots__ = ("example", "held_back", "kind", "overall", "passed", "until")

    def __init__(self, kind: _Kind, example: logging.LogRecord, *, overall: bool) -> None:
        self.kind = kind
        self.example = example
        self.overall = overall
        """True for the count of records of all peers together."""
        self.passed = self.held_back = 0
        self.until = 0.0


class LogShare:
    """The limit on log records that one peer can cause, and the number of records that it has caused so far.

    One more `LogShare` is for all log records that belong to no peer.
    """

    __slots__ = ("__weakref__", "counts", "limit", "shares")

    def __init__(self, shares: LogShares, limit: int = BURST) -> None:
        self.shares = shares
        self.limit = limit
        self.counts: dict[_Kind, _KindCount] = {}


class LogShares:
    """The limits on log records of all peers, for one log.

    An object can be used from several threads, because its lock isn't held while records are written. ``clock`` returns
    seconds, and never goes back. ``holds`` is called when `due_in` has changed.
    """

    def __init__(self, clock: Callable[[], float], holds: Callable[[], None]) -> None:
        self._clock = clock
        self._holds = holds
        self._all = LogShare(self, OVERALL)
        self._holding: list[tuple[float, int, _KindCount]] = []
        """A heap of the counts with suppressed records, by the end of their windows."""
        self._number = 0
        self.unattributed = LogShare(self)
        """The log limit of records that are logged outside any connection."""
        self._of_callers = WeakValueDictionary[Hashable, LogShare]()
        self._recent: dict[LogShare, float] = {}
        """Log limits with an open time window, in the order in which the windows end, so that a caller that reconnects
        gets its limit again."""

    def of(self, key: Hashable) -> LogShare:
        """Return the limit on log records for the caller with this key.

        All connections of a caller share its limit, even successive connections within a time window.
        """
        with _lock:
            share = self._of_callers.get(key)
            if share is None:
                share = self._of_callers[key] = LogShare(self)
        return share

    def admit(self, record: logging.LogRecord, share: LogShare) -> bool:
        """Return true if the log ``record`` should be written, or false if too many records of its kind were written
        recently.

        Otherwise count it as suppressed, and `due` will report the number.
        """
        kind, now = _kind_of(record), self._clock()
        with _lock:
            count = self._count(record, kind, share, now)
            if count.passed < share.limit:
                count.passed += 1
                count = self._count(record, kind, self._all, now)
                if count.passed < OVERALL:
                    count.passed += 1
                    return True
            begins = not count.held_back
            self._hold_back(count, 1)
        if begins:
            self._holds()
        return False

    def _count(self, record: logging.LogRecord, kind: _Kind, share: LogShare, now: float) -> _KindCount:
        count = share.counts.get(kind)
        if count is None:
            if len(share.counts) >= _MOST_KINDS:
                _drop_expired(share, now)
            if len(share.counts) >= _MOST_KINDS:
                kind = ()  # too many kinds of log records: count all further kinds as one
                count = share.counts.get(kind)
            if count is None:
                count = share.counts[kind] = _KindCount(kind, _example_of(record), overall=share is self._all)
        if now >= count.until and not count.held_back:
            count.until, count.passed = now + WINDOW, 0
            self._touch(share, now)
        return count

    def _touch(self, share: LogShare, now: float) -> None:
        self._recent.pop(share, None)
        self._recent[share] = now + WINDOW
        while self._recent[first := next(iter(self._recent))] <= now:
            del self._recent[first]

    def _hold_back(self, count: _KindCount, number: int) -> None:
        if not count.held_back:
            self._number += 1
            heapq.heappush(self._holding, (count.until, self._number, count))
        count.held_back += number

    def due_in(self) -> float | None:
        """Return the number of seconds until the next report of suppressed log records must be written, or `None` if no
        record was suppressed."""
        with _lock:
            return max(0.0, self._holding[0][0] - self._clock()) if self._holding else None

    def due(self, *, at_end: bool = False) -> list[logging.LogRecord]:
        """Return the reports of suppressed log records that must be written now.

        There is one for each kind of log records whose time window is over, with the number of suppressed records. With
        ``at_end``, return all remaining reports, even if their time windows aren't over.
        """
        told = list[_Report]()
        if self._holding:  # first check without the lock whether log records were suppressed, which is rare
            now = self._clock()
            with _lock:
                while self._holding and (at_end or self._holding[0][0] <= now):
                    self._report(heapq.heappop(self._holding)[2], now, told)
        return [_record_of(*one) for one in told]

    def close(self, share: LogShare) -> list[logging.LogRecord]:
        """Return the reports that are still due, because log records of a disconnected peer were suppressed. The
        object ``share`` counts these log records."""
        told, now = list[_Report](), self._clock()
        with _lock:
            for count in share.counts.values():
                self._report(count, now, told)
            share.counts.clear()
        return [_record_of(*one) for one in told]

    def _report(self, count: _KindCount, now: float, reports: list[_Report]) -> None:
        number, count.held_back = count.held_back, 0
        if not number:  # the suppressed records were already reported when the peer disconnected
            return
        count.until = now
        # Limit the reports too: peers that connect and disconnect repeatedly must not fill the log with reports.
        overall = count if count.overall else self._count(count.example, count.kind, self._all, now)
        if overall is not count:
            if overall.passed >= OVERALL:
                self._hold_back(overall, number)
                return
            overall.passed += 1
        reports.append((count.example, number))


def _drop_expired(share: LogShare, now: float) -> None:
    for count in [count for count in share.counts.values() if now >= count.until and not count.held_back]:
        del share.counts[count.kind]


def _example_of(record: logging.LogRecord) -> logging.LogRecord:
    first = message_of(record).partition("\n")[0]
    if len(first) > _LONGEST_EXAMPLE:
        first = first[:_LONGEST_EXAMPLE] + "…"
    place = record.pathname, record.lineno
    return logging.LogRecord(record.name, record.levelno, *place, first, None, None, record.funcName)


def _record_of(example: logging.LogRecord, number: int) -> logging.LogRecord:
    # Call the record factory of `logging`, because the log format may need attributes that the factory adds.
    # Don't call the record factory, which may be the application's code, while holding this module's lock.
    make, place = logging.getLogRecordFactory(), (example.pathname, example.lineno)
    values = example.msg, f"{number:,}"
    return make(example.name, example.levelno, *place, "%s … and %s more like it", values, None, example.funcName)
