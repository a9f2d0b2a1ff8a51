"""Subscriptions: telling one client of changes, each era in its own form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import trio

from ..jsonrpc.codec import frame_notification
from ..jsonrpc.errors import METHOD_NOT_FOUND, CodedError
from ..protocol.conversion.converters import structure_params, unstructure
from ..protocol.meta import SUBSCRIPTION_ID
from ..protocol.types.lifecycle import EmptyResult
from ..protocol.types.resources import SubscribeParams
from ..protocol.types.subscriptions import (
    ListenParams,
    ListenResult,
    SubscriptionFilter,
    SubscriptionsAcknowledgedParams,
)
from ..runtime.duplex import DuplexChannel
from ..runtime.requests.request_scope import RequestScope
from ..state.requests import InboundRequest
from .server import Server
from .subscribe_bounds import too_many_subscriptions, uri_to_subscribe

__all__ = ["Subscriptions"]

_DONE: Final = EmptyResult()
_UPDATED: Final = "notifications/resources/updated"


class Subscriptions:
    """The changes that one connection is told of: in legacy revisions list changes and the resources it subscribed to,
    in modern ones what each of its open streams asked for. Both may be in use at once."""

    def __init__(self, server: Server, duplex: DuplexChannel) -> None:
        self._server = server
        self._duplex = duplex
        self._state = duplex.state
        self._limits = duplex.limits
        self._streams: dict[_Stream, None] = {}
        self.declared = server.capabilities
        """Capabilities that ``initialize`` declared: legacy clients are told of no other lists."""

    # Legacy revisions

    def subscribe(self, request: InboundRequest) -> EmptyResult:
        """Answer ``resources/subscribe``."""
        if self._duplex.wiring.stateless:
            raise CodedError(METHOD_NOT_FOUND, "Method not found", {"method": request.method.name})
        uri = uri_to_subscribe(request)
        if self._server.resources.find(uri) is None:
            raise CodedError(request.revision.resource_not_found, "Resource not found", {"uri": uri})
        subscriptions = self._state.subscriptions
        if uri not in subscriptions and self._room() <= 0:
            raise too_many_subscriptions()
        subscriptions.add(uri)
        return _DONE

    def unsubscribe(self, request: InboundRequest) -> EmptyResult:
        """Answer ``resources/unsubscribe``."""
        self._state.subscriptions.discard(structure_params(request.params, SubscribeParams, request.revision).uri)
        return _DONE

    def _room(self) -> int:
        """Return how many more resources may be subscribed to."""
        taken = len(self._state.subscriptions) + sum(len(stream.uris) for stream in self._streams)
        return self._limits.max_subscriptions - taken

    # Modern revisions

    async def listen(self, scope: RequestScope) -> ListenResult:
        """Answer ``subscriptions/listen``: tell of changes until the client cancels it or the connection ends.

        All state of the stream belongs to this request, so a server run stateless serves it, too.
        """
        asked = structure_params(scope.request.params, ListenParams, scope.request.revision).notifications
        known = await self._known(asked.resource_subscriptions or ())
        stream = _Stream(scope, self._honoured(asked, known[: max(self._room(), 0)]))
        self._streams[stream] = None
        try:
            return await stream.run()
        finally:
            del self._streams[stream]

    def _honoured(self, asked: SubscriptionFilter, known: list[str]) -> SubscriptionFilter:
        """Return the subset of ``asked`` that this server can tell of (2026-07-28 subscriptions, Acknowledgment)."""
        has = self._server.capabilities
        return SubscriptionFilter(
            True if asked.tools_list_changed and has.tools else None,
            True if asked.prompts_list_changed and has.prompts else None,
            True if asked.resources_list_changed and has.resources else None,
            known or None,
        )

    async def _known(self, uris: Sequence[str]) -> list[str]:
        known: list[str] = []
        for uri in list(dict.fromkeys(uris))[: self._limits.max_subscriptions]:
            if self._server.resources.find(uri) is not None:
                known.append(uri)
            await trio.lowlevel.checkpoint()  # a thousand long URIs and many templates take their time
        return known

    # Changes

    def list_changed(self, method: str) -> None:
        """Tell a legacy client, once it is initialized and if the list was declared, and the streams that asked."""
        kind = method.split("/")[1]
        if self._state.revision is not None and self._state.initialized and getattr(self.declared, kind) is not None:
            self._duplex.notify(method)
        for stream in self._streams:
            stream.list_changed(method)

    def resource_updated(self, uri: str) -> None:
        """Tell a legacy client that subscribed to it, and the streams that asked."""
        if uri in self._state.subscriptions:
            self._duplex.notify(_UPDATED, {"uri": uri})
        for stream in self._streams:
            stream.resource_updated(uri)


class _Stream:
    """A ``subscriptions/listen`` request from its acknowledgement to its end.

    Its lines belong to the scope of its request, so a cancel takes back those that were not written. While the outbox
    is full, changes wait here instead, each at most once: that is no more than what the client subscribed to, however
    slowly it reads, and nobody else waits for it.
    """

    def __init__(self, scope: RequestScope, honoured: SubscriptionFilter) -> None:
        self.uris = frozenset(honoured.resource_subscriptions or ())
        self._scope = scope
        self._outbox = scope.outbox
        self._honoured = honoured
        # 2026-07-28 subscriptions, Receiving Notifications: the id of the request, of its very JSON type.
        self._meta = {SUBSCRIPTION_ID: scope.request.id}
        asked = {
            "tools": honoured.tools_list_changed,
            "prompts": honoured.prompts_list_changed,
            "resources": honoured.resources_list_changed,
        }
        self._lists = {f"notifications/{kind}/list_changed" for kind, wanted in asked.items() if wanted}
        self._waiting: dict[bytes, None] = {}
        self._letting_out = trio.CancelScope()

    async def run(self) -> ListenResult:
        """Tell of changes until the connection starts to end. Then send the last changes, send the cancel of
        the request while it is open (2026-07-28 cancellation: MUST), and return its result, which ends it."""
        acknowledged = SubscriptionsAcknowledgedParams(self._honoured, self._meta)
        revision = self._scope.request.revision
        self._put(_line("notifications/subscriptions/acknowledged", unstructure(acknowledged, revision)))
        await self._scope.wiring.ending.wait()
        self._letting_out.cancel(reason="the stream ends")
        for line in self._waiting:
            self._put(line)
        self._waiting.clear()
        reason = "the connection is ending"
        self._put(_line("notifications/cancelled", self._params(requestId=self._scope.request.id, reason=reason)))
        return ListenResult(self._meta)

    def list_changed(self, method: str) -> None:
        """Tell the client, if it asked, that a list changed, for which ``method`` is the notification."""
        if method in self._lists:
            self._tell(_line(method, self._params()))

    def resource_updated(self, uri: str) -> None:
        """Tell the client, if it asked, that a resource changed."""
        if uri in self.uris:
            self._tell(_line(_UPDATED, self._params(uri=uri)))

    def _params(self, **more: Any) -> dict[str, Any]:
        return {"_meta": self._meta, **more}

    def _tell(self, line: bytes) -> None:
        if self._scope.finished:
            return
        if not (self._waiting or self._outbox.is_full()):
            self._put(line)
            return
        if not self._waiting:
            assert self._scope.nursery is not None, "a stream is open inside its nursery"
            self._scope.nursery.start_soon(self._let_out)
        self._waiting[line] = None

    async def _let_out(self) -> None:
        """Put the changes that wait into the outbox, in the order in which they came, as there is room."""
        with trio.CancelScope() as self._letting_out:
            while self._waiting:
                await self._outbox.room()
                while self._waiting and not self._outbox.is_full():
                    line = next(iter(self._waiting))
                    del self._waiting[line]
                    self._put(line)

    def _put(self, line: bytes) -> None:
        if not self._scope.finished:  # cancelled, but its tasks have not run since
            self._outbox.put(line, self._scope)


def _line(method: str, params: dict[str, Any]) -> bytes:
    return frame_notification(method, params) + b"\n"
