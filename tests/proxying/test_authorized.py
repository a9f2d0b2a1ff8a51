"""A protected server behind a protected proxy: each of the two has tokens of its own, and no token crosses."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from tests.connecting.http.authorizing import Handed, guarded
from tests.connecting.http.scripted import Answer, Got, modern, result, serving, text
from tests.patience import PATIENCE
from tests.serving.http.protection import Tokens, protected
from tests.serving.http.raw import served

from trio_mcp import Address, Client, PeerError, RequestContext, Server, open_http, proxy
from trio_mcp.auth import AuthorizationError, Bearer
from trio_mcp.auth.credentials import RefusedRequest

REASON = "the token endpoint of 'https://internal.example' has refused"


def issued(*names: str) -> Tokens:
    tokens = Tokens()
    for name in names:
        tokens.issue(name, f"{name}-subject")
    tokens.may_answer.set()
    return tokens


def telling() -> Server:
    """A server that tells what it knows of its caller."""
    server = Server("behind")

    @server.tool
    async def caller(ctx: RequestContext) -> str:
        assert ctx.auth is not None
        return f"{ctx.auth.token}; {sorted(ctx.headers or {})}"

    return server


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_proxy_sends_its_own_token_and_not_the_client_token_to_the_server(era: Any) -> None:
    at_the_front, behind = issued("front-ann", "front-bob"), issued("proxy")
    async with served(telling(), auth=protected(behind)) as inner:
        inner_address = Address(f"http://127.0.0.1:{inner.port}/mcp", auth=Bearer("proxy"))
        async with served(proxy(inner_address.open), auth=protected(at_the_front)) as outer:
            for token in ("front-ann", "front-bob"):
                url = f"http://127.0.0.1:{outer.port}/mcp"
                with trio.fail_after(PATIENCE):
                    async with open_http(url, auth=Bearer(token), era=era) as client:
                        told = (await client.call_tool("caller")).text
                assert told.startswith("proxy;")
    assert set(behind.verified) == {"proxy"}
    assert set(at_the_front.verified) == {"front-ann", "front-bob"}


async def test_proxy_without_a_token_does_not_forward_the_token_of_the_client() -> None:
    async def asked(got: Got, answer: Answer) -> None:
        await answer.json(text(got))

    at_the_front = issued("front")
    async with serving(modern(asked)) as inner:
        async with (
            served(proxy(Address(inner.url).open), auth=protected(at_the_front)) as outer,
            open_http(f"http://127.0.0.1:{outer.port}/mcp", auth=Bearer("front")) as client,
        ):
            assert (await client.call_tool("any")).text == "done"
        assert len(inner.got) > 1
        for got in inner.got:
            assert "authorization" not in got.headers
            assert b"front" not in got.body


async def test_client_without_a_valid_token_for_the_proxy_does_not_reach_the_backend() -> None:
    behind = issued("proxy")
    async with served(telling(), auth=protected(behind)) as inner:
        inner_address = Address(f"http://127.0.0.1:{inner.port}/mcp", auth=Bearer("proxy"))
        async with served(proxy(inner_address.open), auth=protected(issued("front"))) as outer:
            with pytest.raises(AuthorizationError):
                async with open_http(f"http://127.0.0.1:{outer.port}/mcp", auth=Bearer("proxy")):
                    pytest.fail("the token of the proxy opens the server behind, not the proxy")
    assert behind.verified == []


async def no_token(handed: Handed, request: RefusedRequest) -> None:
    raise AuthorizationError(REASON, code="invalid_client")


async def call(client: Client) -> str:
    with trio.fail_after(PATIENCE), pytest.raises(PeerError) as refused:
        await client.call_tool("any")
    return refused.value.message


async def test_proxy_does_not_tell_the_client_why_the_server_refused_authorization(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def discovers(got: Got, answer: Answer) -> None:
        await answer.json(result(got, tools=[], resultType="complete", ttlMs=0, cacheScope="private"))

    async def asked(got: Got, answer: Answer) -> None:
        await (discovers if got.name == "tools/list" else guarded(discovers))(got, answer)

    async with serving(modern(asked, tools={})) as inner:
        way = proxy(Address(inner.url, auth=Handed(no_token)).open)
        async with served(way) as outer, open_http(f"http://127.0.0.1:{outer.port}/mcp") as client:
            assert await call(client) == "The server behind this proxy refused the proxy's authorization"
    assert REASON in caplog.text


async def test_proxy_does_not_tell_the_client_why_authorization_failed_while_connecting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(guarded(modern(no_answer))) as inner:
        way = proxy(Address(inner.url, auth=Handed(no_token)).open)
        async with served(way) as outer:
            with trio.fail_after(PATIENCE), pytest.raises(PeerError) as refused:
                async with open_http(f"http://127.0.0.1:{outer.port}/mcp", era="modern"):
                    pytest.fail("opened without a server behind")
    assert refused.value.message == "The server behind this proxy cannot be reached"
    assert REASON in caplog.text


async def no_answer(got: Got, answer: Answer) -> None:
    pytest.fail("called without a token")
