"""open_memory: runs a server in this process, and connects a client to it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Unpack

import trio

from ..client.client import Client
from ..client.opening import open_client
from ..client.options import ClientOptions
from ..concurrency.contexts import asynccontextmanager
from ..concurrency.misuse import async_with_only, check_opened_under_trio
from ..concurrency.nurseries import open_service_nursery
from ..runtime.peer import SOLE_CLIENT
from ..runtime.transport import Transport, framed
from ..server.servable import Servable, check_servable, connection_to
from ..transports.lines import memory_transports


@async_with_only("client")
@asynccontextmanager
async def open_memory(
    server: Servable, *, stateless: bool = False, **options: Unpack[ClientOptions]
) -> AsyncGenerator[Client]:
    """Run ``server`` in this process, and connect a client to it. Yields the `Client`.

    Use this for tests, and to embed a server.

    Everything works in the same way as over a network, including the encoding of messages. ``stateless``: see
    `ServingOptions`. ``options``: see `ClientSettings`.
    """
    check_opened_under_trio("open_memory")
    ours, theirs = memory_transports()
    async with open_server(server, theirs, stateless=stateless), open_client(ours, **options) as client:
        yield client


@async_with_only("")
@asynccontextmanager
async def open_server(server: Servable, channel: Transport, *, stateless: bool = False) -> AsyncGenerator[None]:
    """Inside the block, run ``server`` for one client. The client uses the other end of ``channel``.

    The end of the block cancels the client's remaining requests, waits for their cleanup, closes the channel and exits
    the server's lifespan. The loss of the connection isn't raised here. ``stateless``: see `ServingOptions`.
    """
    check_servable(server)
    served = False
    try:
        async with (
            server._running(stateless=stateless) as running,
            open_service_nursery("the client was closed") as nursery,
        ):
            served = True  # from here on, the connection is responsible for closing the channel
            await nursery.start(connection_to(running, framed(channel), SOLE_CLIENT).run)
            yield
    finally:
        if not served:
            # Inside this cancelled scope, aclose() doesn't wait.
            with trio.CancelScope(shield=True) as by_force:
                by_force.cancel(reason="nothing is served")
                await channel.aclose()
