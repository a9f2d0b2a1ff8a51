"""Servable: a transport serves a `Server`, or a `CustomServer` for one, and need not know which."""

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
    """The connection of one client that is served."""

    @property
    def connection(self) -> Connection:
        """The transport of the connection."""
        ...

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve the client until the connection ends. See `Connection.run`."""
        ...

    def everything_changed(self) -> None:
        """Tell a legacy client, which may have missed changes, that the lists that were declared and the resources that
        the client subscribed to may have changed."""
        ...


@frozen
class RunningCustomServer:
    """A stand-in that serves clients now."""

    callers: Callers
    """The parties that call the stand-in, by which its bounds are shared."""
    limits: Limits
    """The limits of each connection."""
    connect: Callable[[FramedTransport | Outbox, Peer, ConnectionState | None], ServedConnection]
    """Returns the connection of one more client, whose messages the state rules on."""
    host: RequestHost
    """The nursery of the handlers, and all that connections share."""
    vocabulary: Vocabulary = CORE
    """The methods that clients may use."""
    stateless: bool = attrs.field(default=False, init=False)
    """A stand-in keeps the state of its connections between requests."""


class CustomServer(Protocol):
    """An object that looks like a server to its clients, a proxy for example."""

    @property
    def info(self) -> Implementation:
        """The stand-in's name, for the people who run the stand-in."""
        ...

    @property
    def limits(self) -> Limits:
        """The limits of each connection, unless a transport is given others."""
        ...

    def _running(
        self, limits: Limits | None = None, *, stateless: bool = False
    ) -> AbstractAsyncContextManager[RunningCustomServer]:
        """Return the stand-in between its start and its end. See `Server._running`."""
        ...


Servable: TypeAlias = Server | CustomServer
"""What the serve_* functions serve: a `Server`, or what `proxy` and `gateway` return."""
Running: TypeAlias = RunningServer | RunningCustomServer


def check_servable(server: object) -> None:
    """Raise `TypeError` for what cannot be served, where it is given."""
    if not isinstance(server, Server) and not callable(getattr(server, "_running", None)):
        raise TypeError(f"what is served is a Server, or what proxy(client) returns, not {repr(server)[:200]}")


def running_with(
    server: Servable, shared: SharedStorage | None, limits: Limits | None, *, stateless: bool
) -> AbstractAsyncContextManager[Running]:
    """Return ``server`` between its start and its end: see `Server._running`. Raises `TypeError` for a stand-in that
    would share something: its state is in the server behind it."""
    if shared is None:
        return server._running(limits, stateless=stateless)
    if not isinstance(server, Server):
        raise TypeError(
            f"shared= is for a Server, not for {repr(server)[:200]}, which keeps nothing that could be shared"
        )
    return server._running(limits, stateless=stateless, shared=shared)


def param_headers_of(running: Running, tool: object, auth: Auth | None) -> tuple[ParamHeader, ...]:
    """Return the headers that mirror arguments of ``tool``; none where the tool is unknown to this caller, or a
    stand-in's, which has the headers of its requests checked itself (`Exchange.check_headers`)."""
    if not (isinstance(running, RunningServer) and isinstance(tool, str)):
        return ()
    tools = running.server._tools.registry
    entry = tools.get_for_all(tool) or tools.get_for(auth, tool)
    return () if entry is None else entry.param_headers


def scopes_of(running: Running, method: str, params: object, auth: Auth | None) -> frozenset[str]:
    """Return the scopes that a request needs: see `required_scopes`. A stand-in has none."""
    return required_scopes(running.server, method, params, auth) if isinstance(running, RunningServer) else NO_SCOPES


def needs_scopes(running: Running) -> bool:
    """Return whether anything that ``running`` offers needs a scope."""
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
    """Return the connection of one client of ``running``, over ``transport``: see `Connection`. ``state`` rules on
    the messages; by default, the state of a connection. ``check_scopes`` checks each request, for a transport that does
    not."""
    if isinstance(running, RunningServer):
        kind = ServerConnection if running.middleware is None else MiddlewareConnection
        if running.fleet is not None:
            kind = SharedConnection
        return kind(running, transport, peer, state, check_scopes)
    return running.connect(transport, peer, state)


def end_tasks(running: Running, *, hurry: bool) -> None:
    """Have the tasks of ``running`` end while its connections do. Idempotent. ``hurry``: less than a second is left. A
    stand-in has no tasks of its own."""
    if isinstance(running, RunningServer):
        running.tasks.shut_down(hurry=hurry)
        if running.fleet is not None:
            running.fleet.shut_down(hurry=hurry)
