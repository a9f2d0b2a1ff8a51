"""MR: random retries, cancels, expiries, duplicates and forgeries, compared with a model."""

from __future__ import annotations

from typing import Any

import attrs
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from trio_mcp import Limits, RequestContext, Server

from .memory_peer import MODERN, MemoryPeer, connected
from .rounds import asked

TIMEOUT, MOST = 10, 2
ROOTS: dict[str, Any] = {"roots": {}}

steps = st.one_of(
    st.tuples(st.just("start"), st.integers(0, 3)),
    st.tuples(st.just("answer"), st.integers(0, 7)),
    st.tuples(st.just("say nothing"), st.integers(0, 7)),
    st.tuples(st.just("repeat"), st.integers(0, 7)),
    st.tuples(st.just("confuse"), st.integers(0, 7)),
    st.tuples(st.just("cancel"), st.integers(0, 7)),
    st.tuples(st.just("wait"), st.integers(1, TIMEOUT)),
)


@attrs.define
class Call:
    """One call, as the model knows it."""

    number: int
    rounds: int
    first: dict[str, Any]
    last_id: int = 0
    result: dict[str, Any] = attrs.field(factory=dict[str, Any])
    parked_at: float | None = None
    answers: list[str] = attrs.field(factory=list[str])
    used: list[dict[str, Any]] = attrs.field(factory=list[Any])
    """Results that asked and were answered."""


class Play:
    """A server, its client, and the model of both."""

    def __init__(self) -> None:
        self.runs: list[int] = []
        self.ended: list[int] = []
        self.calls: list[Call] = []
        self.peer: MemoryPeer
        self.server = Server("s", limits=Limits(retry_timeout=TIMEOUT, max_parked=MOST))

        @self.server.tool
        async def work(number: int, rounds: int, ctx: RequestContext) -> str:
            self.runs.append(number)
            try:
                answers = [(await ctx.list_roots())[0].uri for _ in range(rounds)]
                return " ".join(answers)
            finally:
                self.ended.append(number)

    # The model

    @property
    def parked(self) -> list[Call]:
        """The calls whose handlers wait, oldest first."""
        return sorted((call for call in self.calls if call.parked_at is not None), key=lambda call: call.parked_at or 0)

    def expire(self) -> None:
        now = trio.current_time()
        for call in self.parked:
            if call.parked_at is not None and call.parked_at + TIMEOUT <= now:
                call.parked_at = None
        for call in self.parked[:-MOST]:
            call.parked_at = None

    def pick(self, number: int) -> Call | None:
        return self.calls[number % len(self.calls)] if self.calls else None

    # The steps

    async def run(self, script: list[tuple[str, int]]) -> None:
        async with connected(self.server, MODERN, ROOTS) as self.peer:
            for word, number in script:
                await getattr(self, word.replace(" ", "_"))(number)
                await trio.sleep(0.001)  # no two of them at the same moment of the virtual clock
                self.expire()
                assert self.server.statistics().parked == len(self.parked)
        assert sorted(self.runs) == [call.number for call in self.calls], "each ran exactly once"
        assert sorted(self.ended) == sorted(self.runs), "no handler is left behind"

    async def start(self, rounds: int) -> None:
        number = len(self.calls)
        call = Call(number, rounds, self.peer.call_message("work", {"number": number, "rounds": rounds}))
        self.calls.append(call)
        call.last_id = call.first["id"]
        await self.peer.send(call.first)
        self.advance(call, await self.peer.reply(call.last_id))

    def advance(self, call: Call, reply: dict[str, Any]) -> None:
        """The handler has all answers that were given."""
        if len(call.answers) == call.rounds:
            assert reply["result"]["content"][0]["text"] == " ".join(call.answers)
            call.parked_at = None
        else:
            call.result, call.parked_at = asked(reply), trio.current_time()
            assert len(call.result["inputRequests"]) == 1

    async def retry(self, call: Call, result: dict[str, Any], answer: str | None) -> dict[str, Any]:
        keys = result.get("inputRequests", {})
        responses = {} if answer is None else {key: {"roots": [{"uri": answer}]} for key in keys}
        message = self.peer.retry_message(call.first, result, responses)
        await self.peer.send(message)
        reply = await self.peer.reply(message["id"])
        if "error" not in reply:
            call.last_id = message["id"]
        return reply

    async def answer(self, number: int) -> None:
        await self.come_back(number, f"file:///{number}")

    async def say_nothing(self, number: int) -> None:
        await self.come_back(number, None)

    async def come_back(self, number: int, answer: str | None) -> None:
        call = self.pick(number)
        if call is None or not call.result:
            return
        was_parked, result = call.parked_at is not None, call.result
        reply = await self.retry(call, result, answer)
        if not was_parked:
            assert reply["error"]["code"] == -32602
            return
        call.used.append(result)
        if answer is not None:
            call.answers.append(answer)
        self.advance(call, reply)

    async def repeat(self, number: int) -> None:
        call = self.pick(number)
        if call is not None and call.used:
            reply = await self.retry(call, call.used[number % len(call.used)], "file:///again")
            assert reply["error"]["code"] == -32602

    async def confuse(self, number: int) -> None:
        """The state of one call with the request of another."""
        one, other = self.pick(number), self.pick(number + 1)
        if one is not None and other is not None and one is not other and other.result:
            reply = await self.retry(one, other.result, "file:///stolen")
            assert reply["error"]["code"] == -32602

    async def cancel(self, number: int) -> None:
        call = self.pick(number)
        if call is not None:
            await self.peer.cancel(call.last_id)
            call.parked_at = None

    async def wait(self, seconds: int) -> None:
        await trio.sleep(seconds)


@settings(max_examples=examples(150))
@given(script=st.lists(steps, min_size=10, max_size=30))
def test_server_with_random_retries_and_cancels_runs_no_handler_twice_and_loses_no_answer(
    script: list[tuple[str, int]],
) -> None:
    trio.run(Play().run, script, clock=trio.testing.MockClock(autojump_threshold=0))
