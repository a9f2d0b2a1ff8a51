"""Tasks in the form of the extension through a proxy: they pass as they are, as far as the client declared them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
from tests.proxying.test_messages import LEGACY, MODERN, between, text
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import proxy
from trio_mcp.testing import ScriptedServer, open_scripted_client, open_scripted_server
from trio_mcp.types import ClientCapabilities

EXTENSION = "io.modelcontextprotocol/tasks"
OURS: dict[str, Any] = {"extensions": {EXTENSION: {}, "com.example/other": {"x": 1}}}
THEIRS: dict[str, Any] = {"tools": {}, "extensions": {EXTENSION: {}, "com.example/theirs": {}}}
TASK: dict[str, Any] = {
    "taskId": "t-1",
    "status": "working",
    "createdAt": "2026-01-01T00:00:00Z",
    "lastUpdatedAt": "2026-01-01T00:00:00Z",
    "ttlMs": 60000,
    "pollIntervalMs": 500,
    "com.example": [1, None],
}
CREATED = {"resultType": "task", **TASK}
DONE: dict[str, Any] = {"resultType": "complete"}
QUESTION = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {"type": "object"}}}
CLIENT = "io.modelcontextprotocol/clientCapabilities"


async def test_proxy_forwards_task_creation_input_result_and_cancel_in_modern_revisions(
    autojump_clock: MockClock,
) -> None:
    asked = {**DONE, **TASK, "status": "input_required", "inputRequests": {"q": {**QUESTION, "new": 1}}}
    ended = {**DONE, **TASK, "status": "completed", "result": {**text("done"), "more": 1}}
    answers = {"taskId": "t-1", "inputResponses": {"q": {"action": "accept", "content": {}, "new": 1}}}

    async def behind(server: ScriptedServer) -> None:
        await server.accept(MODERN, THEIRS)
        call = await server.expect_call("t")
        assert call["params"]["_meta"][CLIENT] == OURS
        await server.answer(call, CREATED)
        for method, params, result in (
            ("tasks/get", {"taskId": "t-1"}, asked),
            ("tasks/update", answers, DONE),
            ("tasks/get", {"taskId": "t-1"}, ended),
            ("tasks/cancel", {"taskId": "t-1"}, DONE),
        ):
            request = await server.expect_request(method, {**params, "_meta": ...})
            assert request["params"]["_meta"][CLIENT] == OURS
            await server.answer(request, result)

    async with between(behind, MODERN, OURS) as client:
        await client.expect_result(await client.call_tool("t"), {**CREATED, "_meta": ...})
        for method, params, result in (
            ("tasks/get", {"taskId": "t-1"}, asked),
            ("tasks/update", answers, DONE),
            ("tasks/get", {"taskId": "t-1"}, ended),
            ("tasks/cancel", {"taskId": "t-1"}, DONE),
        ):
            await client.expect_result(await client.request(method, params), {**result, "_meta": ...})


async def test_proxy_forwards_the_tasks_extension_of_the_server_in_discovery(autojump_clock: MockClock) -> None:
    async def behind(server: ScriptedServer) -> None:
        for _ in ("the proxy", "the client"):
            await server.accept(MODERN, THEIRS)

    async with between(behind, MODERN, OURS) as client:
        discovered = await client.expect_result(await client.request("server/discover"))
        assert discovered["capabilities"] == THEIRS


async def test_proxy_forwards_a_missing_capability_error_for_tasks_unchanged(
    autojump_clock: MockClock,
) -> None:
    data = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}

    async def behind(server: ScriptedServer) -> None:
        await server.accept(MODERN, THEIRS)
        call = await server.expect_call("t")
        assert call["params"]["_meta"][CLIENT] == {}
        await server.refuse(call, -32021, "no tasks", data)

    async with between(behind, MODERN) as client:
        error = await client.expect_error(await client.call_tool("t"), -32021, "no tasks")
        assert error["data"] == data


@pytest.mark.parametrize(("method", "capabilities"), [("tools/call", {}), ("prompts/get", OURS)])
async def test_proxied_call_gets_an_internal_error_if_the_backend_returns_a_task_the_client_did_not_allow(
    autojump_clock: MockClock, method: str, capabilities: dict[str, Any]
) -> None:
    async def behind(server: ScriptedServer) -> None:
        await server.accept(MODERN, {**THEIRS, "prompts": {}})
        await server.answer(await server.expect_request(method), CREATED)

    async with between(behind, MODERN, capabilities) as client:
        await client.expect_error(await client.request(method, {"name": "t"}), -32603)


@pytest.mark.parametrize(
    ("front", "back", "declared"),
    [(LEGACY, MODERN, THEIRS), (MODERN, LEGACY, {**THEIRS, "tasks": {"requests": {"tools": {"call": {}}}}})],
)
async def test_proxy_hides_tasks_if_client_and_server_use_different_task_protocols(
    autojump_clock: MockClock, front: str, back: str, declared: dict[str, Any]
) -> None:
    async def behind(server: ScriptedServer) -> None:
        await server.accept(back, declared)

    opening = partial(open_scripted_server, behind, era="modern" if back == MODERN else "legacy")

    async def told(client: Any) -> Any:
        if front == MODERN:
            return await client.expect_result(await client.request("server/discover"))
        return await client.open(front)

    async with opening(forwards=ClientCapabilities()) as server, open_scripted_client(proxy(server), None) as client:
        if front == MODERN:
            await client.open(front, OURS)
        capabilities = (await told(client))["capabilities"]
        assert "tasks" not in capabilities
        assert "extensions" not in capabilities, "the eras differ, and with them what an extension says"
        await client.expect_error(await client.request("tasks/get", {"taskId": "t"}), -32601)


async def test_proxy_does_not_retry_a_call_as_a_task_if_the_call_fails_in_the_backend(
    autojump_clock: MockClock,
) -> None:
    was_silent = trio.Event()

    async def behind(server: ScriptedServer) -> None:
        await server.accept(MODERN, THEIRS)
        await server.refuse(await server.expect_call("t"), -32602, "no")
        await server.expect_silence(10)
        was_silent.set()

    opening = open_scripted_server(behind, era="modern", forwards=ClientCapabilities())
    async with opening as server, open_scripted_client(proxy(server), LEGACY) as client:
        await client.expect_error(await client.call_tool("t"), -32602, "no")
        await was_silent.wait()


async def test_proxy_forwards_a_cancel_that_arrives_before_the_task_response(autojump_clock: MockClock) -> None:
    cancelled = trio.Event()

    async def behind(server: ScriptedServer) -> None:
        await server.accept(MODERN, THEIRS)
        await server.expect_cancel(await server.expect_call("t"), "enough")
        cancelled.set()

    async with between(behind, MODERN, OURS) as client:
        call = await client.call_tool("t")
        await wait_all_tasks_blocked()
        await client.cancel(call, "enough")
        await cancelled.wait()
        await client.expect_silence(1)


@pytest.mark.parametrize("shares", [False, True])
async def test_task_created_through_a_proxy_can_be_polled_over_another_connection(
    autojump_clock: MockClock, shares: bool
) -> None:
    async def behind(server: ScriptedServer) -> None:
        await server.accept(MODERN, THEIRS)
        while True:
            message = await server.receive()
            await server.answer(message, CREATED if message["method"] == "tools/call" else {**DONE, **TASK})
            if message["method"] == "tasks/get":
                return

    async def found(way: Any) -> None:
        async with open_scripted_client(way, MODERN, OURS) as client:
            await client.expect_result(await client.call_tool("t"), {**CREATED, "_meta": ...})
        async with open_scripted_client(way, MODERN, OURS) as client:
            await client.expect_result(
                await client.request("tasks/get", {"taskId": "t-1"}), {**DONE, **TASK, "_meta": ...}
            )

    if shares:
        async with open_scripted_server(behind, era="modern", forwards=ClientCapabilities()) as server:
            await found(proxy(server))
    else:
        await found(proxy(partial(open_scripted_server, behind)))
