"""The ``subscriptions/listen`` streams on which a modern server reports changes (2026-07-28 subscriptions).

ChangeStreams are all streams of one client. Changes is a stream that a caller iterates over. ReopenedStream is a stream
for callbacks, which is reopened as long as the connection lives. Both contain a SubscriptionStream, which is one
request.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeAlias

import attrs
import trio

from ..classes import define
from ..concurrency.contexts import asynccontextmanager
from ..concurrency.nurseries import ServiceNursery, open_service_nursery
from ..concurrency.threads import current_run
from ..concurrency.time_limits import growing_delay
from ..jsonrpc.errors import METHOD_NOT_FOUND, MCPError, PeerError, ProtocolViolation
from ..protocol.converters import structure
from ..protocol.methods import METHODS
from ..protocol.revisions import LATEST_MODERN
from ..protocol.types.lifecycle import ServerCapabilities
from ..protocol.types.notifications import (
    SubscriptionFilter,
    SubscriptionsAcknowledgedParams,
    changing_lists,
    filter_of,
)
from ..runtime.calls import OnNotification
from ..runtime.connection import Connection
from ..runtime.limits import Limits
from ..runtime.transport import ConnectionLost
from ..state.events import NotificationReceived
from .cache import Change, change_in, kinds_in
from .results import check_result_type
from .server_messages import Callbacks
from .timeouts import CallTimeouts

logger = logging.getLogger("trio_mcp")


class Changes(AsyncIterator[Change]):
    """Iterates over the changes that a server reports, in order: see `Client.listen`.

    Changes wait until you iterate, and equal changes are merged. So no requested change is lost, and the connection
    never waits for your code. Each step is a checkpoint; a cancelled step loses nothing. Several tasks may iterate in
    turn. The iteration ends when the server closes the stream normally, and when the block has been left. A step raises
    `ConnectionLost` if the connection is lost, and `PeerError` if the server ends the stream with an error.
    """

    def __init__(
        self,
        asked: SubscriptionFilter,
        on_change: Callable[[Change], None],
        limits: Limits,
        on_task: OnNotification | None = None,
        on_notification: OnNotification | None = None,
    ) -> None:
        self._stream = SubscriptionStream(asked)
        self.acknowledged = SubscriptionFilter()
        """The changes that the server agreed to report. These are fewer than requested if the server can't report all
        of them."""
        self.dropped = 0
        """How many changes were dropped because too many were waiting. Only changes of resources that you didn't
        request by URI are dropped, such as parts of a requested resource."""
        self._consumer: Callable[[Change], bool] | None = None
        """A function that is called with each change right after it is read, if no other change waits. It returns
        whether it has handled the change."""
        self._uris = frozenset(asked.resource_subscriptions or ())
        self._kinds = kinds_in(asked)
        self._on_change = on_change
        self._limits = limits
        self._on_task = on_task
        self._on_notification = on_notification
        self._waiting: dict[Change, int] = {}
        self._bytes = 0
        self._parked = trio.lowlevel.ParkingLot()
        self._run = current_run()

    def _receive(self, event: NotificationReceived, size: int) -> None:
        if self._on_task is not None and event.method.name == "notifications/tasks":
            self._on_task(event, size)
            return
        change = change_in(event)
        if change is None and self._on_notification is not None and event.method.name not in METHODS:
            self._on_notification(event, size)
        # Ignore changes that were not requested, which the server MUST NOT send by MCP 2026-07-28 (subscriptions page).
        if change is None or change.kind not in self._kinds:
            return
        self._on_change(change)
        if change in self._waiting or (not self._waiting and self._consumer is not None and self._consumer(change)):
            return
        if change.uri is not None and change.uri not in self._uris and not self._has_room(size):
            self.dropped += 1
            return
        self._waiting[change] = size
        self._bytes += size
        self._parked.unpark()

    def _has_room(self, size: int) -> bool:
        limits = self._limits
        return len(self._waiting) < limits.max_pending_notifications and self._bytes + size <= limits.max_inbound_bytes

    async def _hold(self, ask: Ask) -> None:
        """Keep the ``subscriptions/listen`` stream open until its end."""
        try:
            await self._stream.run(ask, self._receive)
        finally:
            self._parked.unpark_all()

    async def __anext__(self) -> Change:
        self._run.check("a stream of changes")
        await trio.lowlevel.checkpoint()
        while not self._waiting:
            if self._stream.over.is_set():
                raise StopAsyncIteration if self._stream.failure is None else copy.copy(self._stream.failure)
            await self._parked.park()
        change = next(iter(self._waiting))
        self._bytes -= self._waiting.pop(change)
        return change

    def take_all(self) -> list[Change]:
        """Remove all changes that haven't been returned by the iteration yet, and return them."""
        return self._run.call(self._take_all)

    def _take_all(self) -> list[Change]:
        taken = list(self._waiting)
        self._waiting.clear()
        self._bytes = 0
        return taken


class ChangeStreams:
    """The ``subscriptions/listen`` streams of one client.

    ``ask`` sends the request for a stream. Streams for callbacks run in the nursery ``services``, which is set when the
    client opens.
    """

    services: ServiceNursery

    def __init__(self, connection: Connection, callbacks: Callbacks, limits: CallTimeouts) -> None:
        self._connection = connection
        self._limits = limits
        self._callbacks = callbacks
        self._followed: dict[str, ReopenedStream] = {}
        """The streams for ``on_resource_updated``, by the URI of the resource."""

    @asynccontextmanager
    async def listen(
        self,
        asked: SubscriptionFilter,
        ask: Ask,
        on_task: OnNotification | None = None,
        on_notification: OnNotification | None = None,
    ) -> AsyncGenerator[Changes]:
        """Keep a ``subscriptions/listen`` stream open inside the block. See `Client.listen`.

        Code that forwards passes ``on_task`` and ``on_notification``: these get the states of tasks, and the
        notifications of extensions, as soon as they are read.
        """
        await trio.lowlevel.checkpoint_if_cancelled()  # send nothing if the caller is already cancelled
        changes = Changes(asked, self._callbacks.notify_watchers, self._connection.limits, on_task, on_notification)
        async with open_service_nursery(LEFT) as nursery:
            nursery.start_soon(changes._hold, ask)
            with self._limits.around_call():
                changes.acknowledged = await changes._stream.acknowledgement()
            yield changes

    async def follow_lists(self, declared: ServerCapabilities, patience: float, ask: Ask) -> None:
        """Subscribe to changes of the server's lists, so that the client can call the user's callbacks for these
        changes.

        Only changes that are ``declared`` in the server's capabilities are requested.

        Waits up to ``patience`` seconds for the acknowledgement, so that no change caused by later calls is missed. If
        a server breaks its declaration, that is logged; no error is raised.
        """
        await self.follow("its lists", filter_of(changing_lists(declared)), patience, ask)

    async def follow(self, what: str, asked: SubscriptionFilter, patience: float, ask: Ask) -> None:
        """Subscribe to ``what`` the filter ``asked`` selects, for callbacks. Waits and logs as `follow_lists` does."""
        if asked == SubscriptionFilter():
            return
        following = ReopenedStream(what, asked, self._dispatch)
        self.services.start_soon(following.run, ask)
        with trio.move_on_after(patience):
            try:
                await following.stream.acknowledgement()
            except ConnectionLost:
                raise
            except MCPError as error:
                logger.warning("the server declares that it reports changes of %s, but refused: %s", what, error)

    async def subscribe(self, uri: str, ask: Ask) -> None:
        """Subscribe to a resource: from now on, the callback is called when the resource changes. See
        `Client.subscribe`."""
        await trio.lowlevel.checkpoint()
        if self._is_followed(uri):
            return
        following = ReopenedStream(uri, SubscriptionFilter(resource_subscriptions=[uri]), self._dispatch)
        self.services.start_soon(self._follow, uri, following, ask)
        try:
            with self._limits.around_call():
                honoured = await following.stream.acknowledgement()
        except BaseException:
            following.cancel()
            raise
        is_honoured = uri in (honoured.resource_subscriptions or ())
        if is_honoured and not self._is_followed(uri):  # another task may have subscribed to the resource meanwhile
            interrupted = self._followed.get(uri)
            if interrupted is not None:
                interrupted.cancel()
            self._followed[uri] = following
            return
        following.cancel()
        if not is_honoured:
            raise PeerError(LATEST_MODERN.resource_not_found, "Resource not found", {"uri": uri})

    def _is_followed(self, uri: str) -> bool:
        following = self._followed.get(uri)
        return following is not None and following.stream.is_active

    async def _follow(self, uri: str, following: ReopenedStream, ask: Ask) -> None:
        await following.run(ask)
        if self._followed.get(uri) is following:
            del self._followed[uri]

    def _dispatch(self, event: NotificationReceived, size: int) -> None:
        if self._callbacks.receive(event):
            self._connection.notified(event, size)

    async def unsubscribe(self, uri: str) -> None:
        """End the subscription to a resource, and wait until the cancellation has been sent to the server. See
        `Client.unsubscribe`."""
        await trio.lowlevel.checkpoint()
        following = self._followed.pop(uri, None)
        if following is not None:
            following.cancel()
            await following.over.wait()


_LONGEST_DELAY: Final = 60.0
_STABLE_AFTER: Final = 60.0
"""Seconds that a stream must last for the reopening delay to start again from the shortest."""


class ReopenedStream:
    """A ``subscriptions/listen`` stream for callbacks. The client reopens the stream whenever it ends, because
    callbacks can't notice its end.

    A server may end a stream although the connection lives on. The client reopens it after growing delays, up to a
    minute, until the client is closed, the connection is lost, or the server reports none of the changes any more.
    After each new acknowledgement, ``on_notification`` gets a change of each list or resource, since changes may have
    been missed.

    ``subject`` names what the stream reports, for the log.
    """

    def __init__(self, subject: str, asked: SubscriptionFilter, on_notification: OnNotification) -> None:
        self._subject = subject
        self._asked = asked
        self._kinds = kinds_in(asked)
        self._extensions = frozenset(asked.extensions or ())
        self._on_notification = on_notification
        self.stream = SubscriptionStream(asked)
        self._scope = trio.CancelScope()
        self.over = trio.Event()
        """Event that is set when the stream has ended and won't be reopened."""

    async def run(self, ask: Ask) -> None:
        """Keep the stream open, and reopen it whenever it ends, until `cancel` is called or the server refuses the
        stream."""
        attempt = 0
        acknowledged = False
        try:
            with self._scope:
                while True:
                    began = trio.current_time()
                    await self.stream.run(ask, self._receive)
                    acknowledged = acknowledged or self.stream.acknowledged is not None
                    if not acknowledged or self._is_final(self.stream.failure):
                        return
                    lasted = self.stream.acknowledged is not None and trio.current_time() - began >= _STABLE_AFTER
                    attempt = 1 if lasted else attempt + 1
                    await self._pause(attempt)
                    self.stream = SubscriptionStream(self._asked, self._catch_up)
        finally:
            self.over.set()

    def _is_final(self, failure: Exception | None) -> bool:
        if isinstance(failure, PeerError) and failure.code == METHOD_NOT_FOUND:
            logger.warning("the server no longer reports changes of %s: %s", self._subject, failure)
            return True
        return isinstance(failure, ConnectionLost)

    async def _pause(self, attempt: int) -> None:
        delay = growing_delay(attempt, longest=_LONGEST_DELAY)
        failure = self.stream.failure
        level = logging.INFO if failure is None else logging.WARNING
        told = "the server no longer reports changes of %s; asking again in %.1f s: %s"
        logger.log(level, told, self._subject, delay, failure or "it ended the stream")
        await trio.sleep(delay)

    def cancel(self) -> None:
        """End the stream. The server gets exactly one cancellation, unless it has already ended the stream."""
        self._scope.cancel(reason=LEFT)

    def _receive(self, event: NotificationReceived, size: int) -> None:
        change = change_in(event)
        wanted = event.method.extension in self._extensions if change is None else change.kind in self._kinds
        if wanted:  # ignore changes that were not requested, which the server MUST NOT send
            self._on_notification(event, size)

    def _catch_up(self, acknowledged: SubscriptionFilter) -> None:
        kinds = kinds_in(acknowledged) & self._kinds
        if not (kinds or self._extensions.intersection(acknowledged.extensions or ())):
            logger.warning("the server no longer reports changes of %s", self._subject)
            self.cancel()
        for kind in sorted(kinds - {"resource"}):
            self._notify_change(f"notifications/{kind}/list_changed", {})
        for uri in self._asked.resource_subscriptions or () if "resource" in kinds else ():
            self._notify_change("notifications/resources/updated", {"uri": uri})

    def _notify_change(self, method: str, params: dict[str, Any]) -> None:
        self._on_notification(NotificationReceived(LATEST_MODERN._methods[method], params, LATEST_MODERN), 0)


Ask: TypeAlias = Callable[[SubscriptionFilter, OnNotification], Awaitable[Any]]
"""A function that sends the request for a stream, and returns when the stream ends."""

LEFT: Final = "the client closed the stream"
_ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"


@define(eq=False)
class SubscriptionStream:
    """A ``subscriptions/listen`` request of this client, and the stream that the request opens.

    ``on_acknowledged`` is called in the reader, with the changes that the server agreed to report, before any other
    message on the stream.
    """

    _asked: SubscriptionFilter
    _on_acknowledged: Callable[[SubscriptionFilter], None] | None = None
    acknowledged: SubscriptionFilter | None = attrs.field(default=None, init=False)
    """The changes that the server agreed to report; `None` before the server has acknowledged the stream."""
    failure: MCPError | None = attrs.field(default=None, init=False)
    """The error that ended the stream; `None` after a normal end."""
    over: trio.Event = attrs.field(factory=trio.Event, init=False)
    _settled: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def run(self, ask: Ask, on_notification: OnNotification) -> None:
        """Keep the stream open until the server closes it or the connection ends.

        ``on_notification`` is called with each notification on the stream, except the acknowledgement. If this method
        is cancelled, the server gets one cancellation.
        """
        try:
            result = await ask(self._asked, partial(self._receive, on_notification))
            if result is not None:  # the result is None if the server has cancelled the stream
                check_result_type("subscriptions/listen", result)
        except MCPError as error:
            # Break the reference cycle: the traceback refers to this frame, and the frame to this stream.
            self.failure = error.with_traceback(None)
        finally:
            self._settled.set()
            self.over.set()

    def _receive(self, on_notification: OnNotification, event: NotificationReceived, size: int) -> None:
        if event.method.name != _ACKNOWLEDGED:
            on_notification(event, size)
        elif not self._settled.is_set():
            try:
                self.acknowledged = structure(event.params, SubscriptionsAcknowledgedParams).notifications
            except ValueError as error:
                self.failure = ProtocolViolation(f"the server's acknowledgement is malformed: {error}")
            self._settled.set()
            if self.acknowledged is not None and self._on_acknowledged is not None:
                self._on_acknowledged(self.acknowledged)

    @property
    def is_active(self) -> bool:
        """True while the server reports changes on the stream."""
        return self.acknowledged is not None and not self.over.is_set()

    async def acknowledgement(self) -> SubscriptionFilter:
        """Wait for the server's acknowledgement of the stream, and return its content. If the stream ends earlier,
        raise the stream's error."""
        await self._settled.wait()
        if self.acknowledged is None:
            raise self.failure or ProtocolViolation("the server ended a subscription that it never acknowledged")
        return self.acknowledged
