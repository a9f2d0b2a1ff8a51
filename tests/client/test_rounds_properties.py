"""A client and a server that asks, under a virtual clock and any schedule: no answer and no state goes astray, no
handler is left, and a call that is left is cancelled once, by the last id the server knows it by.

Several calls run at once. Each is asked in some rounds, of some questions each, whose handlers take their time,
refuse or fail; each may be given up at any moment. The laws at the end of the file hold always.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from typing import Any, Literal

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.interaction.client.raw import discovery
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import Client, CodedError, Limits, PeerError, ProtocolViolation
from trio_mcp.client.opening import open_client
from trio_mcp.runtime.cancellation import REMAINING_MS
from trio_mcp.transports.lines import MemoryTransport, memory_transport_pair
from trio_mcp.types import ElicitFormParams

Ending = Literal["result", "error", "nonsense", "silence"]


@attrs.frozen
class Question:
    """What the handler for one question does, after so many seconds."""

    seconds: int
    end: Literal["answer", "refuse", "fail"]


@attrs.frozen
class Round:
    """The server asks after so many seconds; ``state`` is what it has the client bring back."""

    seconds: int
    questions: list[Question]
    state: str | None


@attrs.frozen
class Plan:
    """What one call is to do. Small integers, so that many things happen in one tick."""

    start: int
    give_up: int | None
    rounds: list[Round]
    seconds: int
    end: Ending
    padding: int
    """Bytes that make it large on the wire."""


questions = st.builds(
    Question, seconds=st.integers(0, 3), end=st.sampled_from(["answer", "answer", "answer", "refuse", "fail"])
)
rounds = st.builds(
    Round,
    seconds=st.integers(0, 2),
    questions=st.lists(questions, max_size=3),
    state=st.sampled_from([None, "", "a", "b"]),
)
plans = st.builds(
    Plan,
    start=st.integers(0, 3),
    give_up=st.none() | st.integers(0, 8),
    rounds=st.lists(rounds, max_size=3),
    seconds=st.integers(0, 2),
    end=st.sampled_from(["result", "result", "error", "nonsense", "silence"]),
    padding=st.sampled_from([0, 500, 5000]),
)


class ScriptedServer:
    """Does what the plans say. It notes what it read and answered."""

    def __init__(self, channel: MemoryTransport, plans: list[Plan]) -> None:
        self.channel = channel
        self.plans = plans
        self.read: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
        """The requests of each call."""
        self.answered: set[int] = set()
        """The requests that got their last answer."""
        self.cancelled: list[int] = []
        self.running: dict[int, trio.CancelScope] = {}

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    message = json.loads(await self.channel.receive())
                except trio.EndOfChannel:
                    break
                match message["method"]:
                    case "server/discover":
                        await self.send(message, {"result": discovery()})
                    case "notifications/cancelled":
                        self.cancelled.append(message["params"]["requestId"])
                        if (scope := self.running.get(self.cancelled[-1])) is not None:
                            scope.cancel()
                    case "tools/call":
                        requests = self.read[int(message["params"]["name"])]
                        requests.append(message)
                        nursery.start_soon(self.serve, message, len(requests) - 1)
            nursery.cancel_scope.cancel()

    async def serve(self, request: dict[str, Any], number: int) -> None:
        key = int(request["params"]["name"])
        plan = self.plans[key]
        with trio.CancelScope() as self.running[request["id"]]:
            if number < len(plan.rounds):
                asks = plan.rounds[number]
                await trio.sleep(asks.seconds)
                await self.send(request, {"result": question_of(key, number, asks)})
                return
            await trio.sleep(math.inf if plan.end == "silence" else plan.seconds)
            self.answered.add(request["id"])
            match plan.end:
                case "error":
                    await self.send(request, {"error": {"code": 1000 + key, "message": "as planned"}})
                case "nonsense":
                    await self.send(request, {"result": {"resultType": "nonsense"}})
                case _:
                    text = {"type": "text", "text": f"result {key}"}
                    await self.send(request, {"result": {"content": [text], "padding": "x" * plan.padding}})

    async def send(self, request: dict[str, Any], more: dict[str, Any]) -> None:
        line = json.dumps({"jsonrpc": "2.0", "id": request["id"], **more}).encode()
        with trio.CancelScope(shield=True):  # a message is whole, cancelled or not
            await self.channel.send(line + b"\n")


def question_of(key: int, number: int, asks: Round) -> dict[str, Any]:
    asked = {
        f"q{place}": {
            "method": "elicitation/create",
            "params": {"message": f"{key} {number} {place}", "requestedSchema": {"type": "object", "properties": {}}},
        }
        for place in range(len(asks.questions))
    }
    state = {} if asks.state is None and asked else {"requestState": state_of(key, number, asks)}
    return {"resultType": "input_required", **state, **({"inputRequests": asked} if asked else {})}


def state_of(key: int, number: int, asks: Round) -> str:
    return f"{asks.state}: call {key}, round {number}"


def retry_of(key: int, number: int, asks: Round) -> dict[str, Any]:
    """What the request that follows this round brings."""
    question = question_of(key, number, asks)
    state = {"requestState": question["requestState"]} if "requestState" in question else {}
    answers = {
        name: {"action": "accept", "content": {"said": f"to {each['params']['message']}"}}
        for name, each in question.get("inputRequests", {}).items()
    }
    return {**state, **({"inputResponses": answers} if answers else {})}


class Host:
    """Calls as planned, and answers what it is asked."""

    def __init__(self, plans: list[Plan]) -> None:
        self.plans = plans
        self.outcomes: dict[int, str] = {}
        self.asked: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()

    async def elicit(self, params: ElicitFormParams) -> dict[str, Any]:
        key, number, place = map(int, params.message.split())
        question = self.plans[key].rounds[number].questions[place]
        assert key not in self.outcomes, "asked after the end"
        self.asked[params.message] += 1
        try:
            await trio.sleep(question.seconds)
        finally:
            self.ended[params.message] += 1
        if question.end == "refuse":
            raise CodedError(-1, "no")
        if question.end == "fail":
            raise ZeroDivisionError
        return {"said": f"to {params.message}"}

    async def call(self, client: Client, key: int) -> None:
        plan = self.plans[key]
        await trio.sleep(plan.start)
        outcome = "given up"
        with trio.move_on_after(math.inf if plan.give_up is None else plan.give_up):
            try:
                result = await client.call_tool(str(key), {"padding": "x" * plan.padding})
                assert result.text == f"result {key}", "somebody else's answer"
                outcome = "result"
            except PeerError as error:
                outcome = "error" if error.code == 1000 + key else "somebody else's error"
            except ProtocolViolation:
                outcome = "nonsense"
            except CodedError:
                outcome = "refuse"
            except ZeroDivisionError:
                outcome = "fail"
        self.outcomes[key] = outcome


async def play(plans: list[Plan], capacity: int, high_water: int) -> None:
    ours, theirs = memory_transport_pair(capacity)
    server, host = ScriptedServer(theirs, plans), Host(plans)
    async with trio.open_nursery() as outer:
        outer.start_soon(server.run)
        limits = Limits(high_water=high_water)
        options: Any = {"era": "modern", "elicitation": host.elicit, "limits": limits}
        # No question waits for its turn: else the turns, and not the handlers' times, decide which of them fails first.
        async with open_client(ours, max_questions=100, **options) as client:
            with trio.move_on_after(1000):
                async with trio.open_nursery() as nursery:
                    for key in range(len(plans)):
                        nursery.start_soon(host.call, client, key)
            await wait_all_tasks_blocked()
            assert client._connection.state.outbound == ()
        await ours.aclose()
    assert host.asked == host.ended
    assert all(count == 1 for count in host.asked.values())
    for key, plan in enumerate(plans):
        assert_requests_are_the_rounds_in_order(key, plan, server.read[key])
        assert_cancelled_once_by_the_last_id(host.outcomes.get(key, "given up"), server, server.read[key])
        if plan.give_up is None:
            assert host.outcomes.get(key, "silence") in outcomes_of(plan)
    assert len({request["id"] for requests in server.read.values() for request in requests}) == sum(
        map(len, server.read.values())
    )


@settings(max_examples=examples(150))
@given(st.lists(plans, min_size=1, max_size=5), st.sampled_from([1, 300, 65536]), st.sampled_from([1, 300, 16384]))
def test_calls_that_require_input_keep_all_invariants_in_any_order_of_retries_and_cancels(
    plans: list[Plan], capacity: int, high_water: int
) -> None:
    trio.run(play, plans, capacity, high_water, clock=MockClock(autojump_threshold=0))


# The laws


def assert_requests_are_the_rounds_in_order(key: int, plan: Plan, requests: list[dict[str, Any]]) -> None:
    brought = [
        {name: value for name, value in request["params"].items() if name in ("requestState", "inputResponses")}
        for request in requests
    ]
    wanted = [{}, *(retry_of(key, number, asks) for number, asks in enumerate(plan.rounds))]
    assert brought == wanted[: len(brought)]
    metas = [dict(request["params"]["_meta"]) for request in requests]
    remaining = [meta.pop(REMAINING_MS, 0) for meta in metas]
    assert remaining == sorted(remaining, reverse=True)
    assert len({json.dumps(meta) for meta in metas}) <= 1


def assert_cancelled_once_by_the_last_id(outcome: str, server: ScriptedServer, requests: list[dict[str, Any]]) -> None:
    ids = [request["id"] for request in requests]
    cancels = [each for each in server.cancelled if each in ids]
    if outcome in ("result", "error", "nonsense") or not ids:
        assert cancels == []
    elif ids[-1] in server.answered:
        assert cancels in ([], ids[-1:])  # the answer was on its way
    else:
        assert cancels == ids[-1:]


def outcomes_of(plan: Plan) -> set[str]:
    """How a call may end that nobody gives up: the first handler that fails decides, any one of several at once."""
    for asks in plan.rounds:
        failing = [question for question in asks.questions if question.end != "answer"]
        if failing:
            first = min(question.seconds for question in failing)
            return {question.end for question in failing if question.seconds == first}
    return {plan.end}
