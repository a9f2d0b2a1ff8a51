"""Tasks as 2025-11-25 has them, on a server: the client asks for a task, and asks for its state and its result."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from trio_mcp import Limits, RequestContext, Server, TaskSettings, ToolError
from trio_mcp.jsonrpc.errors import CodedError
from trio_mcp.testing import ScriptedClient, open_scripted_client
from trio_mcp.types import CallToolResult, TextContent

LEGACY = "2025-11-25"
RELATED = "io.modelcontextprotocol/related-task"


class Scene:
    """A server whose tool ``work`` waits until ``gate`` is open."""

    def __init__(self, **tasks: Any) -> None:
        self.server = server = Server("s", limits=Limits(drain_timeout=0.01), tasks=TaskSettings(**tasks))
        self.gate = trio.Event()
        self.started = trio.Event()
        self.ended = trio.Event()
        self.cancellations: list[Any] = []

        @server.tool(task="optional")
        async def work(ctx: RequestContext, text: str = "done") -> str:
            self.started.set()
            try:
                await self.gate.wait()
            finally:
                self.cancellations.append(ctx.cancellation)
                self.ended.set()
            return text

        @server.tool(task="required")
        async def must(text: str) -> str:
            return text

        @server.tool
        async def plain(text: str) -> str:
            return text

        @server.tool(task="optional")
        async def fail(how: str) -> CallToolResult:
            match how:
                case "error":
                    raise ToolError("the disk is full")
                case "defect":
                    raise RuntimeError("secret")
                case "result":
                    return CallToolResult([TextContent("no such row")], is_error=True)
                case _:
                    raise CodedError(-32050, "out of paper", {"tray": 2})


@asynccontextmanager
async def opened(
    scene: Scene, capabilities: dict[str, Any] | None = None, revision: str = LEGACY
) -> AsyncGenerator[ScriptedClient]:
    async with open_scripted_client(scene.server, revision, capabilities) as client:
        yield client


async def result_of(client: ScriptedClient, request_id: Any) -> Any:
    return (await client.until({"id": request_id, "result": ...}))["result"]


async def ask(client: ScriptedClient, method: str, **params: Any) -> Any:
    return await result_of(client, await client.request(method, params))


async def refused(client: ScriptedClient, method: str, **params: Any) -> Any:
    return (await client.until({"id": await client.request(method, params), "error": ...}))["error"]


async def create(client: ScriptedClient, name: str = "work", ttl: Any = ..., **arguments: Any) -> dict[str, Any]:
    task = {} if ttl is ... else {"ttl": ttl}
    result = await ask(client, "tools/call", name=name, arguments=arguments, task=task)
    assert set(result) == {"task"}
    return result["task"]


# Capabilities


async def capabilities_of(server: Server, revision: str = LEGACY) -> dict[str, Any]:
    async with open_scripted_client(server, None) as client:
        result = await client.open(revision)
        assert result is not None
        return result["capabilities"]


async def test_legacy_server_with_task_tools_declares_the_tasks_capability() -> None:
    declared = await capabilities_of(Scene().server)
    assert declared["tasks"] == {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
    assert "extensions" not in declared


async def test_legacy_server_without_task_tools_declares_no_tasks_capability() -> None:
    server = Server("s")

    @server.tool
    async def plain() -> str:
        return "plain"

    assert "tasks" not in await capabilities_of(server)


async def test_server_declares_no_tasks_capability_in_revisions_without_core_tasks() -> None:
    assert "tasks" not in await capabilities_of(Scene().server, "2025-06-18")


async def test_tools_list_shows_the_task_support_of_a_tool() -> None:
    async with opened(Scene()) as client:
        tools = {tool["name"]: tool for tool in (await ask(client, "tools/list"))["tools"]}
    assert tools["work"]["execution"] == {"taskSupport": "optional"}
    assert tools["must"]["execution"] == {"taskSupport": "required"}
    assert "execution" not in tools["plain"]


@pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/cancel", "tasks/list"])
async def test_task_requests_to_a_server_without_task_tools_get_error_method_not_found(method: str) -> None:
    server = Server("s")

    @server.tool
    async def plain() -> str:
        return "plain"

    async with open_scripted_client(server, LEGACY) as client:
        assert (await refused(client, method, taskId="x"))["code"] == -32601


# Which calls are tasks


async def test_task_params_of_a_call_are_ignored_by_a_server_without_task_tools() -> None:
    server = Server("s")

    @server.tool
    async def plain() -> str:
        return "plain"

    async with open_scripted_client(server, LEGACY) as client:
        result = await ask(client, "tools/call", name="plain", task={"ttl": 1000})
    assert result["content"] == [{"type": "text", "text": "plain"}]


async def test_task_params_of_a_call_are_ignored_in_revisions_without_core_tasks() -> None:
    scene = Scene()
    scene.gate.set()
    async with opened(scene, revision="2025-06-18") as client:
        result = await ask(client, "tools/call", name="work", task={"ttl": 1000})
    assert result["content"] == [{"type": "text", "text": "done"}]


async def test_tool_with_task_support_forbidden_rejects_a_call_as_task() -> None:
    async with opened(Scene()) as client:
        error = await refused(client, "tools/call", name="plain", arguments={"text": "a"}, task={})
    assert error["code"] == -32601


async def test_tool_with_task_support_required_rejects_a_call_that_requests_no_task() -> None:
    async with opened(Scene()) as client:
        error = await refused(client, "tools/call", name="must", arguments={"text": "a"})
    assert error["code"] == -32601


async def test_tool_with_optional_task_support_runs_without_a_task_if_no_task_is_requested() -> None:
    scene = Scene()
    scene.gate.set()
    async with opened(scene) as client:
        result = await ask(client, "tools/call", name="work")
    assert result["content"] == [{"type": "text", "text": "done"}]
    assert RELATED not in result.get("_meta", {})


async def test_call_as_task_of_an_unknown_tool_is_rejected_and_creates_no_task() -> None:
    async with opened(Scene()) as client:
        assert (await refused(client, "tools/call", name="nothing", task={}))["code"] == -32602
        assert (await ask(client, "tasks/list"))["tasks"] == []


async def test_call_as_task_with_invalid_arguments_fails_its_task() -> None:
    async with opened(Scene()) as client:
        task = await create(client, "must", text=5)
        result = await ask(client, "tasks/result", taskId=task["taskId"])
        assert result["isError"]
        assert (await ask(client, "tasks/get", taskId=task["taskId"]))["status"] == "failed"


# Creation


async def test_call_as_task_is_answered_before_its_handler_ends() -> None:
    scene = Scene()
    async with opened(scene) as client:
        task = await create(client, ttl=60_000)
        assert task["status"] == "working"
        assert task["ttl"] == 60_000
        assert task["pollInterval"] == 1000
        for moment in (task["createdAt"], task["lastUpdatedAt"]):
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", moment)
        assert len(task["taskId"]) >= 20
        assert not scene.ended.is_set()


async def test_legacy_task_ids_are_unique() -> None:
    async with opened(Scene()) as client:
        assert len({(await create(client))["taskId"] for _ in range(20)}) == 20


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (1, 1),
        (1.5, 1),
        (60_000, 60_000),
        (5_000_000, 2_000_000),
        (1e300, 2_000_000),
        (None, 2_000_000),
        (..., 1_000_000),
    ],
)
async def test_legacy_task_ttl_is_as_requested_up_to_the_maximum(asked: Any, told: int) -> None:
    async with opened(Scene(ttl=1000, max_ttl=2000)) as client:
        task = await create(client, ttl=asked)
        assert task["ttl"] == told
        assert (await ask(client, "tasks/get", taskId=task["taskId"]))["ttl"] == told


async def test_legacy_task_ttl_can_be_unlimited() -> None:
    async with opened(Scene(max_ttl=float("inf"))) as client:
        task = await create(client, ttl=None)
        assert task["ttl"] is None
        assert (await ask(client, "tasks/get", taskId=task["taskId"]))["ttl"] is None


@pytest.mark.parametrize("ttl", [0, -1, -0.5, "60", True, [1]])
async def test_invalid_task_ttl_in_a_call_gets_error_invalid_params(ttl: Any) -> None:
    scene = Scene()
    async with opened(scene) as client:
        error = await refused(client, "tools/call", name="work", arguments={}, task={"ttl": ttl})
        assert error["code"] == -32602
        assert not scene.started.is_set()


@pytest.mark.parametrize("task", ["yes", 5, [], True])
async def test_call_whose_task_params_are_not_an_object_gets_error_invalid_params(task: Any) -> None:
    async with opened(Scene()) as client:
        assert (await refused(client, "tools/call", name="work", arguments={}, task=task))["code"] == -32602


# State and result


async def test_tasks_get_returns_the_task_fields_at_top_level_without_related_task_meta() -> None:
    scene = Scene()
    async with opened(scene) as client:
        task = await create(client)
        scene.gate.set()
        await scene.ended.wait()
        await ask(client, "tasks/result", taskId=task["taskId"])
        state = await ask(client, "tasks/get", taskId=task["taskId"])
    assert state["status"] == "completed"
    assert set(state) == {"taskId", "status", "createdAt", "lastUpdatedAt", "ttl", "pollInterval"}


async def test_related_task_in_meta_of_tasks_get_is_ignored() -> None:
    async with opened(Scene()) as client:
        one, other = await create(client), await create(client)
        params = {"taskId": one["taskId"]}
        asked = await client.request("tasks/get", params, meta={RELATED: {"taskId": other["taskId"]}})
        assert (await result_of(client, asked))["taskId"] == one["taskId"]


async def test_tasks_result_waits_and_returns_the_call_result_with_related_task_meta() -> None:
    scene = Scene()
    async with opened(scene) as client:
        task = await create(client, text="hello")
        asked = await client.request("tasks/result", {"taskId": task["taskId"]})
        await scene.started.wait()
        assert (await ask(client, "tasks/get", taskId=task["taskId"]))["status"] == "working"
        scene.gate.set()
        result = await result_of(client, asked)
        plain = await ask(client, "tools/call", name="work", arguments={"text": "hello"})
    assert result == {**plain, "_meta": {**plain.get("_meta", {}), RELATED: {"taskId": task["taskId"]}}}


async def test_tasks_result_can_be_requested_repeatedly() -> None:
    scene = Scene()
    scene.gate.set()
    async with opened(scene) as client:
        task = await create(client)
        results = [await ask(client, "tasks/result", taskId=task["taskId"]) for _ in range(2)]
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("error", "the disk is full"),
        ("defect", "internal error in tool fail"),
        ("result", "no such row"),
    ],
)
async def test_tool_error_fails_the_legacy_task_and_becomes_the_task_result(how: str, text: str) -> None:
    async with opened(Scene()) as client:
        task = await create(client, "fail", how=how)
        result = await ask(client, "tasks/result", taskId=task["taskId"])
        assert result["isError"]
        assert result["content"] == [{"type": "text", "text": text}]
        state = await ask(client, "tasks/get", taskId=task["taskId"])
        assert state["status"] == "failed"
        assert state["statusMessage"] == text


async def test_tasks_result_returns_the_protocol_error_of_the_call() -> None:
    async with opened(Scene()) as client:
        task = await create(client, "fail", how="coded")
        error = await refused(client, "tasks/result", taskId=task["taskId"])
        assert error == {"code": -32050, "message": "out of paper", "data": {"tray": 2}}
        state = await ask(client, "tasks/get", taskId=task["taskId"])
        assert state["status"] == "failed"
        assert state["statusMessage"] == "out of paper"


async def test_cancelled_tasks_result_request_does_not_cancel_the_task() -> None:
    scene = Scene()
    async with opened(scene) as client:
        task = await create(client)
        await client.cancel(await client.request("tasks/result", {"taskId": task["taskId"]}))
        assert (await ask(client, "tasks/get", taskId=task["taskId"]))["status"] == "working"
        scene.gate.set()
        assert (await ask(client, "tasks/result", taskId=task["taskId"]))["content"][0]["text"] == "done"


async def test_cancelled_notification_for_the_call_does_not_cancel_its_task() -> None:
    scene = Scene()
    async with opened(scene) as client:
        asked = await client.request("tools/call", {"name": "work", "arguments": {}, "task": {}})
        task = (await result_of(client, asked))["task"]
        await client.cancel(asked)
        assert (await ask(client, "tasks/get", taskId=task["taskId"]))["status"] == "working"
        scene.gate.set()
        await ask(client, "tasks/result", taskId=task["taskId"])


@pytest.mark.parametrize("method", ["tasks/get", "tasks/result", "tasks/cancel"])
@pytest.mark.parametrize("params", [{"taskId": "unknown"}, {"taskId": 5}, {}])
async def test_unknown_legacy_task_id_gets_error_invalid_params(method: str, params: dict[str, Any]) -> None:
    async with opened(Scene()) as client:
        assert (await refused(client, method, **params))["code"] == -32602


async def test_tasks_update_gets_error_method_not_found_in_legacy_revisions() -> None:
    async with opened(Scene()) as client:
        assert (await refused(client, "tasks/update", taskId="x", inputResponses={}))["code"] == -32601


# Cancel


async def test_tasks_cancel_returns_status_cancelled_and_cancels_the_handler() -> None:
    scene = Scene()
    async with opened(scene) as client:
        task = await create(client)
        await scene.started.wait()
        state = await ask(client, "tasks/cancel", taskId=task["taskId"])
        assert state["status"] == "cancelled"
        assert state["taskId"] == task["taskId"]
        assert "_meta" not in state
        await scene.ended.wait()
        assert scene.cancellations[0].cause.value == "task"


async def test_cancelled_task_stays_cancelled_if_its_handler_returns_a_result() -> None:
    server = Server("s")
    ended = trio.Event()

    @server.tool(task="optional")
    async def stubborn() -> str:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            return "all the same"
        finally:
            ended.set()

    async with open_scripted_client(server, LEGACY) as client:
        task = await create(client, "stubborn")
        await ask(client, "tasks/cancel", taskId=task["taskId"])
        await ended.wait()
        assert (await ask(client, "tasks/get", taskId=task["taskId"]))["status"] == "cancelled"


@pytest.mark.parametrize("how", ["completed", "failed", "cancelled"])
async def test_finished_legacy_task_cannot_be_cancelled(how: str) -> None:
    scene = Scene()
    async with opened(scene) as client:
        task = await create(client, "fail", how="error") if how == "failed" else await create(client)
        if how == "completed":
            scene.gate.set()
        if how == "cancelled":
            await ask(client, "tasks/cancel", taskId=task["taskId"])
        else:
            await ask(client, "tasks/result", taskId=task["taskId"])
        error = await refused(client, "tasks/cancel", taskId=task["taskId"])
        assert error["code"] == -32602
        assert how in error["message"]


async def test_tasks_result_for_a_cancelled_task_returns_an_error() -> None:
    async with opened(Scene()) as client:
        task = await create(client)
        asked = await client.request("tasks/result", {"taskId": task["taskId"]})
        await client.request("tasks/cancel", {"taskId": task["taskId"]}, id="cancel")
        messages = [await client.receive() for _ in range(3)]
        answers = {each["id"]: each for each in messages if "id" in each}
        assert answers["cancel"]["result"]["status"] == "cancelled"
        assert answers[asked]["error"]["code"] == -32602
        assert (await refused(client, "tasks/result", taskId=task["taskId"]))["code"] == -32602


# Listing


async def test_tasks_list_pages_contain_each_task_once() -> None:
    async with opened(Scene()) as client:
        made = [(await create(client))["taskId"] for _ in range(230)]
        found: list[str] = []
        params: dict[str, Any] = {}
        while True:
            page = await ask(client, "tasks/list", **params)
            assert "_meta" not in page
            found += [task["taskId"] for task in page["tasks"]]
            if "nextCursor" not in page:
                break
            params = {"cursor": page["nextCursor"]}
    assert sorted(found) == sorted(made)


@pytest.mark.parametrize("cursor", ["unknown", "", 5])
async def test_tasks_list_with_an_invalid_cursor_gets_error_invalid_params(cursor: Any) -> None:
    async with opened(Scene()) as client:
        await create(client)
        assert (await refused(client, "tasks/list", cursor=cursor))["code"] == -32602
