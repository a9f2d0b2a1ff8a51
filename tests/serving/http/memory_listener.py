"""`serve_http` over memory: a listener whose clients are streams of the same process."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import trio
from tests.serving.http.raw import Connection, Endpoint
from trio.testing import lockstep_stream_pair, memory_stream_pair

from trio_mcp import serve_http
from trio_mcp.server.servable import Servable


class MemoryListener(trio.abc.Listener[Any]):
    """Accepts the streams that `connect` makes."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[Any](math.inf)

    async def accept(self) -> Any:
        return await self._receive.receive()

    async def aclose(self) -> None:
        self._receive.close()

    def connect(self, *, lockstep: bool) -> Any:
        """Return the client's end of a new connection. ``lockstep``: nothing is sent that the other end does not
        read."""
        ours, theirs = lockstep_stream_pair() if lockstep else memory_stream_pair()
        self._send.send_nowait(ours)
        return theirs


class ListenedEndpoint(Endpoint):
    """What `serve_http` serves over memory. ``over`` is set when it has returned."""

    def __init__(self, nursery: trio.Nursery) -> None:
        super().__init__(0, nursery)
        self.listener = MemoryListener()
        self.scope = trio.CancelScope()
        self.over = trio.Event()

    async def connect(self, *, lockstep: bool = False) -> Connection:
        return Connection(self.listener.connect(lockstep=lockstep))

    async def serve(
        self, server: Servable, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED, **options: Any
    ) -> None:
        with self.scope:
            await serve_http(
                server,
                listeners=[self.listener],
                allowed_origins=[],
                allowed_hosts=["127.0.0.1"],
                task_status=task_status,
                **options,
            )
        self.over.set()


@asynccontextmanager
async def listening(server: Servable, **options: Any) -> AsyncGenerator[ListenedEndpoint]:
    async with trio.open_nursery() as nursery:
        endpoint = ListenedEndpoint(nursery)

        async def serve(task_status: trio.TaskStatus[Any]) -> None:
            await endpoint.serve(server, task_status=task_status, **options)

        await nursery.start(serve)
        yield endpoint
        nursery.cancel_scope.cancel(reason="the test is over")
