"""The places of the simulation: a server, and proxies and a gateway before it, each reached over wires.

A `WorkerSlot` runs a server or what stands for one, is ended and begun anew at any time, and tells what is left in it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random
from typing import Any

import attrs
import trio
from tests.simulation.extensions.wires import Wire

from trio_mcp import Client, InMemory, Limits, Server
from trio_mcp.client.opening import open_client
from trio_mcp.runtime.connection import Connection
from trio_mcp.server.servable import connection_to
from trio_mcp.transports.lines import LineTransport

_MOST = Limits().max_message_bytes


class Place:
    """A place where ``served`` runs, called ``name``; its tasks run in ``nursery``."""

    def __init__(self, name: str, served: Any, nursery: trio.Nursery, chance: Random, faults: list[str]) -> None:
        self.name = name
        self.served = served
        self.disturbances = 0
        """How often the place was begun or ended, or one of its wires cut."""
        self.wires: dict[Wire, None] = {}
        """The wires of open connections."""
        self.is_open = False
        self._nursery = nursery
        self._chance = chance
        self._faults = faults
        self._running: Any = None
        self._here: trio.Nursery | None = None
        self._connections: dict[Any, None] = {}
        self._over = trio.Event()
        self._numbers = iter(range(10**9))

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve until `end`."""
        self._over = trio.Event()
        try:
            async with self.served._running() as running, trio.open_nursery() as here:
                self._running, self._here, self.is_open = running, here, True
                task_status.started()
                await trio.sleep_forever()
        finally:
            self.is_open, self._running, self._here = False, None, None
            self._over.set()

    async def begin(self) -> None:
        """Begin to serve."""
        self.disturbances += 1
        await self._nursery.start(self.run)

    async def end(self, *, at_once: bool) -> None:
        """End in good order, or at once."""
        self.disturbances += 1
        self.is_open = False
        if not at_once:
            for connection in tuple(self._connections):
                connection.connection.shut_down("the place ends")
            await trio.sleep(self._chance.choice((0.0, 0.05, 3.0)))
        if self._here is not None:
            self._here.cancel_scope.cancel(reason="the end of a place")
        await self._over.wait()

    async def _serve(self, wire: Wire) -> None:
        connection = connection_to(self._running, LineTransport(wire.server, _MOST))
        self._connections[connection] = None
        try:
            await connection.run()
        finally:
            del self._connections[connection]
            self._faults += left_in_tables(connection.connection, f"a connection of {self.name} that is over")

    def reached(self, **options: Any) -> AbstractAsyncContextManager[Client]:
        """Open a client of this place over a wire of its own."""
        return self.opened(self.wire(), **options)

    def wire(self) -> Wire:
        """Return a new wire, which is not connected to the place yet."""
        return Wire(f"{self.name} {next(self._numbers)}", self._chance, self._faults)

    @asynccontextmanager
    async def opened(self, wire: Wire, **options: Any) -> AsyncIterator[Client]:
        """Open a client over ``wire``."""
        if not self.is_open or self._here is None:
            wire.cut()
        else:
            self._here.start_soon(self._serve, wire)
        self.wires[wire] = None
        try:
            async with open_client(LineTransport(wire.client, _MOST), **options) as client:
                yield client
        finally:
            del self.wires[wire]

    def cut(self, wire: Wire) -> None:
        """Cut a wire."""
        self.disturbances += 1
        wire.cut()

    def left(self) -> list[str]:
        """Tell what is left of requests here, once all clients are gone and no time runs any more."""
        host = self._running.host if hasattr(self._running, "host") else None
        load = self.served.statistics()
        found = {name: getattr(load, name) for name in ("connections", "in_flight", "queued", "listening", "parked")}
        if host is not None and host.nursery is None:
            found["place that does not end"] = 1
        elif host is not None:
            found |= {
                "parked handlers": len(host.parking),
                "endings": 0 if host.endings is None else len(host.endings),
                "tasks of handlers": len(host.nursery.child_tasks) - 1,
                "alarms": sum(1 for _, _, alarm in host.alarms._heap if alarm.is_set),
            }
        found["bytes"] = (
            self.served._load.inbound_bytes if hasattr(self.served, "_load") else self.served.load.inbound_bytes
        )
        found["connections here"] = len(self._connections)
        return [f"{count} {what} are left at {self.name}" for what, count in found.items() if count]


def left_in_tables(connection: Connection, what: str) -> list[str]:
    """Tell what is left in the tables of a connection over which no call is in flight, but for open streams."""
    calls, state = connection.outbound._calls.values(), connection.state
    streams = sum(call.request.method.streams for call in calls)
    left = {
        "calls": len(calls) - streams,
        "ids": len(state._outbound) - streams,
        "requests": len(state._inbound),
        "parked requests": len(state._parked),
        "held requests": len(connection.exchange._held),
    }
    return [f"{count} {name} are left in {what}" for name, count in left.items() if count]


@attrs.frozen
class OverWire(InMemory):
    """The target of a member of a group: a place."""

    place: Any = attrs.field(kw_only=True)

    @classmethod
    def to(cls, place: Place) -> OverWire:
        """Return the target for ``place``."""
        return cls(Server("unused"), place=place)

    def open(self, **options: Any) -> AbstractAsyncContextManager[Client]:
        """Open a client of the place."""
        return self.place.reached(**options)
