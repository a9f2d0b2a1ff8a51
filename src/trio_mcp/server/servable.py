"""`Servable`: the type of objects that a transport can serve, a `Server` or a `CustomServer` such as a proxy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol, TypeAlias

import attrs
import trio

from ..classes import frozen
from ..concurrency.fair_share import Callers
from ..protocol.param_headers import ParamHeader
from ..protocol.revisions import CORE, Vocabulary
from ..protocol.types.lifecycle import Implementation
from ..runtime.connection import Connection
from ..runtime.limits import Limits
from ..runtime.outbox import Outbox
from ..runtime.peer import UNKNOWN_PEER, Auth, CheckScopes, Peer
from ..runtime.requests.host import RequestHost
from ..runtime.transport import FramedTransport
from ..state.connection import ConnectionState
from .connection import MiddlewareConnection, ServerConnection, SharedConnection
from .offering import NO_SCOPES, required_scopes
from .server import RunningServer, Server

if TYPE_CHECKING:
    from .sharing import SharedStorage


class ServedConnection(Protocol):
    """A connection through which a server serves one client."""

    @property
    def connection(self) -> Connection:
        """The MCP connection to the client."""
        ...

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve the client until the connection ends. See `Connection.run`."""
        ...

    def everything_changed(self) -> None:
        """Notify the client that all lists and subscribed resources may have changed, because it may have missed
        notifications. Only clients of legacy protocol revisions are notified.

        The client gets one notification for each list with declared change notifications, and for each resource that it
        subscribed to.
        """
        ...


@frozen
class RunningCustomServer:
    """A `CustomServer` that is running and can serve connections."""

    callers: Callers
    """The callers among which the server's limits are divided."""
    limits: Limits
    """The limits of each connection."""
    connect: Callable[[FramedTransport | Outbox, Peer, ConnectionState | None], ServedConnection]
    """Function that returns the connection for a new client. The `ConnectionState` validates the client's messages."""
    host: RequestHost
    """Contains the nursery in which handlers run, and the other state that all connections share."""
    vocabulary: Vocabulary = CORE
    """The methods that clients may call."""
    stateless: bool = attrs.field(default=False, init=False)
    """Always false, because a custom server keeps connection state between requests."""


class CustomServer(Protocol):
    """An object that acts as a server towards clients, for example a proxy."""

    @property
    def info(self) -> Implementation:
        """The name and version of the server, for display to its operators."""
        ...

    @property
    def limits(self) -> Limits:
        """The limits of each connection. A transport may override them."""
        ...

    def _running(
        self, limits: Limits | None = None, *, stateless: bool = False
    ) -> AbstractAsyncContextManager[RunningCustomServer]:
        """Run the server during the ``async with`` block. See `Server._running`."""
        ...


Servable: TypeAlias = Server | CustomServer
"""What the serve_* functions accept: a `Server`, or the result of `proxy` or `gateway`."""
Running: TypeAlias = RunningServer | RunningCustomServer


def check_servable(server: object) -> None:
    """Raise `TypeError` if ``server`` isn't an object that a transport can serve. Transports call this function first,
    so that the traceback shows the line of the user's code."""
    if not isinstance(server, Server) and not callable(getattr(server, "_running", None)):
        raise TypeError(f"server must be a Server or the result of proxy(client), not {repr(server)[:200]}")


def running_with(
    server: Servable, shared: SharedStorage | None, limits: Limits | None, *, stateless: bool
) -> AbstractAsyncContextManager[Running]:
    """Run ``server`` during the ``async with`` block.

    See `Server._running`. Raises `TypeError` if ``shared`` is given for a `CustomServer`, because a `CustomServer` has
    no state to share: its state is in the upstream server.
    """
    if shared is None:
        return server._running(limits, stateless=stateless)
    if not isinstance(server, Server):
        raise TypeError(f"shared= works only with a Server, not with {repr(server)[:200]}, which has no state to share")
    return server._running(limits, stateless=stateless, shared=shared)


def param_headers_of(running: Running, tool: object, auth: Auth | None) -> tuple[ParamHeader, ...]:
    """Return the HTTP headers that must repeat arguments of the tool ``tool``.

    The tuple is empty if the tool is unknown to this caller, or if ``running`` is a `CustomServer`, which checks the
    headers itself (`Exchange.check_headers`).
    """
    if not (isinstance(running, RunningServer) and isinstance(tool, str)):
        return ()
    tools = running.server._tools.registry
    entry = tools.get_for_all(tool) or tools.get_for(auth, tool)
    return () if entry is None else entry.param_headers


def scopes_of(running: Running, method: str, params: object, auth: Auth | None) -> frozenset[str]:
    """Return the OAuth scopes that a request needs. See `required_scopes`. Requests to a `CustomServer` need no
    scopes."""
    return required_scopes(running.server, method, params, auth) if isinstance(running, RunningServer) else NO_SCOPES


def needs_scopes(running: Running) -> bool:
    """Return whether any tool, resource or prompt of ``running`` needs an OAuth scope."""
    if not isinstance(running, RunningServer):
        return False
    server = running.server
    if server._extension_handlers is not None and server._extension_handlers.scopes:
        return True
    offers = (server._tools.registry, server._prompts.registry, *server._resources.registries)
    return any(offer.scopes for registry in offers for offer in registry.including_disabled())


def connection_to(
    running: Running,
    transport: FramedTransport | Outbox,
    peer: Peer = UNKNOWN_PEER,
    state: ConnectionState | None = None,
    check_scopes: CheckScopes | None = None,
) -> ServedConnection:
    """Return a connection through which ``running`` serves one client over ``transport``. See `Connection`.

    ``state`` validates the messages; by default it is a new connection state. ``check_scopes`` is called for each
    request, if the transport itself doesn't check scopes.
    """
    if isinstance(running, RunningServer):
        kind = ServerConnection if running.middleware is None else MiddlewareConnection
        if running.fleet is not None:
            kind = SharedConnection
        return kind(running, transport, peer, state, check_scopes)
    return running.connect(transport, peer, state)


def end_tasks(running: Running, *, hurry: bool) -> None:
    """Shut down the MCP tasks of the server ``running``, because the server's connections are closing.

    Idempotent. If ``hurry`` is true, less than a second is left. Does nothing for a `CustomServer`, which has no tasks.
    """
    if isinstance(running, RunningServer):
        running.tasks.shut_down(hurry=hurry)
        if running.fleet is not None:
            running.fleet.shut_down(hurry=hurry)
