"""Callbacks: the functions that a client calls for notifications of its server.

OpenURLs are the URL elicitations of which a server has not said yet that the user is done (2025-11-25 only). A
Relay is the code between a server and the clients that a client here speaks for.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from typing import Any, Final, Protocol

from ..concurrency.bounded_dict import BoundedDict
from ..jsonrpc.errors import PeerError
from ..protocol.converters import structure
from ..protocol.errors import URL_ELICITATION_REQUIRED, URLElicitationRequiredData
from ..protocol.fields import JSONObject
from ..protocol.types.notifications import ElicitationCompleteParams, LogParams
from ..runtime.notifications import report_failure
from ..state.events import NotificationReceived
from ..state.requests import InboundRequest
from .changes import Change, change_in
from .options import ClientSettings

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


_MOST_URLS: Final = 1000
_LONGEST_ID: Final = 1000


class OpenURLs:
    """The ids of URL elicitations, kept until the elicitations are complete: the last 1,000, of up to 1,000 characters
    each.

    2025-11-25 elicitation, Completion Notifications: clients MUST ignore notifications referencing unknown or
    already-completed ids.
    """

    def __init__(self) -> None:
        self._ids = BoundedDict[str, None](_MOST_URLS)

    def asked(self, params: JSONObject) -> None:
        """Note the parameters of a question, unchecked, if the question is a URL elicitation."""
        if params.get("mode") == "url":
            self._note(params.get("elicitationId"))

    def required(self, error: PeerError) -> None:
        """Note the elicitations, if any, that an error of the server requires."""
        if error.code != URL_ELICITATION_REQUIRED:
            return
        try:
            required = structure(error.data, URLElicitationRequiredData)
        except ValueError:
            return  # the error itself is raised all the same
        for each in required.elicitations:
            self._note(each.elicitation_id)

    def _note(self, elicitation_id: Any) -> None:
        if isinstance(elicitation_id, str) and 0 < len(elicitation_id) <= _LONGEST_ID:
            self._ids[elicitation_id] = None

    def completed(self, params: JSONObject) -> bool:
        """Take the parameters of a notification, unchecked; return whether the notification completes an open
        elicitation."""
        try:
            elicitation_id = structure(params, ElicitationCompleteParams).elicitation_id
        except ValueError:
            return False
        return self._ids.pop(elicitation_id, self) is None


class Relay(Protocol):
    """Gets the notifications of the server, and the questions that the client declared to forward
    (`ClientSettings.forwards`).

    The upstream of a proxy is one. A protocol, since a client knows nothing of proxies.
    """

    def told(self, event: NotificationReceived) -> None:
        """Take a notification, logs and changes of every kind, the moment it was read: before any callback, and before
        any later reply. Must be quick, and must not raise."""
        ...

    def came(self, request: InboundRequest) -> None:
        """Take a question, for which `ask` will be called, the moment it was read. Must be quick, and must not
        raise."""
        ...

    def ask(self, method: str, params: dict[str, Any], key: str | None) -> Awaitable[Any]:
        """Return the result of a question, plain data, in the form of this client's revision.

        A question of a modern server, which asks in a call, runs in a task of that call; one of a legacy server, in the
        task of the question. ``key`` is the name that a modern server gave the question; `None` for a legacy server.
        Raises `CodedError` for an error reply.
        """
        ...
