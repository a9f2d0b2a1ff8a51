"""A storage that replicas share, and that does to them what a storage behind a network may do.

`UnreliableStorage` is `MemoryStorage` behind a way that loses calls, answers and hints, brings them late and twice, and
at a failover forgets what was written last. Each replica has a way of its own. The storage sees every write, and notes
those that the contracts of the stores forbid.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import attrs
import trio

from trio_mcp.fleet.fleet import FleetStorage
from trio_mcp.fleet.storage.memory import MemoryStorage
from trio_mcp.stores.shared import Replica
from trio_mcp.stores.task_store import HINTS_LOST, HintQueues, HintsLost, StoreDown, StoreFull, TaskRecord, Uncertain

LIMIT = 1.0
"""Seconds after which a call without an answer is given up."""
AFTERMATH = 4.0
"""Seconds after which no call is under way any more, or waits to be repeated, that failed in bad weather."""
PARTS = ("tasks", "sessions", "events", "changes", "courier", "replay_guard", "rate_limits")


@attrs.define
class Weather:
    """How often what goes wrong, between 0 and 1; all that is left goes well."""

    refused: float = 0.0
    """A call never arrives, and its caller is told."""
    lost: float = 0.0
    """A call never arrives, and its caller waits in vain."""
    unanswered: float = 0.0
    """A call arrives, and its answer does not."""
    late: float = 0.0
    """A call arrives after its caller has given up."""
    hints_lost: float = 0.0
    hints_doubled: float = 0.0
    hints_late: float = 0.0

    @property
    def works(self) -> bool:
        """True where most calls and hints arrive."""
        return self.hints_lost < 0.5


CALM = Weather()
ROUGH = Weather(0.01, 0.01, 0.01, 0.01, 0.2, 0.05, 0.05)
OUTAGE = Weather(refused=0.5, lost=0.4, unanswered=0.05, late=0.05, hints_lost=1.0)


class UnreliableStorage:
    """What all replicas share. ``nursery`` carries what arrives late."""

    def __init__(self, nursery: trio.Nursery, chance: Random) -> None:
        self.nursery = nursery
        self.chance = chance
        self.memory = MemoryStorage()
        self.weather = CALM
        self._cleared = -AFTERMATH
        """When the weather has changed last."""
        self.faults: list[str] = []
        """What the contracts forbid, and happened."""
        self.excused: set[str] = set()
        """Ids of the tasks whose records a failover has changed back, or lost."""
        self.happened: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        """How often a task has ended, by its id."""
        self._before: list[tuple[Any, dict[str, Any]]] = []
        self._marks_before: dict[str, bytes] = {}

    def way(self) -> Way:
        """Return the way of one more replica."""
        return Way(self)

    def change_weather(self, weather: Weather) -> None:
        """Let things go wrong as often as ``weather`` says from now on."""
        self.weather, self._cleared = weather, trio.current_time()

    @property
    def is_calm(self) -> bool:
        """True where nothing goes wrong, and nothing that went wrong has an effect any more."""
        return self.weather is CALM and trio.current_time() - self._cleared >= AFTERMATH

    # Failovers

    def _parts(self) -> list[Any]:
        (server,) = self.memory._servers.values()
        return [
            server.tasks,
            server.sessions,
            server.events,
            server.changes,
            server.mailboxes.alive,
            server.replay_guard,
            server.rate_limits,
        ]

    def _records(self) -> dict[str, TaskRecord]:
        (server,) = self.memory._servers.values()
        return server.tasks._records

    def save(self) -> None:
        """Note the state to which the next failover goes back."""
        self._before = [(part, _copy(part.__dict__)) for part in self._parts()]
        self._marks_before = {each.id: each.mark for each in self._records().values()}

    def fail_over(self) -> None:
        """Forget all that was written since `save`."""
        if not self._before:
            return
        self.happened["failovers"] += 1
        for task_id, record in self._records().items():
            if self._marks_before.get(task_id) != record.mark:
                self.excused.add(task_id)
        self.excused.update(task_id for task_id in self._marks_before if task_id not in self._records())
        for part, state in self._before:
            part.__dict__.update(_copy(state))
        changes = next(part for part, _ in self._before if type(part).__name__ == "_MemoryChangeLog")
        changes._id = f"{self.chance.getrandbits(48):012x}"  # a log that went back is another log

    def left(self) -> list[str]:
        """Return what replicas have left behind that have ended."""
        (server,) = self.memory._servers.values()
        watched = (server.tasks, server.sessions, server.events, server.changes)
        found = [f"{type(each).__name__} is watched still" for each in watched if each._hint_queues._queues]
        return found + [f"the mailbox of {each} is open still" for each in server.mailboxes.mailboxes]


def _copy(state: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the attributes of a part, but for its watchers and its clock. Records are never changed."""
    kept = {id(value): value for value in state.values() if isinstance(value, HintQueues) or callable(value)}
    records = {id(record): record for record in state.get("_records", {}).values()}
    return copy.deepcopy({name: value for name, value in state.items() if id(value) not in kept}, kept | records)


class Way(FleetStorage):
    """The way of one replica to the storage: `SharedStorage`."""

    def __init__(self, storage: UnreliableStorage) -> None:
        self._storage = storage
        self.is_cut = False
        """True once nothing of this replica arrives any more: it was killed."""

    @asynccontextmanager
    async def join(self, name: str, secrets: Any = ()) -> AsyncIterator[Replica]:
        async with self._storage.memory.join(name, secrets) as replica:
            yield attrs.evolve(
                replica, **{part: Part(part, getattr(replica, part), self._storage, self) for part in PARTS}
            )


_STREAMS = frozenset(("watch", "mailbox"))


class Part:
    """One part of a replica, behind its way."""

    def __init__(self, name: str, part: Any, storage: UnreliableStorage, way: Way) -> None:
        self._name = name
        self._part = part
        self._storage = storage
        self._way = way

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._part, name)
        if name in _STREAMS:
            return lambda: self._stream(method)

        async def call(*args: Any, **options: Any) -> Any:
            return await self._call(name, method, *args, **options)

        return call

    async def _call(self, name: str, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        storage, chance, weather = self._storage, self._storage.chance, self._storage.weather
        await trio.lowlevel.checkpoint()
        with trio.CancelScope(shield=True):
            fate = chance.random()
            if self._way.is_cut or (fate := fate - weather.refused) < 0:
                raise StoreDown("refused")
            if (fate := fate - weather.lost) < 0:
                await trio.sleep(LIMIT)
                raise Uncertain("lost")
            if (fate := fate - weather.unanswered) < 0:
                await self._arrive(name, method, args, options)
                await trio.sleep(LIMIT)
                raise Uncertain("unanswered")
            if (fate := fate - weather.late) < 0:
                storage.nursery.start_soon(self._arrive_late, chance.uniform(LIMIT, 5), name, method, args, options)
                await trio.sleep(LIMIT)
                raise Uncertain("late")
            await trio.sleep(chance.uniform(0, 0.002))
            result = await self._arrive(name, method, args, options)
            await trio.sleep(chance.uniform(0, 0.002))
            if self._way.is_cut:
                raise Uncertain("killed meanwhile")
            return result

    async def _arrive_late(self, delay: float, *call: Any) -> None:
        await trio.sleep(delay)
        self._storage.happened["late calls"] += 1
        try:
            await self._arrive(*call)
        except (OSError, ValueError, StoreFull):  # told to nobody
            self._storage.happened["late errors"] += 1

    async def _arrive(self, name: str, method: Callable[..., Any], args: Any, options: Any) -> Any:
        storage = self._storage
        storage.happened[f"{self._name}.{name}"] += 1
        if self._name == "tasks" and name == "change":
            return await self._changed(method, *args, **options)
        return await method(*args, **options)

    async def _changed(self, method: Callable[..., Any], record: TaskRecord, **options: Any) -> bool:
        storage, before = self._storage, self._storage._records().get(record.id)
        is_kept = await method(record, **options)
        if is_kept and before is not None:
            if options["holder"] is not None and before.holder != options["holder"]:
                storage.faults.append(f"{record.id} was written by {options['holder']}, and {before.holder} holds it")
            if before.phase.is_final:
                storage.faults.append(f"{record.id} was written after its end")
            if record.phase.is_final:
                storage.ends[record.id] += 1
        return is_kept

    @asynccontextmanager
    async def _stream(self, method: Callable[[], Any]) -> AsyncIterator[AsyncIterator[Any]]:
        async with method() as hints:
            yield self._hints(hints)

    async def _hints(self, hints: AsyncIterator[Any]) -> AsyncIterator[Any]:
        storage, chance = self._storage, self._storage.chance
        missed = False
        async for hint in hints:
            weather = storage.weather
            if self._way.is_cut:
                continue
            if missed and weather.hints_lost < 1:
                missed = False
                yield HINTS_LOST
            if isinstance(hint, HintsLost):
                yield hint
                continue
            if chance.random() < weather.hints_lost:
                missed = weather.hints_lost == 1 or missed  # who is cut off for long learns of that
                continue
            if chance.random() < weather.hints_late:
                await trio.sleep(chance.uniform(0, 0.5))
            yield hint
            if chance.random() < weather.hints_doubled:
                yield hint
