"""A protected endpoint refuses who has no good token, before anything else is read, and tells handlers who calls."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import trio
from tests.auth.resource_server.minting import ec_key, jwk, minted
from tests.long_names import ODD, given_to_codecs
from tests.serving.http.protection import ISSUER, METADATA, RESOURCE, Tokens, bearer, call, issued, protected
from tests.serving.http.raw import BASE, modern, request_bytes
from tests.serving.http.scenes import in_memory, over_sockets, text_of

from trio_mcp import RequestContext, Server, WorkerContext
from trio_mcp.auth import JWTVerifier, Principal, Protected

PAGE = "https://app.example.com"
AT_THE_PATH = "/.well-known/oauth-protected-resource/mcp"
AT_THE_ROOT = "/.well-known/oauth-protected-resource"

server = Server("protected")


@server.tool
async def whoami(ctx: RequestContext) -> str:
    assert ctx.auth is not None
    return f"{ctx.auth.principal.subject} with {ctx.auth.token} for {' '.join(sorted(ctx.auth.scopes))}"


@server.tool
def whoami_in_a_thread(ctx: WorkerContext) -> str:
    assert ctx.auth is not None
    return ctx.auth.token


@server.tool
async def extra(ctx: RequestContext) -> dict[str, str]:
    assert ctx.auth is not None
    return dict(ctx.auth.extra)


@pytest.fixture
async def tokens() -> Tokens:
    return issued()


# Who calls


@pytest.mark.parametrize("tool", ["whoami", "whoami_in_a_thread"])
async def test_handler_can_read_the_principal_and_token_of_its_request(tokens: Tokens, tool: str) -> None:
    async with over_sockets(server, auth=protected(tokens)) as endpoint:
        for token in ("alice-1", "bob-1", "alice-2", "alice-1"):
            assert token in text_of((await call(endpoint, token, tool)).json)


async def test_forged_token_is_rejected_after_one_signature_check(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"keys": [jwk(ec_key(1), kid="1")]}
    auth = Protected(resource=RESOURCE, authorization_servers=[ISSUER], verifier=JWTVerifier(keys=keys))
    times = {"iss": ISSUER, "iat": time.time(), "exp": time.time() + 60}
    forged = minted(ec_key(2), aud=f"https://{ODD * 200}/", **times)
    lengths = given_to_codecs(monkeypatch)
    async with over_sockets(server, auth=auth) as endpoint:
        assert (await call(endpoint, forged, "whoami")).status == 401
        assert lengths == []
        assert (await call(endpoint, minted(ec_key(1), aud=RESOURCE, **times), "whoami")).status == 200


async def test_valid_token_is_verified_once_for_several_requests(tokens: Tokens) -> None:
    async with in_memory(server, auth=protected(tokens)) as endpoint:
        for _ in range(5):
            assert (await call(endpoint, "alice-1", "whoami")).status == 200
        assert tokens.verified == ["alice-1"]


async def test_data_returned_by_on_authenticated_is_available_only_in_the_authenticated_request(tokens: Tokens) -> None:
    async def lookup(principal: Principal, headers: Any) -> dict[str, Any]:
        return {"of": principal.subject, "trace": headers["x-trace"]}

    async with in_memory(server, auth=protected(tokens, on_authenticated=lookup)) as endpoint:
        headers, body = modern("tools/call", {"name": "extra", "arguments": {}})
        for trace in ("1", "2"):
            answer = await endpoint.ask("POST", {**headers, **bearer("bob-1"), "X-Trace": trace}, body)
            assert answer.json["result"]["structuredContent"] == {"of": "bob", "trace": trace}


# Refusals


async def test_request_without_a_token_gets_status_401_with_the_resource_metadata_url(tokens: Tokens) -> None:
    async with in_memory(server, auth=protected(tokens, scopes=["read"])) as endpoint:
        answer = await endpoint.modern("tools/list")
        assert answer.status == 401
        assert answer.headers["www-authenticate"] == f'Bearer resource_metadata="{METADATA}", scope="read"'


@pytest.mark.parametrize(
    ("authorization", "status", "word"),
    [
        ("Bearer stranger", 401, 'error="invalid_token"'),
        ("Basic YTpi", 401, "resource_metadata"),
        ("Bearer", 400, 'error="invalid_request"'),
        ("Bearer alice-1 and more", 400, 'error="invalid_request"'),
    ],
)
async def test_invalid_token_gets_status_401_with_error_invalid_token(
    tokens: Tokens, authorization: str, status: int, word: str
) -> None:
    async with in_memory(server, auth=protected(tokens)) as endpoint:
        answer = await endpoint.modern("tools/list", Authorization=authorization)
        assert answer.status == status
        assert word in answer.headers["www-authenticate"]


async def test_access_token_in_the_query_is_ignored(tokens: Tokens) -> None:
    async with in_memory(server, auth=protected(tokens)) as endpoint:
        headers, body = modern("tools/list")
        assert (await endpoint.ask("POST", headers, body, "/mcp?access_token=alice-1")).status == 401


async def test_token_without_a_scope_required_for_every_request_gets_status_403(tokens: Tokens) -> None:
    async with in_memory(server, auth=protected(tokens, scopes=["write"])) as endpoint:
        answer = await call(endpoint, "alice-1", "whoami")
        assert answer.status == 403
        assert 'error="insufficient_scope"' in answer.headers["www-authenticate"]
        assert (await call(endpoint, "alice-2", "whoami")).status == 200


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE", "PUT", "HEAD"])
async def test_missing_token_is_reported_before_any_other_error_of_the_request(tokens: Tokens, method: str) -> None:
    async with in_memory(server, auth=protected(tokens)) as endpoint:
        assert (await endpoint.ask(method, {"Host": "127.0.0.1"})).status == 401


async def test_wrong_method_content_type_or_accept_header_is_reported_if_the_token_is_valid(tokens: Tokens) -> None:
    async with in_memory(server, auth=protected(tokens)) as endpoint:
        assert (await endpoint.ask("PUT", bearer("alice-1"))).status == 405
        assert (await endpoint.ask("POST", {**bearer("alice-1"), "Content-Type": "text/plain"}, b"")).status == 415
        assert (await endpoint.ask("POST", {**bearer("alice-1"), "Accept": "text/html"}, b"")).status == 406


async def test_requests_to_other_paths_need_no_token_and_get_status_404(tokens: Tokens) -> None:
    async with in_memory(server, auth=protected(tokens)) as endpoint:
        assert (await endpoint.ask("POST", {**BASE}, {}, "/elsewhere")).status == 404


async def test_disallowed_host_or_origin_gets_status_403_before_the_token_is_verified(tokens: Tokens) -> None:
    async with in_memory(server, auth=protected(tokens)) as endpoint:
        for name in ("Host", "Origin"):
            answer = await endpoint.ask("POST", {**bearer("alice-1"), name: "https://evil.example"}, {})
            assert answer.status == 403
        assert tokens.verified == []


# The body comes last


async def test_body_of_a_request_without_a_token_is_not_read(tokens: Tokens) -> None:
    async with in_memory(server, auth=protected(tokens)) as endpoint:
        connection = await endpoint.connect()
        await connection.stream.send_all(request_bytes("POST", {**BASE, "Content-Length": "1000000"}))
        connection.expect()
        assert (await connection.answer()).status == 401


async def test_server_sends_100_continue_only_after_it_verified_the_token(tokens: Tokens) -> None:
    tokens.may_answer = trio.Event()
    headers, body = modern("tools/call", {"name": "whoami", "arguments": {}})
    data = json.dumps(body).encode()
    async with over_sockets(server, auth=protected(tokens)) as endpoint:
        connection = await endpoint.connect()
        length = {"Content-Length": str(len(data)), "Expect": "100-continue"}
        await connection.stream.send_all(request_bytes("POST", {**headers, **bearer("alice-1"), **length}))
        while not tokens.verified:
            await trio.testing.wait_all_tasks_blocked()
        tokens.may_answer.set()
        assert await connection.stream.receive_some() == b"HTTP/1.1 100 Continue\r\n\r\n"
        await connection.stream.send_all(data)
        connection.expect()
        assert "alice-1" in text_of((await connection.answer()).json)


async def test_client_that_disconnects_cancels_the_verification_of_its_token(tokens: Tokens) -> None:
    tokens.may_answer = trio.Event()
    headers, body = modern("tools/list")
    async with in_memory(server, auth=protected(tokens)) as endpoint:
        connection = await endpoint.connect()
        await connection.send("POST", {**headers, **bearer("alice-1")}, body)
        await trio.testing.wait_all_tasks_blocked()
        assert tokens.verified == ["alice-1"]
        await connection.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert tokens.cancelled == 1


async def test_pipelined_requests_with_different_tokens_are_answered_in_order(tokens: Tokens) -> None:
    names = ["alice-1", "bob-1", "alice-1", "alice-2"]
    async with over_sockets(server, auth=protected(tokens)) as endpoint:
        connection = await endpoint.connect()
        headers, body = modern("tools/call", {"name": "whoami_in_a_thread", "arguments": {}})
        await connection.stream.send_all(
            b"".join(request_bytes("POST", {**headers, **bearer(name)}, body) for name in names)
        )
        for name in names:
            connection.expect()
            assert text_of((await connection.answer()).json) == name


# Metadata


@pytest.mark.parametrize("path", [AT_THE_PATH, AT_THE_ROOT])
async def test_resource_metadata_is_served_to_any_origin_without_a_token(tokens: Tokens, path: str) -> None:
    async with in_memory(server, auth=protected(tokens, scopes=["read"])) as endpoint:
        answer = await endpoint.ask("GET", {"Host": "127.0.0.1", "Origin": "https://anywhere.example"}, path=path)
        assert answer.status == 200
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "max-age" in answer.headers["cache-control"]
        assert answer.json["resource"] == RESOURCE
        assert answer.json["scopes_supported"] == ["read"]


async def test_resource_metadata_supports_only_get_head_and_preflight(tokens: Tokens) -> None:
    async with in_memory(server, auth=protected(tokens)) as endpoint:
        host: dict[str, str | None] = {"Host": "127.0.0.1", "Origin": "https://anywhere.example"}
        head = await endpoint.ask("HEAD", host, path=AT_THE_PATH)
        assert (head.status, head.body) == (200, b"")
        assert int(head.headers["content-length"]) > 0
        preflight = await endpoint.ask("OPTIONS", host, path=AT_THE_PATH)
        assert (preflight.status, preflight.headers["access-control-allow-headers"]) == (204, "*")
        post = await endpoint.ask("POST", host, path=AT_THE_PATH)
        assert (post.status, post.headers["allow"]) == (405, "GET, HEAD, OPTIONS")


async def test_resource_metadata_request_with_a_disallowed_host_gets_status_403(tokens: Tokens) -> None:
    async with in_memory(server, auth=protected(tokens)) as endpoint:
        assert (await endpoint.ask("GET", {"Host": "evil.example"}, path=AT_THE_PATH)).status == 403


async def test_server_without_authorization_has_no_resource_metadata() -> None:
    async with in_memory(Server("open")) as endpoint:
        assert (await endpoint.ask("GET", {"Host": "127.0.0.1"}, path=AT_THE_PATH)).status == 404


# Pages


async def test_every_rejection_has_cors_headers(tokens: Tokens) -> None:
    auth = protected(tokens, scopes=["write"])
    async with over_sockets(server, auth=auth, allowed_origins=[PAGE], allowed_hosts=["127.0.0.1"]) as endpoint:
        for authorization, status in ((None, 401), ("Bearer", 400), ("Bearer alice-1", 403), ("Bearer alice-2", 200)):
            answer = await endpoint.modern("tools/list", Authorization=authorization, Origin=PAGE)
            assert answer.status == status
            assert answer.headers["access-control-allow-origin"] == PAGE
            assert "www-authenticate, dpop-nonce" in answer.headers["access-control-expose-headers"]


async def test_preflight_without_a_token_allows_authorization_and_dpop_headers(tokens: Tokens) -> None:
    async with over_sockets(
        server, auth=protected(tokens), allowed_origins=[PAGE], allowed_hosts=["127.0.0.1"]
    ) as endpoint:
        wanted = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, dpop"}
        answer = await endpoint.ask("OPTIONS", {"Host": "127.0.0.1", "Origin": PAGE, **wanted})
        assert answer.status == 204
        allowed = answer.headers["access-control-allow-headers"].split(", ")
        assert {"authorization", "dpop"} <= set(allowed)
