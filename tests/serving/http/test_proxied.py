"""A proxy that is served over HTTP: both eras reach the server behind, and the way back."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import pytest
import trio
from tests.patience import PATIENCE
from tests.serving.http.raw import modern
from tests.serving.http.scenes import (
    SAMPLING,
    MemoryEndpoint,
    Scene,
    call,
    cancel,
    in_memory,
    messages_in,
    next_message,
    rest_of,
    text_of,
)

from trio_mcp import CancelCause, Client, ConnectionLost, open_memory, open_tcp, proxy, serve_tcp


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
async def endpoint(scene: Scene) -> AsyncGenerator[MemoryEndpoint]:
    async with in_memory(proxy(partial(open_memory, scene.server))) as one:
        yield one


async def test_a_modern_call_is_answered_through_a_proxy_with_what_it_tells_on_its_stream(
    scene: Scene, endpoint: MemoryEndpoint
) -> None:
    answer = await endpoint.modern("tools/call", {"name": "echo", "arguments": {"text": "hi"}})
    assert (answer.headers["content-type"], text_of(answer.json)) == ("application/json", "hi")
    scene["mine"].may_go_on.set()
    answer = await endpoint.modern("tools/call", {"name": "steps", "arguments": {"name": "mine"}})
    *told, reply = messages_in(answer)
    assert [each["params"]["data"] for each in told] == ["one", "two"]
    assert text_of(reply) == "three"


@pytest.mark.parametrize("speaks", [False, True], ids=["silent", "with a stream"])
async def test_a_modern_client_that_leaves_cancels_the_call_behind_the_proxy(
    scene: Scene, endpoint: MemoryEndpoint, speaks: bool
) -> None:
    connections = {}
    for name in ("mine", "other"):
        connections[name] = await endpoint.connect()
        headers, body = modern("tools/call", {"name": "wait", "arguments": {"name": name, "speaks": speaks}})
        await connections[name].send("POST", {**headers}, body)
        await scene[name].started.wait()
    await connections["mine"].aclose()
    with trio.fail_after(PATIENCE):
        await scene["mine"].ended.wait()
    cancellation = scene["mine"].cancellation
    assert cancellation is not None
    assert cancellation.cause is CancelCause.PEER
    assert not scene["other"].ended.is_set()


async def test_s2c_07_a_legacy_session_goes_through_a_proxy_with_its_questions_and_cancels(
    scene: Scene, endpoint: MemoryEndpoint
) -> None:
    session = await endpoint.initialize(**SAMPLING)
    post = await endpoint.post(session, call("ask", name="asker"))
    await post.head()
    asked = await next_message(post)
    assert asked["method"] == "sampling/createMessage"
    result = {"role": "assistant", "content": {"type": "text", "text": "well"}, "model": "m"}
    await endpoint.ask("POST", session, {"jsonrpc": "2.0", "id": asked["id"], "result": result})
    assert [text_of(each) for each in await rest_of(post)] == ["m has answered"]
    waiting = await endpoint.post(session, call("wait", 7, name="mine"))
    await scene["mine"].started.wait()
    await endpoint.ask("POST", session, cancel(7))
    assert messages_in(await waiting.answer()) == []
    with trio.fail_after(PATIENCE):
        await scene["mine"].ended.wait()
    assert scene["mine"].cancellation is not None
    assert scene["mine"].cancellation.reason == "enough"


async def test_a_deleted_session_ends_its_calls_behind_the_proxy(scene: Scene, endpoint: MemoryEndpoint) -> None:
    session, other = await endpoint.initialize(), await endpoint.initialize()
    for name, headers in (("mine", session), ("other", other)):
        await endpoint.post(headers, call("wait", name=name))
        await scene[name].started.wait()
    assert (await endpoint.ask("DELETE", session)).status == 204
    with trio.fail_after(PATIENCE):
        await scene["mine"].ended.wait()
    assert not scene["other"].ended.is_set()


class Behind:
    """A server behind a proxy, which can die and come back."""

    def __init__(self, scene: Scene, nursery: trio.Nursery) -> None:
        self._scene = scene
        self._nursery = nursery
        self._scope = trio.CancelScope()
        self._port = 0

    def open(self, **options: Any) -> AbstractAsyncContextManager[Client]:
        return open_tcp("127.0.0.1", self._port, **options)

    async def start(self) -> None:
        self._scope = trio.CancelScope()
        listeners = await self._nursery.start(self._serve)
        self._port = listeners[0].socket.getsockname()[1]

    async def _serve(self, task_status: trio.TaskStatus[Any]) -> None:
        with self._scope:
            await serve_tcp(self._scene.server, "127.0.0.1", 0, task_status=task_status)

    def die(self) -> None:
        self._scope.cancel(reason="the server behind dies")


async def test_when_the_server_behind_dies_modern_calls_fail_and_the_next_reach_the_one_that_came_back(
    scene: Scene,
) -> None:
    async with trio.open_nursery() as nursery:
        behind = Behind(scene, nursery)
        await behind.start()
        async with in_memory(proxy(behind.open)) as endpoint:
            echo = {"name": "echo", "arguments": {"text": "hi"}}
            assert text_of((await endpoint.modern("tools/call", echo)).json) == "hi"
            session = await endpoint.initialize()
            assert text_of((await endpoint.ask("POST", session, call("echo", text="hi"))).json) == "hi"
            headers, body = modern("tools/call", {"name": "wait", "arguments": {"name": "mine"}})
            waiting = await endpoint.connect()
            await waiting.send("POST", {**headers}, body)
            await scene["mine"].started.wait()
            behind.die()
            with trio.fail_after(PATIENCE):
                answer = await waiting.answer()
                assert not [each for each in messages_in(answer) if "result" in each]
                await behind.start()
                while True:  # until the proxy has seen the loss
                    answer = await endpoint.modern("tools/call", echo)
                    if "result" in answer.json:
                        break
                assert text_of(answer.json) == "hi"
                again = await endpoint.initialize()
                assert text_of((await endpoint.ask("POST", again, call("echo", text="hi"))).json) == "hi"
                # 2025-11-25 transports, Session Management: the client of a lost session opens a new one.
                assert (await endpoint.ask("POST", session, call("echo", text="hi"))).status == 404
        behind.die()


async def test_a_server_that_cannot_be_reached_is_an_error_of_each_call(scene: Scene) -> None:
    def refused(**_: Any) -> AbstractAsyncContextManager[Client]:
        raise ConnectionLost("nobody is there")

    async with in_memory(proxy(refused)) as endpoint:
        for _ in range(3):
            answer = await endpoint.modern("tools/call", {"name": "echo", "arguments": {"text": "hi"}})
            assert "error" in answer.json
