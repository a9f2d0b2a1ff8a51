"""Callbacks: the functions that a client calls for what its server tells."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

from ..protocol.conversion.converters import structure
from ..protocol.types.notifications import LogParams
from ..state.events import NotificationReceived
from .answering.open_urls import OpenURLs
from .changes import Change, change_in
from .options import ClientSettings
from .relay import Relay

__all__ = ["Callbacks"]

_COMPLETE: Final = "notifications/elicitation/complete"


class Callbacks:
    """The callbacks a client was opened with, and the watchers of changes."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self.urls = OpenURLs()
        self.relay: Relay | None = None
        """The relay that is told of everything."""
        self.watchers: list[Callable[[Change], None]] = []
        """Functions that are called for every change that the client learns of, in either era, the moment it was read:
        before any callback, any listener and any reply that came after it. They must be quick, and must not raise."""

    def seen(self, change: Change) -> None:
        """Tell the watchers."""
        for watcher in self.watchers:
            watcher(change)

    def wants(self, event: NotificationReceived) -> bool:
        """Return whether `notified` is to be called for ``event``. See `RequestHandler.wants`."""
        change = change_in(event)
        if change is not None and event.revision.changes == "listen":
            # 2026-07-28 subscriptions, Receiving Notifications: a notification on no stream belongs to no
            # subscription. For a cache it is still a reason to believe that something changed (caching, Freshness
            # Calculation).
            self.seen(change)
            return False
        return self._take(event, change)

    def take(self, event: NotificationReceived) -> bool:
        """Tell the relay and the watchers; return whether there is a callback for ``event``."""
        return self._take(event, change_in(event))

    def _take(self, event: NotificationReceived, change: Change | None) -> bool:
        if self.relay is not None:
            self.relay.told(event)
        if change is not None:
            self.seen(change)
            return self._told_of(change) is not None
        name, settings = event.method.name, self._settings
        if name == "notifications/message":
            return settings.on_log is not None
        return name == _COMPLETE and self.urls.completed(event.params) and settings.on_elicitation_complete is not None

    def _told_of(self, change: Change) -> Callable[[Any], Any] | None:
        settings = self._settings
        return settings.on_resource_updated if change.kind == "resource" else settings.on_list_changed

    async def notified(self, event: NotificationReceived) -> None:
        """Call the callback. See `RequestHandler.notified`."""
        callback: Callable[[Any], Any] | None
        change = change_in(event)
        if change is not None:
            callback = self._told_of(change)
            value: Any = change.kind if change.uri is None else change.uri
        elif event.method.name == _COMPLETE:
            callback, value = self._settings.on_elicitation_complete, event.params["elicitationId"]
        else:
            callback = self._settings.on_log
            try:
                value = structure(event.params, LogParams)
            except ValueError:
                return  # a notification with bad parameters is passed over: nobody could answer it
        assert callback is not None, "it was there when this was wanted, and stays"
        pending = callback(value)
        if inspect.isawaitable(pending):
            await pending
