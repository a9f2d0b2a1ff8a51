"""``trio-mcp run`` with several processes on one port, and with one that is started anew when its files change."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from tests.cli.commands import TRIO_MCP, run, running, written
from tests.patience import PATIENCE

from trio_mcp import Client, open_http

SERVER = """
    import os
    import sys
    import trio
    from trio_mcp import Limits, Server

    server = Server("shared", limits=Limits(drain_timeout=5))

    @server.tool
    def pid() -> int:
        return os.getpid()

    @server.tool
    async def wait(path: str) -> int:
        print("asleep", file=sys.stderr, flush=True)
        async with await trio.open_file(path) as pipe:  # waits until the other end is opened
            await pipe.read()
        return os.getpid()
"""
READY = r"serving 'shared' at (http://127\.0\.0\.1:\d+/mcp) with (?:2 workers|a worker);"


async def pid_of(url: str) -> int:
    """The process that serves a new connection."""
    with trio.fail_after(PATIENCE):
        async with open_http(url, era="modern") as client:
            return int((await client.call_tool("pid")).text)


async def until_gone(pid: int) -> None:
    with trio.fail_after(PATIENCE), suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        try:
            await trio.lowlevel.wait_readable(process)
        finally:
            os.close(process)


async def test_a_worker_that_dies_is_replaced_alone_and_the_port_stays(tmp_path: Path) -> None:
    file = written(tmp_path / "server.py", SERVER)
    async with running("run", file, "--http", "0", "--stateless", "--workers", "2") as server:
        url = await server.line(READY)
        pids = {await pid_of(url)}
        while len(pids) < 2:
            pids.add(await pid_of(url))
        victim, other = pids
        os.kill(victim, signal.SIGKILL)
        assert int(await server.line(r"worker (\d+) has ended with status -9; another one is started")) == victim
        assert await pid_of(url) == other
        new = int(await server.line(rf"worker (\d+) serves in the place of {victim}"))
        os.kill(other, signal.SIGSTOP)  # so that the new one has to answer
        assert await pid_of(url) == new
        os.kill(other, signal.SIGCONT)
        server.process.send_signal(signal.SIGTERM)
        with trio.fail_after(PATIENCE):
            assert await server.process.ended() == 0
        await until_gone(other)


async def test_a_hang_up_replaces_each_worker_behind_its_successor_and_no_call_fails(tmp_path: Path) -> None:
    file, done = written(tmp_path / "server.py", SERVER), tmp_path / "done"
    os.mkfifo(done)
    async with running("run", file, "--http", "0", "--stateless", "--workers", "1") as server:
        url = await server.line(READY)
        before = await pid_of(url)
        answers: list[int] = []

        async def call(client: Client) -> None:
            answers.append(int((await client.call_tool("wait", {"path": str(done)})).text))

        with trio.fail_after(PATIENCE):
            async with open_http(url, era="modern") as client, trio.open_nursery() as nursery:
                nursery.start_soon(call, client)
                await server.line("(asleep)")
                server.process.send_signal(signal.SIGHUP)
                after = int(await server.line(rf"worker (\d+) serves in the place of {before}"))
                await trio.Path(done).write_text("")
            assert answers == [before]
            await until_gone(before)
            assert await pid_of(url) == after


async def test_clients_that_connect_while_workers_are_replaced_are_all_served(tmp_path: Path) -> None:
    file = written(tmp_path / "server.py", SERVER)
    async with running("run", file, "--http", "0", "--stateless", "--workers", "1") as server:
        url = await server.line(READY)
        pids: list[int] = []

        async def call_on() -> None:
            while True:
                pids.append(await pid_of(url))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(call_on)
            for _ in range(3):
                server.process.send_signal(signal.SIGHUP)
                await until_gone(int(await server.line(r"serves in the place of (\d+)")))
            nursery.cancel_scope.cancel(reason="no call has failed")
        assert len(set(pids)) == 4


async def test_workers_end_with_their_supervisor(tmp_path: Path) -> None:
    file = written(tmp_path / "server.py", SERVER)
    async with running("run", file, "--http", "0", "--workers", "1", "--stateless") as server:
        pid = await pid_of(await server.line(READY))
        server.process.send_signal(signal.SIGKILL)
        await until_gone(pid)


async def test_a_file_that_changes_is_served_anew_and_a_mistake_keeps_the_old_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path / "server.py", SERVER)
    monkeypatch.chdir(tmp_path)
    async with running("run", file, "--http", "0", "--reload") as server:
        url = await server.line(READY)
        with trio.fail_after(PATIENCE):
            async with open_http(url, era="modern") as client:
                before = (await client.call_tool("pid")).text
                written(tmp_path / "server.py", "this is no Python")
                await server.line("(the new version did not start; the old one goes on)")
                assert (await client.call_tool("pid")).text == before
                written(tmp_path / "server.py", SERVER.replace("os.getpid()", "42"))
                await server.line("(serves in the place of)")
                await until_gone(int(before))
                assert (await client.call_tool("pid")).text == "42"


async def test_a_file_that_raises_at_first_is_told_once_and_ends_everything(tmp_path: Path) -> None:
    file = written(tmp_path / "server.py", "raise RuntimeError('broken')")
    ended = await run([*TRIO_MCP, "run", file, "--http", "0", "--stateless", "--workers", "3"])
    assert ended.status == 1
    assert ended.stderr.count("RuntimeError: broken") == 1


async def test_a_port_that_is_taken_is_a_sentence(tmp_path: Path) -> None:
    file = written(tmp_path / "server.py", SERVER)
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        port = str(listener.socket.getsockname()[1])
        ended = await run([*TRIO_MCP, "run", file, "--http", port, "--stateless", "--workers", "2"])
    assert (ended.status, ended.stderr.count("\n")) == (2, 1)
    assert "cannot listen there" in ended.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--workers", "2"], "goes with --shared, or with --stateless"),
        (["--workers", "1"], "go with --http"),
        (["--reload"], "go with --http"),
        (["--http", "0", "--workers", "2"], "goes with --shared, or with --stateless"),
        (["--http", "0", "--scope", "a"], "go with --issuer"),
        (["--http", "0", "--issuer", "https://login.example.com"], "--issuer needs --resource"),
        (["--http", "0", "--issuer", "nonsense", "--resource", "https://mcp.example.com/mcp"], "nonsense"),
        (["--tcp", "0", "--health"], "goes with --http"),
    ],
)
async def test_options_that_make_no_sense_together_are_usage_errors(
    tmp_path: Path, options: list[str], told: str
) -> None:
    ended = await run([*TRIO_MCP, "run", written(tmp_path / "server.py", SERVER), *options])
    assert ended.status == 2
    assert told in ended.stderr


async def answer_to(url: str, method: str, path: str) -> bytes:
    host, _, port = url.removeprefix("http://").partition("/")[0].partition(":")
    with trio.fail_after(PATIENCE):
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            return b"".join([data async for data in stream])


async def test_tokens_of_an_issuer_and_probes_by_options(tmp_path: Path) -> None:
    file = written(tmp_path / "server.py", SERVER)
    tokens = ["--issuer", "https://login.example.com", "--resource", "https://mcp.example.com/mcp", "--scope", "notes"]
    async with running("run", file, "--http", "0", "--health", *tokens) as server:
        url = await server.line(r"at (http://127\.0\.0\.1:\d+/mcp);")
        refused = await answer_to(url, "POST", "/mcp")
        assert refused.startswith(b"HTTP/1.1 401 ")
        assert b'scope="notes"' in refused
        assert (await answer_to(url, "GET", "/readyz")).startswith(b"HTTP/1.1 200 ")


async def test_without_the_extra_that_checks_tokens_one_line_says_so(tmp_path: Path) -> None:
    file = written(tmp_path / "server.py", SERVER)
    (tmp_path / "joserfc.py").write_text("raise ImportError")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from trio_mcp.cli.main import main; main()"
    tokens = ["--issuer", "https://login.example.com", "--resource", "https://mcp.example.com/mcp"]
    ended = await run([sys.executable, "-c", program, "run", file, "--http", "0", *tokens])
    assert ended.status == 2
    assert ended.stderr.splitlines()[-1].endswith("checking signatures needs joserfc: install trio-mcp[auth]")


async def test_options_are_given_by_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path / "server.py", SERVER)
    for name, value in {"HTTP": "0", "PATH": "/here", "HEALTH": "1"}.items():
        monkeypatch.setenv(f"TRIO_MCP_{name}", value)
    async with running("run", file) as server:
        url = await server.line(r"at (http://127\.0\.0\.1:\d+/here);")
        assert (await answer_to(url, "GET", "/healthz")).startswith(b"HTTP/1.1 200 ")


async def test_a_signal_while_a_worker_starts_ends_all_in_good_order(tmp_path: Path) -> None:
    file = written(tmp_path / "server.py", SERVER)
    async with running("run", file, "--http", "0", "--stateless", "--workers", "2") as server:
        await server.line(READY)  # of the first one; the second one begins now
        server.process.send_signal(signal.SIGTERM)
        with trio.fail_after(PATIENCE):
            assert await server.process.ended() == 0
