"""serve_websocket: a server for many clients at once, browsers among them."""

from __future__ import annotations

import secrets
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Unpack

import trio

from ..auth.resource_server.refusals import Refusal
from ..classes import frozen
from ..concurrency.fair_share import HeldBytes
from ..concurrency.misuse import check_keywords, check_served_under_trio
from ..concurrency.nurseries import ServiceNursery
from ..runtime.limits import Limits
from ..runtime.peer import Headers, Peer
from ..server.servable import Servable
from ..transports.host_checks import HostChecks, host_checks_for
from ..transports.websocket.handshake import Rejection, UpgradeRequest, check_upgrade, read_upgrade, refuse
from ..transports.websocket.transport import WebSocketTransport
from .accepting import SocketListeners, WebSocketOptions, open_listeners, serving_options
from .callers import scope_check, token_expiry
from .connections import AcceptedConnection, serve_connections

if TYPE_CHECKING:
    from ..auth.resource_server.protected import Gate
    from ..runtime.peer import Auth

_POLICY: Final = 1008
"""The close code of a client that may not be here any longer (RFC 6455 section 7.4.1)."""
_TRY_AGAIN_LATER: Final = 1013
"""The close code of a server that is too busy (registered beside those of RFC 6455)."""
_TOO_MANY: Final = "too many connections; try again later"


async def serve_websocket(
    server: Servable,
    host: str | None = "127.0.0.1",
    port: int = 8765,
    *,
    task_status: trio.TaskStatus[SocketListeners] = trio.TASK_STATUS_IGNORED,
    **options: Unpack[WebSocketOptions],
) -> None:
    """Serve ``server`` over WebSocket, at ``ws://host:port/mcp``, to any number of clients, until it is ended.

    Started in a nursery, the function reports its listeners, for the port that ``port=0`` was given::

        listeners = await nursery.start(serve_websocket, server, "127.0.0.1", 0)

    ``path`` is the path of the endpoint. ``listeners`` of the application's own replace ``host`` and ``port``. With
    an ``ssl_context`` the URL is ``wss://``. `WebSocketOptions` documents ``options``.

    With ``auth``, the request for a WebSocket needs a token, see `Protected`; the connection is closed (1008) when the
    token ends. Without, a warning is logged where other machines reach the server. Clients find the metadata of the
    server where `serve_http` with ``websocket=True`` serves the same.

    ``allowed_origins`` are the web pages that may connect, ``allowed_hosts`` the names under which the server is
    reached; see `HostChecks` for their form. On loopback addresses, the default is those of this machine. On other
    addresses both must be given, else `ValueError` is raised. Clients without an Origin header, all but browsers, are
    not checked for one. Behind a reverse proxy, ``trusted_proxies`` say whose word is taken for the address of a
    client: see `serve_http`.

    At SIGTERM and SIGINT no further connection is accepted and no new request taken; accepted requests go on for up to
    `Limits.drain_timeout` seconds, each connection is closed (1001) when its own requests are done, and this returns. A
    second signal cuts that short: if this has not returned within a second, SIGALRM ends the process. Signals are
    handled in the main thread only, and not with ``handle_signals=False``. Cancelled, the function cancels all requests
    at once and closes the same way.

    Meanwhile Python's garbage collector runs less often, unless the application has set a threshold of its own.
    """
    check_served_under_trio("serve_websocket")
    check_keywords(serve_websocket, options)
    listeners, auth = options.get("listeners"), options.get("auth")
    allowed = options.get("allowed_origins"), options.get("allowed_hosts")
    checks = host_checks_for(None if listeners is not None else host, *allowed)

    async def listen() -> SocketListeners:
        tls = options.get("ssl_context")
        return await open_listeners(listeners, host, port, tls, asks_for_tokens=auth is not None)

    gate = None if auth is None else auth._gate()
    await serve_connections(
        server,
        listen,
        WebSocketAcceptor(options.get("path", "/mcp"), checks, gate),
        task_status=task_status,
        gate=gate,
        trusted_proxies=options.get("trusted_proxies"),
        **serving_options(options),
    )


@frozen
class WebSocketAcceptor:
    """Admits clients that ask for a WebSocket at ``path`` and that ``gate``, if any, knows. ``received``: the bytes of
    the stream that were read already."""

    path: str
    checks: HostChecks
    gate: Gate | None = None
    received: bytes = b""

    async def accept(
        self, stream: trio.abc.Stream, limits: Limits, nursery: ServiceNursery, unread: HeldBytes
    ) -> AcceptedConnection | None:
        """Answer the upgrade: see `ConnectionAcceptor.accept`."""
        try:
            request = await read_upgrade(stream, self.received)
            check_upgrade(request, self.path, self.checks)
            auth = None if self.gate is None else await _admitted(self.gate, request)
        except Rejection as refused:
            await refuse(stream, refused)
            return None
        transport = WebSocketTransport(
            stream,
            limits.max_message_bytes,
            ping_interval=limits.ping_interval,
            ping_timeout=limits.ping_timeout,
            close_code=1001,
            received=request.received,
            unread=unread,
        )
        await nursery.start(transport.serve)
        session_id, headers = secrets.token_urlsafe(16), Headers(request.headers)
        turn_away = partial(transport.close_with, _TRY_AGAIN_LATER, _TOO_MANY)
        if self.gate is None or auth is None:
            return AcceptedConnection(transport, Peer(session_id, headers), refuse=turn_away)
        check = scope_check(self.gate, auth)
        return AcceptedConnection(
            transport,
            Peer(session_id, headers, auth.principal.id, auth, check_scopes=check),
            check,
            token_expiry(auth),
            partial(transport.close_with, _POLICY, "the token has expired"),
            turn_away,
        )

    async def reject(self, stream: trio.abc.Stream) -> None:
        """Answer 503: see `ConnectionAcceptor.reject`."""
        await refuse(stream, Rejection(HTTPStatus.SERVICE_UNAVAILABLE, _TOO_MANY, Retry_After="5"))


async def _admitted(gate: Gate, request: UpgradeRequest) -> Auth:
    """Return the caller. Raises `Rejection` for one that ``gate`` does not admit."""
    found = gate.known(request) or await gate.ask(request)
    if not isinstance(found, Refusal):
        return found
    headers: dict[str, str] = {}
    for name, value in found.headers:  # RFC 9110 section 11.6.1: challenges may be joined
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    raise Rejection(found.status, found.reason, **headers)
