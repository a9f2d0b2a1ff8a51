"""Broken response streams are resumed with Last-Event-ID (2025-11-25 transports, Resumability)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from tests.connecting.http.scripted import Answer, Got, Handler, legacy, serving, text
from trio.testing import wait_all_tasks_blocked

from trio_mcp import HTTPError, open_http
from trio_mcp.connecting.http.responses import Backoff


def log(data: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": data}}


def resuming(*connections: Handler) -> Handler:
    """Answer a call with the first of ``connections``, and each GET for the rest with the next."""
    rest = list(connections)

    async def then(got: Got, answer: Answer) -> None:
        await rest.pop(0)(got, answer)

    return legacy(then)


async def primed(got: Got, answer: Answer) -> None:
    await answer.open()
    await answer.event("", id="e-1", retry=1)
    await answer.end()


class Rest:
    """Sends the rest of the answer to the only call."""

    def __init__(self) -> None:
        self.call: Got | None = None

    async def begin(self, got: Got, answer: Answer) -> None:
        self.call = got
        await primed(got, answer)

    async def cut(self, got: Got, answer: Answer) -> None:
        self.call = got
        await answer.open()
        await answer.event(log("one"), id="e-1", retry=1)
        await answer.cut()

    async def more(self, got: Got, answer: Answer) -> None:
        await answer.open()
        await answer.event(log("two"), id="e-2")
        await answer.cut()

    async def nothing(self, got: Got, answer: Answer) -> None:
        await answer.open()
        await answer.end()

    async def hung_up(self, got: Got, answer: Answer) -> None:
        await answer.cut()

    async def unavailable(self, got: Got, answer: Answer) -> None:
        await answer.whole(503)

    async def end(self, got: Got, answer: Answer) -> None:
        assert self.call is not None
        await answer.open()
        await answer.event(text(self.call), id="e-9")
        await answer.end()


@pytest.mark.parametrize("first", ["begin", "cut"])
async def test_client_resumes_a_broken_response_stream_after_its_last_event(first: str) -> None:
    rest = Rest()
    async with (
        serving(resuming(getattr(rest, first), rest.end)) as server,
        open_http(server.url, era="legacy") as client,
    ):
        assert (await client.call_tool("any")).text == "done"
    again = [got for got in server.named("GET") if "last-event-id" in got.headers]
    assert [got.headers["last-event-id"] for got in again] == ["e-1"]
    assert again[0].headers["mcp-session-id"] == "s-1"
    assert again[0].headers["accept"] == "text/event-stream"
    assert server.names.count("tools/call") == 1


async def test_client_resumes_a_response_stream_with_the_newest_event_id() -> None:
    rest = Rest()
    logs = list[Any]()
    steps = (rest.cut, rest.nothing, rest.more, rest.hung_up, rest.unavailable, rest.end)
    async with (
        serving(resuming(*steps)) as server,
        open_http(server.url, era="legacy", on_log=lambda told: logs.append(told.data)) as client,
    ):
        assert (await client.call_tool("any")).text == "done"
    cursors = [got.headers["last-event-id"] for got in server.named("GET") if "last-event-id" in got.headers]
    assert cursors == ["e-1", "e-1", "e-2", "e-2", "e-2"]
    assert logs == ["one", "two"]


@pytest.mark.parametrize("status", [400, 404, 405])
async def test_call_fails_if_the_server_refuses_to_resume_its_response_stream(status: int) -> None:
    async def refuse(got: Got, answer: Answer) -> None:
        await answer.whole(status, b"what?")

    async with serving(resuming(primed, refuse)) as server, open_http(server.url, era="legacy") as client:
        with pytest.raises(HTTPError, match=r"what\?") as caught:
            await client.call_tool("any")
    assert caught.value.status == status


async def test_call_fails_if_resuming_its_response_does_not_return_an_event_stream() -> None:
    async def page(got: Got, answer: Answer) -> None:
        await answer.whole(200, b"<p>", content_type="text/html")

    async with serving(resuming(primed, page)) as server, open_http(server.url, era="legacy") as client:
        with pytest.raises(HTTPError, match="text/html"):
            await client.call_tool("any")


async def test_client_stops_resuming_a_response_after_repeated_status_503() -> None:
    rest = Rest()
    steps = [primed, *[rest.unavailable] * 10]
    async with serving(resuming(*steps)) as server, open_http(server.url, era="legacy") as client:
        opened = Backoff._growing  # pyright: ignore[reportPrivateUsage]
        try:
            Backoff._growing = lambda self, attempt: 0.001  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
            with pytest.raises(HTTPError, match="the server did not send the rest") as caught:
                await client.call_tool("any")
        finally:
            Backoff._growing = opened  # pyright: ignore[reportPrivateUsage]
    assert caught.value.status == 503


async def test_cancelled_call_that_waits_to_resume_sends_a_cancel() -> None:
    ended = trio.Event()

    async def wait_long(got: Got, answer: Answer) -> None:
        await answer.open()
        await answer.event("", id="e-1", retry=1_000_000)
        await answer.end()
        ended.set()

    async with serving(resuming(wait_long)) as server, open_http(server.url, era="legacy") as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "any")
            await ended.wait()
            await wait_all_tasks_blocked(0.01)  # the client has read the end
            nursery.cancel_scope.cancel(reason="the test leaves the call")
        await server.until("notifications/cancelled")


@pytest.mark.parametrize("event_id", ["", "a\x01b", "x" * 5000])
async def test_client_ignores_an_event_id_that_cannot_be_sent_in_a_header(event_id: str) -> None:
    async def begin(got: Got, answer: Answer) -> None:
        await answer.open()
        await answer.event("", id=event_id, retry=1)
        await answer.end()

    async with serving(resuming(begin)) as server, open_http(server.url, era="legacy") as client:
        with pytest.raises(HTTPError, match="ended without a reply"):
            await client.call_tool("any")


async def test_client_answers_a_roots_request_in_a_resumed_stream() -> None:
    rest = Rest()
    answered = trio.Event()

    async def asking(got: Got, answer: Answer) -> None:
        await answer.open()
        await answer.event({"jsonrpc": "2.0", "id": 5, "method": "roots/list"}, id="e-2")
        await answered.wait()
        assert rest.call is not None
        await answer.event(text(rest.call), id="e-3")
        await answer.end()

    async def handler(got: Got, answer: Answer) -> None:
        if got.name == "reply":
            await answer.whole(202)
            answered.set()
        else:
            await then(got, answer)

    then = resuming(rest.begin, asking)
    async with serving(handler) as server, open_http(server.url, era="legacy", roots=[]) as client:
        assert (await client.call_tool("any")).text == "done"
    assert server.named("reply")[0].message == {"jsonrpc": "2.0", "id": 5, "result": {"roots": []}}


# The pauses


async def slept(comebacks: Backoff, retry: int | None) -> float:
    began = trio.current_time()
    await comebacks.pause(retry)
    return trio.current_time() - began


async def test_reconnect_delay_equals_the_sse_retry_field_of_the_server(autojump_clock: object) -> None:
    comebacks = Backoff()
    assert [await slept(comebacks, 500) for _ in range(5)] == pytest.approx([0.5] * 5)


async def test_reconnect_delay_grows_with_jitter_if_the_server_sends_no_sse_retry_field(autojump_clock: object) -> None:
    comebacks = Backoff()
    pauses = [await slept(comebacks, None) for _ in range(12)]
    for pause, longest in zip(pauses, (1, 2, 4, 8, 16, 30, 30, 30, 30, 30, 30, 30), strict=True):
        assert longest / 2 <= pause <= longest
    assert len(set(pauses)) == 12


async def test_reconnect_delay_grows_if_reconnecting_after_the_sse_retry_time_keeps_failing(
    autojump_clock: object,
) -> None:
    comebacks = Backoff()
    pauses = [await slept(comebacks, 0) for _ in range(15)]
    assert pauses[:5] == pytest.approx([0.1] * 5)
    assert pauses[-1] >= 15


async def test_reconnect_delay_restarts_after_a_received_message(autojump_clock: object) -> None:
    comebacks = Backoff()
    for _ in range(10):
        await comebacks.pause(None)
    comebacks.reset()
    assert await slept(comebacks, None) <= 1


@pytest.mark.parametrize("retry", [0, 1])
async def test_reconnect_delay_is_at_least_a_tenth_of_a_second(retry: int, autojump_clock: object) -> None:
    comebacks = Backoff()
    for _ in range(20):
        assert await slept(comebacks, retry) == pytest.approx(0.1)
        comebacks.record_end(trio.current_time(), has_brought=True)


async def test_stream_open_for_ten_seconds_without_messages_resets_the_reconnect_delay(autojump_clock: object) -> None:
    comebacks = Backoff()
    for _ in range(20):
        assert await slept(comebacks, 500) == pytest.approx(0.5)
        began = trio.current_time()
        await trio.sleep(10)
        comebacks.record_end(began, has_brought=False)
    comebacks.record_end(trio.current_time(), has_brought=False)
    assert comebacks.failures == 0


async def test_sse_event_ids_that_arrive_without_messages_do_not_reset_the_reconnect_delay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Five comebacks at the word of the server, and then more and more seldom, in which a message counts."""
    pauses = list[tuple[int, int | None]]()

    async def pause(comebacks: Backoff, retry: int | None) -> None:
        comebacks.failures += 1
        pauses.append((comebacks.failures, retry))

    monkeypatch.setattr(Backoff, "pause", pause)
    rest = Rest()

    async def another_id(got: Got, answer: Answer) -> None:
        await answer.open()
        await answer.event("", id=f"again-{len(pauses)}", retry=0)
        await answer.end()

    steps = [rest.begin, *[another_id] * 7, rest.more, another_id, rest.end]
    async with serving(resuming(*steps)) as server, open_http(server.url, era="legacy") as client:
        assert (await client.call_tool("any")).text == "done"
    assert pauses == [(1, 1), *[(count, 0) for count in range(2, 9)], (1, 0), (2, 0)]


async def test_retry_after_header_sets_the_reconnect_delay_up_to_five_minutes(autojump_clock: object) -> None:
    comebacks = Backoff()
    comebacks.record_refusal({"retry-after": "50"})
    assert await slept(comebacks, 500) == pytest.approx(50)
    assert await slept(comebacks, 500) == pytest.approx(0.5)
    comebacks.record_refusal({"retry-after": "86400"})
    assert await slept(comebacks, None) == pytest.approx(300)
