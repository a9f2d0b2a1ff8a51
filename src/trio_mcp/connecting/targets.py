"""Target: the address, command or object of a server, as data. `open_messages` opens a transport to a target, for
replays."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final, TypeAlias, Unpack, cast
from urllib.parse import unquote, urlsplit

import attrs
import trio

from ..auth.credentials import ClientAuth
from ..classes import frozen
from ..client.client import Client
from ..client.opening import Opening
from ..client.options import ClientOptions, ClientSettings, check_prior, check_revision, speaking
from ..concurrency.contexts import asynccontextmanager
from ..concurrency.misuse import check_keywords
from ..protocol.fields import JSONObject
from ..runtime.transport import FramedTransport
from ..server.server import Server
from ..transports.http_client.dialing import Dial, OnRequest, OnResponse
from ..transports.http_client.origins import split_socket_url
from ..transports.lines import memory_transports
from ..transports.sockets import connect_unix, socket_path
from .bad_target import BadTarget, check_server_url
from .credentials import check_authorization
from .http.opening import hooks_of, open_http, open_http_messages
from .lines import open_lines, open_tcp, open_unix
from .memory import open_memory, open_server
from .stdio import Command, open_process
from .websocket import open_websocket, open_websocket_messages

_SCHEMES: Final = frozenset(("http", "https", "http+unix", "ws", "wss", "tcp", "unix"))


def _is_spoken(_: Any, __: Any, url: str) -> None:
    check_server_url(url, "https://example.com/mcp")  # check this first: later errors would show the password
    try:
        scheme = urlsplit(url).scheme
    except ValueError as error:
        raise BadTarget(f"not a valid URL: {url!r}: {error}") from None
    if scheme not in _SCHEMES:
        words = url.split() if "://" not in url else []
        raise BadTarget(
            f"a URL must be like https://host/path, wss://host/path, tcp://host:port or unix:///path, not {url!r}"
            + (f"; pass a command as a list: {words}" if len(words) > 1 else "")
        )


@frozen
class Address:
    """The URL of a running server.

    The schemes are ``http://…``, ``https://…``, ``ws://…``, ``wss://…``, ``tcp://host:port``, ``unix:///path``, and
    ``http+unix://…`` for HTTP over a Unix socket (see `open_http`).

    ``headers``, ``ssl_context`` and ``auth`` are for HTTP and WebSockets, see `open_http` and `open_websocket`. Raises
    `BadTarget` if they are passed with another kind of URL, if both ``auth`` and an Authorization header are passed, or
    if others could read a token on its way to the server.
    """

    url: str = attrs.field(validator=_is_spoken)
    """The URL of the server."""
    headers: Mapping[str, str] = attrs.field(factory=dict[str, str], kw_only=True, repr=False)
    """HTTP headers to send with each request, or when a WebSocket opens."""
    ssl_context: ssl.SSLContext | None = attrs.field(default=None, kw_only=True)
    """TLS settings; `None` for the default settings."""
    auth: ClientAuth | None = attrs.field(default=None, kw_only=True)
    """Gets the tokens that the server requires: see `open_http`; `None` sends no tokens."""
    cookies: bool = attrs.field(default=True, kw_only=True)
    """False if the server's cookies are ignored over HTTP: see `open_http`."""
    on_request: OnRequest | None = attrs.field(default=None, kw_only=True, repr=False)
    """Callback for each request over HTTP: see `open_http`. In `trio_mcp.aio.open_group`, the callback runs in the
    event loop."""
    on_response: OnResponse | None = attrs.field(default=None, kw_only=True, repr=False)
    """Callback for the head of each response over HTTP. The callback runs in the same way as `on_request`."""
    dial: Dial | None = attrs.field(default=None, kw_only=True, repr=False)
    """Function that opens the TCP connections for HTTP and WebSockets: see `open_http`. The function runs under trio,
    also in `trio_mcp.aio`."""

    revision: str | None = attrs.field(default=None, validator=check_revision, kw_only=True)
    """The protocol revision to use, whatever the options of `open` are; `None` for any revision."""
    prior: JSONObject | None = attrs.field(default=None, validator=check_prior, kw_only=True, repr=False)
    """A saved `Client.discovery` of this server: see `ClientSettings.prior`."""

    def __attrs_post_init__(self) -> None:
        parts = urlsplit(self.url)
        only_there = bool(self.headers) or self.ssl_context is not None or self.auth is not None
        if parts.scheme in ("tcp", "unix") and only_there:
            raise BadTarget(f"headers=, ssl_context= and auth= need an HTTP or WebSocket URL, not {self.url!r}")
        is_hooked = self.on_request is not None or self.on_response is not None
        if is_hooked and parts.scheme not in ("http", "https", "http+unix"):
            raise BadTarget(f"on_request= and on_response= need an HTTP URL, not {self.url!r}")
        if self.dial is not None and parts.scheme not in ("http", "https", "ws", "wss"):
            raise BadTarget(f"dial= needs an HTTP or WebSocket URL, not {self.url!r}")
        if parts.scheme in ("http", "https") and not parts.hostname:
            raise BadTarget(f"the URL of an HTTP server must be like https://example.com/mcp, not {self.url!r}")
        if parts.scheme in ("ws", "wss") and not parts.hostname:
            raise BadTarget(f"a WebSocket URL must be like ws://127.0.0.1:8765/mcp, not {self.url!r}")
        try:
            if parts.scheme == "http+unix":
                split_socket_url(self.url)
            check_authorization(self.auth, self.headers, self.url)
        except ValueError as error:
            raise BadTarget(str(error)) from None
        try:
            port = parts.port
        except ValueError:
            raise BadTarget(f"the port must be a number from 1 to 65535: {self.url!r}") from None
        if parts.scheme == "tcp" and not (parts.hostname and port):
            raise BadTarget(f"a TCP address must be like tcp://127.0.0.1:8765, not {self.url!r}")
        if parts.scheme == "unix" and (parts.netloc or not parts.path):
            raise BadTarget(f"the URL of a Unix socket must be like unix:///run/server.sock, not {self.url!r}")

    def open(self, **options: Unpack[ClientOptions]) -> AbstractAsyncContextManager[Client]:
        """Connect to the server at this URL: see `open_http`, `open_websocket`, `open_tcp` and `open_unix`."""
        check_keywords(Address.open, options)
        options = speaking(self.revision, options, self.prior)
        parts = urlsplit(self.url)
        if parts.scheme in ("http", "https", "http+unix"):
            opening = partial(open_http, self.url, ssl_context=self.ssl_context, headers=self.headers, auth=self.auth)
            hooked = partial(opening, on_request=self.on_request, on_response=self.on_response, dial=self.dial)
            return hooked(cookies=self.cookies, **options)
        if parts.scheme == "unix":
            return open_unix(unquote(parts.path), **options)
        if parts.scheme == "tcp":
            return open_tcp(cast("str", parts.hostname), cast("int", parts.port), **options)
        opening = partial(open_websocket, self.url, ssl_context=self.ssl_context, headers=self.headers)
        return opening(auth=self.auth, dial=self.dial, **options)


@frozen
class InMemory:
    """A server that runs in this process: see `open_memory`."""

    server: Server
    """The `Server` to run in this process."""
    stateless: bool = attrs.field(default=False, kw_only=True)
    """True if the server keeps no state between requests: see `ServingOptions`."""

    def open(self, **options: Unpack[ClientOptions]) -> AbstractAsyncContextManager[Client]:
        """Run the server in this process, and connect to it: see `open_memory`."""
        check_keywords(InMemory.open, options)
        return open_memory(self.server, stateless=self.stateless, **options)


Target: TypeAlias = Command | Address | InMemory
"""What a client connects to: a command to start, an address, or a server in this process."""


def target_of(what: Target | Server | str | Sequence[str | os.PathLike[str]]) -> Target:
    """Convert ``what`` to a target. It can be a target, a server in this process, a URL, or a command as a list."""
    if isinstance(what, (Command, Address, InMemory)):
        return what
    if isinstance(what, Server):
        return InMemory(what)
    return Address(what) if isinstance(what, str) else Command(what)


def open_messages(target: Target, modern: str | None) -> AbstractAsyncContextManager[FramedTransport]:
    """Open a transport to the server at ``target``. It is closed at the end of the block.

    ``modern`` is the revision of messages without a session, which HTTP needs; `None` for messages of a legacy client.
    Raises the errors of the `open_*` function for this target.
    """
    if isinstance(target, Command):
        return open_process(target)
    if isinstance(target, InMemory):
        return _open_in_memory(target)
    opening, url, scheme = Opening(ClientSettings()), target.url, urlsplit(target.url).scheme
    if scheme in ("tcp", "unix"):
        return open_lines(url, partial(_connect, url), opening)
    if scheme in ("ws", "wss"):
        return open_websocket_messages(url, target.ssl_context, target.headers, target.auth, target.dial, opening)
    return _open_over_http(target, modern, opening)


@asynccontextmanager
async def _open_in_memory(target: InMemory) -> AsyncGenerator[FramedTransport]:
    ours, theirs = memory_transports()
    async with open_server(target.server, theirs, stateless=target.stateless):
        yield ours


async def _connect(url: str) -> trio.SocketStream:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return await connect_unix(socket_path(unquote(parts.path)))
    return await trio.open_tcp_stream(cast("str", parts.hostname), cast("int", parts.port))


@asynccontextmanager
async def _open_over_http(address: Address, modern: str | None, opening: Opening) -> AsyncGenerator[FramedTransport]:
    url, headers, ssl_context, auth = address.url, address.headers, address.ssl_context, address.auth
    hooks = hooks_of(url, address.on_request, address.on_response, address.dial)
    opened = open_http_messages(url, headers, ssl_context, True, auth, address.cookies, opening, hooks)
    async with opened as (transport, sessions):
        sessions.modern = modern
        yield transport
