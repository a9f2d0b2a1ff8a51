"""HttpClient sends requests to one origin, by one connection for each exchange in flight; idle connections are kept for
the next request. Redirects are followed to another path of the same origin, with the same request.
"""

from __future__ import annotations

import math
import os
import ssl
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Final, Literal
from urllib.parse import urljoin

import trio

from ...classes import frozen
from ...concurrency.contexts import asynccontextmanager
from ...concurrency.nurseries import ServiceNursery, open_service_nursery
from ...concurrency.wakeups import Alarm, Alarms
from ...runtime.transport import ConnectionLost
from .connection import (
    BadResponse,
    HttpClientConnection,
    Reply,
    RequestNotSent,
    default_user_agent,
    read_head,
    request_head,
)
from .cookies import Cookies
from .dialing import AddressRule, Dial, Dialer, Hooks
from .origins import TARGET, HttpProxy, Origin, proxy_at, proxy_from_environment, split_url


@frozen(kw_only=True)
class HttpClientBounds:
    """The bounds of an `HttpClient`; times are in seconds."""

    connect_timeout: float = 10.0
    """Time for all of connecting: looking up the name, TCP, the tunnel of a proxy, TLS."""
    head_timeout: float = math.inf
    """Time until the head of the answer, from when the request was sent. A server may keep silent for as long as its
    handler works, so callers bound their calls themselves."""
    max_head_bytes: int = 16 * 1024
    """Bytes of the head of an answer. Up to twice as many are let through where all come at once."""
    max_idle: int = 16
    """Connections that wait for their next request."""
    idle_timeout: float = 4.0
    """Time that a connection waits for its next request, where the server does not say how long the server waits: a
    second less than the five of Node and uvicorn. A request that meets the end of its connection is lost, because
    nobody knows whether the server has seen the request."""
    ping_interval: float = 20.0
    """Time that a server may be silent before the system checks that the machine of the server is still there, at a
    TCP connection."""
    ping_timeout: float = 20.0
    """Time that this check may take before the connection is taken for lost."""


_DEFAULT_BOUNDS: Final = HttpClientBounds()
_LONGEST_IDLE: Final = 60.0
_MARGIN: Final = 1.0
"""Seconds by which a connection is closed before the server would."""


class HttpClient:
    """Requests to the origin of ``url``, over connections that are opened on demand and closed with the block: an
    async context manager, of use once.

    ``ssl_context`` replaces the system's usual one, for ``https`` only; the context must not offer HTTP/2.
    ``http_proxy`` is the URL of an HTTP proxy, `None` for none, or `True` for the one that the environment names.
    ``allows`` says to which addresses of the origin connections may be made, where no proxy makes them; `None`: to any.
    Without ``follow_redirects`` each redirect is the answer. ``user_agent`` replaces the ``User-Agent`` that names this
    package and its version; empty: none is sent. ``via`` is the path of a Unix socket to which connections are made in
    place of the origin's address, or a function that opens the TCP connections; ``http_proxy`` is `None` then. With
    ``cookies``, the cookies that the origin sets are sent back to it. Raises `ValueError` for an invalid URL.
    """

    def __init__(
        self,
        url: str,
        *,
        ssl_context: ssl.SSLContext | None = None,
        http_proxy: str | Literal[True] | None = True,
        bounds: HttpClientBounds = _DEFAULT_BOUNDS,
        allows: AddressRule | None = None,
        follow_redirects: bool = True,
        user_agent: str | None = None,
        via: str | Dial | None = None,
        cookies: bool = False,
    ) -> None:
        self.origin, self.target = split_url(url)
        if ssl_context is not None and not self.origin.secure:
            raise ValueError("an ssl_context is for https:// URLs")
        self._bounds = bounds
        by = (
            None
            if http_proxy is None
            else proxy_from_environment(os.environ, self.origin)
            if http_proxy is True
            else proxy_at(http_proxy)
        )
        times = bounds.connect_timeout, bounds.ping_interval, bounds.ping_timeout
        self._dialer = Dialer(self.origin, by, ssl_context, *times, allows, via)
        self.hooks: Hooks | None = None
        """See each request and response."""
        self._redirect_limit = REDIRECT_LIMIT if follow_redirects else 0
        self._before, self._ours = _constants(
            self.origin, by, default_user_agent() if user_agent is None else user_agent
        )
        self._cookies = Cookies(self.origin) if cookies else None
        self._alarms = Alarms()
        self._idle = IdleConnections(bounds.max_idle, self._alarms)
        self._in_use: set[HttpClientConnection] = set()
        self._services = open_service_nursery("the HTTP client was closed")
        self._nursery: ServiceNursery | None = None

    async def __aenter__(self) -> HttpClient:
        self._nursery = await self._services.__aenter__()
        self._nursery.start_soon(self._alarms.run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        self._nursery = None
        self._idle.close()
        for connection in self._in_use:
            connection.close()
        return await self._services.__aexit__(kind, value, traceback)

    @asynccontextmanager
    async def request(
        self, method: str, target: str, headers: Sequence[tuple[bytes, bytes]] = (), body: bytes = b""
    ) -> AsyncGenerator[Reply]:
        """Send a request and wait for the head of the answer; the block reads the body.

        When the block is left, and not all of the answer has come, the connection of the exchange is closed at once,
        without waiting and without effect on others: the server sees that nobody waits for the answer. Redirects within
        the origin are followed where the request stays the same; of others the answer is the redirect.

        Raises `ConnectionLost` when the connection breaks, `RequestNotSent` when the server cannot have seen anything
        of the request, `BadResponse` when the answer makes no sense, and `ValueError` for a target or header that
        cannot be sent.
        """
        reply, connection = await self._ask(method, target, headers, body)
        for _ in range(self._redirect_limit):
            elsewhere = redirected(self.origin, method, target, reply.status, reply.headers.get("location"))
            if elsewhere is None:
                break
            self._release(connection, reply)
            target = elsewhere
            reply, connection = await self._ask(method, target, headers, body)
        try:
            yield reply
        finally:
            self._release(connection, reply)

    async def _ask(
        self, method: str, target: str, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> tuple[Reply, HttpClientConnection]:
        if not TARGET.fullmatch(target):
            raise ValueError(f"the target of a request is a path of printable ASCII characters, not {target[:300]!r}")
        if self._cookies is not None:
            headers = self._cookies.add_to(target, headers)
        request, begun = None, 0.0
        if self.hooks is not None:
            begun = trio.current_time()
            request, headers = await self.hooks.before(method, f"{self.origin}{target}", headers)
        head = request_head(method, self._before + target, headers, self._ours)
        if body or method not in ("GET", "HEAD", "DELETE"):
            head += b"Content-Length: %d\r\n" % len(body)
        connection = await self._sent(head + b"\r\n", body)
        try:
            reply = await self._answer_in_time(connection, method, target)
            if self.hooks is not None and request is not None:
                await self.hooks.after(request, reply.status, reply.headers, begun)
            return reply, connection
        except BaseException:
            self._close(connection)
            raise

    async def _sent(self, head: bytes, body: bytes) -> HttpClientConnection:
        """Send a request on a connection, and return the connection."""
        await trio.lowlevel.checkpoint_if_cancelled()
        # A request may be sent again only where the server cannot have seen the first.
        while (connection := self._idle.pop()) is not None:
            await self._send(connection, head, body)
            if connection.has_sent:
                return connection
            self._close(connection)
        nursery = self._running()
        connection = await self._dialer.dial(nursery)
        await self._send(connection, head, body)
        return connection

    async def _send(self, connection: HttpClientConnection, head: bytes, body: bytes) -> None:
        self._in_use.add(connection)
        try:
            await connection.send(head, body, self._running())
        except BaseException:
            self._close(connection)
            raise

    def _running(self) -> ServiceNursery:
        if self._nursery is None:
            raise RequestNotSent(f"the HTTP client for {self.origin} is closed")
        return self._nursery

    async def _answer_in_time(self, connection: HttpClientConnection, method: str, target: str) -> Reply:
        timeout = self._bounds.head_timeout
        if timeout == math.inf:  # as it usually is, and a scope takes a twentieth of a call
            return await self._answer(connection, method, target)
        with trio.move_on_after(timeout):
            return await self._answer(connection, method, target)
        raise ConnectionLost(f"no answer from {connection.name} within {timeout:g} s")

    async def _answer(self, connection: HttpClientConnection, method: str, target: str) -> Reply:
        parser, head = await read_head(connection, method.encode("ascii"), self._bounds.max_head_bytes)
        reply = Reply(connection, parser, head, (self.origin, target))
        if self._cookies is not None and (lines := reply.headers.get("set-cookie")):
            self._cookies.store(target, lines.split("\n"))
        encoding = reply.headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            raise BadResponse(f"the answer is encoded ({encoding[:100]!r}), although no encoding was asked for")
        return reply

    def _release(self, connection: HttpClientConnection, reply: Reply) -> None:
        """Keep ``connection`` where its exchange is over, else close the connection."""
        if self._nursery is not None and not connection.is_sending and reply.finish():
            self._in_use.remove(connection)
            held = reply.keep_alive_timeout
            self._idle.put(
                connection, self._bounds.idle_timeout if held is None else min(held - _MARGIN, _LONGEST_IDLE)
            )
        else:
            self._close(connection)

    def _close(self, connection: HttpClientConnection) -> None:
        self._in_use.discard(connection)
        connection.close()


def _constants(origin: Origin, proxy: HttpProxy | None, user_agent: str) -> tuple[str, bytes]:
    """Return the prefix of all targets, and the headers of all requests. A proxy reads both, except one that only
    makes a tunnel (RFC 9112 section 3.2.2)."""
    before, lines = "", f"Host: {origin.authority}\r\nAccept-Encoding: identity\r\n"
    if user_agent:
        lines += f"User-Agent: {user_agent}\r\n"
    if proxy is not None and not origin.secure:
        before = str(origin)
        if proxy.authorization is not None:
            lines += f"Proxy-Authorization: {proxy.authorization}\r\n"
    return before, lines.encode("latin-1")


class IdleConnections:
    """Up to ``limit`` connections, each with a time after which ``alarms`` have the connection closed."""

    def __init__(self, limit: int, alarms: Alarms) -> None:
        self._limit = limit
        self._alarms = alarms
        self._waiting: dict[HttpClientConnection, Alarm] = {}
        """Connections in the order of their coming, so the last one is the freshest."""

    def put(self, connection: HttpClientConnection, seconds: float) -> None:
        """Keep ``connection`` for ``seconds``. The one that has waited longest is closed where there are too many."""
        due = trio.current_time() + seconds
        self._waiting[connection] = self._alarms.set(due, lambda: self._close(connection))
        if len(self._waiting) > self._limit:
            self._close(next(iter(self._waiting)))

    def pop(self) -> HttpClientConnection | None:
        """Take out the freshest connection that is of use; close all useless ones on the way."""
        while self._waiting:
            connection, alarm = self._waiting.popitem()
            alarm.stop()
            if not connection.is_stale:
                return connection
            connection.close()
        return None

    def close(self) -> None:
        """Close all."""
        for connection in list(self._waiting):
            self._close(connection)

    def _close(self, connection: HttpClientConnection) -> None:
        self._waiting.pop(connection).stop()
        connection.close()


REDIRECT_LIMIT: Final = 5
_KEEPING: Final = frozenset((307, 308))
_CHANGING: Final = frozenset((301, 302, 303))
"""Statuses after which clients send GET instead of POST (RFC 9110 sections 15.4.2 to 15.4.4)."""
_SAFE: Final = frozenset(("GET", "HEAD"))


def redirected(origin: Origin, method: str, target: str, status: int, location: str | None) -> str | None:
    """Return the target to ask instead of ``target``, or `None` where the answer must not be followed.

    The redirect must stay within ``origin``, because the request carries credentials for the origin, and must not turn
    the request into another one.
    """
    if status not in _KEEPING and not (status in _CHANGING and method in _SAFE):
        return None
    if not location:
        return None
    try:
        # RFC 9110 section 10.2.2: a fragment is for the user agent alone.
        elsewhere, path = split_url(urljoin(f"{origin}{target}", location).partition("#")[0])
    except ValueError:
        return None
    return path if elsewhere == origin else None
