"""Subscriptions: telling one client of changes, each era in its own form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import trio

from ..jsonrpc.errors import METHOD_NOT_FOUND, TOO_BUSY, CodedError
from ..protocol.conversion.converters import structure_params
from ..protocol.types.capabilities import ServerCapabilities
from ..protocol.types.lifecycle import EmptyResult
from ..protocol.types.resources import SubscribeParams
from ..protocol.types.subscriptions import ListenParams, ListenResult
from ..runtime.duplex import DuplexChannel
from ..runtime.exchange import Exchange
from ..runtime.requests.request_scope import RequestScope
from ..state.requests import InboundRequest
from .listen_stream import CONNECTION_ENDS, ListenStream, honoured_part
from .offers.uri_templates import check_length
from .server import Server

__all__ = ["Subscriptions", "too_many_subscriptions", "uri_to_subscribe"]

_DONE: Final = EmptyResult()


class Subscriptions:
    """The changes that one connection is told of: in legacy revisions list changes and the resources subscribed to, in
    modern revisions the changes that each open stream asked for. Both ways may be in use at once."""

    def __init__(self, server: Server, duplex: DuplexChannel) -> None:
        self._server = server
        self._duplex = duplex
        self._state = duplex.state
        self._limits = duplex.limits
        self._streams: dict[ListenStream, None] = {}
        self._declared = server.capabilities
        """Capabilities that ``initialize`` declared: legacy clients are told of no other lists."""

    # Legacy revisions

    def declare(self, capabilities: ServerCapabilities) -> None:
        """Note the capabilities that ``initialize`` declares now."""
        self._declared = capabilities

    def subscribe(self, request: InboundRequest) -> EmptyResult:
        """Answer ``resources/subscribe``."""
        if self._duplex.stateless:
            raise CodedError(METHOD_NOT_FOUND, "Method not found", {"method": request.method.name})
        uri = uri_to_subscribe(request)
        if self._server.resources.find(uri) is None:
            raise CodedError(request.revision.resource_not_found, "Resource not found", {"uri": uri})
        subscriptions = self._state.subscriptions
        if uri not in subscriptions and self._room(self._duplex.exchange) <= 0:
            raise too_many_subscriptions()
        subscriptions.add(uri)
        return _DONE

    def unsubscribe(self, request: InboundRequest) -> EmptyResult:
        """Answer ``resources/unsubscribe``."""
        self._state.subscriptions.discard(structure_params(request.params, SubscribeParams, request.revision).uri)
        return _DONE

    def _room(self, exchange: Exchange) -> int:
        """Return how many more resources ``exchange`` may subscribe to."""
        taken = sum(len(stream.uris) for stream in self._streams if stream.exchange is exchange)
        if exchange is self._duplex.exchange:
            taken += len(self._state.subscriptions)
        return self._limits.max_subscriptions - taken

    # Modern revisions

    async def listen(self, scope: RequestScope) -> ListenResult:
        """Answer ``subscriptions/listen``: tell of changes until the client cancels the request or the connection ends.

        All state of the stream belongs to this request, so a server run stateless serves the method, too.
        """
        asked = structure_params(scope.request.params, ListenParams, scope.request.revision).notifications
        known = await self._known(asked.resource_subscriptions or ())
        room = self._room(scope.exchange)
        stream = ListenStream(scope, honoured_part(asked, self._server.capabilities, known[: max(room, 0)]))
        self._streams[stream] = None
        try:
            stream.acknowledge()
            await scope.exchange.ending.wait()
            return stream.end(CONNECTION_ENDS)
        finally:
            del self._streams[stream]

    async def _known(self, uris: Sequence[str]) -> list[str]:
        known: list[str] = []
        for uri in list(dict.fromkeys(uris))[: self._limits.max_subscriptions]:
            if self._server.resources.find(uri) is not None:
                known.append(uri)
            await trio.lowlevel.checkpoint()  # a thousand long URIs and many templates take time
        return known

    # Changes

    def list_changed(self, method: str) -> None:
        """Tell a legacy client that is initialized, if the list was declared, and the streams that asked."""
        kind = method.split("/")[1]
        if self._state.revision is not None and self._state.initialized and getattr(self._declared, kind) is not None:
            self._duplex.notify(method)
        for stream in self._streams:
            if method in stream.lists:
                stream.list_changed(method)

    def resource_updated(self, uri: str) -> None:
        """Tell a legacy client that subscribed to ``uri``, and the streams that asked."""
        if uri in self._state.subscriptions:
            self._duplex.notify("notifications/resources/updated", {"uri": uri})
        for stream in self._streams:
            if uri in stream.uris:
                stream.resource_updated(uri)


def uri_to_subscribe(request: InboundRequest) -> str:
    """Return the URI that ``resources/subscribe`` asks for. Raises `CodedError` (-32602) for a missing URI and for a
    URI that is too long."""
    uri = structure_params(request.params, SubscribeParams, request.revision).uri
    check_length(uri)
    return uri


def too_many_subscriptions() -> CodedError:
    """Return the error for one subscription more than `Limits.max_subscriptions`."""
    return CodedError(TOO_BUSY, "Too busy: too many subscriptions on this connection")
