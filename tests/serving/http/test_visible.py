"""What is not visible to a caller does not exist for that caller, by whatever way the caller tries to reach it (AU-09,
ruling 22)."""

from __future__ import annotations

import json
import logging
from functools import partial
from typing import Annotated, Any

import pytest
import trio
from tests.serving.http.protection import Tokens, bearer, call, issued, protected, session_of
from tests.serving.http.raw import Answer, Endpoint, message, modern
from tests.serving.http.scenes import in_memory, messages_in

from trio_mcp import (
    CacheHints,
    Header,
    Limits,
    Next,
    PeerError,
    RequestContext,
    Server,
    ServerRequest,
    TaskSettings,
    open_memory,
)
from trio_mcp.auth import Auth
from trio_mcp.stores import MemoryTaskStore

KNOWS = {
    "io.modelcontextprotocol/clientCapabilities": {
        "elicitation": {},
        "extensions": {"io.modelcontextprotocol/tasks": {}},
    }
}
HIDDEN, SHOWN = "alice-1", "alice-2"
"""Tokens of the same user. What is guarded is visible to the second."""
RAN: list[str] = []


def for_writers(auth: Auth | None) -> bool:
    return auth is not None and "write" in auth.scopes


def guarded(store: MemoryTaskStore | None = None, visible: Any = for_writers, **options: Any) -> Server:
    RAN.clear()
    tasks = TaskSettings(grace=0, store=store)
    server = Server("guarded", limits=Limits(drain_timeout=0), tasks=tasks, **options)

    @server.tool(visible=visible, scopes=["write"])
    async def write(
        where: Annotated[str, Header("Where")] = "here",
    ) -> str:
        RAN.append(where)
        return where

    @server.tool
    async def read() -> str:
        return "read"

    @server.tool(visible=visible)
    async def ask(ctx: RequestContext) -> str:
        await ctx.elicit_raw({"message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}})
        RAN.append("asked")
        return "asked"

    @server.tool(visible=visible, task="required", on_restart="again")
    async def work() -> str:
        RAN.append("worked")
        await trio.sleep_forever()
        return "worked"

    @server.resource("file:secret", visible=visible)
    async def secret() -> str:
        return "secret"

    @server.resource("file:{name}")
    async def file(name: str) -> str:
        return f"the file {name}"

    @server.resource("box://{name}", visible=visible)
    async def box(name: str) -> str:
        RAN.append(name)
        return name

    @server.prompt(visible=visible)
    async def letter(to: str) -> str:
        return f"Dear {to}"

    @server.completion(prompt="letter", argument="to")
    async def to(value: str) -> list[str]:
        RAN.append("to")
        return [value]

    @server.completion(resource="box://{name}", argument="name")
    async def names(value: str) -> list[str]:
        RAN.append("names")
        return [value]

    return server


@pytest.fixture
async def tokens() -> Tokens:
    return issued()


async def asked(endpoint: Endpoint, token: str, method: str, params: dict[str, Any]) -> Answer:
    headers, body = modern(method, {**params, "_meta": KNOWS})
    named = {"Mcp-Name": params["taskId"]} if "taskId" in params else {}
    return await endpoint.ask("POST", {**headers, **named, **bearer(token)}, body)


async def test_list_results_have_only_visible_items_and_private_cache_scope(tokens: Tokens) -> None:
    server = guarded(cache=CacheHints(60_000, "public"))
    shown = {
        HIDDEN: (["read"], [], ["file:{name}"], []),
        SHOWN: (["write", "read", "ask", "work"], ["file:secret"], ["file:{name}", "box://{name}"], ["letter"]),
    }
    async with in_memory(server, auth=protected(tokens)) as endpoint:
        session = {token: await session_of(endpoint, token) for token in shown}
        for token, (tools, resources, templates, prompts) in [*shown.items(), *shown.items()]:
            for method, kind, key, names in (
                ("tools/list", "tools", "name", tools),
                ("resources/list", "resources", "uri", resources),
                ("resources/templates/list", "resourceTemplates", "uriTemplate", templates),
                ("prompts/list", "prompts", "name", prompts),
            ):
                result = (await asked(endpoint, token, method, {})).json["result"]
                assert [each[key] for each in result[kind]] == names
                assert result["cacheScope"] == "private"
                legacy = messages_in(await endpoint.ask("POST", session[token], message(method, {}, 1)))[-1]["result"]
                assert [each[key] for each in legacy[kind]] == names


async def test_list_pages_are_computed_from_the_items_visible_to_the_caller(tokens: Tokens) -> None:
    async with in_memory(guarded(page_size=2), auth=protected(tokens)) as endpoint:
        first = (await asked(endpoint, SHOWN, "tools/list", {})).json["result"]
        rest = (await asked(endpoint, SHOWN, "tools/list", {"cursor": first["nextCursor"]})).json["result"]
        assert [tool["name"] for tool in first["tools"] + rest["tools"]] == ["write", "read", "ask", "work"]
        theirs = (await asked(endpoint, HIDDEN, "tools/list", {})).json["result"]
        assert ([tool["name"] for tool in theirs["tools"]], "nextCursor" in theirs) == (["read"], False)
        none = (await asked(endpoint, HIDDEN, "tools/list", {"cursor": first["nextCursor"]})).json["result"]
        assert none["tools"] == []


REQUESTS: list[tuple[str, dict[str, Any], str]] = [
    ("tools/call", {"name": "write", "arguments": {}}, "write"),
    ("tools/call", {"name": "write", "arguments": {"where": 7}}, "write"),
    ("tools/call", {"name": "work", "arguments": {}}, "work"),
    ("resources/read", {"uri": "box://1"}, "box://1"),
    ("prompts/get", {"name": "letter", "arguments": {"to": "Bob"}}, "letter"),
    (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "letter"}, "argument": {"name": "to", "value": "B"}},
        "letter",
    ),
    (
        "completion/complete",
        {"ref": {"type": "ref/resource", "uri": "box://{name}"}, "argument": {"name": "name", "value": "B"}},
        "box://{name}",
    ),
]


@pytest.mark.parametrize(("method", "params", "name"), REQUESTS)
async def test_request_for_an_invisible_item_is_answered_like_a_request_for_an_unknown_item(
    tokens: Tokens, method: str, params: dict[str, Any], name: str
) -> None:
    def renamed(value: Any) -> Any:
        words = json.dumps(value)
        for place in ('"{}"', "'{}'", ' {}"'):
            words = words.replace(place.format(name), place.format("no://such"))
        return json.loads(words)

    async with in_memory(guarded(), auth=protected(tokens)) as endpoint:
        hidden = await asked(endpoint, HIDDEN, method, params)
        missing = await asked(endpoint, HIDDEN, method, renamed(params))
        assert (hidden.status, renamed(hidden.json)) == (missing.status, missing.json)
        assert hidden.code == -32602
        session = await session_of(endpoint, HIDDEN)
        hidden = await endpoint.ask("POST", session, message(method, params, 1))
        missing = await endpoint.ask("POST", session, message(method, renamed(params), 1))
        assert (hidden.status, renamed(messages_in(hidden))) == (missing.status, renamed(messages_in(missing)))
        assert RAN == []


async def test_item_is_available_with_every_token_for_which_its_visible_option_returns_true(tokens: Tokens) -> None:
    async with in_memory(guarded(), auth=protected(tokens)) as endpoint:
        headers, body = modern("tools/call", {"name": "write", "arguments": {"where": "there"}})
        answer = await endpoint.ask("POST", {**headers, **bearer(SHOWN), "Mcp-Param-Where": "there"}, body)
        assert answer.json["result"]["content"][0]["text"] == "there"
        read = (await asked(endpoint, SHOWN, "resources/read", {"uri": "box://1"})).json["result"]
        assert (read["contents"][0]["text"], read["cacheScope"]) == ("1", "private")


async def test_request_for_an_invisible_resource_is_served_by_a_template_that_matches_the_uri(tokens: Tokens) -> None:
    async with in_memory(guarded(), auth=protected(tokens)) as endpoint:
        for token, text in ((SHOWN, "secret"), (HIDDEN, "the file secret")):
            result = (await asked(endpoint, token, "resources/read", {"uri": "file:secret"})).json["result"]
            assert result["contents"][0]["text"] == text


async def test_visible_tool_is_listed_to_a_token_without_its_scopes_but_its_call_gets_status_403(
    tokens: Tokens,
) -> None:
    async with in_memory(guarded(visible=lambda _: True), auth=protected(tokens)) as endpoint:
        tools = (await asked(endpoint, HIDDEN, "tools/list", {})).json["result"]["tools"]
        assert [tool["name"] for tool in tools] == ["write", "read", "ask", "work"]
        refused = await call(endpoint, HIDDEN, "write")
        assert (refused.status, RAN) == (403, [])


async def test_server_sends_no_change_notifications_about_invisible_resources(tokens: Tokens) -> None:
    async with in_memory(guarded(), auth=protected(tokens)) as endpoint:
        session = await session_of(endpoint, HIDDEN)
        refused = await endpoint.ask("POST", session, message("resources/subscribe", {"uri": "box://1"}, 1))
        assert messages_in(refused)[-1]["error"]["message"] == "Resource not found"
        both = {"resourceSubscriptions": ["box://1", "file:a"]}
        for token, told in ((HIDDEN, ["file:a"]), (SHOWN, ["box://1", "file:a"])):
            headers, body = modern("subscriptions/listen", {"notifications": both})
            connection = await endpoint.post({**headers, **bearer(token)}, body)
            await connection.head()
            acknowledged = (await connection.event()).data
            assert acknowledged["params"]["notifications"]["resourceSubscriptions"] == told
            await connection.aclose()


# Rounds and tasks


async def test_handler_that_awaits_input_continues_only_with_a_token_that_can_see_its_tool(tokens: Tokens) -> None:
    async with in_memory(guarded(), auth=protected(tokens)) as endpoint:
        asks = {"name": "ask", "arguments": {}}
        result = (await asked(endpoint, SHOWN, "tools/call", asks)).json["result"]
        (key,) = result["inputRequests"]
        answers = {key: {"action": "accept", "content": {}}}
        retry = {**asks, "requestState": result["requestState"], "inputResponses": answers}
        refused = await asked(endpoint, HIDDEN, "tools/call", retry)
        assert (refused.json["error"]["message"], RAN) == ("Unknown tool: ask", [])
        served = await asked(endpoint, SHOWN, "tools/call", retry)
        assert served.json["result"]["content"][0]["text"] == "asked"


async def test_task_of_an_invisible_tool_is_reported_as_unknown(tokens: Tokens) -> None:
    async with in_memory(guarded(), auth=protected(tokens)) as endpoint:
        made = await asked(endpoint, SHOWN, "tools/call", {"name": "work", "arguments": {}})
        task = made.json["result"]["taskId"]
        for method, more in (("tasks/get", {}), ("tasks/update", {"inputResponses": {}}), ("tasks/cancel", {})):
            hidden = await asked(endpoint, HIDDEN, method, {"taskId": task, **more})
            missing = await asked(endpoint, HIDDEN, method, {"taskId": "missing", **more})
            assert (hidden.status, hidden.json) == (missing.status, missing.json)
        session = await session_of(endpoint, HIDDEN)
        listed = await endpoint.ask("POST", session, message("tasks/list", {}, 1))
        assert messages_in(listed)[-1]["result"]["tasks"] == []
        state = await asked(endpoint, SHOWN, "tasks/get", {"taskId": task})
        assert state.json["result"]["status"] == "working"
        headers, body = modern("subscriptions/listen", {"notifications": {"taskIds": [task]}, "_meta": KNOWS})
        connection = await endpoint.post({**headers, **bearer(HIDDEN)}, body)
        await connection.head()
        assert "taskIds" not in (await connection.event()).data["params"]["notifications"]
        await connection.aclose()


async def test_task_with_a_visibility_rule_runs_again_after_a_restart(tokens: Tokens) -> None:
    store = MemoryTaskStore()
    async with in_memory(guarded(store), auth=protected(tokens)) as endpoint:
        made = await asked(endpoint, SHOWN, "tools/call", {"name": "work", "arguments": {}})
        task = made.json["result"]["taskId"]
    async with in_memory(guarded(store), auth=protected(tokens)) as endpoint:
        with trio.fail_after(20):
            while not RAN:  # noqa: ASYNC110 - it is taken up when its lease is free
                await trio.sleep(0.01)
        state = await asked(endpoint, SHOWN, "tasks/get", {"taskId": task})
        assert (state.json["result"]["status"], RAN) == ("working", ["worked"])


# Predicates


@pytest.mark.parametrize("kind", ["raises", "waits"])
async def test_item_is_hidden_if_the_function_in_its_visible_option_raises(
    kind: str, tokens: Tokens, caplog: pytest.LogCaptureFixture
) -> None:
    async def wait() -> bool:
        return True

    def visible(_: Auth | None) -> Any:
        if kind == "waits":
            return wait()
        raise ZeroDivisionError

    server = Server("failing")

    @server.tool(visible=visible)
    async def write() -> str:
        return "written"

    @server.tool
    async def read() -> str:
        return "read"

    async with in_memory(server, auth=protected(tokens)) as endpoint:
        for _ in range(2):
            tools = (await asked(endpoint, SHOWN, "tools/list", {})).json["result"]["tools"]
            assert [tool["name"] for tool in tools] == ["read"]
            assert (await call(endpoint, SHOWN, "write")).code == -32602
    assert [record.message.partition(":")[0] for record in caplog.records if record.levelno >= logging.ERROR] == [
        "write is hidden"
    ]


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_function_in_the_visible_option_receives_none_without_authorization(era: Any) -> None:
    server = guarded(visible=lambda auth: auth is not None)
    async with open_memory(server, era=era) as client:
        assert [tool.name async for tool in client.list_tools()] == ["read"]
        with pytest.raises(PeerError, match="Unknown tool: write"):
            await client.call_tool("write")
        server.remove_tool("write")

        @server.tool(visible=lambda auth: auth is None, scopes=["write"])
        async def write() -> str:
            return "written"

        assert [tool.name async for tool in client.list_tools()] == ["read", "write"]
        assert (await client.call_tool("write")).text == "written"


async def needs(auth: Auth | None) -> bool:
    return auth is not None


@pytest.mark.parametrize("visible", [needs, True, "write", lambda: True, lambda auth, more: True])
@pytest.mark.parametrize("kind", ["tool", "prompt", "resource"])
def test_visible_option_that_is_not_a_function_raises_at_registration(visible: Any, kind: str) -> None:
    async def write() -> str:
        return "written"

    offer = partial(Server("s").resource, "file:a") if kind == "resource" else getattr(Server("s"), kind)
    with pytest.raises(TypeError, match=r"right:  visible=lambda auth"):
        offer(visible=visible)(write)


def test_resource_with_a_function_as_visible_option_and_public_cache_scope_raises_at_registration() -> None:
    async def read() -> str:
        return "read"

    with pytest.raises(ValueError, match="reveal the resource to callers that may not see it"):
        Server("s").resource("file:a", visible=for_writers, cache_scope="public")(read)


async def test_call_of_an_invisible_tool_on_a_server_with_middleware_creates_no_task(tokens: Tokens) -> None:
    server = guarded()

    @server.middleware("tools/call")
    async def plain(request: ServerRequest, next: Next) -> Any:
        return await next(request)

    async with in_memory(server, auth=protected(tokens)) as endpoint:
        refused = await asked(endpoint, HIDDEN, "tools/call", {"name": "work", "arguments": {}})
        assert refused.json["error"]["message"] == "Unknown tool: work"
        made = await asked(endpoint, SHOWN, "tools/call", {"name": "work", "arguments": {}})
        assert "taskId" in made.json["result"]


async def test_item_invisible_on_a_mounted_server_is_invisible_on_the_outer_server(tokens: Tokens) -> None:
    server = Server("outer")
    server.mount(guarded(), prefix="inner")
    async with in_memory(server, auth=protected(tokens)) as endpoint:
        for token, seen in (
            (HIDDEN, {"inner_read"}),
            (SHOWN, {"inner_read", "inner_write", "inner_ask", "inner_work"}),
        ):
            tools = (await asked(endpoint, token, "tools/list", {})).json["result"]["tools"]
            assert {tool["name"] for tool in tools} == seen
        refused = await asked(endpoint, HIDDEN, "tools/call", {"name": "inner_write", "arguments": {}})
        assert refused.json["error"]["message"] == "Unknown tool: inner_write"
        missing = {"ref": {"type": "ref/prompt", "name": "inner_letter"}, "argument": {"name": "to", "value": "B"}}
        assert (await asked(endpoint, HIDDEN, "completion/complete", missing)).code == -32602
        assert RAN == []


async def test_tool_search_neither_finds_nor_calls_invisible_tools(tokens: Tokens) -> None:
    server = guarded()
    server.searchable()

    async def found(endpoint: Endpoint, token: str) -> str:
        params = {"name": "search_tools", "arguments": {"query": "write where ask work read"}}
        return (await asked(endpoint, token, "tools/call", params)).json["result"]["content"][0]["text"]

    def calling(tool: str) -> dict[str, Any]:
        return {"name": "call_tool", "arguments": {"name": tool, "arguments": {}}}

    async with in_memory(server, auth=protected(tokens)) as endpoint:
        assert "write" in await found(endpoint, SHOWN)
        names = [line.partition("(")[0] for line in (await found(endpoint, HIDDEN)).splitlines()]
        assert names == ["read"]
        for tool in ("write", "work"):
            hidden = await asked(endpoint, HIDDEN, "tools/call", calling(tool))
            missing = await asked(endpoint, HIDDEN, "tools/call", calling("missing"))
            assert hidden.status == missing.status
            assert hidden.body.replace(tool.encode(), b"missing") == missing.body
        assert RAN == []


async def test_list_result_in_a_session_depends_on_the_token_of_the_request(tokens: Tokens) -> None:
    async with in_memory(guarded(), auth=protected(tokens)) as endpoint:
        session = await session_of(endpoint, HIDDEN)
        for token, number in ((HIDDEN, 1), (SHOWN, 4), (HIDDEN, 1)):
            answer = await endpoint.ask("POST", {**session, **bearer(token)}, message("tools/list", {}, 1))
            assert len(messages_in(answer)[-1]["result"]["tools"]) == number
        refused = await endpoint.ask("POST", session, message("tools/call", {"name": "write"}, 2))
        assert messages_in(refused)[-1]["error"]["message"] == "Unknown tool: write"


async def test_task_is_reported_as_unknown_when_its_tool_becomes_invisible_to_the_caller() -> None:
    is_open = [True]
    async with in_memory(guarded(visible=lambda _: is_open[0])) as endpoint:
        made = await endpoint.modern("tools/call", {"name": "work", "arguments": {}, "_meta": KNOWS})
        task = made.json["result"]["taskId"]
        for is_open[0], found in ((True, True), (False, False)):
            state = await endpoint.modern("tasks/get", {"taskId": task, "_meta": KNOWS}, Mcp_Name=task)
            assert ("result" in state.json) is found
