"""``trio-mcp run`` on an address: HTTP, WebSocket, TCP and Unix sockets (SHD-01 from outside)."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.cli.commands import TRIO_MCP, run, running, written
from tests.patience import PATIENCE
from tests.ports import url_on_socket

from trio_mcp import ConnectionLost, HTTPError, PeerError, open_http, open_tcp, open_unix, open_websocket

SERVER = """
    import sys
    import trio
    from trio_mcp import Limits, Server

    server = Server("sleeper", limits=Limits(drain_timeout=2))

    @server.tool
    async def sleep(milliseconds: int) -> str:
        print("asleep", file=sys.stderr, flush=True)
        try:
            await trio.sleep(milliseconds / 1000)
            return "slept"
        finally:
            print("awake", file=sys.stderr, flush=True)
"""


SESSION = """
    from trio_mcp import RequestContext, Server

    server = Server("remembers")

    @server.tool
    async def session(ctx: RequestContext) -> str:
        return str(ctx.session_id)
"""


async def test_run_command_over_websocket_serves_until_a_signal_and_finishes_accepted_calls(tmp_path: Path) -> None:
    file = written(tmp_path / "server.py", SERVER)
    async with running("run", file, "--websocket", "0") as server:
        url = await server.line(r"serving 'sleeper' at (ws://127\.0\.0\.1:\d+/mcp);")
        with trio.fail_after(PATIENCE):
            async with open_websocket(url) as client, trio.open_nursery() as nursery:
                answers: list[str] = []

                async def short() -> None:
                    answers.append((await client.call_tool("sleep", {"milliseconds": 200})).text)

                async def long() -> None:
                    with pytest.raises(ConnectionLost, match="close code 1001"):
                        await client.call_tool("sleep", {"milliseconds": 60_000})

                for call in (short, short, short, long):
                    nursery.start_soon(call)
                for _ in range(4):
                    await server.line("(asleep)")
                server.process.send_signal(signal.SIGTERM)
            for _ in range(4):
                await server.line("(awake)")
            assert await server.process.ended() == 0
    assert answers == ["slept"] * 3


TWO_SESSIONS = """
from trio_mcp import Limits, Server

server = Server("sessions", limits=Limits(max_sessions=2))
"""


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_run_command_over_http_serves_until_a_signal(tmp_path: Path, era: Any) -> None:
    async with running("run", written(tmp_path / "server.py", SERVER), "--http", "0") as server:
        url = await server.line(r"serving 'sleeper' at (http://127\.0\.0\.1:\d+/mcp);")
        with trio.fail_after(PATIENCE):
            async with open_http(url, era=era) as client:
                assert (await client.call_tool("sleep", {"milliseconds": 1})).text == "slept"
                server.process.send_signal(signal.SIGTERM)
                assert await server.process.ended() == 0
                with pytest.raises(HTTPError):
                    await client.call_tool("sleep", {"milliseconds": 1})


async def test_run_command_over_stateless_http_creates_no_session_and_serves_at_the_given_path(tmp_path: Path) -> None:
    file = written(tmp_path / "server.py", SESSION)
    async with running("run", file, "--http", "0", "--path", "/{a}", "--stateless") as server:
        url = await server.line(r"at (http://127\.0\.0\.1:\d+/\{a\});")
        with trio.fail_after(PATIENCE):
            async with open_http(url, era="legacy") as client:
                assert (await client.call_tool("session")).text == "None"


@pytest.mark.parametrize("trusted", [True, False])
async def test_trusted_proxy_option_gives_clients_behind_the_proxy_separate_limits(
    tmp_path: Path, trusted: bool
) -> None:
    file = written(tmp_path / "server.py", TWO_SESSIONS)
    more = ["--trusted-proxy", "127.0.0.1", "--trusted-proxy", "10.0.0.0/8"] if trusted else []
    async with running("run", file, "--http", "0", *more) as server:
        url = await server.line(r"at (http://127\.0\.0\.1:\d+/mcp);")
        with trio.fail_after(PATIENCE):
            async with open_http(url, era="legacy", headers={"X-Forwarded-For": "203.0.113.1"}):
                other = open_http(url, era="legacy", headers={"X-Forwarded-For": "203.0.113.2"})
                if trusted:
                    async with other as client:
                        await client.ping()
                else:
                    with pytest.raises(PeerError, match="too many sessions"):
                        async with other:
                            pytest.fail("there is room for one")


async def test_run_command_serves_over_tcp_and_unix_sockets(tmp_path: Path, socket_folder: Path) -> None:
    file = written(tmp_path / "server.py", SERVER)
    path = socket_folder / "mcp.sock"
    async with (
        running("run", file, "--tcp", "127.0.0.1:0") as over_tcp,
        running("run", file, "--unix", str(path)) as over_unix,
    ):
        port = int(await over_tcp.line(r"at 127\.0\.0\.1:(\d+), a message per line"))
        await over_unix.line(r"(mcp\.sock), a message per line")
        with trio.fail_after(PATIENCE):
            async with open_tcp("127.0.0.1", port) as one, open_unix(path) as two:
                for client in (one, two):
                    assert (await client.call_tool("sleep", {"milliseconds": 1})).text == "slept"
            over_unix.process.send_signal(signal.SIGINT)
            assert await over_unix.process.ended() == 0
    assert not path.exists()


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_clients_can_use_the_printed_url_of_an_http_server_on_a_unix_socket(
    tmp_path: Path, socket_folder: Path, era: Any
) -> None:
    file = written(tmp_path / "server.py", SERVER)
    path = socket_folder / "our socket"
    async with running("run", file, "--http", f"unix:{path}", "--path", "/here") as server:
        url = await server.line(r"serving 'sleeper' at (http\+unix://\S+);")
        assert url == url_on_socket(path, "/here")
        with trio.fail_after(PATIENCE):
            async with open_http(url, era=era) as client:
                assert (await client.call_tool("sleep", {"milliseconds": 1})).text == "slept"
        shown = await run([*TRIO_MCP, "inspect", url, "--era", era])
        assert (shown.status, "sleeper" in shown.stdout) == (0, True), shown.stderr
        called = await run([*TRIO_MCP, "call", url, "sleep", "milliseconds=1", "--bearer-env", "PATH_TOKEN"])
        assert "the environment variable PATH_TOKEN is missing" in called.stderr
        server.process.send_signal(signal.SIGTERM)
        assert await server.process.ended() == 0
    assert not path.exists()


def from_here(path: Path) -> str:
    return os.path.relpath(path)


async def test_run_command_prints_the_absolute_path_of_a_unix_socket_given_as_a_relative_path(
    tmp_path: Path, socket_folder: Path
) -> None:
    where = f"unix:{from_here(socket_folder / 's')}"
    async with running("run", written(tmp_path / "server.py", SERVER), "--http", where) as server:
        assert await server.line(r"at (http\+unix://\S+);") == url_on_socket(socket_folder / "s")


@pytest.mark.parametrize("where", ["--http", "--websocket", "--tcp", "--unix"])
async def test_os_error_in_a_lifespan_is_not_reported_as_a_listening_error(
    tmp_path: Path, socket_folder: Path, where: str
) -> None:
    lines = ["import contextlib, trio_mcp", "@contextlib.asynccontextmanager", "async def life(server):"]
    lines += ["    yield open('/nowhere/data')", "server = trio_mcp.Server('s', lifespan=life)"]
    place = str(socket_folder / "s") if where == "--unix" else "0"
    ended = await run([*TRIO_MCP, "run", written(tmp_path / "server.py", "\n".join(lines)), where, place])
    assert (ended.status, "cannot listen" in ended.stderr) == (1, False)
    assert ended.stderr.endswith("No such file or directory: '/nowhere/data'\nthe lifespan of the server failed\n")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--http", "unix:"], "must not be empty"),
        (["--http", f"unix:/tmp/{'a' * 200}"], "too long, with 205 bytes"),
        (["--http", "unix:/proc/mcp.sock"], "cannot listen on this address"),
        (["--http", "unix:x", "--workers", "2", "--stateless"], "with a port, not with a Unix socket"),
        (["--websocket", "unix:x"], "PORT or HOST:PORT"),
        (["--websocket", "0.0.0.0:8765"], "--allowed-origin none"),
        (["--websocket", "everywhere"], "PORT or HOST:PORT"),
        (["--http", "0.0.0.0:8000"], "--allowed-origin none"),
        (["--http", "1", "--websocket", "2"], "use only one of --http"),
        (["--tcp", "192.0.2.1:0"], "cannot listen"),
        (["--tcp", "1", "--unix", "x"], "use only one of --http"),
        (["--tcp", "1", "--allowed-origin", "none"], "need --http or --websocket"),
        (["--tcp", "1", "--path", "/x"], "need --http or --websocket"),
        (["--tcp", "1", "--trusted-proxy", "127.0.0.1"], "need --http or --websocket"),
        (["--http", "1", "--trusted-proxy", "nginx"], "a proxy must be an address"),
        (["--http", "1", "--path", "x"], "must begin with a slash"),
        (["--websocket", "1", "--stateless"], "needs --http"),
    ],
)
async def test_run_command_reports_an_invalid_address_as_a_usage_error(
    tmp_path: Path, arguments: list[str], told: str
) -> None:
    ended = await run([*TRIO_MCP, "run", written(tmp_path / "server.py", SERVER), *arguments])
    assert ended.status == 2
    assert told in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
