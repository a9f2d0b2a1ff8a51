"""What needs a scope is refused to a caller without, with all scopes at once, before anything runs."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from tests.serving.http.protection import Tokens, bearer, call, issued, protected, session_of
from tests.serving.http.raw import LEGACY, Answer, Connection, Endpoint, message, modern, served
from tests.serving.http.scenes import call as legacy_call
from tests.serving.http.scenes import in_memory, messages_in

from trio_mcp import CacheHints, RequestContext, Server
from trio_mcp.types import ReadResourceResult, TextResourceContents

RAN: list[str] = []


def scoped() -> Server:
    RAN.clear()
    server = Server("scoped")

    @server.tool(scopes=["write"])
    async def write(ctx: RequestContext) -> str:
        ctx.progress(1)
        RAN.append("write")
        return "written"

    @server.tool(scopes=["admin", "write"])
    async def purge() -> str:
        RAN.append("purge")
        return "purged"

    @server.tool
    async def read() -> str:
        RAN.append("read")
        return "read"

    @server.resource("file:secret", scopes=["write"])
    async def secret() -> str:
        RAN.append("secret")
        return "secret"

    @server.resource("file:open")
    async def open_() -> str:
        return "open"

    @server.resource("box://{name}", scopes=["write"])
    async def box(name: str) -> str:
        RAN.append(name)
        return name

    @server.prompt(scopes=["write"])
    async def letter(to: str) -> str:
        RAN.append("letter")
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
    tokens = issued()
    tokens.issue("root", "root", "everything")
    return tokens


def challenge(answer: Answer) -> str:
    return answer.headers["www-authenticate"]


async def asked(endpoint: Endpoint, token: str, method: str, params: dict[str, Any]) -> Answer:
    headers, body = modern(method, params)
    return await endpoint.ask("POST", {**headers, **bearer(token)}, body)


async def test_call_without_the_scopes_of_the_tool_gets_status_403_and_lists_all_required_scopes(
    tokens: Tokens,
) -> None:
    async with in_memory(scoped(), auth=protected(tokens)) as endpoint:
        answer = await call(endpoint, "alice-1", "purge")
        assert answer.status == 403
        assert 'error="insufficient_scope"' in challenge(answer)
        assert 'scope="admin write"' in challenge(answer)
        assert "resource_metadata=" in challenge(answer)
        assert (answer.json["id"], answer.code) == (1, -32600)
        assert answer.json["error"]["data"] == {"error": "insufficient_scope", "scopes": ["admin", "write"]}
        assert RAN == []


async def test_call_with_the_scopes_of_the_tool_is_served(tokens: Tokens) -> None:
    async with in_memory(scoped(), auth=protected(tokens)) as endpoint:
        assert (await call(endpoint, "alice-2", "write")).status == 200
        assert (await call(endpoint, "alice-1", "read")).status == 200
        assert RAN == ["write", "read"]


async def test_satisfies_function_can_accept_a_broad_scope_in_place_of_narrower_scopes(tokens: Tokens) -> None:
    auth = protected(tokens, satisfies=lambda granted, _: "everything" in granted)
    async with in_memory(scoped(), auth=auth) as endpoint:
        assert (await call(endpoint, "root", "purge")).status == 200
        assert (await call(endpoint, "alice-2", "purge")).status == 403


async def test_scope_challenge_includes_the_scopes_required_for_every_request(tokens: Tokens) -> None:
    async with in_memory(scoped(), auth=protected(tokens, scopes=["read"])) as endpoint:
        assert 'scope="read write"' in challenge(await call(endpoint, "bob-1", "write"))


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("resources/read", {"uri": "file:secret"}),
        ("resources/read", {"uri": "box://1"}),
        ("prompts/get", {"name": "letter", "arguments": {"to": "Bob"}}),
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "letter"}, "argument": {"name": "to", "value": "B"}},
        ),
        (
            "completion/complete",
            {"ref": {"type": "ref/resource", "uri": "box://{name}"}, "argument": {"name": "name", "value": "B"}},
        ),
        ("subscriptions/listen", {"notifications": {"resourceSubscriptions": ["file:open", "box://1"]}}),
    ],
)
async def test_resources_templates_and_prompts_can_require_scopes(
    tokens: Tokens, method: str, params: dict[str, Any]
) -> None:
    async with in_memory(scoped(), auth=protected(tokens)) as endpoint:
        answer = await asked(endpoint, "alice-1", method, params)
        assert (answer.status, RAN) == (403, [])
        assert 'scope="write"' in challenge(answer)
        headers, body = modern(method, params)
        connection = await endpoint.post({**headers, **bearer("alice-2")}, body)
        assert (await connection.head()).status == 200


async def test_list_results_omit_items_whose_scopes_the_token_lacks(tokens: Tokens) -> None:
    auth = protected(tokens, satisfies=lambda granted, _: "everything" in granted)
    shown = {
        "alice-1": (["read"], ["file:open"], [], []),
        "alice-2": (["write", "read"], ["file:secret", "file:open"], ["box://{name}"], ["letter"]),
        "root": (["write", "purge", "read"], ["file:secret", "file:open"], ["box://{name}"], ["letter"]),
    }
    async with in_memory(scoped(), auth=auth) as endpoint:
        for token, (tools, resources, templates, prompts) in shown.items():
            for method, kind, key, names in (
                ("tools/list", "tools", "name", tools),
                ("resources/list", "resources", "uri", resources),
                ("resources/templates/list", "resourceTemplates", "uriTemplate", templates),
                ("prompts/list", "prompts", "name", prompts),
            ):
                answer = await asked(endpoint, token, method, {})
                assert [each[key] for each in answer.json["result"][kind]] == names


async def test_call_rejected_for_missing_scopes_keeps_its_session(tokens: Tokens) -> None:
    async with in_memory(scoped(), auth=protected(tokens)) as endpoint:
        session = await session_of(endpoint, "alice-1")
        refused = await endpoint.ask("POST", session, legacy_call("write", 7))
        assert (refused.status, refused.json["id"], RAN) == (403, 7, [])
        again = await endpoint.ask("POST", {**session, **bearer("alice-2")}, legacy_call("write", 7))
        assert (again.status, RAN) == (200, ["write"])


async def test_resources_subscribe_without_the_scopes_of_the_resource_gets_status_403(tokens: Tokens) -> None:
    async with in_memory(scoped(), auth=protected(tokens)) as endpoint:
        session = await session_of(endpoint, "alice-1")
        subscribe = message("resources/subscribe", {"uri": "file:secret"}, 1)
        assert (await endpoint.ask("POST", session, subscribe)).status == 403


async def test_stateless_batch_without_the_required_scopes_gets_status_403_that_lists_all_scopes(
    tokens: Tokens,
) -> None:
    async with in_memory(scoped(), auth=protected(tokens), stateless=True) as endpoint:
        headers = {**bearer("alice-1"), "MCP-Protocol-Version": "2025-03-26"}
        batch = [
            legacy_call("read", 1),
            legacy_call("purge", 2),
            message("resources/read", {"uri": "file:secret"}, 3),
        ]
        refused = await endpoint.ask("POST", headers, batch)
        assert (refused.status, RAN) == (403, [])
        assert 'scope="admin write"' in challenge(refused)
        served_ = await endpoint.ask("POST", headers, batch[:1])
        assert (served_.status, RAN) == (200, ["read"])


async def test_session_batch_without_the_required_scopes_gets_status_403_and_runs_nothing(tokens: Tokens) -> None:
    async with in_memory(scoped(), auth=protected(tokens)) as endpoint:
        opening = message(
            "initialize",
            {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}},
            0,
        )
        opened = await endpoint.ask("POST", bearer("alice-1"), opening)
        session = {**bearer("alice-1"), "Mcp-Session-Id": opened.headers["mcp-session-id"]}
        batch = [legacy_call("read", 1), legacy_call("write", 2)]
        assert ((await endpoint.ask("POST", session, batch)).status, RAN) == (403, [])
        allowed = await endpoint.ask("POST", {**session, **bearer("alice-2")}, batch)
        assert {reply["id"] for reply in messages_in(allowed)[-1]} == {1, 2}


async def test_stateless_legacy_call_without_the_required_scopes_gets_status_403(tokens: Tokens) -> None:
    async with in_memory(scoped(), auth=protected(tokens), stateless=True) as endpoint:
        headers = {**bearer("alice-1"), "MCP-Protocol-Version": LEGACY}
        assert (await endpoint.ask("POST", headers, legacy_call("write", 1))).status == 403


async def test_malformed_request_is_rejected_before_scopes_are_checked(tokens: Tokens) -> None:
    async with in_memory(scoped(), auth=protected(tokens)) as endpoint:
        headers, body = modern("tools/call", {"name": "write", "arguments": {}})
        answer = await endpoint.ask("POST", {**headers, **bearer("alice-1"), "Mcp-Name": "read"}, body)
        assert (answer.status, answer.code) == (400, -32020)


@pytest.mark.parametrize("params", [None, [], {}, {"name": 1}, {"name": ["write"]}, {"name": "nothing"}])
async def test_call_with_an_unknown_or_invalid_tool_name_does_not_get_status_403(tokens: Tokens, params: Any) -> None:
    async with in_memory(scoped(), auth=protected(tokens)) as endpoint:
        session = await session_of(endpoint, "alice-1")
        answer = await endpoint.ask("POST", session, message("tools/call", params, 1))
        assert answer.status != 403


async def test_exception_in_the_function_that_compares_scopes_gets_status_500(
    tokens: Tokens, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(granted: frozenset[str], needed: str) -> bool:
        raise ZeroDivisionError

    async with in_memory(scoped(), auth=protected(tokens, satisfies=broken)) as endpoint:
        answer = await call(endpoint, "alice-1", "write")
        assert (answer.status, answer.code, RAN) == (500, -32603, [])
    assert "alice-1" not in caplog.text


# Caches


async def test_results_that_require_an_oauth_scope_have_private_cache_scope(tokens: Tokens) -> None:
    server = Server("cached", cache=CacheHints(60_000, "public"))

    @server.resource("file:open")
    async def open_() -> str:
        return "open"

    @server.resource("file:secret", scopes=["write"])
    async def secret() -> str:
        return "secret"

    @server.resource("file:said", scopes=["write"])
    async def said() -> ReadResourceResult:
        return ReadResourceResult([TextResourceContents("file:said", "secret")], cache_scope="public")

    async with in_memory(server, auth=protected(tokens)) as endpoint:
        for uri, scope in (("file:open", "public"), ("file:secret", "private"), ("file:said", "private")):
            answer = await asked(endpoint, "alice-2", "resources/read", {"uri": uri})
            assert answer.json["result"]["cacheScope"] == scope
    with pytest.raises(ValueError, match="a public cache would reveal the resource"):
        server.resource("file:both", scopes=["write"], cache_scope="public")(open_)


# Endpoints that check nothing


async def test_server_without_authorization_does_not_enforce_scopes_and_logs_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with served(scoped()) as endpoint:
        headers, body = modern("tools/call", {"name": "purge", "arguments": {}})
        assert (await endpoint.ask("POST", headers, body)).status == 200
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert ["which are not checked" in record.getMessage() for record in warnings] == [True]


async def test_server_without_scopes_logs_no_scope_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with served(Server("plain")):
        pass
    assert caplog.records == []


def test_scopes_that_are_not_a_list_of_valid_scope_strings_raise() -> None:
    server = Server("bad")

    async def offered() -> str:
        return "offered"

    with pytest.raises(TypeError, match=r"right:  scopes=\['files'\]"):
        server.tool(scopes="files")(offered)  # type: ignore[arg-type]
    for bad in ("", "two words", 'quo"ted', "back\\slash", "ünicode"):
        with pytest.raises(ValueError, match="is not a valid scope"):
            server.prompt(name="bad", scopes=[bad])(offered)


async def test_connection_stays_usable_after_a_403_for_missing_scopes(tokens: Tokens) -> None:
    async with in_memory(scoped(), auth=protected(tokens)) as endpoint:
        connection: Connection = await endpoint.connect()
        headers, body = modern("tools/call", {"name": "write", "arguments": {}})
        for token, status in (("alice-1", 403), ("alice-2", 200), ("bob-1", 403)):
            answer = await connection.ask("POST", {**headers, **bearer(token)}, body)
            assert answer.status == status
