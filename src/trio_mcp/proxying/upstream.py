"""Upstream: the server to which a proxy forwards the requests of its clients.

It delivers each notification to the right clients, asks the right client, merges the clients' subscriptions and log
levels, and knows the headers that mirror arguments of the server's tools.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, Self, TypeAlias
from weakref import WeakKeyDictionary

import trio

from ..client.answers import Relay
from ..client.client import Client, forward_to, learn_skills
from ..client.requests import forward_request, open_stream
from ..connecting.http.outgoing import ToolHeaders
from ..jsonrpc.codec import frame_notification
from ..jsonrpc.errors import INTERNAL_ERROR, METHOD_NOT_FOUND, CodedError
from ..jsonrpc.messages import RequestId
from ..protocol.fields import JSONObject
from ..protocol.meta import related_task_of
from ..protocol.param_headers import ParamHeader
from ..protocol.revisions import Revision
from ..protocol.types.lifecycle import ServerCapabilities
from ..protocol.types.notifications import log_level_rank
from ..runtime.calls import OnProgress
from ..runtime.peer import PrincipalId
from ..runtime.requests.scope import RequestScope, current_request
from ..runtime.transport import ConnectionLost
from ..state.events import NotificationReceived
from ..state.requests import InboundRequest
from .downstream import COMPLETE, LOG, Downstream, ForwardedCall, record_request
from .extensions import SKILLS_METHODS, ExtensionFilter, is_unknown
from .server_requests import Parties, Respondent, ask
from .tasks import KnownTasks, TaskOwners, WorkingTasks

_UPDATED: Final = "notifications/resources/updated"
_TOOLS_CHANGED: Final = "notifications/tools/list_changed"
_PROGRESS: Final = "notifications/progress"
_LEAVE_DEADLINE: Final = 1.0
_NOBODY: Final = "Internal error: no client can receive this request"
_WHOSE: Final = "Internal error: several clients share this server, and it is unknown which of them the request is for"

OnChange: TypeAlias = Callable[[NotificationReceived, bool], None]
"""A callback for each notification of the upstream server. Its flag says whether a client has subscribed to the
resource under exactly this URI. The callback must be quick."""


class Upstream(Relay):
    """The upstream server of a proxy, connected through ``client``.

    It also knows the proxy's clients that get its notifications and requests.

    There are several such clients if ``shared`` is true, or if a `Downstream` is ``many``. ``task_owners`` stores the
    owners of the server's tasks; by default they are stored only for this connection.
    """

    def __init__(
        self, client: Client, task_owners: TaskOwners | None = None, *, shared: bool = True, many: bool = False
    ) -> None:
        self.client = client
        self.limits = client._connection.limits
        self._connection = client._connection
        self.shared = shared
        self.tasks = KnownTasks(TaskOwners() if task_owners is None else task_owners, shared or many)
        """The tasks that the server runs for clients, and those that clients run for the server."""
        self.downstreams: dict[Downstream, None] = {}
        self._principals: set[PrincipalId | None] = set()
        self.parties = Parties()
        self.calls: dict[RequestId, ForwardedCall] = {}
        """The calls in flight, by the ids of the requests that were sent for each: see
        `ForwardedCall.record_request_id`."""
        self._came_with: WeakKeyDictionary[InboundRequest, RequestId] = WeakKeyDictionary()
        self._many = many
        self.on_changes: set[OnChange] = set()
        """The callbacks of the streams that report the server's changes."""
        self.working = WorkingTasks()
        """The tasks that the server is running for its clients."""
        self.listed_tools = ListedTools()
        """The headers that the server's tools require in calls over HTTP."""
        self._subscribed: Counter[str] = Counter()
        self._subscribing = trio.Lock()
        self._levels: dict[Downstream, str] = {}
        self._level: str | None = None
        self._follows_lists = client.settings.on_list_changed is not None
        forward_to(client, self)
        client._connection.outbound.on_request = record_request

    @classmethod
    def shared_through(cls, client: Client) -> Self:
        """Return the `Upstream` object for ``client``. Proxies that use the same ``client`` get the same object."""
        relay = client._callbacks.relay
        return relay if isinstance(relay, cls) else cls(client)

    @property
    def revision(self) -> Revision:
        """The protocol revision that the upstream server speaks."""
        return self.client.revision

    @property
    def capabilities(self) -> ServerCapabilities:
        """The capabilities that the upstream server has declared."""
        return self.client.server_capabilities

    def attach(self, downstream: Downstream) -> bool:
        """Deliver the upstream server's notifications to ``downstream``, until `detach` is called. Return false if they
        are already delivered to it."""
        if downstream in self.downstreams:
            return False
        self.downstreams[downstream] = None
        if not self.has_several_principals:
            self._principals.add(downstream.principal)
        return True

    @property
    def has_several_principals(self) -> bool:
        """True once callers with different principals have used the connection.

        From then on, a message of the server is delivered only if it names its call or task: otherwise it may be about
        any principal's call, even an ended one (docs/rulings.md, ruling 23).
        """
        return len(self._principals) > 1

    def on_notification(self, event: NotificationReceived) -> None:
        """Deliver a notification of the upstream server to the clients for which it is meant. See
        `Relay.on_notification`."""
        if event.method.name == _TOOLS_CHANGED:
            self.listed_tools.forget()
        elif event.method.name == _PROGRESS:
            self.tasks.progressed(event)
            return
        elif is_unknown(event.method.name):
            self._deliver_extension_notification(event)
            return
        named = event.method.name == _UPDATED and (
            self.has_several_principals or event.params.get("uri") in self._subscribed
        )
        if event.method.name == LOG and related_task_of(event.params) is None and self._deliver_log_to_call(event):
            return
        concerned = self.tasks.recipients(event.method.name, event.params, self.downstreams)
        if self.has_several_principals and event.method.name == COMPLETE:
            concerned = [each for each in concerned if each.urls.complete(event.params)]
        for downstream in concerned:
            downstream.put(event, named=named)
        for on_change in tuple(self.on_changes):
            on_change(event, named)

    def _deliver_log_to_call(self, event: NotificationReceived) -> bool:
        """Deliver a log message to the call on whose response stream it arrived.

        Returns false if that call is unknown, so that the message may go to every client.
        """
        came_with = self._connection.related_request_id
        call = None if came_with is None else self.calls.get(came_with)
        if call is not None:
            call.downstream.put_in_call(call, event)
            return True
        return self.has_several_principals or self._is_of_past_call(came_with)

    def _deliver_extension_notification(self, event: NotificationReceived) -> None:
        """Deliver a notification of an extension.

        If it came within the response to a call, it is for that call, otherwise for all clients that have the
        extension. For a `Downstream` that represents many clients, send it in each of their calls in flight.
        """
        method, came_with = event.method.name, self._connection.related_request_id
        call = None if came_with is None else self.calls.get(came_with)
        if call is not None:
            if self.passage_to(call.downstream).forwards(method, call.revision):
                call.downstream.put_in_call(call, event)
            return
        if self._is_of_past_call(came_with):
            return
        for downstream in tuple(self.downstreams):
            passage = self.passage_to(downstream)
            if not (passage.forwards(method, event.revision) and passage.should_notify(method, downstream.declared())):
                continue
            if downstream.is_connectionless:
                for each in tuple(downstream.calls.values()):
                    each.notify(event)
            else:
                downstream.put(event, named=False)

    def on_question(self, request: InboundRequest) -> None:
        """Record that the upstream server has sent ``request`` on the response stream of a client's call.

        Then `ask` can find the client's call.

        See `Relay.on_question`.
        """
        came_with = self._connection.related_request_id
        if came_with is not None:
            self._came_with[request] = came_with

    async def ask(self, method: str, params: JSONObject, key: str | None) -> Any:
        """Forward a request of the upstream server to the right client, and return the client's response: see
        `Relay.ask`.

        The request is for sampling, elicitation or roots.
        """
        scope = current_request.get(None)
        if self.revision.server_requests:
            respondent, scope = self._respondent_for(method, params, scope), None
        else:  # a modern server can send requests only within calls that the proxy has made
            calls = (each.calls[scope] for each in self.downstreams if scope is not None and scope in each.calls)
            respondent = next(calls, None)
            if respondent is None:
                raise CodedError(INTERNAL_ERROR, _NOBODY)
        downstream = respondent.downstream if isinstance(respondent, ForwardedCall) else respondent
        if is_unknown(method) and not self.passage_to(downstream).forwards(method, respondent.revision):
            raise CodedError(METHOD_NOT_FOUND, "Method not found", {"method": method})
        return await ask(respondent, method, params, self.revision, scope, key, self.tasks)

    def _respondent_for(self, method: str, params: JSONObject, scope: RequestScope | None) -> Respondent:
        """Return the client, or the client's call, to which a request of the upstream server (legacy protocol revision)
        must be forwarded.

        A legacy upstream server has sent it, so the request doesn't name its client.

        That is the call, or the client, whose task the request names, or else the call in whose response the request
        came. Otherwise the proxy may guess: the only client there is, or else the only client with a call in flight,
        through the latest of its calls that can carry a request. It doesn't guess if the request may be a late one for
        another party: see `Parties`.
        """
        came_with = None if scope is None else self._came_with.pop(scope.request, None)
        of_task = self.tasks.call_of(params)
        if of_task is not None:
            return of_task
        of_nobody = not self.tasks.names_client(method, params)
        if of_nobody:
            call = None if came_with is None else self.calls.get(came_with)
            if call is not None:
                if call.is_cancelled:
                    raise CodedError(INTERNAL_ERROR, _NOBODY)
                return call
            if self.has_several_principals or self._is_of_past_call(came_with):
                raise CodedError(INTERNAL_ERROR, _WHOSE)
        downstreams = self.tasks.clients_concerned(method, params, self.downstreams)
        if len(downstreams) > 1:
            downstreams = [each for each in downstreams if each.is_waiting]
            if len(downstreams) > 1:
                raise CodedError(INTERNAL_ERROR, _WHOSE)
        if not downstreams:
            raise CodedError(INTERNAL_ERROR, _NOBODY)
        if of_nobody and not self.parties.abandoned_only_by(downstreams[0].party):
            raise CodedError(INTERNAL_ERROR, _WHOSE)
        return _only_channel(downstreams[0])

    def _is_of_past_call(self, came_with: RequestId | None) -> bool:
        """Return whether a message of the upstream server belongs to a call that has ended.

        ``came_with`` is the request, no longer in flight, within whose response the message came. Returns false if only
        one client uses the connection.
        """
        return came_with is not None and (self.shared or self._many)

    async def request(self, method: str, params: JSONObject, on_progress: OnProgress | None) -> Any:
        """Send a client's request to the upstream server, and return the result as plain data. Raises the errors of
        `Client.request`."""
        if method in SKILLS_METHODS:
            learn_skills(self.client)
        if method != "tools/list":
            return await forward_request(self.client, method, params, on_progress)
        listing = self.listed_tools.listing()
        result = await forward_request(self.client, method, params, on_progress)
        self.listed_tools.learn(result, listing)
        return result

    def passes_tasks(self, revision: Revision) -> bool:
        """Return whether clients with the protocol revision ``revision`` manage the MCP tasks of the upstream server
        themselves.

        This requires that both sides use the same form of tasks, and that the tasks' server-to-client requests are
        forwarded.
        """
        form = self.revision.tasks
        return form == revision.tasks and (form != "extension" or self.client.settings.forwards is not None)

    def passage_to(self, downstream: Downstream) -> ExtensionFilter:
        """Return the filter that decides which extensions are forwarded between ``downstream`` and the upstream
        server."""
        return ExtensionFilter(
            self.capabilities.extensions or {},
            self.revision,
            not self.shared and (downstream.principal is not None or not downstream.is_connectionless),
            downstream.shared_extensions,
            self.client.settings.forwards is not None,
            self.passes_tasks,
        )

    async def notify(self, method: str, params: JSONObject | None) -> None:
        """Wait until the outbox to the upstream server has room, then send a notification that relates to no
        request."""
        await self._connection.room()
        self._connection.notify(method, params)

    async def send_extension_notification(self, method: str, params: JSONObject | None) -> None:
        """Send a notification of an extension to the upstream server, once its outbox has room.

        Equal notifications aren't merged.
        """
        await self._connection.room()
        self._connection.outbox.put_sealed(frame_notification(method, params) + b"\n")

    async def follow_lists(self) -> None:
        """Subscribe to changes of the upstream server's lists, if that server reports such changes only on request.
        Idempotent."""
        client = self.client
        if client.revision.changes == "listen" and not self._follows_lists:
            self._follows_lists = True
            await client._change_streams.follow_lists(
                self.capabilities, client.settings.probe_timeout, partial(open_stream, client)
            )

    # The following methods manage the subscriptions and log levels of all clients that share one upstream connection.

    async def subscribe(self, uri: str) -> None:
        """Subscribe to a resource of the upstream server for a client, unless the connection is already subscribed for
        another client.

        Raises the errors of `Client.subscribe`.
        """
        async with self._subscribing:
            if uri not in self._subscribed:
                await self.client.subscribe(uri)
            self._subscribed[uri] += 1

    async def unsubscribe(self, uri: str) -> None:
        """Undo one call of `subscribe` for the resource ``uri``. When all calls are undone, unsubscribe from the
        resource."""
        async with self._subscribing:
            self._subscribed[uri] -= 1
            if self._subscribed[uri] <= 0:
                del self._subscribed[uri]
                await self.client.unsubscribe(uri)

    async def unsubscribe_all(self, uris: list[str]) -> None:
        """Unsubscribe from the resources in ``uris``, within one second.

        Subscriptions that are left after that only cause useless notifications.
        """
        if uris and self.client.lost is None:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _LEAVE_DEADLINE):
                for uri in uris:
                    try:
                        await self.unsubscribe(uri)
                    except ConnectionLost:
                        return

    async def set_level(self, downstream: Downstream, level: str) -> None:
        """Record that ``downstream`` wants log messages of ``level`` and above.

        If the upstream server is legacy, set its level to the lowest that any client wants. Raises the errors of
        `Client.request`.
        """
        self._levels[downstream] = level
        if self.revision.log_level == "connection":
            await self._send_level(min(self._levels.values(), key=log_level_rank))

    async def admit_level(self, level: str) -> None:
        """If the upstream server has a legacy protocol revision and a higher log level than ``level``, lower its log
        level to ``level``.

        A request of a client wants log messages of this level.
        """
        if self.revision.log_level != "connection" or self.capabilities.logging is None:
            return
        if self._level is None or log_level_rank(level) < log_level_rank(self._level):
            await self._send_level(level)

    async def _send_level(self, level: str) -> None:
        self._level = level
        await self.client.set_log_level(level)

    def detach(self, downstream: Downstream) -> None:
        """Stop delivering messages to a client that has disconnected, and drop its data."""
        self.downstreams.pop(downstream, None)
        self._levels.pop(downstream, None)
        self.tasks.forget(downstream)


def _only_channel(downstream: Downstream) -> Respondent:
    """Return the object that sends a request of the upstream server to the client: ``downstream`` or one of its calls.
    The request itself doesn't contain which call or client it belongs to.

    Raises `CodedError` if the right call or channel is unclear.
    """
    if downstream.is_connectionless and sum(not call.is_cancelled for call in downstream.calls.values()) > 1:
        raise CodedError(INTERNAL_ERROR, _WHOSE)
    # During any call, the request can be sent to the client. Use the latest call, which most likely caused it.
    for call in reversed(downstream.calls.values()):
        if call.may_ask and not call.is_cancelled:
            return downstream if call.revision.server_requests else call
    if downstream.legacy is None:
        raise CodedError(INTERNAL_ERROR, _NOBODY)
    return downstream


class ListedTools:
    """Stores which HTTP headers the upstream server's tools require, according to the server's lists of tools.

    The data is dropped when the tools change.
    """

    def __init__(self) -> None:
        self._headers = ToolHeaders()
        self._changes = 0
        self._all_listed = False
        self.turn = trio.Lock()
        """A lock, so that only one caller at a time lists all tools."""

    def has(self, tool: str) -> bool:
        """Return true if it's known which HTTP headers a call of ``tool`` needs. Otherwise the server's tools must
        be listed before the call."""
        return self._all_listed or tool in self._headers

    def headers_of(self, tool: object) -> tuple[ParamHeader, ...]:
        """Return the HTTP headers that ``tool`` requires.

        The result is empty if the tool wasn't listed, or if ``tool`` isn't a string.
        """
        return self._headers.of(tool)

    def listing(self) -> int:
        """Return a marker for a listing of the tools that begins now. `learn` and `listed` take this marker."""
        return self._changes

    def learn(self, result: Any, listing: int) -> None:
        """Store which headers the tools in ``result``, a result of ``tools/list``, require.

        If the tools have changed since the marker ``listing`` was made, do nothing.
        """
        if listing == self._changes:
            # Ignore an invalid result here: the caller of the proxy's request gets an error for it.
            with suppress(KeyError, TypeError):
                self._headers.learn(result["tools"])

    def listed(self, listing: int) -> None:
        """Record that all tools were listed, unless the tools have changed since the marker ``listing`` was made."""
        self._all_listed = listing == self._changes

    def forget(self) -> None:
        """Drop the stored tools, because the upstream server's tools have changed."""
        self._headers.forget()
        self._changes += 1
        self._all_listed = False
