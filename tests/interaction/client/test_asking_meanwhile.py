"""Calls, pings and cancels while a client handles requests of its legacy server."""

from __future__ import annotations

import threading

import pytest
import trio
from tests.interaction.client.asking import SAMPLE, SAMPLED
from tests.interaction.client.raw import RawPeer, Serve, cancels_in, scripted
from tests.patience import PATIENCE

from trio_mcp import Limits
from trio_mcp.client.opening import open_client
from trio_mcp.types import CreateMessageParams, CreateMessageResult, Root


async def test_s2c_08_client_answers_ping_while_its_async_sampling_handler_runs(autojump_clock: object) -> None:
    answered_at: list[float] = []

    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        begun = trio.current_time()
        await peer.request("s", "sampling/createMessage", SAMPLE)
        await peer.request("p", "ping")
        while len(answered_at) < 2:
            await peer.read()
            answered_at.append(trio.current_time() - begun)

    async def slow(_: CreateMessageParams) -> CreateMessageResult:
        await trio.sleep(5)
        return SAMPLED

    async with scripted(script) as (channel, peer), open_client(channel, sampling=slow):
        await trio.sleep(10)
    assert [message["id"] for message in peer.wire if "method" not in message] == ["p", "s"]
    assert answered_at == [pytest.approx(0), pytest.approx(5)]


@pytest.mark.parametrize("kind", ["async", "plain def"])
async def test_s2c_08_client_answers_ping_of_a_server_process_while_its_sampling_handler_runs(
    serve_raw: Serve, kind: str
) -> None:
    raw = serve_raw(
        f"""
        handshake()
        request("s", "sampling/createMessage", {SAMPLE})
        request("p", "ping")
        read(); note("first answer")
        read(); note("second answer")
        """,
    )
    release, released = threading.Event(), trio.Event()

    def block(_: CreateMessageParams) -> CreateMessageResult:
        assert release.wait(PATIENCE)
        return SAMPLED

    async def wait(_: CreateMessageParams) -> CreateMessageResult:
        await released.wait()
        return SAMPLED

    with trio.fail_after(PATIENCE):
        async with raw.client(era="legacy", sampling=wait if kind == "async" else block):
            await raw.has("first answer")
            release.set()
            released.set()
            await raw.has("second answer")
    assert [message["id"] for message in raw.wire if "method" not in message] == ["p", "s"]


async def test_client_handles_concurrent_requests_of_the_server_in_parallel(autojump_clock: object) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        for number in range(20):
            await peer.request(number, "sampling/createMessage", SAMPLE)

    async def slow(_: CreateMessageParams) -> CreateMessageResult:
        await trio.sleep(1)
        return SAMPLED

    async with scripted(script) as (channel, peer), open_client(channel, sampling=slow, max_questions=20):
        await trio.sleep(1.5)
    assert sorted(message["id"] for message in peer.wire if "result" in message) == list(range(20))


async def test_client_refuses_server_requests_beyond_max_in_flight_and_max_queued_with_a_busy_error(
    autojump_clock: object,
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        for number in range(4):
            await peer.request(number, "sampling/createMessage", SAMPLE)

    async def slow(_: CreateMessageParams) -> CreateMessageResult:
        await trio.sleep(1)
        return SAMPLED

    limits = Limits(max_in_flight=2, max_queued=1)
    async with scripted(script) as (channel, peer), open_client(channel, sampling=slow, limits=limits):
        await trio.sleep(5)
    refused = [message for message in peer.wire if "error" in message]
    assert [message["id"] for message in refused] == [3]
    assert "busy" in refused[0]["error"]["message"]
    assert sorted(message["id"] for message in peer.wire if "result" in message) == [0, 1, 2]


async def test_client_handler_is_cancelled_and_sends_no_answer_if_the_server_cancels_the_request(
    autojump_clock: object,
) -> None:
    events: list[str] = []

    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.request("s", "sampling/createMessage", SAMPLE)
        await trio.sleep(1)
        await peer.notify("notifications/cancelled", {"requestId": "s", "reason": "changed my mind"})
        await peer.request("p", "ping")

    async def stubborn(_: CreateMessageParams) -> CreateMessageResult:
        try:
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            events.append(cancelled.reason or "")
        return SAMPLED

    async with scripted(script) as (channel, peer), open_client(channel, sampling=stubborn):
        await trio.sleep(10)
    assert events == ["changed my mind"]
    assert [message["id"] for message in peer.wire if "method" not in message] == ["p"]


async def test_calls_made_by_a_cancelled_sampling_handler_are_cancelled_with_the_reason_of_that_cancel(
    autojump_clock: object,
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.request("s", "sampling/createMessage", SAMPLE)
        await peer.until("tools/call")
        await peer.notify("notifications/cancelled", {"requestId": "s", "reason": "changed my mind"})

    async def nested(_: CreateMessageParams) -> CreateMessageResult:
        await client.call_tool("lookup")
        return SAMPLED

    async with scripted(script) as (channel, peer), open_client(channel, sampling=nested) as client:
        await trio.sleep(10)
    [call] = [message for message in peer.wire if message.get("method") == "tools/call"]
    assert peer.wire[-1]["params"] == {"requestId": call["id"], "reason": "changed my mind"}
    assert cancels_in(peer.wire) == [call["id"]]


async def test_running_sampling_handler_is_cancelled_when_client_closes(autojump_clock: object) -> None:
    events: list[str] = []

    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.request("s", "sampling/createMessage", SAMPLE)

    async def slow(_: CreateMessageParams) -> CreateMessageResult:
        try:
            await trio.sleep_forever()
        finally:
            events.append("finally")
        return SAMPLED

    async with scripted(script) as (channel, _), open_client(channel, sampling=slow):
        await trio.sleep(1)
    assert events == ["finally"]


async def test_roots_changed_method_of_the_client_sends_a_roots_list_changed_notification(
    autojump_clock: object,
) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.until("notifications/roots/list_changed")
        await peer.request("r", "roots/list")

    async with scripted(script) as (channel, peer), open_client(channel, roots=[Root("file:///a")]) as client:
        await client.roots_changed()
        await trio.sleep(1)
    assert peer.wire[-1]["result"] == {"roots": [{"uri": "file:///a"}]}
