"""serve_websocket: serves a server to many clients, including browsers, over WebSocket."""

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
"""The close code for a client that is no longer authorized (RFC 6455 section 7.4.1)."""
_TRY_AGAIN_LATER: Final = 1013
"""The close code of a server that is too busy (registered with IANA, not in RFC 6455)."""
_TOO_MANY: Final = "too many connections; try again later"


async def serve_websocket(
    server: Servable,
    host: str | None = "127.0.0.1",
    port: int = 8765,
    *,
    task_status: trio.TaskStatus[SocketListeners] = trio.TASK_STATUS_IGNORED,
    **options: Unpack[WebSocketOptions],
) -> None:
    """Serve ``server`` over WebSocket at ``ws://host:port/mcp``, until cancelled or shut down.

    Any number of clients can connect.

    If you start the function in a nursery, it reports its listeners. With ``port=0`` they tell you the port::

        listeners = await nursery.start(serve_websocket, server, "127.0.0.1", 0)

    Shutdown: on SIGTERM or SIGINT, the server accepts no further connections or requests. Accepted requests get up to
    `Limits.drain_timeout` seconds. Each connection is closed (code 1001) when its own requests are done, and then the
    function returns. After a second signal, SIGALRM ends the process if the function hasn't returned within a second.
    Signals are handled in the main thread only, and not with ``handle_signals=False``.

    Cancellation: all requests are cancelled at once, and then the connections are closed (code 1001).

    While the function runs, Python's garbage collector runs less often, unless the application has set its own
    threshold.

    Args:
      host: address to listen on. `None` is every address of the machine.
      port: port to listen on. 0 is any free port.
      path: path of the endpoint.
      listeners: your own open listeners, in place of ``host`` and ``port``.
      ssl_context: TLS context; the URL is then ``wss://``.
      auth: requires a token in the upgrade request, see `Protected`. The connection is closed (code 1008) when the
          token expires. Without ``auth``, a warning is logged if other machines can reach the server. Clients find
          the protected resource metadata only if `serve_http` with ``websocket=True`` serves the same URL.
      allowed_origins: origins of the web pages that may connect; see `HostChecks` for the form. On loopback addresses,
          the default is pages of this machine. On other addresses it must be given. Clients without an Origin header,
          which means all but browsers, pass this check.
      allowed_hosts: host names under which the server is reached, with the same default and rule.
      trusted_proxies: reverse proxies that are trusted to report the address of a client: see `serve_http`.

    `WebSocketOptions` documents all ``options``.

    Raises:
      ValueError: ``host`` isn't a loopback address, and ``allowed_origins`` or ``allowed_hosts`` is missing.
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
    """Accepts clients that request a WebSocket at ``path``. If ``gate`` is given, it authenticates the clients."""

    path: str
    checks: HostChecks
    gate: Gate | None = None

    async def accept(
        self, stream: trio.abc.Stream, limits: Limits, nursery: ServiceNursery, unread: HeldBytes, received: bytes
    ) -> AcceptedConnection | None:
        """Respond to a client's upgrade request, and return the connection. Return `None` if the client was refused.

        See `ConnectionAcceptor.accept`.
        """
        try:
            request = await read_upgrade(stream, received)
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
        """Respond with status 503, because the server has too many connections: see `ConnectionAcceptor.reject`."""
        await refuse(stream, Rejection(HTTPStatus.SERVICE_UNAVAILABLE, _TOO_MANY, Retry_After="5"))


async def _admitted(gate: Gate, request: UpgradeRequest) -> Auth:
    """Return the authenticated caller of an upgrade request. Raises `Rejection` if ``gate`` refuses it."""
    found = gate.known(request) or await gate.ask(request)
    if not isinstance(found, Refusal):
        return found
    headers: dict[str, str] = {}
    for name, value in found.headers:  # RFC 9110 section 11.6.1: a single header may contain several challenges
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    raise Rejection(found.status, found.reason, **headers)
