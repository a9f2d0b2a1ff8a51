"""Receiving bytes from a client, with a short cut for sockets."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import trio

_READ: Final = 64 * 1024


def receiver(stream: trio.abc.Stream) -> Callable[[], Awaitable[bytes]]:
    """Return a function that waits for the next bytes of ``stream``; empty at the end."""
    if not isinstance(stream, trio.SocketStream):
        return partial(_receive_bytes, stream)
    fileno = stream.socket.fileno

    async def receive() -> bytes:
        # The streams of trio read first and wait then. Between requests nothing is there to be read, so that would
        # cost a system call and an exception for each request.
        while True:
            await trio.lowlevel.wait_readable(fileno())
            try:
                return os.read(fileno(), _READ)
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError(f"the connection broke: {error}") from None

    return receive


async def _receive_bytes(stream: trio.abc.Stream) -> bytes:
    return bytes(await stream.receive_some(_READ))
