"""One port and path for HTTP and WebSocket."""

from __future__ import annotations

import pytest
import trio
from tests.serving.http.raw import modern, served

from trio_mcp import ConnectionLost, RequestContext, Server, open_http, open_websocket

server = Server("both")


@server.tool
async def over(ctx: RequestContext) -> str:
    """Say which headers came."""
    return "websocket" if "sec-websocket-key" in (ctx.headers or {}) else "http"


async def test_http_and_websocket_clients_are_served_at_one_url() -> None:
    async with served(server, websocket=True) as endpoint:
        url = f"//127.0.0.1:{endpoint.port}/mcp"
        async with open_websocket(f"ws:{url}") as first, open_http(f"http:{url}") as second:
            assert (await first.call_tool("over")).text == "websocket"
            assert (await second.call_tool("over")).text == "http"


async def test_websocket_upgrade_gets_status_404_if_the_websocket_option_is_off() -> None:
    async with served(server) as endpoint:
        with pytest.raises(ConnectionLost, match=r"404.*there is no WebSocket here"):
            async with open_websocket(f"ws://127.0.0.1:{endpoint.port}/mcp"):
                raise AssertionError("there is no connection")
        assert (await endpoint.modern("server/discover")).status == 200


async def test_websocket_from_a_disallowed_origin_gets_status_403() -> None:
    async with served(server, websocket=True) as endpoint:
        connection = await endpoint.connect()
        headers: dict[str, str | None] = {
            "Host": "127.0.0.1",
            "Origin": "https://evil.example",
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
            "Sec-WebSocket-Protocol": "mcp",
        }
        assert (await connection.ask("GET", headers)).status == 403
        await connection.aclose()


async def test_websocket_is_closed_when_the_http_server_ends() -> None:
    async with (
        served(server, websocket=True, handle_signals=False) as endpoint,
        open_websocket(f"ws://127.0.0.1:{endpoint.port}/mcp") as client,
    ):
        endpoint.nursery.cancel_scope.cancel(reason="the server ends")
        with trio.CancelScope(shield=True), pytest.raises(ConnectionLost):
            await client.until_lost()


async def test_http_server_ignores_an_upgrade_to_a_protocol_other_than_websocket() -> None:
    async with served(server, websocket=True) as endpoint:
        headers, body = modern("server/discover")
        answer = await endpoint.ask("POST", {**headers, "Upgrade": "h2c", "Connection": "Upgrade"}, body)
        assert answer.status == 200
