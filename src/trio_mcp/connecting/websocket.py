"""open_websocket: connects to a server over a WebSocket."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Unpack
from urllib.parse import urlsplit

import trio

from ..auth.credentials import ClientAuth, Credentials, RefusedRequest
from ..classes import frozen
from ..client.client import Client
from ..client.opening import Opening
from ..client.options import ClientOptions
from ..concurrency.contexts import asynccontextmanager
from ..concurrency.misuse import async_with_only
from ..concurrency.nurseries import ServiceNursery, open_service_nursery
from ..runtime.limits import Limits
from ..runtime.transport import ConnectionLost
from ..transports.http_client.connection import default_user_agent
from ..transports.http_client.dialing import Dial, dialed
from ..transports.http_client.origins import TARGET, looked_up, redirect_url
from ..transports.sockets import keep_alive
from ..transports.streams import drop_tracebacks
from ..transports.websocket.handshake import UpgradeRefused
from ..transports.websocket.transport import WebSocketTransport
from .bad_target import BadTarget, check_address, check_server_url
from .credentials import check_authorization, given_headers, is_challenge, open_credentials


@async_with_only("client")
@asynccontextmanager
async def open_websocket(
    url: str,
    *,
    ssl_context: ssl.SSLContext | None = None,
    headers: Mapping[str, str] | None = None,
    auth: ClientAuth | None = None,
    dial: Dial | None = None,
    **options: Unpack[ClientOptions],
) -> AsyncGenerator[Client]:
    """Connect to a server over a WebSocket. Yields a `Client`, which is closed at the end of the block.

    Args:
        url: ``ws://host:port/path``, or ``wss://`` for TLS.
        ssl_context: TLS settings, instead of the system's defaults.
        headers: Headers to send with the upgrade request. A ``User-Agent`` is added unless they contain one.
        auth: Authorizes the upgrade request, as `open_http` describes for every request.
        dial: Opens the TCP connection, as for `open_http`; TLS is added on top.
        options: See `ClientSettings`. ``connect_timeout`` limits all of connecting.

    Raises:
        ConnectionLost: No server is listening, or the server refuses; with the HTTP status and the explanation.
        AuthorizationError: The client can't get a token.
        ProtocolViolation: The server doesn't speak MCP: it didn't select the subprotocol ``mcp``.
        BadTarget: The URL is invalid.
        trio.TooSlowError: Connecting takes longer than ``connect_timeout``.
        PeerError: The server refuses the connection with an error.
    """
    opening = Opening.under_trio("open_websocket", options, url)
    async with (
        open_websocket_messages(url, ssl_context, headers, auth, dial, opening) as transport,
        opening.open_over(transport) as client,
    ):
        yield client


@asynccontextmanager
async def open_websocket_messages(
    url: str,
    ssl_context: ssl.SSLContext | None,
    headers: Mapping[str, str] | None,
    auth: ClientAuth | None,
    dial: Dial | None,
    opening: Opening,
) -> AsyncGenerator[WebSocketTransport]:
    """Open a transport to the server at ``url`` over a WebSocket: see `open_websocket`."""
    check_server_url(url, "ws://127.0.0.1:8765/mcp")
    where = _WebSocketTarget.of(url)
    check_authorization(auth, headers or {}, url)
    given = given_headers(headers or {})
    if not any(name.lower() == b"user-agent" for name, _ in given):
        given.append((b"User-Agent", default_user_agent().encode("ascii")))
    async with (
        open_credentials(auth, url, opening.timeouts) as credentials,
        open_service_nursery("the connection was closed") as nursery,
    ):
        with opening.connecting():
            upgrading = _UpgradeRequest(where, ssl_context, dial, given, opening.settings.limits, nursery)
            transport = await (upgrading.run() if credentials is None else upgrading.run_authorized(credentials))
        yield transport


@frozen
class _UpgradeRequest:
    where: _WebSocketTarget
    ssl_context: ssl.SSLContext | None
    dial: Dial | None
    given: Sequence[tuple[bytes, bytes]]
    limits: Limits
    nursery: ServiceNursery

    async def run_authorized(self, credentials: Credentials) -> WebSocketTransport:
        """Request the upgrade to a WebSocket with ``credentials``.

        If the server refuses the credentials, and the client can get better ones, request the upgrade again.
        """
        attempt, begun = 0, trio.current_time()
        while True:
            attempt += 1
            sent = await credentials.headers("GET")
            try:
                return await self.run(sent)
            except UpgradeRefused as refused:
                credentials.noticed(refused.headers)
                if not is_challenge(refused.status, refused.headers):
                    raise
                challenges = refused.headers.get("www-authenticate", "")
                request = RefusedRequest(refused.status, challenges, sent, attempt, begun)
            await credentials.refused(request)

    async def run(self, authorization: Sequence[tuple[bytes, bytes]] = ()) -> WebSocketTransport:
        stream = await self.where.connect(self.ssl_context, self.dial)
        keep_alive(stream, self.limits.ping_interval, self.limits.ping_timeout)
        transport = WebSocketTransport(
            stream,
            self.limits.max_message_bytes,
            ping_interval=self.limits.ping_interval,
            ping_timeout=self.limits.ping_timeout,
            close_code=1000,
        )
        where = self.where
        try:
            await self.nursery.start(transport.connect, where.netloc, where.resource, [*self.given, *authorization])
        except UpgradeRefused as error:
            if not (place := redirect_url(where.url, error.status, error.headers)):
                raise
            words = f"{error}; it leads to {place}, which isn't followed"
            raise UpgradeRefused(words, error.status, error.headers) from None
        except ConnectionLost as error:
            if where.secure or transport.has_received:
                raise
            raise ConnectionLost(f"{error}; the server sent no answer. If it requires TLS, use wss://…") from None
        return transport


@frozen
class _WebSocketTarget:
    url: str
    host: str
    port: int
    netloc: str
    resource: str
    secure: bool

    @classmethod
    def of(cls, url: str) -> _WebSocketTarget:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise BadTarget(f"not a valid URL: {url!r}: {error}") from None
        if parts.scheme not in ("ws", "wss") or not parts.hostname:
            raise BadTarget(f"a WebSocket URL must be like ws://127.0.0.1:8765/mcp, not {url!r}")
        if parts.username is not None or parts.fragment:
            raise BadTarget("a WebSocket URL must contain neither a user nor a fragment")
        secure = parts.scheme == "wss"
        if port is None:
            port = 443 if secure else 80
        check_address(parts.hostname, port)
        resource = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        if not TARGET.fullmatch(resource):
            raise BadTarget(
                f"the path of a URL must be printable ASCII, with other characters percent-encoded: {url!r}"
            )
        return cls(url, parts.hostname, port, parts.netloc, resource, secure)

    async def connect(self, ssl_context: ssl.SSLContext | None, dial: Dial | None) -> trio.abc.Stream:
        if not self.secure and ssl_context is not None:
            raise ValueError("ssl_context= needs a wss:// URL")
        try:
            if dial is None:
                stream = await trio.open_tcp_stream(looked_up(self.host), self.port)
            else:
                stream = await dialed(dial, self.host, self.port)
            return await self._secured(stream, ssl_context) if self.secure else stream
        except OSError as error:
            raise ConnectionLost(f"no connection to {self.netloc}: {error}") from error
        except trio.BrokenResourceError as error:
            drop_tracebacks(error)
            raise ConnectionLost(f"no TLS connection to {self.netloc}: {error.__cause__ or error}") from error

    async def _secured(self, stream: trio.SocketStream, ssl_context: ssl.SSLContext | None) -> trio.abc.Stream:
        try:
            context = ssl_context or ssl.create_default_context()
            secured = trio.SSLStream(stream, context, server_hostname=self.host, https_compatible=True)
            # Do the handshake now, so that the error explains what is wrong with the certificate.
            await secured.do_handshake()
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return secured
