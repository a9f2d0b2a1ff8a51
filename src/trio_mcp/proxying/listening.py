"""listen: streams of ``subscriptions/listen`` through a proxy."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import trio

from ..client.changes import Change
from ..client.listening.subscriptions import Changes
from ..concurrency.contexts import asynccontextmanager
from ..concurrency.nurseries import open_service_nursery
from ..jsonrpc.codec import encode_value, frame_notification
from ..jsonrpc.errors import PeerError
from ..protocol.conversion.converters import structure_params, unstructure
from ..protocol.meta import SUBSCRIPTION_ID
from ..protocol.revisions import LATEST_MODERN
from ..protocol.types.subscriptions import (
    ListenParams,
    ListenResult,
    SubscriptionFilter,
    SubscriptionsAcknowledgedParams,
)
from ..runtime.calls.call import OnNotification
from ..runtime.requests.request_scope import RequestScope
from ..server.offers.uri_templates import LONGEST_URI
from ..state.events import NotificationReceived
from .upstream import Upstream

__all__ = ["listen"]

_ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"


async def listen(scope: RequestScope, upstream: Upstream) -> ListenResult:
    """Answer ``subscriptions/listen``: report what the server behind reports, until the client leaves, or the
    connection on either side ends. Raises as `Client.listen`, and the error that ended the stream there."""
    asked = structure_params(scope.request.params, ListenParams, scope.request.revision).notifications
    if asked.resource_subscriptions:
        # They are kept as long as the stream, so their length and number are limited.
        first = asked.resource_subscriptions[: scope.wiring.limits.max_subscriptions]
        uris = [uri for uri in first if len(uri) <= LONGEST_URI]
        asked = SubscriptionFilter(
            asked.tools_list_changed, asked.prompts_list_changed, asked.resources_list_changed, uris or None
        )
    async with _changes(upstream, asked) as changes:
        return await _Stream(scope).run(changes)


class _Stream:
    """A stream to a client. Its lines belong to the scope of its request, so a cancel takes them back."""

    def __init__(self, scope: RequestScope) -> None:
        self._scope = scope
        self._meta: dict[str, Any] = {SUBSCRIPTION_ID: scope.request.id}

    async def run(self, changes: Changes) -> ListenResult:
        revision = self._scope.request.revision
        acknowledged = SubscriptionsAcknowledgedParams(changes.acknowledged, self._meta)
        self._put(_ACKNOWLEDGED, unstructure(acknowledged, revision))
        reason = "the server ended it"
        async with open_service_nursery("the stream ends") as nursery:
            with trio.CancelScope() as telling:
                nursery.start_soon(self._until_ending, telling)
                changes.taker = self._taken  # so that a client that reads fast enough gets repetitions, too
                async for change in changes:
                    self._tell(change)
                    await self._scope.outbox.room()
            if telling.cancelled_caught:
                reason = "the connection is ending"
        for change in changes.take_all():
            self._tell(change)
        # 2026-07-28 cancellation: a server MUST send it when it ends a stream; the result follows.
        self._put(
            "notifications/cancelled", {"_meta": self._meta, "requestId": self._scope.request.id, "reason": reason}
        )
        return ListenResult(self._meta)

    async def _until_ending(self, telling: trio.CancelScope) -> None:
        await self._scope.wiring.ending.wait()
        telling.cancel(reason="the connection is ending")

    def _taken(self, change: Change) -> bool:
        if self._scope.outbox.is_full():
            return False
        self._tell(change)
        return True

    def _tell(self, change: Change) -> None:
        if change.kind == "resource":
            self._put("notifications/resources/updated", {"_meta": self._meta, "uri": change.uri})
        else:
            self._put(f"notifications/{change.kind}/list_changed", {"_meta": self._meta})

    def _put(self, method: str, params: dict[str, Any]) -> None:
        if not self._scope.finished:
            self._scope.outbox.put(frame_notification(method, params) + b"\n", self._scope)


def _changes(upstream: Upstream, asked: SubscriptionFilter) -> AbstractAsyncContextManager[Changes]:
    if upstream.revision.changes == "listen":
        return upstream.client.subscriptions.listen(asked)
    return _changes_of_legacy(upstream, asked)


@asynccontextmanager
async def _changes_of_legacy(upstream: Upstream, asked: SubscriptionFilter) -> AsyncGenerator[Changes]:
    """Open a stream of what a legacy server reports, unasked and on subscriptions."""

    async def ask(_: SubscriptionFilter, on_notification: OnNotification) -> None:
        def told(event: NotificationReceived, named: bool) -> None:
            uri = event.params.get("uri")
            if not named or uri in uris:
                on_notification(event, len(encode_value(uri)))

        uris: list[str] = []
        upstream.listeners.add(told)
        try:
            for uri in asked.resource_subscriptions or ():
                uris += await _subscribed(upstream, uri)
            on_notification(_acknowledgement(upstream, asked, uris), 0)
            await upstream.client.until_lost()
        finally:
            upstream.listeners.discard(told)
            await upstream.let_go(uris)

    changes = Changes(asked, _seen_already, upstream.client.duplex.limits)
    async with open_service_nursery("the client listens no more") as nursery:
        nursery.start_soon(changes.run, ask)
        changes.acknowledged = await changes.stream.acknowledgement()
        yield changes


def _seen_already(_: Change) -> None:
    """Do nothing: the watchers of the client were told when the change was read."""


async def _subscribed(upstream: Upstream, uri: str) -> list[str]:
    """Subscribe to ``uri`` and return it in a list; an empty list, for the acknowledgement, when the server refuses."""
    try:
        await upstream.subscribe(uri)
    except PeerError:
        return []
    return [uri]


def _acknowledgement(upstream: Upstream, asked: SubscriptionFilter, uris: list[str]) -> NotificationReceived:
    has = upstream.client.server_capabilities
    honoured = SubscriptionFilter(
        True if asked.tools_list_changed and has.tools and has.tools.list_changed else None,
        True if asked.prompts_list_changed and has.prompts and has.prompts.list_changed else None,
        True if asked.resources_list_changed and has.resources and has.resources.list_changed else None,
        uris or None,
    )
    params = unstructure(SubscriptionsAcknowledgedParams(honoured), LATEST_MODERN)
    return NotificationReceived(LATEST_MODERN.methods[_ACKNOWLEDGED], params, LATEST_MODERN)
