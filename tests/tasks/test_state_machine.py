"""Servers that share a store, whose tasks are started, asked for, answered and cancelled, while the servers die, end,
sleep and lose their way to the store, in any order."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.tasks import callers
from tests.tasks.callers import LEASE, Caller, calling
from tests.tasks.touchy_store import ALL, TouchyStore, record_in
from tests.tasks.watched_store import WatchedStore
from trio.testing import MockClock

from trio_mcp import PeerError, RequestContext, Server
from trio_mcp.concurrency.contexts import asynccontextmanager
from trio_mcp.jsonrpc.codec import decode_value
from trio_mcp.runtime.transport import ConnectionLost
from trio_mcp.stores import Uncertain
from trio_mcp.stores.task_store import StoreDown, TaskPhase, TaskRecord

NAME = {"type": "object", "properties": {"name": {"type": "string"}}}
KINDS = ("once", "again", "resume", "ask")
SLOTS = 3
LENGTHS = (0.0, 1.0, 20.0, 40.0)
"""Seconds that the work of a task takes."""
LOST = (("create",), ("change",), ("claim",), ("create", "change", "claim"))
FOR_EVER = 1e7
SHORT = 100.0


class Way(TouchyStore):
    """The way of one server to the store. While the server sleeps, it notices nothing, and its writes come late."""

    sleeps = False

    async def renew(self, held: Any, *, lease_ms: int) -> Any:
        return () if self.sleeps else await super().renew(held, lease_ms=lease_ms)

    async def marks(self, task_ids: Any) -> Any:
        if self.sleeps:
            raise StoreDown("the server sleeps")
        return await super().marks(task_ids)

    async def claim(self, holder: str, *, lease_ms: int, limit: int, names: Any) -> Any:
        return () if self.sleeps else await super().claim(holder, lease_ms=lease_ms, limit=limit, names=names)

    @asynccontextmanager
    async def watch(self) -> AsyncGenerator[AsyncIterator[str]]:
        async with super().watch() as hints:
            yield (hint async for hint in hints if not self.sleeps)


class Slot:
    """A place for a server, and the one that is there now."""

    def __init__(self, world: World, slowness: float) -> None:
        self._world = world
        self._slowness = slowness
        self.way = Way(world.store, slowness)
        self.caller: Caller | None = None
        self.running: Any = None
        self._scope = trio.CancelScope()
        self._leave = trio.Event()
        self._left = trio.Event()

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self.way = Way(self._world.store, self._slowness)
        self._scope, self._leave, self._left = trio.CancelScope(), trio.Event(), trio.Event()
        with self._scope:
            async with calling(self._world.server(self.way)) as self.caller:
                task_status.started()
                await self._leave.wait()
        self._left.set()

    async def kill(self) -> None:
        """End the server as SIGKILL does: nothing is written any more."""
        self.way.die()
        self._scope.cancel()
        await self._left.wait()

    async def end(self) -> None:
        """End the server as SIGTERM does."""
        self._leave.set()
        await self._left.wait()


class World:
    """The servers, their tasks, and what we know of them."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.store = WatchedStore()
        self.runs: dict[str, list[int]] = defaultdict(list)
        """The numbers of the ownerships under which each task ran."""
        self.under_way: list[str] = []
        self.accepted: dict[str, str] = {}
        self.cancelled: set[str] = set()
        self.slots: list[Slot] = []
        self.nursery = nursery
        self.ends = 0
        """How many servers were killed, or ended."""
        self._answers = 0

    def server(self, way: Way) -> Server:
        """A server with a tool of each kind."""
        server = Server(
            "world",
            tasks=callers.settings(way, ttl=FOR_EVER, max_ttl=FOR_EVER, max_attempts=10_000, retention=FOR_EVER),
        )

        async def run(ctx: RequestContext, body: Callable[[], Any]) -> str:
            task: Any = ctx.task
            await task.start()
            owner = task._task.epoch  # a later one, once its process has claimed again what runs here
            self.runs[task.id].append(owner)
            self.under_way.append(task.id)
            try:
                return f"{await body()}, as owner {owner}"
            finally:
                self.under_way.remove(task.id)

        @server.tool(task="required")
        async def once(seconds: float, ctx: RequestContext) -> str:
            async def body() -> str:
                await trio.sleep(seconds)
                return "once"

            return await run(ctx, body)

        @server.tool(task="required", on_restart="again")
        async def again(seconds: float, ctx: RequestContext) -> str:
            async def body() -> str:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(trio.sleep, seconds)
                    nursery.start_soon(trio.sleep, seconds / 2)
                return "again"

            return await run(ctx, body)

        @server.tool(task="required", on_restart="resume")
        async def resume(seconds: float, ctx: RequestContext) -> str:
            async def body() -> str:
                assert ctx.task is not None
                for step in range(ctx.task.restored or 0, 3):
                    await trio.sleep(seconds / 3)
                    await ctx.task.checkpoint(step + 1)
                return "resume"

            return await run(ctx, body)

        @server.tool(task="required", on_restart="again")
        async def ask(seconds: float, ctx: RequestContext) -> str:
            async def body() -> str:
                first = await ctx.elicit("Who?", NAME)
                await trio.sleep(seconds)
                second = await ctx.elicit("Who?", NAME)
                return f"{(first.content or {})['name']} {(second.content or {})['name']}"

            return await run(ctx, body)

        return server

    # Steps

    async def start(self, slot: Slot, kind: str, seconds: float) -> None:
        """Start a task, whose answer may never come."""
        self.nursery.start_soon(self._start, slot.caller, kind, seconds)
        await trio.sleep(0.01)

    async def _start(self, caller: Caller, kind: str, seconds: float) -> None:
        with suppress(PeerError, ConnectionLost):
            self.accepted[await caller.start(kind, seconds=seconds)] = kind

    async def answer(self, slot: Slot, which: int) -> None:
        """Answer the questions of a task, once more perhaps."""
        if (task_id := self._one(which, "ask")) is None or slot.caller is None:
            return
        record = await record_in(self.store, task_id)
        self._answers += 1
        accept = {"action": "accept", "content": {"name": f"name {self._answers}"}}
        responses = dict.fromkeys((*record.questions, *record.answers), accept)
        self.nursery.start_soon(
            self._ask, slot.caller, "tasks/update", {"taskId": task_id, "inputResponses": responses}
        )
        await trio.sleep(0.01)

    async def _ask(self, caller: Caller, method: str, params: dict[str, Any]) -> None:
        with suppress(PeerError, ConnectionLost):
            await caller.ask(method, **params)

    async def cancel(self, slot: Slot, which: int) -> None:
        """Cancel a task, which may have ended."""
        if (task_id := self._one(which, *KINDS)) is None or slot.caller is None:
            return
        self.nursery.start_soon(self._ask, slot.caller, "tasks/cancel", {"taskId": task_id})
        await trio.sleep(0.01)

    def _one(self, which: int, *kinds: str) -> str | None:
        known = [task_id for task_id, kind in self.accepted.items() if kind in kinds]
        return known[which % len(known)] if known else None

    async def kill(self, slot: Slot) -> None:
        self.ends += 1
        await slot.kill()
        await self.nursery.start(slot.serve)

    async def end(self, slot: Slot) -> None:
        self.ends += 1
        await slot.end()
        await self.nursery.start(slot.serve)

    async def sleep_or_wake(self, slot: Slot) -> None:
        slot.way.sleeps = not slot.way.sleeps
        await trio.sleep(0.01)

    async def sleep_too_long(self, slot: Slot) -> None:
        slot.way.sleeps = True
        await trio.sleep(1.5 * LEASE)
        slot.way.sleeps = False

    async def fail_or_mend(self, slot: Slot) -> None:
        slot.way.fails = set() if slot.way.fails else set(ALL - {"create"})
        await trio.sleep(0.01)

    async def lose_or_find(self, slot: Slot, methods: tuple[str, ...]) -> None:
        """Lose the answers of the store to some methods, which do what they do, until they are found again."""
        slot.way.loses = {} if slot.way.loses else dict.fromkeys(methods, Uncertain("no answer"))
        await trio.sleep(0.01)

    # The end

    async def finish(self) -> None:
        """Let all servers run well, answer all questions, and wait for the end of all tasks."""
        for slot in self.slots:
            slot.way.fails, slot.way.loses, slot.way.sleeps = set(), {}, False
        await trio.sleep(LEASE / 2)
        assert len(set(self.under_way)) == len(self.under_way), "two run one task"
        for which in range(200):
            await trio.sleep(LEASE / 2)
            if all(record.phase.is_final for record in await self.records()):
                break
            for each in range(len(self.accepted)):
                await self.answer(self.slots[which % SLOTS], each)
        await trio.sleep(LEASE)

    async def records(self) -> list[TaskRecord]:
        """The records of all tasks that we know of."""
        return [await record_in(self.store, task_id) for task_id in self.accepted]

    async def check(self) -> None:
        """Check what holds in the end."""
        assert self.store.faults == []
        assert self.under_way == [], "a nursery is left"
        if not self.ends:  # a server that ends may leave what it could not take back
            for record in await self.store.page("", None, 10_000):
                assert record.phase.is_final, f"a task that nobody knows of is left: {record}"
        for record in await self.records():
            kind, runs = self.accepted[record.id], self.runs[record.id]
            assert len(set(runs)) == len(runs), f"a task of {kind} ran twice under one owner: {runs}"
            assert record.phase.is_final, f"a task of {kind} never ended: {record}"
            if record.phase is TaskPhase.CANCELLED:
                continue
            assert record.outcome is not None
            value = decode_value(record.outcome.json)
            if not runs:  # the store did not take it when it began, and took the refusal as the outcome of a task
                assert value["code"] == -31000
            elif kind == "once":
                assert len(runs) == 1
                assert not record.outcome.is_error or value["code"] == -31002
            else:
                assert not record.outcome.is_error, value
            if runs and not record.outcome.is_error:
                given = [
                    decode_value(answer)["content"]["name"] for answer in self.store.answers.get(record.id, {}).values()
                ]
                said = " ".join(given) if kind == "ask" else kind
                # Its process may have claimed it again to write down what had ended before.
                assert value["content"][0]["text"] == f"{said}, as owner {runs[-1]}"


STEPS: tuple[tuple[Sequence[Any], ...], ...] = (
    (["start"], range(SLOTS), KINDS, LENGTHS),
    (["start"], range(SLOTS), ["ask"], LENGTHS),
    (["answer"], range(SLOTS), range(6)),
    (["cancel"], range(SLOTS), range(6)),
    (["kill"], range(SLOTS)),
    (["end"], range(SLOTS)),
    (["sleep_or_wake"], range(SLOTS)),
    (["sleep_too_long"], range(SLOTS)),
    (["fail_or_mend"], range(SLOTS)),
    (["lose_or_find"], range(SLOTS), LOST),
    (["wait"], [0.01, 0.5, 5.0, 31.0]),
)
"""What each kind of step is drawn from: its name, the number of its server, and the other arguments."""
SLOWNESS = (0.0, 0.0, 0.04)
steps_of_servers = st.lists(st.one_of(*(st.tuples(*map(st.sampled_from, step)) for step in STEPS)), max_size=30)


async def _live(steps: Iterable[tuple[Any, ...]], slowness: float) -> None:
    async with trio.open_nursery() as nursery:
        world = World(nursery)
        world.slots = [Slot(world, slowness) for _ in range(SLOTS)]
        for slot in world.slots:
            await nursery.start(slot.serve)
        for name, *arguments in steps:
            if name == "wait":
                await trio.sleep(*arguments)
            else:
                number, *others = arguments
                await getattr(world, name)(world.slots[number], *others)
        await world.finish()
        for slot in world.slots:
            await slot.end()
        nursery.cancel_scope.cancel()
    await world.check()


def live(steps: Iterable[tuple[Any, ...]], slowness: float) -> None:
    """Take the steps, with stores that take so many seconds for each change, and check what holds in the end."""
    logging.disable(logging.CRITICAL)  # of a store that fails at each turn
    try:
        trio.run(_live, steps, slowness, clock=MockClock(autojump_threshold=0))
    finally:
        logging.disable(logging.NOTSET)


@settings(max_examples=25)
@example([("start", 0, "again", 40.0), ("sleep_too_long", 0)], 0.0)  # the outcome of the earlier owner comes first
@example([("fail_or_mend", 0), ("start", 0, "ask", 0.0)], 0.0)
@given(steps_of_servers, st.sampled_from(SLOWNESS))
def test_each_task_ends_once_despite_random_server_and_store_failures(
    steps: list[tuple[Any, ...]], slowness: float
) -> None:
    live(steps, slowness)
