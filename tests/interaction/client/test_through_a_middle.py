"""CAN-17: a host, a server that forwards its calls, and a raw backend server."""

from __future__ import annotations

from typing import Any

import trio
from tests.interaction.client.raw import Serve
from tests.interaction.websocket.raw_peer import port_of, serving
from tests.patience import PATIENCE

from trio_mcp import Client, Server, open_websocket, serve_websocket

BEHIND = """
opened()
for _ in range(5):
    text(until("tools/call"))
calls = [until("tools/call") for _ in range(4)]
note("all are here")
until("notifications/cancelled")
for call in calls:
    if call["params"]["name"] != "left":
        text(call, call["params"]["name"])
"""


def in_the_middle_of(behind: Client) -> Server:
    """A server with one tool, which calls that of the same name behind it."""
    server = Server("middle")

    @server.tool
    async def forward(name: str) -> str:
        return (await behind.call_tool(name)).text

    return server


async def test_can_17_server_cancels_a_forwarded_call_with_the_request_id_it_sent_to_the_backend(
    serve_raw: Serve, era: Any
) -> None:
    raw = serve_raw(BEHIND)
    answers: list[str] = []

    async def call(name: str) -> None:
        answers.append((await host.call_tool("forward", {"name": name})).text)

    async def call_and_leave() -> None:
        with left:
            await call("left")

    left = trio.CancelScope()
    with trio.fail_after(PATIENCE):
        async with (
            raw.client(era=era) as behind,
            serving(serve_websocket, in_the_middle_of(behind), port=0) as listeners,
            open_websocket(f"ws://127.0.0.1:{port_of(listeners)}/mcp", era=era) as host,
        ):
            for _ in range(5):  # so that the ids here are others than those there
                await behind.call_tool("earlier")
            async with trio.open_nursery() as nursery:
                for name in ("one", "two", "three"):
                    nursery.start_soon(call, name)
                nursery.start_soon(call_and_leave)
                await raw.has("all are here")
                left.cancel(reason="the user pressed stop")
    assert sorted(answers) == ["one", "three", "two"]
    [abandoned] = [m for m in raw.wire if m.get("method") == "tools/call" and m["params"]["name"] == "left"]
    [cancel] = [m for m in raw.wire if m.get("method") == "notifications/cancelled"]
    assert cancel["params"]["requestId"] == abandoned["id"]
    closed_only = (raw.transport, era) == ("http", "modern")  # the cancel is the close of an answer, which has no words
    assert cancel["params"].get("reason") == (None if closed_only else "the user pressed stop")
