"""Callbacks: the functions that a client calls for notifications of its server."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from typing import Any, Final

from ..protocol.conversion.converters import structure
from ..protocol.types.notifications import LogParams
from ..runtime.callback_queue import report_failure
from ..state.events import NotificationReceived
from .answering.open_urls import OpenURLs
from .changes import Change, change_in
from .options import ClientSettings
from .relay import Relay

__all__ = ["Callbacks"]

_COMPLETE: Final = "notifications/elicitation/complete"
_LOG: Final = "notifications/message"


class Callbacks:
    """The callbacks a client was opened with, and the watchers of changes.

    A plain callback for logs is called in the reader, the moment its message was read: a queue and a task between the
    two would take as long as all else together. All other callbacks wait for their turn in a queue.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._log_at_once = settings.on_log is not None and not inspect.iscoroutinefunction(settings.on_log)
        """True until the callback for logs has returned something to be awaited."""
        self._logging: tuple[NotificationReceived, Awaitable[Any]] | None = None
        """The message for which the callback returned an awaitable, until the awaitable is awaited."""
        self._log_context: Context | None = None
        """Context variables of the callback for logs, apart from the reader's; `None` before the first message."""
        self.urls = OpenURLs()
        self.relay: Relay | None = None
        """The relay that is told of every notification."""
        self.watchers: list[Callable[[Change], None]] = []
        """Functions that are called for every change that the client learns of, in either era, the moment it was read:
        before any callback, any listener and any later reply. A watcher must be quick, and must not raise."""

    def seen(self, change: Change) -> None:
        """Tell the watchers."""
        for watcher in self.watchers:
            watcher(change)

    def wants(self, event: NotificationReceived) -> bool:
        """Return whether `notified` is to be called for ``event``. See `RequestHandler.wants`."""
        if event.method.name == _LOG:  # most notifications are logs
            return self._take_log(event)
        change = change_in(event)
        if change is not None and event.revision.changes == "listen":
            # 2026-07-28 subscriptions, Receiving Notifications: a notification on no stream belongs to no subscription.
            # For a cache such a notification is still a sign of a change (caching, Freshness Calculation).
            self.seen(change)
            return False
        return self._take(event, change)

    def take(self, event: NotificationReceived) -> bool:
        """Tell the relay and the watchers; return whether `notified` is to be called for ``event``."""
        return self._take_log(event) if event.method.name == _LOG else self._take(event, change_in(event))

    def _take(self, event: NotificationReceived, change: Change | None) -> bool:
        if self.relay is not None:
            self.relay.told(event)
        if change is not None:
            self.seen(change)
            return self._told_of(change) is not None
        if event.method.name != _COMPLETE or not self.urls.completed(event.params):
            return False
        return self._settings.on_elicitation_complete is not None

    def _take_log(self, event: NotificationReceived) -> bool:
        if self.relay is not None:
            self.relay.told(event)
        if not self._log_at_once:
            return self._settings.on_log is not None
        if self._log_context is None:
            self._log_context = copy_context()
        try:
            pending = self._log_context.run(self._log, event.params)
        except Exception as error:
            report_failure(error)
            return False
        if pending is None or not inspect.isawaitable(pending):
            return False
        self._log_at_once, self._logging = False, (event, pending)
        return True

    def _log(self, params: dict[str, Any]) -> Any:
        try:
            message = structure(params, LogParams)
        except ValueError:
            return None  # a notification with bad parameters is passed over: a notification has no error reply
        assert self._settings.on_log is not None, "it was there when this was wanted, and stays"
        return self._settings.on_log(message)

    def _told_of(self, change: Change) -> Callable[[Any], Any] | None:
        settings = self._settings
        return settings.on_resource_updated if change.kind == "resource" else settings.on_list_changed

    async def notified(self, event: NotificationReceived) -> None:
        """Call the callback. See `RequestHandler.notified`."""
        if self._logging is not None:
            (begun, pending), self._logging = self._logging, None
            await pending
            if begun is event:
                return
        pending = self._called(event)
        if inspect.isawaitable(pending):
            await pending

    def _called(self, event: NotificationReceived) -> Any:
        if event.method.name == _LOG:
            return self._log(event.params)
        callback: Callable[[Any], Any] | None
        change = change_in(event)
        if change is None:
            callback, value = self._settings.on_elicitation_complete, event.params["elicitationId"]
        else:
            callback = self._told_of(change)
            value = change.kind if change.uri is None else change.uri
        assert callback is not None, "it was there when this was wanted, and stays"
        return callback(value)
