"""`Downstream`: a client of a proxy or gateway. `ForwardedCall`: a request of that client that the proxy has forwarded
to the upstream server."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator
from contextvars import ContextVar, copy_context
from typing import Any, Final

import attrs
import trio

from ..classes import define
from ..client.server_messages import OpenURLElicitations
from ..concurrency.bounded import Backlog
from ..concurrency.contexts import contextmanager
from ..jsonrpc.codec import encode_value, frame_notification
from ..jsonrpc.errors import INTERNAL_ERROR, CodedError, NotSerializable
from ..jsonrpc.messages import RequestId
from ..protocol.errors import NoBackChannel
from ..protocol.fields import JSONObject
from ..protocol.meta import SUBSCRIPTION_ID, related_task_of
from ..protocol.revisions import Revision
from ..protocol.types.input_required import ASKABLE
from ..protocol.types.lifecycle import ClientCapabilities
from ..protocol.types.notifications import log_level_rank, should_log
from ..runtime.calls import OnProgress
from ..runtime.connection import Connection
from ..runtime.limits import Limits
from ..runtime.notifications import NotificationQueue
from ..runtime.peer import PrincipalId
from ..runtime.requests.rounds import require_input, sends_questions
from ..runtime.requests.scope import RequestScope
from ..state.connection import ConnectionState
from ..state.events import NotificationReceived
from .extensions import NONE_SHARED, SharedExtensions, is_unknown

logger = logging.getLogger("trio_mcp")

LOG: Final = "notifications/message"
COMPLETE: Final = "notifications/elicitation/complete"
_OVER: Final = "Internal error: the call for which this request was sent has ended"


_current_call: ContextVar[ForwardedCall | None] = ContextVar("trio_mcp.forwarded_call", default=None)
_MAX_IDS: Final = 64


def record_request(request_id: RequestId) -> None:
    """Record that the request ``request_id`` to the upstream server belongs to the client's call that the current trio
    task forwards.

    Does nothing if the current task forwards no call.
    """
    call = _current_call.get()
    if call is not None:
        call.record_request_id(request_id)


class ForwardedCall:
    """A client's request that was forwarded to the upstream server and has no response yet.

    ``known`` maps the ids of requests to the upstream server to their `ForwardedCall`.
    """

    def __init__(self, scope: RequestScope, downstream: Downstream, known: dict[RequestId, ForwardedCall]) -> None:
        self.scope = scope
        self.downstream = downstream
        self.task_id: str | None = None
        """The task with which the upstream server continues the call, if the proxy waits for that task."""
        self._questions: set[trio.CancelScope] = set()
        self._known = known
        self._ids = deque[RequestId]()
        self._pending_logs: _PendingLogs | None = None

    @property
    def revision(self) -> Revision:
        """The protocol revision of the client's request."""
        return self.scope.request.revision

    @property
    def capabilities(self) -> ClientCapabilities:
        """The capabilities that the client declared for this call."""
        return self.scope.request.capabilities

    def record_request_id(self, request_id: RequestId) -> None:
        """Record that the request ``request_id``, which the proxy sent to the upstream server, belongs to this call.

        Messages within the response to ``request_id`` then belong to this call as well. Only the latest 64 ids are
        kept.
        """
        self._known[request_id] = self
        self._ids.append(request_id)
        if len(self._ids) > _MAX_IDS:
            del self._known[self._ids.popleft()]

    @property
    def is_cancelled(self) -> bool:
        """True once the client's request was cancelled."""
        return self.scope.is_cancelled

    @property
    def may_ask(self) -> bool:
        """True if a server-to-client request (sampling, elicitation, roots) can be sent to the client during this
        call."""
        return self.revision.server_requests or self.scope.request.method.may_ask

    async def ask(self, method: str, params: JSONObject, on_progress: OnProgress | None, key: str | None) -> Any:
        """Send a request of the upstream server to the client, and return the client's response as plain data.

        The request is for sampling, elicitation or roots.

        The request is cancelled when the call ends. Raises `CodedError` if the client can't get such a request or the
        call has ended, and the errors of `Connection.request`.
        """
        await self.caught_up()
        if sends_questions(self.scope) or (self.revision.server_requests and method not in ASKABLE):
            return await self.scope.ask(method, params, self.revision, on_progress)
        if not self.may_ask:
            raise NoBackChannel(
                f"a {self.scope.request.method.name} call cannot send requests to its client in MCP {self.revision}"
            )
        with trio.CancelScope() as question:
            self._questions.add(question)
            try:
                return await require_input(self.scope, method, params or None, key)
            finally:
                self._questions.discard(question)
        raise CodedError(INTERNAL_ERROR, _OVER)

    def notify(self, event: NotificationReceived) -> None:
        """Send a notification of the upstream server to the client, as a message that belongs to this call.

        Log messages below the client's log level aren't sent. If the channel is full, notifications wait in a queue,
        with the limits of a `NotificationQueue`, so that other calls aren't blocked.
        """
        scope, nursery = self.scope, self.scope.nursery
        if nursery is None or not scope.sends or (event.method.name == LOG and not self._wants(event)):
            return
        try:
            line = scope.notification(event.method.name, event.params)
        except NotSerializable:
            return  # the notification contains a lone surrogate, which JSON can't represent
        if self._pending_logs is None and not scope.outbox.is_full():
            scope.put(line)
            return
        if self._pending_logs is None:
            self._pending_logs = _PendingLogs(self.downstream.limits)
            nursery.start_soon(self._flush_logs, self._pending_logs)
        self._pending_logs.lines.put(line, len(line))

    def _wants(self, event: NotificationReceived) -> bool:
        level: Any = event.params.get("level")
        request = self.scope.request
        minimum = request.log_level
        # In legacy protocol revisions, forward log messages of all levels until the client sets a level.
        if request.revision.handshake:
            minimum = self.downstream.log_level if self.downstream.level_is_set else "debug"
        return isinstance(level, str) and minimum is not None and should_log(level, minimum)

    async def _flush_logs(self, late: _PendingLogs) -> None:
        with late.flushing:
            while late.lines:
                await self.scope.outbox.room()
                self.scope.put(late.lines.pop())
        self._pending_logs = None
        late.flushed.set()

    async def caught_up(self) -> None:
        """Wait until all notifications that have arrived from the upstream server for this call are in the client's
        outbox."""
        await self.downstream.caught_up()
        while self._pending_logs is not None:
            await self._pending_logs.flushed.wait()

    def close(self) -> None:
        """End the call, because it was answered or cancelled: cancel its server-to-client requests, and drop its queued
        notifications."""
        while self._ids:
            del self._known[self._ids.popleft()]
        for question in tuple(self._questions):
            question.cancel(reason="the call is over")
        if self._pending_logs is not None:
            self._pending_logs.flushing.cancel(reason="the call is over")


class _PendingLogs:
    """The log messages of one call that wait for room in the client's outbox."""

    def __init__(self, limits: Limits) -> None:
        self.lines = Backlog[bytes](limits.max_pending_notifications, limits.max_inbound_bytes)
        self.flushing = trio.CancelScope()
        self.flushed = trio.Event()


@define(eq=False)
class Downstream(ABC):
    """Interface of a client of a proxy or gateway, to which the upstream server's notifications and requests are
    forwarded.

    ``calls`` has the client's calls in flight.
    """

    limits: Limits
    _state: ConnectionState
    principal: PrincipalId | None
    """The principal of the client; `None` if the transport doesn't know it."""
    shared_extensions: SharedExtensions
    """The extensions that are forwarded even if other clients share the upstream connection."""
    is_connectionless: bool
    """True if this object represents many clients: all clients of an HTTP endpoint with one principal or with none,
    whose requests belong to no connection. Only a call identifies such a client."""
    calls: dict[RequestScope, ForwardedCall] = attrs.field(factory=dict[Any, Any], init=False)
    """The client's calls in flight, by their scopes, oldest first."""
    urls: OpenURLElicitations = attrs.field(factory=OpenURLElicitations, init=False)
    """The URL elicitations that were sent to the client, which the upstream server may report as complete."""
    level_is_set: bool = attrs.field(default=False, init=False)
    """True once the client has set a log level."""

    @property
    def legacy(self) -> Revision | None:
        """The protocol revision of the client's handshake; `None` if there was no handshake.

        Also `None` if the client gets the upstream server's messages only within calls.
        """
        return None

    @property
    @abstractmethod
    def revision(self) -> Revision:
        """The protocol revision of the sampling, elicitation and roots requests that this client gets."""

    @property
    @abstractmethod
    def capabilities(self) -> ClientCapabilities:
        """The capabilities that the client has declared in its handshake.

        If the client gets requests only within calls, these are the capabilities of its latest call.
        """

    @property
    @abstractmethod
    def party(self) -> object:
        """The identity of the client for limits and statistics: see `Exchange.party`."""

    @abstractmethod
    async def ask(self, method: str, params: JSONObject, on_progress: OnProgress | None, key: str | None) -> Any:
        """Forward a request of the upstream server to this client, and return the client's response. It isn't known for
        which call the server has sent the request.

        The request is for sampling, elicitation or roots.

        Raises the errors of `Connection.request`.
        """

    @abstractmethod
    def put(self, event: NotificationReceived, *, named: bool) -> None:
        """Forward a notification of the upstream server to this client, unless it is meant only for other clients.

        If ``named`` is true, send the update of a resource only to clients that have subscribed to exactly its URI.
        """

    def put_in_call(self, call: ForwardedCall, event: NotificationReceived) -> None:
        """Send the client a notification that the upstream server has sent within the response to ``call``.

        ``call`` is a call of the client.
        """
        call.notify(event)

    @abstractmethod
    async def caught_up(self) -> None:
        """Wait until all notifications that have arrived for the client are in its outbox."""

    @abstractmethod
    def close(self, reason: str) -> None:
        """Close the connection to the client, because the upstream server is lost.

        Does nothing if the client also uses other upstream servers.
        """

    @property
    def is_waiting(self) -> bool:
        """True while the client has a call in flight that isn't cancelled."""
        return any(not call.is_cancelled for call in self.calls.values())

    @property
    def log_level(self) -> str:
        """The minimum level of log messages that the client has set for its connection: see
        `ConnectionState.log_level`."""
        return self._state.log_level

    @contextmanager
    def calling(self, scope: RequestScope, known: dict[RequestId, ForwardedCall]) -> Generator[ForwardedCall]:
        """Count a request, which ``scope`` represents, as a running call of the client while the ``with`` block runs.

        Yields the `ForwardedCall` of the request. ``known`` is `Upstream.calls`.
        """
        call = self.calls[scope] = ForwardedCall(scope, self, known)
        token = _current_call.set(call)
        try:
            yield call
        finally:
            _current_call.reset(token)
            del self.calls[scope]
            call.close()

    def log_in_calls(self, event: NotificationReceived) -> None:
        """Send a log message of the upstream server to the client, within the client's calls in flight.

        If the message names an MCP task, send it in the call of that task, else in each of the client's calls in
        flight.
        """
        task_id = related_task_of(event.params)
        for call in tuple(self.calls.values()):
            if task_id is None or call.task_id == task_id:
                call.notify(event)

    def declared(self) -> list[ClientCapabilities]:
        """Return all capabilities that the client has declared, in its handshake and in the calls that are running."""
        return [self.capabilities, *(call.capabilities for call in self.calls.values())]


class ProxyClient(Downstream):
    """A client of a proxy.

    Unlike a gateway's client, it also gets the upstream server's notifications and requests outside of calls.

    Each notification is put into a queue as soon as it is read, and moved to the outbox when there is room. So a client
    that doesn't read never blocks another client. It loses the oldest notifications beyond the limits of a
    `NotificationQueue`.
    """

    def __init__(
        self, connection: Connection, principal: PrincipalId | None, shared_extensions: SharedExtensions = NONE_SHARED
    ) -> None:
        limits, everybody = connection.limits, connection.exchange.peer.everybody
        super().__init__(limits, connection.state, principal, shared_extensions, everybody)
        self.connection = connection
        self._outbox = connection.outbox
        self.is_shared = False
        """True if other clients use the same upstream connection. Then a log message of the upstream server may belong
        to another client's call."""
        self._queue = NotificationQueue(
            Backlog(limits.max_pending_notifications, limits.max_inbound_bytes),
            self._forward_notification,
            self._failed,
        )

    @property
    def legacy(self) -> Revision | None:
        """The protocol revision of the client's handshake; `None` if there was no handshake."""
        return self._state.revision

    @property
    def revision(self) -> Revision:
        """The protocol revision of the client's handshake. Only valid after the handshake."""
        assert self.legacy is not None, "outside of calls, only legacy clients can be asked"
        return self.legacy

    @property
    def capabilities(self) -> ClientCapabilities:
        """The capabilities that the client declared in its handshake."""
        return self._state.client_capabilities

    @property
    def party(self) -> object:
        """The identity of the client for limits and statistics: see `Exchange.party`."""
        scope = next(iter(self.calls), None)
        return (self.connection if scope is None else scope).exchange.party

    async def ask(self, method: str, params: JSONObject, on_progress: OnProgress | None, key: str | None) -> Any:
        """Forward a request of the upstream server to this client, and return the client's response. It isn't known for
        which call the server has sent the request.

        Raises the errors of `Connection.request`.

        The request is sent on the channel of the latest legacy call, since a client over HTTP need not listen to
        anything else. ``key`` is ignored, since these requests have ids.
        """
        await self.caught_up()
        ways = [call.scope.outbox for call in self.calls.values() if call.revision.server_requests and call.scope.sends]
        outbox = ways[-1] if ways else self._outbox
        asked = self.connection.outbound.request(method, params or None, self.revision, on_progress, outbox=outbox)
        answer = await asked
        # Forward the client's notifications before a response that arrived after them.
        await self.connection.until_notified()
        return answer

    def set_log_level(self, level: str) -> None:
        """Record ``level`` as the minimum level of the log messages that the client wants."""
        self._state.set_log_level(level)
        self.level_is_set = True

    def close(self, reason: str) -> None:
        """Close the connection to the client, unless the connection is already ending and sends its last responses."""
        if not self.connection.is_ending:
            self.connection.shut_down(reason)

    def start_in(self, nursery: trio.Nursery) -> None:
        """Start a trio task in ``nursery`` that sends queued notifications to the client."""
        self._queue.task.start_in(nursery, copy_context())

    def put(self, event: NotificationReceived, *, named: bool) -> None:
        """Queue a notification of the upstream server for this client, unless it is meant only for other clients.

        If ``named`` is true, queue the update of a resource only if the client has subscribed to exactly its URI.

        If this stands for many clients, a log message goes to the call whose task it names, or else to every call in
        flight.
        """
        if self.is_connectionless and event.method.name == LOG:
            self.log_in_calls(event)
            return
        if not self._is_for_us(event, named):
            return
        try:
            size = len(encode_value(event.params))
        except NotSerializable:
            return  # the notification contains a lone surrogate, which JSON can't represent
        self._queue.put(event, size)

    def put_in_call(self, call: ForwardedCall, event: NotificationReceived) -> None:
        """Forward to the client a notification that the upstream server has sent on the response stream of ``call``.
        See `Downstream.put_in_call`."""
        if call.scope.outbox is self._outbox:
            # Put the notification into the queue of the other notifications, so that all notifications stay in order.
            self.put(event, named=False)
        else:
            call.notify(event)

    async def caught_up(self) -> None:
        """Wait until all notifications that have arrived for the client so far are in its outbox (the queue of outgoing
        messages)."""
        await self._queue.wait_until_handled(self._queue.received)

    def _is_for_us(self, event: NotificationReceived, named: bool) -> bool:
        name, legacy = event.method.name, self.legacy
        if name == LOG:
            level = event.params.get("level")
            return isinstance(level, str) and self._wants_log(log_level_rank(level), event.revision)
        if is_unknown(name):
            return self.speaks_as(event.revision)
        # A modern client gets change notifications only on streams that it has opened with subscriptions/listen.
        if legacy is None or not self._state.initialized or name not in legacy._methods:
            return False
        if name != "notifications/resources/updated":
            return True
        subscriptions = self._state.subscriptions
        # The URI of a change may differ from the URI to which a client has subscribed.
        # If no client has subscribed to exactly this URI, notify all clients with subscriptions.
        return event.params.get("uri") in subscriptions or (not named and bool(subscriptions))

    def speaks_as(self, revision: Revision) -> bool:
        """Return whether the client can currently receive extension messages. ``revision`` is the protocol revision of
        these messages.

        For a legacy revision, the client must have completed a legacy handshake. For a modern one, it must be waiting
        for a response.
        """
        if revision.handshake:
            return self.legacy is not None and self._state.initialized
        return any(not call.revision.handshake for call in self.calls.values())

    def _wants_log(self, rank: int, said: Revision) -> bool:
        """Return whether the client gets a log message of the level ``rank`` that doesn't name a request.

        ``said`` is the revision in which the upstream server has sent the message.

        In modern revisions every log message belongs to a request. If a modern server sends it, it is for clients that
        wait for a response. A modern client gets log messages only at the level of a request that it waits for.
        """
        waiting = [call.scope.request for call in self.calls.values() if call.scope.sends]
        modern = [request for request in waiting if not request.revision.server_requests]
        is_for_legacy = len(waiting) > len(modern) or (not waiting and said.log_level == "connection")
        passes = not self.level_is_set or _passes(rank, self._state.log_level)
        if self.legacy is not None and is_for_legacy and passes:
            return True
        return any(request.log_level is not None and _passes(rank, request.log_level) for request in modern)

    async def _forward_notification(self, event: NotificationReceived) -> None:
        params = event.params
        meta = params.get("_meta")
        if isinstance(meta, dict) and SUBSCRIPTION_ID in meta:
            params = {name: value for name, value in params.items() if name != "_meta"}
        line = frame_notification(event.method.name, params or None) + b"\n"
        if not (event.method.name == LOG or is_unknown(event.method.name)):
            await self._outbox.room()
            self._outbox.put(line)
            return
        scope = self._only_legacy_call()
        outbox = self._outbox if scope is None else scope.outbox
        await outbox.room()
        if not self._is_for_us(event, named=True):
            return  # the call to which the notification belongs was cancelled meanwhile
        # If the call has got its response, the client no longer reads the call's stream, so use the main stream.
        (self._outbox if scope is None or not scope.sends else outbox).put(line)

    def _only_legacy_call(self) -> RequestScope | None:
        """Return the client's only running request, if its protocol revision is a legacy one. Return `None` if several
        requests are running.

        Log messages and extension notifications are then sent on the channel of this request, since a client over HTTP
        may read no other channel.
        """
        waiting = [call.scope for call in self.calls.values() if call.scope.sends]
        if self.is_shared or len(waiting) != 1 or not waiting[0].request.revision.server_requests:
            return None
        return waiting[0]

    def _failed(self, error: Exception) -> None:
        logger.error("a notification could not be forwarded", exc_info=error)


def _passes(rank: int, minimum: str) -> bool:
    """Return whether the level ``rank`` of a log message is at least the level ``minimum``.

    Returns true for a level that isn't in RFC 5424.
    """
    return not 0 <= rank < log_level_rank(minimum)
