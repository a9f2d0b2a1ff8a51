"""Behind nginx, HAProxy and Caddy, configured as in docs/deployment, a server works as if nothing were between.

A proxy that is not installed is skipped.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Literal

import attrs
import pytest
import trio
from tests.pages import Page
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.reverse_proxies.proxies import CADDY, HAPROXY, NGINX, PAGES, Proxy, end, until_listening
from tests.reverse_proxies.raw_client import call, initialize, posted, requested

from trio_mcp import CancelCause, Cancellation, Client, Limits, RequestContext, Server, open_http, serve_http

IDLE = 1.0
"""Seconds of silence after which a proxy of a test gives up."""
INTERVAL = 0.3
"""Seconds between two comments of a test's server."""


@attrs.define
class Seen:
    """What the handlers have seen."""

    begun: trio.Event = attrs.field(factory=trio.Event)
    may_go_on: trio.Event = attrs.field(factory=trio.Event)
    ended: trio.Event = attrs.field(factory=trio.Event)
    cancellation: Cancellation | None = None


def make_server(seen: Seen, name: str = "behind") -> Server:
    server = Server(name, limits=Limits(stream_interval=INTERVAL))

    @server.tool
    async def count(ctx: RequestContext) -> str:
        ctx.progress(1, total=2)
        await seen.may_go_on.wait()
        return "counted"

    @server.tool
    async def hang(ctx: RequestContext, tells: bool) -> None:
        if tells:
            ctx.progress(1)
        seen.begun.set()
        try:
            await trio.sleep_forever()
        finally:
            seen.cancellation = ctx.cancellation
            seen.ended.set()

    @server.tool
    async def wait_silently() -> str:
        await seen.may_go_on.wait()
        return "waited"

    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.tool
    async def who() -> str:
        return name

    return server


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[int]:
    """Serve as the page does; the port."""
    serve = partial(
        serve_http, allowed_hosts=["mcp.example.com", "127.0.0.1"], allowed_origins=["https://app.example.com"]
    )
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(serve, server, "127.0.0.1", 0)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def behind(proxy: Proxy, folder: Path, seen: Seen, idle: float | None = None) -> AsyncIterator[int]:
    with trio.fail_after(PATIENCE):
        async with serving(make_server(seen)) as server, proxy.running(folder, server, idle) as port:
            yield port


@pytest.fixture(params=[NGINX, HAPROXY, CADDY], ids=lambda proxy: proxy.name)
def proxy(request: pytest.FixtureRequest) -> Proxy:
    if not request.param.is_installed:
        pytest.skip(f"{request.param.name} is not installed")
    return request.param


async def test_client_behind_a_reverse_proxy_receives_progress_while_the_handler_runs(
    proxy: Proxy, tmp_path: Path
) -> None:
    seen = Seen()
    async with behind(proxy, tmp_path, seen) as port, call(port, "count") as answer:
        await answer.until_answered()
        assert (await answer.message())["method"] == "notifications/progress"
        seen.may_go_on.set()
        assert (await answer.message())["result"]["content"][0]["text"] == "counted"


@pytest.mark.parametrize("tells", [True, False], ids=["in its stream", "before the first byte"])
async def test_client_that_disconnects_from_the_reverse_proxy_cancels_the_handler(
    proxy: Proxy, tmp_path: Path, tells: bool
) -> None:
    seen = Seen()
    async with behind(proxy, tmp_path, seen) as port:
        async with call(port, "hang", tells=tells) as answer:
            await seen.begun.wait()
            if tells:
                await answer.until_answered()
        await seen.ended.wait()
    assert seen.cancellation is not None
    assert seen.cancellation.cause == CancelCause.DISCONNECT


async def test_silent_handler_can_run_longer_than_the_idle_timeout_of_the_reverse_proxy(
    proxy: Proxy, tmp_path: Path
) -> None:
    seen = Seen()
    async with behind(proxy, tmp_path, seen, IDLE) as port, call(port, "wait_silently") as answer:
        await answer.until_answered()
        while answer.comments * INTERVAL < 2 * IDLE:
            line = await answer.line()
            assert line is not None
            answer.comments += line.startswith(":")
        seen.may_go_on.set()
        assert (await answer.message())["result"]["content"][0]["text"] == "waited"


async def test_get_stream_can_stay_open_longer_than_the_idle_timeout_of_the_reverse_proxy(
    proxy: Proxy, tmp_path: Path
) -> None:
    async with behind(proxy, tmp_path, Seen(), IDLE) as port:
        session = {"Mcp-Session-Id": await initialize(port)}
        async with posted(port, {"jsonrpc": "2.0", "method": "notifications/initialized"}, session) as accepted:
            await accepted.until_answered()
        async with requested(port, "GET", session) as stream:
            await stream.until_answered()
            while stream.comments * INTERVAL < 2 * IDLE:
                line = await stream.line()
                assert line is not None
                stream.comments += line.startswith(":")
    assert accepted.status == 202


async def test_large_messages_are_delivered_through_the_reverse_proxy_in_both_directions(
    proxy: Proxy, tmp_path: Path
) -> None:
    text = "long " * 1_000_000
    async with behind(proxy, tmp_path, Seen()) as port, call(port, "echo", text=text) as answer:
        await answer.until_answered()
        assert (await answer.message())["result"]["content"][0]["text"] == text


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_trio_mcp_client_can_call_and_cancel_through_the_reverse_proxy(
    proxy: Proxy, tmp_path: Path, era: Literal["modern", "legacy"]
) -> None:
    seen = Seen()
    async with (
        behind(proxy, tmp_path, seen) as port,
        open_http(f"http://127.0.0.1:{port}/mcp", era=era) as client,
    ):
        counted = await client.call_tool("count", on_progress=lambda _: seen.may_go_on.set())
        with trio.CancelScope() as scope:
            await client.call_tool("hang", {"tells": True}, on_progress=lambda _: scope.cancel("enough"))
        await seen.ended.wait()
        after = await client.call_tool("echo", {"text": "still here"})
    assert (counted.text, after.text) == ("counted", "still here")
    assert seen.cancellation is not None
    assert seen.cancellation.cause == (CancelCause.DISCONNECT if era == "modern" else CancelCause.PEER)


async def test_session_and_running_call_continue_after_a_restart_of_the_reverse_proxy(
    proxy: Proxy, tmp_path: Path
) -> None:
    seen = Seen()
    with trio.fail_after(PATIENCE):
        async with serving(make_server(seen)) as server, trio.open_nursery() as nursery:
            results: list[str] = []
            begun = trio.Event()
            async with proxy.running(tmp_path, server) as port:
                client = await nursery.start(client_of, f"http://127.0.0.1:{port}/mcp")

                async def count() -> None:
                    result = await client.call_tool("count", on_progress=lambda _: begun.set())
                    results.append(result.text)
                    nursery.cancel_scope.cancel("the result is there")

                nursery.start_soon(count)
                await begun.wait()
            async with proxy.running(tmp_path, server, port=port):
                seen.may_go_on.set()
                await trio.sleep_forever()
    assert results == ["counted"]


async def client_of(url: str, task_status: trio.TaskStatus[Client]) -> None:
    """Keep a client open, in a legacy revision, where a client comes back for what it missed."""
    async with open_http(url, era="legacy") as client:
        task_status.started(client)
        await trio.sleep_forever()


@pytest.mark.parametrize(
    ("header", "value", "is_ours"),
    [
        ("Host", "mcp.example.com", True),
        ("Origin", "https://app.example.com", True),
        ("Host", "evil.example.com", False),
        ("Origin", "https://evil.example.com", False),
    ],
)
async def test_disallowed_host_or_origin_is_refused_behind_the_reverse_proxy(
    proxy: Proxy, tmp_path: Path, header: str, value: str, is_ours: bool
) -> None:
    async with (
        behind(proxy, tmp_path, Seen()) as port,
        call(port, "echo", {header: value}, text="heard") as answer,
    ):
        await answer.until_answered()
        body = await answer.body()
    # Caddy itself has an answer for names that are not its own, an empty 200.
    refused = (200, b"") if proxy is CADDY and header == "Host" else (403, body)
    assert (answer.status, body) == ((200, body) if is_ours else refused)
    assert (b"heard" in body) == is_ours


@pytest.mark.skipif(not NGINX.is_installed, reason="nginx is not installed")
async def test_documented_reverse_proxy_example_serves_clients_behind_nginx(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "batch.py").write_text(Page("get-started/quickstart.md").blocks["batch"])
    (tmp_path / "behind_proxy.py").write_text(PAGES.blocks["behind_proxy"].replace("8765", str(port)))
    server = await trio.lowlevel.open_process([sys.executable, "behind_proxy.py"], cwd=tmp_path)
    try:
        with trio.fail_after(PATIENCE):
            await until_listening(port, server)
            async with (
                NGINX.running(tmp_path, port) as nginx,
                call(nginx, "process_batch", items=["a", "b"]) as answer,
            ):
                await answer.until_answered()
                while "result" not in (message := await answer.message()):
                    pass
    finally:
        await end(server)
    assert message["result"]["content"][0]["text"] == "processed 2 items"


@pytest.mark.skipif(not HAPROXY.is_installed, reason="haproxy is not installed")
async def test_haproxy_routes_each_session_to_its_server_process(tmp_path: Path) -> None:
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "who", "arguments": {}}}
    asked = 0
    with trio.fail_after(PATIENCE):
        async with (
            serving(make_server(Seen(), "first")) as first,
            serving(make_server(Seen(), "second")) as second,
            HAPROXY.running(tmp_path, first, language="haproxy-sessions", **{"8766": second}) as port,
        ):
            sessions = [await initialize(port) for _ in range(4)]
            names = {session: set[str]() for session in sessions}
            for session in sessions * 3:
                async with posted(port, request, {"Mcp-Session-Id": session}) as answer:
                    await answer.until_answered()
                    names[session].add((await answer.message())["result"]["content"][0]["text"])
                    asked += 1
    assert asked == 12
    assert sorted(map(sorted, names.values())) == [["first"], ["first"], ["second"], ["second"]]
