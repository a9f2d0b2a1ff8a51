"""Sessions, waiting handlers and states belong to one principal, and each request to its own token."""

from __future__ import annotations

from functools import partial
from typing import Any

import attrs
import pytest
import trio
from tests.serving.http.protection import ISSUER, Tokens, bearer, issued, protected, session_of
from tests.serving.http.raw import LEGACY, Answer, message, modern
from tests.serving.http.scenes import MemoryEndpoint, Scene, in_memory, messages_in, next_message, rest_of, text_of
from tests.serving.http.scenes import call as legacy_call

from trio_mcp import CancelCause, RequestContext, Server, open_memory, proxy
from trio_mcp.auth import Principal

ELICITATION = {"elicitation": {"form": {}}}


@attrs.frozen
class Dish:
    dish: str


@pytest.fixture
async def tokens() -> Tokens:
    return issued()


def scene() -> Scene:
    scene = Scene()

    @scene.server.tool
    async def token(ctx: RequestContext) -> str:
        assert ctx.auth is not None
        return ctx.auth.token

    @scene.server.tool
    async def held_token(name: str, ctx: RequestContext) -> str:
        """Look at the token when the handler may go on."""
        scene[name].started.set()
        await scene[name].may_go_on.wait()
        assert ctx.auth is not None
        return ctx.auth.token

    @scene.server.tool
    async def order(ctx: RequestContext) -> str:
        """Ask the user."""
        assert ctx.auth is not None
        before = ctx.auth.token
        answer = await ctx.elicit("Which dish?", Dish)
        return f"{before} asked, {ctx.auth.token} answered {answer.content}"

    @scene.server.tool(replay=True)
    async def order_again(ctx: RequestContext) -> str:
        """Ask the user, with nothing kept in between."""
        answer = await ctx.elicit("Which dish?", Dish)
        assert ctx.auth is not None
        return f"{ctx.auth.token} answered {answer.content}"

    return scene


# Sessions


async def test_each_request_of_a_session_has_its_own_token(tokens: Tokens) -> None:
    async with in_memory(scene().server, auth=protected(tokens)) as endpoint:
        session = await session_of(endpoint, "alice-1")
        for token in ("alice-2", "alice-1", "alice-2"):
            answer = await endpoint.ask("POST", {**session, **bearer(token)}, legacy_call("token"))
            assert text_of(answer.json) == token


async def test_concurrent_requests_of_a_session_with_different_tokens_stay_separate(tokens: Tokens) -> None:
    there = scene()
    async with in_memory(there.server, auth=protected(tokens)) as endpoint:
        session = await session_of(endpoint, "alice-1")
        held = await endpoint.post(session, legacy_call("held_token", 1, name="held"))
        await there["held"].started.wait()
        other = await endpoint.ask("POST", {**session, **bearer("alice-2")}, legacy_call("token", 2))
        there["held"].may_go_on.set()
        assert text_of(other.json) == "alice-2"
        assert text_of(messages_in(await held.answer())[-1]) == "alice-1"


async def test_each_request_of_a_batch_has_the_token_of_the_post(tokens: Tokens) -> None:
    async with in_memory(scene().server, auth=protected(tokens)) as endpoint:
        opening = message(
            "initialize",
            {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}},
            0,
        )
        opened = await endpoint.ask("POST", bearer("alice-1"), opening)
        session = {**bearer("alice-2"), "Mcp-Session-Id": opened.headers["mcp-session-id"]}
        answer = await endpoint.ask("POST", session, [legacy_call("token", 1), legacy_call("token", 2)])
        assert [text_of(reply) for reply in answer.json] == ["alice-2", "alice-2"]


RESEMBLING = [
    Principal(issuer=ISSUER, client_id="x|alice"),
    Principal(issuer=ISSUER, subject="x|alice", client_id="x|alice"),
    Principal(issuer=f"{ISSUER}|x", subject="alice"),
]
"""Principals that are not the user ``x|alice``, though all their names in a row are the same."""


@pytest.mark.parametrize("impostor", RESEMBLING)
async def test_principal_with_a_similar_name_cannot_use_a_session_or_request_state(impostor: Principal) -> None:
    tokens = issued()
    tokens.issue("hers", "x|alice")
    tokens.principals["theirs"] = impostor
    async with in_memory(scene().server, auth=protected(tokens)) as endpoint:
        session = await session_of(endpoint, "hers")
        answer = await endpoint.ask("POST", {**session, **bearer("theirs")}, legacy_call("token"))
        assert answer.status == 404
        for tool in ("order", "order_again"):
            more = answered(await asked(endpoint, "hers", tool))
            assert (await asked(endpoint, "theirs", tool, **more)).code == -32602
            assert "hers answered" in text_of((await asked(endpoint, "hers", tool, **more)).json)


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
async def test_request_to_a_session_of_another_principal_gets_status_404(tokens: Tokens, method: str) -> None:
    async with in_memory(scene().server, auth=protected(tokens)) as endpoint:
        session = await session_of(endpoint, "alice-1")
        body = legacy_call("token") if method == "POST" else None
        theirs = await endpoint.ask(method, {**session, **bearer("bob-1")}, body)
        unknown = await endpoint.ask(method, {**session, "Mcp-Session-Id": "unknown"}, body)
        assert (theirs.status, theirs.body) == (404, unknown.body)
        assert (await endpoint.ask("POST", session, legacy_call("token"))).status == 200


async def test_sse_stream_can_be_resumed_only_with_tokens_of_the_same_principal(tokens: Tokens) -> None:
    there = scene()
    async with in_memory(there.server, auth=protected(tokens)) as endpoint:
        session = await session_of(endpoint, "alice-1")
        post = await endpoint.post(session, legacy_call("steps", name="mine"))
        await post.head()
        cursor = (await post.event()).id
        await there["mine"].started.wait()
        await post.aclose()
        theirs = await (await endpoint.get({**session, **bearer("bob-1")}, cursor)).answer()
        assert theirs.status == 404
        there["mine"].may_go_on.set()
        mine = await endpoint.get({**session, **bearer("alice-2")}, cursor)
        assert text_of(messages_in(await mine.answer())[-1]) == "three"


async def test_session_request_without_a_token_gets_status_401(tokens: Tokens) -> None:
    async with in_memory(scene().server, auth=protected(tokens)) as endpoint:
        session = await session_of(endpoint, "alice-1")
        assert (await endpoint.ask("POST", {**session, "Authorization": None}, legacy_call("token"))).status == 401


async def test_sampling_request_of_a_session_cannot_be_answered_by_another_principal(tokens: Tokens) -> None:
    there = scene()
    async with in_memory(there.server, auth=protected(tokens)) as endpoint:
        session = await session_of(endpoint, "alice-1", sampling={})
        asking = await endpoint.post(session, legacy_call("ask", name="mine"))
        await asking.head()
        question = await next_message(asking)
        result = {"role": "assistant", "content": {"type": "text", "text": "hi"}, "model": "somebody's"}
        answer = {"jsonrpc": "2.0", "id": question["id"], "result": result}
        assert (await endpoint.ask("POST", {**session, **bearer("bob-1")}, answer)).status == 404
        mine = {**answer, "result": {**result, "model": "mine"}}
        assert (await endpoint.ask("POST", {**session, **bearer("alice-2")}, mine)).status == 202
        assert text_of((await rest_of(asking))[-1]) == "mine has answered"


async def test_stateless_legacy_handler_sees_the_token_of_its_post(tokens: Tokens) -> None:
    async with in_memory(scene().server, stateless=True, auth=protected(tokens)) as endpoint:
        for token in ("alice-1", "bob-1"):
            headers = {**bearer(token), "MCP-Protocol-Version": LEGACY}
            assert text_of((await endpoint.ask("POST", headers, legacy_call("token"))).json) == token


# Rounds


async def asked(endpoint: MemoryEndpoint, token: str, tool: str, **more: Any) -> Answer:
    capabilities = {"io.modelcontextprotocol/clientCapabilities": ELICITATION}
    headers, body = modern("tools/call", {"name": tool, "arguments": {}, "_meta": capabilities, **more})
    return await endpoint.ask("POST", {**headers, **bearer(token)}, body)


def answered(round_: Answer) -> dict[str, Any]:
    """Return what a client sends to go on after a round."""
    result = round_.json["result"]
    (key,) = result["inputRequests"]
    response = {"action": "accept", "content": {"dish": "soup"}}
    return {"requestState": result["requestState"], "inputResponses": {key: response}}


@pytest.mark.parametrize("tool", ["order", "order_again"])
async def test_input_required_retry_by_another_principal_gets_error_invalid_params(tokens: Tokens, tool: str) -> None:
    async with in_memory(scene().server, auth=protected(tokens)) as endpoint:
        more = answered(await asked(endpoint, "alice-1", tool))
        theirs = await asked(endpoint, "bob-1", tool, **more)
        assert theirs.code == -32602
        mine = await asked(endpoint, "alice-2", tool, **more)
        assert "alice-2 answered" in text_of(mine.json)


async def test_handler_that_awaited_an_elicitation_sees_the_token_of_the_retry(tokens: Tokens) -> None:
    async with in_memory(scene().server, auth=protected(tokens)) as endpoint:
        more = answered(await asked(endpoint, "alice-1", "order"))
        mine = await asked(endpoint, "alice-2", "order", **more)
        assert text_of(mine.json).startswith("alice-1 asked, alice-2 answered")


# Streams of changes


def changing() -> Server:
    server = Server("changing")

    @server.tool
    async def first() -> str:
        return "first"

    return server


async def listening(endpoint: MemoryEndpoint, token: str) -> Any:
    """Listen for changed tools as a modern client, and return the connection behind the acknowledgement."""
    headers, body = modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    connection = await endpoint.post({**headers, **bearer(token)}, body)
    await connection.head()
    assert (await next_message(connection))["method"] == "notifications/subscriptions/acknowledged"
    return connection


async def test_listen_stream_ends_without_a_result_when_its_token_expires(
    tokens: Tokens, autojump_clock: trio.testing.MockClock
) -> None:
    tokens.issue("short", "alice", lifetime=100)
    async with in_memory(changing(), auth=protected(tokens)) as endpoint:
        short, lasting = await listening(endpoint, "short"), await listening(endpoint, "alice-1")
        began = trio.current_time()
        assert await rest_of(short) == []
        assert 99 <= trio.current_time() - began <= 102
        with trio.move_on_after(1000) as waited:
            await lasting.event()
        assert waited.cancelled_caught


async def test_listen_stream_through_a_proxy_ends_when_its_token_expires(
    tokens: Tokens, autojump_clock: trio.testing.MockClock
) -> None:
    tokens.issue("short", "alice", lifetime=100)
    behind = changing()
    async with in_memory(proxy(partial(open_memory, behind)), auth=protected(tokens)) as endpoint:
        short, lasting = await listening(endpoint, "short"), await listening(endpoint, "alice-1")
        assert await rest_of(short) == []

        @behind.tool
        async def second() -> str:
            return "second"

        assert (await next_message(lasting))["method"] == "notifications/tools/list_changed"


async def test_running_call_continues_after_its_token_expires(
    tokens: Tokens, autojump_clock: trio.testing.MockClock
) -> None:
    tokens.issue("short", "alice", lifetime=100)
    there = scene()
    async with in_memory(there.server, auth=protected(tokens)) as endpoint:
        headers, body = modern("tools/call", {"name": "wait", "arguments": {"name": "long"}})
        connection = await endpoint.post({**headers, **bearer("short")}, body)
        await there["long"].started.wait()
        await trio.sleep(200)
        there["long"].may_go_on.set()
        assert text_of(messages_in(await connection.answer())[-1]) == "long is done"


async def test_get_stream_ends_when_its_token_expires_and_can_be_resumed_with_a_new_token(
    tokens: Tokens, autojump_clock: trio.testing.MockClock
) -> None:
    tokens.issue("short", "alice", lifetime=100)
    server = changing()
    async with in_memory(server, auth=protected(tokens)) as endpoint:
        session = await session_of(endpoint, "alice-1")
        short = await endpoint.get({**session, **bearer("short")})
        await short.head()
        cursor = (await short.event()).id
        began = trio.current_time()
        assert await rest_of(short) == []
        assert 99 <= trio.current_time() - began <= 102

        @server.tool
        async def second() -> str:
            return "second"

        again = await endpoint.get({**session, **bearer("alice-2")}, cursor)
        await again.head()
        assert (await next_message(again))["method"] == "notifications/tools/list_changed"


async def test_resumed_stream_ends_when_its_token_expires_while_the_call_continues(
    tokens: Tokens, autojump_clock: trio.testing.MockClock
) -> None:
    tokens.issue("short", "alice", lifetime=100)
    there = scene()
    async with in_memory(there.server, auth=protected(tokens)) as endpoint:
        session = await session_of(endpoint, "alice-1")
        post = await endpoint.post(session, legacy_call("steps", name="mine"))
        await post.head()
        cursor = (await post.event()).id
        await post.aclose()
        short = await endpoint.get({**session, **bearer("short")}, cursor)
        await short.head()
        assert all("result" not in each for each in await rest_of(short))
        there["mine"].may_go_on.set()
        mine = await endpoint.get(session, cursor)
        assert text_of(messages_in(await mine.answer())[-1]) == "three"


async def test_principal_that_disconnects_does_not_cancel_the_call_of_another_principal(tokens: Tokens) -> None:
    there = scene()
    async with in_memory(there.server, auth=protected(tokens)) as endpoint:
        connections = {}
        for token in ("alice-1", "bob-1"):
            headers, body = modern("tools/call", {"name": "wait", "arguments": {"name": token}})
            connections[token] = await endpoint.post({**headers, **bearer(token)}, body)
            await there[token].started.wait()
        await connections["bob-1"].aclose()
        await there["bob-1"].ended.wait()
        cancellation = there["bob-1"].cancellation
        assert cancellation is not None
        assert cancellation.cause is CancelCause.DISCONNECT
        there["alice-1"].may_go_on.set()
        assert text_of(messages_in(await connections["alice-1"].answer())[-1]) == "alice-1 is done"


async def test_initialize_without_a_required_scope_creates_no_session(tokens: Tokens) -> None:
    async with in_memory(scene().server, auth=protected(tokens, scopes=["write"]), max_sessions=1) as endpoint:
        for _ in range(3):
            opening = message("initialize", {}, 1)
            assert (await endpoint.ask("POST", bearer("alice-1"), opening)).status == 403
        assert await session_of(endpoint, "alice-2")
