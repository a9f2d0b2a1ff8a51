"""Stream: a ``subscriptions/listen`` request of a client (2026-07-28 subscriptions)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeAlias

import trio

from ...jsonrpc.errors import MCPError, ProtocolViolation
from ...protocol.conversion.converters import structure
from ...protocol.types.subscriptions import SubscriptionFilter, SubscriptionsAcknowledgedParams
from ...runtime.calls.call import OnNotification
from ...state.events import NotificationReceived
from ..results import check_result_type

__all__ = ["LEFT", "Ask", "Stream"]

Ask: TypeAlias = Callable[[SubscriptionFilter, OnNotification], Awaitable[Any]]
"""Sends the request that opens a stream and returns at its end."""

LEFT: Final = "the client listens no more"
_ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"


class Stream:
    """A ``subscriptions/listen`` request of ours.

    ``on_acknowledged`` is called in the reader, with the changes that the server agreed to, before any other message on
    the stream.
    """

    def __init__(
        self, asked: SubscriptionFilter, on_acknowledged: Callable[[SubscriptionFilter], None] | None = None
    ) -> None:
        self._asked = asked
        self._on_acknowledged = on_acknowledged
        self.acknowledged: SubscriptionFilter | None = None
        """Changes that the server agreed to tell of; `None` before."""
        self._settled = trio.Event()
        self.failure: MCPError | None = None
        """Error that ended the stream; `None` after an end in good order."""
        self.over = trio.Event()

    async def run(self, ask: Ask, tell: OnNotification) -> None:
        """Hold the stream open until the server or the end of the connection ends the stream. ``tell`` gets the
        notifications on the stream, except the acknowledgement. Leaving the stream sends the server one cancel."""
        try:
            result = await ask(self._asked, partial(self._received, tell))
            if result is not None:  # not cancelled by the server
                check_result_type("subscriptions/listen", result)
        except MCPError as error:
            # The traceback refers to this frame and so to this stream; the stream must not wait for the garbage
            # collector.
            self.failure = error.with_traceback(None)
        finally:
            self._settled.set()
            self.over.set()

    def _received(self, tell: OnNotification, event: NotificationReceived, size: int) -> None:
        if event.method.name != _ACKNOWLEDGED:
            tell(event, size)
        elif not self._settled.is_set():
            try:
                self.acknowledged = structure(event.params, SubscriptionsAcknowledgedParams).notifications
            except ValueError as error:
                self.failure = ProtocolViolation(f"the server's acknowledgement makes no sense: {error}")
            self._settled.set()
            if self.acknowledged is not None and self._on_acknowledged is not None:
                self._on_acknowledged(self.acknowledged)

    @property
    def is_told(self) -> bool:
        """True while the server tells of changes on the stream."""
        return self.acknowledged is not None and not self.over.is_set()

    async def acknowledgement(self) -> SubscriptionFilter:
        """Wait for the acknowledgement, and return its content. Raises the error that ended the stream instead, if
        any."""
        await self._settled.wait()
        if self.acknowledged is None:
            raise self.failure or ProtocolViolation("the server ended a subscription that it never acknowledged")
        return self.acknowledged
