"""The default limit of calls, and limits that stand still while the user is asked."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import trio
from tests.client.rounds import FORM, RoundsPeer, asking
from tests.interaction.client.raw import RawPeer, cancels_in, scripted, text_of
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import RequestContext, Server, fail_after_silence, fail_after_work, open_memory
from trio_mcp.client.opening import open_client
from trio_mcp.client.options import ClientOptions
from trio_mcp.client.timeouts import CallTimeouts
from trio_mcp.types import CreateMessageParams, CreateMessageResult, ElicitFormParams, TextContent


def slow_server() -> Server:
    server = Server("slow")

    @server.tool
    async def work(seconds: float) -> str:
        await trio.sleep(seconds)
        return "worked"

    @server.tool
    async def ask_then_work(seconds: float, ctx: RequestContext) -> str:
        await ctx.elicit("Go on?", {"type": "object", "properties": {}})
        await trio.sleep(seconds)
        return "worked"

    @server.tool
    async def sample_then_work(seconds: float, ctx: RequestContext) -> str:
        await ctx.sample("Go on?", max_tokens=5)
        await trio.sleep(seconds)
        return "worked"

    return server


def user_who_takes(seconds: float) -> Callable[[ElicitFormParams], Any]:
    async def answer(_: ElicitFormParams) -> dict[str, Any]:
        await trio.sleep(seconds)
        return {}

    return answer


async def test_call_outside_of_a_timeout_block_raises_after_the_call_timeout_of_the_client(
    autojump_clock: MockClock,
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.until("tools/call")
        await peer.text(await peer.until("tools/call"))

    async with scripted(script) as (channel, peer), open_client(channel, call_timeout=5) as client:
        begun = trio.current_time()
        with pytest.raises(trio.TooSlowError, match=r"no answer within 5 s \(call_timeout\)"):
            await client.call_tool("sleep")
        assert trio.current_time() == pytest.approx(begun + 5)
        assert text_of(await client.call_tool("any")) == "done"
    assert len(cancels_in(peer.wire)) == 1


@pytest.mark.parametrize("limit", [fail_after_work(60), fail_after_silence(60, maximum=60)], ids=["work", "silence"])
async def test_timeout_block_around_a_call_replaces_a_shorter_call_timeout(
    limit: AbstractContextManager[Any], autojump_clock: MockClock
) -> None:
    async with open_memory(slow_server(), call_timeout=5) as client:
        with limit:
            assert (await client.call_tool("work", {"seconds": 50})).text == "worked"


async def test_trio_timeout_applies_in_addition_to_call_timeout(autojump_clock: MockClock) -> None:
    async with open_memory(slow_server(), call_timeout=5) as client:
        begun = trio.current_time()
        with trio.move_on_after(1) as scope:
            await client.call_tool("work", {"seconds": 50})
        assert scope.cancelled_caught
        assert trio.current_time() == pytest.approx(begun + 1)


async def test_call_timeout_applies_to_a_child_task_after_the_timeout_block_that_started_it_ends(
    autojump_clock: MockClock,
) -> None:
    async with open_memory(slow_server(), call_timeout=5) as client, trio.open_nursery() as nursery:

        async def call_later() -> None:
            await trio.sleep(2)
            with pytest.raises(trio.TooSlowError):
                await client.call_tool("work", {"seconds": 50})

        with fail_after_work(1):
            nursery.start_soon(call_later)


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
async def test_invalid_call_timeout_raises_value_error(seconds: float, autojump_clock: MockClock) -> None:
    with pytest.raises(ValueError, match="call_timeout must be greater than 0"):
        async with open_memory(slow_server(), call_timeout=seconds):
            pytest.fail("no such limit")


@pytest.mark.parametrize("seconds", [-1, float("nan")])
async def test_negative_or_nan_time_in_fail_after_work_raises_value_error(
    seconds: float, autojump_clock: MockClock
) -> None:
    with pytest.raises(ValueError, match="time limit"), fail_after_work(seconds):
        pytest.fail("no such limit")


# Standing still


async def test_call_timeout_does_not_include_the_time_of_elicitations(autojump_clock: MockClock) -> None:
    async with open_memory(slow_server(), era="legacy", call_timeout=5, elicitation=user_who_takes(600)) as client:
        assert (await client.call_tool("ask_then_work", {"seconds": 4})).text == "worked"


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("asks_user", [True, False])
async def test_call_timeout_is_paused_during_sampling_only_if_the_handler_asks_the_user(
    era: Any, asks_user: bool, autojump_clock: MockClock
) -> None:
    async def approve(_: CreateMessageParams) -> CreateMessageResult:
        await trio.sleep(300)
        return CreateMessageResult("assistant", TextContent("yes"), "m")

    options: ClientOptions = {"sampling": approve, "sampling_asks_user": asks_user, "call_timeout": 5}
    async with open_memory(slow_server(), era=era, **options) as client:
        with nullcontext() if asks_user else pytest.raises(trio.TooSlowError):
            assert (await client.call_tool("sample_then_work", {"seconds": 4})).text == "worked"


async def test_call_timeout_continues_after_the_elicitation_answer(autojump_clock: MockClock) -> None:
    async with open_memory(slow_server(), era="legacy", call_timeout=5, elicitation=user_who_takes(600)) as client:
        begun = trio.current_time()
        with pytest.raises(trio.TooSlowError):
            await client.call_tool("ask_then_work", {"seconds": 10})
        assert trio.current_time() == pytest.approx(begun + 605)


async def test_elicitation_in_a_legacy_revision_pauses_the_timeouts_of_all_calls_on_its_connection(
    autojump_clock: MockClock,
) -> None:
    results: list[str] = []
    async with (
        open_memory(slow_server(), era="legacy", call_timeout=5, elicitation=user_who_takes(600)) as client,
        trio.open_nursery() as nursery,
    ):

        async def work() -> None:
            results.append((await client.call_tool("work", {"seconds": 100})).text)

        nursery.start_soon(work)
        nursery.start_soon(client.call_tool, "ask_then_work", {"seconds": 0})
        await wait_all_tasks_blocked()
        nursery.start_soon(work)
    assert results == ["worked", "worked"]


async def test_timeout_of_a_call_started_during_an_elicitation_begins_after_the_answer(
    autojump_clock: MockClock,
) -> None:
    async with (
        open_memory(slow_server(), era="legacy", call_timeout=5, elicitation=user_who_takes(10)) as client,
        trio.open_nursery() as nursery,
    ):
        begun = trio.current_time()
        nursery.start_soon(client.call_tool, "ask_then_work", {"seconds": 0})
        await wait_all_tasks_blocked()
        with pytest.raises(trio.TooSlowError):
            await client.call_tool("work", {"seconds": 100})
        assert trio.current_time() == pytest.approx(begun + 15)


async def test_timeout_block_resumes_when_the_call_inside_ends_although_another_call_still_elicits(
    autojump_clock: MockClock,
) -> None:
    async with (
        open_memory(slow_server(), era="legacy", elicitation=user_who_takes(600)) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(client.call_tool, "ask_then_work", {"seconds": 0})
        await wait_all_tasks_blocked()
        begun = trio.current_time()
        with pytest.raises(trio.TooSlowError), fail_after_work(5):
            await client.call_tool("work", {"seconds": 20})
            await trio.sleep_forever()
        assert trio.current_time() == pytest.approx(begun + 20 + 5)


async def test_call_timeout_is_paused_once_during_two_concurrent_elicitations(autojump_clock: MockClock) -> None:
    async with (
        open_memory(slow_server(), era="legacy", call_timeout=5, elicitation=user_who_takes(10)) as client,
        trio.open_nursery() as nursery,
    ):
        begun = trio.current_time()
        nursery.start_soon(client.call_tool, "ask_then_work", {"seconds": 0})
        await trio.sleep(4)
        with pytest.raises(trio.TooSlowError):
            await client.call_tool("ask_then_work", {"seconds": 100})
        assert trio.current_time() == pytest.approx(begun + 4 + 10 + 5)


async def test_elicitation_does_not_extend_the_maximum_time_of_fail_after_silence(autojump_clock: MockClock) -> None:
    async with open_memory(slow_server(), era="legacy", elicitation=user_who_takes(600)) as client:
        begun = trio.current_time()
        with pytest.raises(trio.TooSlowError), fail_after_silence(5, maximum=100):
            await client.call_tool("ask_then_work", {"seconds": 0})
        assert trio.current_time() == pytest.approx(begun + 100)


async def test_timeout_block_around_several_calls_includes_the_time_between_the_calls(
    autojump_clock: MockClock,
) -> None:
    async with open_memory(slow_server(), era="legacy", elicitation=user_who_takes(600)) as client:
        begun = trio.current_time()
        with pytest.raises(trio.TooSlowError), fail_after_work(10):
            await client.call_tool("ask_then_work", {"seconds": 1})
            await trio.sleep(8)
            await client.call_tool("ask_then_work", {"seconds": 4})
        assert trio.current_time() == pytest.approx(begun + 600 + 1 + 8 + 600 + 1)


async def test_timeout_pauses_that_overlap_are_counted_once(autojump_clock: MockClock) -> None:
    timeouts = CallTimeouts(math.inf)
    await trio.sleep(5)
    with timeouts.pause_all():
        await trio.sleep(10)
        with timeouts.pause_all():
            await trio.sleep(20)
            assert timeouts.paused_seconds == pytest.approx(30)
    await trio.sleep(40)
    assert timeouts.paused_seconds == pytest.approx(30)
    with timeouts.pause_all():
        await trio.sleep(1)
        assert timeouts.paused_seconds == pytest.approx(31)


async def ask_once(peer: RoundsPeer) -> None:
    await peer.ask(await peer.call(), who=FORM)
    await peer.text(await peer.call())


async def test_call_timeout_in_a_modern_revision_does_not_include_the_time_of_elicitations(
    autojump_clock: MockClock,
) -> None:
    async with asking(ask_once, call_timeout=5, elicitation=user_who_takes(600)) as (client, _):
        assert (await client.call_tool("any")).text == "done"


async def test_call_timeout_includes_all_retries_of_an_input_required_call(autojump_clock: MockClock) -> None:
    async def script(peer: RoundsPeer) -> None:
        for _ in range(3):
            call = await peer.call()
            await trio.sleep(2)
            await peer.ask(call, who=FORM)

    async with asking(script, call_timeout=5, elicitation=user_who_takes(600)) as (client, _):
        begun = trio.current_time()
        with pytest.raises(trio.TooSlowError):
            await client.call_tool("any")
        assert trio.current_time() == pytest.approx(begun + 5 + 2 * 600)


async def test_elicitation_in_a_modern_revision_pauses_only_the_timeout_of_the_call_that_elicits(
    autojump_clock: MockClock,
) -> None:
    async with (
        asking(ask_once, call_timeout=5, elicitation=user_who_takes(600)) as (client, _),
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(client.call_tool, "asks")
        await wait_all_tasks_blocked()
        begun = trio.current_time()
        with pytest.raises(trio.TooSlowError):
            await client.list_prompts().__anext__()
        assert trio.current_time() == pytest.approx(begun + 5)


async def test_call_timeout_is_paused_until_both_of_two_elicitations_are_answered(
    autojump_clock: MockClock,
) -> None:
    thinking = [10.0, 100.0]

    async def answer(_: ElicitFormParams) -> dict[str, Any]:
        await trio.sleep(thinking.pop())
        return {}

    async def script(peer: RoundsPeer) -> None:
        await peer.ask(await peer.call(), who=FORM, where=FORM)
        await peer.text(await peer.call())

    async with asking(script, call_timeout=5, elicitation=answer) as (client, _):
        assert (await client.call_tool("any")).text == "done"
