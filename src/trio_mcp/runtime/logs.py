"""RequestLog: RFC 5424 log messages to the client, filtered at the source."""

from __future__ import annotations

from collections.abc import Coroutine
from time import perf_counter
from typing import Any, Final

import trio

from ..jsonrpc.codec import encode_value
from ..spec.log_levels import LogLevel, log_level_rank
from .outbox import Outbox, Owner

__all__ = ["Logged", "RequestLog"]

_ALWAYS: Final = 7

_LOOK_EVERY: Final = 32
"""Messages that go nowhere, or that wait behind others, after which a handler that has let nobody else run is looked
at."""
_MUCH: Final = 16 * 1024
_LONGEST_TURN: Final = 0.001
"""Seconds that it may go on like that. A real checkpoint takes less than a hundredth of them."""


def _head(level: str) -> bytes:
    return b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":' + encode_value(level)


_HEADS: Final = {level.value: _head(level.value) for level in LogLevel}
"""The constant part of each line, encoded once."""


class Logged(Owner):
    """A request, as its log sees it. Its lines are withdrawn with it."""

    __slots__ = ("finished", "outbox")

    finished: bool
    """Nothing more is sent for it."""
    outbox: Outbox

    @property
    def minimum_log_rank(self) -> int:
        """The least rank that is sent."""
        raise NotImplementedError

    def admits(self, level: str) -> bool:
        """Whether a message of ``level`` is sent now."""
        raise NotImplementedError


class RequestLog:
    """The log of one request. One method per level, least severe first.

    Each takes any JSON value and an optional ``logger`` name, and is a checkpoint for cancellation; in a handler that
    does nothing but log, one now and then (of 32, when a millisecond has passed) lets other tasks run, too. A message
    below the client's minimum costs nothing but that; so does one after the request has ended. While the
    client does not read, they wait for room. Raises `NotSerializable` for what is no JSON value; nothing is
    sent then.
    """

    __slots__ = ("_count", "_much", "_outbox", "_scope", "_turn_ends")

    def __init__(self, scope: Logged) -> None:
        self._scope = scope
        self._count = 0
        self._turn_ends = 0.0
        """Of `time.perf_counter`: no clock of a test's, since it is about those who really wait."""
        self._outbox = scope.outbox
        self._much = min(scope.outbox.high_water, _MUCH)
        """Bytes in the outbox at which it is looked whether others can run. Until then the writer gets its turn."""

    # The methods below hand its coroutine on: one that only awaited it would be made, entered and left per message.
    async def _log(self, level: str, rank: int, data: Any, logger: str | None) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        scope = self._scope
        if rank < scope.minimum_log_rank or scope.finished:
            await self._let_others_run()
            return
        line = _line(_HEADS.get(level) or _head(level), data, logger)
        outbox = self._outbox
        if outbox.size >= self._much:
            await self._let_others_run()
            await outbox.room()
            if scope.finished or rank < scope.minimum_log_rank:  # the level may have been set meanwhile
                return
        outbox.put(line, scope)

    async def _let_others_run(self) -> None:
        """Let them now and then, when it was their turn a millisecond ago."""
        self._count += 1
        if self._count >= _LOOK_EVERY:
            self._count = 0
            if perf_counter() >= self._turn_ends:
                await trio.lowlevel.checkpoint()
                self._turn_ends = perf_counter() + _LONGEST_TURN

    def log_nowait(self, level: str, data: Any, logger: str | None = None) -> bool:
        """Send without waiting. False when it was dropped: filtered, no room, or the request has ended.

        ``level`` may be one that RFC 5424 does not know: it passes every filter.
        """
        scope, outbox = self._scope, self._outbox
        if not scope.admits(level) or outbox.size >= outbox.high_water:
            return False
        outbox.put(_line(_HEADS.get(level) or _head(level), data, logger), scope)
        return True

    async def log(self, level: str, data: Any, logger: str | None = None) -> None:
        """A level by its name. One that RFC 5424 does not know passes every minimum, but not a client that
        asked for no logs at all."""
        rank = log_level_rank(level)
        await self._log(level, rank if rank >= 0 else _ALWAYS, data, logger)

    def debug(self, data: Any, logger: str | None = None) -> Coroutine[Any, Any, None]:
        """For finding faults."""
        return self._log("debug", 0, data, logger)

    def info(self, data: Any, logger: str | None = None) -> Coroutine[Any, Any, None]:
        """What is going on."""
        return self._log("info", 1, data, logger)

    def notice(self, data: Any, logger: str | None = None) -> Coroutine[Any, Any, None]:
        """Normal, but worth a look."""
        return self._log("notice", 2, data, logger)

    def warning(self, data: Any, logger: str | None = None) -> Coroutine[Any, Any, None]:
        """Something may be wrong."""
        return self._log("warning", 3, data, logger)

    def error(self, data: Any, logger: str | None = None) -> Coroutine[Any, Any, None]:
        """Something went wrong."""
        return self._log("error", 4, data, logger)

    def critical(self, data: Any, logger: str | None = None) -> Coroutine[Any, Any, None]:
        """A part of the system failed."""
        return self._log("critical", 5, data, logger)

    def alert(self, data: Any, logger: str | None = None) -> Coroutine[Any, Any, None]:
        """Somebody must act at once."""
        return self._log("alert", 6, data, logger)

    def emergency(self, data: Any, logger: str | None = None) -> Coroutine[Any, Any, None]:
        """The system is unusable."""
        return self._log("emergency", 7, data, logger)


def _line(head: bytes, data: Any, logger: str | None) -> bytes:
    if logger is not None:
        head += b',"logger":' + encode_value(logger)
    return head + b',"data":' + encode_value(data, 2) + b"}}\n"
