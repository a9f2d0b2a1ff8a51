"""Log messages and progress notifications of a running handler.

`RequestLog` sends RFC 5424 log messages to the client, filtered before they are encoded. `ProgressReporter` sends at
most one progress notification per interval, and never loses the latest value.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Coroutine
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

import trio
from trio import current_time
from trio.lowlevel import checkpoint_if_cancelled

from ...jsonrpc.codec import encode_readable, encode_value, plain_scalar
from ...jsonrpc.errors import NotSerializable
from ...protocol.meta import ProgressToken
from ...protocol.types.notifications import LogLevel, log_level_rank
from ..outbox import LINE_END, Outbox, Owner, Segment

if TYPE_CHECKING:
    from ...concurrency.wakeups import Alarm, Alarms
    from .scope import RequestScope

NEVER_LOGGED: Final = 8
"""Minimum log rank that disables logging: it is higher than the rank of every log level."""

_ALWAYS: Final = 7

_LOOK_EVERY: Final = 32
"""Number of log messages that were filtered or queued, after which the log checks how long the handler has run without
letting other tasks run."""
_MUCH: Final = 16 * 1024
_BEFORE_LEVEL: Final = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":'
_LONGEST_TURN: Final = 0.001
"""Seconds for which a handler can keep logging before other tasks run. A real checkpoint takes less than a hundredth of
this time."""


def _head(level: str, logger: str | None = None) -> bytes:
    """Encode the beginning of a log message as JSON, up to the value of ``data``."""
    named = b"" if logger is None else b',"logger":' + encode_readable(logger)
    return b"".join((_BEFORE_LEVEL, encode_value(level), named, b',"data":'))


class _Heads(dict[str, bytes]):
    """Caches the beginning (`_head`) of a log message for each level, so that each level is encoded only once.

    The cached messages have no logger name.
    """

    def __missing__(self, level: str) -> bytes:
        return _head(level)


_HEADS: Final = _Heads((level.value, _head(level.value)) for level in LogLevel)


class RequestLog:
    """The log of one request, whose messages are sent to the client.

    There is one method per level, from the least to the most severe. Each method takes any JSON value and an optional
    ``logger`` name. A value that can't be encoded as JSON raises `NotSerializable`, and nothing is sent. Each call
    checks for cancellation. If a handler only logs, one call in 32 lets other tasks run, if a millisecond has passed. A
    message below the client's minimum level, or after the end of the request, isn't encoded or sent. While the client
    doesn't read, the methods wait for room.
    """

    __slots__ = ("_count", "_much", "_own_rank", "_scope", "_turn_ends")

    def __init__(self, scope: RequestScope) -> None:
        self._scope = scope
        self._count = 0
        self._turn_ends = 0.0
        """Time of the last checkpoint. It's measured by `time.perf_counter`, not by a test's virtual clock, because the
        tasks that wait are real."""
        self._much = min(scope.outbox.high_water, _MUCH)
        """Bytes in the outbox above which the log checks whether other tasks have to run. Below this size, the writer
        task runs often enough anyway."""
        self._read_level()

    def _read_level(self) -> None:
        """Read the log level that the request sets. Called again if a retry of the client replaces the request."""
        self._own_rank, request = NEVER_LOGGED, self._scope.request
        """Rank of the least severe log level that is sent to the client. `None` if the request uses the level of its
        connection, which can change at any time."""
        if self._scope.runner.may_log and request.revision.log_level != "request":
            self._own_rank = None
        # In MCP 2026-07-28 (logging page), a server MUST NOT send log messages for a request without a logLevel.
        elif self._scope.runner.may_log and request.log_level is not None:
            self._own_rank = log_level_rank(request.log_level)

    @property
    def _minimum_rank(self) -> int:
        """Rank of the least severe log level that is sent to the client.

        The request sets the level or, if it sets no level, the connection.
        """
        return self._own_rank if self._own_rank is not None else self._scope.exchange.state.log_rank

    def _admits(self, level: str) -> bool:
        """Return true if log messages of ``level`` are sent to the client now."""
        minimum = self._minimum_rank
        return self._scope.sends and minimum < NEVER_LOGGED and not 0 <= log_level_rank(level) < minimum

    if not TYPE_CHECKING:  # hide `__call__` from type checkers, so that they report a call of `ctx.log`

        def __call__(self, *_: object, **__: object) -> NoReturn:
            raise TypeError(
                "ctx.log can't be called; call the method of a log level, such as info:\n"
                "    wrong:  ctx.log('info', text)\n"
                "    right:  await ctx.log.info(text)"
            )

    # `debug`, `info` etc. aren't async: they return the coroutine of `_log`, which the caller awaits.
    # If `debug`, `info` etc. were async, each log message would create a second coroutine, which takes time.
    async def _log(self, level: str, rank: int, data: Any, logger: str | None) -> None:
        await checkpoint_if_cancelled()
        scope = self._scope
        # Same expression as in `_minimum_rank`, inlined to save a function call per message.
        minimum = self._own_rank if self._own_rank is not None else scope.exchange.state.log_rank
        if rank < minimum or not scope.sends:
            await self._let_others_run()
            return
        head = _HEADS[level] if logger is None else _head(level, logger)
        try:
            line = head + encode_value(data, 2) + scope.line_end
        except NotSerializable:
            line = head + encode_readable(data, 2) + scope.line_end
        outbox = scope.outbox
        if outbox.size >= self._much or outbox.on_put is not None:
            await self._let_others_run()
            await outbox.room()
            # The client may have changed its log level while this method waited.
            if not scope.sends or rank < self._minimum_rank:
                return
        outbox.put(line, scope.lines)

    async def _let_others_run(self) -> None:
        """Let other trio tasks run, if this task has run for a millisecond or more since its last checkpoint."""
        self._count += 1
        if self._count >= _LOOK_EVERY:
            self._count = 0
            if perf_counter() >= self._turn_ends:
                await trio.lowlevel.checkpoint()
                self._turn_ends = perf_counter() + _LONGEST_TURN

    def log_nowait(self, level: str, data: Any, logger: str | None = None) -> bool:
        """Send a log message to the client without waiting.

        Return false if the message was dropped, because it was filtered, there was no room, or the request has ended.

        A ``level`` that RFC 5424 doesn't define passes every filter.
        """
        scope, outbox = self._scope, self._scope.outbox
        if not scope.runner.trio_run.is_here:  # this call comes from a thread that the handler started
            return scope.runner.trio_run.call(lambda: self.log_nowait(level, data, logger))
        if not self._admits(level) or outbox.size >= outbox.high_water:
            return False
        outbox.put(_head(level, logger) + encode_readable(data, 2) + scope.line_end, scope.lines)
        return True

    async def log(self, level: str, data: Any, logger: str | None = None) -> None:
        """Send a log message with this ``level`` to the client.

        A level that RFC 5424 doesn't define is sent regardless of the minimum level, unless the client wants no logs at
        all.
        """
        rank = log_level_rank(level)
        await self._log(level, rank if rank >= 0 else _ALWAYS, data, logger)

    def debug(self, data: Any, logger: str | None = None) -> Coroutine[Any, Any, None]:
        """Send a log message with details for debugging to the client."""
        return self._log("debug", 0, data, logger)

    def info(self, data: Any, logger: str | None = None) -> Coroutine[Any, Any, None]:
        """Send the client a log message about normal operation."""
        return self._log("info", 1, data, logger)

    def notice(self, data: Any, logger: str | None = None) -> Coroutine[Any, Any, None]:
        """Send the client a log message about a normal but significant event."""
        return self._log("notice", 2, data, logger)

    def warning(self, data: Any, logger: str | None = None) -> Coroutine[Any, Any, None]:
        """Send the client a warning that something may be wrong."""
        return self._log("warning", 3, data, logger)

    def error(self, data: Any, logger: str | None = None) -> Coroutine[Any, Any, None]:
        """Send the client a log message about an error: something went wrong."""
        return self._log("error", 4, data, logger)

    def critical(self, data: Any, logger: str | None = None) -> Coroutine[Any, Any, None]:
        """Send the client a critical log message: a part of the system failed."""
        return self._log("critical", 5, data, logger)

    def alert(self, data: Any, logger: str | None = None) -> Coroutine[Any, Any, None]:
        """Send the client an alert: immediate action is needed."""
        return self._log("alert", 6, data, logger)

    def emergency(self, data: Any, logger: str | None = None) -> Coroutine[Any, Any, None]:
        """Send the client an emergency message: the system is unusable."""
        return self._log("emergency", 7, data, logger)


Report: TypeAlias = tuple[float, float | None, str | None]
"""A progress report: the progress, the total in the same unit, and a message for people."""

_LATE: Final = threading.Lock()
_LARGEST: Final = sys.float_info.max
"""Largest number that is sent as progress, because most JSON parsers turn larger numbers into infinity. The negative of
this number is the smallest."""


def reportable(progress: object, total: object = None, message: object = None) -> Report | None:
    """Return the values of a progress report as plain numbers and text.

    Return `None` if the report can't be sent. Reported values can come from anywhere, and must not make a handler fail.
    A number is any finite `numbers.Real` (such as numpy's) except booleans. A message is text that UTF-8 can encode.
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
    except Exception:  # the value can't be converted to a number
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
    """Sends the progress of one request to the client, with the progress token from the request.

    ``interval`` in seconds is the minimum time between two notifications. ``alarms`` send a stored value once the
    interval has passed. ``with_message``: the revision has the ``message`` member. `report` never blocks.
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
        """The last total that was checked and can be sent. Most handlers report the same total each time."""
        self._due: float = -_LARGEST
        self._pending: Report | None = None
        self._segment: Segment | None = None
        self._alarm: Alarm | None = None
        self._late: list[tuple[float, float | None, str | None]] | None = None
        """Progress reports from other threads, which `let_in` processes. `None` if there are none."""

    def redirect(self, outbox: Outbox, owner: Owner, end: bytes) -> None:
        """From now on, send progress to another ``outbox``. Each message then ends with ``end``: see
        `RequestScope.line_end`."""
        self._outbox, self._owner, self._segment, self._end = outbox, owner, None, end

    def report(self, progress: float, total: float | None = None, message: str | None = None) -> bool:
        """Report ``progress`` to the client.

        Return true if a notification was put into the outbox now. If the client reads slowly, a later value can replace
        this one.

        Return false if the value was stored because the interval hasn't passed. Also return false if the value was
        dropped: it doesn't exceed the previous one (2025-11-25 progress: MUST increase), or it isn't `reportable`. A
        dropped value changes nothing. Raises `RuntimeError`, without reporting anything, in any thread except trio's.
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
        """Send a progress value at once if the minimum interval since the last notification has passed. Otherwise,
        store the value to send it later."""
        if self._alarms.are_elsewhere:
            raise RuntimeError("progress must be reported in trio's thread, not in another thread")
        now = current_time()
        self._last = progress
        if now >= self._due:
            return self._send(progress, total, message)
        self._alarm = self._alarms.set(self._due, self.let_out)
        self._pending = progress, total, message
        return False

    def report_later(self, progress: float, total: float | None, message: str | None) -> None:
        """Store a progress report, which is sent later in trio's thread. Any thread may call this method.

        Trio's thread sends the report soon afterwards, at the latest before the response.
        """
        with _LATE:
            if self._late is None:
                self._late = []
            self._late.append((progress, total, message))

    def let_in(self) -> None:
        """Process, in order, the progress reports that other threads have stored with `report_later`."""
        with _LATE:
            late, self._late = self._late, None
        for report in late or ():
            self.report(*report)

    def let_out(self) -> bool:
        """Send the stored progress if the minimum interval since the last notification has passed.

        Return true if a notification was sent.
        """
        if self._pending is None or current_time() < self._due:
            return False
        return self._send(*self._pending)

    @property
    def due(self) -> float | None:
        """Time at which the stored progress may be sent, on trio's clock.

        `None` if no progress is stored.
        """
        return self._due if self._pending is not None else None

    def flush(self) -> bool:
        """Send the stored progress now, even if the minimum interval hasn't passed.

        Return true if progress was stored.
        """
        if self._late is not None:
            self.let_in()
        if self._pending is None:
            return False
        return self._send(*self._pending)

    def forget(self) -> None:
        """Drop the stored progress, because the request was cancelled or has ended."""
        self._pending = None
        if self._alarm is not None:
            self._alarm.stop()

    def _send(self, progress: float, total: float | None, message: str | None) -> bool:
        self.forget()
        line = self._line(progress, total, message)
        self._due = current_time() + self._interval
        # If the peer reads slowly, replace the progress notification that still waits in the outbox by the latest one.
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
