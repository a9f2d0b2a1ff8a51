"""Subscriptions: telling one client of changes, each era in its own form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import trio

from ..jsonrpc.errors import METHOD_NOT_FOUND, TOO_BUSY, CodedError
from ..protocol.converters import structure_params
from ..protocol.errors import CapabilityMissing
from ..protocol.types.lifecycle import EmptyResult, ServerCapabilities
from ..protocol.types.notifications import ListenParams, ListenResult
from ..protocol.types.resources import SubscribeParams
from ..protocol.types.tasks import TASKS_CAPABILITY
from ..runtime.duplex import DuplexChannel
from ..runtime.exchange import Exchange
from ..runtime.requests.request_scope import RequestScope
from ..state.requests import InboundRequest
from ..tasks.task_methods import scope_of
from .listen_stream import CONNECTION_ENDS, ListenStream, honoured_part
from .listened_tasks import ListenedTasks
from .offers.uri_templates import check_length
from .running_tasks import RunningTasks
from .server import Server

_DONE: Final = EmptyResult()


class Subscriptions:
    """The changes that one connection is told of: in legacy revisions list changes and the resources subscribed to, in
    modern revisions the changes that each open stream asked for. Both ways may be in use at once."""

    def __init__(self, server: Server, duplex: DuplexChannel, tasks: RunningTasks) -> None:
        self._server = server
        self._tasks = tasks
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
        self._check_kept(request)
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
        self._check_kept(request)
        self._state.subscriptions.discard(structure_params(request.params, SubscribeParams, request.revision).uri)
        return _DONE

    def _check_kept(self, request: InboundRequest) -> None:
        """Refuse ``request`` where nothing is kept between requests: there is nothing to subscribe to, then."""
        if self._duplex.stateless:
            raise CodedError(METHOD_NOT_FOUND, "Method not found", {"method": request.method.name})

    def _room(self, exchange: Exchange) -> int:
        """Return how many more resources and tasks ``exchange`` may subscribe to."""
        taken = sum(len(stream.uris) + len(stream.task_ids) for stream in self._streams if stream.exchange is exchange)
        if exchange is self._duplex.exchange:
            taken += len(self._state.subscriptions)
        return self._limits.max_subscriptions - taken

    # Modern revisions

    async def listen(self, scope: RequestScope) -> ListenResult:
        """Answer ``subscriptions/listen``: tell of changes until the client cancels the request or the connection ends.

        All state of the stream belongs to this request, so a server run stateless serves the method, too.
        """
        asked = structure_params(scope.request.params, ListenParams, scope.request.revision).notifications
        tasks = await self._known_tasks(scope, asked.task_ids or ()) if asked.task_ids is not None else []
        uris = await self._known(asked.resource_subscriptions or ())
        room = max(self._room(scope.exchange), 0)
        uris = uris[:room]
        tasks = tasks[: room - len(uris)]
        stream = ListenStream(scope, honoured_part(asked, self._server.capabilities, uris, tasks))
        self._streams[stream] = None
        try:
            stream.acknowledge()
            if tasks:
                await self._tell_of_tasks(scope, stream)
            else:
                await scope.exchange.ending.wait()
            return stream.end(CONNECTION_ENDS)
        finally:
            del self._streams[stream]

    async def _tell_of_tasks(self, scope: RequestScope, stream: ListenStream) -> None:
        """Tell of tasks until the connection ends."""
        tasks = ListenedTasks(self._tasks.records, scope_of(scope), stream, scope.request.revision)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tasks.run)
            await scope.exchange.ending.wait()
            nursery.cancel_scope.cancel(reason=CONNECTION_ENDS)

    async def _known_tasks(self, scope: RequestScope, task_ids: Sequence[str]) -> list[str]:
        """Return the ids of tasks that exist for the caller. Raises `CapabilityMissing`, and `CodedError` for the task
        of a tool that needs a scope which the caller lacks."""
        if not (self._server.tools.has_tasks and self._tasks.are_kept):
            return []
        if missing := scope.request.missing((TASKS_CAPABILITY,)):
            # extension tasks, Task Status Notifications: MUST be refused.
            raise CapabilityMissing(missing, scope.request.revision)
        records = self._tasks.records
        asked = list(dict.fromkeys(task_ids))[: self._limits.max_subscriptions]
        known = list[str]()
        for task_id in asked:
            record = await records.read(scope_of(scope), task_id)
            if record is not None:
                self._tasks.check_scopes(scope, record)
                known.append(task_id)
        return known

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

    def everything_changed(self) -> None:
        """Tell a legacy client that everything may have changed: see `Connection.everything_changed`."""
        if self._state.initialized:
            tell_of_everything(self._duplex, self._declared)


def tell_of_everything(duplex: DuplexChannel, declared: ServerCapabilities) -> None:
    """Tell the legacy client of ``duplex`` that each list that was ``declared`` to change, and each resource that the
    client subscribed to, may have changed."""
    for kind in ("tools", "prompts", "resources"):
        capability = getattr(declared, kind)
        if capability is not None and capability.list_changed:
            duplex.notify(f"notifications/{kind}/list_changed")
    for uri in duplex.state.subscriptions:
        duplex.notify("notifications/resources/updated", {"uri": uri})


def uri_to_subscribe(request: InboundRequest) -> str:
    """Return the URI that ``resources/subscribe`` asks for. Raises `CodedError` (-32602) for a missing URI and for a
    URI that is too long."""
    uri = structure_params(request.params, SubscribeParams, request.revision).uri
    check_length(uri)
    return uri


def too_many_subscriptions() -> CodedError:
    """Return the error for one subscription more than `Limits.max_subscriptions`."""
    return CodedError(TOO_BUSY, "Too busy: too many subscriptions on this connection")
