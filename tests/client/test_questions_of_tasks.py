"""The questions of a task: each is answered once, by the ordinary handlers, within bounds."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from tests.client.rounds import FORM, ROOTS, SAMPLE, URL
from tests.client.scripted_tasks import ENDED, TaskPeer, asks, created, state, with_tasks
from tests.interaction.client.raw import RawPeer, methods_in, scripted, text_of
from trio.testing import wait_all_tasks_blocked

from trio_mcp import CodedError, PeerError, ProtocolViolation, fail_after_work
from trio_mcp.client.opening import open_client
from trio_mcp.types import ElicitFormParams

DONE = state("completed", result=ENDED)


class Asking:
    """A task that asks ``questions``, and ends when all of them are answered."""

    def __init__(self, **questions: Any) -> None:
        self.questions = questions
        self.peer: TaskPeer | None = None

    def __call__(self) -> Any:
        assert self.peer is not None
        answered = {key for update in self.peer.sent("tasks/update") for key in update["inputResponses"]}
        left = {key: each for key, each in self.questions.items() if key not in answered}
        return asks(**left) if left else DONE


async def test_client_handlers_answer_the_input_requests_of_a_task(autojump_clock: object) -> None:
    asking = Asking(who=FORM, model=SAMPLE, where=ROOTS)
    async with with_tasks(asking) as (client, asking.peer):
        assert text_of(await client.call_tool("any")) == "done"
        answers: dict[str, Any] = {}
        for update in asking.peer.sent("tasks/update"):
            assert update["taskId"] == "t"
            answers |= update["inputResponses"]
    assert answers == {
        "who": {"action": "accept", "content": {"name": "Ann"}},
        "model": {"role": "assistant", "content": {"type": "text", "text": "hello"}, "model": "model"},
        "where": {"roots": [{"uri": "file:///a", "name": "a"}]},
    }


async def test_input_request_of_a_task_seen_in_several_polls_is_answered_once(autojump_clock: object) -> None:
    asked: list[str] = []

    async def slowly(params: ElicitFormParams) -> dict[str, Any]:
        asked.append(params.message)
        await trio.sleep(10)
        return {"name": "Ann"}

    async with with_tasks(lambda: asks(who=FORM), elicitation=slowly) as (client, peer):
        with trio.move_on_after(60):
            await client.call_tool("any")
        await wait_all_tasks_blocked()
        assert asked == ["who?"]
        assert len(peer.times) > 50
        assert [update["inputResponses"].keys() for update in peer.sent("tasks/update")] == [{"who"}]


async def test_client_sends_each_input_response_of_a_task_as_soon_as_it_is_ready(autojump_clock: object) -> None:
    async def by_name(params: ElicitFormParams) -> dict[str, Any]:
        await trio.sleep(int(params.message))
        return {"name": params.message}

    def form(message: str) -> Any:
        return {"method": "elicitation/create", "params": {**FORM["params"], "message": message}}  # type: ignore[dict-item]

    asking = Asking(a=form("5"), b=form("50"), c=form("5"))
    async with with_tasks(asking, elicitation=by_name) as (client, asking.peer):
        await client.call_tool("any")
        keys = [sorted(update["inputResponses"]) for update in asking.peer.sent("tasks/update")]
        assert sorted(key for each in keys for key in each) == ["a", "b", "c"]
        assert keys[-1] == ["b"]


async def test_input_request_that_a_task_withdraws_cancels_the_client_handler(
    autojump_clock: object,
) -> None:
    began = ended = 0

    async def wait(_: ElicitFormParams) -> dict[str, Any]:
        nonlocal began, ended
        began += 1
        try:
            await trio.sleep(10)
        finally:
            ended += 1
        return {"name": "Ann"}

    states = iter([asks(who=FORM), state(), state()])
    async with with_tasks(lambda: next(states, asks(who=FORM)), elicitation=wait) as (client, peer):
        with trio.move_on_after(2.5):
            await client.call_tool("any")
        assert (began, ended) == (1, 1)
        states = iter([asks(who=FORM), state(), state()])
        with trio.move_on_after(30):
            await client.call_tool("any")
        await wait_all_tasks_blocked()
        assert (began, ended) == (3, 3)
        assert len(peer.sent("tasks/update")) == 1


async def test_failed_input_handler_cancels_the_task_before_other_handlers_finish_cleanup(
    autojump_clock: object,
) -> None:
    cleaned: list[int] = []

    async def refuse(_: Any) -> Any:
        await trio.sleep(5)
        raise CodedError(-1, "the user said no")

    async def tidy(_: Any) -> Any:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(5)
                cleaned.append(len(peer.sent("tasks/cancel")))

    async with with_tasks(lambda: asks(who=FORM, model=SAMPLE), elicitation=refuse, sampling=tidy) as (client, peer):
        with pytest.raises(CodedError, match="said no"):
            await client.call_tool("any")
        assert cleaned == [1]
        assert len(peer.sent("tasks/cancel")) == 1
        assert not peer.sent("tasks/update")


@pytest.mark.parametrize(
    "question", [URL, {"method": "elicitation/create", "params": {}}, {"method": "roots/list", "params": 5}]
)
async def test_input_request_of_a_task_without_the_client_capability_raises_protocol_violation(
    autojump_clock: object, question: Any
) -> None:
    asked: list[Any] = []
    async with with_tasks(lambda: asks(who=FORM, bad=question), elicitation=asked.append) as (client, peer):
        with pytest.raises(ProtocolViolation):
            await client.call_tool("any")
        await wait_all_tasks_blocked()
        assert not asked
        assert peer.sent("tasks/cancel") == [{"taskId": "t"}]


async def test_call_fails_if_its_task_has_ten_thousand_open_input_requests(autojump_clock: object) -> None:
    asked: list[Any] = []
    many = {f"k{number}": ROOTS for number in range(10_000)}
    async with with_tasks(lambda: asks(**many), roots=lambda: asked.append(1)) as (client, _):
        with pytest.raises(ProtocolViolation, match="10000 input requests"):
            await client.call_tool("any")
        assert not asked


async def test_call_fails_if_its_task_sends_more_input_requests_than_max_rounds(autojump_clock: object) -> None:
    count = 0

    def look() -> Any:
        nonlocal count
        count += 1
        return asks(**{f"k{count}": ROOTS})

    async with with_tasks(look, max_rounds=5) as (client, peer):
        with pytest.raises(ProtocolViolation, match="more than 5 times"):
            await client.call_tool("any")
        await wait_all_tasks_blocked()
        assert len(peer.sent("tasks/update")) == 5
        assert len(peer.sent("tasks/cancel")) == 1


async def test_call_timeout_does_not_include_the_time_of_elicitations_from_a_task(autojump_clock: object) -> None:
    async def think(_: ElicitFormParams) -> dict[str, Any]:
        await trio.sleep(1000)
        return {"name": "Ann"}

    asking = Asking(who=FORM)
    async with with_tasks(asking, elicitation=think) as (client, asking.peer):
        with fail_after_work(10):
            assert text_of(await client.call_tool("any")) == "done"


async def test_concurrent_elicitation_handlers_of_a_task_are_limited(autojump_clock: object) -> None:
    running = most = 0

    async def think(_: ElicitFormParams) -> dict[str, Any]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.sleep(10)
        running -= 1
        return {"name": "Ann"}

    asking = Asking(**{f"k{number}": FORM for number in range(10)})
    async with with_tasks(asking, elicitation=think, max_questions=3) as (client, asking.peer):
        await client.call_tool("any")
    assert most == 3


async def test_client_repeats_input_responses_that_a_busy_server_rejects(autojump_clock: object) -> None:
    asking = Asking(who=FORM)

    class Busy(TaskPeer):
        refused = 0

        async def say(self, message: dict[str, Any], said: Any) -> None:
            if message.get("method") == "tasks/update" and self.refused < 3:
                self.refused += 1
                self.wire.remove(message)
                await self.error(message, -31000)
            else:
                await super().say(message, said)

    async with with_tasks(asking, kind=Busy) as (client, asking.peer):
        assert text_of(await client.call_tool("any")) == "done"
        assert len(asking.peer.sent("tasks/update")) == 1


async def test_client_ignores_an_error_for_its_input_responses_only_if_the_task_is_finished(
    autojump_clock: object,
) -> None:
    class Over(TaskPeer):
        async def say(self, message: dict[str, Any], said: Any) -> None:
            await super().say(message, -32602 if message.get("method") == "tasks/update" else said)

    def look() -> Any:
        return DONE if peer.sent("tasks/update") else asks(who=FORM)

    async with with_tasks(look, kind=Over) as (client, peer):
        assert text_of(await client.call_tool("any")) == "done"
        peer.look = lambda: asks(who=FORM)
        with pytest.raises(PeerError):  # answers that the server does not take
            await client.call_tool("any")
        await wait_all_tasks_blocked()
        assert len(peer.sent("tasks/cancel")) == 1


async def test_input_request_of_a_task_is_answered_once_even_if_two_callers_wait_for_the_task(
    autojump_clock: object,
) -> None:
    asked = 0

    async def think(_: ElicitFormParams) -> dict[str, Any]:
        nonlocal asked
        asked += 1
        await trio.sleep(10)
        return {"name": "Ann"}

    asking = Asking(who=FORM)
    async with with_tasks(asking, elicitation=think) as (client, asking.peer):
        task = await client.start_task("any")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(task.result)
            nursery.start_soon(task.result)
        assert asked == 1
        assert len(asking.peer.sent("tasks/update")) == 1


async def test_second_caller_that_waits_for_a_task_answers_its_input_request_if_the_first_caller_is_cancelled(
    autojump_clock: object,
) -> None:
    asked = 0

    async def think(_: ElicitFormParams) -> dict[str, Any]:
        nonlocal asked
        asked += 1
        await trio.sleep(10)
        return {"name": "Ann"}

    asking = Asking(who=FORM)
    async with with_tasks(asking, elicitation=think) as (client, asking.peer):
        task = await client.start_task("any")
        with trio.move_on_after(5):
            await task.result()
        assert text_of(await task.result()) == "done"
        assert asked == 2
        assert not asking.peer.sent("tasks/cancel")


async def test_server_can_request_input_for_a_call_before_the_server_creates_its_task(autojump_clock: object) -> None:
    async def sign(_: ElicitFormParams) -> dict[str, Any]:  # a thread would let the clock jump to the next look
        return {"name": "Ann"}

    async def script(peer: RawPeer) -> None:
        await peer.discovered()
        call = await peer.until("tools/call")
        await peer.result(call, {"resultType": "input_required", "inputRequests": {"a": FORM}, "requestState": "s"})
        again = await peer.until("tools/call")
        assert again["params"]["requestState"] == "s"
        assert again["params"]["inputResponses"].keys() == {"a"}
        await peer.result(again, created())
        await peer.result(await peer.until("tasks/get"), asks(a=FORM))  # the names of a task are names of its own
        update = await peer.until("tasks/update")
        assert update["params"]["inputResponses"].keys() == {"a"}
        await peer.result(update, {"resultType": "complete"})
        await peer.result(await peer.until("tasks/get"), DONE)

    async with (
        scripted(script) as (channel, peer),
        open_client(channel, elicitation=sign) as client,
    ):
        assert text_of(await client.call_tool("any")) == "done"
    assert not {"notifications/cancelled", "tasks/cancel"} & set(methods_in(peer.wire))
