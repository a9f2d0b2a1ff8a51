"""proxy: make a server of another server, which is reached through a client."""

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
from ..runtime.requests.host import RequestHost
from ..runtime.transport import ConnectionLost
from ..server.request_state import StateCipher
from ..server.servable import RunningCustomServer
from ..server.server import Server
from .connection import ProxyConnection
from .extensions import VOCABULARY, SharedExtensions, remember_endings
from .gateway import Gateway, gateway
from .tasks import TaskOwners
from .tenants import OpenUpstream, UpstreamPool
from .upstream import Upstream

if TYPE_CHECKING:
    from ..protocol.extensions import Extension

ProxyTarget: TypeAlias = Client | OpenUpstream | Target | Server | str | Sequence[str | os.PathLike[str]]
"""Kinds of servers behind a proxy."""


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
    """Return a server for `serve_stdio`, `serve_websocket`, `open_memory` and the like that hands every message on to
    ``upstream``: a URL, the words of a command, a `Server`, an `Address`, a `Command`, an `InMemory`, a function that
    opens a client, or an open `Client`. For a `Group` the server is its `gateway`.

    Every message is handed on, in both directions and from either era to either: requests with their progress and
    errors, cancels with their reason, logs, changes, and the requests of the server behind. Each connection has its own
    ids, progress tokens and subscription ids; unknown members and ``_meta`` stay unchanged. A message that the client's
    revision cannot express is an error of that request.

    Extensions that the proxy does not know pass unchanged, with requests, notifications and errors in both
    directions, if client and server speak the same era, and the connection to the server behind serves this client, or
    its principal, alone. Where others use that connection, too, as with an open `Client` and for modern clients over
    HTTP whom nobody knows, a message of an extension may tell one client of another: only the extensions in ``passes``
    pass there, each given by its name, which its methods then begin with (``com.example/search/query``,
    ``notifications/com.example/search/added``), or as an `Extension`. An extension that does not pass is declared to
    neither side, and its methods, like those in no revision, are answered -32601.

    But for an open `Client`, each client of the proxy gets a connection of its own to the server behind, and a process
    of its own where that is a command, in the client's name, with the client's capabilities and, where the server has
    that revision, in the client's revision. The connection is opened for the client's first request and closed with the
    client; a loss of the connection ends the connection of that client. Modern clients over HTTP have no connection of
    their own: the clients of a principal share one to the server behind, unknown clients another, opened in nobody's
    name, and closed when no request has come for `Limits.session_timeout`; a question of a legacy server reaches these
    clients while a single call is in flight, and a log all calls in flight. Principals share `Limits.max_upstreams`
    connections to the server behind.

    With an open `Client` all clients share its connection, also the clients of other proxies over that `Client`.
    Requests of the server behind are handed on if that `Client` was opened with ``forwards=ClientCapabilities(...)``,
    else the handlers of the `Client` answer. A modern server asks in a call, which shows the client to ask. A legacy
    server gets the answer of the only client, otherwise of the only client with a call in flight, otherwise an error.
    It also gets an error if another client has given up a call, since the question may belong to that call.
    Logs of a legacy server go to all clients that want logs. Once callers of several principals have come, nothing is
    guessed: a question of a legacy server, and a log of any, is for nobody without the name of a task. Over HTTP a
    question or a log in the answer to a POST belongs to the call in the POST.

    Tasks pass where client and server speak the same form of tasks, as far as the client declares them; the client then
    looks after its tasks itself, through any connection of the proxy. For other clients the proxy waits for the end of
    a task, and answers the call as any call. The task of a principal exists for that principal alone, as long as the
    proxy runs and remembers the task (of the latest 50,000); without principals the id of a task gives access.

    How a call ends that a client has left (`CancelAcknowledged`), the proxy answers for itself, whatever client and
    server speak: once its own part and the call at the server behind are over, or ``relayed`` where that server does
    not have the extension. An open `Client` asks the server behind if it was opened with the extension.

    A protected server behind is called with the proxy's own authorization, ``proxy(Address(url, auth=OAuth()))``,
    whoever the client is. The token of a client is never handed on (2026-07-28 authorization, Access Token Privilege
    Restriction): ``serve_http(proxy(...), auth=Protected(...))`` has tokens of its own checked.

    ``name`` is for the people who run the proxy. ``limits`` bound each connection to the proxy.
    Raises `BadTarget` for a text that is no URL, `TypeError` for another ``upstream``, and `ValueError` for a text in
    ``passes`` that is no name of an extension.
    """
    if isinstance(upstream, Group):
        if passes := list(passes):
            raise TypeError("the extensions of the members of a group do not pass: a gateway has none but its own")
        return gateway(upstream, name=name or "gateway", limits=limits)
    shared = SharedExtensions.of(passes)
    if isinstance(upstream, Target | Server | str | list | tuple):
        upstream = target_of(upstream).open
    elif not isinstance(upstream, Client) and not callable(upstream):
        raise TypeError(
            "a proxy takes a URL, the words of a command, a Server, an Address, an open client, or a function that "
            f"opens one, not {upstream!r:.200}"
        )
    return Proxy(upstream, name, limits, shared)


class Proxy:
    """A server that hands every message on to another server, made by `proxy`."""

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
        self.info = Implementation(name or "proxy", version("trio-mcp"))
        self._load = Load()
        self._task_owners = TaskOwners()

    def __repr__(self) -> str:
        return f"<Proxy {self.info.name}>"

    def statistics(self) -> Statistics:
        """Return the load of the proxy: see `Server.statistics`."""
        return self._load.statistics()

    @asynccontextmanager
    async def _running(
        self, limits: Limits | None = None, *, stateless: bool = False
    ) -> AsyncGenerator[RunningCustomServer]:
        """Run the proxy: see `Server._running`. Raises `ValueError` for ``stateless``, since a proxy keeps the state of
        both its connections."""
        if stateless:
            raise ValueError("a proxy cannot be run stateless")
        host = RequestHost(limits or self.limits, load=self._load)
        remember_endings(host)
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
    """End the connections of all clients when the server behind is gone."""
    try:
        await shared.client.until_lost()
    except ConnectionLost as error:
        for downstream in tuple(shared.downstreams):
            downstream.close(f"the server behind is gone: {error.reason}")
