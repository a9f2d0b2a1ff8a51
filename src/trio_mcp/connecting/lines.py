"""open_tcp and open_unix: connect to a server over TCP or a Unix socket, with one message per line as over stdio."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TypeAlias, Unpack

import trio

from ..client.client import Client
from ..client.opening import Opening
from ..client.options import ClientOptions
from ..concurrency.contexts import asynccontextmanager
from ..concurrency.misuse import async_with_only
from ..runtime.transport import ConnectionLost
from ..transports.lines import LineTransport
from ..transports.sockets import connect_unix, keep_alive, socket_path
from .bad_target import BadTarget, check_address

Connect: TypeAlias = Callable[[], Awaitable[trio.SocketStream]]
"""A function that connects to a listening server and returns the stream."""


@async_with_only("client")
def open_tcp(host: str, port: int, **options: Unpack[ClientOptions]) -> AbstractAsyncContextManager[Client]:
    """Connect to a server on a TCP port, with one message per line. Yields a `Client`, which is closed at the end of
    the block.

    ``options``: see `ClientSettings`. Raises the errors of `open_client`, and also:

    Raises:
        ConnectionLost: No server is listening.
        BadTarget: The host name or port is invalid.
    """
    check_address(host, port)
    return _open_lines("open_tcp", f"{host} port {port}", partial(trio.open_tcp_stream, host, port), options)


@async_with_only("client")
def open_unix(path: str | os.PathLike[str], **options: Unpack[ClientOptions]) -> AbstractAsyncContextManager[Client]:
    """Connect to a server on a Unix socket, with one message per line. Yields a `Client`, which is closed at the end of
    the block.

    For ``options``, see `ClientSettings`.
    """
    try:
        name = socket_path(path)
    except (OSError, ValueError) as error:
        raise BadTarget(str(error)) from None
    return _open_lines("open_unix", name, partial(connect_unix, name), options)


@asynccontextmanager
async def _open_lines(name: str, where: str, connect: Connect, options: ClientOptions) -> AsyncGenerator[Client]:
    opening = Opening.under_trio(name, options, where)
    async with open_lines(where, connect, opening) as transport, opening.open_over(transport) as client:
        yield client


@asynccontextmanager
async def open_lines(where: str, connect: Connect, opening: Opening) -> AsyncGenerator[LineTransport]:
    """Open a transport to the server at ``where`` with the function ``connect``, which opens the stream.

    Raises `ConnectionLost` if no server is listening.
    """
    with opening.connecting():
        try:
            stream = await connect()
        except OSError as error:
            raise ConnectionLost(f"no connection to {where}: {error}") from error
    limits = opening.settings.limits
    keep_alive(stream, limits.ping_interval, limits.ping_timeout)
    async with stream:
        yield LineTransport(stream, limits.max_message_bytes)
