"""HttpClient: sends HTTP requests to one origin. Each request in progress has its own connection, and idle connections
are reused. Redirects within the origin are followed with the same method and body, and `Cookies` are kept."""

from __future__ import annotations

import math
import os
import ssl
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
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
from .dialing import AddressRule, Dial, Dialer, Headers, Hooks
from .origins import TARGET, HttpProxy, Origin, proxy_at, proxy_from_environment, split_url


@frozen(kw_only=True)
class HttpClientBounds:
    """The limits of an `HttpClient`. Times are in seconds."""

    connect_timeout: float = 10.0
    """Seconds within which a connection must be established, including name lookup, TCP, a proxy's tunnel and TLS."""
    head_timeout: float = math.inf
    """Seconds from sending the request until the head of the response arrives. Infinite by default: a server may be
    silent for as long as its handler works, so callers limit their calls themselves."""
    max_head_bytes: int = 16 * 1024
    """Maximum number of bytes of the head of a response. Up to twice as many bytes are accepted if all arrive at
    once."""
    max_idle: int = 16
    """Maximum number of idle connections that are kept."""
    idle_timeout: float = 4.0
    """Seconds for which an idle connection is kept, if the server doesn't announce its own timeout. The default is one
    second less than the five seconds of Node and uvicorn. If a request is sent just when the server closes the
    connection, the request is lost, and the client can't know whether the server received it."""
    ping_interval: float = 20.0
    """Seconds of silence after which the operating system checks whether the server's machine still exists, on a TCP
    connection."""
    ping_timeout: float = 20.0
    """Seconds within which the server's machine must respond to this check. Otherwise the connection counts as lost."""


_DEFAULT_BOUNDS: Final = HttpClientBounds()
_LONGEST_IDLE: Final = 60.0
_MARGIN: Final = 1.0
"""Number of seconds by which an idle connection is closed earlier than the server would close it."""


class HttpClient:
    """An HTTP client for the origin of ``url``. Use it as an async context manager, and only once.

    Connections are opened on demand, and closed at the end of the block.

    Args:
      ssl_context: replaces the system's default, for ``https`` only. It must not offer HTTP/2.
      http_proxy: URL of an HTTP proxy, `None` for none, or `True` for the proxy in the environment variables.
      allows: decides to which addresses of the origin connections may be made, if there is no proxy. `None` allows any.
      follow_redirects: if false, a redirect is returned as the response.
      user_agent: replaces the ``User-Agent``, which is the name and version of this package. Empty sends none.
      via: path of a Unix socket to connect to instead of the origin's address, or a function that opens the TCP
          connections. ``http_proxy`` must then be `None`.
      cookies: whether cookies that the origin sets are sent back to it.

    Raises:
      ValueError: the URL is invalid.
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
            raise ValueError("ssl_context= needs an https:// URL")
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
        """The user's hooks, which see each request and response."""
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
        self, method: str, target: str, headers: Headers = (), body: bytes = b""
    ) -> AsyncGenerator[Reply]:
        """Send a request, and yield the response when its head has arrived. You can read the body inside the block.

        If the block is left before the whole response has arrived, the connection of this exchange is closed at once,
        without waiting. Other exchanges aren't affected. The server can detect that the response isn't needed any more.
        Redirects within the origin are followed if the request stays the same. Other redirects are returned as the
        response.

        Raises:
          ConnectionLost: the connection broke.
          RequestNotSent: the server can't have seen any of the request.
          BadResponse: the response is invalid.
          ValueError: a target or header can't be sent.
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

    async def _ask(self, method: str, target: str, headers: Headers, body: bytes) -> tuple[Reply, HttpClientConnection]:
        if not TARGET.fullmatch(target):
            raise ValueError(f"the target of a request must be a path in printable ASCII, not {target[:300]!r}")
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
        """Send a request on an idle connection, or on a new one, and return the connection."""
        await trio.lowlevel.checkpoint_if_cancelled()
        # If an idle connection turns out to be closed, the server has received nothing, so try the next connection.
        while (connection := self._idle.pop()) is not None:
            await self._send(connection, head, body)
            if connection.has_sent:
                return connection
            self._close(connection)
        connection = await self._dialer.dial(self._running())
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
        if timeout == math.inf:  # save the cost of a cancel scope, because most requests have no timeout
            return await self._answer(connection, method, target)
        with trio.move_on_after(timeout):
            return await self._answer(connection, method, target)
        raise ConnectionLost(f"no response from {connection.name} within {timeout:g} s")

    async def _answer(self, connection: HttpClientConnection, method: str, target: str) -> Reply:
        parser, head = await read_head(connection, method.encode("ascii"), self._bounds.max_head_bytes)
        reply = Reply(connection, parser, head, (self.origin, target))
        if self._cookies is not None and (lines := reply.headers.get("set-cookie")):
            self._cookies.store(target, lines.split("\n"))
        encoding = reply.headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            raise BadResponse(f"the response is encoded as {encoding[:100]!r}, although no encoding was requested")
        return reply

    def _release(self, connection: HttpClientConnection, reply: Reply) -> None:
        """Keep ``connection`` for further requests if its response was read completely. Otherwise close the
        connection."""
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
    """Return the prefix of all request targets, and the header lines that are the same in all requests.

    Both include what a proxy needs, unless the connection is a tunnel through the proxy (RFC 9112 section 3.2.2).
    """
    before, lines = "", f"Host: {origin.authority}\r\nAccept-Encoding: identity\r\n"
    if user_agent:
        lines += f"User-Agent: {user_agent}\r\n"
    if proxy is not None and not origin.secure:
        before = str(origin)
        if proxy.authorization is not None:
            lines += f"Proxy-Authorization: {proxy.authorization}\r\n"
    return before, lines.encode("latin-1")


class IdleConnections:
    """A pool of up to ``limit`` idle connections. A timer closes each connection after its idle time."""

    def __init__(self, limit: int, alarms: Alarms) -> None:
        self._limit = limit
        self._alarms = alarms
        self._waiting: dict[HttpClientConnection, Alarm] = {}
        """Idle connections in the order in which they became idle. The connection that became idle last is at the
        end."""

    def put(self, connection: HttpClientConnection, seconds: float) -> None:
        """Put ``connection`` into the pool for ``seconds``. If the pool is full, close the connection that has been
        idle longest."""
        due = trio.current_time() + seconds
        self._waiting[connection] = self._alarms.set(due, lambda: self._close(connection))
        if len(self._waiting) > self._limit:
            self._close(next(iter(self._waiting)))

    def pop(self) -> HttpClientConnection | None:
        """Take a usable connection out of the pool, the one that was added last. Return `None` if no connection is
        usable.

        Unusable connections are closed.
        """
        while self._waiting:
            connection, alarm = self._waiting.popitem()
            alarm.stop()
            if not connection.is_stale:
                return connection
            connection.close()
        return None

    def close(self) -> None:
        """Close all idle connections."""
        for connection in list(self._waiting):
            self._close(connection)

    def _close(self, connection: HttpClientConnection) -> None:
        self._waiting.pop(connection).stop()
        connection.close()


REDIRECT_LIMIT: Final = 5
_KEEPING: Final = frozenset((307, 308))
_CHANGING: Final = frozenset((301, 302, 303))
"""Redirect statuses after which clients send GET instead of POST (RFC 9110 sections 15.4.2 to 15.4.4)."""
_SAFE: Final = frozenset(("GET", "HEAD"))


def redirected(origin: Origin, method: str, target: str, status: int, location: str | None) -> str | None:
    """Return the request target to which a redirect of ``target`` leads. Return `None` if the client must not follow
    the redirect.

    The redirect must stay within ``origin``, because the request carries credentials for it, and must not change the
    request.
    """
    if status not in _KEEPING and not (status in _CHANGING and method in _SAFE):
        return None
    if not location:
        return None
    try:
        # RFC 9110 section 10.2.2: a client doesn't send the fragment.
        elsewhere, path = split_url(urljoin(f"{origin}{target}", location).partition("#")[0])
    except ValueError:
        return None
    return path if elsewhere == origin else None


_MOST_COOKIES: Final = 50
_LONGEST_COOKIE: Final = 4096
_MOST_CHARACTERS: Final = 8192
"""Maximum number of characters of all cookies together, because servers refuse long headers."""
_LONGEST_DATE: Final = 40


class Cookies:
    """The cookies that a client has received from ``origin``, in memory (RFC 6265).

    Load balancers use cookies to route a session to its replica.

    The latest 50 cookies are kept. Each may have up to 4 KiB, and all together up to 8 KiB.

    `http.cookiejar` isn't used: for some attributes that a server may send, it writes a traceback to standard error,
    and it takes about 50 ms to import. Nothing here is logged.
    """

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._cookies: dict[tuple[str, str], tuple[str, float]] = {}
        """The stored cookies, keyed by name and path: name and value as the server has written them, and the expiry
        time of the cookie."""

    def store(self, target: str, lines: Sequence[str]) -> None:
        """Store the cookies of a response to a request for ``target``. ``lines`` are the values of its ``Set-Cookie``
        headers."""
        for line in lines:
            if len(line) <= _LONGEST_COOKIE:
                self._set(target.partition("?")[0], *line.split(";"))

    def _set(self, asked: str, pair: str, *attributes: str) -> None:
        name, equals, value = (part.strip() for part in pair.partition("="))
        named = {key.strip().lower(): text.strip() for key, _, text in (each.partition("=") for each in attributes)}
        domain = named.get("domain", "").removeprefix(".").lower()
        is_ours = not domain or f".{self._origin.host}".endswith(f".{domain}")
        if not (name and equals and is_ours) or ("secure" in named and not self._origin.secure):
            return
        path = named.get("path", "")
        path = path if path.startswith("/") else asked.rpartition("/")[0] or "/"
        self._cookies.pop((name, path), None)
        expires = _expiry(named.get("max-age", ""), named.get("expires", ""))
        if expires > time.time():
            self._cookies[name, path] = f"{name}={value}", expires
        while (
            len(self._cookies) > _MOST_COOKIES
            or sum(len(text) for text, _ in self._cookies.values()) > _MOST_CHARACTERS
        ):
            del self._cookies[next(iter(self._cookies))]

    def add_to(self, target: str, headers: Headers) -> Headers:
        """Return ``headers`` with a Cookie header added, for the stored cookies that apply to ``target``.

        The stored cookies come after the user's own cookies (RFC 6265 section 5.4).
        """
        asked = target.partition("?")[0]
        pairs = [
            text.encode("latin-1")
            for (_, path), (text, expires) in self._cookies.items()
            if expires > time.time() and (asked == path or asked.startswith(path.removesuffix("/") + "/"))
        ]
        if not pairs:
            return headers
        given = [text for name, text in headers if name.lower() == b"cookie"]
        others = [header for header in headers if header[0].lower() != b"cookie"]
        return [*others, (b"Cookie", b"; ".join((*given, *pairs)))]


def _expiry(max_age: str, expires: str) -> float:
    """Return the time at which a cookie expires, on the system clock (RFC 6265 section 5.3)."""
    with suppress(ValueError, OverflowError):
        return time.time() + int(max_age)
    with suppress(ValueError, TypeError, OverflowError, IndexError):
        if expires:
            from email.utils import parsedate_to_datetime  # imported late, because the import takes 10 ms

            return parsedate_to_datetime(expires[:_LONGEST_DATE]).timestamp()
    return math.inf
