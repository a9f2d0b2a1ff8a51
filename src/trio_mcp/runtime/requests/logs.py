"""RequestLog sends RFC 5424 log messages to the client, filtered at the source."""

from __future__ import annotations

from collections.abc import Coroutine
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NoReturn

import trio
from trio.lowlevel import checkpoint_if_cancelled

from ...jsonrpc.codec import encode_readable, encode_value
from ...jsonrpc.errors import NotSerializable
from ...protocol.types.notifications import LogLevel, log_level_rank

if TYPE_CHECKING:
    from .scope import RequestScope

NEVER_LOGGED: Final = 8
"""A minimum above every rank."""

_ALWAYS: Final = 7

_LOOK_EVERY: Final = 32
"""Number of messages that go nowhere, or that wait behind others, after which the log checks how long the handler has
let no other task run."""
_MUCH: Final = 16 * 1024
_BEFORE_LEVEL: Final = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":'
_LONGEST_TURN: Final = 0.001
"""Seconds that a handler may log on before others run. A real checkpoint takes less than a hundredth of this time."""


def _head(level: str, logger: str | None = None) -> bytes:
    """Return a line up to its data."""
    named = b"" if logger is None else b',"logger":' + encode_readable(logger)
    return b"".join((_BEFORE_LEVEL, encode_value(level), named, b',"data":'))


class _Heads(dict[str, bytes]):
    """The `_head` of each line without a logger by its level, encoded once for the levels of RFC 5424."""

    def __missing__(self, level: str) -> bytes:
        return _head(level)


_HEADS: Final = _Heads((level.value, _head(level.value)) for level in LogLevel)


class RequestLog:
    """The log of one request, with one method per level, least severe first.

    Each method takes any JSON value and an optional ``logger`` name, and is a checkpoint for cancellation; in a handler
    that does nothing but log, one call now and then (of 32, when a millisecond has passed) lets other tasks run, too. A
    message below the client's minimum, or after the end of the request, costs no more than this checkpoint. While the
    client does not read, the methods wait for room. Sending a value that is no JSON value raises `NotSerializable`, and
    nothing is sent.
    """

    __slots__ = ("_count", "_has_own_level", "_much", "_scope", "_turn_ends")

    def __init__(self, scope: RequestScope) -> None:
        self._scope = scope
        self._count = 0
        self._turn_ends = 0.0
        """Time of `time.perf_counter`, and not of a test's clock, since the waiting tasks are real."""
        self._has_own_level = not scope.runner.may_log or scope.request.revision.log_level == "request"
        """False where the level is that of the connection, which may change at any time."""
        self._much = min(scope.outbox.high_water, _MUCH)
        """Bytes in the outbox from which the log checks whether other tasks can run. With fewer bytes, the writer still
        gets its turn."""

    @property
    def minimum_rank(self) -> int:
        """The least rank that is sent: the rank that this request names, if any, else the connection's."""
        scope = self._scope
        if not self._has_own_level:
            return scope.exchange.state.log_rank
        # 2026-07-28 logging: MUST NOT emit for a request without a logLevel.
        level = scope.request.log_level
        return log_level_rank(level) if level is not None and scope.runner.may_log else NEVER_LOGGED

    def admits(self, level: str) -> bool:
        """Return whether the client wants messages of ``level`` now."""
        minimum = self.minimum_rank
        return self._scope.sends and minimum < NEVER_LOGGED and not 0 <= log_level_rank(level) < minimum

    if not TYPE_CHECKING:  # type checkers know what there is

        def __call__(self, *_: object, **__: object) -> NoReturn:
            raise TypeError(
                "a level is a method of the log:\n"
                "    wrong:  ctx.log('info', text)\n"
                "    right:  await ctx.log.info(text)"
            )

    # The methods below return the coroutine of `_log`: a coroutine of their own, only to await that of `_log`, would
    # cost time for each message.
    async def _log(self, level: str, rank: int, data: Any, logger: str | None) -> None:
        await checkpoint_if_cancelled()
        scope = self._scope
        minimum = self.minimum_rank if self._has_own_level else scope.exchange.state.log_rank  # spares most a call
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
            if not scope.sends or rank < self.minimum_rank:  # the level may have been set meanwhile
                return
        outbox.put(line, scope.lines)

    async def _let_others_run(self) -> None:
        """Let other tasks run now and then, when the last time was a millisecond ago or more."""
        self._count += 1
        if self._count >= _LOOK_EVERY:
            self._count = 0
            if perf_counter() >= self._turn_ends:
                await trio.lowlevel.checkpoint()
                self._turn_ends = perf_counter() + _LONGEST_TURN

    def log_nowait(self, level: str, data: Any, logger: str | None = None) -> bool:
        """Send a message without waiting. Return false when the message was dropped: filtered, no room, or after the
        end.

        ``level`` may be unknown to RFC 5424: an unknown level passes every filter.
        """
        scope, outbox = self._scope, self._scope.outbox
        if not scope.runner.trio_run.is_here:  # a thread that the handler started
            return scope.runner.trio_run.call(lambda: self.log_nowait(level, data, logger))
        if not self.admits(level) or outbox.size >= outbox.high_water:
            return False
        outbox.put(_head(level, logger) + encode_readable(data, 2) + scope.line_end, scope.lines)
        return True

    async def log(self, level: str, data: Any, logger: str | None = None) -> None:
        """Send a message of a level given by its name. A level that RFC 5424 does not know passes every minimum, but
        does not reach a client that asked for no logs at all."""
        rank = log_level_rank(level)
        await self._log(level, rank if rank >= 0 else _ALWAYS, data, logger)

    def debug(self, data: Any, logger: str | None = None) -> Coroutine[Any, Any, None]:
        """Send details for finding faults."""
        return self._log("debug", 0, data, logger)

    def info(self, data: Any, logger: str | None = None) -> Coroutine[Any, Any, None]:
        """Send a message about the normal course of events."""
        return self._log("info", 1, data, logger)

    def notice(self, data: Any, logger: str | None = None) -> Coroutine[Any, Any, None]:
        """Send a message about an event that is normal, but worth a look."""
        return self._log("notice", 2, data, logger)

    def warning(self, data: Any, logger: str | None = None) -> Coroutine[Any, Any, None]:
        """Send a message that something may be wrong."""
        return self._log("warning", 3, data, logger)

    def error(self, data: Any, logger: str | None = None) -> Coroutine[Any, Any, None]:
        """Send a message that something went wrong."""
        return self._log("error", 4, data, logger)

    def critical(self, data: Any, logger: str | None = None) -> Coroutine[Any, Any, None]:
        """Send a message that a part of the system failed."""
        return self._log("critical", 5, data, logger)

    def alert(self, data: Any, logger: str | None = None) -> Coroutine[Any, Any, None]:
        """Send a message that somebody must act at once."""
        return self._log("alert", 6, data, logger)

    def emergency(self, data: Any, logger: str | None = None) -> Coroutine[Any, Any, None]:
        """Send a message that the system is unusable."""
        return self._log("emergency", 7, data, logger)
