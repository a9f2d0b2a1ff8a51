"""Subscriptions: how one client is notified of changes, in legacy and in modern revisions.

A `ListenStream` is the server's side of one ``subscriptions/listen`` request, from its acknowledgement to its end.
`ListenedTasks` reports task changes on such a stream.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import trio

from ..concurrency.wakeups import Sleeper
from ..jsonrpc.codec import frame_notification
from ..jsonrpc.errors import METHOD_NOT_FOUND, TOO_BUSY, CodedError
from ..protocol.converters import structure_params, unstructure
from ..protocol.errors import CapabilityMissing
from ..protocol.meta import SUBSCRIPTION_ID
from ..protocol.methods import Method
from ..protocol.revisions import Revision
from ..protocol.types.lifecycle import EmptyResult, ServerCapabilities
from ..protocol.types.notifications import (
    ListenParams,
    ListenResult,
    SubscriptionFilter,
    SubscriptionsAcknowledgedParams,
    changing_lists,
    filter_of,
    lists_in,
)
from ..protocol.types.offers import SubscribeParams
from ..protocol.types.tools import TASKS_CAPABILITY
from ..runtime.connection import Connection
from ..runtime.exchange import Exchange
from ..runtime.peer import Auth
from ..runtime.requests.scope import RequestScope
from ..state.requests import InboundRequest
from .offers.uris import check_length, normal_uri
from .running_tasks import RunningTasks
from .server import Server

if TYPE_CHECKING:
    from ..stores.task_store import TaskRecord
    from ..tasks.records import TaskRecords

_DONE: Final = EmptyResult()
_NONE: Final = frozenset[str]()
_TELLING_MARKS: Final = 16
"""Extension notifications are dropped while the outbox contains more than this many times its high-water mark."""


class ClientSubscriptions:
    """The subscriptions of one client: the changes of which the client wants to be notified.

    In legacy revisions: list changes, and the resources that the client subscribed to. In modern revisions: the changes
    that each open stream requested. One connection may use both.
    """

    def __init__(self, server: Server, connection: Connection, tasks: RunningTasks) -> None:
        self._server = server
        self._tasks = tasks
        self._connection = connection
        self._state = connection.state
        self._limits = connection.limits
        self._streams: dict[ListenStream, None] = {}
        self._spellings: dict[str, list[str]] | None = None
        """The URIs that a legacy client subscribed to, by normal form. `None` when the subscriptions have changed:
        `resource_updated` then computes it again."""
        self.declared = server.capabilities
        """The capabilities that the server declared in its response to ``initialize``. A legacy client is notified of
        list changes only for lists that these capabilities include."""
        self.notifies_legacy = True
        """True if this replica notifies the legacy client. False if another replica does."""

    # Legacy revisions

    def subscribe(self, request: InboundRequest, auth: Auth | None) -> EmptyResult:
        """Answer ``resources/subscribe``: record the client's subscription to a resource."""
        self._check_stateful(request)
        uri = uri_to_subscribe(request)
        if self._server._resources.find(uri, auth) is None:
            raise CodedError(request.revision.resource_not_found, "Resource not found", {"uri": uri})
        subscriptions = self._state.subscriptions
        if uri not in subscriptions and self._free_subscriptions(self._connection.exchange) <= 0:
            raise too_many_subscriptions()
        if uri not in subscriptions:
            self._spellings = None
            subscriptions.add(uri)
            self._count_watched([uri], 1)
        return _DONE

    def unsubscribe(self, request: InboundRequest) -> EmptyResult:
        """Answer ``resources/unsubscribe``: remove the client's subscription to a resource."""
        self._check_stateful(request)
        uri = structure_params(request.params, SubscribeParams, request.revision).uri
        if uri in self._state.subscriptions:
            self._spellings = None
            self._state.subscriptions.discard(uri)
            self._count_watched([uri], -1)
        return _DONE

    def adopt(self, uris: Iterable[str]) -> None:
        """Replace the client's subscriptions by ``uris``, which another replica stored for the client's session."""
        before, after = self._state.subscriptions, set(uris)
        self._count_watched(after - before, 1)
        self._count_watched(before - after, -1)
        self._state.subscriptions, self._spellings = after, None

    def close(self) -> None:
        """Drop all subscriptions of a client that has disconnected."""
        self._count_watched(self._state.subscriptions, -1)

    def _count_watched(self, uris: Iterable[str], delta: int) -> None:
        """Add ``delta`` to the number of clients that are subscribed to each of ``uris``."""
        for uri in uris:
            self._server._resources.change_watchers(uri, delta)

    def _check_stateful(self, request: InboundRequest) -> None:
        """Raise an error for the subscription ``request`` on a stateless server, because a subscription is state that
        the server must keep."""
        if self._connection.stateless:
            raise CodedError(METHOD_NOT_FOUND, "Method not found", {"method": request.method.name})

    def _free_subscriptions(self, exchange: Exchange) -> int:
        """Return how many more resources and tasks the client may subscribe to with the request in ``exchange``."""
        taken = sum(len(stream.uris) + len(stream.task_ids) for stream in self._streams if stream.exchange is exchange)
        if exchange is self._connection.exchange:
            taken += len(self._state.subscriptions)
        return self._limits.max_subscriptions - taken

    # Modern revisions

    async def listen(self, scope: RequestScope) -> ListenResult:
        """Answer ``subscriptions/listen``: report changes on the request's stream until the client cancels the request
        or the connection closes.

        All state of the stream belongs to this request, so stateless servers support the method as well.
        """
        asked = structure_params(scope.request.params, ListenParams, scope.request.revision).notifications
        tasks = await self._visible_tasks(scope, asked.task_ids or ()) if asked.task_ids is not None else []
        uris = await self._visible_uris(asked.resource_subscriptions or (), scope.exchange.peer.auth)
        room = max(self._free_subscriptions(scope.exchange), 0)
        uris = uris[:room]
        tasks = tasks[: room - len(uris)]
        stream = ListenStream(
            scope, honoured_part(asked, self._server.capabilities, uris, tasks, _declared_extensions(scope, asked))
        )
        self._streams[stream] = None
        self._count_watched(stream.uris, 1)
        try:
            stream.acknowledge()
            if tasks:
                await self._report_tasks(scope, stream)
            else:
                await scope.exchange.ending.wait()
            return stream.close(CONNECTION_ENDS)
        finally:
            del self._streams[stream]
            self._count_watched(stream.uris, -1)

    async def _report_tasks(self, scope: RequestScope, stream: ListenStream) -> None:
        """Report changes of MCP tasks on ``stream`` until the connection closes."""
        from ..tasks.task_methods import scope_of  # lazy import: most servers have no MCP tasks

        tasks = ListenedTasks(self._tasks.records, scope_of(scope), stream, scope.request.revision)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tasks.run)
            await scope.exchange.ending.wait()
            nursery.cancel_scope.cancel(reason=CONNECTION_ENDS)

    async def _visible_tasks(self, scope: RequestScope, task_ids: Sequence[str]) -> list[str]:
        """Return those of the ``task_ids`` whose MCP tasks exist for the caller.

        Raises `CapabilityMissing` if the client didn't declare the tasks capability, and `CodedError` if a task's tool
        needs a scope that the caller lacks.
        """
        if not (self._server._tools.has_tasks and self._tasks.are_stored):
            return []
        if missing := scope.request.missing((TASKS_CAPABILITY,)):
            # By the tasks extension, the request MUST be refused if the client didn't declare the capability.
            raise CapabilityMissing(missing, scope.request.revision)
        from ..tasks.task_methods import scope_of  # lazy import: most servers have no MCP tasks

        records = self._tasks.records
        asked = list(dict.fromkeys(task_ids))[: self._limits.max_subscriptions]
        known = list[str]()
        for task_id in asked:
            record = await records.read(scope_of(scope), task_id)
            if record is not None and self._server._tools.task_exists(scope, record):
                self._server._tools.check_scopes(scope, record)
                known.append(task_id)
        return known

    async def _visible_uris(self, uris: Sequence[str], auth: Auth | None) -> list[str]:
        known: list[str] = []
        for uri in list(dict.fromkeys(uris))[: self._limits.max_subscriptions]:
            if self._server._resources.find(uri, auth) is not None:
                known.append(uri)
            # Let other tasks run, because matching a thousand URIs against many templates takes time.
            await trio.lowlevel.checkpoint()
        return known

    # Changes

    def list_changed(self, method: str) -> None:
        """Report a list change to the client.

        A legacy client is notified if it is initialized, and if the server declared the list. Each stream reports the
        change if the client requested the list for the stream.
        """
        kind = method.split("/")[1]
        state = self._state
        if self.notifies_legacy and state.revision is not None and state.initialized and getattr(self.declared, kind):
            self._connection.notify(method)
        for stream in self._streams:
            if method in stream.lists:
                stream.list_changed(method)

    def resource_updated(self, uri: str) -> None:
        """Report to the client that the resource ``uri`` changed.

        A legacy client is notified if it subscribed to the resource. Each stream reports the change if the client
        requested the resource for the stream.

        Each notification contains the URI as the client spelled it.
        """
        if self._spellings is None:
            self._spellings = _by_normal_form(self._state.subscriptions)
        normal = normal_uri(uri)
        for spelling in self._spellings.get(normal, ()) if self.notifies_legacy else ():
            self._connection.notify("notifications/resources/updated", {"uri": spelling})
        for stream in self._streams:
            for spelling in stream.spellings.get(normal, ()):
                stream.resource_updated(spelling)

    def send_extension_notification(self, row: Method, params: Any) -> None:
        """Send an extension notification to the client.

        A legacy client gets the notification if it is initialized and has declared the extension. Each stream sends the
        notification if the client requested the extension for the stream.

        See `Server.notify`.
        """
        state, name = self._state, str(row.extension)
        revision = state.revision
        if self.notifies_legacy and revision is not None and state.initialized and row.is_in(revision.name):
            declared = state.client_capabilities.extensions or {}
            if type(declared.get(name)) is dict and not self._connection.outbox.is_full(_TELLING_MARKS):
                self._connection.outbox.put_sealed(_line(row.name, unstructure(params, revision)))
        for stream in self._streams:
            if name in stream.extensions:
                stream.notify(row, params)

    def everything_changed(self) -> None:
        """Notify the client that all lists, and all resources that it has subscribed to, may have changed.

        This concerns a legacy client, and all streams.

        See `ServedConnection.everything_changed`.
        """
        if self.notifies_legacy and self._state.initialized:
            notify_everything_changed(self._connection, self.declared)
        for stream in self._streams:
            for method in sorted(stream.lists):
                stream.list_changed(method)
            for uri in sorted(stream.uris):
                stream.resource_updated(uri)


def _by_normal_form(uris: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for uri in uris:
        found.setdefault(normal_uri(uri), []).append(uri)
    return found


def _declared_extensions(scope: RequestScope, asked: SubscriptionFilter) -> list[str]:
    """Return the names of the extensions whose notifications the client requested, except extensions that the client
    didn't declare in this request."""
    declared = scope.request.capabilities.extensions or {}
    return [name for name in asked.extensions or () if type(declared.get(name)) is dict]


def notify_everything_changed(connection: Connection, declared: ServerCapabilities) -> None:
    """Notify a client of a legacy protocol revision that all lists, and all resources that it has subscribed to, may
    have changed.

    The client gets one notification for each list that can change according to ``declared``, and for each resource that
    it has subscribed to.
    """
    for kind in changing_lists(declared):
        connection.notify(f"notifications/{kind}/list_changed")
    for uri in connection.state.subscriptions:
        connection.notify("notifications/resources/updated", {"uri": uri})


def uri_to_subscribe(request: InboundRequest) -> str:
    """Return the URI in a ``resources/subscribe`` request. Raises `CodedError` (-32602) if the URI is missing or too
    long."""
    uri = structure_params(request.params, SubscribeParams, request.revision).uri
    check_length(uri)
    return uri


def too_many_subscriptions() -> CodedError:
    """Return the error for a client that exceeds `Limits.max_subscriptions`."""
    return CodedError(TOO_BUSY, "Too busy: too many subscriptions on this connection")


CONNECTION_ENDS: Final = "the connection is ending"
"""The reason that is sent when a stream ends because its connection closes."""


def honoured_part(
    asked: SubscriptionFilter,
    declared: ServerCapabilities,
    uris: list[str],
    task_ids: list[str] | None = None,
    extensions: Iterable[str] = (),
) -> SubscriptionFilter:
    """Return those of the requested changes ``asked`` that the server can report (2026-07-28 subscriptions,
    Acknowledgment).

    ``declared`` are the server's capabilities, ``uris`` its resources, ``task_ids`` its tasks, and ``extensions`` the
    requested extensions.
    """
    known = [name for name in extensions if name in (declared.extensions or {})]
    lists = {*changing_lists(declared)}.intersection(lists_in(asked))
    return filter_of(lists, resource_subscriptions=uris, task_ids=task_ids, extensions=known)


class ListenStream:
    """The stream of a ``subscriptions/listen`` request. The stream reports changes to a client, and is open from
    `acknowledge` to `close`.

    The stream's messages belong to the ``scope`` of its request, so a cancel removes those not yet written. While the
    outbox is full, changes are queued here, each at most once, so a slow client blocks no sender. A sender of an
    unbounded number of changes must wait for `room` after each change.
    """

    def __init__(self, scope: RequestScope, honoured: SubscriptionFilter) -> None:
        self.uris = frozenset(honoured.resource_subscriptions or ())
        """URIs of the resources whose changes the stream reports."""
        self.spellings = _by_normal_form(self.uris)
        """The URIs of the stream's resources as the client spelled them, by normal form."""
        self.task_ids = tuple(honoured.task_ids or ())
        """Ids of the tasks that the stream reports."""
        self.extensions = frozenset(honoured.extensions) if honoured.extensions else _NONE
        """Names of the extensions whose notifications are sent on the stream."""
        self.lists = tuple(f"notifications/{kind}/list_changed" for kind in lists_in(honoured))
        """Notification methods of the lists whose changes the stream reports."""
        self.exchange = scope.exchange
        """The exchange of the request that opened the stream."""
        self._scope = scope
        self._outbox = scope.outbox
        self._honoured = honoured
        # By MCP 2026-07-28 (subscriptions page), the subscription id is the id of the request, with the same JSON type.
        self._meta = {SUBSCRIPTION_ID: scope.request.id}
        self._waiting: dict[bytes, None] = {}
        self._flush_scope = trio.CancelScope()

    def acknowledge(self) -> None:
        """Open the stream: notify the client which changes will be reported on the stream."""
        params = SubscriptionsAcknowledgedParams(self._honoured, self._meta)
        self._scope.put(
            _line("notifications/subscriptions/acknowledged", unstructure(params, self._scope.request.revision))
        )

    def list_changed(self, method: str) -> None:
        """Report on the stream that a list has changed. ``method`` is the method of the notification."""
        self._send(_line(method, self._params()))

    def resource_updated(self, uri: str) -> None:
        """Report on the stream that the resource ``uri`` has changed."""
        self._send(_line("notifications/resources/updated", self._params(uri=uri)))

    def notify_task(self, params: dict[str, Any]) -> None:
        """Report the state of an MCP task on the stream. ``params`` is the state as plain data.

        Task states aren't queued for a slow client: the caller must wait for `room` first, and then report the latest
        state.
        """
        meta: dict[str, Any] = params.get("_meta") or {}
        self._scope.put(_line("notifications/tasks", {**params, "_meta": {**meta, **self._meta}}))

    def notify(self, row: Method, params: Any) -> None:
        """Send an extension notification on the stream, if the notification exists in the stream's protocol revision.

        It is dropped while the outbox is full: see `notify_plain`.
        """
        revision = self._scope.request.revision
        if row.is_in(revision.name):
            self.notify_plain(row.name, unstructure(params, revision))

    def notify_plain(self, method: str, params: dict[str, Any]) -> None:
        """Send an extension notification with ``params`` on the SSE stream of this subscription.

        While the outbox is full, notifications are dropped, so that a slow client can't block the sender. Two
        notifications are never merged, because their contents may differ.
        """
        if not self._outbox.is_full(_TELLING_MARKS):
            meta: dict[str, Any] = params.get("_meta") or {}
            self._scope.put(_line(method, {**params, "_meta": {**meta, **self._meta}}))

    def close(self, reason: str) -> ListenResult:
        """Close the stream, and return the result of its request.

        First send the queued changes, then a cancellation notification with ``reason``: the specification requires this
        cancellation because the request is still open (2026-07-28 cancellation).
        """
        self._flush_scope.cancel(reason="the stream ends")
        for line in self._waiting:
            self._scope.put(line)
        self._waiting.clear()
        self._scope.put(_line("notifications/cancelled", self._params(requestId=self._scope.request.id, reason=reason)))
        return ListenResult(self._meta)

    @property
    def has_room(self) -> bool:
        """True if a change that is reported now can be sent at once, without waiting in a queue."""
        return not (self._waiting or self._outbox.is_full())

    async def room(self) -> None:
        """Wait until the client has read so many messages that another change can be sent. If that is already possible,
        return at once, without a checkpoint."""
        await self._outbox.room()

    def _params(self, **more: Any) -> dict[str, Any]:
        return {"_meta": self._meta, **more}

    def _send(self, line: bytes) -> None:
        if not self._scope.sends:
            return
        if self.has_room:
            self._scope.put(line)
            return
        if not self._waiting:
            nursery = self._scope.nursery
            assert nursery is not None, "a stream is open inside its nursery"
            nursery.start_soon(self._flush)
        self._waiting[line] = None

    async def _flush(self) -> None:
        """Send the stream's queued changes, in order, as soon as the queue of outgoing messages has room."""
        with trio.CancelScope() as self._flush_scope:
            while self._waiting:
                await self._outbox.room()
                while self._waiting and not self._outbox.is_full():
                    line = next(iter(self._waiting))
                    del self._waiting[line]
                    self._scope.put(line)


def _line(method: str, params: dict[str, Any]) -> bytes:
    return frame_notification(method, params) + b"\n"


_READ_AGAIN: Final = 1.0


class ListenedTasks:
    """Reports state changes of MCP tasks on ``stream``. The client has subscribed to these tasks.

    ``records`` contains the task records, under the client's ``scope``.

    First the client gets the current state of each task, since a task may have changed or ended before the client
    subscribed. Then it gets each change. If several changes happen while the client reads slowly, it gets the last one.
    """

    def __init__(self, records: TaskRecords, scope: str, stream: ListenStream, revision: Revision) -> None:
        self._records = records
        self._scope = scope
        self._stream = stream
        self._revision = revision
        self._changed = dict.fromkeys(stream.task_ids)
        """The ids of changed tasks whose records must be read again, in the order of their changes."""
        self._last_states: dict[str, Hashable] = dict.fromkeys(stream.task_ids, ())
        """The last reported state of each task that may still change."""
        self._sleeper = Sleeper()

    async def run(self) -> None:
        """Report state changes on the stream until all tasks have ended."""
        for task_id in self._last_states:
            self._records.observe(task_id, self._mark_changed)
        try:
            while self._last_states:
                while self._changed:
                    await self._stream.room()
                    await self._report(self._next())
                if self._last_states:
                    await self._sleeper.sleep()
        finally:
            for task_id in self._last_states:
                self._records.unobserve(task_id, self._mark_changed)

    def _mark_changed(self, task_id: str) -> None:
        self._changed[task_id] = None
        self._sleeper.wake()

    def _next(self) -> str:
        task_id = next(iter(self._changed))
        del self._changed[task_id]
        return task_id

    async def _report(self, task_id: str) -> None:
        if task_id not in self._last_states:
            return
        try:
            record = await self._records.read(self._scope, task_id)
        except Exception:  # already logged
            self._changed[task_id] = None
            await trio.sleep(_READ_AGAIN)
            return
        if record is not None and (state := _shown(record)) != self._last_states[task_id]:
            from ..tasks.record_views import extension_task  # lazy import: most servers have no MCP tasks

            self._last_states[task_id] = state
            self._stream.notify_task(unstructure(extension_task(record, self._revision), self._revision))
        if record is None or record.phase.is_final:
            del self._last_states[task_id]
            self._records.unobserve(task_id, self._mark_changed)


def _shown(record: TaskRecord) -> Hashable:
    """Return the fields of a task record that clients see and that can still change."""
    return record.updated_at, record.phase, record.message, *record.questions
