"""serve_http serves many clients at once, over Streamable HTTP. Its `HttpFront` serves the connections of HTTP clients,
and those that become WebSockets.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Unpack

import trio

from ...classes import show_fields
from ...concurrency.fair_share import Caller
from ...concurrency.misuse import check_keywords, check_served_under_trio
from ...diagnostics.log import peer_log_share
from ...runtime.limits import Limits
from ...runtime.outbox import LastFlush
from ...server.servable import Running, Servable
from ...transports.host_checks import HostChecks, host_checks_for
from ...transports.http.connection import HttpConnection
from ...transports.http.heads import HttpBounds
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
    """The keyword arguments of `http_app`, which `serve_http` has as well."""

    retry_interval: float
    """Seconds after which clients of 2025-11-25 come back to a response that has broken; 1.0 by default."""
    card: Card | None
    """Says what the server is, at the path of the endpoint and ``/server-card``; `None`, the default: no card."""
    catalog: bool
    """True names the card at ``/.well-known/ai-catalog.json``; False by default."""
    shared: SharedStorage | None
    """Storage that several processes share which serve the same clients; `None`, the default: this one serves alone."""


@show_fields
class HTTPOptions(HTTPAppOptions, WebSocketOptions, total=False):
    """The keyword arguments of `serve_http`, besides its address."""

    unix: str | os.PathLike[str] | None
    """Path of a Unix socket, in place of ``host`` and ``port``; `None` by default."""
    websocket: bool
    """True lets clients ask for a WebSocket at the same URL; False by default."""
    access_log: bool
    """True notes each response in the log ``trio_mcp.access``; False by default."""
    health: bool
    """True answers ``/healthz`` and ``/readyz``, for load balancers; False by default."""
    routes: Mapping[str, Route]
    """Paths beside the endpoint, each with a function or an ASGI application; none by default."""


async def serve_http(
    server: Servable,
    host: str | None = "127.0.0.1",
    port: int = 8000,
    *,
    task_status: trio.TaskStatus[SocketListeners] = trio.TASK_STATUS_IGNORED,
    **options: Unpack[HTTPOptions],
) -> None:
    """Serve ``server`` over Streamable HTTP, at ``http://host:port/mcp``, to any number of clients of every revision,
    until it is ended.

    Clients of the modern era need nothing but the endpoint: when one goes away, its request is cancelled, with the
    cause ``disconnect``. Clients of legacy revisions get a session each, which they may leave and come back to; a
    request there is cancelled by its notification, and goes on when its connection breaks. With ``stateless=True``
    there are no sessions, no questions to legacy clients, and any process can answer any request.

    With ``auth``, every request needs a token, see `Protected`, and ``ctx.auth`` is the caller. Sessions, waiting
    handlers and the states of modern clients belong to one principal each. Streams of changes end with the token of the
    client, who comes back with a fresh one. Without, a warning is logged where other machines reach the server.

    What is bounded for the whole server is shared by caller, see `Limits`: without authorization, by the address of the
    client. Behind a reverse proxy, ``trusted_proxies`` say whose word is taken for that address; otherwise all that
    come through it are one caller.

    ``allowed_origins`` are the web pages that may ask, ``allowed_hosts`` the names under which the server is reached,
    as for `serve_websocket`: needed where other machines can reach ``host``, else this raises `ValueError`.
    ``listeners`` of the application's own replace ``host`` and ``port``. With ``unix``, the path of a Unix socket, the
    server listens there alone, for this user, as `serve_unix`: clients name it ``http+unix://%2Frun%2Fmcp.sock/mcp``.
    ``allowed_hosts`` are ``localhost`` then and ``allowed_origins`` none, unless a proxy stands in front and they are
    given. With an ``ssl_context`` the URL is ``https://``. With ``websocket``, clients may ask for a WebSocket at the
    same URL, too. `HTTPOptions` documents ``options``; `Limits` has the bounds and times.

    Clients of revision 2025-11-25 are told to come back ``retry_interval`` seconds after a response that they can
    resume has broken; `RequestContext.close_stream` names a time of its own.

    With ``access_log``, each response is noted in the log ``trio_mcp.access``, at level info, with the address, the
    principal, method, path, status, bytes of the body and seconds, in words and as attributes of the record.

    With ``health``, ``GET /healthz`` is answered with 200 as long as the server takes its turns, and ``GET /readyz``
    until the server begins to end, at the first signal, and with 503 from then on: whatever Host, Origin and token the
    request has, and with no word of anything else. `Limits.drain_delay` leaves a load balancer the time to notice.

    ``routes`` stand beside the endpoint, see `Route`: paths, or, with a slash at the end, all paths below one, each
    with a function or an ASGI application. The Hosts and Origins of their requests are checked, tokens are not.

    With a ``card``, clients that know nothing of the server yet find out what it is, at the path of the endpoint and
    ``/server-card``; with ``catalog``, those that know the name of the host alone find the card, by
    ``/.well-known/ai-catalog.json``. Both are for everybody: the Hosts of their requests are checked, neither Origins
    nor tokens are. Raises `ValueError`, see `Card`, for what fits no card.

    With ``record``, the messages of each session are recorded to a file of their own, and those of all requests without
    a session to one, see `Recorder`. Headers are not recorded.

    With ``shared``, several processes serve the same clients, behind a balancer without stickiness: any of them
    answers any request. `RedisStorage` is for a fleet, `SQLiteStorage` for the processes of one machine, see
    `SharedStorage`. Tasks are kept there as well, unless `TaskSettings.store` says otherwise.

    Reports its listeners, ends at signals and is cancelled as `serve_websocket`; streams do not hold up the end: each
    is ended properly.
    """
    check_served_under_trio("serve_http")
    check_keywords(serve_http, options)
    unix, listeners, ssl_context = options.get("unix"), options.get("listeners"), options.get("ssl_context")
    origins, hosts = options.get("allowed_origins"), options.get("allowed_hosts")
    if unix is not None:
        if listeners is not None or ssl_context is not None:
            raise ValueError("unix= is a listener by itself, without TLS: leave listeners= and ssl_context= out")
        # No web page reaches a Unix socket, so a request with an Origin has come by a proxy that nobody has spoken of.
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
    recordings = recordings_of(serving.pop("record", None))
    with ExitStack() as stack:
        if unix is not None:
            listeners = [stack.enter_context(unix_listener(unix))]
        try:
            await serve_streams(server, listen, front, task_status=task_status, shared=shared, **serving)
        finally:
            if recordings is not None:
                await recordings.aclose()


def settings_of(
    server: Servable,
    checks: HostChecks,
    options: HTTPAppOptions,
    *,
    health: bool = False,
    routes: Mapping[str, Route] = NO_ROUTES,
) -> EndpointSettings:
    """Return the settings of the endpoint to ``server`` that ``options`` ask for."""
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
"""Bytes of a refused body that are read and dropped, as a multiple of the longest message."""
_GOODBYE: Final = 1.0
"""Seconds in which the last bytes of a connection are written when the server is cancelled."""


class HttpFront:
    """The connections of HTTP clients to an endpoint of ``running``. Its tasks run in ``nursery``. With ``websocket``,
    a client may ask for a WebSocket at the same path. With ``access_log``, each response is logged. All
    messages go to ``recordings``, if any. See `Front`."""

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
        self._settings = settings
        self._bounds = bounds_of(running.limits)
        room = ConnectionQuota(running.limits.max_connections)
        self._endpoint = endpoint_to(running, settings, nursery, recordings, room.free)
        self._connections: dict[HttpConnection, trio.CancelScope] = {}
        """Connections, oldest first, each with the scope that shields its end."""
        room.count(self._connections)
        self._websockets: Connections | None = None
        if websocket:
            recorder = None if recordings is None else recordings.recorder
            self._websockets = Connections(running, settings.trusted_proxies, room, self._endpoint.unread, recorder)
        self._is_ending = False
        self._left = trio.lowlevel.ParkingLot()
        """The task that waits until no connection is left."""
        self._last_flush = LastFlush()
        nursery.start_soon(watch_clock, self._endpoint, running.limits.stream_interval, self._tick)
        nursery.start_soon(self._until_cancelled)

    async def _until_cancelled(self) -> None:
        """Wait for the cancel of the server, which cancels all requests, and let the connections end behind what they
        have to say: a stream that is cut off looks like a broken one."""
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

    @property
    def callers(self) -> CallersByAddress:
        """Finds the other ends of connections: see `Front.callers`."""
        return self._endpoint.callers

    def _connection_to(self, stream: trio.abc.Stream, hop: RemoteEnd) -> HttpConnection:
        if not self._has_access_log:
            return HttpConnection(stream, self._endpoint, self._bounds, hop)
        from ...transports.http.access_log import LoggedConnection  # most servers have none

        return LoggedConnection(stream, self._endpoint, self._bounds, hop, self._endpoint.who)

    async def serve(self, stream: trio.abc.Stream, hop: RemoteEnd) -> None:
        """Serve a connection: see `Front.serve`."""
        connection = self._connection_to(stream, hop)
        received: bytes | None = None
        with peer_log_share(hop.here), trio.CancelScope(shield=True) as scope:  # given a deadline when the server ends
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
            from ..websocket import WebSocketAcceptor  # see `_refuse`

            greeting = WebSocketAcceptor(self._settings.path, self._settings.checks, self._settings.gate, received)
            await self._websockets.serve(stream, hop, greeting)

    async def reject(self, stream: trio.abc.Stream) -> None:
        """Answer 503: see `Front.reject`."""
        reason = "too many connections; try again later"
        await _refuse(stream, HTTPStatus.SERVICE_UNAVAILABLE, reason, Retry_After="5")

    def make_room(self, weight: Callable[[Caller], int]) -> bool:
        """Close the oldest connection without a request, which may be one that sends a head for ever: see
        `Front.make_room`."""
        idle = [connection for connection in self._connections if connection.is_idle]
        found = heaviest(((connection, connection.client.here) for connection in idle), weight)
        if found is None:
            return self._websockets is not None and self._websockets.make_room(weight)
        found.shut_down(now=True)
        return True

    def start_draining(self) -> bool:
        """Have ``/readyz`` say that the server ends. Return whether there is that path: see `Front.start_draining`."""
        return self._endpoint.start_draining()

    @property
    def awaits_requests(self) -> bool:
        """True while a connection has sent only part of a request, or nothing yet. See `Front.awaits_requests`."""
        return any(connection.awaits_request for connection in self._connections)

    def shut_down(self, reason: str, *, hurry: bool) -> None:
        """End each connection behind its present response: see `Front.shut_down`."""
        self._is_ending = True
        if hurry:
            self._last_flush.hurry()
        self._endpoint.shut_down(reason, hurry=hurry)
        for connection in tuple(self._connections):
            connection.shut_down()
        if self._websockets is not None:
            self._websockets.shut_down(reason, hurry=hurry)

    async def wait_closed(self) -> None:
        """Wait until the last request is over, and its answer is written to a client that reads: see
        `Front.wait_closed`."""
        await self._endpoint.wait_closed()
        self._last_flush.end_at(trio.current_time())
        await self._last_flush.run(self._wait_empty)
        for connection in tuple(self._connections):
            connection.shut_down(now=True)

    async def _wait_empty(self) -> None:
        while self._connections:
            await self._left.park()


async def _refuse(stream: trio.abc.Stream, status: HTTPStatus, reason: str, **headers: str) -> None:
    # Imported at the first use: most servers never need WebSockets, whose import takes a sixth of the time of a start.
    from ...transports.websocket.handshake import Rejection, refuse

    await refuse(stream, Rejection(status, reason, **headers))


def recordings_of(record: Recorder | str | os.PathLike[str] | None) -> HttpRecordings | None:
    """Return the recordings for what is given as ``record``."""
    recorder = recorder_of(record)
    if recorder is None:
        return None
    from .recorded import HttpRecordings  # few servers are recorded

    return HttpRecordings(recorder)


def endpoint_to(
    running: Running,
    settings: EndpointSettings,
    nursery: trio.Nursery,
    recordings: HttpRecordings | None,
    free_connections: Callable[[], int] | None = None,
) -> HttpEndpoint:
    """Return the endpoint of ``running``, whose messages go to ``recordings``, if any."""
    if recordings is None:
        return HttpEndpoint(running, settings, nursery, free_connections)
    from .recorded import RecordedEndpoint

    return RecordedEndpoint(running, settings, nursery, free_connections, recordings=recordings)


def bounds_of(limits: Limits) -> HttpBounds:
    """Return the bounds of an HTTP connection."""
    return HttpBounds(
        max_head_bytes=limits.max_head_bytes,
        max_body_bytes=limits.max_message_bytes,
        max_dropped_bytes=_DROPPED * limits.max_message_bytes,
        head_timeout=limits.handshake_timeout,
        body_timeout=limits.body_timeout,
        idle_timeout=limits.idle_timeout,
    )
