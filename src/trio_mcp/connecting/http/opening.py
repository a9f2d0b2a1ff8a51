"""open_http: connect to a server over Streamable HTTP.

`settle_era` finds out whether a server at a URL is a modern or a legacy one (2026-07-28 Streamable HTTP, Backward
Compatibility). A task beside the client opens a new session when the server has forgotten the last one.
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
"""Seconds in which a server that speaks HTTP+SSE must name the URL for our messages."""
_LIVED: Final = 10.0
"""Seconds that a session must have lasted for its end to be followed by another at once."""


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
    """Connect to the server at ``http://host:port/path``, or ``https://`` over TLS; closed with the block. For a server
    on a Unix socket of this machine, ``http+unix://%2Frun%2Fmcp.sock/path`` has the path of the socket,
    percent-encoded, in the place of the host.

    ``headers`` are sent with each request: credentials, for example. Headers of HTTP or MCP itself cannot be replaced
    (`ValueError`), but the ``User-Agent``, which names this package and its version, can; with an empty one none is
    sent. ``ssl_context`` replaces the system's usual one. ``http_proxy`` is the URL of an HTTP proxy, `None`
    for none, `True` for the one that the environment names; servers on this machine are called without any. ``options``
    are those of `ClientSettings`.

    The client sends the cookies that the server sets back to the same scheme, host and port, as balancers with sticky
    sessions require. It holds them in memory, 50 with 8 KiB in all, and sends them neither elsewhere nor to an
    authorization server. ``cookies=False`` ignores them.

    ``on_request`` is called with each `HTTPRequest` to the server before it is sent, and may change its headers.
    ``on_response`` is called with each `HTTPResponse` when its head has come. Both may be async, and may run
    concurrently; their time counts in the timeout of the call. If one raises, the call fails with `HTTPError`. They see
    no requests to authorization servers.
    ``dial(host, port)`` opens the TCP connections, for example through a tunnel, and returns a `trio.SocketStream`.
    TLS and HTTP stay the client's. Without ``http_proxy="..."``, no proxy is used then.

    A token, by ``auth`` or in the header ``Authorization``, goes by ``https``, or to this machine (`ValueError`). Over
    a Unix socket nobody signs in, since no authorization server could name the server there (`ValueError`).
    ``auth`` authorizes the requests: `OAuth` signs the user in with the browser, `ClientCredentials`,
    `EnterpriseManaged` and `WorkloadIdentity` name a machine, `Bearer` has a token at hand. No token is asked for
    before the server wants one. A request that the server refuses for want of a token (401, and 403 for want of a
    scope) was not carried out, and is sent again with the new token.
    While the user is asked, all time limits of this client stand still, ``connect_timeout`` included; when nobody waits
    any more, the user is not asked any more. Where no token can be had, the call fails with `AuthorizationError`.

    Each call is an exchange of its own, and each exchange in flight has a connection of its own; idle connections are
    used again. Leaving a call closes the answer of a modern server at once, which is the cancel, also with
    ``send_cancels=False``; a legacy server is sent a cancel. Between two rounds of a modern call there is no answer to
    close: a handler that waits for its client then waits until its server's own limit.

    A call fails with `HTTPError`, which has the HTTP status and the words of the answer, when its exchange brings no
    reply. Other calls go on, and `Client.lost` stays `None`. No call that may have run is sent again by itself. When a
    modern server refuses a call because of its headers, the tools are listed anew, and the call is sent once more.

    If the server refuses ``initialize`` with status 400, 404 or 405, the client tries HTTP+SSE, the transport of
    2024-11-05: a GET opens the stream of all messages from the server, and messages to the server go to the URL of the
    same origin that the stream names. When that stream ends, the connection is lost.

    The era of the server is found out by a modern request (``era="auto"``), and remembered for the URL in this process.
    Status 401, 403, 408, 429 or 5xx, a network error and silence say nothing of the era. From a legacy server the
    client hears outside of calls, too, on a stream that is opened again, after growing delays, when broken; a server
    without such a stream is no failure. The rest of an answer that broke is asked for where the server has given event
    ids, after the time that the server has asked for, a tenth of a second at least; a server whose streams bring no
    message is asked more and more seldom. When the server has forgotten the session (404, or 400 and 410 about the
    session), the calls in flight in the session fail (`HTTPError.session_lost`), one new session is opened, the server
    is told the log level and the subscriptions again, and the callbacks that everything may have changed. Who waits for
    a task goes on waiting in the new session. After three lost sessions without an answer, waiting calls fail with the
    last refusal; each later call tries once more. The session is ended with the block, for which the server has
    half a second.

    Tools whose ``x-mcp-header`` annotations are invalid are left out of a modern server's lists, since they cannot be
    called over HTTP; the log says so.

    Raises as `open_client`, and also: `ConnectionLost` when nobody listens, `HTTPError` for a refusal by HTTP status,
    `AuthorizationError`, and `BadTarget` for an invalid URL.
    """
    opening = Opening.under_trio("open_http", options, url)
    # The transport itself is told of every cancel.
    telling = attrs.evolve(opening, settings=attrs.evolve(opening.settings, send_cancels=True))
    hooks = hooks_of(url, on_request, on_response, dial)
    messages = open_http_messages(url, headers, ssl_context, http_proxy, auth, cookies, opening, hooks)
    async with messages as (transport, sessions):
        renewing, settling = partial(_renew, sessions), partial(_settle, transport, sessions, url)
        async with telling.open_over(transport, renewing, negotiate=settling) as client:
            yield client


def hooks_of(url: str, on_request: OnRequest | None, on_response: OnResponse | None, dial: Dial | None) -> Hooks | None:
    """Return the hooks for requests to ``url``; `None` if there are none."""
    if on_request is on_response is dial is None:
        return None
    return Hooks(on_request, on_response, dial, partial(_check_hooked, url))


def _check_hooked(url: str, headers: Mapping[str, str]) -> None:
    """Raise `ValueError` for headers that no hook may set in a request to ``url``."""
    given_headers(headers)
    if any(name.lower() == "user-agent" for name in headers):
        raise ValueError("set the User-Agent by headers= of the client, not in on_request")
    check_authorization(None, headers, url)


def _way_for(
    url: str, http_proxy: str | Literal[True] | None, auth: ClientAuth | None
) -> tuple[str | Literal[True] | None, AddressRule | None]:
    """Return the proxy for ``url``, and the rule for its addresses: a token in plain text must neither leave this
    machine by a proxy, nor the private network whose host the user trusts."""
    origin = split_url(url)[0]
    if is_local_host(origin.host):
        return None, None
    if origin.secure or origin.host not in trusted_http_hosts(auth):
        return http_proxy, None
    from ...auth.fetching import is_private  # few clients send tokens so

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
    """Open the bare messages to and from the server at ``url``, with the sessions that they belong to: see
    `open_http`."""
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
            raise BadTarget("dial= opens connections in place of an HTTP proxy or a Unix socket: give one of them")
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
    """Open a new session whenever the server has forgotten the last one: at once, but after growing pauses where
    sessions are forgotten as soon as opened, by a second replica for example that knows none. Where
    no session can be opened, try again when a message wants one, and after growing pauses where the client was hearing
    the server. Tell the callbacks of changes that may have been missed in a session."""
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
        logger.info("the server has forgotten the session, and is asked for a new one")
        try:
            with client._timeouts.move_on_after(timeout) as scope:
                await renew_session(client)
                opened, failures = trio.current_time(), 0
        except MCPError as error:
            _failed(sessions, error, failures)
            failures += 1
            continue
        if scope.cancelled_caught:
            _failed(sessions, HTTPError(None, f"the server has opened none within {timeout:g} s"), failures)
            failures += 1


def _failed(sessions: Sessions, error: MCPError, failures: int) -> None:
    logger.log(logging.DEBUG if failures else logging.WARNING, "no new session: %s", error)
    sessions.fail(error)


_LEGACY: Final = LegacyServers()
_FORBIDDEN: Final = frozenset((401, 403))


async def settle_era(client: Client, url: str) -> None:
    """Settle the revision with the server at ``url``, as the settings say. A server that was a legacy one the last time
    is greeted as such, and probed when that fails.

    Raises `ConnectionLost` when the server cannot be reached, `HTTPError` for refusals that say nothing of the era,
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
        except (PeerError, HTTPError, ProtocolViolation) as error:
            if _says_nothing(error):
                raise
        else:
            return
    await _probe(client)
    _LEGACY.record(url, is_legacy=client.revision.handshake)


async def _probe(client: Client) -> None:
    """Ask for modern revisions first. What a modern server does not say means a legacy one: errors of any code but
    `UNSUPPORTED_PROTOCOL_VERSION`, which legacy servers use for other things, and statuses of requests that make no
    sense to such servers."""
    try:
        await discover(client)
    except (PeerError, HTTPError, UnreadableAnswer) as error:
        if _says_nothing(error):
            raise
        offered = legacy_offer(error)
    else:
        return
    await initialize(client, *offered)


def _says_nothing(error: MCPError) -> bool:
    """Return whether ``error`` comes from the network, a proxy or an access rule, and says nothing of the era."""
    if not isinstance(error, HTTPError | StatusPeerError):
        return False
    status = error.status
    return status is None or status in _FORBIDDEN or status in REDIRECTS or is_passing(status)
