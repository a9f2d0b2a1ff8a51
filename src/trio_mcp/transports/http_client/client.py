"""HttpClient: requests to one origin, one connection for each exchange in flight."""

from __future__ import annotations

import math
import ssl
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Final

import attrs
import trio

from ...concurrency.alarms import Alarms
from ...concurrency.contexts import asynccontextmanager
from ...concurrency.nurseries import ServiceNursery, open_service_nursery
from ...runtime.channel import ConnectionLost
from .connection import Connection
from .dialing import Dialer
from .errors import BadResponse, RequestNotSent
from .head import check_target, request_head
from .idle import IdleConnections
from .origin import split_url
from .redirects import MOST_REDIRECTS, redirected
from .reply import Reply, read_head

__all__ = ["HttpClient", "HttpClientBounds"]


@attrs.frozen(kw_only=True)
class HttpClientBounds:
    """The bounds of an `HttpClient`; times are in seconds."""

    connect_timeout: float = 10.0
    """Time for all of connecting: looking up the name, TCP, the tunnel of a proxy, TLS."""
    head_timeout: float = math.inf
    """Time until the head of the answer, from when the request was sent. A server may keep silent for as long as its
    handler works, so callers bound their calls themselves."""
    max_head_bytes: int = 16 * 1024
    """Bytes of the head of an answer. Up to twice as many are let through where they come at once."""
    max_idle: int = 16
    """Connections that wait for their next request."""
    idle_timeout: float = 4.0
    """Time that a connection waits for its next request, where the server does not say how long the server waits: a
    second less than the five of Node and uvicorn. A request that meets the end of its connection is lost, because
    nobody knows whether the server has seen the request."""


_DEFAULT_BOUNDS: Final = HttpClientBounds()
_LONGEST_IDLE: Final = 60.0
_MARGIN: Final = 1.0
"""Seconds by which a connection is closed before the server would."""


class HttpClient:
    """Requests to the origin of ``url``, over connections that are opened when they are needed and closed with the
    block: an async context manager, of use once.

    ``ssl_context`` replaces the system's usual one, for ``https`` only; it must not offer HTTP/2. Raises `ValueError`
    for an invalid URL.
    """

    def __init__(
        self,
        url: str,
        *,
        ssl_context: ssl.SSLContext | None = None,
        bounds: HttpClientBounds = _DEFAULT_BOUNDS,
    ) -> None:
        self.origin, self.target = split_url(url)
        if ssl_context is not None and not self.origin.secure:
            raise ValueError("an ssl_context is for https:// URLs")
        self._bounds = bounds
        self._dialer = Dialer(self.origin, ssl_context, bounds.connect_timeout)
        self._ours = f"Host: {self.origin.authority}\r\nAccept-Encoding: identity\r\n".encode("ascii")
        self._alarms = Alarms()
        self._idle = IdleConnections(bounds.max_idle, self._alarms)
        self._in_use: set[Connection] = set()
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
        the origin are followed where they keep the request as it is; of others the answer is the redirect.

        Raises `ConnectionLost` when the connection breaks, `RequestNotSent` when the server cannot have seen anything
        of the request, `BadResponse` when the answer makes no sense, and `ValueError` for a target or header that
        cannot be sent.
        """
        reply, connection = await self._ask(method, target, headers, body)
        redirects = 0
        try:
            while redirects < MOST_REDIRECTS and (elsewhere := self._redirected(method, target, reply)) is not None:
                self._release(connection, reply)
                redirects, target = redirects + 1, elsewhere
                reply, connection = await self._ask(method, target, headers, body)
            yield reply
        finally:
            self._release(connection, reply)

    def _redirected(self, method: str, target: str, reply: Reply) -> str | None:
        return redirected(self.origin, method, target, reply.status, reply.headers.get("location"))

    async def _ask(
        self, method: str, target: str, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> tuple[Reply, Connection]:
        check_target(target)
        head = request_head(method, target, headers, self._ours)
        if body or method not in ("GET", "HEAD", "DELETE"):
            head += b"Content-Length: %d\r\n" % len(body)
        connection = await self._send(b"%s\r\n%s" % (head, body))
        try:
            return await self._answer(connection, method), connection
        except BaseException:
            self._close(connection)
            raise

    async def _send(self, request: bytes) -> Connection:
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            connection = self._idle.take()
            is_fresh = connection is None
            if connection is None:
                connection = await self._dialer.dial()
            nursery = self._nursery
            if nursery is None:
                connection.close()
                raise RequestNotSent(f"the HTTP client for {self.origin} is closed")
            self._in_use.add(connection)
            try:
                await connection.send(request, nursery)
            except BaseException:
                self._close(connection)
                raise
            # A POST may be sent again only where the server cannot have seen the first.
            if is_fresh or connection.has_taken:
                return connection
            self._close(connection)

    async def _answer(self, connection: Connection, method: str) -> Reply:
        bounds = self._bounds
        with trio.move_on_after(bounds.head_timeout):
            reply = Reply(connection, *await read_head(connection, method.encode("ascii"), bounds.max_head_bytes))
            encoding = reply.headers.get("content-encoding", "identity")
            if encoding != "identity":
                raise BadResponse(f"the answer is encoded ({encoding[:100]!r}), although no encoding was asked for")
            return reply
        raise ConnectionLost(f"no answer from {self.origin.address} within {bounds.head_timeout:g} s")

    def _release(self, connection: Connection, reply: Reply) -> None:
        """Keep ``connection`` where its exchange is over, else close it. Idempotent."""
        if connection not in self._in_use:
            return
        if self._nursery is not None and not connection.is_sending and reply.finish():
            self._in_use.remove(connection)
            held = reply.held
            self._idle.put(
                connection, self._bounds.idle_timeout if held is None else min(held - _MARGIN, _LONGEST_IDLE)
            )
        else:
            self._close(connection)

    def _close(self, connection: Connection) -> None:
        self._in_use.discard(connection)
        connection.close()
