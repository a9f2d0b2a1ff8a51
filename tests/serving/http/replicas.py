"""Several replicas of one server, which share a `Memory` in one trio program, behind a balancer in round robin."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from itertools import cycle
from typing import Any

import trio
from tests.serving.http import scenes
from tests.serving.http.raw import Connection
from tests.serving.http.scenes import Journal, MemoryEndpoint, Scene, add_tools

from trio_mcp import Limits, Memory, Server
from trio_mcp.auth.resource_server.protected import Protected


class Fleet:
    """The servers of several replicas, which offer the same, each with objects of its own."""

    def __init__(self, servers: list[Server]) -> None:
        self.servers = servers
        self._next = cycle(servers)

    def tool(self, function: Callable[..., Any] | None = None, **options: Any) -> Any:
        return self._on_all("tool", function, **options)

    def resource(self, uri: str, **options: Any) -> Any:
        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            for server in self.servers:
                server.resource(uri, **options)(function)
            return function

        return add

    def _on_all(self, name: str, function: Callable[..., Any] | None, **options: Any) -> Any:
        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            for server in self.servers:
                getattr(server, name)(**options)(function)
            return function

        return add if function is None else add(function)

    def remove_tool(self, name: str) -> None:
        for server in self.servers:
            server.remove_tool(name)

    def resource_updated(self, uri: str) -> None:
        """Tell of a change on one of the replicas, in turn."""
        next(self._next).resource_updated(uri)


class FleetScene(Scene):
    """A `Scene` on several replicas, whose handlers write into the same journals."""

    server: Any

    def __init__(self, replicas: int = 3, limits: Limits | None = None, **options: Any) -> None:
        self.journals = defaultdict(Journal)
        servers = [Server("scene", limits=limits or Limits(), **options) for _ in range(replicas)]
        for server in servers:
            add_tools(server, self.journals)
        self.server = Fleet(servers)


class FleetEndpoint(MemoryEndpoint):
    """The replicas, of which each connection goes to the next. ``memory`` is what they share."""

    def __init__(self, replicas: list[MemoryEndpoint], memory: Memory, nursery: trio.Nursery) -> None:
        super().__init__(replicas[0].front, nursery)
        self.replicas = replicas
        self.memory = memory
        self._turns = cycle(replicas)

    async def connect(self, *, lockstep: bool = False) -> Connection:
        return await next(self._turns).connect(lockstep=lockstep)

    async def aclose(self) -> None:
        for replica in self.replicas:
            await replica.aclose()


@asynccontextmanager
async def replicated(
    fleet: Fleet, *, auth: Protected | None = None, memory: Memory | None = None, **limits: Any
) -> AsyncGenerator[FleetEndpoint]:
    """Serve the servers of ``fleet`` as replicas."""
    memory = memory or Memory()
    async with AsyncExitStack() as stack:
        replicas = [
            await stack.enter_async_context(scenes.in_memory(server, auth=auth, shared=memory, **limits))
            for server in fleet.servers
        ]
        yield FleetEndpoint(replicas, memory, replicas[0].nursery)


SCENES = {"one process": Scene, "three replicas": FleetScene}
"""The scenes that a test goes through, one after another."""


def in_memory(server: Any, **options: Any) -> AbstractAsyncContextManager[MemoryEndpoint]:
    """Serve a server, or the servers of replicas: see `scenes.in_memory`."""
    return replicated(server, **options) if isinstance(server, Fleet) else scenes.in_memory(server, **options)
