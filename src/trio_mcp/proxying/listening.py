"""listen: streams of ``subscriptions/listen`` through a proxy."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final

import trio

from ..client.changes import Change
from ..client.listening.change_streams import Changes
from ..concurrency.contexts import asynccontextmanager
from ..concurrency.nurseries import open_service_nursery
from ..jsonrpc.codec import encode_value
from ..jsonrpc.errors import PeerError
from ..protocol.conversion.converters import structure_params, unstructure
from ..protocol.revisions import LATEST_MODERN
from ..protocol.types.subscriptions import (
    ListenParams,
    ListenResult,
    SubscriptionFilter,
    SubscriptionsAcknowledgedParams,
)
from ..runtime.calls.call import OnNotification
from ..runtime.requests.request_scope import RequestScope
from ..server.listen_stream import CONNECTION_ENDS, ListenStream, honoured_part
from ..server.offers.uri_templates import LONGEST_URI
from ..state.events import NotificationReceived
from .downstream import Downstream
from .upstream import Upstream

__all__ = ["listen"]

_ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"


async def listen(scope: RequestScope, downstream: Downstream, upstream: Upstream) -> ListenResult:
    """Answer ``subscriptions/listen``: report the changes of the server behind, until the client leaves, or the
    connection on either side ends. Raises as `Client.listen`, and the error that ended the stream there."""
    asked = structure_params(scope.request.params, ListenParams, scope.request.revision).notifications
    if asked.resource_subscriptions:
        # The URIs are kept as long as the stream, so their length and number are limited.
        first = asked.resource_subscriptions[: downstream.limits.max_subscriptions]
        uris = [uri for uri in first if len(uri) <= LONGEST_URI]
        asked = SubscriptionFilter(
            asked.tools_list_changed, asked.prompts_list_changed, asked.resources_list_changed, uris or None
        )
    async with _changes(upstream, asked) as changes:
        stream = ListenStream(scope, changes.acknowledged)
        stream.acknowledge()
        reason = "the server ended it"
        async with open_service_nursery("the stream ends") as nursery:
            with trio.CancelScope() as telling:
                nursery.start_soon(_until_ending, downstream, telling)
                changes.taker = partial(_taken, stream)  # a client that reads fast enough gets repetitions, too
                async for change in changes:
                    _tell(stream, change)
                    await stream.room()
            if telling.cancelled_caught:
                reason = CONNECTION_ENDS
        for change in changes.take_all():
            _tell(stream, change)
        return stream.end(reason)


async def _until_ending(downstream: Downstream, telling: trio.CancelScope) -> None:
    await downstream.until_ending()
    telling.cancel(reason=CONNECTION_ENDS)


def _taken(stream: ListenStream, change: Change) -> bool:
    if not stream.has_room:
        return False
    _tell(stream, change)
    return True


def _tell(stream: ListenStream, change: Change) -> None:
    if change.uri is not None:
        stream.resource_updated(change.uri)
    else:
        stream.list_changed(f"notifications/{change.kind}/list_changed")


def _changes(upstream: Upstream, asked: SubscriptionFilter) -> AbstractAsyncContextManager[Changes]:
    if upstream.revision.changes == "listen":
        return upstream.listen(asked)
    return _changes_of_legacy(upstream, asked)


@asynccontextmanager
async def _changes_of_legacy(upstream: Upstream, asked: SubscriptionFilter) -> AsyncGenerator[Changes]:
    """Open a stream of the changes that a legacy server reports, unasked and on subscriptions."""

    async def ask(_: SubscriptionFilter, on_notification: OnNotification) -> None:
        def told(event: NotificationReceived, named: bool) -> None:
            uri = event.params.get("uri")
            if not named or uri in uris:
                on_notification(event, len(encode_value(uri)))

        uris: list[str] = []
        upstream.on_changes.add(told)
        try:
            for uri in asked.resource_subscriptions or ():
                uris += await _subscribed(upstream, uri)
            on_notification(_acknowledgement(upstream, asked, uris), 0)
            await upstream.until_lost()
        finally:
            upstream.on_changes.discard(told)
            await upstream.unsubscribe_all(uris)

    changes = Changes(asked, _seen_already, upstream.limits)
    async with open_service_nursery("the client listens no more") as nursery:
        nursery.start_soon(changes.run, ask)
        changes.acknowledged = await changes.stream.acknowledgement()
        yield changes


def _seen_already(_: Change) -> None:
    """Do nothing: the watchers of the client were told when the change was read."""


async def _subscribed(upstream: Upstream, uri: str) -> list[str]:
    """Subscribe to ``uri`` and return ``[uri]``; an empty list, for the acknowledgement, when the server refuses."""
    try:
        await upstream.subscribe(uri)
    except PeerError:
        return []
    return [uri]


def _acknowledgement(upstream: Upstream, asked: SubscriptionFilter, uris: list[str]) -> NotificationReceived:
    honoured = honoured_part(asked, upstream.capabilities, uris)
    params = unstructure(SubscriptionsAcknowledgedParams(honoured), LATEST_MODERN)
    return NotificationReceived(LATEST_MODERN.methods[_ACKNOWLEDGED], params, LATEST_MODERN)
