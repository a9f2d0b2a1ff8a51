"""open_tcp and open_unix: a client of a server that listens, in the framing of stdio."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Unpack

import trio

from ..client.client import Client
from ..client.opening import open_client
from ..client.options import ClientOptions, ClientSettings
from ..runtime.channel import ConnectionLost
from ..transports.lines import LineChannel

__all__ = ["open_tcp", "open_unix"]


@asynccontextmanager
async def open_tcp(host: str, port: int, **options: Unpack[ClientOptions]) -> AsyncGenerator[Client]:
    """Connect to the server that listens on a TCP port, one message per line; closed with the block.

    ``options`` are those of `ClientSettings`. Raises as `open_client`; `ConnectionLost` too when nobody listens.
    """
    begun = trio.current_time()
    with _connecting(f"{host} port {port}", options):
        stream = await trio.open_tcp_stream(host, port)
    async with _open_lines(stream, begun, options) as client:
        yield client


@asynccontextmanager
async def open_unix(path: str | os.PathLike[str], **options: Unpack[ClientOptions]) -> AsyncGenerator[Client]:
    """Connect to the server that listens on a Unix socket, one message per line. As `open_tcp`."""
    name = os.fspath(path)
    begun = trio.current_time()
    with _connecting(name, options):
        stream = await trio.open_unix_socket(name)
    async with _open_lines(stream, begun, options) as client:
        yield client


@contextmanager
def _connecting(where: str, options: ClientOptions) -> Generator[None]:
    with trio.fail_after(ClientSettings(**options).connect_timeout):
        try:
            yield
        except OSError as error:
            raise ConnectionLost(f"no connection to {where}: {error}") from error


@asynccontextmanager
async def _open_lines(stream: trio.SocketStream, begun: float, options: ClientOptions) -> AsyncGenerator[Client]:
    async with stream:
        channel = LineChannel(stream, ClientSettings(**options).limits.max_message_bytes)
        async with open_client(channel, begun=begun, **options) as client:
            yield client
