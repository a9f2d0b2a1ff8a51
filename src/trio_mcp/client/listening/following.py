"""Following: the changes that a modern server tells a client's callbacks, for as long as the connection lives."""

from __future__ import annotations

import logging
from typing import Any, Final

import trio

from ...concurrency.delays import growing_delay
from ...jsonrpc.errors import METHOD_NOT_FOUND, PeerError
from ...protocol.revisions import LATEST_MODERN
from ...protocol.types.subscriptions import SubscriptionFilter
from ...runtime.calls.call import OnNotification
from ...runtime.channel import ConnectionLost
from ...state.events import NotificationReceived
from ..changes import change_in, kinds_in
from .stream import LEFT, Ask, Stream

__all__ = ["Following"]

logger = logging.getLogger("trio_mcp")

_FIRST_DELAY: Final = 1.0
_LONGEST_DELAY: Final = 60.0
_JITTER: Final = 0.5
_STABLE_AFTER: Final = 60.0
"""Seconds that a stream must have lasted for its end to count as the first again."""


class Following:
    """A stream for callbacks, opened anew whenever the stream ends, since callbacks cannot be told of an end.

    A server may end a stream while the connection lives on. After growing delays, up to a minute, the server is asked
    again, until the client leaves, the connection ends, or the server tells no more of any followed change. After a new
    acknowledgement ``tell`` gets a change of each followed list or resource, since changes may have been missed.

    ``what`` is the name of the stream's subject in the log.
    """

    def __init__(self, what: str, asked: SubscriptionFilter, tell: OnNotification) -> None:
        self._what = what
        self._asked = asked
        self._kinds = kinds_in(asked)
        self._tell = tell
        self._stream = Stream(asked)
        self._scope = trio.CancelScope()
        self.over = trio.Event()
        """Set when the stream has ended, and is not opened anew."""

    async def run(self, ask: Ask) -> None:
        """Hold the stream open, and open a new stream after each end, until `leave` or the final end."""
        attempt = 0
        acknowledged = False
        try:
            with self._scope:
                while True:
                    began = trio.current_time()
                    await self._stream.run(ask, self._received)
                    acknowledged = acknowledged or self._stream.acknowledged is not None
                    if not acknowledged or self._is_final(self._stream.failure):
                        return
                    lasted = self._stream.acknowledged is not None and trio.current_time() - began >= _STABLE_AFTER
                    attempt = 1 if lasted else attempt + 1
                    await self._pause(attempt)
                    self._stream = Stream(self._asked, self._catch_up)
        finally:
            self.over.set()

    def _is_final(self, failure: Exception | None) -> bool:
        if isinstance(failure, PeerError) and failure.code == METHOD_NOT_FOUND:
            logger.warning("the server tells no more of changes of %s: %s", self._what, failure)
            return True
        return isinstance(failure, ConnectionLost)

    async def _pause(self, attempt: int) -> None:
        delay = growing_delay(attempt, first=_FIRST_DELAY, longest=_LONGEST_DELAY, jitter=_JITTER)
        failure = self._stream.failure
        level = logging.INFO if failure is None else logging.WARNING
        told = "the server tells no more of changes of %s, and is asked again in %.1f s: %s"
        logger.log(level, told, self._what, delay, failure or "it ended the stream")
        await trio.sleep(delay)

    def leave(self) -> None:
        """End the stream from our side: the server gets one cancel, unless the server has ended the stream already."""
        self._scope.cancel(reason=LEFT)

    @property
    def is_told(self) -> bool:
        """True while the server tells of changes."""
        return self._stream.is_told

    async def acknowledgement(self) -> SubscriptionFilter:
        """Wait for the acknowledgement, and return its content. See `Stream.acknowledgement`."""
        return await self._stream.acknowledgement()

    def _received(self, event: NotificationReceived, size: int) -> None:
        change = change_in(event)
        # 2026-07-28 subscriptions: the server MUST NOT send changes that were not requested.
        if change is not None and change.kind in self._kinds:
            self._tell(event, size)

    def _catch_up(self, acknowledged: SubscriptionFilter) -> None:
        kinds = kinds_in(acknowledged) & self._kinds
        if not kinds:
            logger.warning("the server tells no more of changes of %s", self._what)
            self.leave()
        for kind in sorted(kinds - {"resource"}):
            self._changed(f"notifications/{kind}/list_changed", {})
        for uri in self._asked.resource_subscriptions or () if "resource" in kinds else ():
            self._changed("notifications/resources/updated", {"uri": uri})

    def _changed(self, method: str, params: dict[str, Any]) -> None:
        self._tell(NotificationReceived(LATEST_MODERN.methods[method], params, LATEST_MODERN), 0)
