"""What protects a tool protects the tasks that it makes: another client of the same user, with fewer scopes, reaches
none of them (AU-06, ruling 22)."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
from tests.serving.http.protection import Tokens, bearer, issued, protected, session_of
from tests.serving.http.raw import Answer, Endpoint, message, modern, served
from tests.serving.http.scenes import in_memory, messages_in

from trio_mcp import Limits, PeerError, Server, TaskSettings, open_websocket, serve_websocket
from trio_mcp.stores import MemoryTaskStore

KNOWS = {"io.modelcontextprotocol/clientCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}}
LISTEN = "subscriptions/listen"
WITHOUT, WITH = "alice-1", "alice-2"
"""Tokens of the same user. The first lacks the scope ``write``."""


def server_of(store: MemoryTaskStore | None = None, *, has_write: bool = True) -> Server:
    server = Server("scoped", limits=Limits(drain_timeout=0), tasks=TaskSettings(grace=0, store=store))

    @server.tool(task="required", scopes=["write"] if has_write else ["read"], name="write" if has_write else "other")
    async def write() -> str:
        await trio.sleep_forever()
        return "a secret"

    @server.tool(task="required")
    async def read() -> str:
        return "read"

    return server


@pytest.fixture
async def tokens() -> Tokens:
    return issued()


async def asked(endpoint: Endpoint, token: str, method: str, params: dict[str, Any]) -> Answer:
    headers, body = modern(method, {**params, "_meta": KNOWS})
    named = {"Mcp-Name": params["taskId"]} if "taskId" in params else {}
    return await endpoint.ask("POST", {**headers, **named, **bearer(token)}, body)


async def made(endpoint: Endpoint, tool: str = "write") -> str:
    answer = await asked(endpoint, WITH, "tools/call", {"name": tool, "arguments": {}})
    return answer.json["result"]["taskId"]


def about(task: str) -> dict[str, dict[str, Any]]:
    return {
        "tasks/get": {"taskId": task},
        "tasks/update": {"taskId": task, "inputResponses": {}},
        "tasks/cancel": {"taskId": task},
        LISTEN: {"notifications": {"taskIds": [task]}},
    }


@pytest.mark.parametrize("method", about("t"))
async def test_task_request_without_the_scopes_of_its_tool_is_rejected(tokens: Tokens, method: str) -> None:
    async with in_memory(server_of(), auth=protected(tokens)) as endpoint:
        task = await made(endpoint)
        answer = await asked(endpoint, WITHOUT, method, about(task)[method])
        assert (answer.status, answer.code, answer.json["id"]) == (403, -32600, 1)
        assert answer.json["error"]["data"] == {"error": "insufficient_scope", "scopes": ["write"]}
        assert 'error="insufficient_scope"' in answer.headers["www-authenticate"]
        assert 'scope="write"' in answer.headers["www-authenticate"]
        state = await asked(endpoint, WITH, "tasks/get", {"taskId": task})
        assert (state.status, state.json["result"]["status"]) == (200, "working")


@pytest.mark.parametrize("method", [method for method in about("t") if method != LISTEN])
async def test_task_of_a_tool_without_scopes_is_available_to_any_token_of_its_principal(
    tokens: Tokens, method: str
) -> None:
    async with in_memory(server_of(), auth=protected(tokens)) as endpoint:
        answer = await asked(endpoint, WITHOUT, method, about(await made(endpoint, "read"))[method])
        assert (answer.status, "result" in answer.json) == (200, True)


async def test_task_of_another_principal_is_reported_as_unknown_whatever_scopes_the_token_has(tokens: Tokens) -> None:
    async with in_memory(server_of(), auth=protected(tokens)) as endpoint:
        answer = await asked(endpoint, "bob-1", "tasks/get", {"taskId": await made(endpoint)})
        unknown = await asked(endpoint, "bob-1", "tasks/get", {"taskId": "unknown"})
        assert (answer.status, answer.json) == (unknown.status, unknown.json)


async def test_task_of_a_removed_tool_is_reported_as_unknown_if_the_server_uses_scopes(tokens: Tokens) -> None:
    store = MemoryTaskStore()
    async with in_memory(server_of(store), auth=protected(tokens)) as endpoint:
        task = await made(endpoint)
    async with in_memory(server_of(store, has_write=False), auth=protected(tokens)) as endpoint:
        for token in (WITHOUT, WITH):
            assert (await asked(endpoint, token, "tasks/get", {"taskId": task})).code == -32602


async def test_tasks_list_omits_tasks_whose_tools_need_scopes_missing_in_the_token(tokens: Tokens) -> None:
    async with in_memory(server_of(), auth=protected(tokens)) as endpoint:
        session, tasks = await session_of(endpoint, WITH), dict[str, str]()
        for tool in ("write", "read"):
            call = message("tools/call", {"name": tool, "arguments": {}, "task": {}}, 1)
            tasks[tool] = (await endpoint.ask("POST", session, call)).json["result"]["task"]["taskId"]
        theirs = await session_of(endpoint, WITHOUT)
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            answer = await endpoint.ask("POST", theirs, message(method, {"taskId": tasks["write"]}, 2))
            assert (answer.status, answer.code) == (403, -32600)
            assert 'scope="write"' in answer.headers["www-authenticate"]
        for headers, seen in ((theirs, ["read"]), (session, ["write", "read"])):
            answer = await endpoint.ask("POST", headers, message("tasks/list", {}, 3))
            listed = [task["taskId"] for task in messages_in(answer)[-1]["result"]["tasks"]]
            assert sorted(listed) == sorted(tasks[tool] for tool in seen)


async def test_task_request_over_websocket_without_the_required_scopes_gets_an_insufficient_scope_error(
    tokens: Tokens,
) -> None:
    store = MemoryTaskStore()
    async with (
        served(server_of(store), auth=protected(tokens)) as endpoint,
        trio.open_nursery() as nursery,
    ):
        task = await made(endpoint)
        listeners = await nursery.start(
            partial(serve_websocket, server_of(store), "127.0.0.1", 0, handle_signals=False, auth=protected(tokens))
        )
        url = f"ws://127.0.0.1:{listeners[0].socket.getsockname()[1]}/mcp"
        async with open_websocket(url, headers={"Authorization": f"Bearer {WITHOUT}"}, era="modern") as client:
            with pytest.raises(PeerError) as caught:
                await client.request("tasks/get", {"taskId": task}, dict, meta=KNOWS)
        assert caught.value.code == -32600
        assert caught.value.data == {"error": "insufficient_scope", "scopes": ["write"]}
        nursery.cancel_scope.cancel(reason="the test is over")


async def test_server_without_authorization_requires_no_scopes_for_tasks() -> None:
    async with in_memory(server_of()) as endpoint:
        headers, body = modern("tools/call", {"name": "write", "arguments": {}, "_meta": KNOWS})
        task = (await endpoint.ask("POST", {**headers}, body)).json["result"]["taskId"]
        headers, body = modern("tasks/get", {"taskId": task, "_meta": KNOWS})
        answer = await endpoint.ask("POST", {**headers, "Mcp-Name": task}, body)
        assert answer.json["result"]["status"] == "working"
