"""serve_tcp and serve_unix: a server for many clients at once, in the framing of stdio."""

from __future__ import annotations

import os
from typing import Unpack

import trio

from ..classes import frozen
from ..concurrency.fair_share import HeldBytes
from ..concurrency.misuse import check_served_under_trio
from ..concurrency.nurseries import ServiceNursery
from ..runtime.limits import Limits
from ..runtime.peer import NOBODY_KNOWN
from ..server.served import Servable
from ..transports.sockets import SocketLineTransport, unix_listener
from .accepting import LINES_ADVICE, ServingOptions, SocketListeners, warn_if_exposed
from .connections import Arrival, serve_connections


async def serve_tcp(
    server: Servable,
    host: str | None = "127.0.0.1",
    port: int = 8766,
    *,
    task_status: trio.TaskStatus[SocketListeners] = trio.TASK_STATUS_IGNORED,
    **options: Unpack[ServingOptions],
) -> None:
    """Serve ``server`` over plain TCP, one message per line as over stdio, until cancelled or shut down.

    Nothing is encrypted and clients are not authenticated: anybody who reaches the port is a client. Where
    other machines do, a warning is logged. Reports its
    listeners, ends and is cancelled as `serve_websocket`; `ServingOptions` documents ``options``.
    """

    check_served_under_trio("serve_tcp")

    async def listen() -> SocketListeners:
        opened = await trio.open_tcp_listeners(port, host=host)
        warn_if_exposed(opened, LINES_ADVICE)
        return opened

    await serve_connections(server, listen, _LineGreeting(), task_status=task_status, **options)


async def serve_unix(
    server: Servable,
    path: str | os.PathLike[str],
    *,
    task_status: trio.TaskStatus[SocketListeners] = trio.TASK_STATUS_IGNORED,
    **options: Unpack[ServingOptions],
) -> None:
    """Serve ``server`` on the Unix socket ``path``, one message per line as over stdio, until cancelled or shut down.

    Only this user may connect (mode 0600). The socket is removed at the end. A socket of a dead server is replaced.
    `OSError` is raised if a live server listens at ``path``, or if ``path`` is not a socket. During the check, the
    function holds a lock on a file beside the socket (``path`` with ``.lock`` appended), and removes the file. Reports
    its listeners, ends and is cancelled as `serve_websocket`; `ServingOptions` documents ``options``.
    """
    check_served_under_trio("serve_unix")
    with unix_listener(path) as listener:

        async def listen() -> SocketListeners:
            return [listener]

        await serve_connections(server, listen, _LineGreeting(), task_status=task_status, **options)


@frozen
class _LineGreeting:
    async def greet(
        self, stream: trio.abc.Stream, limits: Limits, nursery: ServiceNursery, unread: HeldBytes
    ) -> Arrival:
        transport = SocketLineTransport(stream, limits.max_message_bytes, unread)
        await transport.until_first()  # a client that sends nothing, or half a message, takes a connection from others
        return Arrival(transport, NOBODY_KNOWN)

    async def turn_away(self, stream: trio.abc.Stream) -> None:
        """Close the stream: no message would be understood by every client."""
        await trio.aclose_forcefully(stream)
