"""Upgrade requests with ``auth=``: a token goes with each, and one more try follows a refusal."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from tests.auth.oauth_client.protected_world import protected
from tests.connecting.http.authorizing import Handed, told_by
from tests.connecting.http.scripted import Answer, Got, modern
from tests.interaction.websocket.raw_peer import port_of, serving
from tests.patience import LONG, PATIENCE
from trio.testing import MockClock

from trio_mcp import ConnectionLost, Server, open_websocket, serve_websocket
from trio_mcp.auth import AuthorizationError, Bearer, OAuth
from trio_mcp.auth.credentials import RefusedRequest

CHALLENGE = b'Bearer realm="x"'


@asynccontextmanager
async def guarded(
    status: bytes = b"401 Unauthorized", challenge: bytes = CHALLENGE, good: Collection[str] = ("good",)
) -> AsyncGenerator[str]:
    """A server that lets in those with a ``good`` token, and refuses all others."""
    server = Server("guarded")

    @server.tool
    async def echo(text: str) -> str:
        return text

    async with serving(partial(serve_websocket, server), port=0) as behind:
        port = port_of(behind)

        async def connected(stream: trio.SocketStream) -> None:
            head = b""
            while b"\r\n\r\n" not in head:
                head += await stream.receive_some()
            if not any(b"\r\nAuthorization: Bearer %b\r\n" % token.encode() in head for token in good):
                more = b"WWW-Authenticate: %b\r\n" % challenge if challenge else b""
                await stream.send_all(b"HTTP/1.1 %b\r\n%bContent-Length: 2\r\n\r\nno" % (status, more))
                return
            async with await trio.open_tcp_stream("127.0.0.1", port) as inner, trio.open_nursery() as nursery:
                await inner.send_all(head.replace(head.split(b"\r\n")[1], b"Host: 127.0.0.1"))
                nursery.start_soon(copied, inner, stream)
                await copied(stream, inner)
                nursery.cancel_scope.cancel()

        async with serving(trio.serve_tcp, connected, 0, host="127.0.0.1") as listeners:
            with trio.fail_after(4 * PATIENCE):
                yield f"ws://127.0.0.1:{port_of(listeners)}/mcp?x=1"


async def copied(source: trio.SocketStream, target: trio.SocketStream) -> None:
    try:
        async for data in source:
            await target.send_all(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass


async def gets_the_good_one(handed: Handed, request: RefusedRequest) -> None:
    handed.token = "good"


async def gives_up(handed: Handed, request: RefusedRequest) -> None:
    raise AuthorizationError("no token is to be had")


async def test_websocket_upgrade_request_contains_the_bearer_token() -> None:
    async with guarded() as url, open_websocket(url, auth=Bearer("good")) as client:
        assert (await client.call_tool("echo", {"text": "häh"})).text == "häh"


async def test_client_retries_a_refused_websocket_upgrade_with_a_new_token() -> None:
    auth = Handed(gets_the_good_one)
    async with guarded() as url, open_websocket(url, auth=auth) as client:
        assert (await client.call_tool("echo", {"text": "häh"})).text == "häh"
    assert [told_by(each) for each in auth.refusals] == [(401, CHALLENGE.decode(), (), 1)]
    assert auth.answers[0]["www-authenticate"] == CHALLENGE.decode()
    assert auth.urls == [url.replace("ws:", "http:").removesuffix("?x=1")]


async def test_opening_a_websocket_client_raises_if_no_token_can_be_obtained() -> None:
    async with guarded() as url:
        with pytest.raises(AuthorizationError, match="no token is to be had"):
            async with open_websocket(url, auth=Handed(gives_up)):
                pytest.fail("opened without a token")


async def test_websocket_status_403_without_challenge_raises_connection_lost() -> None:
    async with guarded(b"403 Forbidden", b"") as url:
        with pytest.raises(ConnectionLost, match="HTTP status 403: no"):
            async with open_websocket(url, auth=Handed(gives_up)):
                pytest.fail("opened without a token")


async def test_websocket_connect_timeout_is_paused_while_the_user_signs_in(jump_clock: MockClock) -> None:
    async def asks(handed: Handed, request: RefusedRequest) -> None:
        with handed.user_is_asked():
            jump_clock.jump(1.5 * LONG)
        handed.token = "good"

    async with guarded() as url, open_websocket(url, auth=Handed(asks), connect_timeout=LONG) as client:
        assert (await client.call_tool("echo", {"text": "a"})).text == "a"


async def test_websocket_authorization_header_combined_with_auth_option_raises_value_error() -> None:
    with pytest.raises(ValueError, match="auth= sets that header"):
        async with open_websocket("ws://127.0.0.1:1/mcp", headers={"Authorization": "x"}, auth=Bearer("good")):
            pytest.fail("opened with two authorizations")


async def test_user_can_sign_in_for_a_websocket(jump_clock: MockClock) -> None:
    async def nothing_else(got: Got, answer: Answer) -> None:
        pytest.fail("the server of the WebSocket is another one")

    async with protected(modern(nothing_else)) as world:
        challenge = f'Bearer resource_metadata="{world.metadata_url}"'.encode()
        async with guarded(challenge=challenge, good=world.good) as url:
            world.resource = url.replace("ws:", "http:").removesuffix("?x=1")

            async def thinks(url: str) -> str:
                jump_clock.jump(1.5 * LONG)
                return await world.visit(url)

            async with open_websocket(url, auth=OAuth(on_visit=thinks), connect_timeout=LONG) as client:
                assert (await client.call_tool("echo", {"text": "häh"})).text == "häh"
    assert world.authorizations[0]["resource"] == world.resource
