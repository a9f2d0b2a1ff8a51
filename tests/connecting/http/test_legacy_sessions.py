"""Sessions with legacy servers: ids, order, end, and loss (2025-11-25 transports)."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from tests.connecting.http.scripted import (
    Answer,
    Got,
    Handler,
    error,
    initialized,
    legacy,
    modern,
    result,
    serving,
    text,
)
from tests.patience import PATIENCE
from trio.testing import MockClock

from trio_mcp import HTTPError, PeerError, ProtocolViolation, open_http
from trio_mcp.connecting.http import posted_request
from trio_mcp.jsonrpc.sizes import MOST_FAR

FORGOTTEN = {"jsonrpc": "2.0", "id": None, "error": {"code": -32001, "message": "Session not found"}}


async def call(got: Got, answer: Answer) -> None:
    await answer.json(text(got))


async def test_client_sends_session_id_and_protocol_version_with_every_request_after_initialize() -> None:
    async with serving(legacy(call)) as server, open_http(server.url, era="legacy") as client:
        await client.call_tool("any")
        await server.until("GET")
    assert server.names[0] == "initialize"
    assert "mcp-session-id" not in server.got[0].headers
    assert "mcp-protocol-version" not in server.got[0].headers
    for got in server.got[1:]:
        assert (got.headers["mcp-session-id"], got.headers["mcp-protocol-version"]) == ("s-1", "2025-11-25")
        assert "mcp-method" not in got.headers
    assert sorted(server.names[1:]) == ["DELETE", "GET", "notifications/initialized", "tools/call"]
    assert server.names[-1] == "DELETE"


async def test_client_of_a_server_without_sessions_sends_no_session_id_and_no_delete() -> None:
    async with serving(legacy(call, session=None)) as server, open_http(server.url, era="legacy") as client:
        await client.call_tool("any")
        await server.until("GET")
    assert all("mcp-session-id" not in got.headers for got in server.got)
    assert "DELETE" not in server.names


async def test_client_refuses_a_session_id_with_invalid_characters() -> None:
    async with serving(legacy(call, session="s\u00e4")) as server:
        with pytest.raises(HTTPError, match="visible ASCII"):
            async with open_http(server.url, era="legacy"):
                pass


async def test_calls_wait_for_the_response_to_the_initialized_notification() -> None:
    order = list[str]()

    async def handler(got: Got, answer: Answer) -> None:
        if got.name == "notifications/initialized":
            await trio.testing.wait_all_tasks_blocked(0.02)
            order.append("initialized")
        elif got.name == "tools/call":
            order.append("call")
        await legacy(call)(got, answer)

    async with serving(handler) as server, open_http(server.url, era="legacy") as client:
        await client.call_tool("any")
    assert order == ["initialized", "call"]


@pytest.mark.parametrize("slow", ["notifications/initialized", "GET", "DELETE"])
async def test_calls_succeed_although_the_server_does_not_answer_initialized_get_or_delete(slow: str) -> None:
    async def handler(got: Got, answer: Answer) -> None:
        if got.name == slow:
            await answer.gone()
        else:
            await legacy(call)(got, answer)

    async with serving(handler) as server:
        with trio.fail_after(PATIENCE):
            async with open_http(server.url, era="legacy") as client:
                assert (await client.call_tool("any")).text == "done"


@pytest.mark.parametrize("status", [400, 401, 404, 405, 406, 501])
async def test_calls_succeed_although_the_server_refuses_the_event_stream(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(got: Got, answer: Answer) -> None:
        await (answer.whole(status) if got.name == "GET" else legacy(call)(got, answer))

    caplog.set_level(logging.DEBUG, "trio_mcp")
    async with serving(handler) as server, open_http(server.url, era="legacy") as client:
        await server.until("GET")
        assert (await client.call_tool("any")).text == "done"
        await trio.testing.wait_all_tasks_blocked(0.01)
    assert server.names.count("GET") == 1
    assert "stream" in caplog.text


@pytest.mark.parametrize("status", [405, 404, 500])
async def test_client_closes_without_an_error_if_the_server_refuses_to_delete_the_session(status: int) -> None:
    async def handler(got: Got, answer: Answer) -> None:
        await (answer.whole(status) if got.name == "DELETE" else legacy(call)(got, answer))

    async with serving(handler) as server, open_http(server.url, era="legacy") as client:
        await client.call_tool("any")
    assert server.names[-1] == "DELETE"


async def test_client_logs_a_warning_if_the_server_refuses_a_notification(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(got: Got, answer: Answer) -> None:
        if got.name == "notifications/initialized":
            await answer.whole(400, b"what?")
        else:
            await legacy(call)(got, answer)

    async with serving(handler) as server, open_http(server.url, era="legacy") as client:
        assert (await client.call_tool("any")).text == "done"
    assert "the server refused notifications/initialized: the server answered with HTTP status 400" in caplog.text


# Leaving


@pytest.mark.parametrize("streams", [False, True], ids=["silent", "streaming"])
async def test_cancelled_call_in_a_legacy_revision_sends_one_cancel_and_closes_the_http_response(
    streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posted_request, "_FAREWELL", 0.05)
    gone = trio.Event()

    async def then(got: Got, answer: Answer) -> None:
        if streams:
            await answer.open()
        await answer.gone()
        gone.set()

    async with serving(legacy(then)) as server, open_http(server.url, era="legacy") as client:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "slow")
                await server.until("tools/call")
                scope.cancel(reason="enough")
        cancel = await server.until("notifications/cancelled")
        await gone.wait()
    assert cancel.message["params"]["requestId"] == server.named("tools/call")[0].message["id"]
    assert server.names.count("notifications/cancelled") == 1


async def test_server_can_cancel_the_roots_request_of_a_cancelled_call() -> None:
    asked, left = trio.Event(), trio.Event()
    stream: Answer | None = None

    async def roots() -> list[Any]:
        asked.set()
        try:
            await trio.sleep_forever()
        finally:
            left.set()

    async def handler(got: Got, answer: Answer) -> None:
        nonlocal stream
        if got.name == "tools/call":
            stream = answer
            await answer.open()
            await answer.event(question("q"))
            await answer.gone()
            return
        await legacy(call)(got, answer)
        if got.name == "notifications/cancelled":
            assert stream is not None
            taken_back = {"jsonrpc": "2.0", "method": got.name, "params": {"requestId": "q"}}
            await stream.event(taken_back)
            await stream.end()

    async with serving(handler) as server, open_http(server.url, era="legacy", roots=roots) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "any")
            await asked.wait()
            nursery.cancel_scope.cancel()
        await left.wait()
    assert "reply" not in server.names


async def test_http_client_sends_a_cancel_even_if_it_closes_immediately() -> None:
    asked = trio.Event()

    async def then(got: Got, answer: Answer) -> None:
        asked.set()
        await answer.gone()

    async with serving(legacy(then)) as server:
        async with open_http(server.url, era="legacy") as client, trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "slow")
            await asked.wait()
            nursery.cancel_scope.cancel()
        assert server.names[-2:] == ["notifications/cancelled", "DELETE"]


async def test_http_client_with_cancel_notifications_disabled_sends_no_cancel() -> None:
    asked, gone = trio.Event(), trio.Event()

    async def then(got: Got, answer: Answer) -> None:
        asked.set()
        await answer.gone()
        gone.set()

    async with serving(legacy(then)) as server, open_http(server.url, era="legacy", send_cancels=False) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "slow")
            await asked.wait()
            nursery.cancel_scope.cancel()
        await gone.wait()
    assert "notifications/cancelled" not in server.names


# Requests of the server


def question(request_id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": "roots/list"}


async def test_client_answers_a_roots_request_on_the_stream_of_a_call_by_post() -> None:
    answered = trio.Event()

    async def then(got: Got, answer: Answer) -> None:
        if got.name == "reply":
            await answer.whole(202)
            answered.set()
            return
        await answer.open()
        await answer.event(question("q"))
        await answered.wait()
        await answer.event(text(got))
        await answer.end()

    async with serving(legacy(then)) as server, open_http(server.url, era="legacy", roots=[]) as client:
        assert (await client.call_tool("any")).text == "done"
    [reply] = server.named("reply")
    assert reply.message == {"jsonrpc": "2.0", "id": "q", "result": {"roots": []}}
    assert reply.headers["mcp-session-id"] == "s-1"


async def test_client_answers_a_ping_before_the_initialize_result() -> None:
    answered = trio.Event()

    async def handler(got: Got, answer: Answer) -> None:
        if got.name == "reply":
            await answer.whole(202)
            answered.set()
        elif got.name == "initialize":
            await answer.open(mcp_session_id="s-1")
            await answer.event({"jsonrpc": "2.0", "id": 7, "method": "ping"})
            await answered.wait()
            await answer.event(initialized(got))
            await answer.end()
        else:
            await legacy(call)(got, answer)

    async with serving(handler) as server, open_http(server.url, era="legacy") as client:
        assert (await client.call_tool("any")).text == "done"
    assert server.named("reply")[0].message["id"] == 7
    assert server.named("tools/call")[0].headers["mcp-session-id"] == "s-1"


# The stream of the server


async def test_client_handles_notifications_and_requests_on_the_get_stream() -> None:
    answered, changed = trio.Event(), trio.Event()

    async def handler(got: Got, answer: Answer) -> None:
        if got.name == "GET":
            assert got.headers["accept"] == "text/event-stream"
            await answer.open()
            await answer.event({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
            await answer.event(question())
            await answer.gone()
        elif got.name == "reply":
            await answer.whole(202)
            answered.set()
        else:
            await legacy(call, tools={"listChanged": True})(got, answer)

    async with (
        serving(handler) as server,
        open_http(server.url, era="legacy", roots=[], on_list_changed=lambda _: changed.set()),
    ):
        await answered.wait()
        await changed.wait()


async def test_client_ignores_replies_on_the_get_stream(caplog: pytest.LogCaptureFixture) -> None:
    told = trio.Event()

    async def handler(got: Got, answer: Answer) -> None:
        if got.name == "GET":
            await answer.open()
            called = await server.until("tools/call")
            await answer.event(text(called, "wrong"))
            await answer.event("garbage")
            told.set()
            await answer.gone()
        elif got.name == "tools/call":
            await told.wait()
            await trio.testing.wait_all_tasks_blocked(0.01)
            await answer.json(text(got, "right"))
        else:
            await legacy(call)(got, answer)

    async with serving(handler) as server, open_http(server.url, era="legacy") as client:
        assert (await client.call_tool("any")).text == "right"
    assert caplog.text.count("ignored a message that the server sent outside of any request") == 2


async def test_get_stream_is_reopened_with_the_last_event_id() -> None:
    async def handler(got: Got, answer: Answer) -> None:
        if got.name != "GET":
            await legacy(call)(got, answer)
            return
        await answer.open()
        if len(server.named("GET")) == 1:
            await answer.event("", id="e-1", retry=10)
            await answer.cut()
        else:
            await answer.gone()

    async with serving(handler) as server, open_http(server.url, era="legacy"):
        second = await server.until("GET", 2)
    assert second.headers["last-event-id"] == "e-1"


# A session that the server has forgotten


class Forgetful:
    """A legacy server that forgets its session when told to, and opens another each time."""

    def __init__(self, then: Handler, **capabilities: Any) -> None:
        self.then = then
        self.session = 0
        self.known = ""
        self.capabilities = capabilities

    async def __call__(self, got: Got, answer: Answer) -> None:
        if got.name == "initialize":
            self.session += 1
            self.known = f"s-{self.session}"
            await legacy(call, self.known, **self.capabilities)(got, answer)
        elif got.headers.get("mcp-session-id") == self.known:
            await legacy(self.then, self.known)(got, answer)
        elif got.name == "GET":
            await answer.whole(405)
        else:
            await answer.json(FORGOTTEN, 404)

    def forget(self) -> None:
        self.known = ""


async def test_concurrent_calls_in_a_lost_http_session_fail_and_cause_only_one_new_session() -> None:
    handler = Forgetful(call)
    async with serving(handler) as server, open_http(server.url, era="legacy") as client:
        assert (await client.call_tool("any")).text == "done"
        handler.forget()
        failures = list[HTTPError]()

        async def failing() -> None:
            with pytest.raises(HTTPError) as caught:
                await client.call_tool("any")
            failures.append(caught.value)

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(failing)
        assert [failure.status for failure in failures] == [404] * 5
        assert (await client.call_tool("any")).text == "done"
        assert server.names.count("initialize") == 2
        assert client.lost is None
    assert "mcp-session-id" not in server.named("initialize")[1].headers
    assert server.named("tools/call")[-1].headers["mcp-session-id"] == "s-2"
    assert server.named("DELETE")[-1].headers["mcp-session-id"] == "s-2"


async def test_client_does_not_repeat_a_call_that_fails_because_the_session_is_lost() -> None:
    async def then(got: Got, answer: Answer) -> None:
        if got.message["params"]["name"] == "slow":
            await answer.open()
            await answer.event(question())
            await answer.gone()
        else:
            await call(got, answer)

    handler = Forgetful(then)
    asked, left = trio.Event(), trio.Event()

    async def roots() -> list[Any]:
        asked.set()
        try:
            await trio.sleep_forever()
        finally:
            left.set()

    async def slow() -> None:
        with pytest.raises(HTTPError, match="the server has lost the session"):
            await client.call_tool("slow")

    async with (
        serving(handler) as server,
        open_http(server.url, era="legacy", roots=roots) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(slow)
        await asked.wait()
        handler.forget()
        with pytest.raises(HTTPError):
            await client.call_tool("quick")
        await left.wait()
        assert (await client.call_tool("quick")).text == "done"
    assert len([got for got in server.named("tools/call") if got.message["params"]["name"] == "slow"]) == 1
    assert "reply" not in server.names, "the question was of the session that is over"


WORK = {
    "taskId": "t",
    "createdAt": "2026-01-01T00:00:00Z",
    "lastUpdatedAt": "2026-01-01T00:00:00Z",
    "ttl": None,
    "pollInterval": 100,
}
TASKS = {"requests": {"tools": {"call": {}}}}


class ForgetfulWorker(Forgetful):
    """A forgetful server with one task, which goes on in the first session, and has ended in the second one."""

    def __init__(self, status: str = "working") -> None:
        super().__init__(self.work, tools={}, tasks=TASKS)
        self.status = status

    async def work(self, got: Got, answer: Answer) -> None:
        match got.name:
            case "tools/list":
                tool = {"name": "any", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}}
                await answer.json(result(got, tools=[tool]))
            case "tools/call":
                await answer.json(result(got, task={**WORK, "status": "working"}))
            case "tasks/get":
                await answer.json(result(got, **WORK, status="completed" if self.session > 1 else self.status))
            case "tasks/result" if self.session > 1:
                await answer.json(text(got))
            case "tasks/result":
                await answer.open()
                await answer.gone()
            case _:
                await answer.whole(202)


@pytest.mark.parametrize(("in_flight", "status"), [("tasks/get", "working"), ("tasks/result", "input_required")])
async def test_task_that_a_client_waits_for_in_a_lost_session_is_polled_in_the_new_session(
    mock_clock: MockClock, in_flight: str, status: str
) -> None:
    mock_clock.rate = 20
    handler = ForgetfulWorker(status)
    results = list[str]()
    async with serving(handler) as server, open_http(server.url, era="legacy") as client:

        async def wait() -> None:
            results.append((await client.call_tool("any")).text)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await server.until(in_flight)
            handler.forget()
    assert results == ["done"]
    assert (handler.session, server.names.count("tools/call"), server.names.count("tasks/cancel")) == (2, 1, 0)
    assert server.named("tasks/result")[-1].headers["mcp-session-id"] == "s-2"


async def test_waiting_for_a_task_raises_peer_error_if_the_new_session_does_not_know_the_task(
    mock_clock: MockClock,
) -> None:
    mock_clock.rate = 20

    class Unknowing(ForgetfulWorker):
        async def work(self, got: Got, answer: Answer) -> None:
            if self.session > 1 and got.name.startswith("tasks/"):
                await answer.json(error(got, -32602, "there is no such task"))
            else:
                await super().work(got, answer)

    handler = Unknowing()
    async with serving(handler) as server, open_http(server.url, era="legacy") as client:
        task = await client.start_task("any")
        handler.forget()
        with pytest.raises(PeerError, match="no such task") as caught:
            await task.result()
        assert caught.value.code == -32602


async def test_wait_for_a_task_fails_after_repeatedly_lost_sessions(mock_clock: MockClock) -> None:
    mock_clock.rate = 100

    class Lost(ForgetfulWorker):
        async def work(self, got: Got, answer: Answer) -> None:
            await (answer.json(FORGOTTEN, 404) if got.name == "tasks/get" else super().work(got, answer))

    async with serving(Lost()) as server, open_http(server.url, era="legacy") as client:
        task = await client.start_task("any")
        with pytest.raises(HTTPError) as caught:
            await task.result()
        assert (caught.value.status, caught.value.session_lost) == (404, True)
        assert server.names.count("tasks/get") == 6


async def test_waiting_for_a_task_fails_immediately_after_status_404_from_a_server_without_sessions() -> None:
    async def work(got: Got, answer: Answer) -> None:
        await (answer.whole(404) if got.name == "tasks/get" else ForgetfulWorker().work(got, answer))

    handler = legacy(work, session=None, tools={}, tasks=TASKS)
    async with serving(handler) as server, open_http(server.url, era="legacy") as client:
        task = await client.start_task("any")
        with pytest.raises(HTTPError) as caught:
            await task.result()
        assert not caught.value.session_lost
        assert server.names.count("tasks/get") == 1


async def test_client_restores_log_level_and_subscriptions_in_a_new_session_and_reports_changes() -> None:
    told = list[str]()

    async def then(got: Got, answer: Answer) -> None:
        if got.name in ("resources/subscribe", "resources/unsubscribe", "logging/setLevel"):
            await answer.json(result(got))
        else:
            await call(got, answer)

    handler = Forgetful(then, tools={"listChanged": True}, prompts={}, resources={"subscribe": True}, logging={})
    async with (
        serving(handler) as server,
        open_http(server.url, era="legacy", on_list_changed=told.append, on_resource_updated=told.append) as client,
    ):
        await client.call_tool("any")
        await client.set_log_level("warning")
        for uri in ("a:b", "c:d"):
            await client.subscribe(uri)
        await client.unsubscribe("c:d")
        before = len(server.got)
        handler.forget()
        with pytest.raises(HTTPError):
            await client.call_tool("any")
        await server.until("resources/subscribe", 3)
        await client.call_tool("any")
        await trio.testing.wait_all_tasks_blocked(0.01)
        again = [got for got in server.got[before:] if got.name in ("resources/subscribe", "logging/setLevel")]
    told_anew = [{**got.message["params"], "_meta": None} for got in again]
    assert told_anew == [{"level": "warning", "_meta": None}, {"uri": "a:b", "_meta": None}]
    assert told == ["tools", "a:b"]


async def test_waiting_calls_fail_if_a_session_cannot_be_opened_and_later_calls_try_again() -> None:
    handler = Forgetful(call)
    is_down = False

    async def down(got: Got, answer: Answer) -> None:
        if is_down and got.name == "initialize":
            await answer.whole(503, b"starting")
        else:
            await handler(got, answer)

    async with serving(down) as server, open_http(server.url, era="legacy") as client:
        await client.call_tool("any")
        handler.forget()
        is_down = True
        with pytest.raises(HTTPError) as caught:
            await client.call_tool("any")
        assert caught.value.status == 404
        with pytest.raises(HTTPError, match="starting") as caught:
            await client.call_tool("any")
        assert caught.value.status == 503
        is_down = False
        assert (await client.call_tool("any")).text == "done"


async def test_client_opens_only_one_further_session_if_the_server_loses_every_session() -> None:
    async def handler(got: Got, answer: Answer) -> None:
        if got.name in ("initialize", "GET"):
            await legacy(call)(got, answer)
        else:
            await answer.json(FORGOTTEN, 404)

    async with serving(handler) as server, open_http(server.url, era="legacy"):
        await server.until("notifications/initialized", 2)
        await trio.testing.wait_all_tasks_blocked(0.1)
        assert server.names.count("initialize") == 2


async def test_client_keeps_its_session_after_status_404_with_error_method_not_found() -> None:
    async def then(got: Got, answer: Answer) -> None:
        await answer.json(error(got, -32601), 404)

    async with serving(legacy(then)) as server, open_http(server.url, era="legacy") as client:
        with pytest.raises(PeerError):
            await client.call_tool("any")
    assert server.names.count("initialize") == 1


async def test_status_404_from_a_server_without_sessions_fails_only_its_call() -> None:
    async def then(got: Got, answer: Answer) -> None:
        await answer.whole(404)

    async with serving(legacy(then, session=None)) as server, open_http(server.url, era="legacy") as client:
        with pytest.raises(HTTPError):
            await client.call_tool("any")
    assert server.names.count("initialize") == 1


# Batches


async def test_http_client_accepts_a_batch_of_replies_in_revision_2025_03_26() -> None:
    async def then(got: Got, answer: Answer) -> None:
        log = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}}
        await answer.json([log, text(got)])

    logs = list[Any]()
    async with (
        serving(legacy(then)) as server,
        open_http(
            server.url, era="legacy", revision="2025-03-26", on_log=lambda told: logs.append(told.data)
        ) as client,
    ):
        assert (await client.call_tool("any")).text == "done"
    assert logs == [1]


async def test_call_fails_if_the_http_response_is_a_batch_with_a_reply_to_another_request() -> None:
    async def then(got: Got, answer: Answer) -> None:
        await answer.json([text(got), {"jsonrpc": "2.0", "id": 99, "result": {}}])

    async with (
        serving(legacy(then)) as server,
        open_http(server.url, era="legacy", revision="2025-03-26") as client,
    ):
        with pytest.raises(HTTPError, match="replies to several requests"):
            await client.call_tool("any")


async def test_call_fails_if_the_http_response_is_a_batch_in_a_revision_without_batches() -> None:
    async def then(got: Got, answer: Answer) -> None:
        await answer.json([text(got)])

    async with serving(legacy(then)) as server, open_http(server.url, era="legacy") as client:
        with pytest.raises((HTTPError, ProtocolViolation)):
            await client.call_tool("any")


# Replies that the reader would refuse


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize(
    "body",
    ['"x": 1', f'"result": {"[" * 600 + "]" * 600}', f'"result": [{", ".join(["1e-300"] * 2 * MOST_FAR)}]'],
    ids=["neither", "deep", "far"],
)
async def test_unreadable_http_reply_fails_only_its_call(era: Any, body: str) -> None:
    released = trio.Event()

    async def then(got: Got, answer: Answer) -> None:
        if got.message["params"]["name"] == "other":
            await released.wait()
            await answer.json(text(got))
        else:
            line = f'{{"jsonrpc": "2.0", {body}, "id": {got.message["id"]}}}'
            await answer.whole(200, line.encode(), content_type="application/json")

    texts = list[str]()

    async def other() -> None:
        texts.append((await client.call_tool("other")).text)

    async with (
        serving(modern(then) if era == "modern" else legacy(then)) as server,
        open_http(server.url, era=era) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(other)
        await server.until("tools/call")
        with pytest.raises(ProtocolViolation, match="cannot be read"):
            await client.call_tool("any")
        released.set()
    assert texts == ["done"]
