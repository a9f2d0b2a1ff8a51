"""Handles ``subscriptions/listen`` in a proxy: streams that report the upstream server's changes and the states of
tasks to a client.

A client that reads slowly gets the latest state of each task; if a state had to be dropped, the stream ends.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Final

import attrs
import trio

from ..client.cache import Change
from ..client.requests import open_stream
from ..client.subscriptions import Changes
from ..concurrency.bounded import Backlog
from ..concurrency.contexts import asynccontextmanager
from ..concurrency.nurseries import open_service_nursery
from ..jsonrpc.codec import encode_value
from ..jsonrpc.errors import PeerError
from ..protocol.converters import structure_params, unstructure
from ..protocol.fields import JSONObject
from ..protocol.revisions import LATEST_MODERN
from ..protocol.types.notifications import (
    ListenParams,
    ListenResult,
    SubscriptionFilter,
    SubscriptionsAcknowledgedParams,
)
from ..runtime.calls import OnNotification
from ..runtime.limits import Limits
from ..runtime.requests.scope import RequestScope
from ..server.offers.resources import LONGEST_URI
from ..server.subscriptions import CONNECTION_ENDS, ListenStream, honoured_part
from ..state.events import NotificationReceived
from .downstream import ProxyClient
from .forwarding import per_request_fields, tasks_to_listen_for
from .upstream import Upstream

_TOO_SLOW: Final = "the client reads too slowly: states of tasks were lost"
_ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"


async def listen(scope: RequestScope, downstream: ProxyClient, upstream: Upstream) -> ListenResult:
    """Handle a client's ``subscriptions/listen`` request. When the upstream server reports a change, report the change
    on the stream of this client.

    This ends when the client closes the stream, or when the connection on either side ends.

    Raises the errors of `Client.listen`, and the error with which the upstream stream ended.
    """
    asked = structure_params(scope.request.params, ListenParams, scope.request.revision).notifications
    most = downstream.limits.max_subscriptions
    # Limit how many URIs and ids there are, and how long, because they stay in memory while the stream is open.
    uris = [uri for uri in (asked.resource_subscriptions or ())[:most] if len(uri) <= LONGEST_URI]
    task_ids = tasks_to_listen_for(scope, upstream, asked.task_ids)[: most - len(uris)]
    passing = upstream.passage_to(downstream).part_of(dict.fromkeys(asked.extensions or ()), scope.request.revision)
    asked = attrs.evolve(
        asked, resource_subscriptions=uris or None, task_ids=task_ids or None, extensions=[*passing] or None
    )
    told = ExtensionNotifications(downstream.limits)
    states = TaskStates(task_ids, downstream.limits.max_inbound_bytes)
    if upstream.revision.changes == "listen":
        ask = partial(open_stream, upstream.client, meta=per_request_fields(scope.request, downstream, upstream))
        opening = upstream.client._change_streams.listen(asked, ask, states.put, told.put)
    else:
        opening = _changes_of_legacy(upstream, asked)
    async with opening as changes:
        stream = ListenStream(scope, changes.acknowledged)
        stream.acknowledge()
        told.start(stream)
        reason = "the server ended it"
        async with open_service_nursery("the stream ends") as nursery:
            with trio.CancelScope() as telling:
                nursery.start_soon(_cancel_after, downstream.connection.until_ending, telling, CONNECTION_ENDS)
                nursery.start_soon(_cancel_after, states.overflowed.wait, telling, _TOO_SLOW)
                nursery.start_soon(states.send, stream)
                # While the client reads fast enough, send each change at once: waiting changes would be merged.
                changes._consumer = partial(_try_forward, stream)
                async for change in changes:
                    _forward(stream, change)
                    await stream.room()
            if telling.cancelled_caught:
                reason = _TOO_SLOW if states.overflowed.is_set() else CONNECTION_ENDS
        for change in changes.take_all():
            _forward(stream, change)
        states.send_rest(stream)
        return stream.close(reason)


async def _cancel_after(event: Callable[[], Awaitable[None]], telling: trio.CancelScope, reason: str) -> None:
    await event()
    telling.cancel(reason=reason)


def _try_forward(stream: ListenStream, change: Change) -> bool:
    if not stream.has_room:
        return False
    _forward(stream, change)
    return True


def _forward(stream: ListenStream, change: Change) -> None:
    if change.uri is not None:
        stream.resource_updated(change.uri)
    else:
        stream.list_changed(f"notifications/{change.kind}/list_changed")


@asynccontextmanager
async def _changes_of_legacy(upstream: Upstream, asked: SubscriptionFilter) -> AsyncGenerator[Changes]:
    """Open a stream of the changes that the upstream server (legacy protocol revision) reports by notification.

    These are changed lists, and changes of subscribed resources.
    """

    async def ask(_: SubscriptionFilter, on_notification: OnNotification) -> None:
        def told(event: NotificationReceived, named: bool) -> None:
            uri = event.params.get("uri")
            if not named or uri in uris:
                on_notification(event, len(encode_value(uri)))

        uris: list[str] = []
        upstream.on_changes.add(told)
        try:
            for uri in asked.resource_subscriptions or ():
                # Ignore a refused subscription: the acknowledgement shows which subscriptions were accepted.
                with suppress(PeerError):
                    await upstream.subscribe(uri)
                    uris.append(uri)
            honoured = SubscriptionsAcknowledgedParams(honoured_part(asked, upstream.capabilities, uris))
            row, params = LATEST_MODERN._methods[_ACKNOWLEDGED], unstructure(honoured, LATEST_MODERN)
            on_notification(NotificationReceived(row, params, LATEST_MODERN), 0)
            await upstream.client.until_lost()
        finally:
            upstream.on_changes.discard(told)
            await upstream.unsubscribe_all(uris)

    # Pass a callback that does nothing: the client's own callbacks were called when the proxy received the change.
    changes = Changes(asked, lambda _: None, upstream.limits)
    async with open_service_nursery("the client closed the stream") as nursery:
        nursery.start_soon(changes._hold, ask)
        changes.acknowledged = await changes._stream.acknowledgement()
        yield changes


class ExtensionNotifications:
    """Sends notifications of extensions on a client's SSE stream.

    Notifications that arrive before the stream is acknowledged are queued, within ``limits``. Later ones are sent at
    once, or dropped if the stream is full.
    """

    def __init__(self, limits: Limits) -> None:
        self._early = Backlog[NotificationReceived](limits.max_pending_notifications, limits.max_inbound_bytes)
        self._stream: ListenStream | None = None

    def start(self, stream: ListenStream) -> None:
        """Send the queued notifications on ``stream``. From now on, send new notifications at once."""
        self._stream = stream
        while self._early:
            self.put(self._early.pop(), 0)

    def put(self, event: NotificationReceived, size: int) -> None:
        """Send an extension's notification of ``size`` bytes to the client. If the client's SSE stream hasn't started
        yet, queue the notification until then."""
        if self._stream is None:
            self._early.put(event, size)
        else:
            self._stream.notify_plain(event.method.name, event.params)


class TaskStates:
    """Stores the latest state of each MCP task in ``task_ids``, until the client's SSE stream can accept it."""

    def __init__(self, task_ids: Collection[str], max_bytes: int) -> None:
        self._task_ids = frozenset(task_ids)
        self._max_bytes = max_bytes
        self._waiting: dict[str, tuple[JSONObject, int]] = {}
        self._bytes = 0
        self._changed = trio.Event()
        self.overflowed = trio.Event()
        """This event is set when a state was dropped, because the client reads too slowly."""

    def put(self, event: NotificationReceived, size: int) -> None:
        """Store the state of an MCP task, so that the client's stream sends it later.

        The state comes from a notification of ``size`` bytes.

        Tasks that the client didn't request are ignored.
        """
        task_id = event.params.get("taskId")
        if task_id not in self._task_ids:
            return
        _, before = self._waiting.pop(task_id, (None, 0))
        self._bytes += size - before
        self._waiting[task_id] = (event.params, size)
        while self._bytes > self._max_bytes and len(self._waiting) > 1:
            self._pop()
            self.overflowed.set()
        self._changed.set()

    def _pop(self) -> JSONObject:
        state, size = self._waiting.pop(next(iter(self._waiting)))
        self._bytes -= size
        return state

    async def send(self, stream: ListenStream) -> None:
        """Send the stored task states to the client whenever its stream can accept more, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            while self._waiting:
                await stream.room()
                if self._waiting:
                    stream.notify_task(self._pop())

    def send_rest(self, stream: ListenStream) -> None:
        """Send the stored task states to the client now, because the stream ends."""
        while self._waiting:
            stream.notify_task(self._pop())
