"""Simulations of a fleet: replicas die, stop and are replaced while the storage that they share is unreliable."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import attrs
import trio
from tests.simulation.clients import Clients
from tests.simulation.fleet import LEASE, LIMITS, Fleet
from tests.simulation.machines import Schedule, run
from tests.simulation.sessions import Sessions
from tests.simulation.storage import CALM, OUTAGE, ROUGH, UnreliableStorage

SIZE = 3
CLIENTS = 4


@attrs.frozen
class Report:
    """What came out of a simulation."""

    seed: int
    steps: int
    seconds: float
    """Virtual seconds."""
    faults: tuple[str, ...]
    outcomes: Counter[str]


async def _disturb(fleet: Fleet, chance: Random) -> None:
    """Let things go wrong, one after another."""
    storage = fleet.storage
    while True:
        await trio.sleep(chance.uniform(0.5, 8))
        fleet.disturbances += 1
        replica = chance.choice(fleet.replicas)
        match chance.choice(
            ("kill", "kill", "end", "stop", "stop", "rough", "rough", "calm", "calm", "outage", "save", "fail over")
        ):
            case "kill":
                await fleet.kill(replica)
            case "end":
                fleet.nursery.start_soon(fleet.end, replica)
            case "stop" if sum(each.is_well for each in fleet.replicas) > 1 and replica.is_well:
                fleet.nursery.start_soon(fleet.stop, replica, chance.choice((0.5, LEASE, 3 * LEASE)))
            case "rough":
                storage.change_weather(ROUGH)
            case "outage":
                fleet.failures_of_storage += 1
                storage.change_weather(OUTAGE)
                await trio.sleep(chance.uniform(0.5, 12))
                storage.change_weather(CALM)
                fleet.disturbances += 1
            case "save":
                storage.save()
            case "fail over":
                fleet.failures_of_storage += 1
                storage.fail_over()
            case _:
                storage.change_weather(CALM)


async def _simulate(schedule: Schedule, seed: int, steps: int) -> Report:
    chance = Random(seed)
    async with trio.open_nursery() as nursery:
        storage = UnreliableStorage(nursery, Random(chance.random()))
        fleet = Fleet(storage, nursery, Random(chance.random()), SIZE)
        clients = Clients(fleet, Random(chance.random()))
        sessions = Sessions(clients)
        try:
            await fleet.start()
            async with trio.open_nursery() as acting:
                for _ in range(CLIENTS):
                    acting.start_soon(clients.act_always, sessions.act, sessions.act)
                acting.start_soon(_disturb, fleet, Random(chance.random()))
                while schedule.steps < steps:  # noqa: ASYNC110 - trio counts the steps
                    await trio.sleep(1)
                acting.cancel_scope.cancel(reason="enough steps")
            fleet.disturbances += 1
            storage.change_weather(CALM)
            fleet.wake()
            await trio.sleep(LIMITS.retry_timeout + 3 * LEASE)
            await clients.check()
        finally:
            await fleet.finish()
        nursery.cancel_scope.cancel(reason="the simulation is over")
    faults = (*clients.faults, *storage.left())
    return Report(seed, schedule.steps, trio.current_time(), faults, clients.outcomes + storage.happened)


def simulate(seed: int, steps: int) -> Report:
    """Simulate a fleet for about so many steps of tasks."""
    report: Any = run(seed, _simulate, seed, steps)
    return report
