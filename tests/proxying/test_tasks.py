"""Tasks, the experiment of 2025-11-25, through a proxy: they pass as they are, in both directions."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
from tests.proxying.test_messages import LEGACY, between
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import TaskSettings, open_memory, proxy
from trio_mcp.testing import ScriptedServer, open_scripted_client, open_scripted_server
from trio_mcp.types import CreateMessageParams, CreateMessageResult, TextContent

THEIRS: dict[str, Any] = {"tools": {}, "tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}}
OURS: dict[str, Any] = {
    "sampling": {},
    "tasks": {"list": {}, "cancel": {}, "requests": {"sampling": {"createMessage": {}}}},
}
TASK: dict[str, Any] = {
    "taskId": "t-1",
    "status": "working",
    "createdAt": "2026-01-01T00:00:00Z",
    "lastUpdatedAt": "2026-01-01T00:00:00Z",
    "ttl": 60000,
    "pollInterval": 500,
    "com.example": [1, None],
}
RELATED = {"io.modelcontextprotocol/related-task": {"taskId": "t-1"}}


async def test_proxy_forwards_task_capabilities_of_legacy_revisions_in_both_directions(
    autojump_clock: MockClock,
) -> None:
    async def behind(server: ScriptedServer) -> None:
        opening = await server.accept(LEGACY, THEIRS)
        assert opening["params"]["capabilities"] == OURS

    async with open_scripted_client(proxy(partial(open_scripted_server, behind)), None) as client:
        params = {"protocolVersion": LEGACY, "capabilities": OURS, "clientInfo": {"name": "c", "version": "1"}}
        opened = await client.expect_result(await client.request("initialize", params))
        assert opened["capabilities"] == THEIRS


async def test_proxy_forwards_task_creation_result_cancel_and_list_in_legacy_revisions(
    autojump_clock: MockClock,
) -> None:
    async def behind(server: ScriptedServer) -> None:
        await server.accept(LEGACY, THEIRS)
        call = await server.expect_request("tools/call")
        assert call["params"] == {"name": "t", "arguments": {}, "task": {"ttl": 60000, "new": 1}}
        await server.answer(call, {"task": TASK})
        await wait_all_tasks_blocked()
        await server.notify("notifications/tasks/status", TASK)
        for method, result in (
            ("tasks/get", TASK),
            ("tasks/result", {"content": [], "_meta": RELATED}),
            ("tasks/cancel", {**TASK, "status": "cancelled"}),
        ):
            request = await server.expect_request(method)
            assert request["params"] == {"taskId": "t-1"}
            await server.answer(request, result)
        request = await server.expect_request("tasks/list")
        assert request["params"] == {"cursor": "c"}
        await server.answer(request, {"tasks": [TASK], "nextCursor": "d"})

    async with between(behind, LEGACY, OURS) as client:
        params = {"name": "t", "arguments": {}, "task": {"ttl": 60000, "new": 1}}
        assert await client.expect_result(await client.request("tools/call", params)) == {"task": TASK}
        await client.expect({"method": "notifications/tasks/status", "params": TASK})
        of_task = {"taskId": "t-1"}
        assert await client.expect_result(await client.request("tasks/get", of_task)) == TASK
        result = await client.expect_result(await client.request("tasks/result", of_task))
        assert result == {"content": [], "_meta": RELATED}
        cancelled = await client.expect_result(await client.request("tasks/cancel", of_task))
        assert cancelled == {**TASK, "status": "cancelled"}
        listed = await client.expect_result(await client.request("tasks/list", {"cursor": "c"}))
        assert listed == {"tasks": [TASK], "nextCursor": "d"}


@pytest.mark.parametrize("token", [0, "mine"])
async def test_progress_of_a_proxied_task_has_the_progress_token_of_the_original_call(
    autojump_clock: MockClock, token: Any
) -> None:
    async def behind(server: ScriptedServer) -> None:
        await server.accept(LEGACY, THEIRS)
        call = await server.expect_request("tools/call")
        await server.answer(call, {"task": TASK})
        await wait_all_tasks_blocked()
        await server.progress(call, 1, message="one", _meta=RELATED)
        await server.progress(call, 2, message="of no task")
        await server.progress(call, 3, _meta={**RELATED, "x": 1})

    async with between(behind, LEGACY, OURS) as client:
        params = {"name": "t", "task": {}, "_meta": {"progressToken": token}}
        await client.expect_result(await client.request("tools/call", params))
        for told in (
            {"progress": 1, "message": "one", "_meta": RELATED},
            {"progress": 3, "_meta": {**RELATED, "x": 1}},
        ):
            await client.expect({"method": "notifications/progress", "params": {"progressToken": token, **told}})
        await client.expect_silence(1)


async def test_backend_server_can_poll_tasks_of_the_client_through_a_proxy(autojump_clock: MockClock) -> None:
    asked = {"messages": [], "maxTokens": 5, "task": {"ttl": 1}, "_meta": RELATED}
    over = trio.Event()

    async def behind(server: ScriptedServer) -> None:
        await server.accept(LEGACY, THEIRS)
        call = await server.expect_request("tools/call")
        await server.request("q", "sampling/createMessage", asked)
        await server.expect({"id": "q", "result": {"task": TASK, "_meta": RELATED}})
        await server.expect({"method": "notifications/tasks/status", "params": TASK})
        await server.request("g", "tasks/get", {"taskId": "t-1"})
        await server.expect({"id": "g", "result": TASK})
        await server.answer_text(call, "done")
        over.set()

    async with between(behind, LEGACY, OURS) as client:
        call = await client.call_tool("t")
        question = await client.expect({"id": ..., "method": "sampling/createMessage", "params": asked})
        await client.answer(question, {"task": TASK})
        await wait_all_tasks_blocked()
        await client.notify("notifications/tasks/status", TASK)
        await client.answer(await client.expect({"id": ..., "method": "tasks/get", "params": {"taskId": "t-1"}}), TASK)
        await client.expect_text(call, "done")
        await over.wait()


async def test_proxied_client_answers_a_sampling_request_of_the_backend_as_a_task(autojump_clock: MockClock) -> None:
    asked = {"messages": [], "maxTokens": 5, "task": {}}
    declared: Any = {}

    async def behind(server: ScriptedServer) -> None:
        opening = await server.accept(LEGACY, {"tools": {}})
        declared.update(opening["params"]["capabilities"])
        call = await server.expect_call("t")
        await server.request("q", "sampling/createMessage", asked)
        task = (await server.expect({"id": "q", "result": {"task": ...}}))["result"]["task"]["taskId"]
        await server.request("r", "tasks/result", {"taskId": task})
        status = await server.expect({"method": "notifications/tasks/status", "params": ...})
        assert (status["params"]["taskId"], status["params"]["status"]) == (task, "completed")
        answered = await server.expect({"id": "r", "result": ...})
        await server.answer_text(call, answered["result"]["content"]["text"])

    async def sample(_: CreateMessageParams) -> CreateMessageResult:
        await trio.sleep(60)
        return CreateMessageResult("assistant", TextContent("eight legs"), "m")

    way = proxy(partial(open_scripted_server, behind, patience=100))
    async with open_memory(way, era="legacy", sampling=sample, question_tasks=TaskSettings()) as client:
        assert (await client.call_tool("t")).text == "eight legs"
    assert declared["tasks"]["requests"] == {"sampling": {"createMessage": {}}}
