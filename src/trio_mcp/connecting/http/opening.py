"""open_http: connects to a server over Streamable HTTP.

`settle_era` detects whether the server at a URL is modern or legacy (2026-07-28 Streamable HTTP, Backward
Compatibility). A task beside the client opens a new session when the server has lost the last one.
"""

from __future__ import annotations

import logging
import math
import secrets
import ssl
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import Final, Literal, Unpack

import attrs
import trio

from ...auth.credentials import ClientAuth
from ...client.client import Client
from ...client.opening import (
    LegacyServers,
    Opening,
    discover,
    initialize,
    legacy_offer,
    negotiate_modern,
    notify_changes,
    renew_session,
)
from ...client.options import ClientOptions
from ...concurrency.contexts import asynccontextmanager
from ...concurrency.misuse import async_with_only
from ...concurrency.nurseries import open_service_nursery
from ...concurrency.time_limits import growing_delay
from ...jsonrpc.errors import MCPError, PeerError, ProtocolViolation, UnreadableAnswer
from ...runtime.transport import ConnectionLost, HTTPError
from ...transports.http_client.client import HttpClient, HttpClientBounds
from ...transports.http_client.dialing import AddressRule, Dial, Hooks, OnRequest, OnResponse
from ...transports.http_client.origins import REDIRECTS, is_local_host, names_socket, split_socket_url, split_url
from ..bad_target import BadTarget, check_server_url
from ..credentials import check_authorization, given_headers, open_credentials, trusted_http_hosts
from .endpoint import Endpoint, Inbox
from .listening import may_use_http_and_sse
from .outgoing import RequestHeaders, Sessions
from .responses import Backoff, StatusPeerError, is_passing
from .transport import HttpTransport

logger = logging.getLogger("trio_mcp")

_TAG_BYTES: Final = 12
_LONGEST_WAIT: Final = 10.0
"""Seconds within which a server that uses HTTP+SSE must send the URL for the client's messages."""
_LIVED: Final = 10.0
"""If a session lasted for this many seconds, the next session is opened without a pause."""


@async_with_only("client")
@asynccontextmanager
async def open_http(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    ssl_context: ssl.SSLContext | None = None,
    http_proxy: str | Literal[True] | None = True,
    auth: ClientAuth | None = None,
    cookies: bool = True,
    on_request: OnRequest | None = None,
    on_response: OnResponse | None = None,
    dial: Dial | None = None,
    **options: Unpack[ClientOptions],
) -> AsyncGenerator[Client]:
    """Connect to a server over Streamable HTTP. Yields a `Client`, which is closed at the end of the block.

    Args:
        url: ``http://host:port/path``, or ``https://`` for TLS. For a server on a Unix socket of this machine, write
            the path of the socket, percent-encoded, instead of the host: ``http+unix://%2Frun%2Fmcp.sock/path``.
        headers: Headers to send with each request, credentials for example. Headers that HTTP or MCP need can't be
            replaced (`ValueError`). A ``User-Agent`` replaces the default one; an empty one sends none.
        ssl_context: TLS settings, instead of the system's defaults.
        http_proxy: The URL of an HTTP proxy, `None` for none, or `True` for the proxy that the environment names. No
            proxy is used for servers on this machine.
        auth: Authorizes the requests: `OAuth` signs the user in with the browser; `ClientCredentials`,
            `EnterpriseManaged` and `WorkloadIdentity` are for machines; `Bearer` sends a token that you have already.
        cookies: Whether to store the server's cookies in memory, up to 50 with 8 KiB in all, and send them back to the
            same scheme, host and port, as load balancers with sticky sessions require. They aren't sent to
            authorization servers.
        on_request: Called with each `HTTPRequest` to the server before it is sent, and may change its headers.
        on_response: Called with each `HTTPResponse` when its head has arrived.
        dial: ``dial(host, port)`` opens the TCP connections, for example through a tunnel, and returns a
            `trio.SocketStream`. The client adds TLS and HTTP. No proxy is used then, unless you pass
            ``http_proxy="..."``.
        options: See `ClientSettings`.

    Both hooks, ``on_request`` and ``on_response``, may be async, and may run concurrently; their time counts towards
    the timeout of the call. If one raises, the call fails with `HTTPError`. They aren't called for requests to
    authorization servers.

    Raises:
        ConnectionLost: No server is listening.
        HTTPError: The server refuses with an HTTP status.
        AuthorizationError: The client can't get a token.
        BadTarget: The URL is invalid.
        ValueError: A header is invalid; a token would be sent to another machine in plain text; or ``auth`` would use
            OAuth for a server on a Unix socket, which has no URL that an authorization server could name.
        trio.TooSlowError: Connecting takes longer than ``connect_timeout``.
        PeerError: The server refuses the connection with an error.
        ProtocolViolation: Client and server have no revision in common.

    Authorization. A token, from ``auth`` or in the header ``Authorization``, is only sent over ``https``, or to this
    machine. The client requests a token only when the server requires one. If the server refuses a request because of a
    missing token (401) or scope (403), it hasn't executed the request. The client then gets a new token, and repeats
    the request. While the user signs in, all timeouts of this client are paused, including ``connect_timeout``. The
    sign-in is cancelled if no call waits for it any longer. If the client can't get a token, the call raises
    `AuthorizationError`.

    Cancellation. Each call is a separate HTTP request, and uses a connection alone until its response is complete. Idle
    connections are reused. To cancel a call, the client closes the response of a modern server at once, even with
    ``send_cancels=False``. A legacy server gets a cancel notification. While the client answers the input requests of a
    modern call, there is no response to close, so a waiting handler continues until the server's own timeout.

    Failures. If the HTTP response to a call contains no reply, the call raises `HTTPError`, with the HTTP status and
    the text of the response. Other calls continue, and `Client.lost` stays `None`. A call that may have run is never
    repeated automatically. If a modern server refuses a call because of its headers, the client lists the tools again,
    and sends the call once more.

    Legacy servers. With ``era="auto"``, a modern request detects whether the server is modern or legacy. The result is
    cached for the URL in this process. Status 401, 403, 408, 429 and 5xx, network errors and timeouts don't decide
    this. If the server refuses ``initialize`` with status 400, 404 or 405, the client tries HTTP+SSE, the transport of
    2024-11-05: a GET opens the stream for all messages from the server. The stream's first event contains the URL, of
    the same origin, for messages to the server. When the stream ends, the connection is lost.

    A legacy server may send messages outside of calls on a separate stream, which is optional. If the stream breaks,
    the client reopens it after growing delays. If a response breaks and the server has sent event ids, the client
    requests the rest, after the delay that the server requests, but at least a tenth of a second. If reopened streams
    contain no messages, the delays grow.

    Lost sessions. A session is lost if the server responds with 404, or with 400 or 410 and a reason about the session.
    The calls in flight in the session fail (`HTTPError.session_lost`), and the client opens one new session. The client
    restores the log level and the subscriptions in the new session, and calls the callbacks, because everything may
    have changed. Waiting for a task continues in the new session. After three lost sessions without a reply, waiting
    calls raise the last error, and each later call tries once more. At the end of the block the client ends the
    session, and waits for the server up to half a second.

    Tool headers. Tools with invalid ``x-mcp-header`` annotations can't be called over HTTP, so they are left out of a
    modern server's lists, and logged.
    """
    opening = Opening.under_trio("open_http", options, url)
    # Pass every cancellation to the transport, which decides whether to notify the server.
    telling = attrs.evolve(opening, settings=attrs.evolve(opening.settings, send_cancels=True))
    hooks = hooks_of(url, on_request, on_response, dial)
    messages = open_http_messages(url, headers, ssl_context, http_proxy, auth, cookies, opening, hooks)
    async with messages as (transport, sessions):
        renewing, settling = partial(_renew, sessions), partial(_settle, transport, sessions, url)
        async with telling.open_over(transport, renewing, negotiate=settling) as client:
            yield client


def hooks_of(url: str, on_request: OnRequest | None, on_response: OnResponse | None, dial: Dial | None) -> Hooks | None:
    """Return the user's hooks for requests to ``url``, or `None` if the user has passed no hooks."""
    if on_request is on_response is dial is None:
        return None
    return Hooks(on_request, on_response, dial, partial(_check_hooked, url))


def _check_hooked(url: str, headers: Mapping[str, str]) -> None:
    """Raise `ValueError` if a hook has set a header that hooks must not set. ``url`` is the URL of the request."""
    given_headers(headers)
    if any(name.lower() == "user-agent" for name in headers):
        raise ValueError("on_request must not set the User-Agent: pass it in headers= of the client")
    check_authorization(None, headers, url)


def _way_for(
    url: str, http_proxy: str | Literal[True] | None, auth: ClientAuth | None
) -> tuple[str | Literal[True] | None, AddressRule | None]:
    """Return the proxy for requests to ``url``, and the rule for the server addresses that the client may use.

    A token in plain text must neither go through a proxy on another machine, nor leave the private network of a host
    that the user trusts.
    """
    origin = split_url(url)[0]
    if is_local_host(origin.host):
        return None, None
    if origin.secure or origin.host not in trusted_http_hosts(auth):
        return http_proxy, None
    from ...auth.fetching import is_private  # imported late: few clients send tokens over plain HTTP

    return None, is_private


@asynccontextmanager
async def open_http_messages(
    url: str,
    headers: Mapping[str, str] | None,
    ssl_context: ssl.SSLContext | None,
    http_proxy: str | Literal[True] | None,
    auth: ClientAuth | None,
    cookies: bool,
    opening: Opening,
    hooks: Hooks | None = None,
) -> AsyncGenerator[tuple[HttpTransport, Sessions]]:
    """Open a transport to the server at ``url``. Yields the transport and its sessions: see `open_http`."""
    settings, limits = opening.settings, opening.settings.limits
    check_server_url(url, "http://127.0.0.1:8000/mcp")
    check_authorization(auth, headers or {}, url)
    request_headers = RequestHeaders(headers or {})
    try:
        bounds = HttpClientBounds(ping_interval=limits.ping_interval, ping_timeout=limits.ping_timeout)
        unix, at = split_socket_url(url) if names_socket(url) else (None, url)
        by, allows = _way_for(at, http_proxy, auth)
        dial = None if hooks is None else hooks.dial
        if dial is not None and (unix is not None or isinstance(http_proxy, str)):
            raise BadTarget("dial= can't be used with an HTTP proxy or a Unix socket: dial= opens the connections")
        http = HttpClient(
            at,
            ssl_context=ssl_context,
            http_proxy=by if dial is None else None,
            bounds=bounds,
            user_agent=request_headers.user_agent,
            via=dial or unix,
            cookies=cookies,
            allows=allows,
        )
        http.hooks = hooks
    except ValueError as error:
        raise BadTarget(str(error)) from None
    async with (
        http,
        open_credentials(auth, url, opening.timeouts) as credentials,
        open_service_nursery("the connection was closed") as nursery,
    ):
        endpoint = Endpoint(http, request_headers, Inbox(limits.high_water), limits, credentials)
        transport = HttpTransport(endpoint, max_requests=limits.max_in_flight, send_cancels=settings.send_cancels)
        transport.network = "tcp" if unix is None else "unix"
        await nursery.start(transport.run)
        yield transport, endpoint.sessions


async def _settle(transport: HttpTransport, sessions: Sessions, url: str, client: Client) -> None:
    client._tag = client._tag or secrets.token_urlsafe(_TAG_BYTES)
    try:
        await settle_era(client, url)
    except HTTPError as refused:
        if client.settings.era == "modern" or not may_use_http_and_sse(refused):
            raise
        with client._timeouts.move_on_after(_LONGEST_WAIT) as scope:
            try:
                await transport.use_http_and_sse()
            except HTTPError as error:
                logger.debug("the server doesn't speak HTTP+SSE, the transport of 2024-11-05: %s", error)
                raise (error if error.status in (401, 403) else refused) from None
        if scope.cancelled_caught:
            raise
        await initialize(client)
    sessions.modern = None if client.revision.handshake else client.revision.name


async def _renew(sessions: Sessions, client: Client) -> None:
    """Open a new session each time the server has lost the current one.

    This happens at once, but after growing pauses if sessions are lost as soon as they are opened, for example by a
    second replica that has none of them. If no session can be opened, try again when a message needs one, and after
    growing pauses if the client was listening to the server. Report the changes that may have been missed to the
    callbacks.
    """
    timeout: Final = client.settings.connect_timeout
    backoff = Backoff()
    opened, failures = -math.inf, 0
    while True:
        pause = growing_delay(max(failures, 1)) if sessions.has_failed else math.inf
        with trio.move_on_after(pause if sessions.has_stream else math.inf):
            await sessions.wait_for_trouble()
            if not sessions.is_wanted:
                notify_changes(client)
                continue
        if trio.current_time() - opened < _LIVED:
            await backoff.pause(None)
        else:
            backoff.reset()
        logger.info("the server has lost the session; a new one is being opened")
        try:
            with client._timeouts.move_on_after(timeout):
                await renew_session(client)
                opened, failures = trio.current_time(), 0
                continue
            raise HTTPError(None, f"the server did not open a session within {timeout:g} s")
        except MCPError as error:
            logger.log(logging.DEBUG if failures else logging.WARNING, "no new session: %s", error)
            sessions.fail(error)
            failures += 1


_LEGACY: Final = LegacyServers()
_FORBIDDEN: Final = frozenset((401, 403))


async def settle_era(client: Client, url: str) -> None:
    """Negotiate the protocol revision with the server at ``url``, according to the client's settings.

    If the server was a legacy one last time, ``initialize`` is sent first, and modern revisions are tried if it fails.

    Raises `ConnectionLost` if the server can't be reached, `HTTPError` for refusals that say nothing about the era,
    `PeerError` and `ProtocolViolation`.
    """
    if client._adopt_prior():
        return
    try:
        match client.settings.era:
            case "legacy":
                await initialize(client)
            case "modern":
                await negotiate_modern(client)
            case "auto":
                await _find_out(client, url)
    except HTTPError as error:
        if error.status is None:
            raise ConnectionLost(error.reason) from None
        raise


async def _find_out(client: Client, url: str) -> None:
    if _LEGACY.is_known(url):
        try:
            await initialize(client)
            return
        except (PeerError, HTTPError, ProtocolViolation) as error:
            if _says_nothing(error):
                raise
    await _probe(client)
    _LEGACY.record(url, is_legacy=client.revision.handshake)


async def _probe(client: Client) -> None:
    """Negotiate a modern protocol revision, or a legacy revision if the server has no modern one.

    If the server's response shows that it isn't modern, try legacy ones. Such responses are the HTTP statuses with
    which legacy servers refuse unknown requests, and errors with any code but `UNSUPPORTED_PROTOCOL_VERSION`, which
    legacy servers use for other purposes.
    """
    try:
        await discover(client)
        return
    except (PeerError, HTTPError, UnreadableAnswer) as error:
        if _says_nothing(error):
            raise
        offered = legacy_offer(error)
    await initialize(client, *offered)


def _says_nothing(error: MCPError) -> bool:
    """Return whether ``error`` may come from the network, a proxy or access control, not from the MCP server.

    Such an error doesn't show whether the server is modern or legacy.
    """
    if not isinstance(error, HTTPError | StatusPeerError):
        return False
    status = error.status
    return status is None or status in _FORBIDDEN or status in REDIRECTS or is_passing(status)
