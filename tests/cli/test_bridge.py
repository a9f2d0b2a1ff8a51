"""``trio-mcp bridge``: serves a server over another transport or revision, with one server process per client."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.cli.commands import TRIO_MCP, quick, run, running, written
from tests.interaction.harness import is_alive, wait_until
from tests.patience import PATIENCE
from tests.ports import url_on_socket

from trio_mcp import (
    Address,
    Client,
    ConnectionLost,
    PeerError,
    Progress,
    RequestContext,
    Server,
    open_stdio,
    serve_http,
    serve_tcp,
    serve_unix,
    serve_websocket,
)

SERVER = """
    import os, sys
    import trio
    from trio_mcp import RequestContext, Server

    server = Server("behind")

    @server.tool
    async def pid() -> int:
        return os.getpid()

    @server.tool
    async def sleep(ctx: RequestContext) -> None:
        print("asleep", file=sys.stderr, flush=True)
        try:
            await trio.sleep_forever()
        finally:
            print(f"cancelled: {ctx.cancellation.reason}", file=sys.stderr, flush=True)
"""


@pytest.fixture
def behind(tmp_path: Path) -> str:
    return written(tmp_path / "behind.py", SERVER)


@pytest.fixture(params=("http", "websocket", "tcp", "unix"))
def transport(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=("modern", "legacy"))
def era(request: pytest.FixtureRequest) -> Any:
    return request.param


async def test_bridge_starts_a_server_process_for_each_client_and_ends_it_when_the_client_closes(
    behind: str, transport: str, era: Any, socket_folder: Path
) -> None:
    if (transport, era) == ("http", "modern"):
        pytest.skip("modern clients over HTTP are requests, each for itself: they share what is behind")
    where = str(socket_folder / "mcp.sock") if transport == "unix" else "0"
    async with running("bridge", f"--{transport}", where, "--", *quick("run", behind)) as bridge:
        said = await bridge.line(r"serving '[^']+' at (\S+?)[,;]")
        url = {"tcp": f"tcp://{said}", "unix": f"unix://{said}"}.get(transport, said)
        with trio.fail_after(PATIENCE):
            async with Address(url).open(era=era) as one:
                async with Address(url).open(era=era) as two:
                    pids = [int((await client.call_tool("pid")).text) for client in (one, two)]
                    assert len({*pids, bridge.process.pid}) == 3
                await trio.to_thread.run_sync(wait_until, lambda: not is_alive(pids[1]))
                with trio.CancelScope() as scope:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(one.call_tool, "sleep")
                        await bridge.line("(asleep)")
                        scope.cancel(reason="enough")
                assert await bridge.line("cancelled: (.*)") == "enough"
                assert int((await one.call_tool("pid")).text) == pids[0]
            bridge.process.send_signal(signal.SIGTERM)
            assert await bridge.process.ended() == 0
            assert not is_alive(pids[0])


@asynccontextmanager
async def listening(server: Server, transport: str, path: Path) -> AsyncIterator[str]:
    """Serve ``server`` here; its URL."""
    async with trio.open_nursery() as nursery:
        if transport == "unix":
            await nursery.start(serve_unix, server, path / "mcp.sock")
            yield f"unix://{path}/mcp.sock"
        else:
            serve: Callable[..., Any] = {"http": serve_http, "websocket": serve_websocket, "tcp": serve_tcp}[transport]
            (listener,) = await nursery.start(serve, server, "127.0.0.1", 0)
            port = listener.socket.getsockname()[1]
            scheme, path_of_url = {"http": ("http", "/mcp"), "websocket": ("ws", "/mcp"), "tcp": ("tcp", "")}[transport]
            yield f"{scheme}://127.0.0.1:{port}{path_of_url}"
        nursery.cancel_scope.cancel()


def bridged(url: str, *options: str, **more: Any) -> AbstractAsyncContextManager[Client]:
    """A host that can only start commands."""
    return open_stdio(quick("bridge", *options, url), inherit_env=True, **more)


async def test_mcp_host_that_can_only_start_commands_reaches_an_http_server_through_the_bridge(
    transport: str, era: Any, socket_folder: Path
) -> None:
    server = Server("far away")

    @server.tool
    async def greet(ctx: RequestContext) -> str:
        ctx.progress(1, 2)
        answer = await ctx.elicit("who?", {"type": "object", "properties": {"name": {"type": "string"}}})
        return f"hello {answer.content}"

    told: list[Progress] = []
    with trio.fail_after(PATIENCE):
        async with (
            listening(server, transport, socket_folder) as url,
            bridged(url, era=era, elicitation=lambda _: {"name": "Ada"}) as client,
        ):
            assert client.server_info is not None
            assert client.server_info.name == "far away"
            assert (await client.call_tool("greet", on_progress=told.append)).text == "hello {'name': 'Ada'}"
            assert told == [Progress(1, 2)]


async def test_bridge_on_a_unix_socket_shares_one_server_between_programs(
    behind: str, era: Any, socket_folder: Path
) -> None:
    """Behind it is a server on a Unix socket, too."""
    first, second = socket_folder / "first", socket_folder / "second"
    async with (
        running("run", behind, "--http", f"unix:{first}") as server,
        running("bridge", "--http", f"unix:{second}", url_on_socket(first)) as bridge,
    ):
        await server.line("(serving)")
        url = await bridge.line(r"serving '[^']+' at (\S+?);")
        assert url == url_on_socket(second)
        with trio.fail_after(PATIENCE):
            async with Address(url).open(era=era) as one, bridged(url, era=era) as two:
                for client in (one, two):
                    assert (await client.call_tool("pid")).text == str(server.process.pid)


async def test_bridge_target_can_be_a_server_name_from_a_host_configuration_file(behind: str, tmp_path: Path) -> None:
    program, *words = quick("run", behind)
    entry = {"command": program, "args": words}
    config = written(tmp_path / "hosts.json", json.dumps({"mcpServers": {"named": entry}}))
    with trio.fail_after(PATIENCE):
        async with bridged("named", "--config", config) as client:
            assert client.server_info is not None
            assert client.server_info.name == "behind"


@pytest.mark.parametrize(("option", "named"), [("--era", "legacy"), ("--era", "modern"), ("--revision", "2025-03-26")])
async def test_bridge_option_sets_the_protocol_revision_towards_the_server(
    option: str, named: str, era: Any, socket_folder: Path
) -> None:
    server = Server("s")

    @server.tool
    async def revision(ctx: RequestContext) -> str:
        return ctx.revision.name

    with trio.fail_after(PATIENCE):
        async with listening(server, "tcp", socket_folder) as url, bridged(url, option, named, era=era) as client:
            spoken = (await client.call_tool("revision")).text
            assert (spoken == "2026-07-28") is (named == "modern")
            assert spoken == named or option == "--era"
            assert (client.revision.name == "2026-07-28") is (era == "modern")


class Asleep:
    """What the bridge writes to standard error, which is what the server behind writes."""

    def __init__(self) -> None:
        self.seen = trio.Event()

    def write(self, text: str, /) -> None:
        if "asleep" in text:
            self.seen.set()


async def test_bridge_ends_if_the_connection_to_the_server_is_lost(behind: str, era: Any) -> None:
    asleep = Asleep()
    with trio.fail_after(PATIENCE):
        async with open_stdio(quick("bridge", behind), inherit_env=True, stderr=asleep, era=era) as client:
            pid = int((await client.call_tool("pid")).text)
            async with trio.open_nursery() as nursery:

                async def call() -> None:
                    with pytest.raises(PeerError) as caught:
                        await client.call_tool("sleep")
                    assert caught.value.code == -31001

                nursery.start_soon(call)
                await asleep.seen.wait()
                os.kill(pid, signal.SIGKILL)
            with pytest.raises(ConnectionLost) as lost:
                await client.until_lost()
            assert "is gone" in str(lost.value)


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["no such server"], 2, "is not a URL, a Python file"),
        (["--tcp", "1", "--unix", "x", "tcp://127.0.0.1:1"], 2, "use only one of --http"),
        (["http:///mcp"], 2, "the URL of an HTTP server must be like"),
        (["--", sys.executable, "-c", "raise SystemExit('no server')"], 3, "no server"),
        (["tcp://127.0.0.1:9"], 3, "cannot be reached"),
    ],
)
async def test_bridge_reports_targets_it_cannot_serve(arguments: list[str], status: int, told: str) -> None:
    opening = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",'
    opening += b'"capabilities":{},"clientInfo":{"name":"c","version":"1"}}}\n'
    ended = await run([*TRIO_MCP, "bridge", *arguments], stdin=opening)
    assert (ended.status, told in ended.stderr) == (status, True), ended
    assert ("-31001" in ended.stdout) is (status == 3)
