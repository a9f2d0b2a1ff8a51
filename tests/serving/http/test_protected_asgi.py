"""A protected server as an ASGI application asks for a token as `serve_http` does, and has its metadata at the root."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from starlette.applications import Starlette
from starlette.routing import Mount, Route
from tests.serving.http.protection import ISSUER, Tokens, bearer, issued, protected
from tests.serving.http.raw import modern
from tests.serving.http.scenes import text_of
from tests.serving.http.test_asgi import OPEN, Ask, Exchange, asking, fields, good

from trio_mcp import RequestContext, Server, http_app

PAGE = "https://app.example.com"
server = Server("mounted")


@server.tool
async def token(ctx: RequestContext) -> str:
    assert ctx.auth is not None
    return ctx.auth.token


@server.tool(scopes=["write"])
async def write() -> str:
    return "written"


@pytest.fixture
async def tokens() -> Tokens:
    return issued()


def calling(ask: Ask, name: str, tool: str = "token", **more: str) -> tuple[Exchange, bytes]:
    """Return a request whose head is sent, and the body that belongs to it."""
    headers, body = modern("tools/call", {"name": tool, "arguments": {}})
    return ask(headers=good({**headers, **bearer(name), **more})), json.dumps(body).encode()


async def test_asgi_handler_can_read_the_principal_of_its_request(tokens: Tokens) -> None:
    async with asking(server, auth=protected(tokens)) as ask:
        for name in ("alice-1", "bob-1", "alice-1"):
            exchange, body = calling(ask, name)
            await exchange.send(body)
            assert text_of((await exchange.answer()).json) == name


async def test_asgi_response_with_status_401_has_a_challenge_and_cors_headers(tokens: Tokens) -> None:
    async with asking(server, auth=protected(tokens)) as ask:
        exchange, body = calling(ask, "stranger", Origin=PAGE)
        await exchange.send(body)
        answer = await exchange.answer()
        assert answer.status == 401
        assert 'error="invalid_token"' in answer.headers["www-authenticate"]
        assert answer.headers["access-control-allow-origin"] == PAGE


async def test_asgi_call_without_the_scope_of_its_tool_gets_status_403(tokens: Tokens) -> None:
    async with asking(server, auth=protected(tokens)) as ask:
        for name, status in (("alice-1", 403), ("alice-2", 200)):
            exchange, body = calling(ask, name, "write")
            await exchange.send(body)
            assert (await exchange.answer()).status == status


async def test_asgi_disconnect_cancels_the_verification_of_the_token(tokens: Tokens) -> None:
    tokens.may_answer = trio.Event()
    async with asking(server, auth=protected(tokens)) as ask:
        exchange, body = calling(ask, "alice-1")
        await exchange.send(body)
        await trio.testing.wait_all_tasks_blocked()
        assert tokens.verified == ["alice-1"]
        await exchange.leave()
        await exchange.over.wait()
        assert tokens.cancelled == 1


async def test_asgi_body_received_during_token_verification_is_complete(tokens: Tokens) -> None:
    tokens.may_answer = trio.Event()
    async with asking(server, auth=protected(tokens)) as ask:
        exchange, body = calling(ask, "alice-1")
        for byte in body[:-10]:
            await exchange.send(bytes((byte,)), more=True)
        await trio.testing.wait_all_tasks_blocked()
        tokens.may_answer.set()
        await exchange.send(body[-10:])
        assert text_of((await exchange.answer()).json) == "alice-1"


async def test_asgi_body_received_during_token_verification_is_limited(tokens: Tokens) -> None:
    tokens.may_answer = trio.Event()
    async with asking(server, auth=protected(tokens)) as ask:
        exchange, _ = calling(ask, "stranger")
        for _ in range(8):
            await exchange.send(b"x" * 16_384, more=True)
        await trio.testing.wait_all_tasks_blocked()
        assert exchange.bring.statistics().current_buffer_used == 4
        tokens.may_answer.set()
        await exchange.send(b"")
        assert (await exchange.answer()).status == 401


async def test_asgi_body_with_expect_100_continue_is_not_read_before_token_verification(tokens: Tokens) -> None:
    tokens.may_answer = trio.Event()
    async with asking(server, auth=protected(tokens)) as ask:
        exchange, body = calling(ask, "alice-1", Expect="100-continue")
        await trio.testing.wait_all_tasks_blocked()
        assert exchange.bring.statistics().tasks_waiting_receive == 0
        tokens.may_answer.set()
        await exchange.send(body)
        assert text_of((await exchange.answer()).json) == "alice-1"


# Metadata


def document(app: Any, nursery: trio.Nursery, path: str, method: str = "GET") -> Exchange:
    return Exchange(app, nursery, method, fields({"Host": "127.0.0.1", "Origin": "https://any.example"}), path=path)


async def test_resource_metadata_of_a_mounted_asgi_app_is_served_at_the_host_root(tokens: Tokens) -> None:
    auth = protected(tokens, resource="https://mcp.example.com/api/mcp")
    mcp = http_app(server, auth=auth, **OPEN)
    documents = [Route(path, mcp.metadata) for path in mcp.metadata.paths]
    app = Starlette(routes=[*documents, Mount("/api", mcp)])
    async with mcp.lifespan(), trio.open_nursery() as nursery:
        for path in ("/.well-known/oauth-protected-resource/api/mcp", "/.well-known/oauth-protected-resource"):
            answer = await document(app, nursery, path).answer()
            assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "*")
            assert answer.json["resource"] == "https://mcp.example.com/api/mcp"
            assert answer.json["authorization_servers"] == [ISSUER]
            assert int(answer.headers["content-length"]) == len(answer.body)
            assert (await document(app, nursery, path, "OPTIONS").answer()).status == 204
            assert (await document(app, nursery, path, "POST").answer()).status == 405
        headers, _ = modern("tools/list")
        refused = await Exchange(app, nursery, "POST", fields(headers), path="/api/mcp").start()
        assert 'resource_metadata="https://mcp.example.com/.well-known/' in refused.headers["www-authenticate"]
        nursery.cancel_scope.cancel(reason="the test is over")


async def test_unmounted_asgi_app_serves_its_resource_metadata(tokens: Tokens) -> None:
    app = http_app(server, auth=protected(tokens), **OPEN)
    async with app.lifespan(), trio.open_nursery() as nursery:
        for path in app.metadata.paths:
            exchange = document(app, nursery, path)
            await exchange.send(b"")
            assert (await exchange.answer()).status == 200


async def test_asgi_app_without_authorization_has_no_resource_metadata() -> None:
    assert http_app(server, **OPEN).metadata.paths == ()


async def test_resource_metadata_asgi_app_rejects_websockets(tokens: Tokens) -> None:
    app = http_app(server, auth=protected(tokens), **OPEN)

    async def never(_: Any = None) -> Any:
        raise AssertionError

    with pytest.raises(RuntimeError, match="doesn't support the ASGI scope type 'websocket'"):
        await app.metadata({"type": "websocket"}, never, never)
