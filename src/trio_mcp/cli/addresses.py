"""Command-line options for the address on which ``trio-mcp run``, ``gateway`` and ``bridge`` serve, such as
``--http``."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable
from errno import EADDRINUSE
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import attrs
import click
import trio

from ..classes import define, frozen
from ..concurrency.nurseries import open_service_nursery
from ..server.servable import Servable
from ..server.server import FROM_LIFESPAN, Server, share_secret
from ..serving.process import exclusive_process, serve_stdio, tune_gc
from ..transports.host_checks import host_checks_for, is_loopback
from ..transports.sockets import socket_path
from .group import choice, in_section, repeatable
from .printable import CommandError, say

if TYPE_CHECKING:
    from ..auth.resource_server.protected import Protected
    from ..recording.recorder import Recorder
    from ..server.sharing import SharedStorage
    from .workers import WorkerLink


@frozen
class Addresses:
    """The address options that the user has typed. Each of ``http``, ``websocket``, ``tcp`` and ``unix`` selects a
    transport, so only one of them may be set."""

    http: str | None = None
    websocket: str | None = None
    tcp: str | None = None
    unix: str | None = None
    path: str | None = None
    allowed_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    stateless: bool = attrs.field(default=False, kw_only=True)
    """The value of the option ``--stateless``. Some commands have neither this option nor the options of the fields
    below."""
    shared: SharedStorage | None = attrs.field(default=None, kw_only=True)
    """The storage that the server shares with its replicas."""
    health: bool = attrs.field(default=False, kw_only=True)
    auth: Protected | None = attrs.field(default=None, kw_only=True)
    link: WorkerLink | None = attrs.field(default=None, kw_only=True)
    """The supervisor's sockets, if this process is a worker. `None` otherwise."""
    workers: int | None = attrs.field(default=None, kw_only=True)
    access_log: bool = attrs.field(default=False, kw_only=True)
    record: Recorder | None = attrs.field(default=None, kw_only=True)
    metrics: tuple[str, int] | None = attrs.field(default=None, kw_only=True)
    """Host and port of the metrics page. `None` if there is no page."""


def serving_on(addresses: Addresses) -> Callable[[Servable], Awaitable[None]] | None:
    """Return a function that serves on the address that the user has typed, and prints the address on standard error.

    Returns `None` if no address was typed: the server then uses standard input and output.

    Raises `CommandError` for invalid options. The function raises it if the address is in use, or isn't an address of
    this machine.
    """
    given = [
        value for value in (addresses.http, addresses.websocket, addresses.tcp, addresses.unix) if value is not None
    ]
    if len(given) > 1:
        raise CommandError("use only one of --http, --websocket, --tcp and --unix")
    if addresses.http is None and addresses.websocket is None:
        of_clients = addresses.allowed_origins, addresses.allowed_hosts, addresses.trusted_proxies
        if any(of_clients) or addresses.path is not None:
            raise CommandError(
                "--path, --allowed-origin, --allowed-host and --trusted-proxy need --http or --websocket"
            )
    elif addresses.path is not None and not addresses.path.startswith("/"):
        raise CommandError(f"--path must begin with a slash, as in --path /mcp, not {addresses.path!r}")
    for_http = {name: getattr(addresses, name) for name in ("stateless", "shared", "health", "auth", "access_log")}
    for name in (name for name, value in for_http.items() if value and addresses.http is None):
        raise CommandError(f"--{'issuer' if name == 'auth' else name.replace('_', '-')} needs --http")
    if not given:
        if addresses.metrics is not None:
            raise CommandError("--metrics needs --http, --websocket, --tcp or --unix")
        return None if addresses.record is None else partial(serve_stdio, record=addresses.record)
    serve = _serving_on(addresses, for_http)
    if addresses.metrics is None:
        return serve
    from .metrics import serve_with_metrics

    socket = None if addresses.link is None else addresses.link.metrics
    return partial(serve_with_metrics, serve, addresses.metrics, socket)


def _serving_on(addresses: Addresses, for_http: dict[str, Any]) -> Callable[[Servable], Awaitable[None]]:

    # Imported late, because a server on standard input and output doesn't need these modules.
    from ..serving.connections import serve_tcp, serve_unix
    from ..serving.http.serve import serve_http
    from ..serving.websocket import serve_websocket

    path = "/mcp" if addresses.path is None else addresses.path
    if addresses.http is not None:
        options = _checked(addresses.http, addresses)
        serve = partial(serve_http, path=path, record=addresses.record, **for_http, **options)
        if addresses.link is not None:
            return _as_worker(serve, addresses.link)
        return partial(_serve_and_print, serve, partial(_url_on_socket if "unix" in options else _url, "http", path))
    if addresses.websocket is not None:
        options = _checked(addresses.websocket, addresses)
        serve = partial(serve_websocket, path=path, record=addresses.record, **options)
        return partial(_serve_and_print, serve, partial(_url, "ws", path))
    if addresses.tcp is not None:
        host, port = host_and_port(addresses.tcp)
        return partial(_serve_and_print, partial(serve_tcp, host=host, port=port, record=addresses.record), _lines)
    assert addresses.unix is not None, "one was given"
    return partial(_serve_and_print, partial(serve_unix, path=addresses.unix, record=addresses.record), _lines)


_ON_SOCKET: Final = "unix:"
"""Prefix of an ``--http`` value that is the path of a Unix socket."""
_WORKERS_NOTICE: Final = 2.0
"""Seconds until the workers of a killed supervisor release its port. A worker that is still importing modules takes
longest."""


def _checked(address: str, addresses: Addresses) -> dict[str, Any]:
    """Return the keyword arguments for `serve_http` or `serve_websocket`. Raises `CommandError` if allowed origins or
    hosts are missing or invalid.

    They are checked because the clients of these servers may be browsers.
    """
    from ..serving.callers import TrustedProxies

    origins = [] if addresses.allowed_origins == ("none",) else list(addresses.allowed_origins) or None
    hosts = list(addresses.allowed_hosts) or None
    with CommandError.instead_of(ValueError):
        trusted = TrustedProxies(addresses.trusted_proxies) if addresses.trusted_proxies else None
    options = {"allowed_origins": origins, "allowed_hosts": hosts, "trusted_proxies": trusted}
    if addresses.http is not None and address.startswith(_ON_SOCKET):
        _check_names("localhost", origins, hosts)
        with CommandError.instead_of(OSError, ValueError, prefix="cannot listen on this address: "):
            return {"unix": socket_path(address.removeprefix(_ON_SOCKET)), **options}
    host, port = host_and_port(address)
    if origins is None or hosts is None:
        _check_decided(host)
    _check_names(host, origins, hosts)
    return {"host": host, "port": port, **options}


def _as_worker(serve: Any, link: WorkerLink) -> Callable[[Servable], Awaitable[None]]:
    """Return a function that serves in a worker process, on the sockets that the supervisor has opened.

    The function reports to the supervisor once the server listens. All workers share a secret.
    """
    from .workers import WorkerListener

    checks = host_checks_for(serve.keywords["host"], serve.keywords["allowed_origins"], serve.keywords["allowed_hosts"])

    async def work(server: Servable) -> None:
        assert isinstance(server, Server), "only run and gateway have workers"
        share_secret(server, link.secret)
        listeners = [WorkerListener(each) for each in link.listeners]
        start = partial(
            serve, listeners=listeners, allowed_origins=checks.allowed_origins, allowed_hosts=checks.allowed_hosts
        )
        async with open_service_nursery("the server has ended") as services:
            services.start_soon(link.obey, listeners)
            await _serve(start, lambda _: link.report_listening(server.info.name, server.limits), server)

    return work


async def open_sockets(addresses: Addresses) -> tuple[list[socket.socket], str]:
    """Open the sockets on which worker processes listen, at the address of ``--http``. Returns the sockets, and a text
    with their addresses for the user.

    Raises `CommandError` in the same cases as `serving_on`.
    """
    if addresses.http is None:
        raise CommandError("--workers and --reload need --http")
    options = _checked(addresses.http, addresses)
    if "unix" in options:
        raise CommandError("--workers and --reload need --http with a port, not with a Unix socket")
    try:
        opened = await _open_listeners(options["host"], options["port"])
    except OSError as error:
        raise CommandError(f"cannot listen on this address: {error}") from error
    sockets = [socket.socket(fileno=os.dup(each.socket.fileno())) for each in opened]
    for each in opened:
        each.socket.close()
    path = "/mcp" if addresses.path is None else addresses.path
    return sockets, ", ".join(_url("http", path, each.getsockname()) for each in sockets)


async def _open_listeners(host: str, port: int) -> list[trio.SocketListener]:
    """Open the TCP listeners that a supervisor passes to its workers. If the port is in use, retry for two seconds,
    since the workers of a killed supervisor may not have released it yet."""
    last = trio.current_time() + _WORKERS_NOTICE
    while True:
        try:
            return await trio.open_tcp_listeners(port, host=host)
        except OSError as error:
            if error.errno != EADDRINUSE or trio.current_time() >= last:
                raise
        await trio.sleep(_WORKERS_NOTICE / 40)


def _check_decided(host: str) -> None:
    if not is_loopback(host):
        raise CommandError(
            f"other machines can reach {host}: add --allowed-host (its names) and --allowed-origin (web pages that may "
            "connect), for example --allowed-origin https://app.example.com --allowed-host mcp.example.com, or "
            "--allowed-origin none"
        )


def _check_names(host: str, allowed_origins: list[str] | None, allowed_hosts: list[str] | None) -> None:
    with CommandError.instead_of(ValueError, prefix="--allowed-host or --allowed-origin is invalid: "):
        host_checks_for(host, allowed_origins, allowed_hosts)


def host_and_port(text: str) -> tuple[str, int]:
    """Return the host and the port in ``text``, such as ``localhost:8000``. The default host is 127.0.0.1.

    Raises `CommandError` if ``text`` is invalid.
    """
    host, _, port = text.rpartition(":")
    if not (port.isdecimal() and int(port) < 65536):
        raise CommandError(f"an address must be PORT or HOST:PORT, not {text!r}")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


async def _serve(serve: Any, announce: Callable[[Any], None], server: Servable) -> None:
    """Serve until cancelled or shut down. Calls ``announce`` with the listeners as soon as the server listens.

    Raises `CommandError` if a storage or an address can't be used.
    """
    announcement = _Announcement(announce)
    tune_gc()
    exclusive_process()
    try:
        await serve(server, task_status=announcement)
    except OSError as error:
        if announcement.made or FROM_LIFESPAN in getattr(error, "__notes__", ()):
            raise
        # Importing `StoreDown` here is fast, because the storage has already imported its module.
        from ..stores.task_store import StoreDown

        what = "--shared: cannot use this storage" if isinstance(error, StoreDown) else "cannot listen on this address"
        raise CommandError(f"{what}: {error}") from error


@define
class _Announcement:
    """A `trio.TaskStatus` for starting a server. It calls ``announce`` with the server's listeners once the server
    listens."""

    _announce: Callable[[Any], None]
    made: bool = False

    def started(self, value: Any = None) -> None:
        self.made = True
        self._announce(value)


async def _serve_and_print(serve: Any, place: Callable[[Any], str], server: Servable) -> None:
    """Serve until cancelled or shut down, and print the server's address on standard error. ``place`` converts a socket
    name to readable text."""

    def announce(listeners: Any) -> None:
        for listener in listeners:
            say(f"serving {server.info.name!r} at {place(listener.socket.getsockname())}; press Ctrl-C to stop")

    await _serve(serve, announce, server)


def _url(scheme: str, path: str, name: Any) -> str:
    return f"{scheme}://{_address(name)}{path}"


def _url_on_socket(scheme: str, path: str, name: Any) -> str:
    return f"{scheme}+unix://{quote(os.path.abspath(os.fsencode(name)), safe='')}{path}"


def _lines(name: Any) -> str:
    return f"{_address(name)}, a message per line"


def _address(name: Any) -> str:
    if isinstance(name, str | bytes):
        return os.fsdecode(name)
    host, port, *_ = name
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


LOG_LEVELS: Final = ("debug", "info", "warning", "error", "critical")
"""Names of the levels of Python's logging."""
log_level_option = choice("--log-level", LOG_LEVELS, "warning", "Lowest level of this command's own log messages.")
"""The ``--log-level`` option of commands that don't run the user's code."""


_options: Final = in_section(
    "Address options",
    click.option(
        "--http",
        metavar="[HOST:]PORT|unix:PATH",
        help="Serve many clients over Streamable HTTP, on a port or, for your programs on this machine, a Unix socket.",
    ),
    click.option("--websocket", metavar="[HOST:]PORT", help="Serve many clients over WebSocket."),
    click.option("--tcp", metavar="[HOST:]PORT", help="Serve many clients over plain TCP, with one message per line."),
    click.option("--unix", metavar="PATH", help="Serve many clients on a Unix socket, with one message per line."),
    click.option("--path", metavar="PATH", help="Path of the URL for HTTP and WebSocket. Default: /mcp."),
    repeatable(
        "--allowed-origin",
        "allowed_origins",
        "ORIGIN",
        "Origin of a web page that may connect, like https://app.example.com, or 'none'. Required, with "
        "--allowed-host, if other machines can reach HOST.",
    ),
    repeatable("--allowed-host", "allowed_hosts", "NAME", "A host name in the URLs of clients."),
    repeatable(
        "--trusted-proxy",
        "trusted_proxies",
        "NETWORK",
        "Address or network of a reverse proxy, like 127.0.0.1 or 10.0.0.0/8, whose X-Forwarded-For header is "
        "trusted. Limits are shared by the client addresses in it.",
    ),
)


def address_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the address options to a command: --http, --websocket, --tcp, --unix, and for HTTP and WebSocket also --path,
    --allowed-origin, --allowed-host and --trusted-proxy.

    The command's function gets them as the argument ``addresses``.
    """

    @_options
    @wraps(command)
    def run(**named: Any) -> int:
        typed = [named.pop(field.name) for field in attrs.fields(Addresses) if not field.kw_only]
        return command(addresses=Addresses(*typed), **named)

    return run
