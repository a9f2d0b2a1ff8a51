"""open_http and serve_http together, legacy and modern: cancellation, progress, elicitation and notifications."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trustme
from tests.patience import PATIENCE

from trio_mcp import (
    Address,
    CancelCause,
    Cancellation,
    Client,
    ConnectionLost,
    HTTPError,
    Limits,
    PeerError,
    RequestContext,
    Server,
    open_http,
    proxy,
    serve_http,
)
from trio_mcp.connecting.memory import open_memory
from trio_mcp.hosting import MemberDescription, open_group


class Bench:
    """A server, and what its handlers saw."""

    def __init__(self, **options: Any) -> None:
        self.server = Server("bench", **options)
        self.started = trio.Event()
        self.cancelled = trio.Event()
        self.cancellation: Cancellation | None = None
        server = self.server

        @server.tool
        async def greet(ctx: RequestContext, name: str) -> str:
            ctx.progress(1, 2, "half")
            await ctx.log.info(f"greeting {name}")
            return f"hello {name}"

        @server.tool
        async def sleep(ctx: RequestContext) -> None:
            self.started.set()
            try:
                await trio.sleep_forever()
            finally:
                self.cancellation = ctx.cancellation
                self.cancelled.set()

        @server.tool
        async def ask(ctx: RequestContext) -> str:
            answer = await ctx.elicit("who?", {"type": "object", "properties": {"name": {"type": "string"}}})
            return str(answer.content)

        @server.tool
        async def change() -> None:
            server.remove_tool("ask")

        @server.resource("note:1")
        async def note() -> str:
            return "text"


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture(params=["modern", "legacy"])
def era(request: pytest.FixtureRequest) -> Any:
    return request.param


@asynccontextmanager
async def served(server: Any, **options: Any) -> AsyncGenerator[str]:
    """The URL of ``server``."""
    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(lambda **kw: serve_http(server, "127.0.0.1", 0, **options, **kw))
        with trio.fail_after(PATIENCE):
            socket = getattr(listener, "transport_listener", listener).socket
            yield f"http://127.0.0.1:{socket.getsockname()[1]}/mcp"
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def opened(bench: Bench, **options: Any) -> AsyncGenerator[Client]:
    async with served(bench.server) as url, open_http(url, **options) as client:
        yield client


async def test_progress_and_logs_arrive_during_an_http_call(bench: Bench, era: Any) -> None:
    logs, steps = list[Any](), list[float]()
    async with opened(bench, era=era, on_log=lambda told: logs.append(told.data)) as client:
        await client.set_log_level("info")
        result = await client.call_tool("greet", {"name": "Ada"}, on_progress=lambda told: steps.append(told.progress))
        assert (result.text, steps, logs) == ("hello Ada", [1], ["greeting Ada"])


async def test_cancelled_http_call_runs_the_finally_block_of_its_handler(bench: Bench, era: Any) -> None:
    async with opened(bench, era=era) as client:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "sleep")
                await bench.started.wait()
                scope.cancel(reason="enough")
        await bench.cancelled.wait()
        assert bench.cancellation is not None
        cause = CancelCause.DISCONNECT if era == "modern" else CancelCause.PEER
        assert bench.cancellation.cause is cause
        assert (await client.call_tool("greet", {"name": "Ada"})).text == "hello Ada"


async def test_finally_blocks_of_handlers_run_when_the_http_client_closes(bench: Bench, era: Any) -> None:
    async with served(bench.server) as url:
        async with open_http(url, era=era) as client, trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "sleep")
            await bench.started.wait()
            nursery.cancel_scope.cancel()
        await bench.cancelled.wait()


async def test_client_answers_an_elicitation_over_http(bench: Bench, era: Any) -> None:
    async with opened(bench, era=era, elicitation=lambda _: {"name": "Ada"}) as client:
        assert (await client.call_tool("ask")).text == "{'name': 'Ada'}"


async def test_call_fails_if_the_elicitation_answer_is_too_long_for_the_server(era: Any) -> None:
    """A legacy server is told so; a modern one is asked with the answer itself, and refuses that."""
    bench = Bench(limits=Limits(max_message_bytes=20_000))
    async with opened(bench, era=era, elicitation=lambda _: {"name": "x" * 100_000}) as client:
        with trio.fail_after(PATIENCE):
            if era == "legacy":
                assert (await client.call_tool("ask")).is_error
            else:
                with pytest.raises(HTTPError) as caught:
                    await client.call_tool("ask")
                assert caught.value.status == 413
        assert (await client.call_tool("greet", {"name": "Ada"})).text == "hello Ada"


async def test_client_receives_a_list_changed_notification_over_http(bench: Bench, era: Any) -> None:
    told = trio.Event()
    async with opened(bench, era=era, on_list_changed=lambda _: told.set()) as client:
        await client.call_tool("change")
        await told.wait()


async def test_client_receives_a_resource_updated_notification_over_http(bench: Bench, era: Any) -> None:
    told = trio.Event()
    async with opened(bench, era=era, on_resource_updated=lambda _: told.set()) as client:
        await client.subscribe("note:1")
        bench.server.resource_updated("note:1")
        await told.wait()
        await client.unsubscribe("note:1")


async def test_large_result_arrives_completely_over_http(bench: Bench, era: Any) -> None:
    @bench.server.tool
    async def repeat(text: str) -> str:
        return text

    text = "\u2028ä" * 500_000
    async with opened(bench, era=era) as client:
        assert (await client.call_tool("repeat", {"text": text})).text == text


async def test_each_of_200_concurrent_http_calls_gets_its_own_result(bench: Bench, era: Any) -> None:
    answers = dict[int, str]()

    async def call(number: int) -> None:
        answers[number] = (await client.call_tool("greet", {"name": str(number)})).text

    async with opened(bench, era=era) as client, trio.open_nursery() as nursery:
        for number in range(200):
            nursery.start_soon(call, number)
    assert answers == {number: f"hello {number}" for number in range(200)}


async def test_unknown_tool_over_http_raises_peer_error(bench: Bench, era: Any) -> None:
    async with opened(bench, era=era) as client:
        with pytest.raises(PeerError) as caught:
            await client.call_tool("nothing")
        assert caught.value.code == -32602


async def test_https_client_refuses_a_certificate_of_an_unknown_authority(bench: Bench, era: Any) -> None:
    authority = trustme.CA()
    ours, theirs = ssl.create_default_context(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.configure_trust(ours)
    authority.issue_cert("127.0.0.1").configure_cert(theirs)
    async with served(bench.server, ssl_context=theirs) as url:
        url = url.replace("http:", "https:")
        async with open_http(url, era=era, ssl_context=ours) as client:
            assert (await client.call_tool("greet", {"name": "Ada"})).text == "hello Ada"
        with pytest.raises(ConnectionLost, match="no TLS connection"):
            async with open_http(url, era=era):
                pass


async def test_client_continues_after_its_http_server_restarts(bench: Bench, era: Any) -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    await listeners[0].aclose()
    running = trio.CancelScope()
    stopped = trio.Event()

    async def run(server: Server, *, task_status: trio.TaskStatus[Any]) -> None:
        with running:
            await serve_http(server, "127.0.0.1", port, task_status=task_status)
        stopped.set()

    async with trio.open_nursery() as nursery:
        await nursery.start(run, bench.server)
        with trio.fail_after(PATIENCE):
            async with open_http(f"http://127.0.0.1:{port}/mcp", era=era) as client:
                await client.call_tool("greet", {"name": "Ada"})
                running.cancel()
                await stopped.wait()
                with pytest.raises(HTTPError) as caught:
                    await client.call_tool("greet", {"name": "Ada"})
                assert caught.value.status is None
                running = trio.CancelScope()
                await nursery.start(run, Bench().server)
                if era == "legacy":
                    with pytest.raises(HTTPError) as caught:
                        await client.call_tool("greet", {"name": "Ada"})
                    assert caught.value.status == 404
                assert (await client.call_tool("greet", {"name": "Ada"})).text == "hello Ada"
        running.cancel()


async def test_group_calls_a_tool_of_an_http_server(bench: Bench) -> None:
    async with served(bench.server) as url, open_group({"far": MemberDescription(url)}) as group:
        await group.settled()
        assert (await group.call_tool("far__greet", {"name": "Ada"})).text == "hello Ada"


async def test_proxy_forwards_elicitation_and_cancel_to_an_http_server(bench: Bench, era: Any) -> None:
    async with (
        served(bench.server) as url,
        open_memory(proxy(Address(url).open), era=era, elicitation=lambda _: {"name": "Ada"}) as client,
    ):
        assert (await client.call_tool("ask")).text == "{'name': 'Ada'}"
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "sleep")
                await bench.started.wait()
                scope.cancel()
        await bench.cancelled.wait()


async def test_proxy_served_over_http_forwards_elicitation(bench: Bench, era: Any) -> None:
    async with (
        served(bench.server) as url,
        served(proxy(Address(url).open)) as front,
        open_http(front, era=era, elicitation=lambda _: {"name": "Ada"}) as client,
    ):
        assert (await client.call_tool("ask")).text == "{'name': 'Ada'}"
