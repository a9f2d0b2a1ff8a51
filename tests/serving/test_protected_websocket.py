"""A WebSocket of a protected server: a token in the request for it, and an end with the token."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from tests.serving.http.protection import METADATA, Tokens, issued, protected
from tests.serving.http.raw import Connection

from trio_mcp import ConnectionLost, PeerError, RequestContext, Server, open_websocket, serve_http, serve_websocket

WAYS = {"websocket": serve_websocket, "http": partial(serve_http, websocket=True)}
server = Server("sockets")


@server.tool
async def whoami(ctx: RequestContext) -> str:
    assert ctx.auth is not None
    return f"{ctx.auth.principal.subject} {ctx.auth.token}"


@server.tool(scopes=["admin", "write"])
async def purge() -> str:
    return "purged"


@server.tool(scopes=["write"])
async def write() -> str:
    return "written"


@pytest.fixture
async def tokens() -> Tokens:
    return issued()


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return request.param


@asynccontextmanager
async def serving(way: str, **options: Any) -> AsyncGenerator[str]:
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(WAYS[way], server, "127.0.0.1", 0, handle_signals=False, **options))
        yield f"ws://127.0.0.1:{listeners[0].socket.getsockname()[1]}/mcp"
        nursery.cancel_scope.cancel(reason="the test is over")


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def refused(url: str, **headers: str) -> Any:
    """Return the answer to a request for a WebSocket that is refused."""
    asked = {
        "Host": "127.0.0.1",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Protocol": "mcp",
        **headers,
    }
    connection = Connection(await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2].removesuffix("/mcp"))))
    answer = await connection.ask("GET", {**asked})
    await connection.aclose()
    return answer


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_websocket_handler_can_read_the_principal_of_its_connection(tokens: Tokens, way: str, era: Any) -> None:
    async with (
        serving(way, auth=protected(tokens)) as url,
        open_websocket(url, headers=bearer("alice-1"), era=era) as alice,
        open_websocket(url, headers=bearer("bob-1"), era=era) as bob,
    ):
        assert (await alice.call_tool("whoami")).text == "alice alice-1"
        assert (await bob.call_tool("whoami")).text == "bob bob-1"


async def test_websocket_without_a_token_gets_status_401_with_a_challenge(tokens: Tokens, way: str) -> None:
    async with serving(way, auth=protected(tokens)) as url:
        answer = await refused(url)
        assert answer.status == 401
        assert answer.headers["www-authenticate"] == f'Bearer resource_metadata="{METADATA}"'


async def test_websocket_with_an_invalid_token_or_missing_scope_is_rejected(tokens: Tokens, way: str) -> None:
    async with serving(way, auth=protected(tokens, scopes=["write"])) as url:
        assert (await refused(url, Authorization="Bearer stranger")).status == 401
        assert (await refused(url, Authorization="Bearer alice-1")).status == 403
        with pytest.raises(ConnectionLost, match="401"):
            async with open_websocket(url):
                raise AssertionError("there is no connection")


async def test_websocket_is_closed_when_its_token_expires(
    tokens: Tokens, way: str, autojump_clock: trio.testing.MockClock
) -> None:
    tokens.issue("short", "alice", lifetime=5)
    autojump_clock.autojump_threshold = 0.1  # sockets need real time
    async with (
        serving(way, auth=protected(tokens)) as url,
        open_websocket(url, headers=bearer("short")) as client,
    ):
        assert (await client.call_tool("whoami")).text == "alice short"
        began = trio.current_time()
        with pytest.raises(ConnectionLost, match=r"1008.*the token has expired"):
            await client.until_lost()
        assert 3 <= trio.current_time() - began <= 6


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_websocket_call_without_the_required_scopes_gets_an_error_that_lists_them(
    tokens: Tokens, way: str, era: Any
) -> None:
    async with (
        serving(way, auth=protected(tokens)) as url,
        open_websocket(url, headers=bearer("alice-2"), era=era) as client,
    ):
        with pytest.raises(PeerError) as caught:
            await client.call_tool("purge")
        assert caught.value.code == -32600
        assert caught.value.data == {"error": "insufficient_scope", "scopes": ["admin", "write"]}
        assert (await client.call_tool("write")).text == "written"


@pytest.mark.parametrize("protected_", [True, False])
async def test_websocket_server_with_scopes_and_no_authorization_logs_one_warning(
    tokens: Tokens, way: str, protected_: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(way, auth=protected(tokens) if protected_ else None):
        pass
    assert caplog.text.count("which are not checked") == (not protected_)
