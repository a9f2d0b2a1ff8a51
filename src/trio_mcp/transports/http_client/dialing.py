"""Dialer: opens connections to one origin, directly or through a proxy, and only to allowed IP addresses. `Hooks` call
a user's functions for each request and response, or to open connections."""

from __future__ import annotations

import ipaddress
import math
import os
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from inspect import isawaitable
from typing import Any, Final, TypeAlias

import attrs
import trio

from ...classes import frozen
from ...concurrency.nurseries import ServiceNursery, open_service_nursery
from ...runtime.transport import ConnectionLost
from ..sockets import connect_unix, keep_alive
from ..streams import drop_tracebacks
from .connection import ClientSocket, HttpClientConnection, RequestNotSent, read_head
from .origins import HttpProxy, Origin, looked_up

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]


@frozen(eq=False)
class HTTPRequest:
    """An HTTP request that a client is about to send.

    Each redirect counts as a separate request, and so does each retry with a new token.
    """

    method: str
    """The HTTP method: ``POST``, ``GET`` or ``DELETE``."""
    url: str
    """The URL of the request."""
    headers: dict[str, str] = attrs.field(repr=False)
    """The headers, including ``Authorization``. You may change them, except those that HTTP or MCP needs."""


@frozen(eq=False)
class HTTPResponse:
    """The head of an HTTP response that a client has received. Its body isn't read yet."""

    request: HTTPRequest
    """The request to which this response belongs, with the headers that were sent."""
    status: int
    """The HTTP status code."""
    headers: Mapping[str, str] = attrs.field(repr=False)
    """The headers, keyed by name in lower case."""
    seconds: float
    """Seconds from before the request was sent until the head of the response arrived. This includes connecting."""


OnRequest: TypeAlias = Callable[[HTTPRequest], Awaitable[None] | None]
"""A sync or async function that is called with each HTTP request before it is sent."""
OnResponse: TypeAlias = Callable[[HTTPResponse], Awaitable[None] | None]
"""A sync or async function that is called with the head of each HTTP response."""
Dial: TypeAlias = Callable[[str, int], Awaitable[trio.SocketStream]]
"""An async function that opens a TCP connection to a host and a port."""


@frozen(eq=False)
class Hooks:
    """The user's hook functions for one HTTP client.

    ``check`` raises `ValueError` if a hook has set a header that hooks must not set.
    """

    on_request: OnRequest | None
    on_response: OnResponse | None
    dial: Dial | None
    """Function that opens the TCP connections."""
    check: Callable[[Mapping[str, str]], object]

    async def before(self, method: str, url: str, headers: Headers) -> tuple[HTTPRequest, Headers]:
        """Call the user's hook ``on_request``, and return the request with the headers that the client should send.

        Raises `RequestNotSent` if the hook fails.
        """
        given = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        request = HTTPRequest(method, url, dict(given))
        if self.on_request is None:
            return request, headers
        try:
            await _called(self.on_request, request)
            changed = {name: text for name, text in request.headers.items() if given.get(name) != text}
            self.check(changed | {name: text for name, text in given.items() if name not in request.headers})
        except Exception as error:
            raise RequestNotSent(f"the hook on_request raised {type(error).__name__}: {error}") from error
        # If the names of several headers differ only in case, keep the last of these headers.
        last = {
            name.lower(): (name.encode("latin-1"), text.encode("latin-1")) for name, text in request.headers.items()
        }
        return request, list(last.values())

    async def after(self, request: HTTPRequest, status: int, headers: Mapping[str, str], begun: float) -> None:
        """Call the user's hook ``on_response`` with the response head. Raises `ConnectionLost` if the hook raises."""
        if self.on_response is not None:
            try:
                await _called(self.on_response, HTTPResponse(request, status, headers, trio.current_time() - begun))
            except Exception as error:
                raise ConnectionLost(f"the hook on_response raised {type(error).__name__}: {error}") from error


async def _called(hook: Callable[[Any], Awaitable[None] | None], value: object) -> None:
    answer = hook(value)
    if isawaitable(answer):
        await answer


_HTTP: Final = "http/1.1"
_LONGEST_HEAD: Final = 16 * 1024


@frozen
class Dialer:
    """Opens connections to ``origin``, directly or through ``proxy``. Each attempt may take ``timeout`` seconds.

    ``allows`` decides which addresses of ``origin`` may be used. If ``via`` is given, connections don't use addresses:
    ``via`` is the path of a Unix socket, or a function that opens connections.
    """

    origin: Origin
    proxy: HttpProxy | None
    ssl_context: ssl.SSLContext | None = attrs.field(repr=False)
    timeout: float
    ping_interval: float
    ping_timeout: float
    allows: AddressRule | None = None
    via: str | Dial | None = None

    async def dial(self, nursery: ServiceNursery) -> HttpClientConnection:
        """Open and return a connection.

        Raises `RequestNotSent` with the reason if the host is unknown, connecting fails or takes too long, the proxy
        refuses, or TLS fails.
        """
        with trio.move_on_after(self.timeout):
            wire = await self._connected()
            try:
                return HttpClientConnection(wire, await self._prepared(wire, nursery), self._name)
            except BaseException:
                wire.close()
                raise
        raise RequestNotSent(f"no connection to {self._name} within {self.timeout:g} s")

    @property
    def _name(self) -> str:
        if isinstance(self.via, str):
            return self.via
        return (
            self.origin.address if self.proxy is None else f"{self.origin.address} by the proxy {self._first.address}"
        )

    @property
    def _first(self) -> Origin:
        """The origin to which the client connects first: the proxy, or the server if there is no proxy."""
        return self.origin if self.proxy is None else self.proxy.origin

    async def _connected(self) -> ClientSocket:
        if isinstance(self.via, str):
            try:
                return ClientSocket(await connect_unix(self.via))
            except OSError as error:
                raise RequestNotSent(f"no connection to {self.via}: {error.strerror}") from None
        host, port = looked_up(self._first.host), self._first.port
        try:
            if self.via is not None:
                stream = await dialed(self.via, self.origin.host, self.origin.port)
            elif self.allows is None or self.proxy is not None:
                stream = await trio.open_tcp_stream(host, port)
            else:
                stream = await connect_where_allowed(host, port, self.allows)
        except OSError as error:
            raise RequestNotSent(f"no connection to {self._first.address}: {_reasons(error)}") from None
        keep_alive(stream, self.ping_interval, self.ping_timeout)
        return ClientSocket(stream)

    async def _prepared(self, wire: ClientSocket, nursery: ServiceNursery) -> trio.abc.Stream:
        stream: trio.abc.Stream = wire
        if self.proxy is not None:
            if self.proxy.origin.secure:
                stream = await _secured(stream, self.proxy.origin, _usual_context())
            if self.origin.secure:
                await self._tunnel(
                    HttpClientConnection(wire, stream, f"the proxy {self._first.address}"), nursery, self.proxy
                )
        if self.origin.secure:
            stream = await _secured(stream, self.origin, self.ssl_context or _usual_context())
        return stream

    async def _tunnel(self, connection: HttpClientConnection, nursery: ServiceNursery, proxy: HttpProxy) -> None:
        """Send a CONNECT request, so that the proxy opens a tunnel to the origin (RFC 9110 section 9.3.6)."""
        request = f"CONNECT {self.origin.address} HTTP/1.1\r\nHost: {self.origin.address}\r\n"
        if proxy.authorization is not None:
            request += f"Proxy-Authorization: {proxy.authorization}\r\n"
        try:
            await connection.send(f"{request}\r\n".encode("ascii"), b"", nursery)
            parser, head = await read_head(connection, b"CONNECT", _LONGEST_HEAD)
        except ConnectionLost as error:
            raise RequestNotSent(f"no tunnel through the proxy to {self.origin.address}: {error}") from None
        if not 200 <= head.status_code < 300:
            refusal = _phrase(head.status_code)
            raise RequestNotSent(f"{connection.name} refused to connect to {self.origin.address}: {refusal}")
        # a TLS client sends first, so bytes that the proxy sends before are invalid
        if parser.trailing_data != (b"", False):
            raise RequestNotSent(f"{connection.name} sent unexpected bytes after its response to CONNECT")


async def dialed(dial: Dial, host: str, port: int) -> trio.SocketStream:
    """Open a connection to the server with the user's function ``dial``, and return the connection.

    An `OSError` of the function is raised unchanged. Raises `RequestNotSent` for any other exception, or if the result
    isn't a stream.
    """
    try:
        stream = await dial(host, port)
    except OSError:
        raise
    except Exception as error:
        raise RequestNotSent(f"the function dial raised {type(error).__name__}: {error}") from error
    if not isinstance(stream, trio.SocketStream):  # pyright: ignore[reportUnnecessaryIsInstance] - users' own
        raise RequestNotSent(f"the function dial must return a trio.SocketStream, not a {type(stream).__name__}")
    return stream


async def _secured(stream: trio.abc.Stream, origin: Origin, context: ssl.SSLContext) -> trio.abc.Stream:
    # Don't set trio's https_compatible, which accepts connections that end without TLS's close message.
    # Without TLS's close message, a body of unknown length may be incomplete (RFC 9112 section 9.8).
    secured = trio.SSLStream(stream, context, server_hostname=origin.host)
    try:
        await secured.do_handshake()
    except trio.BrokenResourceError as error:
        drop_tracebacks(error)
        raise RequestNotSent(f"no TLS connection to {origin.address}: {error.__cause__ or error}") from None
    protocol = secured.selected_alpn_protocol()
    if protocol not in (None, _HTTP):
        raise RequestNotSent(
            f"{origin.address} selected {protocol}, which the ssl_context offers, but this client does not support it"
        )
    return secured


@cache
def _usual_context() -> ssl.SSLContext:
    """Return the default TLS context. It is cached, because loading all root certificates takes long."""
    context = ssl.create_default_context()
    context.set_alpn_protocols([_HTTP])
    return context


def _phrase(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:  # Python has no name for this HTTP status
        return str(status)


def _reasons(error: OSError) -> str:
    """Return the error messages of all attempts to connect, as one text.

    trio raises a group of errors, because it tries all addresses of a name.
    """
    return "; ".join(dict.fromkeys(map(_error_text, _causes(error))))


def _causes(error: OSError) -> list[OSError]:
    error.__traceback__ = None  # avoid a reference cycle: the frames of the traceback refer to the error
    match error.__cause__:
        case BaseExceptionGroup(exceptions=attempts):
            return [cause for attempt in attempts if isinstance(attempt, OSError) for cause in _causes(attempt)]
        case _:
            return [error]


def _error_text(error: OSError) -> str:
    # trio adds the address of each attempt to the error's text, so use the text of the operating system.
    # Only errors of the name lookup have negative numbers.
    return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)


AddressRule: TypeAlias = Callable[[ipaddress.IPv4Address | ipaddress.IPv6Address], bool]
"""Type of the function that decides whether the client may connect to an address."""

_HEAD_START: Final = 0.25
"""Seconds until the next connection attempt starts, in parallel with the last one (RFC 8305 section 8)."""
_MOST: Final = 8
"""Maximum number of addresses of a name that are tried."""


async def connect_where_allowed(host: str, port: int, allows: AddressRule) -> trio.SocketStream:
    """Connect to ``host``, using only addresses that ``allows`` permits. Return the first connection that succeeds.

    The name is looked up once, and attempts use addresses. So a name that points elsewhere a moment later (DNS
    rebinding) has no effect. Raises `RequestNotSent` if no address is allowed, and `OSError` from an ExceptionGroup if
    none accepts.
    """
    found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
    named = [str(sockaddr[0]) for *_, sockaddr in found]
    allowed = [address for address in dict.fromkeys(named) if allows(ipaddress.ip_address(address))]
    if not allowed:
        refused = ", ".join(dict.fromkeys(named[:_MOST]))
        raise RequestNotSent(f"no connection to {host}: the rules of this client forbid the address {refused}")
    return await _first_to_answer(_interleaved(allowed)[:_MOST], port)


def _interleaved(addresses: Sequence[str]) -> list[str]:
    """Return ``addresses`` with the first address of the other family (IPv4 or IPv6) in second place.

    A whole family may be unreachable (RFC 8305 section 4).
    """
    first, *rest = addresses
    other = next((address for address in rest if (":" in address) != (":" in first)), None)
    return [first, *rest] if other is None else [first, other, *(each for each in rest if each != other)]


async def _first_to_answer(addresses: Sequence[str], port: int) -> trio.SocketStream:
    done, outcomes = trio.open_memory_channel[trio.SocketStream | OSError](len(addresses))

    async def attempt(address: str) -> None:
        try:
            done.send_nowait(await trio.open_tcp_stream(address, port))
        except OSError as error:
            done.send_nowait(error)

    left = list(addresses)
    failures: list[OSError] = []
    try:
        async with open_service_nursery("another address has answered") as attempts:
            while len(failures) < len(addresses):
                if left:
                    attempts.start_soon(attempt, left.pop(0))
                with trio.move_on_after(_HEAD_START if left else math.inf):
                    outcome = await outcomes.receive()
                    if isinstance(outcome, trio.SocketStream):
                        return outcome
                    failures.append(outcome)
    finally:
        _close_all(outcomes)
    raise OSError("all attempts failed") from ExceptionGroup("all attempts failed", failures)


def _close_all(outcomes: trio.MemoryReceiveChannel[trio.SocketStream | OSError]) -> None:
    """Close connections that aren't needed, because another attempt succeeded first or the call was cancelled."""
    try:
        while True:
            outcome = outcomes.receive_nowait()
            if isinstance(outcome, trio.SocketStream):
                outcome.socket.close()
    except trio.WouldBlock:
        pass
