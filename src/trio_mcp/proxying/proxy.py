"""proxy: creates a server that forwards all messages to another server (the upstream server) through a client."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterable, Sequence
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from ..client.client import Client
from ..concurrency.contexts import asynccontextmanager
from ..concurrency.nurseries import open_service_nursery
from ..connecting.targets import Target, target_of
from ..hosting.group import Group
from ..protocol.types.lifecycle import Implementation
from ..runtime.limits import DEFAULT_LIMITS, Limits, Load, Statistics
from ..runtime.requests.endings import Endings
from ..runtime.requests.host import RequestHost
from ..runtime.transport import ConnectionLost
from ..server.request_state import StateCipher
from ..server.servable import RunningCustomServer
from ..server.server import Server
from .connection import ProxyConnection
from .extensions import CANCELS, VOCABULARY, SharedExtensions
from .gateway import Gateway, gateway
from .tasks import TaskOwners
from .tenants import OpenUpstream, UpstreamPool
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
