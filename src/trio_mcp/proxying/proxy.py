"""proxy: creates a server that forwards all messages to another server (the upstream server) through a client.

ProxyConnection: a proxy's connection to one of its clients. Most requests are forwarded unchanged. The connection
itself answers `initialize` and `server/discover`, and keeps log levels and subscriptions. Requests that were read
together are forwarded in that order, although each runs in its own task.
"""

from __future__ import annotations

import os
from bisect import insort
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from importlib.metadata import version
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast, overload
from weakref import WeakKeyDictionary

import trio

from ..client.client import Client
from ..concurrency.contexts import asynccontextmanager
from ..concurrency.nurseries import open_service_nursery
from ..connecting.targets import Target, target_of
from ..hosting.group import Group
from ..jsonrpc.errors import METHOD_NOT_FOUND, CodedError
from ..protocol.converters import structure_params, unstructure
from ..protocol.fields import JSONObject
from ..protocol.revisions import MODERN_REVISIONS, Revision
from ..protocol.types.lifecycle import DiscoverResult, EmptyResult, Implementation, InitializeResult
from ..protocol.types.notifications import SetLevelParams
from ..protocol.types.offers import SubscribeParams
from ..runtime.connection import Connection
from ..runtime.exchange import Exchange
from ..runtime.limits import DEFAULT_LIMITS, Limits, Load, Statistics
from ..runtime.outbox import Outbox
from ..runtime.peer import Peer
from ..runtime.replies import Replies
from ..runtime.requests.endings import Endings
from ..runtime.requests.host import LATER, Decision, Now, RequestHost
from ..runtime.requests.scope import RequestScope
from ..runtime.transport import ConnectionLost, FramedTransport
from ..server.request_state import RoundStates, StateCipher
from ..server.servable import RunningCustomServer
from ..server.server import Server
from ..server.subscriptions import notify_everything_changed, too_many_subscriptions, uri_to_subscribe
from ..state.connection import ConnectionState
from ..state.events import NotificationReceived
from ..state.requests import InboundRequest
from .downstream import ProxyClient
from .extensions import CANCELS, VOCABULARY, SharedExtensions, cancel_abandoned, is_unknown, with_cancels
from .forwarding import UPSTREAM_ERRORS, check_headers, forward, offered_capabilities, upstream_error
from .gateway import Gateway, gateway
from .listening import listen
from .tasks import TaskOwners
from .tenants import OpenUpstream, Tenants, UpstreamPool
from .upstream import Upstream

if TYPE_CHECKING:
    from ..protocol.extensions import Extension

ProxyTarget: TypeAlias = Client | OpenUpstream | Target | Server | str | Sequence[str | os.PathLike[str]]
"""Kinds of upstream servers."""


@overload
def proxy(
    upstream: ProxyTarget,
    *,
    name: str | None = None,
    limits: Limits | None = None,
    passes: Iterable[str | Extension[Any, Any]] = (),
) -> Proxy: ...
@overload
def proxy(upstream: Group, *, name: str | None = None, limits: Limits | None = None) -> Gateway: ...
def proxy(
    upstream: ProxyTarget | Group,
    *,
    name: str | None = None,
    limits: Limits | None = None,
    passes: Iterable[str | Extension[Any, Any]] = (),
) -> Proxy | Gateway:
    """Return a proxy: a server that forwards all messages to and from another server, ``upstream``. Serve the proxy
    like any server.

    Requests with their progress and errors, cancels with their reasons, logs, changes, and the upstream server's own
    requests are forwarded in both directions and between all revisions. Each connection has its own ids, progress
    tokens and subscription ids; unknown keys and ``_meta`` are unchanged. If the client's revision can't express a
    message, the request fails.

    Args:
        upstream: A URL, a command as a list, a `Server`, an `Address`, a `Command`, an `InMemory`, a function that
            opens a client, or an open `Client`. For a `Group`, this returns its `gateway`.
        name: The name of the proxy, for the people who run it.
        limits: The limits of each connection to the proxy.
        passes: Extensions that may pass over a connection that several clients share: names, with which the extension's
            methods must begin (``com.example/search/query``, ``notifications/com.example/search/added``), or
            `Extension` objects.

    Raises:
        BadTarget: ``upstream`` is a string that isn't a URL.
        TypeError: ``upstream`` is anything else.
        ValueError: A string in ``passes`` isn't the name of an extension.

    Connections. Each client of the proxy gets an upstream connection of its own, and its own process if ``upstream`` is
    a command. It is opened for the client's first request, in the client's name, with its capabilities and, if the
    server has it, in its revision. It is closed with the client; if it is lost, the client's connection ends. Modern
    HTTP clients have no connection: the clients of a principal share one upstream connection, and clients without a
    principal share another, which is anonymous. Such a connection is closed after `Limits.session_timeout` without
    requests. A question of a legacy server reaches these clients only while a single call is in flight, and a log
    message reaches all calls in flight. Principals share `Limits.max_upstreams` upstream connections.

    An open `Client`. All clients share its connection, including the clients of other proxies over the same `Client`.
    Requests of the upstream server are forwarded if the `Client` was opened with ``forwards=ClientCapabilities(...)``;
    otherwise its own handlers answer. A modern server asks in a call, which identifies the client. A legacy server's
    question goes to the only client, or else to the only client with a call in flight; otherwise it gets an error. It
    also gets an error if another client has cancelled a call, since the question may belong to that call. A legacy
    server's log messages go to all clients that want them. Once callers of several principals have connected, the proxy
    no longer guesses: a legacy server's question, and any log message, must name a task to be delivered. Over HTTP, a
    question or a log message in the response to a POST belongs to the call in the POST.

    Tasks are forwarded if client and server use the same form of tasks and the client declares it; the client then
    manages its tasks itself, through any connection of the proxy. For other clients the proxy waits for the end of a
    task, and answers the call normally. A principal's task exists only for that principal, as long as the proxy runs
    and remembers the task (the latest 50,000). Without principals, the id of a task gives access.

    Extensions that the proxy doesn't know are forwarded unchanged if both sides are modern or both legacy, and the
    upstream connection serves this client, or its principal, alone. A shared connection could leak one client's
    messages to another: there, only the extensions in ``passes`` are forwarded. An extension that isn't forwarded isn't
    declared to either side, and its methods, like unknown ones, are answered with -32601.

    Cancel confirmations (`CancelAcknowledged`). The proxy itself reports how a cancelled call has ended: once its own
    part and the upstream call have ended, or ``relayed`` if the upstream server doesn't have the extension. An open
    `Client` asks the upstream server if it was opened with the extension.

    Authorization. A protected upstream server is called with the proxy's own authorization, ``proxy(Address(url,
    auth=OAuth()))``, whoever the client is. A client's token is never forwarded (2026-07-28 authorization, Access Token
    Privilege Restriction): ``serve_http(proxy(...), auth=Protected(...))`` verifies tokens for the proxy itself.
    """
    if isinstance(upstream, Group):
        if passes := list(passes):
            raise TypeError("a gateway does not forward extensions of its member servers: leave out passes=")
        return gateway(upstream, name=name or "gateway", limits=limits)
    shared = SharedExtensions.of(passes)
    if isinstance(upstream, Target | Server | str | list | tuple):
        upstream = target_of(upstream).open
    elif not isinstance(upstream, Client) and not callable(upstream):
        raise TypeError(
            "upstream must be a URL, a command as a list, a Server, an Address, an open client, or a function that "
            f"opens a client, not {upstream!r:.200}"
        )
    return Proxy(upstream, name, limits, shared)


class Proxy:
    """A server that forwards every message to another server. Create it with `proxy`."""

    def __init__(
        self,
        upstream: Client | OpenUpstream,
        name: str | None,
        limits: Limits | None,
        shared_extensions: SharedExtensions,
    ) -> None:
        self._upstream = upstream
        self._shared_extensions = shared_extensions
        self.limits = limits or DEFAULT_LIMITS
        """Limits on the resources that clients of the proxy may use."""
        self.info = Implementation(name or "proxy", version("trio-mcp"))
        """Name and version that the proxy reports about itself."""
        self._load = Load()
        self._task_owners = TaskOwners()

    def __repr__(self) -> str:
        return f"<Proxy {self.info.name}>"

    def statistics(self) -> Statistics:
        """The current load of the proxy. See `Server.statistics`."""
        return self._load.statistics()

    @asynccontextmanager
    async def _running(
        self, limits: Limits | None = None, *, stateless: bool = False
    ) -> AsyncGenerator[RunningCustomServer]:
        """Run the proxy: see `Server._running`.

        Raises `ValueError` if ``stateless`` is true, since a proxy keeps state about its clients and about the upstream
        connections.
        """
        if stateless:
            raise ValueError("a proxy cannot be stateless: leave out stateless=True")
        host = RequestHost(limits or self.limits, load=self._load)
        # Remember how clients' cancelled calls have ended, which the extension `CancelAcknowledged` reports to clients.
        host.endings = Endings(host.alarms, host.limits, CANCELS.max_wait)
        async with open_service_nursery("the proxy has ended") as nursery:
            await nursery.start(host.run)
            behind: Upstream | UpstreamPool
            if isinstance(self._upstream, Client):
                behind = Upstream.shared_through(self._upstream)
                nursery.start_soon(_end_with, behind)
            else:
                bounds = host.limits
                behind = UpstreamPool(self._upstream, self._task_owners, bounds.max_upstreams, bounds.session_timeout)
            connect = partial(ProxyConnection, behind, host, StateCipher("proxy"), self._shared_extensions)
            yield RunningCustomServer(host.load.callers, host.limits, connect, host, VOCABULARY)


async def _end_with(shared: Upstream) -> None:
    """Wait until the shared upstream connection has ended, then close the connections of all clients."""
    try:
        await shared.client.until_lost()
    except ConnectionLost as error:
        for downstream in tuple(shared.downstreams):
            downstream.close(f"the upstream server is gone: {error.reason}")


_DONE: Final = EmptyResult()
_VERSIONS: Final = [row.name for row in MODERN_REVISIONS]
"""The protocol versions that a client may speak to the proxy, whatever version the upstream server speaks."""
_NOT_FORWARDED: Final = frozenset(("notifications/initialized", "notifications/cancelled", "notifications/progress"))
_UNNAMED: Final = Implementation("unknown", "0")
"""The name that the proxy reports for a modern upstream server without a name, since a legacy server must have a
name."""


class ProxyConnection:
    """Serves one client of a proxy, until the connection to the client or to the upstream server ends.

    If one connection carries the requests of all clients (modern HTTP), each principal counts as a client with its own
    upstream connection, which is opened and closed while this connection stays.
    """

    def __init__(
        self,
        behind: Upstream | UpstreamPool,
        host: RequestHost,
        cipher: StateCipher,
        shared_extensions: SharedExtensions,
        transport: FramedTransport | Outbox,
        peer: Peer,
        state: ConnectionState | None = None,
    ) -> None:
        self._server_info: dict[Revision, Any] = {}
        self._round_states = RoundStates(cipher, host.limits.retry_timeout)
        self.seal = self._round_states.seal
        """Creates the ``requestState`` of a response. See `RequestHandler.seal`."""
        self._load = host.load
        assert host.endings is not None, "a proxy remembers endings"
        self._endings = host.endings
        self.connection = Connection(
            transport,
            state or ConnectionState("server", VOCABULARY),
            self,
            host,
            peer=peer,
            replies=Replies(self._server_info),
        )
        self._state = self.connection.state
        self._tenants = Tenants(self.connection, behind, shared_extensions)
        self._reading_order = ReadingOrder()
        self._special: dict[str, Callable[[RequestScope, ProxyClient, Upstream], Awaitable[Any]]] = {
            "initialize": self._initialize,
            "server/discover": self._discover,
            "logging/setLevel": self._set_level,
            "resources/subscribe": self._subscribe,
            "resources/unsubscribe": self._unsubscribe,
            "subscriptions/listen": listen,
        }

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve the client until its connection ends.

        Then close the upstream connection that was opened only for this client. If that upstream connection is lost,
        the client's connection ends once all calls have been answered. See `Connection.run`.
        """
        self._load.connections += 1
        try:
            async with open_service_nursery("the client is gone") as services, trio.open_nursery() as own:
                self._tenants.start_in(services, own)
                try:
                    await self.connection.run(task_status=task_status)
                finally:
                    await self._leave()
                own.cancel_scope.cancel(reason="the client is gone")
        finally:
            self._load.connections -= 1

    async def _leave(self) -> None:
        for tenant in self._tenants.remove_all():
            upstream = tenant.upstream
            if upstream is not None:
                upstream.detach(tenant.downstream)
                if upstream.shared:
                    await upstream.unsubscribe_all(list(self._state.subscriptions))

    def everything_changed(self) -> None:
        """Notify the proxy's client that all lists and resources of the upstream server may have changed. See
        `ServedConnection.everything_changed`."""
        reached = self._tenants.reached(self.connection.exchange.peer.principal)
        if reached is not None and self._state.revision is not None and self._state.initialized:
            notify_everything_changed(self.connection, reached[1].capabilities)

    # Requests

    def answer_now(self, request: InboundRequest, exchange: Exchange) -> Decision:
        """Return the response to a client's request, if the proxy can respond at once, without the upstream server.

        Otherwise return a marker, so that the caller calls `answer`. See `RequestHandler.answer_now`.
        """
        if request.method.ahead:
            return cancel_abandoned(request, exchange, self._endings)
        reached, name = self._tenants.reached(exchange.peer.principal), request.method.name
        upstream = None if reached is None else reached[1]
        if name in ("ping", "server/discover") and not self._is_for(upstream, name):
            if name == "ping":
                return Now(_DONE)
            if reached is not None:
                self._adopt(*reached)
                return Now(_discovered(*reached, request))
        if reached is not None and is_unknown(name) and not _forwards(*reached, request):
            raise CodedError(METHOD_NOT_FOUND, "Method not found", {"method": name})
        if not request.method.is_request:
            return LATER
        self._reading_order.add(request)
        if request.method.may_ask and not request.revision.server_requests:
            decision = self._round_states.read(request, exchange.peer)
            if decision is not LATER and upstream is not None and name == "tools/call":
                exchange.check_headers(request, upstream.listed_tools.headers_of(request.params.get("name")))
            return decision
        return LATER

    def _is_for(self, upstream: Upstream | None, method: str) -> bool:
        """Return whether to forward a request with this ``method``: the upstream server is connected, and it has the
        method.

        The upstream server's response then also shows that the upstream server is alive.
        """
        return upstream is not None and method in upstream.revision._methods and not self.connection.is_ending

    async def answer(self, scope: RequestScope) -> Any:
        """Return the response to a client's request.

        In most cases, forward the request to the upstream server, and return that server's response. See
        `RequestHandler.answer`.
        """
        request = scope.request
        if request.method.ahead:
            return await self._endings.over(request, scope.exchange.peer.principal)
        tenant = self._tenants.admit(scope.exchange.peer.principal)
        with tenant.in_use():
            downstream, upstream = tenant.downstream, await tenant.connect(request)
            self._adopt(downstream, upstream)
            if not request.method.is_request:
                await _forward_notification(downstream, upstream, request)
                return _DONE
            await check_headers(scope, downstream, upstream)
            await self._reading_order.wait_for_turn(request)
            special = self._special.get(request.method.name)
            if special is None:
                return await forward(scope, downstream, upstream)
            try:
                return await special(scope, downstream, upstream)
            except UPSTREAM_ERRORS as error:
                raise upstream_error(error) from None

    def _adopt(self, downstream: ProxyClient, upstream: Upstream) -> None:
        if not upstream.attach(downstream):
            return
        downstream.is_shared = upstream.shared
        info = upstream.client.server_info
        if info is not None:
            self._server_info.update({
                row: unstructure(info, row) for row in MODERN_REVISIONS if row.server_info_in_meta
            })  # fmt: skip

    async def _initialize(self, scope: RequestScope, downstream: ProxyClient, upstream: Upstream) -> InitializeResult:
        client = upstream.client
        await upstream.follow_lists()
        info = client.server_info or _UNNAMED
        return InitializeResult(
            scope.request.revision.name,
            offered_capabilities(upstream, downstream, scope.request),
            info,
            client.instructions,
        )

    async def _discover(self, scope: RequestScope, downstream: ProxyClient, upstream: Upstream) -> Any:
        if not self._is_for(upstream, "server/discover"):
            return _discovered(downstream, upstream, scope.request)
        result = await forward(scope, downstream, upstream)
        declared = upstream.passage_to(downstream).with_part(result.get("capabilities"), scope.request.revision)
        if isinstance(declared, dict):
            passing = cast("JSONObject", declared)
            extensions = with_cancels(passing.get("extensions"), scope.request)
            declared = {**passing, "extensions": extensions} if extensions else passing
        return {**result, "supportedVersions": _VERSIONS, "capabilities": declared}

    async def _set_level(self, scope: RequestScope, downstream: ProxyClient, upstream: Upstream) -> EmptyResult:
        level = structure_params(scope.request.params, SetLevelParams, scope.request.revision).level.value
        if upstream.capabilities.logging is None:
            raise CodedError(METHOD_NOT_FOUND, "Method not found", {"method": scope.request.method.name})
        downstream.set_log_level(level)
        await upstream.set_level(downstream, level)
        return _DONE

    async def _subscribe(self, scope: RequestScope, downstream: ProxyClient, upstream: Upstream) -> EmptyResult:
        uri = uri_to_subscribe(scope.request)
        subscriptions = self._state.subscriptions
        if uri in subscriptions:
            return _DONE
        if len(subscriptions) >= self.connection.limits.max_subscriptions:
            raise too_many_subscriptions()
        subscriptions.add(uri)  # register the subscription before the request is sent, so that no change is missed
        try:
            await upstream.subscribe(uri)
        except BaseException:
            subscriptions.discard(uri)
            raise
        return _DONE

    async def _unsubscribe(self, scope: RequestScope, downstream: ProxyClient, upstream: Upstream) -> EmptyResult:
        uri = structure_params(scope.request.params, SubscribeParams, scope.request.revision).uri
        if uri in self._state.subscriptions:
            self._state.subscriptions.discard(uri)
            await upstream.unsubscribe(uri)
        return _DONE

    # Notifications

    def wants(self, event: NotificationReceived) -> bool:
        """Return true for a client's notification that must be passed to `notified`, which forwards it to the upstream
        server.

        Handshake and progress notifications are handled elsewhere. See `RequestHandler.wants`.
        """
        return event.method.name not in _NOT_FORWARDED

    async def notified(self, event: NotificationReceived) -> None:
        """Forward a client's notification to the upstream server, if that server knows the method. See
        `RequestHandler.notified`."""
        reached = self._tenants.reached(self.connection.exchange.peer.principal)
        if reached is None:
            return
        _, upstream = reached
        if is_unknown(event.method.name):
            await _forward_notification(*reached, event)
        elif event.method.name == "notifications/roots/list_changed":
            # A client sends this notification only if it has declared ``list_changed`` for its roots.
            await upstream.client.roots_changed()
        elif event.method.name in upstream.revision._methods:
            await upstream.notify(event.method.name, event.params or None)


async def _forward_notification(
    downstream: ProxyClient, upstream: Upstream, sent: InboundRequest | NotificationReceived
) -> None:
    """Forward a notification of an extension from the client to the upstream server, if the proxy forwards this
    extension."""
    if _forwards(downstream, upstream, sent):
        await upstream.send_extension_notification(sent.method.name, sent.params or None)


def _forwards(downstream: ProxyClient, upstream: Upstream, sent: InboundRequest | NotificationReceived) -> bool:
    return upstream.passage_to(downstream).forwards(sent.method.name, sent.revision)


def _discovered(downstream: ProxyClient, upstream: Upstream, request: InboundRequest) -> DiscoverResult:
    return DiscoverResult(_VERSIONS, offered_capabilities(upstream, downstream, request), upstream.client.instructions)


class ReadingOrder:
    """Makes the trio tasks of requests continue in the order in which the proxy has read the requests.

    Each request runs in its own trio task, and trio may start tasks in any order.
    """

    def __init__(self) -> None:
        self._numbers: WeakKeyDictionary[InboundRequest, int] = WeakKeyDictionary()
        self._count = count()
        self._turns: list[tuple[int, trio.Event]] = []
        """The requests that are waiting for their turn, or whose turn it is, in the order of reading. Each request has
        the event that starts its turn."""

    def add(self, request: InboundRequest) -> None:
        """Record that the proxy has just read ``request``. Its turn comes after the turns of all earlier requests."""
        self._numbers[request] = next(self._count)

    async def wait_for_turn(self, request: InboundRequest) -> None:
        """Wait while requests that were read before ``request`` also wait in this method. They continue first, in the
        order in which they were read.

        The next waiting request continues when the caller of this method blocks.
        """
        turn = self._numbers.pop(request), trio.Event()
        insort(self._turns, turn)
        try:
            await trio.lowlevel.checkpoint()
            if self._turns[0] is not turn:
                await turn[1].wait()
        finally:
            self._turns.remove(turn)
            if self._turns:
                self._turns[0][1].set()
