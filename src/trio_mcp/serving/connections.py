"""Connections: the `Front` of transports in which each stream is one MCP connection, such as TCP and WebSocket.

`serve_tcp` and `serve_unix` serve many clients concurrently, framed as over stdio.
"""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable, Iterable, Sized
from typing import TYPE_CHECKING, Protocol, TypeVar, Unpack

import attrs
import trio

from ..classes import frozen
from ..concurrency.fair_share import Caller, HeldBytes, SharedBytes
from ..concurrency.misuse import check_keywords, check_served_under_trio
from ..concurrency.nurseries import ServiceNursery, open_service_nursery
from ..diagnostics.log import peer_log_share
from ..runtime.limits import Limits
from ..runtime.peer import UNKNOWN_PEER, CheckScopes, Peer
from ..runtime.transport import ConnectionLost, FramedTransport
from ..server.servable import Running, Servable, ServedConnection, connection_to
from ..transports.sockets import SocketLineTransport, unix_listener
from .accepting import LINES_ADVICE, ServingOptions, SocketListeners, serve_streams, warn_if_exposed
from .callers import CallersByAddress, RemoteEnd, TrustedProxies, unread_bytes, warn_of_unchecked_scopes

if TYPE_CHECKING:
    from ..auth.resource_server.protected import Gate
    from ..recording.recorder import Recorder

T = TypeVar("T")


@frozen(eq=False)
class AcceptedConnection:
    """An accepted connection to a client: the transport and the `Peer` (the client)."""

    transport: FramedTransport
    peer: Peer
    check_scopes: CheckScopes | None = None
    """Function that checks the scopes of each request, if the server is protected."""
    until: float = math.inf
    """Time at which the client's token expires, on trio's clock."""
    expire: Callable[[], ConnectionLost] | None = None
    """Function that closes the transport because the client's token has expired, and returns the error to raise."""
    refuse: Callable[[], object] | None = None
    """Function that rejects a client with too many connections, and asks it to try again later."""


class ConnectionAcceptor(Protocol):
    """Accepts or rejects the clients of a transport with one MCP connection per stream."""

    async def accept(
        self, stream: trio.abc.Stream, limits: Limits, nursery: ServiceNursery, unread: HeldBytes, received: bytes
    ) -> AcceptedConnection | None:
        """Perform the transport's handshake on ``stream`` and authenticate the client.

        Return its connection, or `None` if the client was rejected. The transport's tasks run in ``nursery``, and
        ``unread`` counts the bytes of incomplete messages. ``received`` are bytes of the stream that were already read.
        """
        ...

    async def reject(self, stream: trio.abc.Stream) -> None:
        """Close an accepted stream because the server has too many connections.

        Send the reason if the client can understand it.
        """
        ...


async def serve_connections(
    server: Servable,
    listen: Callable[[], Awaitable[SocketListeners]],
    greeting: ConnectionAcceptor,
    *,
    task_status: trio.TaskStatus[SocketListeners],
    gate: Gate | None = None,
    trusted_proxies: TrustedProxies | None = None,
    **options: Unpack[ServingOptions],
) -> None:
    """Serve ``server`` to all clients that connect, with one MCP connection per stream: see `serve_streams`.

    ``greeting`` accepts clients, and ``gate`` authenticates them. ``trusted_proxies`` may connect on behalf of clients.
    """

    def front(running: Running, _: trio.Nursery, recorder: Recorder | None) -> Connections:
        warn_of_unchecked_scopes(running, gate)
        return Connections(running, greeting, trusted_proxies, recorder=recorder)

    await serve_streams(server, listen, front, task_status=task_status, **options)


class ConnectionQuota:
    """Limits the number of a server's connections to ``limit``, and counts the open connections.

    The quota refers to the collections of connections, and not to the objects that have these collections, to avoid
    reference cycles.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._counted: list[Sized] = []

    def count(self, *connections: Sized) -> None:
        """From now on, also count the members of the collections ``connections`` towards the server's maximum number of
        connections."""
        self._counted += connections

    def free(self) -> int:
        """Return how many more connections the server may accept."""
        return self._limit - sum(map(len, self._counted))


class Connections:
    """Serves the MCP connections to ``running`` (the running server), one per stream. See `Front`.

    ``greeting`` accepts or rejects the clients. Connections count against ``room``, by default a quota of their own,
    and the bytes of incomplete messages against ``unread``. ``trusted_proxies`` may connect on behalf of clients.
    ``recorder`` records each connection.
    """

    def __init__(
        self,
        running: Running,
        greeting: ConnectionAcceptor,
        trusted_proxies: TrustedProxies | None = None,
        room: ConnectionQuota | None = None,
        unread: SharedBytes | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self._running = running
        self._greeting = greeting
        self._recorder = recorder
        self._limits = running.limits
        self.callers = CallersByAddress(running.callers, trusted_proxies)
        """The object that identifies the peers of connections: see `Front.callers`."""
        self._greeted: dict[trio.CancelScope, Caller] = {}
        """Cancel scopes of the clients that haven't been authenticated yet, oldest first."""
        self._open: set[ServedConnection] = set()
        self._room = room or ConnectionQuota(running.limits.max_connections)
        self._room.count(self._greeted, self._open)
        self._unread = unread or unread_bytes(running.limits)
        self._ending: str | None = None

    def start_draining(self) -> bool:
        """Return false, because only HTTP servers have health checks. See `Front.start_draining`."""
        return False

    @property
    def awaits_requests(self) -> None:
        """Always `None`, because each connection carries many requests: see `Front.awaits_requests`."""

    def shut_down(self, reason: str, *, hurry: bool) -> None:
        """Close each connection as soon as its accepted requests have ended: see `Front.shut_down`."""
        self._ending = reason
        for scope in tuple(self._greeted):
            scope.cancel(reason=reason)
        for connection in tuple(self._open):
            connection.connection.shut_down(reason, hurry=hurry)

    async def wait_closed(self) -> None:
        """Return after a checkpoint, without waiting for connections, because the remaining connections end on their
        own.

        See `Front.wait_closed`.
        """
        await trio.lowlevel.checkpoint()

    def make_room(self, weight: Callable[[Caller], int]) -> bool:
        """Disconnect the oldest client that hasn't sent anything yet: see `Front.make_room`.

        Otherwise a few machines that reconnect repeatedly could lock out all other clients.
        """
        oldest = heaviest(self._greeted.items(), weight)
        if oldest is None:
            return False
        del self._greeted[oldest]
        oldest.cancel(reason="the client has sent nothing, and its connection is needed for another client")
        return True

    async def serve(self, stream: trio.abc.Stream, hop: RemoteEnd, received: bytes = b"") -> None:
        """Serve the MCP connection on ``stream`` until it ends, if the client is accepted.

        ``hop`` is the remote end of the stream, and ``received`` are bytes of the stream that were already read. See
        `Front.serve`.
        """
        unread = self._unread.held_for(hop.connection(hop.here))
        try:
            await self._serve(stream, hop, received, unread)
        finally:
            unread.release()

    async def reject(self, stream: trio.abc.Stream) -> None:
        """Close a new stream because the server has too many connections: see `ConnectionAcceptor.reject`."""
        await self._greeting.reject(stream)

    async def _serve(self, stream: trio.abc.Stream, hop: RemoteEnd, received: bytes, unread: HeldBytes) -> None:
        async with open_service_nursery("the connection has ended") as nursery:
            arrival: AcceptedConnection | None = None
            has_place: Caller | None = None
            with trio.move_on_after(self._limits.handshake_timeout) as scope:
                self._greeted[scope] = hop.here
                try:
                    with peer_log_share(hop.here):
                        arrival = await self._greeting.accept(stream, self._limits, nursery, unread, received)
                finally:
                    has_place = self._greeted.pop(scope, None)
            if arrival is None or has_place is None:
                return
            caller = hop.caller(arrival.peer.principal, arrival.peer.headers)
            part = hop.connection(caller)
            unread.move_to(part)
            if hop.is_proxy and not hop.use(caller, self._room.free() - 1):
                if arrival.refuse is not None:
                    arrival.refuse()
                await arrival.transport.aclose()
                return
            peer = attrs.evolve(arrival.peer, caller=part, user=hop.user)
            transport = arrival.transport
            if self._recorder is not None:
                transport = self._recorder._recorded(transport, "server")
            connection = connection_to(self._running, transport, peer, check_scopes=arrival.check_scopes)
            self._open.add(connection)
            if arrival.expire is not None:
                nursery.start_soon(_expire_connection, connection, arrival.until, arrival.expire)
            try:
                if self._ending is not None:
                    connection.connection.shut_down(self._ending)
                await connection.run()
            finally:
                self._open.discard(connection)
                hop.release()


def heaviest(connections: Iterable[tuple[T, Caller]], weight: Callable[[Caller], int]) -> T | None:
    """Find the caller for which the function ``weight`` returns the greatest number, and return the first connection of
    this caller. Return `None` if ``weight`` returns 0 for all callers."""
    found = max(connections, key=lambda each: weight(each[1]), default=None)
    return None if found is None or not weight(found[1]) else found[0]


async def _expire_connection(connection: ServedConnection, until: float, expire: Callable[[], ConnectionLost]) -> None:
    await trio.sleep_until(until)
    connection.connection.lose(expire())


async def serve_tcp(
    server: Servable,
    host: str | None = "127.0.0.1",
    port: int = 8766,
    *,
    task_status: trio.TaskStatus[SocketListeners] = trio.TASK_STATUS_IGNORED,
    **options: Unpack[ServingOptions],
) -> None:
    """Serve ``server`` over plain TCP until cancelled or shut down. Each message is one line, as over stdio.

    The connection is neither encrypted nor authenticated: any process that can reach the port is a client. A warning is
    logged if other machines can reach it. `serve_websocket` describes how listeners are reported, and what happens on
    shutdown and cancellation. `ServingOptions` documents ``options``.
    """

    check_served_under_trio("serve_tcp")
    check_keywords(serve_tcp, options)

    async def listen() -> SocketListeners:
        opened = await trio.open_tcp_listeners(port, host=host)
        warn_if_exposed(opened, LINES_ADVICE)
        return opened

    await serve_connections(server, listen, _LineAcceptor(), task_status=task_status, **options)


async def serve_unix(
    server: Servable,
    path: str | os.PathLike[str],
    *,
    task_status: trio.TaskStatus[SocketListeners] = trio.TASK_STATUS_IGNORED,
    **options: Unpack[ServingOptions],
) -> None:
    """Serve ``server`` on the Unix socket ``path`` until cancelled or shut down. Each message is one line, as over
    stdio.

    Only the current user may connect (mode 0600). The socket is removed at the end. If the socket file of a dead server
    exists, it is replaced. During this check, the function locks the file ``path`` + ``.lock``, which it then removes.
    `serve_websocket` describes how listeners are reported, and what happens on shutdown and cancellation.
    `ServingOptions` documents ``options``.

    Raises:
      OSError: a running server listens at ``path``, or ``path`` is not a socket.
    """
    check_served_under_trio("serve_unix")
    check_keywords(serve_unix, options)
    with unix_listener(path) as listener:

        async def listen() -> SocketListeners:
            return [listener]

        await serve_connections(server, listen, _LineAcceptor(), task_status=task_status, **options)


@frozen
class _LineAcceptor:
    async def accept(
        self, stream: trio.abc.Stream, limits: Limits, nursery: ServiceNursery, unread: HeldBytes, received: bytes
    ) -> AcceptedConnection:
        transport = SocketLineTransport(stream, limits.max_message_bytes, unread)
        await transport.until_first()  # wait for the first whole message before the client counts as connected
        return AcceptedConnection(transport, UNKNOWN_PEER)

    async def reject(self, stream: trio.abc.Stream) -> None:
        """Close the stream without a message about the reason, because some clients wouldn't understand the message."""
        await trio.aclose_forcefully(stream)
