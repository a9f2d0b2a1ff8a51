"""Requests of the modern era over HTTP: one POST each, answered by JSON or by a stream."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
import trio
import trio.testing
from tests.serving.http.raw import Endpoint, modern, served

from trio_mcp import CancelCause, Cancellation, RequestContext, Server

server = Server("modern")


class Journal:
    """What handlers have seen."""

    def __init__(self) -> None:
        self.started = trio.Event()
        self.ended = trio.Event()
        self.cancellation: Cancellation | None = None
        self.on_end: Callable[[], object] = lambda: None


journals: dict[str, Journal] = {}


@server.tool
async def echo(text: str) -> str:
    """Return the text."""
    return text


@server.tool
async def wait(name: str, ctx: RequestContext, speak: bool = False) -> str:
    """Wait for ever."""
    journal = journals[name]
    try:
        if speak:
            ctx.progress(1)
        journal.started.set()
        await trio.sleep_forever()
    finally:
        journal.cancellation = ctx.cancellation
        journal.on_end()
        journal.ended.set()
    return "never"


@server.tool
async def tell(ctx: RequestContext) -> str:
    """Log twice, then answer."""
    await ctx.log.info("one")
    ctx.progress(1)
    await ctx.log.info("two")
    return f"{ctx.session_id} {(ctx.headers or {})['X-Who']}"


@server.tool
async def ask_name(ctx: RequestContext) -> str:
    """Ask for a name."""
    answer = await ctx.elicit("Who?", {"type": "object", "properties": {"name": {"type": "string"}}})
    return f"hello {answer.content}"


@pytest.fixture
async def endpoint() -> AsyncGenerator[Endpoint]:
    async with served(server) as one:
        yield one


async def test_modern_response_without_notifications_is_json(endpoint: Endpoint) -> None:
    answer = await endpoint.modern("tools/call", {"name": "echo", "arguments": {"text": "hi"}})
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert "mcp-session-id" not in answer.headers
    assert answer.json["id"] == 1
    assert answer.json["result"]["content"][0]["text"] == "hi"


async def test_successive_modern_requests_can_use_one_connection(endpoint: Endpoint) -> None:
    connection = await endpoint.connect()
    for text in "abc":
        answer = await connection.modern("tools/call", {"name": "echo", "arguments": {"text": text}})
        assert answer.json["result"]["content"][0]["text"] == text
    await connection.aclose()


async def test_modern_response_stream_contains_logs_and_progress_before_the_result(
    endpoint: Endpoint,
) -> None:
    params: dict[str, Any] = {"name": "tell", "arguments": {}, "_meta": {"progressToken": 0}}
    answer = await endpoint.modern("tools/call", params, X_Who="me")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["cache-control"] == "no-cache, no-transform"
    assert answer.headers["x-accel-buffering"] == "no"
    assert "content-length" not in answer.headers
    *told, last = [event.data for event in answer.events]
    assert [each["method"] for each in told] == [
        "notifications/message",
        "notifications/progress",
        "notifications/message",
    ]
    assert last["result"]["content"][0]["text"] == "None me"


@pytest.mark.parametrize("speak", [False, True], ids=["before the first byte", "on a stream"])
async def test_client_that_disconnects_cancels_only_the_request_on_that_connection(
    endpoint: Endpoint, speak: bool
) -> None:
    journals["gone"], journals["stays"] = Journal(), Journal()
    gone, stays = await endpoint.connect(), await endpoint.connect()
    for connection, name in ((gone, "gone"), (stays, "stays")):
        arguments = {"name": name, "speak": speak}
        headers, body = modern(
            "tools/call", {"name": "wait", "arguments": arguments, "_meta": {"progressToken": 1}}, request_id=1
        )
        await connection.send("POST", {**headers}, body)
        await journals[name].started.wait()
    await gone.aclose()
    await journals["gone"].ended.wait()
    cancellation = journals["gone"].cancellation
    assert cancellation is not None
    assert cancellation.cause is CancelCause.DISCONNECT
    assert not journals["stays"].ended.is_set()
    await stays.aclose()
    await journals["stays"].ended.wait()


class Passes(trio.abc.Instrument):
    """Counts the passes of trio's scheduler."""

    count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


async def test_handler_is_cancelled_immediately_when_its_client_disconnects(
    endpoint: Endpoint,
) -> None:
    passes, seen = Passes(), list[tuple[int, int]]()
    trio.lowlevel.add_instrument(passes)

    def note() -> None:
        seen.append((passes.count, len(os.listdir("/proc/self/fd"))))

    for _ in range(10):  # trio runs tasks that are ready in any order
        journal = journals["gone"] = Journal()
        connection = await endpoint.connect()
        headers, body = modern("tools/call", {"name": "wait", "arguments": {"name": "gone"}}, request_id=1)
        await connection.send("POST", {**headers}, body)
        await journal.started.wait()
        await trio.testing.wait_all_tasks_blocked()
        journal.on_end = note
        assert isinstance(connection.stream, trio.SocketStream)
        connection.stream.socket.close()
        note()
        await journal.ended.wait()
    trio.lowlevel.remove_instrument(passes)
    departures, ends = seen[::2], seen[1::2]
    assert [fds for _, fds in ends] == [fds for _, fds in departures]
    # The reader of the connection is woken, then the handler. The clock of the server may come in between once.
    assert min(end - start for (start, _), (end, _) in zip(departures, ends, strict=True)) == 2


async def test_bytes_that_follow_a_request_do_not_count_as_a_disconnect(endpoint: Endpoint) -> None:
    journals["one"] = Journal()
    connection = await endpoint.connect()
    headers, body = modern("tools/call", {"name": "wait", "arguments": {"name": "one"}})
    await connection.send("POST", {**headers}, body)
    await journals["one"].started.wait()
    await connection.stream.send_all(b"POST /mcp HTTP/1.1\r\n")
    with trio.move_on_after(0.05):
        await journals["one"].ended.wait()
    assert not journals["one"].ended.is_set()
    await connection.aclose()
    await journals["one"].ended.wait()


async def test_handler_that_awaits_input_continues_with_any_post_that_has_its_request_state(endpoint: Endpoint) -> None:
    meta = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
    first = await endpoint.modern("tools/call", {"name": "ask_name", "arguments": {}, "_meta": meta})
    result = first.json["result"]
    assert result["resultType"] == "input_required"
    (key,) = result["inputRequests"]
    retry = {
        "name": "ask_name",
        "arguments": {},
        "_meta": meta,
        "requestState": result["requestState"],
        "inputResponses": {key: {"action": "accept", "content": {"name": "Ann"}}},
    }
    second = await endpoint.modern("tools/call", retry)
    assert second.json["result"]["content"][0]["text"] == "hello {'name': 'Ann'}"
    third = await endpoint.modern("tools/call", retry)
    assert (third.status, third.code) == (200, -32602)


async def test_elicitation_without_the_client_capability_gets_status_400(endpoint: Endpoint) -> None:
    answer = await endpoint.modern("tools/call", {"name": "ask_name", "arguments": {}})
    assert (answer.status, answer.code) == (400, -32021)
    assert answer.json["error"]["data"]["requiredCapabilities"] == {"elicitation": {"form": {}}}


async def test_unknown_method_gets_status_404_and_an_unknown_tool_gets_status_200(endpoint: Endpoint) -> None:
    unknown = await endpoint.modern("no/such")
    assert (unknown.status, unknown.code, unknown.json["id"]) == (404, -32601, 1)
    own = await endpoint.modern("tools/call", {"name": "nobody", "arguments": {}})
    assert (own.status, own.code) == (200, -32602)


async def test_posted_cancelled_notification_gets_status_202_and_cancels_nothing(endpoint: Endpoint) -> None:
    journals["posted"] = Journal()
    connection = await endpoint.connect()
    headers, body = modern("tools/call", {"name": "wait", "arguments": {"name": "posted"}})
    await connection.send("POST", {**headers}, body)
    await journals["posted"].started.wait()
    good, cancel = modern("notifications/cancelled", {"requestId": 1})
    del cancel["id"]
    accepted = await endpoint.ask("POST", {**good}, cancel)
    assert (accepted.status, accepted.body) == (202, b"")
    assert not journals["posted"].ended.is_set()
    await connection.aclose()
    await journals["posted"].ended.wait()
