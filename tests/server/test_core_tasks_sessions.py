"""Tasks of 2025-11-25 over HTTP: they outlive their session, and ask on the stream of a request for their result, or on
the one that the client listens to."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from tests.serving.http.protection import issued, protected, session_of
from tests.serving.http.raw import BASE, Connection, message
from tests.serving.http.scenes import MemoryEndpoint, in_memory, messages_in, next_message
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import RequestContext, Server, TaskSettings
from trio_mcp.stores import MemoryTaskStore

RELATED = "io.modelcontextprotocol/related-task"
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
BOB = {"action": "accept", "content": {"name": "Bob"}}
ASKABLE = {"elicitation": {}}


def asking_server() -> Server:
    server = Server("s")

    @server.tool(task="optional")
    async def greet(ctx: RequestContext, delay: float = 0) -> str:
        await trio.sleep(delay)
        answer = await ctx.elicit("who?", FORM)
        return f"hello {(answer.content or {}).get('name')}"

    @server.tool(task="optional")
    async def twice(ctx: RequestContext) -> str:
        first = await ctx.elicit("first?", FORM)
        second = await ctx.elicit("second?", FORM)
        return f"{first.action} {second.action}"

    @server.tool(task="optional")
    async def tell(ctx: RequestContext) -> str:
        await trio.sleep(1)
        ctx.progress(1, 2)
        await ctx.log.error("careful")
        return "told"

    return server


async def reply_to(
    endpoint: MemoryEndpoint, session: dict[str, Any], method: str, params: dict[str, Any] | None = None
) -> dict[str, Any]:
    answer = await endpoint.ask("POST", session, message(method, params or {}, method))
    assert answer.status == 200, answer
    return messages_in(answer)[-1]


async def create(endpoint: MemoryEndpoint, session: dict[str, Any], tool: str, **params: Any) -> str:
    reply = await reply_to(endpoint, session, "tools/call", {"name": tool, "task": {}, **params})
    return reply["result"]["task"]["taskId"]


async def status_of(endpoint: MemoryEndpoint, session: dict[str, Any], task: str) -> str:
    return (await reply_to(endpoint, session, "tasks/get", {"taskId": task}))["result"]["status"]


async def fetch(endpoint: MemoryEndpoint, session: dict[str, Any], task: str, request_id: str = "fetch") -> Connection:
    """Ask for the result, and return the connection on which the answer comes."""
    connection = await endpoint.post(session, message("tasks/result", {"taskId": task}, request_id))
    await connection.head()  # a stream, since the result takes a while
    return connection


async def question_on(connection: Connection) -> dict[str, Any]:
    while (asked := await next_message(connection)).get("method") != "elicitation/create":
        pass
    return asked


async def answer(endpoint: MemoryEndpoint, session: dict[str, Any], asked: dict[str, Any], result: Any) -> None:
    reply = await endpoint.ask("POST", session, {"jsonrpc": "2.0", "id": asked["id"], "result": result})
    assert reply.status == 202


async def result_on(connection: Connection) -> str:
    while "result" not in (reply := await next_message(connection)):
        pass
    return reply["result"]["content"][0]["text"]


async def test_tasks_list_over_http_gets_error_method_not_found_without_a_principal(autojump_clock: MockClock) -> None:
    async with in_memory(asking_server()) as endpoint:
        session = await endpoint.initialize(**ASKABLE)
        task = await create(endpoint, session, "tell")
        assert (await reply_to(endpoint, session, "tasks/list"))["error"]["code"] == -32601
        assert await status_of(endpoint, session, task) == "working"


async def test_client_without_a_principal_can_read_a_legacy_task_over_http_with_only_its_id(
    autojump_clock: MockClock,
) -> None:
    async with in_memory(asking_server()) as endpoint:
        task = await create(endpoint, await endpoint.initialize(**ASKABLE), "tell")
        other = await endpoint.initialize(**ASKABLE)
        assert await status_of(endpoint, other, task) == "working"


async def test_legacy_task_is_readable_after_its_session_was_deleted(autojump_clock: MockClock) -> None:
    async with in_memory(asking_server()) as endpoint:
        session = await endpoint.initialize(**ASKABLE)
        task = await create(endpoint, session, "tell")
        assert (await endpoint.ask("DELETE", session)).status == 204
        other = await endpoint.initialize(**ASKABLE)
        reply = await reply_to(endpoint, other, "tasks/result", {"taskId": task})
        assert reply["result"]["content"][0]["text"] == "told"


async def test_elicitation_from_a_task_is_sent_on_the_sse_stream_of_tasks_result(autojump_clock: MockClock) -> None:
    async with in_memory(asking_server()) as endpoint:
        session = await endpoint.initialize(**ASKABLE)
        task = await create(endpoint, session, "greet")
        assert await status_of(endpoint, session, task) == "input_required"
        fetching = await fetch(endpoint, session, task)
        asked = await question_on(fetching)
        assert asked["params"]["_meta"] == {RELATED: {"taskId": task}}
        await answer(endpoint, session, asked, BOB)
        assert await result_on(fetching) == "hello Bob"


async def test_elicitation_from_a_task_is_sent_to_a_tasks_result_request_that_already_waits(
    autojump_clock: MockClock,
) -> None:
    async with in_memory(asking_server()) as endpoint:
        session = await endpoint.initialize(**ASKABLE)
        task = await create(endpoint, session, "greet", arguments={"delay": 5})
        fetching = await fetch(endpoint, session, task)
        await answer(endpoint, session, await question_on(fetching), BOB)
        assert await result_on(fetching) == "hello Bob"


async def test_elicitation_from_a_task_is_sent_immediately_on_the_get_stream_of_its_session(
    autojump_clock: MockClock,
) -> None:
    async with in_memory(asking_server()) as endpoint:
        session = await endpoint.initialize(**ASKABLE)
        listening = await endpoint.get(session)
        await listening.head()
        task = await create(endpoint, session, "greet")
        asked = await question_on(listening)
        assert asked["params"]["_meta"] == {RELATED: {"taskId": task}}
        await answer(endpoint, session, asked, BOB)
        reply = await reply_to(endpoint, session, "tasks/result", {"taskId": task})
        assert reply["result"]["content"][0]["text"] == "hello Bob"


async def test_elicitation_from_a_polled_task_is_sent_on_a_get_stream_opened_later(autojump_clock: MockClock) -> None:
    async with in_memory(asking_server()) as endpoint:
        session = await endpoint.initialize(**ASKABLE)
        task = await create(endpoint, session, "greet")
        assert await status_of(endpoint, session, task) == "input_required"
        listening = await endpoint.get(session)
        await listening.head()
        assert await status_of(endpoint, session, task) == "input_required"
        await answer(endpoint, session, await question_on(listening), BOB)
        await wait_all_tasks_blocked()
        assert await status_of(endpoint, session, task) == "completed"


async def test_elicitation_sent_again_for_a_second_tasks_result_can_be_answered_with_its_first_id(
    autojump_clock: MockClock,
) -> None:
    async with in_memory(asking_server()) as endpoint:
        session = await endpoint.initialize(**ASKABLE)
        task = await create(endpoint, session, "greet")
        first = await fetch(endpoint, session, task, "first")
        asked = await question_on(first)
        await first.aclose()
        second = await fetch(endpoint, session, task, "second")
        again = await question_on(second)
        assert (again["params"], again["id"] != asked["id"]) == (asked["params"], True)
        await answer(endpoint, session, asked, BOB)
        cancelled = await next_message(second)
        while cancelled.get("method") != "notifications/cancelled":
            cancelled = await next_message(second)
        assert cancelled["params"]["requestId"] == again["id"]
        assert await result_on(second) == "hello Bob"


async def test_client_can_disconnect_between_two_elicitations_of_a_task(autojump_clock: MockClock) -> None:
    async with in_memory(asking_server()) as endpoint:
        session = await endpoint.initialize(**ASKABLE)
        task = await create(endpoint, session, "twice")
        for number in ("first", "second"):
            fetching = await fetch(endpoint, session, task, number)
            asked = await question_on(fetching)
            assert asked["params"]["message"] == f"{number}?"
            await answer(endpoint, session, asked, {"action": "decline"})
            await fetching.aclose()
            await wait_all_tasks_blocked()
        reply = await reply_to(endpoint, session, "tasks/result", {"taskId": task})
        assert reply["result"]["content"][0]["text"] == "decline decline"


async def test_elicitation_from_a_task_is_sent_only_to_sessions_of_its_principal(autojump_clock: MockClock) -> None:
    async with in_memory(asking_server(), auth=protected(issued())) as endpoint:
        first = await session_of(endpoint, "alice-1", **ASKABLE)
        task = await create(endpoint, first, "greet")
        assert (await endpoint.ask("DELETE", first)).status == 204
        bob = await session_of(endpoint, "bob-1", **ASKABLE)
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            assert (await reply_to(endpoint, bob, method, {"taskId": task}))["error"]["code"] == -32602
        assert (await reply_to(endpoint, bob, "tasks/list"))["result"]["tasks"] == []
        second = await session_of(endpoint, "alice-2", **ASKABLE)
        tasks = (await reply_to(endpoint, second, "tasks/list"))["result"]["tasks"]
        assert [each["taskId"] for each in tasks] == [task]
        fetching = await fetch(endpoint, second, task)
        await answer(endpoint, second, await question_on(fetching), BOB)
        assert await result_on(fetching) == "hello Bob"


async def test_server_with_authorization_declares_the_tasks_list_capability(autojump_clock: MockClock) -> None:
    async with in_memory(asking_server(), auth=protected(issued())) as endpoint:
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
        headers = {**(await session_of(endpoint, "alice-1")), "Mcp-Session-Id": None}
        opened = await endpoint.ask("POST", headers, message("initialize", params, 1))
        assert messages_in(opened)[-1]["result"]["capabilities"]["tasks"]["list"] == {}


async def test_notifications_of_a_legacy_task_are_sent_on_the_get_stream(autojump_clock: MockClock) -> None:
    async with in_memory(asking_server()) as endpoint:
        session = await endpoint.initialize(**ASKABLE)
        listening = await endpoint.get(session)
        await listening.head()
        task = await create(endpoint, session, "tell", _meta={"progressToken": 7})
        told = [await next_message(listening) for _ in range(3)]
    assert [each["method"] for each in told] == [
        "notifications/progress",
        "notifications/message",
        "notifications/tasks/status",
    ]
    assert [each["params"].get("_meta") for each in told] == [{RELATED: {"taskId": task}}] * 2 + [None]
    assert (told[0]["params"]["progressToken"], told[2]["params"]["status"]) == (7, "completed")


@pytest.mark.parametrize("method", ["tasks/get", "tasks/list", "tasks/cancel"])
async def test_tasks_get_over_http_is_answered_as_json_without_a_stream(autojump_clock: MockClock, method: str) -> None:
    async with in_memory(asking_server(), auth=protected(issued())) as endpoint:
        session = await session_of(endpoint, "alice-1", **ASKABLE)
        task = await create(endpoint, session, "tell")
        params = {} if method == "tasks/list" else {"taskId": task}
        answered = await endpoint.ask("POST", session, message(method, params, 5))
        assert answered.headers["content-type"] == "application/json"


async def test_tasks_get_returns_a_task_on_a_stateless_http_server_with_a_store(autojump_clock: MockClock) -> None:
    server = Server("s", tasks=TaskSettings(store=MemoryTaskStore()))

    @server.tool(task="optional")
    async def tell(ctx: RequestContext) -> str:
        ctx.progress(1)
        await ctx.log.error("careful")
        return "told"

    async with in_memory(server, stateless=True) as endpoint:
        session = {**BASE, "MCP-Protocol-Version": "2025-11-25"}
        task = await create(endpoint, session, "tell")
        reply = await reply_to(endpoint, session, "tasks/result", {"taskId": task})
        assert reply["result"]["content"][0]["text"] == "told"
