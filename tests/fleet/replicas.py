"""Several replicas of one server, which share a `MemoryStorage` in one trio program, behind a balancer in round
robin."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from itertools import cycle
from typing import Any

import attrs
import trio
from tests.serving.http import scenes
from tests.serving.http.raw import Connection
from tests.serving.http.scenes import Journal, MemoryEndpoint, Scene, add_tools

from trio_mcp import Limits, MemoryStorage, Server
from trio_mcp.auth.resource_server.protected import Protected
from trio_mcp.stores.shared import Replica
from trio_mcp.stores.task_store import HINTS_LOST, StoreDown, Uncertain


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


class Link:
    """The way of one replica to the storage that it shares. ``calls`` made there are noted, as ``part.method``."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.is_down = False
        self.loses_answers = False
        """True while calls do what they shall, and nobody learns of that."""
        self.loses_hints = False
        self.held: dict[str, trio.Event] = {}
        """Calls, as ``part.method``, that wait for an event before they are made."""


class _Linked:
    """A part of a replica, by its ``link``."""

    def __init__(self, part: Any, link: Link, name: str) -> None:
        self._part = part
        self._link = link
        self._name = name

    def __getattr__(self, method: str) -> Any:
        if method == "watch":
            return self._watch
        if method == "mailbox":
            return self._part.mailbox
        return partial(self._call, method)

    async def _call(self, method: str, *args: Any, **options: Any) -> Any:
        link = self._link
        if (self._name, method) != ("courier", "heartbeat"):
            link.calls.append(f"{self._name}.{method}")
        if (held := link.held.get(f"{self._name}.{method}")) is not None:
            await held.wait()
        if link.is_down:
            await trio.lowlevel.checkpoint()
            raise StoreDown("the link is down")
        result = await getattr(self._part, method)(*args, **options)
        await trio.lowlevel.checkpoint()
        if link.loses_answers:
            raise Uncertain("the answer was lost")
        return result

    @asynccontextmanager
    async def _watch(self) -> AsyncGenerator[AsyncIterator[Any]]:
        async with self._part.watch() as hints:
            yield self._passed_on(hints)

    async def _passed_on(self, hints: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for hint in hints:
            if not self._link.loses_hints:
                yield hint


class LinkedMemory(MemoryStorage):
    """A `MemoryStorage` to which each replica has a `Link`."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[Link] = []
        self.ids: list[str] = []

    @asynccontextmanager
    async def join(self, name: str, secrets: Sequence[bytes] = ()) -> AsyncGenerator[Replica]:
        link = Link()
        self.links.append(link)
        async with super().join(name, secrets) as replica:
            self.ids.append(replica.id)
            parts = ("sessions", "events", "changes", "courier")
            yield attrs.evolve(replica, **{part: _Linked(getattr(replica, part), link, part) for part in parts})

    @property
    def kept(self) -> Any:
        """All that the replicas of the scene share."""
        return self._servers["scene"]

    def lose_hints(self) -> None:
        """Tell all replicas that hints may have been lost."""
        self.kept.sessions._hint_queues.notify([HINTS_LOST])


class FleetEndpoint(MemoryEndpoint):
    """The replicas, of which each connection goes to the next. ``memory`` is what they share."""

    def __init__(self, replicas: list[MemoryEndpoint], memory: LinkedMemory, nursery: trio.Nursery) -> None:
        super().__init__(replicas[0].front, nursery)
        self.replicas = replicas
        self.memory = memory
        self._alive = [*replicas]

    async def connect(self, *, lockstep: bool = False) -> Connection:
        replica = self._alive.pop(0)
        self._alive.append(replica)
        return await replica.connect(lockstep=lockstep)

    async def aclose(self) -> None:
        for replica in self.replicas:
            await replica.aclose()

    @property
    def views(self) -> list[dict[str, Any]]:
        """The views of sessions that each replica has."""
        return [replica.front._endpoint._sessions._sessions for replica in self.replicas]

    def kill(self, number: int) -> None:
        """End a replica as the death of its process does: it says nothing more, and its connections break."""
        self.memory.links[number].is_down = True
        replica = self.replicas[number]
        self._alive.remove(replica)
        replica.scope.cancel(reason="the process is dead")

    async def stop(self, number: int) -> None:
        """End a replica in good order."""
        replica = self.replicas[number]
        self._alive.remove(replica)
        replica.front.shut_down("the server ends", hurry=False)
        await replica.front.wait_closed()
        replica.scope.cancel(reason="the server has ended")


@asynccontextmanager
async def replicated(
    fleet: Fleet, *, auth: Protected | None = None, memory: LinkedMemory | None = None, **limits: Any
) -> AsyncGenerator[FleetEndpoint]:
    """Serve the servers of ``fleet`` as replicas."""
    memory = memory or LinkedMemory()

    async def serve(server: Server, *, task_status: trio.TaskStatus[MemoryEndpoint]) -> None:
        with trio.CancelScope() as scope:
            async with scenes.in_memory(server, auth=auth, shared=memory, **limits) as replica:
                replica.scope = scope
                task_status.started(replica)
                await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        replicas: list[MemoryEndpoint] = [await nursery.start(serve, server) for server in fleet.servers]
        endpoint = FleetEndpoint(replicas, memory, nursery)
        yield endpoint
        await endpoint.aclose()
        nursery.cancel_scope.cancel(reason="the test is over")


SCENES = {"one process": Scene, "three replicas": FleetScene}
"""The scenes that a test goes through, one after another."""


def in_memory(server: Any, **options: Any) -> AbstractAsyncContextManager[MemoryEndpoint]:
    """Serve a server, or the servers of replicas: see `scenes.in_memory`."""
    return replicated(server, **options) if isinstance(server, Fleet) else scenes.in_memory(server, **options)
