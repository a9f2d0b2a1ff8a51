"""serve_http: a server for many clients at once, over Streamable HTTP."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Unpack

import trio

from ...concurrency.misuse import check_served_under_trio
from ...server.served import Running, Servable
from ...transports.host_checks import Allowed, host_checks_for
from ..accepting import SocketListeners, serve_streams
from ..callers import TrustedProxies
from ..exposure import open_listeners
from ..options import ServingOptions
from .entrance import EndpointSettings
from .front import HttpFront

if TYPE_CHECKING:
    from ...auth.resource_server.protected import Protected


async def serve_http(
    server: Servable,
    host: str | None = "127.0.0.1",
    port: int = 8000,
    *,
    path: str = "/mcp",
    auth: Protected | None = None,
    origins: Allowed = None,
    hosts: Allowed = None,
    proxies: TrustedProxies | None = None,
    retry_interval: float = 1.0,
    ssl_context: ssl.SSLContext | None = None,
    listeners: SocketListeners | None = None,
    websocket: bool = False,
    access_log: bool = False,
    task_status: trio.TaskStatus[SocketListeners] = trio.TASK_STATUS_IGNORED,
    **options: Unpack[ServingOptions],
) -> None:
    """Serve ``server`` over Streamable HTTP, at ``http://host:port/mcp``, to any number of clients of every revision,
    until it is ended.

    Clients of the modern era need nothing but the endpoint: when one goes away, its request is cancelled, with the
    cause ``disconnect``. Clients of legacy revisions get a session each, which they may leave and come back to; a
    request there is cancelled by its notification, and goes on when its connection breaks. With ``stateless=True``
    there are no sessions, no questions to legacy clients, and any process can answer any request.

    With ``auth``, every request needs a token, see `Protected`, and ``ctx.auth`` is the caller. Sessions, waiting
    handlers and the states of modern clients belong to one principal each. Streams of changes end with the token of the
    client, who comes back with a fresh one. Without, a warning is logged where other machines reach the server.

    What is bounded for the whole server is shared by caller, see `Limits`: without authorization, by the address of the
    client. Behind a reverse proxy, ``proxies`` say whose word is taken for that address; otherwise all that come
    through it are one caller.

    ``origins`` are the web pages that may ask, ``hosts`` the names under which the server is reached, as for
    `serve_websocket`: needed where other machines can reach ``host``, else this raises `ValueError`. ``listeners`` of
    the application's own replace ``host`` and ``port``. With an ``ssl_context`` the URL is ``https://``. With
    ``websocket``, clients may ask for a WebSocket at the same URL, too. `ServingOptions` documents ``options``;
    `Limits` has the bounds and times.

    Clients of revision 2025-11-25 are told to come back ``retry_interval`` seconds after a response that they can
    resume has broken; `RequestContext.close_stream` names a time of its own.

    With ``access_log``, each response is noted in the log ``trio_mcp.access``, at level info, with the address, the
    principal, method, path, status, bytes of the body and seconds, in words and as attributes of the record.

    Reports its listeners, ends at signals and is cancelled as `serve_websocket`; streams do not hold up the end: each
    is ended properly.
    """
    check_served_under_trio("serve_http")
    checks = host_checks_for(None if listeners is not None else host, origins, hosts)
    settings = EndpointSettings(path, checks, None if auth is None else auth.gate(), proxies, retry_interval)

    async def listen() -> SocketListeners:
        return await open_listeners(listeners, host, port, ssl_context, asks_for_tokens=auth is not None)

    def front(running: Running, nursery: trio.Nursery) -> HttpFront:
        return HttpFront(running, nursery, settings, websocket=websocket, access_log=access_log)

    await serve_streams(server, listen, front, task_status=task_status, **options)
