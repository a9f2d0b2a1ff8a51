"""open_messages opens the bare messages to and from a server, without a client: for replaying a recording."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import cast
from urllib.parse import unquote, urlsplit

import trio

from ..client.options import ClientSettings
from ..client.timeouts import CallTimeouts
from ..concurrency.contexts import asynccontextmanager
from ..runtime.transport import ConnectionLost, Transport
from ..transports.lines import LineTransport
from ..transports.memory import memory_channel_pair
from ..transports.sockets import connect_unix, socket_path
from .http.opening import open_http_messages
from .memory import open_server
from .stdio import Command, open_process
from .targets import Address, Target
from .websocket import open_websocket_messages


@asynccontextmanager
async def open_messages(target: Target, modern: str | None) -> AsyncGenerator[Transport]:
    """Open the messages to and from the server at ``target``; closed with the block. ``modern`` is the revision of
    messages without a session, which HTTP has to know; `None` for those of a legacy client.

    Raises as the `open_*` that opens a client there.
    """
    if isinstance(target, Command):
        async with open_process(target) as transport:
            yield transport
    elif isinstance(target, Address):
        async with _open_address(target, modern) as transport:
            yield transport
    else:
        ours, theirs = memory_channel_pair()
        async with open_server(target.server, theirs, stateless=target.stateless):
            yield ours


@asynccontextmanager
async def _open_address(address: Address, modern: str | None) -> AsyncGenerator[Transport]:
    settings, begun, parts = ClientSettings(), trio.current_time(), urlsplit(address.url)
    headers, ssl_context, auth = address.headers, address.ssl_context, address.auth
    timeouts = CallTimeouts(settings.call_timeout)
    if parts.scheme in ("tcp", "unix"):
        async with await _connect(address.url) as stream:
            yield LineTransport(stream, settings.limits.max_message_bytes)
    elif parts.scheme in ("ws", "wss"):
        async with open_websocket_messages(
            address.url, ssl_context, headers, auth, settings, begun, timeouts
        ) as transport:
            yield transport
    else:
        async with open_http_messages(
            address.url, headers, ssl_context, True, auth, settings, timeouts, address.cookies
        ) as opened:
            transport, sessions = opened
            sessions.modern = modern
            yield transport


async def _connect(url: str) -> trio.SocketStream:
    parts = urlsplit(url)
    try:
        if parts.scheme == "unix":
            return await connect_unix(socket_path(unquote(parts.path)))
        return await trio.open_tcp_stream(cast("str", parts.hostname), cast("int", parts.port))
    except OSError as error:
        raise ConnectionLost(f"no connection to {url}: {error}") from error
