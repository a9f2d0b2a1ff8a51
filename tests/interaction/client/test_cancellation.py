"""Cancelled calls: which messages the server gets, and that late answers do no harm."""

from __future__ import annotations

import logging
from functools import partial

import pytest
import trio
from tests.interaction.client.raw import (
    RawPeer,
    RawServer,
    Serve,
    alive,
    cancels_in,
    methods_in,
    scripted,
    text_of,
)
from tests.patience import LONG, PATIENCE
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import Client, Limits, NotSerializable, Progress
from trio_mcp.client.opening import open_client

WELL = """
opened()
while (call := until("tools/call")):
    if call["params"]["name"] == "echo":
        text(call, str(call["params"]["arguments"].get("text", "")))
"""


@pytest.mark.parametrize("opening", ["initialize", "server/discover"])
async def test_can_09_connect_cancelled_during_initialize_sends_no_cancel_and_ends_the_server_process(
    serve_raw: Serve, opening: str
) -> None:
    raw = serve_raw(
        """
        note("pid", pid=os.getpid())
        message = read()
        if message["method"] == "server/discover" and sys.argv[-1] != "server/discover":
            error(message, -32601)
            read()
        """,
    )
    raw.command.append(opening)
    with trio.fail_after(PATIENCE), trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_after, raw, opening, scope)
            async with raw.client():
                pytest.fail("nobody answered")
    assert scope.cancelled_caught
    opened = next(message for message in raw.wire if message["method"] == opening)
    # 2025-11-25 cancellation: initialize MUST NOT be cancelled; 2026-07-28 stdio: everything else MUST be.
    assert cancels_in(raw.wire) == ([] if opening == "initialize" else [opened["id"]])
    assert raw.of("eof")
    assert not alive(raw.of("pid")[0]["pid"])


async def _cancel_after(raw: RawServer, method: str, scope: trio.CancelScope) -> None:
    await raw.got(method)
    scope.cancel()


async def test_can_11_each_of_50_calls_that_time_out_sends_exactly_one_cancel_with_its_request_id(
    serve_raw: Serve, era: str, jump_clock: MockClock
) -> None:
    raw = serve_raw(WELL)
    with trio.fail_after(LONG + PATIENCE):
        async with raw.client(era=era) as client:

            async def abandoned() -> None:
                with trio.move_on_after(LONG) as scope:
                    await client.call_tool("sleep", {"ms": 10_000})
                assert scope.cancelled_caught

            async with trio.open_nursery() as nursery:
                for _ in range(50):
                    nursery.start_soon(abandoned)
                await raw.jump_when_got(jump_clock, "tools/call", 50)
            assert text_of(await client.call_tool("echo", {"text": "still here"})) == "still here"
    calls = [m["id"] for m in raw.wire if m.get("method") == "tools/call" and m["params"]["name"] == "sleep"]
    assert len(set(calls)) == 50
    assert sorted(cancels_in(raw.wire)) == sorted(calls)


async def test_can_02_server_still_answers_after_each_of_200_cancelled_calls(serve_raw: Serve, era: str) -> None:
    raw = serve_raw(WELL)
    with trio.fail_after(PATIENCE):
        async with raw.client(era=era) as client:
            for number in range(200):
                with trio.CancelScope() as scope:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(client.call_tool, "sleep")
                        await wait_all_tasks_blocked()
                        scope.cancel()
                assert text_of(await client.call_tool("echo", {"text": number})) == str(number)
    # Which of them had left our process already is the operating system's business; each of those is cancelled.
    slept = [m["id"] for m in raw.wire if m.get("method") == "tools/call" and m["params"]["name"] == "sleep"]
    assert sorted(cancels_in(raw.wire)) == sorted(slept)
    assert len(slept) == 200


async def test_can_13_client_ignores_late_replies_to_a_cancelled_call(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        call = await peer.until("tools/call")
        await peer.until("notifications/cancelled")
        await trio.sleep(2)
        await peer.text(call, "late")
        await peer.error(call, -32000, "later")
        await peer.text(await peer.until("tools/call"), "second")

    async with scripted(script) as (channel, _), open_client(channel) as client:
        with trio.move_on_after(1):
            await client.call_tool("any")
        await trio.sleep(5)
        assert text_of(await client.call_tool("any")) == "second"
    assert max((record.levelno for record in caplog.records), default=0) <= logging.WARNING


async def test_can_13_client_ignores_late_replies_of_a_server_process_to_a_cancelled_call(
    serve_raw: Serve, era: str, jump_clock: MockClock
) -> None:
    raw = serve_raw(
        """
        opened()
        call = until("tools/call")
        until("notifications/cancelled")
        text(call, "late"); error(call, -32000, "later")
        text(until("tools/call"), "second")
        """,
    )
    with trio.fail_after(LONG + PATIENCE):
        async with raw.client(era=era) as client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(raw.jump_when_got, jump_clock, "tools/call")
                with trio.move_on_after(LONG):
                    await client.call_tool("any")
            assert text_of(await client.call_tool("any")) == "second"


async def test_cancel_reason_of_a_trio_scope_is_sent_to_the_server(autojump_clock: object) -> None:
    async with scripted(RawPeer.handshake) as (channel, peer), open_client(channel) as client:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "any")
                await wait_all_tasks_blocked()
                scope.cancel(reason="the user pressed stop")
    assert peer.wire[-1]["params"]["reason"] == "the user pressed stop"


async def test_cancel_reason_that_cannot_be_encoded_is_omitted(autojump_clock: object) -> None:
    async with scripted(RawPeer.handshake) as (channel, peer), open_client(channel) as client:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "any")
                await wait_all_tasks_blocked()
                scope.cancel(reason="half of a character: \ud83d")
    call, cancel = peer.wire[-2:]
    assert (cancel["method"], cancel["params"]) == ("notifications/cancelled", {"requestId": call["id"]})


async def test_cancel_sent_because_of_a_trio_deadline_has_a_reason_that_mentions_the_deadline(
    autojump_clock: object,
) -> None:
    async with scripted(RawPeer.handshake) as (channel, peer), open_client(channel) as client:
        with trio.move_on_after(3):
            await client.call_tool("any")
    assert peer.wire[-1]["params"]["reason"] == "the caller's deadline passed"


async def test_call_cancelled_by_an_exception_in_another_trio_task_sends_no_exception_text_to_the_server(
    autojump_clock: object,
) -> None:
    async def crash() -> None:
        await trio.sleep(1)
        raise ValueError("password=swordfish")

    async with scripted(RawPeer.handshake) as (channel, peer), open_client(channel) as client:
        with pytest.RaisesGroup(ValueError):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "any")
                nursery.start_soon(crash)
    assert peer.wire[-1]["method"] == "notifications/cancelled"
    assert "swordfish" not in peer.wire[-1]["params"]["reason"]


async def test_call_in_already_cancelled_scope_sends_nothing(autojump_clock: object) -> None:
    async with scripted(RawPeer.handshake) as (channel, peer), open_client(channel) as client:
        with trio.CancelScope() as scope:
            scope.cancel()
            await client.call_tool("any")
    assert "tools/call" not in methods_in(peer.wire)
    assert cancels_in(peer.wire) == []


async def test_call_cancelled_just_after_its_answer_arrived_sends_no_cancel(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.text(await peer.until("tools/call"))
        answered.set()

    answered = trio.Event()
    async with scripted(script) as (channel, peer), open_client(channel) as client:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "any")
                await answered.wait()
                await wait_all_tasks_blocked()
                scope.cancel()
    assert cancels_in(peer.wire) == []


async def _blocked(client: Client, nursery: trio.Nursery) -> None:
    """Fill the wire to a server that reads nothing, so that whatever is sent now waits in the outbox."""
    for _ in range(2):
        nursery.start_soon(client.call_tool, "fill", {"text": "x" * 70_000})
        await wait_all_tasks_blocked()


async def test_request_cancelled_before_it_is_written_is_never_sent(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await read_on.wait()
        await peer.to_the_end()

    read_on = trio.Event()
    limits = Limits(high_water=100_000)
    async with (
        scripted(script) as (channel, peer),
        open_client(channel, limits=limits) as client,
        trio.open_nursery() as nursery,
    ):
        await _blocked(client, nursery)
        with trio.move_on_after(1) as scope:
            await client.call_tool("withdrawn")
        assert scope.cancelled_caught
        read_on.set()
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    names = [m["params"]["name"] for m in peer.wire if m.get("method") == "tools/call"]
    assert set(names) == {"fill"}
    calls = [m["id"] for m in peer.wire if m.get("method") == "tools/call"]
    assert sorted(cancels_in(peer.wire)) == sorted(calls)


async def test_cancel_is_sent_before_queued_requests(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        first = await peer.until("tools/call")
        assert first["params"]["name"] == "first"
        await read_on.wait()
        await peer.to_the_end()

    read_on = trio.Event()
    limits = Limits(high_water=100_000)
    async with (
        scripted(script) as (channel, peer),
        open_client(channel, limits=limits) as client,
        trio.open_nursery() as nursery,
    ):
        first = trio.CancelScope()

        async def call_first() -> None:
            with first:
                await client.call_tool("first")

        nursery.start_soon(call_first)
        await wait_all_tasks_blocked()
        await _blocked(client, nursery)
        nursery.start_soon(client.call_tool, "waits")
        await wait_all_tasks_blocked()
        first.cancel()
        await wait_all_tasks_blocked()
        read_on.set()
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    order = [m["params"].get("name", m["method"]) for m in peer.wire if "params" in m]
    assert order.index("notifications/cancelled") < order.index("waits")


async def test_exception_in_progress_callback_cancels_only_the_call_of_that_callback(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        call = await peer.until("tools/call")
        await peer.progress(call, 1)
        await peer.until("notifications/cancelled")
        await peer.text(await peer.until("tools/call"), "second")

    def fail(_: Progress) -> None:
        raise LookupError("callback")

    async with scripted(script) as (channel, peer), open_client(channel) as client:
        with pytest.raises(LookupError, match="callback"):
            await client.call_tool("any", on_progress=fail)
        assert text_of(await client.call_tool("any")) == "second"
    assert len(cancels_in(peer.wire)) == 1


async def test_call_cancelled_during_an_async_progress_callback_sends_one_cancel(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.progress(await peer.until("tools/call"), 1)

    async def slow(_: Progress) -> None:
        await trio.sleep_forever()

    async with scripted(script) as (channel, peer), open_client(channel) as client:
        with trio.move_on_after(1):
            await client.call_tool("any", on_progress=slow)
    assert len(cancels_in(peer.wire)) == 1


@pytest.mark.parametrize("value", [float("nan"), "\ud800", object(), {1: {2, 3}}])
async def test_call_whose_arguments_cannot_be_encoded_as_json_raises_and_sends_nothing(
    autojump_clock: object, value: object
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.text(await peer.until("tools/call"))

    async with scripted(script) as (channel, peer), open_client(channel) as client:
        if not isinstance(value, dict):
            with pytest.raises(NotSerializable):
                await client.call_tool("any", {"value": value})
        assert text_of(await client.call_tool("any", {"value": 1})) == "done"
    assert methods_in(peer.wire).count("tools/call") == 1
    assert cancels_in(peer.wire) == []


async def test_calls_made_through_one_functools_partial_object_are_cancelled_with_distinct_request_ids(
    autojump_clock: object,
) -> None:
    async with scripted(RawPeer.handshake) as (channel, peer), open_client(channel) as client:
        call = partial(client.call_tool, "same", {"n": 1})
        for _ in range(5):
            with trio.move_on_after(1):
                await call()
    calls = [m["id"] for m in peer.wire if m.get("method") == "tools/call"]
    assert len(set(calls)) == 5
    assert cancels_in(peer.wire) == calls


async def test_pending_calls_in_other_trio_tasks_raise_connection_lost_when_the_client_closes(
    serve_raw: Serve, era: str
) -> None:
    raw = serve_raw(WELL)
    failures: list[BaseException] = []

    async def call(client: Client) -> None:
        try:
            await client.call_tool("sleep")
        except Exception as error:
            failures.append(error)

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery, raw.client(era=era) as client:
            for _ in range(3):
                nursery.start_soon(call, client)
            await raw.got("tools/call", 3)
    assert [type(error).__name__ for error in failures] == ["ConnectionLost"] * 3


async def test_cancelled_scope_around_a_client_sends_cancels_before_the_connection_closes(
    serve_raw: Serve, era: str
) -> None:
    raw = serve_raw(WELL)
    with trio.fail_after(PATIENCE), trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def cancel_when_called() -> None:
                await raw.got("tools/call")
                scope.cancel(reason="the host was closed")

            nursery.start_soon(cancel_when_called)
            async with raw.client(era=era) as client:
                await client.call_tool("sleep")
    assert methods_in(raw.wire)[-2:] == ["tools/call", "notifications/cancelled"]
    closed_only = (raw.transport, era) == ("http", "modern")  # the cancel is the close of an answer, which has no words
    why = {} if closed_only else {"reason": "the host was closed"}
    assert raw.wire[-1]["params"] == {"requestId": raw.wire[-2]["id"], **why}
    assert raw.entries[-1]["event"] == "eof"


async def test_shielded_cleanup_code_can_call_the_server_after_an_outer_cancel(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.until("tools/call")
        await peer.text(await peer.until("tools/call"), "tidied up")

    async with scripted(script) as (channel, peer):
        with trio.move_on_after(1):
            async with open_client(channel) as client:
                try:
                    await client.call_tool("work")
                finally:
                    with trio.CancelScope(shield=True):
                        assert text_of(await client.call_tool("tidy_up")) == "tidied up"
    assert len(cancels_in(peer.wire)) == 1
