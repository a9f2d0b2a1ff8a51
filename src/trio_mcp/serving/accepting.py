"""Accepting: streams of many clients of one server, accepted and ended together, each served by a `Front`. Where other
machines reach a server that lets everybody in, the opening of the listeners warns.
"""

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
"""Turns for connections that wait to be accepted at the end."""
_LAST_REQUESTS: Final = 0.5
"""Seconds of the delay of a drain in which requests are taken over open connections alone."""
_TURNS: Final = 5
"""Turns of trio's loop in which bytes that the system has received are read."""
_LOOKS: Final = 50
"""Number of checks for requests that haven't arrived, within `_LAST_REQUESTS`."""

SocketListeners: TypeAlias = Sequence[trio.abc.Listener[Any]]
"""Listeners that are open already."""


class Front(Protocol):
    """Serves accepted streams: a transport's way with its clients."""

    @property
    def callers(self) -> CallersByAddress:
        """Finds the other ends of the streams."""
        ...

    async def serve(self, stream: trio.abc.Stream, hop: RemoteEnd) -> None:
        """Serve a stream from ``hop``, from its acceptance to its end. `trio.serve_listeners` closes it."""
        ...

    async def reject(self, stream: trio.abc.Stream) -> None:
        """Close a stream for which there is no room, and say why where the client would understand."""
        ...

    def make_room(self, weight: Callable[[Caller], int]) -> bool:
        """Close one connection that nobody would miss, and return whether there was one: the oldest of the caller with
        the greatest ``weight``, which has to be more than 0."""
        ...

    def start_draining(self) -> bool:
        """Note that `shut_down` follows after `Limits.drain_delay`. Return false if there is no such delay because no
        health checks are served."""
        ...

    @property
    def awaits_requests(self) -> bool | None:
        """True while a request may arrive over an accepted stream, and would be lost if `shut_down` were called now.
        `None` for connections that carry many requests: `shut_down` doesn't wait for them."""
        ...

    def shut_down(self, reason: str, *, hurry: bool) -> None:
        """Let each connection end when its accepted requests are done: see `Connection.shut_down`."""
        ...

    async def wait_closed(self) -> None:
        """Wait, after `shut_down`, until nothing is left but connections that end by themselves."""
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
    """Serve ``server`` to all who connect, until a signal or cancel. ``front`` makes the `Front` of the streams, whose
    own tasks run in the nursery given to ``front``, and which records by the recorder, if any. ``shared``: the storage
    that the server shares with its replicas. `ServingOptions` documents the other parameters."""
    check_servable(server)
    recorder = recorder_of(record)
    async with log_in_thread():
        with infrequent_gc(), ExitStack() as signals:  # signals may come until the lifespan has ended
            async with running_with(server, shared, limits, stateless=stateless) as running:
                listeners = await listen()
                async with trio.open_nursery() as nursery:
                    accepting = _StreamServer(front(running, nursery, recorder), running, nursery)
                    if handle_signals:
                        signals.enter_context(shut_down_on_signals(accepting.shut_down))
                    await accepting.run(listeners, task_status)
                    nursery.cancel_scope.cancel(reason="nothing is served any more")


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
        """True from the first signal on."""
        self._is_ending = False
        self._ending = trio.Event()
        self._sockets: list[Any] = []

    async def run(self, listeners: SocketListeners, task_status: trio.TaskStatus[SocketListeners]) -> None:
        self._sockets = [found for found in map(_socket, listeners) if found is not None]
        async with trio.open_nursery() as nursery:
            with self._scope:
                # `trio.serve_listeners` closes the listeners when it is left, survives the errors of accepting, and
                # waits a moment when the system is out of descriptors.
                await trio.serve_listeners(
                    self._serve, list(listeners), handler_nursery=nursery, task_status=task_status
                )
            await self._ending.wait()
            await self._front.wait_closed()

    def shut_down(self, reason: str, *, hurry: bool) -> None:
        """Accept no more streams, and have the front and the tasks shut down, after `Limits.drain_delay` where load
        balancers ask whether the server is ready. A second call skips that delay, and one that comes during the drain
        cancels the remaining requests."""
        is_first, self._is_expected = not self._is_expected, True
        if is_first and not hurry and self._front.awaits_requests is not None:
            delay = self._limits.drain_delay if self._front.start_draining() else 0.0
            self._nursery.start_soon(self._shut_down_in, delay, reason)
        else:
            self._shut_down(reason, hurry=hurry)

    async def _shut_down_in(self, delay: float, reason: str) -> None:
        await trio.sleep(delay)
        # A connection that only the system has accepted would be reset, and its request lost. So close the sockets in
        # the same step in which none waits, not later when the accepting task runs.
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
        if not self._is_ending:
            self._shut_down(reason, hurry=False)

    async def _wait_for_requests(self) -> None:
        """Wait until the requests that are on their way have arrived, at most `_LAST_REQUESTS`."""
        for _ in range(_TURNS):  # for newly accepted streams, and for bytes that wait to be read
            await trio.lowlevel.checkpoint()
        # Connections don't announce their state, since that would slow down each request. So check it a few times.
        for _ in range(_LOOKS):
            if not self._front.awaits_requests:
                break
            await trio.sleep(_LAST_REQUESTS / _LOOKS)

    def _shut_down(self, reason: str, *, hurry: bool) -> None:
        self._is_ending = True
        self._ending.set()
        self._scope.cancel(reason=reason)
        self._front.shut_down(reason, hurry=hurry)
        end_tasks(self._running, hurry=hurry)

    def _has_room(self, hop: RemoteEnd) -> bool:
        free = self._limits.max_connections - self._count
        # A proxy connects for many, whose shares nobody knows before they ask.
        return free > 0 if hop.is_proxy else hop.here.may_take(self._held.__getitem__, free)

    def _make_room(self, caller: Caller) -> bool:
        """Close a connection for one more of ``caller``: one of ``caller``, or, where there is none, one of whoever has
        the most."""
        if self._held[caller]:
            return self._front.make_room(lambda other: other is caller)
        return self._front.make_room(self._held.__getitem__)

    async def _serve(self, stream: trio.abc.Stream) -> None:
        """Serve one stream. Its errors do not reach other connections."""
        try:
            if self._is_ending:  # it was accepted in the last moment
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
    """The keyword arguments of all functions that serve many clients."""

    limits: Limits | None
    """Limits that replace the server's own; `None`, the default, keeps the server's."""
    stateless: bool
    """True keeps nothing between requests: handlers can't wait for answers of their client, and clients can't
    subscribe to resources. By default false."""
    record: Recorder | str | os.PathLike[str] | None
    """File to which the messages of the connections are recorded, secrets masked, one file each, or a `Recorder`;
    `None`, the default: none."""


@show_fields
class ServingOptions(CommonOptions, total=False):
    """The keyword arguments of `serve_tcp` and `serve_unix`, which `serve_websocket` and `serve_http` have as well."""

    handle_signals: bool
    """True, the default, lets SIGTERM and SIGINT end the server as `serve_websocket` says, in the main thread only."""


def serving_options(options: ServingOptions) -> ServingOptions:
    """Return those of ``options`` that every transport with listeners has."""
    return cast("ServingOptions", {name: options[name] for name in ServingOptions.__optional_keys__ & options.keys()})


@show_fields
class EndpointOptions(CommonOptions, total=False):
    """The keyword arguments that all functions that serve web pages and other clients at a URL have."""

    path: str
    """Path of the endpoint, ``/mcp`` by default, with and without a slash at its end."""
    auth: Protected | None
    """Says who may call, by tokens; `None`, the default: no token is needed."""
    allowed_origins: Allowed
    """Web pages that may call, as ``"https://app.example.com"``: see `HostChecks`; ``[]``: none, ``"*"``: any. `None`,
    the default: those of this machine."""
    allowed_hosts: Allowed
    """Names under which clients reach the server, as ``"mcp.example.com"``; ``"*"``: any. `None`, the default: the
    names of this machine."""
    trusted_proxies: TrustedProxies | None
    """Reverse proxies whose word is taken for the address of a client; `None`, the default: none."""


@show_fields
class WebSocketOptions(EndpointOptions, ServingOptions, total=False):
    """The keyword arguments of `serve_websocket`, besides its address."""

    ssl_context: ssl.SSLContext | None
    """Serves ``wss://``, with HTTP ``https://``; `None`, the default: without TLS."""
    listeners: SocketListeners | None
    """Listeners of the application's own, in place of ``host`` and ``port``."""


_HTTP_ADVICE: Final = (
    "give auth=Protected(resource=..., authorization_servers=[...], verifier=...), "
    'or host="127.0.0.1" behind a reverse proxy that knows the callers'
)
LINES_ADVICE: Final = (
    'give host="127.0.0.1", or use serve_unix on this machine, or serve_http(..., auth=Protected(...)) for others'
)


async def open_listeners(
    given: SocketListeners | None,
    host: str | None,
    port: int,
    ssl_context: ssl.SSLContext | None,
    *,
    asks_for_tokens: bool,
) -> SocketListeners:
    """Open the listeners of a server over HTTP or WebSocket, unless they are ``given``. Warn where other machines reach
    one of them, and neither a token nor a certificate says who calls."""
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
    """Log a warning, with the ``advice`` on what to write, where others than this machine reach one of ``listeners``.
    To be called once for each server that asks nobody for a token."""
    open_ones = [address for address in map(_address, listeners) if address is not None and not is_loopback(address)]
    if open_ones:
        logger.warning(
            "other machines reach this server at %s, and whoever does may use all of it: %s",
            ", ".join(dict.fromkeys(open_ones)),
            advice,
        )


def _socket(listener: trio.abc.Listener[Any]) -> Any:
    """Return the socket of ``listener``; `None` where there is none."""
    inner: Any = getattr(listener, "transport_listener", listener)
    return getattr(inner, "socket", None)


def _address(listener: trio.abc.Listener[Any]) -> str | None:
    """Return the address at which ``listener`` listens; `None` for one of another kind, such as a Unix socket."""
    socket = _socket(listener)
    name: object = None if socket is None else socket.getsockname()
    return str(cast("tuple[object, ...]", name)[0]) if isinstance(name, tuple) else None
