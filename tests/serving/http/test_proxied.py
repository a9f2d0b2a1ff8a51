"""A proxy that is served over HTTP: both eras reach the server behind, and the way back."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Annotated, Any

import pytest
import trio
import trio.testing
from tests.patience import PATIENCE
from tests.serving.http.raw import message, modern
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

from trio_mcp import (
    CancelCause,
    Client,
    CodedError,
    ConnectionLost,
    Header,
    PeerError,
    RequestContext,
    Server,
    open_memory,
    open_tcp,
    proxy,
    serve_tcp,
)
from trio_mcp.testing import ScriptedServer, open_scripted_server


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
async def endpoint(scene: Scene) -> AsyncGenerator[MemoryEndpoint]:
    async with in_memory(proxy(partial(open_memory, scene.server))) as one:
        yield one


async def test_notifications_of_a_proxied_modern_call_are_sent_on_its_response_stream(
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
async def test_modern_client_that_disconnects_from_a_proxy_cancels_the_call_to_the_backend(
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


async def test_s2c_07_proxied_legacy_session_supports_sampling_and_cancellation(
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


async def test_s2c_10_sampling_request_through_a_proxy_fails_in_the_backend_after_answer_timeout(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    async with in_memory(proxy(partial(open_memory, scene.server)), answer_timeout=30) as endpoint:
        session = await endpoint.initialize(**SAMPLING)
        post = await endpoint.post(session, call("ask", name="asker"))
        await post.head()
        await rest_of(post)
    failure = scene["asker"].failure
    assert isinstance(failure, PeerError)
    assert failure.message == "Internal error: the client did not respond in time"


async def test_logs_of_the_only_running_proxied_legacy_call_are_sent_on_its_response_stream(
    scene: Scene, endpoint: MemoryEndpoint
) -> None:
    session = await endpoint.initialize()
    stream = await endpoint.get(session)
    await stream.head()
    scene["mine"].may_go_on.set()
    post = await endpoint.post(session, call("steps", name="mine"))
    *told, reply = messages_in(await post.answer())
    assert [each["params"]["data"] for each in told] == ["one", "two"]
    assert text_of(reply) == "three"


async def test_htt_20_proxy_client_that_missed_changes_receives_all_change_notifications(scene: Scene) -> None:
    async with in_memory(proxy(partial(open_memory, scene.server)), max_replay_bytes=20_000) as endpoint:
        session = await endpoint.initialize()
        params = {"uri": "scene:thing"}
        assert (await endpoint.ask("POST", session, message("resources/subscribe", params, 1))).status == 200
        for _ in range(100):
            scene.server.resource_updated("scene:thing")
            await trio.testing.wait_all_tasks_blocked()
        stream = await endpoint.get(session)
        await stream.head()
        await trio.testing.wait_all_tasks_blocked()
        await endpoint.ask("DELETE", session)
        methods = [each["method"] for each in await rest_of(stream)]
    assert {"notifications/tools/list_changed", "notifications/resources/list_changed"} <= set(methods[-3:])
    assert methods[-1] == "notifications/resources/updated"


async def test_logs_of_a_proxied_legacy_call_are_sent_on_the_get_stream_if_another_call_runs(
    scene: Scene, endpoint: MemoryEndpoint
) -> None:
    session = await endpoint.initialize()
    stream = await endpoint.get(session)
    await stream.head()
    waiting = await endpoint.post(session, call("wait", 7, name="other"))
    await scene["other"].started.wait()
    scene["mine"].may_go_on.set()
    post = await endpoint.post(session, call("steps", 8, name="mine"))
    assert [text_of(each) for each in messages_in(await post.answer())] == ["three"]
    assert [(await next_message(stream))["params"]["data"] for _ in range(2)] == ["one", "two"]
    await waiting.aclose()


async def test_logs_from_a_shared_backend_connection_are_sent_on_every_get_stream(scene: Scene) -> None:
    async with open_memory(scene.server, era="legacy") as client, in_memory(proxy(client)) as endpoint:
        session = await endpoint.initialize()
        stream = await endpoint.get(session)
        await stream.head()
        scene["mine"].may_go_on.set()
        post = await endpoint.post(session, call("steps", 8, name="mine"))
        assert [text_of(each) for each in messages_in(await post.answer())] == ["three"]
        assert [(await next_message(stream))["params"]["data"] for _ in range(2)] == ["one", "two"]


async def test_deleted_session_of_a_proxy_cancels_its_calls_to_the_backend(
    scene: Scene, endpoint: MemoryEndpoint
) -> None:
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


async def test_proxy_calls_fail_if_the_backend_crashes_and_later_calls_reach_the_restarted_backend(
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


async def test_proxied_call_to_an_unreachable_backend_returns_an_error(scene: Scene) -> None:
    def refused(**_: Any) -> AbstractAsyncContextManager[Client]:
        raise ConnectionLost("nobody is there")

    async with in_memory(proxy(refused)) as endpoint:
        for _ in range(3):
            answer = await endpoint.modern("tools/call", {"name": "echo", "arguments": {"text": "hi"}})
            assert "error" in answer.json


# Headers that repeat arguments


class Regions:
    """A server behind a proxy whose tool ``region`` asks for headers, and which counts the listings of its tools."""

    def __init__(self) -> None:
        self.listings = 0
        self.server = server = Server("regions")

        @server.tool
        async def region(
            ctx: RequestContext,
            region: Annotated[str, Header("Region")] = "eu",
        ) -> str:
            return region

        @server.tool
        async def mismatch() -> str:
            raise CodedError(-32020, "the headers of somebody else differ")

        @server.tool
        async def grow() -> str:
            @server.tool
            async def grown(
                zone: Annotated[str, Header("Zone")] = "a",
            ) -> str:
                return zone

            return "grown"

    @asynccontextmanager
    async def open(self, **options: Any) -> AsyncGenerator[Client]:
        async with open_memory(self.server, **options) as client:
            self._count(client)
            yield client

    def _count(self, client: Any) -> None:
        send = client._rounds.result

        async def counted(method: str, *more: Any, **options: Any) -> Any:
            self.listings += method == "tools/list"
            return await send(method, *more, **options)

        client._rounds.result = counted


@pytest.fixture
def regions() -> Regions:
    return Regions()


@pytest.fixture
async def before_regions(regions: Regions) -> AsyncGenerator[MemoryEndpoint]:
    async with in_memory(proxy(regions.open)) as one:
        yield one


EU = {"name": "region", "arguments": {"region": "eu"}}


@pytest.mark.parametrize("headers", [{}, {"Mcp_Param_Region": "us"}, {"Mcp_Param_Region": "=?base64?ZXU?="}])
async def test_proxy_rejects_an_argument_without_its_mcp_param_header(
    before_regions: MemoryEndpoint, headers: dict[str, str]
) -> None:
    answer = await before_regions.modern("tools/call", EU, **headers)
    assert (answer.status, answer.code, answer.json["id"]) == (400, -32020, 1)


async def test_proxy_forwards_an_argument_with_its_mcp_param_header(before_regions: MemoryEndpoint) -> None:
    answer = await before_regions.modern("tools/call", EU, Mcp_Param_Region="eu")
    assert (answer.status, text_of(answer.json)) == (200, "eu")


async def test_proxy_forwards_a_header_mismatch_error_of_the_backend_with_status_200(
    before_regions: MemoryEndpoint,
) -> None:
    answer = await before_regions.modern("tools/call", {"name": "mismatch", "arguments": {}})
    assert (answer.status, answer.code) == (200, -32020)


async def test_proxy_lists_the_tools_of_its_backend_once_for_concurrent_calls(
    regions: Regions, before_regions: MemoryEndpoint
) -> None:
    async def ask(name: str) -> None:
        await before_regions.modern("tools/call", {**EU, "name": name}, Mcp_Param_Region="eu")

    async with trio.open_nursery() as nursery:
        for name in ("region", "no such tool", "region", "another", "region"):
            nursery.start_soon(ask, name)
    await ask("no such tool")
    assert regions.listings == 1


async def test_proxy_remembers_the_mcp_param_headers_of_tools_from_a_forwarded_tools_list(
    regions: Regions, before_regions: MemoryEndpoint
) -> None:
    await before_regions.modern("tools/list")
    answer = await before_regions.modern("tools/call", EU)
    assert (answer.status, regions.listings) == (400, 1)


async def test_proxy_lists_the_tools_of_its_backend_again_after_the_tools_changed(
    regions: Regions, before_regions: MemoryEndpoint
) -> None:
    await before_regions.modern("tools/call", {"name": "grow", "arguments": {}})
    await trio.testing.wait_all_tasks_blocked()
    answer = await before_regions.modern("tools/call", {"name": "grown", "arguments": {"zone": "b"}})
    assert (answer.status, answer.code, regions.listings) == (400, -32020, 2)


async def test_proxied_call_needs_no_mcp_param_headers_if_the_backend_lacks_tools_list() -> None:
    async def behind(server: ScriptedServer) -> None:
        await server.accept("2026-07-28", {"tools": {}})
        await server.refuse(await server.expect_request("tools/list"), -32601)
        for _ in range(2):
            await server.answer_text(await server.expect_request("tools/call"), "done")

    async with in_memory(proxy(partial(open_scripted_server, behind))) as endpoint:
        for _ in range(2):
            assert text_of((await endpoint.modern("tools/call", EU)).json) == "done"


async def test_proxied_call_fails_if_its_mcp_param_headers_cannot_be_validated() -> None:
    async def behind(server: ScriptedServer) -> None:
        await server.accept("2026-07-28", {"tools": {}})
        for _ in range(2):
            await server.refuse(await server.expect_request("tools/list"), -31000)

    async with in_memory(proxy(partial(open_scripted_server, behind))) as endpoint:
        for _ in range(2):
            assert (await endpoint.modern("tools/call", EU)).code == -31000


async def test_proxy_lists_tools_again_if_the_client_of_the_first_tools_list_disconnected(
    regions: Regions,
) -> None:
    first = trio.Event()

    @asynccontextmanager
    async def opening(**options: Any) -> AsyncGenerator[Client]:
        async with regions.open(**options) as client:
            send = client._rounds.result

            async def slow(method: str, *more: Any, **options: Any) -> Any:
                if method == "tools/list" and not first.is_set():
                    first.set()
                    await trio.sleep_forever()
                return await send(method, *more, **options)

            client._rounds.result = slow  # type: ignore[method-assign]
            yield client

    async with in_memory(proxy(opening)) as endpoint:
        connection = await endpoint.connect()
        headers, body = modern("tools/call", EU)
        await connection.send("POST", {**headers}, body)
        await first.wait()
        await connection.aclose()
        with trio.fail_after(PATIENCE):
            assert (await endpoint.modern("tools/call", EU)).status == 400


async def test_proxy_validates_mcp_param_headers_of_a_retry_after_input_required(regions: Regions) -> None:
    @regions.server.tool
    async def sample(
        ctx: RequestContext,
        region: Annotated[str, Header("Region")] = "eu",
    ) -> str:
        return str(await ctx.elicit("Which?", {"type": "object", "properties": {}}))

    meta = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
    params = {"name": "sample", "arguments": {"region": "eu"}, "_meta": meta}
    async with in_memory(proxy(regions.open)) as endpoint:
        first = await endpoint.modern("tools/call", params, Mcp_Param_Region="eu")
        asked = first.json["result"]
        retry = {
            **params,
            "requestState": asked["requestState"],
            "inputResponses": {key: {"action": "decline"} for key in asked["inputRequests"]},
        }
        wrong = await endpoint.modern("tools/call", retry, Mcp_Param_Region="us")
        assert (wrong.status, wrong.code) == (400, -32020)
        right = await endpoint.modern("tools/call", retry, Mcp_Param_Region="eu")
        assert "result" in right.json


async def test_proxied_legacy_and_in_memory_calls_need_no_mcp_param_headers(
    regions: Regions, before_regions: MemoryEndpoint
) -> None:
    session = await before_regions.initialize()
    answer = await before_regions.ask("POST", session, call("region", region="eu"))
    assert text_of(answer.reply) == "eu"
    async with open_memory(proxy(regions.open)) as client:
        assert (await client.call_tool("region", {"region": "eu"})).content[0].text == "eu"
    assert regions.listings == 0
