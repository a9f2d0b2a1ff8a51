"""A fleet of replicas in one program, each on a machine of its own, and what their handlers went through.

`Fleet` starts, stops, kills and replaces replicas; `Journal` is what handlers write down outside of all machines, so
that no fault reaches it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import attrs
import trio
from tests.serving.http.memory_listener import MemoryListener
from tests.serving.http.raw import Connection
from tests.simulation.machines import Machine
from tests.simulation.storage import UnreliableStorage, Way

from trio_mcp import Limits, RequestContext, Server, TaskSettings, serve_http

LEASE = 5.0
"""Seconds after which a replica that is silent, and the holder of a task, count as dead."""
GRACE = 3.0
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
LIMITS = Limits(cleanup_grace=GRACE, retry_timeout=60, drain_timeout=2, session_timeout=40)
TASKS = TaskSettings(lease=LEASE, look_interval=2, grace=0, ttl=1e6, max_ttl=1e6, retention=1e6, max_attempts=10_000)


@attrs.define
class Journal:
    """What happened in all handlers, by the names that calls give themselves."""

    running: dict[str, int] = attrs.Factory(lambda: defaultdict(int))
    """Handlers that have begun and not ended, of machines that were not killed."""
    started: dict[str, int] = attrs.Factory(lambda: defaultdict(int))
    cancelled: set[str] = attrs.Factory(set)


class SimulatedReplica:
    """One replica: its machine, its way to the storage, and its listener."""

    def __init__(self, fleet: Fleet) -> None:
        self.machine = Machine()
        self.way: Way = fleet.storage.way()
        self.listener = MemoryListener()
        self.server = _server(fleet, self)
        self.scope = trio.CancelScope()
        self.over = trio.Event()
        self.is_killed = False
        self.is_ending = False
        self.streams: set[Any] = set()
        """The clients' ends of open connections."""
        self.stops = 0
        """How often the replica was stopped."""
        self.running: dict[str, int] = defaultdict(int)

    async def serve(self, *, task_status: trio.TaskStatus[Any]) -> None:
        try:
            with self.scope:
                await serve_http(
                    self.server,
                    listeners=[self.listener],
                    allowed_origins=[],
                    allowed_hosts=["127.0.0.1"],
                    limits=LIMITS,
                    shared=self.way,
                    handle_signals=False,
                    task_status=task_status,
                )
        finally:
            self.over.set()

    @property
    def is_well(self) -> bool:
        """True while the replica runs, and nobody ends it."""
        return self.takes_requests and not self.machine.is_stopped

    @property
    def takes_requests(self) -> bool:
        return not (self.is_killed or self.is_ending)


class Fleet:
    """``size`` replicas that share ``storage``, whose tasks run in ``nursery``."""

    def __init__(self, storage: UnreliableStorage, nursery: trio.Nursery, chance: Random, size: int) -> None:
        self.storage = storage
        self.nursery = nursery
        self.chance = chance
        self.journal = Journal()
        self.replicas: list[SimulatedReplica] = []
        self.disturbances = 0
        """How often something began, or ended, to go wrong."""
        self.failures_of_storage = 0
        """How often calls to the storage, or hints, were made to fail altogether."""
        self._gone: list[SimulatedReplica] = []
        self._size = size

    async def start(self) -> None:
        for _ in range(self._size):
            await self.add()

    async def add(self) -> SimulatedReplica:
        replica = SimulatedReplica(self)
        with replica.machine.current():
            await self.nursery.start(replica.serve)
        self.replicas.append(replica)
        return replica

    def any_replica(self) -> SimulatedReplica:
        """Return what a balancer chooses."""
        return self.chance.choice([each for each in self.replicas if each.takes_requests])

    @asynccontextmanager
    async def connection(self, replica: SimulatedReplica) -> AsyncIterator[Connection]:
        """Connect to a replica, and leave it by closing the connection."""
        client = replica.listener.connect(lockstep=False)
        replica.streams.add(client)
        try:
            yield Connection(client)
        finally:
            replica.streams.discard(client)
            await trio.aclose_forcefully(client)

    async def kill(self, replica: SimulatedReplica) -> None:
        """End a replica as SIGKILL does, and start another one in its place."""
        replica.is_killed = replica.way.is_cut = True
        replica.machine.stop()
        self._leave(replica)
        for name, count in replica.running.items():
            self.journal.running[name] -= count
        replica.running.clear()
        for client in replica.streams:  # the system closes its sockets
            client.receive_stream.put_eof()
        await self.add()

    def _leave(self, replica: SimulatedReplica) -> None:
        if replica in self.replicas:
            self.replicas.remove(replica)
            self._gone.append(replica)

    async def end(self, replica: SimulatedReplica) -> None:
        """End a replica in good order, and start another one before."""
        await self.add()
        self._leave(replica)
        replica.is_ending = True
        self.disturbances += 1
        replica.scope.cancel(reason="the end of a replica")
        await replica.over.wait()
        self.disturbances += 1

    async def stop(self, replica: SimulatedReplica, seconds: float) -> None:
        """Let a replica do nothing for a while, as between SIGSTOP and SIGCONT."""
        replica.stops += 1
        replica.machine.stop()
        await trio.sleep(seconds)
        self.disturbances += 1
        if not replica.is_killed:
            replica.machine.go_on()

    def wake(self) -> None:
        """Have all replicas go on that are stopped, and not killed."""
        for replica in self.replicas:
            if replica.machine.is_stopped:
                replica.machine.go_on()

    async def finish(self) -> None:
        """End all replicas; those that were killed, too, which can do no harm any more."""
        with trio.CancelScope(shield=True):
            for replica in (*self.replicas, *self._gone):
                replica.is_ending = True
                replica.scope.cancel(reason="the end of the simulation")
                replica.machine.go_on()
            for replica in (*self.replicas, *self._gone):
                await replica.over.wait()


def _server(fleet: Fleet, replica: SimulatedReplica) -> Server:
    """Return a server whose handlers write down what they went through."""
    server, journal = Server("simulated", tasks=TASKS), fleet.journal

    class Running:
        def __init__(self, name: str, ctx: RequestContext) -> None:
            self.name, self.ctx = name, ctx

        def __enter__(self) -> None:
            journal.started[self.name] += 1
            journal.running[self.name] += 1
            replica.running[self.name] += 1

        def __exit__(self, *_: object) -> None:
            if replica.is_killed:
                return
            journal.running[self.name] -= 1
            replica.running[self.name] -= 1
            if self.ctx.cancellation is not None:
                journal.cancelled.add(self.name)

    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.tool
    async def wait(name: str, ctx: RequestContext) -> str:
        with Running(name, ctx):
            await trio.sleep_forever()
        return "never"

    @server.tool
    async def ask(name: str, ctx: RequestContext, rounds: int = 1, then: str = "answer") -> str:
        """Ask the user, tell progress, and answer or wait."""
        with Running(name, ctx):
            heard = list[str]()
            for number in range(rounds):
                answer = await ctx.elicit(f"Who is number {number}?", NAME)
                heard.append((answer.content or {}).get("name", ""))
                await ctx.log.info(f"heard {heard[-1]}")
                if then == "wait":
                    await trio.sleep_forever()
            return " ".join(heard)

    @server.tool
    async def tell(name: str, times: int, seconds: float, ctx: RequestContext) -> str:
        with Running(name, ctx):
            for number in range(times):
                await ctx.log.error(f"number {number}")
                await trio.sleep(seconds)
        return f"told {times}"

    @server.tool(task="required", on_restart="again")
    async def work(name: str, seconds: float, ctx: RequestContext) -> str:
        with Running(name, ctx):
            await trio.sleep(seconds)
            return f"{name} is done"

    @server.tool(task="required")
    async def once(name: str, seconds: float, ctx: RequestContext) -> str:
        with Running(name, ctx):
            await trio.sleep(seconds)
            return f"{name} is done"

    @server.resource("sim://{number}")
    async def thing(number: str) -> str:
        return number

    return server
