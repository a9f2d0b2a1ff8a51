"""serve_http: serves a server to many clients over Streamable HTTP. `HttpFront` serves the HTTP connections, including
those that become WebSockets."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Unpack

import trio

from ...classes import show_fields
from ...concurrency.contexts import asynccontextmanager
from ...concurrency.fair_share import Caller
from ...concurrency.misuse import check_keywords, check_served_under_trio
from ...diagnostics.log import peer_log_share
from ...runtime.limits import Limits
from ...runtime.outbox import LastFlush
from ...server.servable import Running, Servable
from ...transports.host_checks import HostChecks, host_checks_for
from ...transports.http.application import HttpBounds
from ...transports.http.connection import HttpConnection
from ...transports.sockets import unix_listener
from ..accepting import (
    EndpointOptions,
    SocketListeners,
    WebSocketOptions,
    open_listeners,
    serve_streams,
    serving_options,
)
from ..callers import CallersByAddress, RemoteEnd
from ..connections import ConnectionQuota, Connections, heaviest
from ..process import recorder_of
from .endpoint import HttpEndpoint, watch_clock
from .responses import NO_ROUTES, EndpointSettings, documents_beside

if TYPE_CHECKING:
    from ...recording.recorder import Recorder
    from ...server.sharing import SharedStorage
    from .cards import Card
    from .recorded import HttpRecordings
    from .routes import Route


@show_fields
class HTTPAppOptions(EndpointOptions, total=False):
    """The keyword arguments of `http_app`, which `serve_http` also accepts."""

    retry_interval: float
    """Seconds after which clients of revision 2025-11-25 reconnect when a stream breaks. 1.0 by default."""
    card: Card | None
    """The server card, which is served at the path of the endpoint plus ``/server-card``. `None`, the default,
    publishes no card."""
    catalog: bool
    """True if the card is listed in a catalog at ``/.well-known/ai-catalog.json``. False by default."""
    shared: SharedStorage | None
    """Storage that the replicas of a server share, so that any process can serve any client. With `None`, the default,
    all requests of a client must reach the same process."""


@show_fields
class HTTPOptions(HTTPAppOptions, WebSocketOptions, total=False):
    """The keyword arguments of `serve_http`, without ``host`` and ``port``."""

    unix: str | os.PathLike[str] | None
    """Path of a Unix socket, in place of ``host`` and ``port``. `None` by default."""
    websocket: bool
    """True if clients may also connect by WebSocket at the same URL. False by default."""
    access_log: bool
    """True if each response is logged to the logger ``trio_mcp.access``. False by default."""
    health: bool
    """True if the server has health checks at ``/healthz`` and ``/readyz`` for load balancers. False by default."""
    routes: Mapping[str, Route]
    """Your own paths next to the endpoint, each with a function or an ASGI application. None by default."""


async def serve_http(
    server: Servable,
    host: str | None = "127.0.0.1",
    port: int = 8000,
    *,
    task_status: trio.TaskStatus[SocketListeners] = trio.TASK_STATUS_IGNORED,
    **options: Unpack[HTTPOptions],
) -> None:
    """Serve ``server`` over Streamable HTTP at ``http://host:port/mcp``, until cancelled or shut down.

    Any number of clients can connect, with any protocol revision.

    Modern clients need only the endpoint. If such a client disconnects, its request is cancelled with the cause
    ``disconnect``. Legacy clients get a session each, and may reconnect to it: their requests continue when a
    connection breaks, and are cancelled by a notification.

    `serve_websocket` describes how listeners are reported, and what happens on shutdown and cancellation. Streams don't
    delay the shutdown: they are ended properly.

    Server-wide limits are shared fairly among callers: see `Limits`. A caller is a principal or, without
    authentication, an IP address.

    Args:
      host: address to listen on. `None` is every address of the machine.
      port: port to listen on. 0 is any free port.
      path: path of the endpoint.
      listeners: your own open listeners, in place of ``host`` and ``port``.
      unix: path of a Unix socket, in place of ``host`` and ``port``. Only the current user may connect, see
          `serve_unix`. The URL for clients is ``http+unix://%2Frun%2Fmcp.sock/mcp``. By default, ``allowed_hosts`` is
          then ``localhost``, and ``allowed_origins`` is empty; pass both if a reverse proxy connects to the socket.
      ssl_context: TLS context; the URL is then ``https://``.
      auth: requires a token in every request, see `Protected`. The caller is ``ctx.auth``. Sessions, waiting handlers
          and the state of modern clients belong to one principal each. Streams of changes end when the client's token
          expires, and the client reconnects with a new one. Without ``auth``, a warning is logged if other machines can
          reach the server.
      allowed_origins: origins of the web pages that may call: see `serve_websocket`.
      allowed_hosts: host names under which the server is reached: see `serve_websocket`.
      trusted_proxies: reverse proxies that are trusted to report the address of a client. Without this, all clients
          behind a proxy count as one caller.
      stateless: true keeps no sessions. Any process can serve any request, but handlers can't send requests to legacy
          clients.
      retry_interval: seconds after which clients of revision 2025-11-25 reconnect when a resumable stream breaks.
          `RequestContext.close_stream` can set another time for one stream.
      websocket: true also accepts WebSocket connections at the same URL.
      access_log: true logs each response at level info to the logger ``trio_mcp.access``: address, principal, method,
          path, status, bytes of the body, and seconds. Each value is also an attribute of the log record.
      health: true serves health checks: ``GET /healthz`` returns 200 while the server is responsive. ``GET /readyz``
          returns 200 until the first signal, and 503 from then on. `Limits.drain_delay` gives load balancers time to
          notice this. Any Host, Origin and token is accepted, and the response contains nothing else.
      routes: your own paths next to the endpoint, each with a function or an ASGI application: see `Route`. A path with
          a trailing slash includes all paths below it. Host and Origin headers are checked, tokens are not.
      card: publishes a server card, at the path of the endpoint plus ``/server-card``.
      catalog: true lists the card at ``/.well-known/ai-catalog.json``, for clients that know only the host name. Card
          and catalog are public: the Host header is checked, Origin and token are not.
      record: records the messages of each session to its own file, and all requests without a session to one more: see
          `Recorder`. Headers are not recorded.
      shared: storage that the replicas of a server share behind a load balancer without sticky sessions, so that any of
          them can serve any request: `RedisStorage` or, on one machine, `SQLiteStorage`. See `SharedStorage`. It also
          keeps the tasks, unless `TaskSettings.store` is set.

    `HTTPOptions` documents all ``options``, and `Limits` the limits and timeouts.

    Raises:
      ValueError: other machines can reach ``host``, and ``allowed_origins`` or ``allowed_hosts`` is missing; or the
          card is invalid, see `Card`.
    """
    check_served_under_trio("serve_http")
    check_keywords(serve_http, options)
    unix, listeners, ssl_context = options.get("unix"), options.get("listeners"), options.get("ssl_context")
    origins, hosts = options.get("allowed_origins"), options.get("allowed_hosts")
    if unix is not None:
        if listeners is not None or ssl_context is not None:
            raise ValueError(
                "unix= can't be combined with listeners= or ssl_context=: unix= opens its own listener, without TLS"
            )
        # Web pages can't connect to a Unix socket, so no origins are allowed by default.
        # Requests from web pages (with an Origin header) reach a Unix socket only through a reverse proxy.
        # To serve web pages through a reverse proxy, callers of this function must pass `allowed_origins`.
        origins, hosts = () if origins is None else origins, ("localhost",) if hosts is None else hosts
    checks = host_checks_for(host if listeners is None and unix is None else None, origins, hosts)
    health, routes = options.get("health", False), options.get("routes", NO_ROUTES)
    settings = settings_of(server, checks, options, health=health, routes=routes)

    async def listen() -> SocketListeners:
        return await open_listeners(listeners, host, port, ssl_context, asks_for_tokens=settings.gate is not None)

    def front(running: Running, nursery: trio.Nursery, _: Recorder | None) -> HttpFront:
        websocket, access_log = options.get("websocket", False), options.get("access_log", False)
        return HttpFront(running, nursery, settings, recordings, websocket=websocket, access_log=access_log)

    serving, shared = serving_options(options), options.get("shared")
    with ExitStack() as stack:
        if unix is not None:
            listeners = [stack.enter_context(unix_listener(unix))]
        async with open_recordings(serving.pop("record", None)) as recordings:
            await serve_streams(server, listen, front, task_status=task_status, shared=shared, **serving)


def settings_of(
    server: Servable,
    checks: HostChecks,
    options: HTTPAppOptions,
    *,
    health: bool = False,
    routes: Mapping[str, Route] = NO_ROUTES,
) -> EndpointSettings:
    """Return the settings of the HTTP endpoint of ``server``, based on the keyword arguments ``options``."""
    path, auth, card = options.get("path", "/mcp"), options.get("auth"), options.get("card")
    return EndpointSettings(
        path,
        checks,
        None if auth is None else auth._gate(),
        options.get("trusted_proxies"),
        options.get("retry_interval", 1.0),
        health=health,
        routes=routes,
        documents=documents_beside(server, path, card, catalog=options.get("catalog", False)),
    )


_DROPPED: Final = 16
"""Bytes of a refused body that are read and discarded, as a multiple of the longest message."""
_GOODBYE: Final = 1.0
"""Seconds within which the last bytes of a connection are written when the server is cancelled."""


class HttpFront:
    """The `Front` for HTTP. It serves each client's connection to the MCP endpoint of ``running``, the running server.

    Its tasks run in ``nursery``. With ``websocket``, clients may connect by WebSocket at the same path. With
    ``access_log``, each response is logged. All messages are recorded in ``recordings``, if given.
    """

    def __init__(
        self,
        running: Running,
        nursery: trio.Nursery,
        settings: EndpointSettings,
        recordings: HttpRecordings | None = None,
        *,
        websocket: bool,
        access_log: bool = False,
    ) -> None:
        self._has_access_log = access_log
        self._bounds = bounds_of(running.limits)
        room = ConnectionQuota(running.limits.max_connections)
        self._endpoint = endpoint_to(running, settings, nursery, recordings, room.free)
        self.callers: CallersByAddress = self._endpoint.callers
        """One object for all connections, which identifies the client of each connection: see `Front.callers`."""
        self._connections: dict[HttpConnection, trio.CancelScope] = {}
        """Open connections, oldest first, each with the cancel scope that shields it from cancellation."""
        room.count(self._connections)
        self._websockets: Connections | None = None
        if websocket:
            from ..websocket import WebSocketAcceptor  # see `_refuse`

            recorder, unread = None if recordings is None else recordings.recorder, self._endpoint.unread
            greeting = WebSocketAcceptor(settings.path, settings.checks, settings.gate)
            self._websockets = Connections(running, greeting, settings.trusted_proxies, room, unread, recorder)
        self._is_ending = False
        self._left = trio.lowlevel.ParkingLot()
        """Parking lot of the task that waits until no connection is left."""
        self._last_flush = LastFlush()
        nursery.start_soon(watch_clock, self._endpoint, running.limits.stream_interval, self._tick)
        nursery.start_soon(self._until_cancelled)

    async def _until_cancelled(self) -> None:
        """Wait until the server and all its requests are cancelled.

        Then let each connection send its buffered bytes, because a stream that is cut off would look like a broken
        connection.
        """
        try:
            await trio.sleep_forever()
        finally:
            self._is_ending = True
            for connection, scope in tuple(self._connections.items()):
                connection.shut_down()
                scope.deadline = trio.current_time() + _GOODBYE

    def _tick(self, now: float) -> None:
        for connection in tuple(self._connections):
            connection.tick(now)

    def _connection_to(self, stream: trio.abc.Stream, hop: RemoteEnd) -> HttpConnection:
        if not self._has_access_log:
            return HttpConnection(stream, self._endpoint, self._bounds, hop)
        from ...transports.http.access_log import LoggedConnection  # imported late: most servers write no access log

        return LoggedConnection(stream, self._endpoint, self._bounds, hop, self._endpoint.who)

    async def serve(self, stream: trio.abc.Stream, hop: RemoteEnd) -> None:
        """Serve one HTTP connection: see `Front.serve`."""
        connection = self._connection_to(stream, hop)
        received: bytes | None = None
        # When the server ends, this cancel scope gets a deadline.
        with peer_log_share(hop.here), trio.CancelScope(shield=True) as scope:
            self._connections[connection] = scope
            if self._is_ending:
                scope.cancel(reason="the server ends")
            try:
                received = await connection.serve()
            finally:
                hop.release()
                del self._connections[connection]
                self._left.unpark_all()
        if received is None:
            return
        if self._websockets is None:
            await _refuse(stream, HTTPStatus.NOT_FOUND, "there is no WebSocket here")
        else:
            await self._websockets.serve(stream, hop, received)

    async def reject(self, stream: trio.abc.Stream) -> None:
        """Respond with status 503, because the server has too many connections: see `Front.reject`."""
        reason = "too many connections; try again later"
        await _refuse(stream, HTTPStatus.SERVICE_UNAVAILABLE, reason, Retry_After="5")

    def make_room(self, weight: Callable[[Caller], int]) -> bool:
        """Close the oldest connection that has sent no complete request. Return whether a connection was closed: see
        `Front.make_room`.

        The client of this connection may never complete a request.
        """
        idle = [connection for connection in self._connections if connection.is_idle]
        found = heaviest(((connection, connection.client.here) for connection in idle), weight)
        if found is None:
            return self._websockets is not None and self._websockets.make_room(weight)
        found.shut_down(now=True)
        return True

    def start_draining(self) -> bool:
        """From now on, let ``/readyz`` report that the server is shutting down. Return whether the server has
        ``/readyz``.

        See `Front.start_draining`.
        """
        return self._endpoint.start_draining()

    @property
    def awaits_requests(self) -> bool:
        """Whether any client has connected, but hasn't sent a complete request. See `Front.awaits_requests`."""
        return any(connection.awaits_request for connection in self._connections)

    def shut_down(self, reason: str, *, hurry: bool) -> None:
        """End each connection after its current response: see `Front.shut_down`."""
        self._is_ending = True
        if hurry:
            self._last_flush.hurry()
        self._endpoint.shut_down(reason, hurry=hurry)
        for connection in tuple(self._connections):
            connection.shut_down()
        if self._websockets is not None:
            self._websockets.shut_down(reason, hurry=hurry)

    async def wait_closed(self) -> None:
        """Wait until the last request has ended and its response was sent. Don't wait for clients that don't read.

        See `Front.wait_closed`.
        """
        await self._endpoint.wait_closed()
        self._last_flush.end_at(trio.current_time())
        await self._last_flush.run(self._wait_empty)
        for connection in tuple(self._connections):
            connection.shut_down(now=True)

    async def _wait_empty(self) -> None:
        while self._connections:
            await self._left.park()


async def _refuse(stream: trio.abc.Stream, status: HTTPStatus, reason: str, **headers: str) -> None:
    # Import WebSocket support on first use: most servers don't need it, and its import is a sixth of the startup time.
    from ...transports.websocket.handshake import Rejection, refuse

    await refuse(stream, Rejection(status, reason, **headers))


@asynccontextmanager
async def open_recordings(record: Recorder | str | os.PathLike[str] | None) -> AsyncGenerator[HttpRecordings | None]:
    """Return the object that records HTTP messages as the option ``record`` demands, while inside the ``async with``
    block. Return `None` if nothing is recorded."""
    recorder = recorder_of(record)
    if recorder is None:
        yield None
        return
    from .recorded import HttpRecordings  # imported late, because few servers record their messages

    recordings = HttpRecordings(recorder)
    try:
        yield recordings
    finally:
        await recordings.aclose()


def endpoint_to(
    running: Running,
    settings: EndpointSettings,
    nursery: trio.Nursery,
    recordings: HttpRecordings | None,
    free_connections: Callable[[], int] | None = None,
) -> HttpEndpoint:
    """Return an HTTP endpoint for ``running``, the running server. If ``recordings`` is given, the endpoint's messages
    are recorded there."""
    if recordings is None:
        return HttpEndpoint(running, settings, nursery, free_connections)
    from .recorded import RecordedEndpoint

    return RecordedEndpoint(running, settings, nursery, free_connections, recordings=recordings)


def bounds_of(limits: Limits) -> HttpBounds:
    """Return the limits of each HTTP connection, computed from the server's ``limits``."""
    return HttpBounds(
        max_head_bytes=limits.max_head_bytes,
        max_body_bytes=limits.max_message_bytes,
        max_dropped_bytes=_DROPPED * limits.max_message_bytes,
        head_timeout=limits.handshake_timeout,
        body_timeout=limits.body_timeout,
        idle_timeout=limits.idle_timeout,
    )
