"""How often a task is looked at, and what the looks bring."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import trio
from tests.client.scripted_tasks import ENDED, created, state, with_tasks
from tests.interaction.client.raw import methods_in, text_of

from trio_mcp import (
    ConnectionLost,
    PeerError,
    Progress,
    ProtocolViolation,
    TaskCancelled,
    fail_after_silence,
    fail_after_work,
)

DONE = state("completed", result=ENDED)


def one_after_another(*states: Any) -> Any:
    """A look that gives these states, the last for ever."""
    left: Iterator[Any] = iter(states[:-1])
    return lambda: next(left, states[-1])


@pytest.mark.parametrize(("wish", "pause"), [({}, 1), ({"pollIntervalMs": 2500}, 2.5), ({"pollIntervalMs": 0}, 0.1)])
async def test_client_polls_a_task_at_the_interval_of_the_server_but_at_most_ten_times_a_second(
    autojump_clock: object, wish: dict[str, int], pause: float
) -> None:
    look = one_after_another(state(**wish), state(**wish), DONE)
    async with with_tasks(look, created(**wish)) as (client, peer):
        before = trio.current_time()
        assert text_of(await client.call_tool("any")) == "done"
        assert [time - before for time in peer.times] == pytest.approx([pause, 2 * pause, 3 * pause])


async def test_client_uses_a_changed_poll_interval_of_at_most_five_minutes(autojump_clock: object) -> None:
    look = one_after_another(state(pollIntervalMs=10**400), state(pollIntervalMs=-5), state(pollIntervalMs=500), DONE)
    async with with_tasks(look, created(pollIntervalMs=7000)) as (client, peer):
        before = trio.current_time()
        await client.call_tool("any")
        assert [time - before for time in peer.times] == pytest.approx([7, 307, 307.1, 307.6])


async def test_ttl_of_a_task_state_without_a_ttl_is_none(autojump_clock: object) -> None:
    async with with_tasks(one_after_another(state(), state(ttlMs=1500))) as (client, _):
        task = await client.start_task("any")
        assert [(await task.get()).ttl, (await task.get()).ttl] == [None, 1.5]


async def test_task_that_is_finished_at_creation_is_polled_once_immediately(autojump_clock: object) -> None:
    async with with_tasks(lambda: DONE, created(status="completed")) as (client, peer):
        before = trio.current_time()
        assert text_of(await client.call_tool("any")) == "done"
        assert peer.times == [before]


async def test_client_sends_no_cancel_for_a_finished_task(autojump_clock: object) -> None:
    error = {"code": -31050, "message": "no", "data": {"why": 1}}
    async with with_tasks(one_after_another(state(), state("failed", error=error))) as (client, peer):
        with pytest.raises(PeerError) as failed:
            await client.call_tool("any")
        assert (failed.value.code, failed.value.message, failed.value.data) == (-31050, "no", {"why": 1})
        peer.look = lambda: state("cancelled", statusMessage="by the operator")
        with pytest.raises(TaskCancelled, match="by the operator"):
            await client.call_tool("any")
        peer.look = lambda: -32602
        with pytest.raises(PeerError):
            await client.call_tool("any")
        assert "tasks/cancel" not in methods_in(peer.wire)


async def test_task_states_with_invalid_optional_fields_are_accepted(autojump_clock: object) -> None:
    states = [state(pollIntervalMs="often"), state(statusMessage=1), state("completed", result={"content": "done"})]
    async with with_tasks(one_after_another(*states)) as (client, _):
        assert text_of(await client.call_tool("any")) == "done"


@pytest.mark.parametrize(
    "nonsense",
    [
        {},
        [],
        "working",
        state(taskId="another"),
        state(taskId=5),
        state("done"),
        state(ttlMs="long"),
        state("completed"),
        state("completed", result=[]),
        state("completed", result={"resultType": "task"}),
        state("failed"),
        state("failed", error={"code": "x", "message": "no"}),
        state("failed", error={"code": True, "message": "no"}),
        state("input_required"),
        state("input_required", inputRequests=[]),
        state("input_required", inputRequests={"k": {"method": "tools/call"}}),
        state("input_required", inputRequests={"k": 5}),
        {**state(), "resultType": "task"},
        {**state(), "resultType": "input_required"},
        {key: value for key, value in state().items() if key != "createdAt"},
    ],
)
async def test_call_raises_if_a_polled_task_state_is_invalid(autojump_clock: object, nonsense: Any) -> None:
    async with with_tasks(lambda: nonsense) as (client, _):
        with pytest.raises(ProtocolViolation):
            await client.call_tool("any")


@pytest.mark.parametrize("made", [{"resultType": "task"}, created(taskId=5), created(status="new"), created(ttlMs="x")])
async def test_invalid_task_result_raises_protocol_violation(autojump_clock: object, made: Any) -> None:
    async with with_tasks(state, made) as (client, peer):
        with pytest.raises(ProtocolViolation):
            await client.call_tool("any")
        await trio.testing.wait_all_tasks_blocked()
        assert peer.sent("tasks/cancel") == ([{"taskId": "t"}] if made.get("taskId") == "t" else [])


async def test_task_returned_by_a_method_that_cannot_create_tasks_raises_protocol_violation(
    autojump_clock: object,
) -> None:
    # extension tasks, Capability Negotiation: the client MUST interpret that as an invalid response.
    async with with_tasks(state) as (client, peer):

        async def answer(message: dict[str, Any]) -> None:
            await peer.say(message, created())

        async with trio.open_nursery() as nursery:

            async def get() -> None:
                with pytest.raises(ProtocolViolation, match="task"):
                    await client.get_prompt("any")
                nursery.cancel_scope.cancel()

            nursery.start_soon(get)
            await trio.testing.wait_all_tasks_blocked()
            await answer(peer.wire[-1])
            await trio.sleep_forever()


async def test_task_returned_to_a_client_without_tasks_raises_protocol_violation(autojump_clock: object) -> None:
    async with with_tasks(state, tasks=False) as (client, _):
        with pytest.raises(ProtocolViolation, match="task"):
            await client.call_tool("any")


async def test_client_polls_a_busy_server_again_for_about_half_a_minute(autojump_clock: object) -> None:
    async with with_tasks(one_after_another(-31000, -31000, state(), -31000, DONE)) as (client, peer):
        assert text_of(await client.call_tool("any")) == "done"
        peer.look, before = lambda: -31000, trio.current_time()
        with pytest.raises(PeerError) as caught:
            await client.call_tool("any")
        assert caught.value.code == -31000
        assert trio.current_time() - before == pytest.approx(1 + 1 + 2 + 4 + 8 + 16)


async def test_changed_status_message_of_a_task_restarts_the_fail_after_silence_time(autojump_clock: object) -> None:
    count = 0

    def look() -> Any:
        nonlocal count
        count += 1
        return state(statusMessage=f"{count // 3}") if count < 30 else DONE

    async with with_tasks(look) as (client, peer):
        with fail_after_silence(5, maximum=600):
            assert text_of(await client.call_tool("any")) == "done"
        peer.look = lambda: state(statusMessage="always the same")
        before = trio.current_time()
        with pytest.raises(trio.TooSlowError), fail_after_silence(5, maximum=600):
            await client.call_tool("any")
        assert trio.current_time() - before == pytest.approx(6)  # the first message came after a second
        await trio.testing.wait_all_tasks_blocked()
        assert peer.sent("tasks/cancel") == [{"taskId": "t"}]


async def test_call_timeout_limits_the_total_time_of_a_call_that_runs_as_a_task(autojump_clock: object) -> None:
    async with with_tasks(state, call_timeout=10) as (client, peer):
        before = trio.current_time()
        with pytest.raises(trio.TooSlowError):
            await client.call_tool("any")
        assert trio.current_time() - before == pytest.approx(10)
        await trio.testing.wait_all_tasks_blocked()
        assert peer.sent("tasks/cancel") == [{"taskId": "t"}]


async def test_call_timeout_applies_to_each_poll_of_a_started_task(autojump_clock: object) -> None:
    async with with_tasks(state, call_timeout=10) as (client, peer):
        task = await client.start_task("any")
        with trio.move_on_after(60) as scope:
            await task.result()
        assert scope.cancelled_caught
        peer.look = lambda: None
        before = trio.current_time()
        with pytest.raises(trio.TooSlowError):
            await task.result()
        assert trio.current_time() - before == pytest.approx(10)
        with pytest.raises(trio.TooSlowError), fail_after_work(3):
            await task.result()
        await trio.testing.wait_all_tasks_blocked()
        assert not peer.sent("tasks/cancel")


async def test_waiting_for_a_task_ends_immediately_when_the_connection_is_lost(autojump_clock: object) -> None:
    async with with_tasks(state, created(pollIntervalMs=200_000)) as (client, peer):
        async with trio.open_nursery() as nursery:

            async def call() -> None:
                with pytest.raises(ConnectionLost):
                    await client.call_tool("any")

            nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
            before = trio.current_time()
            await peer.close()
        assert trio.current_time() == before


async def test_progress_of_a_call_arrives_before_the_status_messages_of_its_task(autojump_clock: object) -> None:
    seen: list[Progress] = []
    look = one_after_another(state(statusMessage="a"), state(statusMessage="a"), state(statusMessage="b"), DONE)
    async with with_tasks(look) as (client, peer):
        await trio.testing.wait_all_tasks_blocked()
        peer.made = None

        async def call() -> None:
            await client.call_tool("any", on_progress=seen.append)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
            [message] = [each for each in peer.wire if each["method"] == "tools/call"]
            await peer.progress(message, 1e300, message="far")
            await peer.say(message, created(statusMessage="far"))
    assert [each.message for each in seen] == ["far", "a", "b"]
    assert seen[0].progress < seen[1].progress < seen[2].progress


async def test_exception_in_on_progress_cancels_the_task(autojump_clock: object) -> None:
    def refuse(_: Progress) -> None:
        raise LookupError("no")

    async with with_tasks(lambda: state(statusMessage="a")) as (client, peer):
        with pytest.raises(LookupError):
            await client.call_tool("any", on_progress=refuse)
        await trio.testing.wait_all_tasks_blocked()
        assert peer.sent("tasks/cancel") == [{"taskId": "t"}]
