"""Streams of ``subscriptions/listen`` over HTTP, each in the answer to its own POST."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from tests.serving.http.raw import Connection, modern
from tests.serving.http.scenes import MemoryEndpoint, Scene, in_memory, next_message
from trio.testing import wait_all_tasks_blocked

IDS: list[Any] = [1, "1", "a", 0, "", -1, 2**53 + 1, "é", *range(10, 22)]
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
ID = "io.modelcontextprotocol/subscriptionId"


async def listening(endpoint: MemoryEndpoint, request_id: Any, **asked: Any) -> Connection:
    connection = await endpoint.connect()
    headers, body = modern("subscriptions/listen", {"notifications": asked}, request_id)
    await connection.send("POST", {**headers}, body)
    assert (await connection.head()).headers["content-type"] == "text/event-stream"
    return connection


async def test_mod_01_each_listen_stream_is_acknowledged_first_and_receives_its_own_changes() -> None:
    scene = Scene()
    kinds = [{"toolsListChanged": True}, {"resourceSubscriptions": ["scene:thing"]}]
    wanted = ["notifications/tools/list_changed", "notifications/resources/updated"]
    async with in_memory(scene.server) as endpoint:
        streams = [await listening(endpoint, each, **kinds[n % 2]) for n, each in enumerate(IDS)]
        for request_id, stream in zip(IDS, streams, strict=True):
            first = await next_message(stream)
            seen = first["params"]["_meta"][ID]
            assert (first["method"], seen, type(seen)) == (ACKNOWLEDGED, request_id, type(request_id))
        for number in range(1000):
            scene.server.resource_updated("scene:thing")
            if number % 100 == 0:
                scene.server.prompt(name=f"prompt{number}")(lambda: "unasked")
                scene.server.tool(name=f"tool{number}")(trio.lowlevel.checkpoint)
                await wait_all_tasks_blocked()
        for number, (request_id, stream) in enumerate(zip(IDS, streams, strict=True)):
            for _ in range(3):
                told = await next_message(stream)
                seen = told["params"]["_meta"][ID]
                assert (told["method"], seen, type(seen)) == (wanted[number % 2], request_id, type(request_id))


@pytest.mark.parametrize("way", ["reset", "end"])
async def test_disconnected_listen_stream_is_removed_and_the_other_listen_streams_continue(way: str) -> None:
    scene = Scene()
    async with in_memory(scene.server) as endpoint:
        leaver, stayer = [await listening(endpoint, 1, toolsListChanged=True) for _ in range(2)]
        await wait_all_tasks_blocked()
        if way == "reset":
            await leaver.aclose()
        else:
            await leaver.stream.send_eof()  # type: ignore[attr-defined]
        await wait_all_tasks_blocked()
        assert len(endpoint.front._endpoint._modern.state.inbound) == 1
        scene.server.remove_tool("echo")
        assert (await next_message(stayer))["method"] == ACKNOWLEDGED
        assert (await next_message(stayer))["method"] == "notifications/tools/list_changed"
