"""The accept loop of a server with many clients. It accepts connections, passes each to a `Front` (the transport's
part), and ends all of them on shutdown. If other machines can reach a server that requires no token, a warning is
logged."""

from __future__ import annotations

import logging
import os
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypedDict, cast

import trio

from ..classes import show_fields
from ..concurrency.fair_share import Caller
from ..diagnostics.log import log_in_thread
from ..runtime.limits import Limits
from ..runtime.transport import ConnectionLost
from ..server.servable import Running, Servable, check_servable, end_tasks, running_with
from ..transports.host_checks import Allowed, is_loopback
from ..transports.sockets import keep_alive
from ..transports.streams import is_readable
from .callers import CallersByAddress, RemoteEnd, TrustedProxies
from .process import infrequent_gc, recorder_of, shut_down_on_signals

if TYPE_CHECKING:
    from ..auth.resource_server.protected import Protected
    from ..recording.recorder import Recorder
    from ..server.sharing import SharedStorage

logger = logging.getLogger("trio_mcp")

_MAX_REJECTING: Final = 64
_MAX_LAST_TURNS: Final = 1000
"""Number of turns of trio's loop for which a server that shuts down still accepts pending connections."""
_LAST_REQUESTS: Final = 0.5
"""Seconds at the end of the drain delay in which the server accepts requests over open connections, but no new
connections."""
_TURNS: Final = 5
"""Number of turns of trio's loop for which a server that shuts down reads bytes that the operating system has already
received."""
_LOOKS: Final = 50
"""Seconds between two checks for incomplete requests, within the last `_LAST_REQUESTS` seconds of the drain delay."""

SocketListeners: TypeAlias = Sequence[trio.abc.Listener[Any]]
"""Listeners that your program has already opened."""


class Front(Protocol):
    """The part of a server's accept loop that is specific to a transport. It serves the accepted connections."""

    callers: CallersByAddress
    """One object for all accepted connections, which identifies the client of each connection."""

    async def serve(self, stream: trio.abc.Stream, hop: RemoteEnd) -> None:
        """Serve the accepted connection ``stream`` until it ends. ``hop`` describes the client or proxy at its remote
        end.

        `trio.serve_listeners` then closes the stream.
        """
        ...

    async def reject(self, stream: trio.abc.Stream) -> None:
        """Close an accepted connection because the server has too many connections.

        Send the reason if the client can understand it.
        """
        ...

    def make_room(self, weight: Callable[[Caller], int]) -> bool:
        """Close a connection that can be spared, so that a new connection can be accepted. Return false if no
        connection can be spared.

        Choose the oldest connection of the caller with the greatest ``weight``, which must be more than 0.
        """
        ...

    def start_draining(self) -> bool:
        """From now on, let health checks report that the server is shutting down. It shuts down after
        `Limits.drain_delay`.

        Return false if no health checks are served: then there is no delay.
        """
        ...

    @property
    def awaits_requests(self) -> bool | None:
        """True if a client may be sending a request now. Calling `shut_down` now would lose this request.

        `None` for transports with many requests per connection, whose `shut_down` doesn't wait for more requests.
        """
        ...

    def shut_down(self, reason: str, *, hurry: bool) -> None:
        """Close each connection as soon as its accepted requests have ended. See `Connection.shut_down`."""
        ...

    async def wait_closed(self) -> None:
        """Wait until the last requests have ended. Call this method after `shut_down`.

        Connections that will end on their own may remain.
        """
        ...


async def serve_streams(
    server: Servable,
    listen: Callable[[], Awaitable[SocketListeners]],
    front: Callable[[Running, trio.Nursery, Recorder | None], Front],
    *,
    task_status: trio.TaskStatus[SocketListeners],
    limits: Limits | None = None,
    stateless: bool = False,
    handle_signals: bool = True,
    record: Recorder | str | os.PathLike[str] | None = None,
    shared: SharedStorage | None = None,
) -> None:
    """Serve ``server`` to all clients that connect, until a signal arrives or the call is cancelled.

    ``front`` makes the `Front` of the streams. Its tasks run in the nursery that it receives, and it records with the
    recorder that it receives, if any. ``shared`` is the storage that the server shares with its replicas.
    `ServingOptions` documents the other parameters.
    """
    check_servable(server)
    recorder = recorder_of(record)
    async with log_in_thread():
        with infrequent_gc(), ExitStack() as signals:  # handle signals until the server's lifespan has ended
            async with running_with(server, shared, limits, stateless=stateless) as running:
                listeners = await listen()
                async with trio.open_nursery() as nursery:
                    accepting = _StreamServer(front(running, nursery, recorder), running, nursery)
                    if handle_signals:
                        signals.enter_context(shut_down_on_signals(accepting.shut_down))
                    await accepting.run(listeners, task_status)
                    nursery.cancel_scope.cancel(reason="serving has ended")


class _StreamServer:
    def __init__(self, front: Front, running: Running, nursery: trio.Nursery) -> None:
        self._front = front
        self._running = running
        self._nursery = nursery
        self._limits = running.limits
        self._scope = trio.CancelScope()
        self._count = 0
        self._held = Counter[Caller]()
        """Number of connections of each caller."""
        self._turned_away = 0
        self._is_expected = False
        """Whether the server has received its first signal, so that the shutdown is expected."""
        self._ending = trio.Event()
        self._sockets: list[Any] = []

    async def run(self, listeners: SocketListeners, task_status: trio.TaskStatus[SocketListeners]) -> None:
        self._sockets = [found for found in map(_socket, listeners) if found is not None]
        async with trio.open_nursery() as nursery:
            with self._scope:
                # `trio.serve_listeners` closes the listeners on exit, and continues after errors of `accept`.
                # `trio.serve_listeners` pauses if the system has run out of file descriptors.
                await trio.serve_listeners(
                    self._serve, list(listeners), handler_nursery=nursery, task_status=task_status
                )
            await self._ending.wait()
            await self._front.wait_closed()

    def shut_down(self, reason: str, *, hurry: bool) -> None:
        """Stop accepting connections, shut down the existing connections, and shut down the server's MCP tasks.

        If health checks are served, wait for `Limits.drain_delay` first. A second call skips the delay. A call during
        the drain cancels the remaining requests.
        """
        is_first, self._is_expected = not self._is_expected, True
        if is_first and not hurry and self._front.awaits_requests is not None:
            delay = self._limits.drain_delay if self._front.start_draining() else 0.0
            self._nursery.start_soon(self._shut_down_in, delay, reason)
        else:
            self._shut_down(reason, hurry=hurry)

    async def _shut_down_in(self, delay: float, reason: str) -> None:
        await trio.sleep(delay)
        # Closing a socket resets connections that the operating system has accepted, but trio hasn't.
        # Close the sockets at a moment when no connection is pending, so that no request is lost.
        for _ in range(_MAX_LAST_TURNS):
            if not any(is_readable(each.fileno()) for each in self._sockets):
                break
            await trio.lowlevel.checkpoint()
        self._scope.cancel(reason=reason)
        for each in self._sockets:
            each.close()
        if delay:
            await trio.sleep(_LAST_REQUESTS)
        else:
            await self._wait_for_requests()
        if not self._ending.is_set():
            self._shut_down(reason, hurry=False)

    async def _wait_for_requests(self) -> None:
        """Wait until requests that are on their way have arrived, but at most `_LAST_REQUESTS` seconds."""
        for _ in range(_TURNS):  # let other tasks run, which serve new streams and read received bytes
            await trio.lowlevel.checkpoint()
        # Poll the state of the connections a few times. Reporting each change would slow down all requests.
        for _ in range(_LOOKS):
            if not self._front.awaits_requests:
                break
            await trio.sleep(_LAST_REQUESTS / _LOOKS)

    def _shut_down(self, reason: str, *, hurry: bool) -> None:
        self._ending.set()
        self._scope.cancel(reason=reason)
        self._front.shut_down(reason, hurry=hurry)
        end_tasks(self._running, hurry=hurry)

    def _has_room(self, hop: RemoteEnd) -> bool:
        free = self._limits.max_connections - self._count
        # A trusted proxy connects for many callers, which are known only when their requests arrive.
        return free > 0 if hop.is_proxy else hop.here.may_take(self._held.__getitem__, free)

    def _make_room(self, caller: Caller) -> bool:
        """Close one of the connections of ``caller``, so that another connection of this caller can be accepted.

        If the caller has no connection, close a connection of the caller with the most connections.
        """
        if self._held[caller]:
            return self._front.make_room(lambda other: other is caller)
        return self._front.make_room(self._held.__getitem__)

    async def _serve(self, stream: trio.abc.Stream) -> None:
        """Serve one accepted connection. An error on this connection doesn't affect other connections."""
        try:
            if self._ending.is_set():  # close a stream that was accepted just before the shutdown
                return
            hop = self._front.callers.hop(stream)
            caller = hop.here
            if self._has_room(hop) or self._make_room(caller):
                self._count += 1
                self._held[caller] += 1
                try:
                    keep_alive(stream, self._limits.ping_interval, self._limits.ping_timeout)
                    await self._front.serve(stream, hop)
                finally:
                    self._count -= 1
                    self._held[caller] -= 1
                    if not self._held[caller]:
                        del self._held[caller]
            elif self._turned_away < _MAX_REJECTING:
                self._turned_away += 1
                try:
                    await self._front.reject(stream)
                finally:
                    self._turned_away -= 1
        except ConnectionLost as error:
            logger.debug("a client disconnected before it was served: %s", error)
        except Exception:
            logger.exception("a connection failed")


@show_fields
class CommonOptions(TypedDict, total=False):
    """The common keyword arguments of all functions that serve many clients."""

    limits: Limits | None
    """Limits for this call that replace the limits of the server. `None`, the default, keeps the server's limits."""
    stateless: bool
    """True if the server keeps no state between requests: handlers can't wait for answers from their client, and
    clients can't subscribe to resources. False by default."""
    record: Recorder | str | os.PathLike[str] | None
    """A file, or a `Recorder`, that receives a copy of all messages: one file per connection, with secrets masked.
    `None`, the default, records nothing."""


@show_fields
class ServingOptions(CommonOptions, total=False):
    """The keyword arguments of `serve_tcp` and `serve_unix`, which `serve_websocket` and `serve_http` also accept."""

    handle_signals: bool
    """True, the default, if SIGTERM and SIGINT shut the server down gracefully, as `serve_websocket` describes. This
    works in the main thread only."""


def serving_options(options: ServingOptions) -> ServingOptions:
    """Return those of the keyword arguments ``options`` that `serve_tcp` and `serve_unix` accept: see
    `ServingOptions`."""
    return cast("ServingOptions", {name: options[name] for name in ServingOptions.__optional_keys__ & options.keys()})


@show_fields
class EndpointOptions(CommonOptions, total=False):
    """The common keyword arguments of all functions that serve an HTTP or WebSocket URL."""

    path: str
    """URL path of the endpoint, ``/mcp`` by default. The endpoint is served with and without a trailing slash."""
    auth: Protected | None
    """The check of access tokens, which decides which callers are admitted. `None`, the default, requires no token."""
    allowed_origins: Allowed
    """Origins of the web pages that may call the server, such as ``"https://app.example.com"``: see `HostChecks`.
    ``[]`` allows no page, ``"*"`` any page. `None`, the default, allows pages of this machine."""
    allowed_hosts: Allowed
    """Host names under which clients reach the server, such as ``"mcp.example.com"``. ``"*"`` allows any name. `None`,
    the default, allows the names of this machine."""
    trusted_proxies: TrustedProxies | None
    """Reverse proxies that are trusted to report the address of a client. `None`, the default, trusts no proxy."""


@show_fields
class WebSocketOptions(EndpointOptions, ServingOptions, total=False):
    """The keyword arguments of `serve_websocket`, without ``host`` and ``port``."""

    ssl_context: ssl.SSLContext | None
    """TLS context of the server, for ``wss://`` and ``https://`` URLs. `None`, the default, serves without TLS."""
    listeners: SocketListeners | None
    """Listeners that you have opened yourself, in place of ``host`` and ``port``."""


_HTTP_ADVICE: Final = (
    "pass auth=Protected(resource=..., authorization_servers=[...], verifier=...), "
    'or host="127.0.0.1" behind a reverse proxy that authenticates the callers'
)
LINES_ADVICE: Final = (
    'pass host="127.0.0.1", or use serve_unix on this machine, or serve_http(..., auth=Protected(...)) for others'
)


async def open_listeners(
    given: SocketListeners | None,
    host: str | None,
    port: int,
    ssl_context: ssl.SSLContext | None,
    *,
    asks_for_tokens: bool,
) -> SocketListeners:
    """Return the listeners of an HTTP or WebSocket server: the listeners in ``given`` or, if there are none, new
    listeners.

    If other machines can reach them, and neither a token nor a client certificate is required, log a warning.
    """
    if given is not None:
        opened = given
    elif ssl_context is None:
        opened = await trio.open_tcp_listeners(port, host=host)
    else:
        opened = await trio.open_ssl_over_tcp_listeners(port, ssl_context, host=host, https_compatible=True)
    if not asks_for_tokens and (ssl_context is None or ssl_context.verify_mode is not ssl.CERT_REQUIRED):
        warn_if_exposed(opened, _HTTP_ADVICE)
    return opened


def warn_if_exposed(listeners: SocketListeners, advice: str) -> None:
    """Log a warning if other machines can reach one of ``listeners``. ``advice`` explains how to protect the server.

    Call this once for each server that requires no token.
    """
    open_ones = [address for address in map(_address, listeners) if address is not None and not is_loopback(address)]
    if open_ones:
        logger.warning(
            "other machines can reach this server at %s without authentication: %s",
            ", ".join(dict.fromkeys(open_ones)),
            advice,
        )


def _socket(listener: trio.abc.Listener[Any]) -> Any:
    """Return the socket of ``listener``. Return `None` if the listener has no socket."""
    inner: Any = getattr(listener, "transport_listener", listener)
    return getattr(inner, "socket", None)


def _address(listener: trio.abc.Listener[Any]) -> str | None:
    """Return the IP address on which ``listener`` listens. Return `None` for other listeners, such as a Unix socket."""
    socket = _socket(listener)
    name: object = None if socket is None else socket.getsockname()
    return str(cast("tuple[object, ...]", name)[0]) if isinstance(name, tuple) else None
