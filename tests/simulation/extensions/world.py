"""Simulations of clients and servers with extensions of both roles, over wires that are cut, and places that end."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import trio
from tests.simulation.chaos import Report
from tests.simulation.extensions.callers import Caller, Route
from tests.simulation.extensions.offers import LIMITS, Journal, Question, Step, confirm, grown, new_server, work
from tests.simulation.extensions.places import OverWire, Place
from tests.simulation.machines import Schedule, run

from trio_mcp import CancelAcknowledged, MCPError, gateway, proxy
from trio_mcp.hosting import MemberDescription, RestartPolicy, open_group
from trio_mcp.types import ALL_QUESTIONS, Gateway

CLIENTS = 4
PERMANENT = 3
"""Places that stand at the beginning; the others have a connection of their own to the server."""
QUIET = 200.0
"""Seconds after which nothing is remembered of any call."""
ERAS = ("modern", "legacy")


class World:
    """One server, the places before it, and all who act."""

    def __init__(self, nursery: trio.Nursery, chance: Random) -> None:
        self.faults: list[str] = []
        self.outcomes = Counter[str]()
        self.journal = Journal()
        self._nursery = nursery
        self._chance = chance
        self._numbers = iter(range(10**9))
        self.server = new_server(self.journal)
        self.back = self._place("the server", self.server)
        self.own = {
            era: self._place(f"a proxy of {era}", proxy(partial(self._behind, era), limits=LIMITS)) for era in ERAS
        }
        self.places = [self.back, *self.own.values()]
        self.routes = [Route(self.back, era) for era in ERAS] * 2
        self.routes += [
            Route(place, front, (self.back,), has_extension=front == back, asks=(front, back) != ("modern", "legacy"))
            for back, place in self.own.items()
            for front in ERAS
        ]

    def _place(self, name: str, served: Any) -> Place:
        return Place(name, served, self._nursery, Random(self._chance.random()), self.faults)

    def _behind(self, back: str, /, **options: Any) -> Any:
        if back == "modern":
            options.pop("revision", None)
        return self.back.reached(**{**options, "era": back})

    async def begin(self) -> None:
        for place in self.places:
            await place.begin()

    async def share_always(self, era: str) -> None:
        """Have clients go through a proxy over one connection for all, and open another one after its loss."""
        extensions = {"extensions": [work, CancelAcknowledged()], "handlers": {confirm: _never}}
        while True:
            try:
                async with self.back.reached(era=era, forwards=ALL_QUESTIONS, **extensions) as client:
                    served = proxy(client, limits=LIMITS, passes=[work, CancelAcknowledged()])
                    await self._stand(f"a shared proxy of {era}", served, [era], client.until_lost)
            except* (MCPError, trio.TooSlowError):
                await trio.sleep(1)

    async def stand_before(self) -> None:
        """Have clients go through a gateway."""
        restart = RestartPolicy(attempts=math.inf, first_delay=0.1, max_delay=1, jitter=0)
        member = MemberDescription(OverWire.to(self.back), restart=restart)
        async with open_group({"work": member}, forwards=ALL_QUESTIONS) as group:
            await group.settled()
            await self._stand("a gateway", gateway(group, limits=LIMITS), ERAS, trio.sleep_forever)

    async def _stand(self, name: str, served: Any, eras: Sequence[str], until: Callable[[], Awaitable[None]]) -> None:
        """Have clients go through a place until ``until`` returns."""
        place = self._place(name, served)
        await place.begin()
        is_shared = served.__class__ is not Gateway
        routes = [Route(place, era, (self.back,), has_extension=is_shared, is_alone=False) for era in eras]
        self.places.append(place)
        self.routes += routes
        try:
            await until()
        finally:
            self.places.remove(place)
            for route in routes:
                self.routes.remove(route)
            with trio.CancelScope(shield=True):
                await place.end(at_once=True)

    async def act_always(self) -> None:
        while True:
            name = f"client {next(self._numbers)}"
            route = self._chance.choice(self.routes)
            await Caller(name, route, self.journal, Random(self._chance.random()), self.faults, self.outcomes).live()
            await trio.sleep(self._chance.uniform(0, 0.5))

    async def grow_always(self) -> None:
        while True:
            await trio.sleep(self._chance.uniform(0, 2))
            self.journal.grown += 1
            self.server.notify(grown, Step("all", self.journal.grown))

    async def disturb_always(self) -> None:
        """Cut wires behind proxies, and end places and begin them anew."""
        while True:
            await trio.sleep(self._chance.uniform(5, 60))
            if self._chance.random() < 0.6:
                if self.back.wires:
                    self.back.cut(self._chance.choice(list(self.back.wires)))
                    self.outcomes["cut behind"] += 1
            else:
                place = self._chance.choice(self.places)
                await place.end(at_once=self._chance.random() < 0.5)
                await trio.sleep(self._chance.choice((0.0, 1.0)))
                await place.begin()
                self.outcomes["ended"] += 1

    def check_places(self, *places: Place) -> None:
        """Check that nothing is left in places whose clients are gone, once all is quiet."""
        for place in places:
            self.faults += place.left()

    def check(self) -> None:
        """Check what holds once all clients are gone, and all is quiet."""
        journal = self.journal
        if journal.answering:
            self.faults.append(f"{journal.answering} functions of clients still answer")
        for name, life in journal.orders.items():
            if life.running or life.started > 1:
                self.faults.append(f"{name} has come to {life}")
        for name, (order, started, lines) in journal.stopped.items():
            life = journal.orders[name]
            if (life.started, life.lines) != (started, lines):
                self.faults.append(f"said to have stopped after {lines} lines, and has {life}: {order}")


async def _never(_: Question) -> Step:
    raise AssertionError("the proxy hands it on")


async def _simulate(schedule: Schedule, seed: int, steps: int) -> Report:
    chance = Random(seed)
    threads, tasks = threading.active_count(), trio.lowlevel.current_statistics().tasks_living
    async with trio.open_nursery() as nursery:
        world = World(nursery, chance)
        await world.begin()
        async with trio.open_nursery() as standing, trio.open_nursery() as acting:
            standing.start_soon(world.stand_before)
            for era in ERAS:
                standing.start_soon(world.share_always, era)
            for _ in range(CLIENTS):
                acting.start_soon(world.act_always)
            acting.start_soon(world.grow_always)
            acting.start_soon(world.disturb_always)
            while schedule.steps < steps:  # noqa: ASYNC110 - trio counts the steps
                await trio.sleep(1)
            acting.cancel_scope.cancel(reason="enough steps")
            with trio.CancelScope(shield=True):
                await trio.sleep(QUIET)
                world.check_places(*world.places[PERMANENT:])
            standing.cancel_scope.cancel(reason="the simulation is over")
        await trio.sleep(QUIET)
        world.check_places(*world.places)
        world.check()
        nursery.cancel_scope.cancel(reason="the simulation is over")
    living = trio.lowlevel.current_statistics().tasks_living
    if threading.active_count() > threads or living != tasks:  # idle threads of before may have ended
        world.faults.append(f"{living - tasks} tasks and {threading.active_count() - threads} threads are left")
    return Report(seed, schedule.steps, trio.current_time(), tuple(world.faults), world.outcomes)


def simulate(seed: int, steps: int) -> Report:
    """Simulate for about so many steps of tasks."""
    report: Any = run(seed, _simulate, seed, steps)
    return report
