"""Leaving a call that takes several rounds: the handlers stop, and the server is told once."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from tests.client.rounds import (
    FORM,
    ROOTS,
    SAMPLE,
    RoundsPeer,
    asking,
    calls_in,
    cancels_of,
    refuse,
    rounds_of,
)
from tests.interaction.client.raw import text_of
from trio.testing import wait_all_tasks_blocked

from trio_mcp import CodedError, ConnectionLost, Limits, NotSerializable, PeerError, fail_after_silence
from trio_mcp.concurrency.workers import SlotState
from trio_mcp.types import CreateMessageParams, CreateMessageResult, ElicitFormParams, ElicitResult, LogParams


class Thinking:
    """A handler that never answers, and says when it is asked and when it is stopped."""

    def __init__(self) -> None:
        self.begun = trio.Event()
        self.reason: str | None = None
        self.stopped = 0

    async def __call__(self, _: object) -> Any:
        self.begun.set()
        try:
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            self.reason = cancelled.reason
            raise
        finally:
            self.stopped += 1


async def slow_to_leave(_: object) -> Any:
    """A handler that never answers and takes a minute to clean up."""
    try:
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await trio.sleep(60)


async def _asks_for_ever(peer: RoundsPeer) -> None:
    """Answer the first call by asking, and what comes after it with a text."""
    await peer.ask(await peer.call(), q=FORM, other=SAMPLE)
    await peer.text(await peer.call(), "next")


# Cancelled by the caller


async def test_call_cancelled_before_any_input_request_sends_a_cancel_for_the_first_request(
    autojump_clock: object,
) -> None:
    async with asking(RoundsPeer.call) as (client, peer):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "any")
                await wait_all_tasks_blocked()
                scope.cancel(reason="enough")
    assert cancels_of(peer) == [(calls_in(peer)[0]["id"], "enough")]


async def test_cancelled_call_cancels_the_input_handlers_that_run_for_the_call(
    autojump_clock: object,
) -> None:
    user, model = Thinking(), Thinking()
    async with asking(_asks_for_ever, elicitation=user, sampling=model) as (client, peer):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "any")
                await user.begun.wait()
                await model.begun.wait()
                scope.cancel(reason="enough")
        assert (user.stopped, model.stopped) == (1, 1)
        assert (user.reason, model.reason) == ("enough", "enough")
        assert text_of(await client.call_tool("any")) == "next"
    assert cancels_of(peer) == [(calls_in(peer)[0]["id"], "enough")]
    assert rounds_of(peer) == [{}, {}]


@pytest.mark.parametrize("limit", [trio.move_on_after, trio.fail_after, lambda s: fail_after_silence(s, maximum=60)])
async def test_call_that_times_out_during_an_input_handler_sends_a_cancel_with_the_reason(
    autojump_clock: object, limit: Any
) -> None:
    model = Thinking()

    async def script(peer: RoundsPeer) -> None:
        await peer.ask(await peer.call(), "s1", q=SAMPLE)

    async with asking(script, sampling=model) as (client, peer):
        try:
            with limit(5):
                await client.call_tool("any")
        except trio.TooSlowError:
            pass
        assert trio.current_time() == 5
        assert model.stopped == 1
    assert cancels_of(peer) == [(calls_in(peer)[0]["id"], "the caller's deadline passed")]


async def test_cancelled_call_sends_its_cancel_immediately_despite_a_slow_handler_cleanup(
    autojump_clock: object,
) -> None:
    told_at: list[float] = []

    async def script(peer: RoundsPeer) -> None:
        await peer.ask(await peer.call(), q=FORM)
        await peer.until("notifications/cancelled")
        told_at.append(trio.current_time())

    async with asking(script, elicitation=slow_to_leave) as (client, peer):
        with trio.move_on_after(5):
            await client.call_tool("any")
        assert trio.current_time() == 65
    assert told_at == [5]
    assert cancels_of(peer) == [(calls_in(peer)[0]["id"], "the caller's deadline passed")]


async def test_call_cancelled_while_the_client_answers_a_second_input_request_cancels_the_last_retry(
    autojump_clock: object,
) -> None:
    model = Thinking()

    async def script(peer: RoundsPeer) -> None:
        await peer.ask(await peer.call(), "s1", q=FORM)
        await peer.ask(await peer.call(), "s2", q=SAMPLE)

    async with asking(script, sampling=model) as (client, peer):
        with trio.move_on_after(5):
            await client.call_tool("any")
    assert [id for id, _ in cancels_of(peer)] == [calls_in(peer)[1]["id"]]


async def test_call_cancelled_during_a_retry_sends_a_cancel_only_for_the_retry(autojump_clock: object) -> None:
    async def script(peer: RoundsPeer) -> None:
        await peer.ask(await peer.call(), q=FORM)
        await peer.call()

    async with asking(script) as (client, peer):
        with trio.move_on_after(5):
            await client.call_tool("any")
    assert [id for id, _ in cancels_of(peer)] == [calls_in(peer)[1]["id"]]


async def test_call_cancelled_while_a_slow_log_callback_delays_the_input_request_sends_a_cancel(
    autojump_clock: object,
) -> None:
    async def slow(_: LogParams) -> None:
        await trio.sleep(60)

    async def script(peer: RoundsPeer) -> None:
        call = await peer.call()
        await peer.log("something for the callback")
        await peer.ask(call, q=FORM)

    user = Thinking()
    async with asking(script, elicitation=user, on_log=slow) as (client, peer):
        with trio.move_on_after(5):
            await client.call_tool("any")
    assert not user.begun.is_set()
    assert [id for id, _ in cancels_of(peer)] == [calls_in(peer)[0]["id"]]


async def test_call_sends_a_cancel_if_a_progress_callback_raises_when_an_input_request_has_arrived(
    autojump_clock: object,
) -> None:
    answered = trio.Event()

    async def script(peer: RoundsPeer) -> None:
        call = await peer.call()
        await peer.progress(call, 1)
        await peer.ask(call, q=FORM)
        answered.set()

    async def fail(_: object) -> None:
        await answered.wait()
        await wait_all_tasks_blocked()
        raise ZeroDivisionError

    async with asking(script) as (client, peer):
        with pytest.raises(ZeroDivisionError):
            await client.call_tool("any", on_progress=fail)
    assert [id for id, _ in cancels_of(peer)] == [calls_in(peer)[0]["id"]]


@pytest.mark.parametrize(("high_water", "longs"), [(10_000_000, 2), (1000, 3)], ids=["in-the-outbox", "before-it"])
async def test_call_cancelled_before_the_retry_is_sent_cancels_the_previous_request_and_sends_no_retry(
    autojump_clock: object, high_water: int, longs: int
) -> None:
    """The server does not read: one long message fills the channel, one the writer's hands, and a third one, if
    it is much by the measure of ``high_water``, lets the retry wait for room."""
    reads = trio.Event()

    async def script(peer: RoundsPeer) -> None:
        await peer.ask(await peer.call(), q=FORM)
        await reads.wait()

    async def after_much(_: ElicitFormParams) -> dict[str, Any]:
        for _ in range(longs):
            nursery.start_soon(client.call_tool, "long", {"text": "x" * 1_000_000})
            await wait_all_tasks_blocked()
        return {}

    limits = Limits(high_water=high_water)
    async with asking(script, elicitation=after_much, limits=limits) as (client, peer), trio.open_nursery() as nursery:
        with trio.move_on_after(5):
            await client.call_tool("any")
        reads.set()
        await wait_all_tasks_blocked()
        assert [call["params"]["name"] for call in calls_in(peer)] == ["any"] + ["long"] * longs
        assert [id for id, _ in cancels_of(peer)] == [calls_in(peer)[0]["id"]]
        nursery.cancel_scope.cancel()


async def test_call_cancelled_after_its_result_arrived_sends_no_cancel(
    autojump_clock: object,
) -> None:
    async def slow(_: LogParams) -> None:
        await trio.sleep(60)

    async def script(peer: RoundsPeer) -> None:
        await peer.ask(await peer.call(), q=FORM)
        last = await peer.call()
        await peer.log("something for the callback")
        await peer.text(last)

    async with asking(script, on_log=slow) as (client, peer):
        with trio.move_on_after(5):
            await client.call_tool("any")
    assert cancels_of(peer) == []


# Handlers that refuse or fail


async def test_message_of_a_coded_error_in_an_input_handler_is_sent_as_the_cancel_reason(
    autojump_clock: object,
) -> None:
    user = Thinking()
    async with asking(_asks_for_ever, elicitation=user, sampling=refuse) as (client, peer):
        with pytest.raises(CodedError, match="the user said no") as caught:
            await client.call_tool("any")
        assert caught.value.code == -1
        assert user.stopped == int(user.begun.is_set())
        assert text_of(await client.call_tool("any")) == "next"
    assert cancels_of(peer) == [(calls_in(peer)[0]["id"], "the user said no")]


async def test_cancel_for_a_failed_input_handler_is_sent_before_slow_handlers_clean_up(
    autojump_clock: object,
) -> None:
    told_at: list[float] = []

    async def later(_: object) -> Any:
        await trio.sleep(5)
        raise CodedError(-1, "no")

    async def script(peer: RoundsPeer) -> None:
        await peer.ask(await peer.call(), q=FORM, other=SAMPLE)
        await peer.until("notifications/cancelled")
        told_at.append(trio.current_time())

    async with asking(script, elicitation=slow_to_leave, sampling=later) as (client, peer):
        with pytest.raises(CodedError):
            await client.call_tool("any")
        assert trio.current_time() == 65
    assert told_at == [5]
    assert cancels_of(peer) == [(calls_in(peer)[0]["id"], "no")]


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_declined_or_cancelled_elicitation_is_sent_to_the_server_as_the_answer(
    autojump_clock: object, action: Any
) -> None:
    async def decline(_: ElicitFormParams) -> ElicitResult:
        return ElicitResult(action)

    async with asking(_asks_for_ever, elicitation=decline) as (client, peer):
        assert text_of(await client.call_tool("any")) == "next"
    assert rounds_of(peer)[1]["inputResponses"]["q"] == {"action": action}


async def test_exception_of_an_input_handler_is_raised_by_the_call_and_not_sent_to_the_server(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    error = ZeroDivisionError("internal")

    async def fail(_: CreateMessageParams) -> CreateMessageResult:
        raise error

    async with asking(_asks_for_ever, elicitation=Thinking(), sampling=fail) as (client, peer):
        with pytest.raises(ZeroDivisionError) as caught:
            await client.call_tool("any")
        assert caught.value is error
    assert cancels_of(peer) == [(calls_in(peer)[0]["id"], "the caller is gone")]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_call_raises_the_exception_of_a_sync_input_handler() -> None:
    def fail(_: CreateMessageParams) -> CreateMessageResult:
        raise ZeroDivisionError

    async with asking(_asks_for_ever, sampling=fail) as (client, peer):
        with pytest.raises(ZeroDivisionError):
            await client.call_tool("any")
    assert len(cancels_of(peer)) == 1


async def test_sync_input_handlers_run_in_the_worker_threads_of_their_connection() -> None:
    busy: list[int] = []

    def count(_: object) -> dict[str, Any]:
        busy.append(client._host.workers.free(SlotState.RUNNING))
        return {}

    async def script(peer: RoundsPeer) -> None:
        await peer.ask(await peer.call(), q=FORM, r=FORM, s=FORM)
        await peer.text(await peer.call())

    async with asking(script, elicitation=count, limits=Limits(worker_threads=1)) as (client, _):
        await client.call_tool("any")
    assert busy == [0, 0, 0]


async def test_call_raises_if_json_cannot_encode_an_input_response(autojump_clock: object) -> None:
    async def nan(_: ElicitFormParams) -> dict[str, Any]:
        return {"number": float("nan")}

    async with asking(_asks_for_ever, elicitation=nan) as (client, peer):
        with pytest.raises(NotSerializable):
            await client.call_tool("any")
    assert [id for id, _ in cancels_of(peer)] == [calls_in(peer)[0]["id"]]


async def test_call_raises_the_server_error_for_a_retry_and_sends_no_cancel(
    autojump_clock: object,
) -> None:
    async def script(peer: RoundsPeer) -> None:
        await peer.ask(await peer.call(), q=FORM)
        await peer.error(await peer.call(), -32602, "bad state")

    async with asking(script) as (client, peer):
        with pytest.raises(PeerError, match="bad state"):
            await client.call_tool("any")
    assert cancels_of(peer) == []


# The end of the connection


async def test_call_and_input_handler_end_if_the_connection_is_lost_during_the_handler(
    autojump_clock: object,
) -> None:
    user = Thinking()

    async def script(peer: RoundsPeer) -> None:
        await peer.ask(await peer.call(), q=FORM)
        await user.begun.wait()
        await peer.close()

    async with asking(script, elicitation=user) as (client, _):
        with pytest.raises(ConnectionLost), trio.fail_after(60):
            await client.call_tool("any")
    assert user.stopped == 1


async def test_call_ends_if_the_client_closes_during_its_input_handler(autojump_clock: object) -> None:
    user = Thinking()
    async with trio.open_nursery() as nursery:

        async def call() -> None:
            with pytest.raises(ConnectionLost), trio.fail_after(60):
                await client.call_tool("any")

        async def script(peer: RoundsPeer) -> None:
            await peer.ask(await peer.call(), q=ROOTS, r=FORM)

        async with asking(script, elicitation=user) as (client, _):
            nursery.start_soon(call)
            await user.begun.wait()
    assert user.stopped == 1
