"""MR: handlers awaiting input at the edge of limits, deadlines and lifetimes lose nothing and don't hang."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from trio_mcp import InputRequired, Limits, NoBackChannel, RequestContext, Server, open_memory

from .memory_peer import LATEST_LEGACY, MODERN, connected
from .rounds import ALL, ask, asked, text

REMAINING = "trio-mcp/remainingMs"
NO_FIELDS: dict[str, Any] = {"type": "object", "properties": {}}


def asking(limits: Limits) -> Server:
    """A server whose tool asks for the roots."""
    server = Server("s", limits=limits)

    @server.tool
    async def where(ctx: RequestContext) -> str:
        return (await ctx.list_roots())[0].uri

    return server


# Bounds


async def test_retry_is_refused_if_its_waiting_handler_was_cancelled_because_of_max_parked(
    autojump_clock: MockClock,
) -> None:
    async with connected(asking(Limits(max_parked=1)), MODERN, ALL) as peer:
        calls = [peer.call_message("where") for _ in range(3)]
        for call in calls:
            await peer.send(call)
        results = [asked(await peer.reply(call["id"])) for call in calls]
        replies = [await peer.retry(call, result) for call, result in zip(calls, results, strict=True)]
        assert sorted("error" in reply for reply in replies) == [False, True, True]
        assert {reply["error"]["code"] for reply in replies if "error" in reply} == {-32602}


async def test_call_of_a_handler_that_awaits_input_can_be_retried_while_no_request_slot_is_free(
    autojump_clock: MockClock,
) -> None:
    async with connected(asking(Limits(max_server_requests=1)), MODERN, ALL) as peer:
        first, result = await ask(peer, "where")
        assert (await peer.error("where"))["code"] == -31000
        assert text(await peer.retry(first, result)) == "file:///a"


async def test_server_accepts_the_retry_of_a_call_that_is_larger_than_the_byte_limit(autojump_clock: MockClock) -> None:
    async with connected(asking(Limits(max_inbound_bytes=10, max_server_bytes=10)), MODERN, ALL) as peer:
        first, result = await ask(peer, "where")
        assert text(await peer.retry(first, result)) == "file:///a"


@pytest.mark.parametrize("queued", [False, True], ids=["parked", "its retry waits"])
async def test_cancelled_handler_that_awaited_input_counts_as_in_flight_during_its_cleanup(
    autojump_clock: MockClock, queued: bool
) -> None:
    server = Server("s", limits=Limits(max_in_flight=1, max_queued=1))

    @server.tool
    async def careful(ctx: RequestContext) -> None:
        try:
            await ctx.list_roots()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 3):
                await trio.sleep_forever()

    @server.tool
    async def nap() -> str:
        await trio.sleep(1)
        return "rested"

    async with connected(server, MODERN, ALL) as peer:
        first, result = await ask(peer, "careful")
        other = await peer.start("nap") if queued else None
        last = first["id"]
        if queued:
            retry = peer.retry_message(first, result)
            await peer.send(retry)
            await trio.testing.wait_all_tasks_blocked()
            last = retry["id"]
        await peer.cancel(last)
        assert server.statistics().in_flight == (2 if queued else 1)
        if other is not None:
            await peer.reply(other)
        start = trio.current_time()
        assert await peer.text("nap") == "rested"
        assert trio.current_time() - start == (3 if queued else 4), "it waited for the cleanup"
    assert server.statistics().in_flight == 0


# Deadlines


@pytest.mark.parametrize("_", range(8))
async def test_retry_that_arrives_just_when_its_deadline_passes_is_refused(mock_clock: MockClock, _: int) -> None:
    server = asking(Limits(deadline_grace=0))
    async with connected(server, MODERN, ALL) as peer:
        first = peer.message("tools/call", {"name": "where"}, meta={REMAINING: 1000})
        await peer.send(first)
        result = asked(await peer.reply(first["id"]))
        message = peer.retry_message(first, result)
        await peer.send(message)
        mock_clock.jump(1)  # the reader and the deadline come in any order
        error = (await peer.reply(message["id"]))["error"]
        assert (error["code"], "used already" in error["message"]) == (-32602, True)
    assert server.statistics().parked == 0


# Tasks that are not of the request


async def test_request_sent_by_a_background_task_fails_after_its_handler_has_ended(autojump_clock: MockClock) -> None:
    server, failures = Server("s"), list[NoBackChannel]()
    async with trio.open_nursery() as elsewhere:

        @server.tool
        async def leave(ctx: RequestContext) -> str:
            async def asks(say: str, after: float) -> None:
                await trio.sleep(after)
                try:
                    await ctx.sample(say, max_tokens=1)
                except NoBackChannel as error:
                    failures.append(error)

            for say, after in (("one", 0), ("two", 0), ("three", 2)):
                elsewhere.start_soon(asks, say, after)
            await trio.sleep(1)
            return "left"

        async with connected(server, MODERN, ALL) as peer:
            first, result = await ask(peer, "leave")
            assert len(result["inputRequests"]) == 2
            await trio.sleep(3)
            assert len(failures) == 3
            assert text(await peer.retry(first, result, {})) == "left"


async def test_request_sent_by_a_background_task_fails_when_its_call_is_cancelled(autojump_clock: MockClock) -> None:
    server, failed = Server("s"), trio.Event()
    async with trio.open_nursery() as elsewhere:

        @server.tool
        async def share(ctx: RequestContext) -> None:
            async def asks() -> None:
                with pytest.raises(NoBackChannel):
                    await ctx.list_roots()
                failed.set()

            elsewhere.start_soon(asks)
            await trio.sleep_forever()

        async with connected(server, MODERN, ALL) as peer:
            first, _ = await ask(peer, "share")
            await peer.cancel(first["id"])
            with trio.fail_after(1):
                await failed.wait()


@pytest.mark.parametrize("replay", [False, True])
async def test_handler_that_samples_during_its_cleanup_after_a_cancel_raises_no_back_channel(
    autojump_clock: MockClock, replay: bool
) -> None:
    server, told = Server("s"), list[NoBackChannel]()

    @server.tool(replay=replay)
    async def where(ctx: RequestContext) -> None:
        try:
            await ctx.list_roots()
        finally:
            with trio.fail_after(3) as scope:
                scope.shield = True
                with pytest.raises(NoBackChannel) as failed:
                    await ctx.sample("how was it?", max_tokens=1)
                told.append(failed.value)

    async with connected(server, MODERN, ALL) as peer:
        first, _ = await ask(peer, "where")
        if not replay:
            await peer.cancel(first["id"])
        assert len(told) == 1


# Answers


async def test_elicitation_answer_may_contain_huge_integers(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool(replay=True)
    async def count(ctx: RequestContext) -> str:
        many = await ctx.elicit("how many?", {"type": "object", "properties": {"n": {"type": "integer"}}})
        await ctx.list_roots()
        return str(many.content["n"])  # type: ignore[index]

    async with connected(server, MODERN, ALL) as peer:
        first, result = await ask(peer, "count")
        (key,) = result["inputRequests"]
        answer = {"action": "accept", "content": {"n": 10**30}}
        result = asked(await peer.retry(first, result, {key: answer}))
        assert text(await peer.retry(first, result)) == str(10**30)


async def test_legacy_client_can_cancel_a_call_that_endlessly_returns_input_required(
    autojump_clock: MockClock,
) -> None:
    server, runs = Server("s"), list[Any]()

    @server.tool
    async def never(ctx: RequestContext) -> InputRequired:
        runs.append(None)
        assert len(runs) < 1000, "nothing stops it"
        return InputRequired(state="again")

    async with connected(server, LATEST_LEGACY, ALL) as peer:
        call = peer.call_message("never")
        await peer.send(call)
        for _ in range(10):
            await trio.lowlevel.checkpoint()
        await peer.cancel(call["id"])
        assert await peer.everything(1) == []
    assert 0 < len(runs) < 100


async def test_call_fails_if_its_handler_makes_an_input_request_unencodable_before_it_is_sent(
    autojump_clock: MockClock,
) -> None:
    server = Server("s")

    @server.tool
    async def change(ctx: RequestContext) -> None:
        params: dict[str, Any] = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}
        ctx.nursery.start_soon(ctx.elicit_raw, params)
        for _ in range(2):
            await trio.lowlevel.checkpoint()
        params["message"] = float("nan")
        await trio.sleep_forever()

    async with connected(server, MODERN, ALL) as peer:
        assert (await peer.call("change"))["isError"] is True
        assert server.statistics().parked == 0
        assert server.statistics().in_flight == 0


# Many elicitations, and elicitations that time out


async def yes(_: Any) -> dict[str, Any]:
    return {}


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_each_of_a_thousand_identical_concurrent_elicitations_gets_its_own_answer(
    era: Literal["legacy", "modern"], autojump_clock: MockClock
) -> None:
    server = Server("s")

    @server.tool
    async def insist(ctx: RequestContext) -> int:
        actions: list[str] = []

        async def ask_one() -> None:
            actions.append((await ctx.elicit("Really?", NO_FIELDS)).action)

        async with trio.open_nursery() as nursery:
            for _ in range(1000):
                nursery.start_soon(ask_one)
        return len(actions)

    async with open_memory(server, era=era, elicitation=yes) as client:
        assert (await client.call_tool("insist")).structured_content == {"result": 1000}


async def test_elicitation_whose_nursery_was_cancelled_is_not_sent_again_after_the_retry(
    autojump_clock: MockClock,
) -> None:
    server, ended = Server("s"), list[str]()

    @server.tool
    async def change_mind(ctx: RequestContext) -> str:
        async with trio.open_nursery() as nursery:

            async def ask_one() -> None:
                try:
                    await ctx.elicit("first", NO_FIELDS)
                finally:
                    ended.append("first")

            nursery.start_soon(ask_one)
            await trio.sleep(5)
            nursery.cancel_scope.cancel()
        return (await ctx.elicit("second", NO_FIELDS)).action

    async with connected(server, MODERN, ALL) as peer:
        first, result = await ask(peer, "change_mind")
        await trio.sleep(10)
        assert ended == ["first"]
        result = asked(await peer.retry(first, result))
        assert [question["params"]["message"] for question in result["inputRequests"].values()] == ["second"]
        assert text(await peer.retry(first, result)) == "accept"


async def test_retry_after_an_elicitation_timeout_returns_the_result_of_the_handler(
    autojump_clock: MockClock,
) -> None:
    server = Server("s")

    @server.tool
    async def impatient(ctx: RequestContext) -> str:
        with trio.move_on_after(5):
            return (await ctx.elicit("Really?", NO_FIELDS)).action
        return "no answer in time"

    async with connected(server, MODERN, ALL) as peer:
        first, result = await ask(peer, "impatient")
        await trio.sleep(10)
        assert text(await peer.retry(first, result)) == "no answer in time"
        assert server.statistics().parked == 0


async def test_handler_can_elicit_in_a_finally_block_after_its_own_timeout_expired(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool
    async def careful(ctx: RequestContext) -> str:
        with trio.move_on_after(5):
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 60):
                    answer = await ctx.elicit("Keep what is done?", NO_FIELDS)
        return answer.action

    async with connected(server, MODERN, ALL) as peer:
        first, result = await ask(peer, "careful")
        assert text(await peer.retry(first, result)) == "accept"
