"""An answer belongs to one question of one point of the work, whatever is run once more."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import pytest
import trio
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.tasks.callers import LEASE, Caller, calling, settings
from tests.tasks.touchy_store import TouchyStore
from trio.testing import MockClock

from trio_mcp import InputRequired, PeerError, RequestContext, Server
from trio_mcp.concurrency.contexts import asynccontextmanager
from trio_mcp.runtime.requests.rounds import Rounds
from trio_mcp.runtime.transport import ConnectionLost
from trio_mcp.stores.memory import MemoryTaskStore
from trio_mcp.stores.task_store import TaskStore
from trio_mcp.types import ElicitFormParams

NAME = {"type": "object", "properties": {"name": {"type": "string"}}}
CONTENT: Any = {"type": "object", "properties": {"name": {"type": "string"}}}

Handler = Callable[[RequestContext], Awaitable[str]]


def server_of(store: TaskStore, handler: Handler, on_restart: Any, **options: Any) -> Server:
    """A server with one tool."""
    bounds = {"max_attempts": 1000, "ttl": 1e7, "max_ttl": 1e7}
    server = Server("asking", tasks=settings(store, **bounds))

    async def work(ctx: RequestContext) -> Any:
        return await handler(ctx)

    server.tool(task="required", on_restart=on_restart, **options)(work)
    return server


class Process:
    """A task of one tool, and processes that run it, one after another."""

    def __init__(self, handler: Handler, on_restart: Any, **options: Any) -> None:
        self.store = MemoryTaskStore()
        self.options = options
        self._handler = handler
        self._on_restart = on_restart
        self.task_id = ""

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[Caller]:
        """A process that is killed at the end of the block."""
        way = TouchyStore(self.store)
        async with trio.open_nursery() as nursery:
            server = server_of(way, self._handler, self._on_restart, **self.options)
            async with calling(server) as caller:
                yield caller
                way.die()
                nursery.cancel_scope.cancel()

    async def asked(self, caller: Caller) -> dict[str, str]:
        """The messages of the questions that the client has now, by their keys."""
        await trio.sleep(1)
        task = await caller.get(self.task_id)
        return {key: each["params"]["message"] for key, each in task.get("inputRequests", {}).items()}

    async def answer(self, caller: Caller, **names: str) -> None:
        """Answer each question, which is named by its message, by a name."""
        keys = await self.asked(caller)
        assert sorted(keys.values()) == sorted(names)
        responses = {key: accepted(names[message]) for key, message in keys.items()}
        await caller.ask("tasks/update", taskId=self.task_id, inputResponses=responses)
        await trio.sleep(1)

    async def taken_over(self) -> None:
        """Wait until the lease of the process before is over."""
        await trio.sleep(2 * LEASE)


def accepted(name: str) -> dict[str, Any]:
    return {"action": "accept", "content": {"name": name}}


async def ask(ctx: RequestContext, message: str) -> str:
    answer = await ctx.elicit(message, NAME)
    return str((answer.content or {})["name"])


async def test_rerun_of_a_task_from_a_checkpoint_ignores_elicitation_answers_older_than_the_checkpoint(
    autojump_clock: MockClock,
) -> None:
    deleted = list[tuple[int, str]]()

    async def delete(ctx: RequestContext) -> str:
        assert ctx.task is not None
        await ctx.task.start()
        for number in range(ctx.task.restored or 0, 3):
            deleted.append((number, await ask(ctx, "delete")))
            await ctx.task.checkpoint(number + 1)
        return "done"

    process = Process(delete, "resume")
    async with process.serving() as caller:
        process.task_id = await caller.start("work")
        await process.answer(caller, delete="yes")
        await process.asked(caller)
    async with process.serving() as caller:
        await process.taken_over()
        assert deleted == [(0, "yes")], "the second question is asked"
        await process.answer(caller, delete="no")
        await process.answer(caller, delete="perhaps")
        await caller.final(process.task_id)
    assert deleted == [(0, "yes"), (1, "no"), (2, "perhaps")]


async def test_rerun_of_a_task_from_a_checkpoint_reuses_elicitation_answers_newer_than_the_checkpoint(
    autojump_clock: MockClock,
) -> None:
    got = list[str]()

    async def work(ctx: RequestContext) -> str:
        assert ctx.task is not None
        await ctx.task.start()
        if ctx.task.restored is None:
            got.append(await ask(ctx, "first"))
            await ctx.task.checkpoint(1)
        got.append(await ask(ctx, "second"))
        await trio.sleep(5)
        return "done"

    process = Process(work, "resume")
    async with process.serving() as caller:
        process.task_id = await caller.start("work")
        await process.answer(caller, first="Ada")
        await process.answer(caller, second="Bob")
    async with process.serving() as caller:
        await process.taken_over()
        await caller.final(process.task_id)
    assert got == ["Ada", "Bob", "Bob"]


async def test_rerun_of_a_task_from_its_start_reuses_elicitation_answers_in_order(autojump_clock: MockClock) -> None:
    runs = list[list[str]]()

    async def work(ctx: RequestContext) -> str:
        assert ctx.task is not None
        await ctx.task.start()
        got = list[str]()
        runs.append(got)
        for _ in range(3):
            got.append(await ask(ctx, "who"))
        return "done"

    process = Process(work, "again")
    async with process.serving() as caller:
        process.task_id = await caller.start("work")
        await process.answer(caller, who="Ada")
        await process.answer(caller, who="Bob")
        before = await process.asked(caller)
    async with process.serving() as caller:
        await process.taken_over()
        assert await process.asked(caller) == before, "what the client has is not asked under another key"
        await process.answer(caller, who="Cyd")
        await caller.final(process.task_id)
    assert runs == [["Ada", "Bob"], ["Ada", "Bob", "Cyd"]]


async def test_rerun_of_a_task_ignores_earlier_answers_after_it_sent_a_different_elicitation(
    autojump_clock: MockClock,
) -> None:
    runs = list[list[str]]()

    async def work(ctx: RequestContext) -> str:
        assert ctx.task is not None
        await ctx.task.start()
        runs.append(got := list[str]())
        got.append(await ask(ctx, "first"))
        if ctx.task.attempt > 1:
            got.append(await ask(ctx, "another"))
        got.append(await ask(ctx, "second"))
        got.append(await ask(ctx, "third"))
        return "done"

    process = Process(work, "again")
    async with process.serving() as caller:
        process.task_id = await caller.start("work")
        await process.answer(caller, first="Ada")
        await process.answer(caller, second="Bob")
        stale = await process.asked(caller)
    async with process.serving() as caller:
        await process.taken_over()
        assert (await process.asked(caller)).keys().isdisjoint(stale), "nobody waits for that answer any more"
        await process.answer(caller, another="Cyd")
        await process.answer(caller, second="Dan")
        assert (await process.asked(caller)).keys().isdisjoint(stale)
    async with process.serving() as caller:
        await process.taken_over()
        await process.answer(caller, third="Eve")
        await caller.final(process.task_id)
    assert runs == [["Ada", "Bob"], ["Ada", "Cyd", "Dan"], ["Ada", "Cyd", "Dan", "Eve"]]


async def together(ctx: RequestContext, messages: list[str]) -> dict[int, str]:
    got = dict[int, str]()

    async def one(place: int, message: str) -> None:
        got[place] = await ask(ctx, message)

    async with trio.open_nursery() as nursery:
        for place, message in enumerate(messages):
            nursery.start_soon(one, place, message)
    return got


async def test_rerun_of_a_task_reuses_answers_and_keeps_unanswered_elicitations_open(
    autojump_clock: MockClock,
) -> None:
    runs = list[Any]()

    async def work(ctx: RequestContext) -> str:
        assert ctx.task is not None
        await ctx.task.start()
        runs.append(await together(ctx, ["a", "b", "c"]))
        return "done"

    process = Process(work, "again")
    async with process.serving() as caller:
        process.task_id = await caller.start("work")
        keys = {message: key for key, message in (await process.asked(caller)).items()}
        responses = {keys["a"]: accepted("Ada"), keys["c"]: accepted("Cyd")}
        await caller.ask("tasks/update", taskId=process.task_id, inputResponses=responses)
        await trio.sleep(1)
    async with process.serving() as caller:
        await process.taken_over()
        assert await process.asked(caller) == {keys["b"]: "b"}
        await process.answer(caller, b="Bob")
        await caller.final(process.task_id)
    assert runs == [{0: "Ada", 1: "Bob", 2: "Cyd"}]


async def test_rerun_of_a_task_sends_concurrent_elicitations_with_equal_messages_again(
    autojump_clock: MockClock,
) -> None:
    process = Process(lambda ctx: _same_words(ctx), "again")
    async with process.serving() as caller:
        process.task_id = await caller.start("work")
        first, second = await process.asked(caller)
        await caller.ask("tasks/update", taskId=process.task_id, inputResponses={first: accepted("Ada")})
        await trio.sleep(1)
    async with process.serving() as caller:
        await process.taken_over()
        keys = await process.asked(caller)
        assert len(keys) == 2
        assert keys.keys().isdisjoint({first, second})


async def _same_words(ctx: RequestContext) -> str:
    assert ctx.task is not None
    await ctx.task.start()
    return str(await together(ctx, ["which", "which"]))


async def test_answer_to_an_elicitation_that_a_task_withdrew_is_discarded(autojump_clock: MockClock) -> None:
    got = list[Any]()

    async def work(ctx: RequestContext) -> str:
        assert ctx.task is not None
        await ctx.task.start()
        for number in range(2):
            answer = None
            with trio.move_on_after(10):
                answer = await ask(ctx, "which")
            got.append((ctx.task.attempt, number, answer))
        await ask(ctx, "last")
        return "done"

    process = Process(work, "again")
    async with process.serving() as caller:
        process.task_id = await caller.start("work")
        await trio.sleep(11)
        await process.answer(caller, which="the second")
    assert got == [(1, 0, None), (1, 1, "the second")]
    async with process.serving() as caller:
        await process.taken_over()
    assert (2, 0, "the second") not in got


async def test_rerun_of_a_task_reuses_elicitation_answers_given_before_the_task_started(
    autojump_clock: MockClock,
) -> None:
    """As docs/guarantees/task-restarts.md says: all answers that the client has given."""
    runs = list[list[str]]()

    async def work(ctx: RequestContext) -> str:
        assert ctx.task is not None
        runs.append(got := list[str]())
        got.append(await ask(ctx, "first"))
        got.extend((await together(ctx, ["a", "b"])).values())
        await ctx.task.start()
        got.append(await ask(ctx, "first"))
        await trio.sleep(1000)
        return "done"

    for options in ({}, {"replay": True}):
        runs.clear()
        process = Process(work, "again", **options)
        async with process.serving() as caller:
            answer = await caller.call("work")
            names = {"first": "Ada", "a": "Bob", "b": "Cyd"}
            while answer["resultType"] == "input_required":
                answer = await caller.ask(
                    "tools/call",
                    name="work",
                    arguments={},
                    requestState=answer["requestState"],
                    inputResponses={
                        key: accepted(names[each["params"]["message"]]) for key, each in answer["inputRequests"].items()
                    },
                )
            process.task_id = answer["taskId"]
            await process.answer(caller, first="Dan")
        before = sorted(runs[-1])
        assert before == ["Ada", "Bob", "Cyd", "Dan"]
        async with process.serving() as caller:
            await process.taken_over()
            assert (sorted(runs[-1]), await process.asked(caller)) == (before, {})


async def test_rerun_of_a_task_reuses_answers_to_input_requests_that_its_handler_returned(
    autojump_clock: MockClock,
) -> None:
    runs = list[Any]()

    async def work(ctx: RequestContext) -> Any:
        assert ctx.task is not None
        if not ctx.has_input_response("who"):
            return InputRequired({"who": ElicitFormParams("who", CONTENT)}, state="asked")
        runs.append((ctx.task.attempt, ctx.input_responses["who"]["content"], ctx.request_state))
        await ctx.task.start()
        await trio.sleep(1000)
        return "done"

    process = Process(work, "again")
    async with process.serving() as caller:
        answer = await caller.call("work")
        answer = await caller.ask(
            "tools/call",
            name="work",
            arguments={},
            requestState=answer["requestState"],
            inputResponses={"who": accepted("Ada")},
        )
        process.task_id = answer["taskId"]
    async with process.serving() as caller:
        await process.taken_over()
        assert await process.asked(caller) == {}
    assert runs == [(1, {"name": "Ada"}, "asked"), (2, {"name": "Ada"}, "asked")]


# Any handler, any crash

POINT: ContextVar[object] = ContextVar("point")


class Life:
    """A task whose handler takes ``steps``, what it asks at each point, and what it is told."""

    def __init__(self, steps: list[Any], seed: int, *, tells_apart: bool) -> None:
        self.steps = steps
        self._tells_apart = tells_apart
        """True for a handler whose tasks ask in different words, as those of a replayed one have to."""
        self.points: dict[str, object] = {}
        """The point of the work that a key was made for."""
        self.wrong: list[Any] = []
        self.told = 0
        self._chance = random.Random(seed)

    def key(self, rounds: Rounds, request: Any) -> str:
        key = _key(rounds, request)
        if self.points.setdefault(key, POINT.get()) != POINT.get():
            self.wrong.append((key, self.points[key], POINT.get()))
        return key

    # The handler

    async def ask(self, ctx: RequestContext, words: str, *point: object) -> str:
        POINT.set(point)
        if self._tells_apart and len(point) > 1:
            words = f"{words}, at {point}"
        told = await ask(ctx, words)
        self.told += 1
        if self.points[told] != point:
            self.wrong.append((point, self.points[told]))
        return told

    async def handler(self, ctx: RequestContext) -> str:
        task: Any = ctx.task
        for place in range(task.restored or 0, len(self.steps)):
            name, *arguments = self.steps[place]
            if name == "checkpoint":
                await task.checkpoint(place + 1)
            elif name == "start":
                await task.start()
            else:
                await getattr(self, name)(ctx, place, *arguments)
        return "done"

    async def sleep(self, ctx: RequestContext, place: int, seconds: float) -> None:
        await trio.sleep(seconds)

    async def one(self, ctx: RequestContext, place: int, words: str) -> None:
        """Ask, and ask once more if the answer wishes so."""
        if ord((await self.ask(ctx, words, place, 0))[-3]) % 2:
            await self.ask(ctx, words, place, 1)

    async def together(self, ctx: RequestContext, place: int, several: list[tuple[str, float]]) -> None:
        async def one(number: int, words: str, seconds: float) -> None:
            await trio.sleep(seconds)
            await self.ask(ctx, words, place, number, 0)
            await self.ask(ctx, words, place, number, 1)

        async with trio.open_nursery() as nursery:
            for number, (words, seconds) in enumerate(several):
                nursery.start_soon(one, number, words, seconds)

    async def tries(self, ctx: RequestContext, place: int, words: str, seconds: float) -> None:
        for number in range(3):
            with trio.move_on_after(seconds):
                await self.ask(ctx, words, place, number)
                return

    async def workers(self, ctx: RequestContext, place: int, words: str, delays: list[float]) -> None:
        items = iter(range(5))

        async def work(seconds: float) -> None:
            for item in items:
                await trio.sleep(seconds)
                await self.ask(ctx, words, place, item)

        async with trio.open_nursery() as nursery:
            for seconds in delays:
                nursery.start_soon(work, seconds)

    async def changing(self, ctx: RequestContext, place: int, of_runs: list[str]) -> None:
        """Ask this or that, or nothing, from run to run."""
        assert ctx.task is not None
        if words := of_runs[ctx.task.attempt % len(of_runs)]:
            await self.ask(ctx, f"{words}, in line {place}", place, words)

    # The user

    def responses(self, keys: list[str]) -> dict[str, Any]:
        """Answers to some of the questions. Each says which question it is to."""
        return {key: accepted(key) for key in keys if self._chance.random() < 0.6}

    async def user(self, caller: Caller, process: Process) -> None:
        while True:
            await trio.sleep(self._chance.choice([0.0, 0.3, 1.0, 4.0]))
            with suppress(PeerError, ConnectionLost):
                keys = list((await caller.get(process.task_id)).get("inputRequests", {}))
                await caller.ask("tasks/update", taskId=process.task_id, inputResponses=self.responses(keys))

    async def begin(self, caller: Caller) -> str:
        """Call the tool, and come back until there is a task."""
        answer = await caller.call("work")
        while answer["resultType"] == "input_required":
            await trio.sleep(self._chance.choice([0.0, 1.0, 5.0]))
            more = {
                "requestState": answer["requestState"],
                "inputResponses": self.responses([*answer["inputRequests"]]),
            }
            answer = await caller.ask("tools/call", name="work", arguments={}, **more)
        return answer.get("taskId", "")

    async def run(self, lives: list[float], on_restart: str, replay: bool) -> None:
        process = Process(self.handler, on_restart, replay=replay)
        async with process.serving() as caller:
            process.task_id = await self.begin(caller)
            await self._live(caller, process, lives[0])
        for seconds in lives[1:]:
            async with process.serving() as caller:
                await trio.sleep(LEASE)
                await self._live(caller, process, seconds)
        async with process.serving() as caller, trio.open_nursery() as nursery:
            nursery.start_soon(self.user, caller, process)
            with trio.fail_after(100_000):
                await caller.final(process.task_id)
                assert await caller.text(process.task_id) == "done"
            nursery.cancel_scope.cancel()

    async def _live(self, caller: Caller, process: Process, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self.user(caller, process)


_key = Rounds._key  # pyright: ignore[reportPrivateUsage]

WORDS = st.sampled_from(["which", "which", "who"])
SECONDS = st.sampled_from([0.0, 0.0, 1.0, 3.0])
STEP = st.one_of(
    st.tuples(st.just("one"), WORDS),
    st.tuples(st.just("one"), WORDS),
    st.tuples(st.just("checkpoint")),
    st.tuples(st.just("start")),
    st.tuples(st.just("sleep"), st.sampled_from([0.0, 1.0, 10.0])),
    st.tuples(st.just("together"), st.lists(st.tuples(WORDS, SECONDS), min_size=1, max_size=3)),
    st.tuples(st.just("tries"), WORDS, st.sampled_from([0.5, 2.0, 5.0])),
    st.tuples(st.just("workers"), WORDS, st.lists(SECONDS, min_size=1, max_size=3)),
    st.tuples(st.just("changing"), st.lists(st.sampled_from(["which", "who", ""]), min_size=1, max_size=3)),
)


@pytest.mark.schedules
@hypothesis_settings(max_examples=60)
@example([("start",), *[("one", "which"), ("checkpoint",)] * 3], [5.0, 5.0], "resume", False, 1)
@example([("one", "which"), ("start",), ("one", "which"), ("one", "which")], [5.0], "again", False, 1)
@given(
    st.lists(STEP, min_size=1, max_size=8),
    st.lists(st.sampled_from([0.0, 1.0, 5.0, 15.0, 40.0]), min_size=1, max_size=4),
    st.sampled_from(["again", "resume"]),
    st.booleans(),
    st.integers(0, 1000),
)
def test_rerun_of_a_task_never_answers_an_elicitation_with_the_answer_to_a_different_elicitation(
    steps: list[Any], lives: list[float], on_restart: str, replay: bool, seed: int
) -> None:
    life = Life(steps, seed, tells_apart=replay)
    patch = pytest.MonkeyPatch()
    patch.setattr(Rounds, "_key", lambda rounds, request: life.key(rounds, request))
    try:
        trio.run(life.run, lives, on_restart, replay, clock=MockClock(autojump_threshold=0))
    finally:
        patch.undo()
    assert life.wrong == []
