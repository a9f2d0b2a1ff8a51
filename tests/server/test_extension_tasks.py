"""The extension `io.modelcontextprotocol/tasks`, sentence by sentence, against raw requests."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
import trio
from tests.interaction.memory_peer import LATEST_LEGACY, MODERN, MemoryPeer, connected_twice
from tests.server.extension import EXTENSION, KNOWS, about, knowing, refused, slow_server, state_of, task_of
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import RequestContext, Server
from trio_mcp.types import CallToolResult

REQUIRED = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}


# Capability Negotiation


async def test_modern_server_with_task_tools_declares_the_tasks_extension_only(
    autojump_clock: MockClock,
) -> None:
    async with knowing(slow_server()) as peer:
        declared = (await peer.request("server/discover"))["result"]["capabilities"]
    assert declared["extensions"] == {EXTENSION: {}}
    assert "tasks" not in declared


async def test_modern_server_without_task_tools_does_not_declare_the_tasks_extension(autojump_clock: MockClock) -> None:
    server = Server("plain")
    async with knowing(server) as peer:
        declared = (await peer.request("server/discover"))["result"]["capabilities"]
        assert "extensions" not in declared
        assert (await refused(peer, "tasks/get"))["code"] == -32601


async def test_call_without_the_tasks_extension_never_returns_a_task(autojump_clock: MockClock) -> None:
    async with knowing(slow_server(), {}) as peer:
        assert await peer.text("sleep", {"seconds": 5}) == "slept 5"


async def test_tasks_extension_declared_in_one_request_does_not_apply_to_the_next_request(
    autojump_clock: MockClock,
) -> None:
    async with knowing(slow_server(), {}) as peer:
        peer.capabilities = KNOWS
        await task_of(peer, "sleep", {"seconds": 5})
        peer.capabilities = {}
        assert await peer.text("sleep", {"seconds": 5}) == "slept 5"


async def test_tool_with_task_required_rejects_a_client_without_the_tasks_extension(autojump_clock: MockClock) -> None:
    async with knowing(slow_server(), {"elicitation": {}}) as peer:
        error = await peer.error("work")
    assert (error["code"], error["data"]) == (-32021, REQUIRED)


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_task_methods_reject_a_client_without_the_tasks_extension(method: str, autojump_clock: MockClock) -> None:
    async with knowing(slow_server()) as peer:
        task = await task_of(peer, "work", {"seconds": 5})
        peer.capabilities = {"extensions": {"com.example/other": {}}}
        for task_id in (task, "unknown", 5):
            error = await refused(peer, method, task_id)
            assert (error["code"], error["data"]) == (-32021, REQUIRED)


# Task Creation


async def test_call_that_creates_a_task_returns_all_task_fields_at_top_level(autojump_clock: MockClock) -> None:
    async with knowing(slow_server(ttl=60, poll_interval=0.5)) as peer:
        created = await peer.call("sleep", {"seconds": 5})
    assert created.pop("_meta").keys() == {"io.modelcontextprotocol/serverInfo"}
    assert datetime.fromisoformat(created.pop("createdAt")).tzinfo is not None
    assert datetime.fromisoformat(created.pop("lastUpdatedAt")).tzinfo is not None
    assert len(created.pop("taskId")) >= 22, "it cannot be guessed"
    assert created == {"resultType": "task", "status": "working", "ttlMs": 60_000, "pollIntervalMs": 500}


async def test_modern_task_without_expiry_has_a_null_ttl(autojump_clock: MockClock) -> None:
    async with knowing(slow_server(ttl=float("inf"))) as peer:
        created = await peer.call("sleep", {"seconds": 5})
        assert created["ttlMs"] is None
        assert (await about(peer, "tasks/get", created["taskId"]))["ttlMs"] is None


async def test_modern_task_ids_are_unique(autojump_clock: MockClock) -> None:
    async with knowing(slow_server()) as peer:
        assert len({await task_of(peer, "work", {"seconds": 5}) for _ in range(50)}) == 50


async def test_modern_task_is_stored_before_the_call_is_answered(autojump_clock: MockClock) -> None:
    async with knowing(slow_server(grace=0)) as peer:
        created = await peer.call("sleep", {"seconds": 5})
        assert (await about(peer, "tasks/get", created["taskId"]))["status"] == "working"


async def test_legacy_task_param_of_a_call_is_ignored_in_modern_revisions(autojump_clock: MockClock) -> None:
    async with knowing(slow_server()) as peer:
        for tool in ("greet", "sleep"):
            params = {"name": tool, "arguments": {"seconds": 0} if tool == "sleep" else {}, "task": {"ttl": "x"}}
            assert (await peer.request("tools/call", params))["result"]["resultType"] == "complete"


# Task Polling


async def test_working_modern_task_has_no_result_error_or_input_requests(autojump_clock: MockClock) -> None:
    async with knowing(slow_server()) as peer:
        state = await about(peer, "tasks/get", await task_of(peer, "sleep", {"seconds": 5}))
    assert (state["resultType"], state["status"]) == ("complete", "working")
    assert not state.keys() & {"result", "error", "inputRequests", "requestState", "ttl", "pollInterval", "task"}


async def test_completed_modern_task_has_the_result_that_its_call_would_return_without_a_task(
    autojump_clock: MockClock,
) -> None:
    async with knowing(slow_server()) as peer:
        task = await task_of(peer, "sleep", {"seconds": 5})
        await trio.sleep(5)
        state = await state_of(peer, task)
        plain = await peer.call("sleep", {"seconds": 0})
    assert state["status"] == "completed"
    assert state["result"].keys() == plain.keys() - {"_meta"}, "what the server is called is said of the reply alone"
    assert state["result"]["content"] == [{"type": "text", "text": "slept 5"}]
    assert not state.keys() & {"error", "inputRequests", "requestState"}


async def test_modern_task_result_keeps_meta_of_the_handler_but_not_of_the_response(
    autojump_clock: MockClock,
) -> None:
    server = Server("named")

    @server.tool(task="required")
    async def work() -> CallToolResult:
        return CallToolResult([], meta={"com.example/seed": 5})

    async with knowing(server) as peer:
        state = await state_of(peer, await task_of(peer, "work"))
    assert state["result"] == {"resultType": "complete", "content": [], "_meta": {"com.example/seed": 5}}


async def test_tool_error_completes_a_modern_task_with_is_error(autojump_clock: MockClock) -> None:
    async with knowing(slow_server()) as peer:
        state = await state_of(peer, await task_of(peer, "fail"))
    assert state["status"] == "completed"
    assert (state["result"]["isError"], state["result"]["content"][0]["text"]) == (True, "it went wrong")


async def test_protocol_error_fails_a_modern_task(autojump_clock: MockClock) -> None:
    async with knowing(slow_server()) as peer:
        state = await state_of(peer, await task_of(peer, "break_"))
    assert (state["status"], state["error"]) == (
        "failed",
        {"code": -32050, "message": "broken", "data": {"why": "age"}},
    )
    assert not state.keys() & {"result", "inputRequests", "requestState"}


async def test_modern_task_state_change_updates_last_updated_at(autojump_clock: MockClock) -> None:
    async with knowing(slow_server()) as peer:
        task = await task_of(peer, "ask", {"names": 1})
        before = await about(peer, "tasks/get", task)
        after = await state_of(peer, task)
    assert before["createdAt"] == after["createdAt"]
    assert datetime.fromisoformat(before["lastUpdatedAt"]) <= datetime.fromisoformat(after["lastUpdatedAt"])


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_unknown_modern_task_id_gets_error_invalid_params(method: str, autojump_clock: MockClock) -> None:
    params: dict[str, Any] = {"inputResponses": {}} if method == "tasks/update" else {}
    async with knowing(slow_server()) as peer:
        assert (await refused(peer, method, "unknown", **params))["code"] == -32602
        assert (await refused(peer, method, 5, **params))["code"] == -32602


@pytest.mark.parametrize("method", ["tasks/result", "tasks/list"])
async def test_modern_request_with_a_legacy_task_method_gets_error_method_not_found(
    method: str, autojump_clock: MockClock
) -> None:
    async with knowing(slow_server()) as peer:
        task = await task_of(peer, "work")
        assert (await refused(peer, method, task))["code"] == -32601


# Task Update Requests


async def test_modern_task_state_contains_all_its_open_input_requests(autojump_clock: MockClock) -> None:
    async with knowing(slow_server()) as peer:
        state = await state_of(peer, await task_of(peer, "ask", {"names": 2}))
    assert state["status"] == "input_required"
    questions = state["inputRequests"].values()
    assert sorted(each["params"]["message"] for each in questions) == ["name 0?", "name 1?"]
    assert {each["method"] for each in questions} == {"elicitation/create"}
    assert not state.keys() & {"result", "error", "requestState"}


def named(name: str) -> dict[str, Any]:
    return {"action": "accept", "content": {"name": name}}


async def test_tasks_update_with_partial_answers_leaves_the_other_input_requests_open(
    autojump_clock: MockClock,
) -> None:
    async with knowing(slow_server()) as peer:
        task = await task_of(peer, "ask", {"names": 2})
        first, second = (await state_of(peer, task))["inputRequests"]
        ack = await about(peer, "tasks/update", task, inputResponses={first: named("Ann")})
        state = await about(peer, "tasks/get", task)
        assert (state["status"], list(state["inputRequests"])) == ("input_required", [second])
        await about(peer, "tasks/update", task, inputResponses={second: named("Bob")})
        assert (await about(peer, "tasks/get", task))["status"] != "input_required"
        state = await state_of(peer, task)
    assert ack.keys() == {"resultType", "_meta"}, "an acknowledgement is empty"
    assert ack["resultType"] == "complete"
    assert state["status"] == "completed"
    assert "Ann" in state["result"]["content"][0]["text"]


async def test_tasks_update_ignores_answers_to_unknown_input_requests(autojump_clock: MockClock) -> None:
    async with knowing(slow_server()) as peer:
        task = await task_of(peer, "ask", {"names": 2})
        first, second = (await state_of(peer, task))["inputRequests"]
        await about(peer, "tasks/update", task, inputResponses={"never": named("Eve"), first: named("Ann")})
        await about(peer, "tasks/update", task, inputResponses={first: named("Eve")})
        assert list((await state_of(peer, task))["inputRequests"]) == [second]
        await about(peer, "tasks/update", task, inputResponses={first: named("Eve"), second: named("Bob")})
        text = (await state_of(peer, task))["result"]["content"][0]["text"]
        await about(peer, "tasks/update", task, inputResponses={second: named("Eve")})
    assert "Ann" in text
    assert "Bob" in text
    assert "Eve" not in text


@pytest.mark.parametrize("response", ["text", 5, None, [], True])
async def test_tasks_update_with_an_answer_that_is_not_an_object_changes_nothing(
    response: Any, autojump_clock: MockClock
) -> None:
    async with knowing(slow_server()) as peer:
        task = await task_of(peer, "ask", {"names": 2})
        before = await state_of(peer, task)
        first, second = before["inputRequests"]
        wrong = {first: named("Ann"), second: response}
        assert (await refused(peer, "tasks/update", task, inputResponses=wrong))["code"] == -32602
        assert await state_of(peer, task) == before


@pytest.mark.parametrize("responses", [{}, {"inputResponses": None}, {"inputResponses": []}])
async def test_tasks_update_without_input_responses_gets_error_invalid_params(
    responses: dict[str, Any], autojump_clock: MockClock
) -> None:
    async with knowing(slow_server()) as peer:
        task = await task_of(peer, "ask", {"names": 1})
        assert (await refused(peer, "tasks/update", task, **responses))["code"] == -32602


async def test_input_request_keys_are_unique_within_a_task(autojump_clock: MockClock) -> None:
    server = Server("asking")

    @server.tool(task="required")
    async def ask_often(ctx: RequestContext) -> str:
        assert ctx.task is not None
        await ctx.task.start()
        answers = [(await ctx.elicit("name?", {"type": "object", "properties": {}})).action for _ in range(3)]
        return " ".join(answers)

    seen: list[str] = []
    async with knowing(server) as peer:
        task = await task_of(peer, "ask_often")
        for action in ("accept", "decline", "cancel"):
            (key,) = (await state_of(peer, task))["inputRequests"]
            seen.append(key)
            answers = {**{old: {"action": "accept"} for old in seen}, key: {"action": action}}
            await about(peer, "tasks/update", task, inputResponses=answers)
        state = await state_of(peer, task)
    assert len(set(seen)) == 3
    assert state["result"]["content"][0]["text"] == "accept decline cancel"


# Task Cancellation


async def test_tasks_cancel_of_a_modern_task_is_acknowledged_and_cancels_the_handler(autojump_clock: MockClock) -> None:
    async with knowing(slow_server()) as peer:
        task = await task_of(peer, "sleep", {"seconds": 1000})
        ack = await about(peer, "tasks/cancel", task)
        state = await state_of(peer, task)
    assert ack.keys() == {"resultType", "_meta"}
    assert ack["resultType"] == "complete"
    assert state["status"] == "cancelled"
    assert not state.keys() & {"result", "error", "inputRequests"}


@pytest.mark.parametrize("tool", ["work", "fail", "break_"])
async def test_tasks_cancel_of_a_finished_modern_task_changes_nothing(tool: str, autojump_clock: MockClock) -> None:
    async with knowing(slow_server()) as peer:
        task = await task_of(peer, tool)
        before = await state_of(peer, task)
        for _ in range(2):
            assert (await about(peer, "tasks/cancel", task))["resultType"] == "complete"
        assert await state_of(peer, task) == before


async def test_tasks_update_of_a_cancelled_task_changes_nothing(autojump_clock: MockClock) -> None:
    async with knowing(slow_server()) as peer:
        task = await task_of(peer, "ask", {"names": 1})
        (key,) = (await state_of(peer, task))["inputRequests"]
        await about(peer, "tasks/cancel", task)
        assert (await about(peer, "tasks/update", task, inputResponses={key: named("Ann")}))["resultType"] == "complete"
        assert (await state_of(peer, task))["status"] == "cancelled"


async def test_cancelled_notification_after_the_response_does_not_cancel_the_task(autojump_clock: MockClock) -> None:
    async with knowing(slow_server()) as peer:
        message = peer.call_message("sleep", {"seconds": 50})
        await peer.send(message)
        task = (await peer.reply(message["id"]))["result"]["taskId"]
        await peer.cancel(message["id"], "changed my mind")
        assert (await state_of(peer, task))["status"] == "working"


# Task Status Notifications


async def test_modern_task_sends_no_progress_or_logs_after_its_start(autojump_clock: MockClock) -> None:
    server = Server("telling")
    told = trio.Event()

    @server.tool(task="optional")
    async def tell(ctx: RequestContext) -> str:
        ctx.progress(1, 3, "before")
        await ctx.log.info("before")
        assert ctx.task is not None
        await ctx.task.start()
        ctx.progress(2, 3, "after")
        await ctx.log.info("after")
        told.set()
        await trio.sleep(5)
        return "done"

    async with knowing(server) as peer:
        message = peer.call_message("tell", token="t", log_level="debug")
        await peer.send(message)
        task = (await peer.reply(message["id"]))["result"]["taskId"]
        await told.wait()
        await trio.sleep(0.2)
        assert (await about(peer, "tasks/get", task))["statusMessage"] == "after"
        await peer.everything(10)
    assert [p["message"] for p in peer.progress_of("t")] == ["before"]
    assert [data for _, data in peer.logged()] == ["before"]


# Security Considerations


async def opened_twice(first: MemoryPeer, second: MemoryPeer) -> None:
    for peer in (first, second):
        await peer.open(MODERN, KNOWS)


async def test_modern_task_of_another_principal_is_reported_as_unknown(autojump_clock: MockClock) -> None:
    async with connected_twice(slow_server(), principals=("ann", "bob")) as (ann, bob):
        await opened_twice(ann, bob)
        task = await task_of(ann, "ask", {"names": 1})
        before = await state_of(ann, task)
        unknown = await refused(bob, "tasks/get", "unknown")
        assert unknown["code"] == -32602
        assert await refused(bob, "tasks/get", task) == unknown
        assert await refused(bob, "tasks/cancel", task) == unknown
        answers = {key: named("Eve") for key in before["inputRequests"]}
        assert await refused(bob, "tasks/update", task, inputResponses=answers) == unknown
        assert await state_of(ann, task) == before


async def test_modern_task_is_usable_by_its_principal_on_another_connection(autojump_clock: MockClock) -> None:
    async with connected_twice(slow_server(), principals=("ann", "ann")) as (here, there):
        await opened_twice(here, there)
        task = await task_of(here, "work")
        await wait_all_tasks_blocked()
        assert (await about(there, "tasks/get", task))["status"] == "completed"


async def test_client_without_a_principal_can_read_a_modern_task_with_only_its_id(autojump_clock: MockClock) -> None:
    async with connected_twice(slow_server()) as (here, there):
        await opened_twice(here, there)
        task = await task_of(here, "work", {"seconds": 5})
        assert (await about(there, "tasks/get", task))["status"] == "working"
        await about(there, "tasks/cancel", task)
        assert (await state_of(here, task))["status"] == "cancelled"


# Both eras


async def test_task_created_by_a_legacy_call_is_readable_in_modern_requests_and_vice_versa(
    autojump_clock: MockClock,
) -> None:
    async with connected_twice(slow_server()) as (old, new):
        await old.open(LATEST_LEGACY)
        await new.open(MODERN, KNOWS)
        params = {"name": "fail", "arguments": {}, "task": {}}
        task = (await old.request("tools/call", params))["result"]["task"]["taskId"]
        state = await state_of(new, task)
        assert (state["status"], state["result"]["resultType"]) == ("completed", "complete")
        assert (await about(old, "tasks/get", task))["status"] == "failed"
        task = await task_of(new, "work")
        assert (await about(old, "tasks/result", task)).keys() == {"content", "_meta"}
        assert (await about(old, "tasks/get", task))["status"] == "completed"
