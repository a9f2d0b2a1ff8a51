"""``trio-mcp run --shared``: several processes act as one server."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
from tests.cli.commands import TRIO_MCP, run, running, written
from tests.fleet.redis_server import RedisServer
from tests.patience import PATIENCE

from trio_mcp import open_http
from trio_mcp.cli.printable import CommandError
from trio_mcp.cli.serving_options import storage_at

SERVER = """
    import os
    from trio_mcp import RequestContext, Server

    server = Server("fleet")

    @server.tool
    def pid() -> int:
        return os.getpid()

    @server.tool
    def session(ctx: RequestContext) -> str:
        return str(ctx.session_id)

    @server.tool(task="required")
    async def roast(ctx: RequestContext) -> str:
        return "roasted"
"""
AT = r"serving 'fleet' at (http://127\.0\.0\.1:\d+/mcp)"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--shared", "it.db"], "--shared needs --http"),
        (["--tcp", "0", "--shared", "it.db"], "--shared needs --http"),
        (["--http", "0", "--shared", "none/it.db"], "there is no folder 'none'"),
        (["--http", "0", "--shared", "."], "is a folder, not a file"),
        (["--http", "0", "--shared", "http://user:hunter2@127.0.0.1/"], "unknown scheme http:// in the Redis URL"),
        (["--http", "0", "--shared", "redis://user:hunter2@127.0.0.1:port/"], "port"),
        (["--http", "0", "--shared", "it.db", "--tasks", "tasks.db"], "--tasks and --shared cannot be combined"),
        (["--http", "0", "--workers", "2"], "needs --shared or --stateless"),
    ],
)
async def test_error_for_an_invalid_shared_storage_option_does_not_contain_the_password(
    tmp_path: Path, options: list[str], told: str
) -> None:
    written(tmp_path / "server.py", SERVER)
    ended = await run([*TRIO_MCP, "run", "server.py", *options], cwd=tmp_path)
    assert (ended.status, ended.stdout) == (2, "")
    assert told in ended.stderr
    assert "hunter2" not in ended.stderr


def test_error_for_redis_storage_without_coredis_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "coredis", None)
    with pytest.raises(CommandError, match=r"pip install 'trio-mcp\[redis\]'") as caught:
        storage_at("redis://user:hunter2@127.0.0.1:6379")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("options", [[], ["--workers", "2"], ["--reload"]])
@pytest.mark.parametrize("content", ["text", "noise", "other database"])
async def test_shared_storage_file_of_another_program_is_reported_in_one_line(
    tmp_path: Path, options: list[str], content: str
) -> None:
    file, other = written(tmp_path / "server.py", SERVER), tmp_path / "other"
    if content == "other database":
        with sqlite3.connect(other) as database:
            database.execute("CREATE TABLE notes (text)")
        database.close()
    else:
        other.write_bytes(b"this is something else " * 100 if content == "text" else bytes(range(256)) * 20)
    ended = await run([*TRIO_MCP, "run", file, "--http", "0", "--shared", str(other), *options], cwd=tmp_path)
    assert ended.status == 2
    assert "--shared: cannot use this storage" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


async def check_any_answers(urls: list[str]) -> None:
    """Check that tasks of each server are those of all."""
    with trio.fail_after(PATIENCE):
        async with AsyncExitStack() as clients:
            modern = [await clients.enter_async_context(open_http(url, era="modern")) for url in urls]
            legacy = [await clients.enter_async_context(open_http(url, era="legacy")) for url in urls]
            pids = {(await client.call_tool("pid")).text for client in modern + legacy}
            tasks = [await client.start_task("roast") for client in modern]
            for task in tasks:
                assert task.id is not None
                results = [await client.resume_task(task.id).result() for client in modern]
                assert [result.text for result in results] == ["roasted"] * len(urls)
    assert len(pids) == len(urls)


async def test_clients_can_use_either_of_two_servers_that_share_a_storage_file(tmp_path: Path) -> None:
    file, shared = written(tmp_path / "server.py", SERVER), str(tmp_path / "shared.db")
    command = ("run", file, "--http", "0", "--shared", shared)
    async with running(*command) as first, running(*command) as second:
        await check_any_answers([await first.line(AT), await second.line(AT)])
    assert (tmp_path / "shared.db").stat().st_mode & 0o077 == 0


async def test_clients_can_use_either_of_two_servers_that_share_a_redis_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path / "server.py", SERVER)
    with RedisServer(tmp_path) as redis:
        monkeypatch.setenv("TRIO_MCP_SHARED", redis.url)
        async with running("run", file, "--http", "0") as first, running("run", file, "--http", "0") as second:
            await check_any_answers([await first.line(AT), await second.line(AT)])


async def test_worker_with_shared_storage_returns_the_result_of_a_task_started_at_another_worker(
    tmp_path: Path,
) -> None:
    file, shared = written(tmp_path / "server.py", SERVER), str(tmp_path / "shared.db")
    async with running("run", file, "--http", "0", "--workers", "2", "--shared", shared) as server:
        url = await server.line(AT)
        pids, tasks = set[str](), list[str]()
        with trio.fail_after(PATIENCE):
            while len(pids) < 2:  # which worker accepts a connection is a matter of chance
                async with open_http(url, era="modern") as client:
                    pids.add((await client.call_tool("pid")).text)
                    task = await client.start_task("roast")
                    assert task.id is not None
                    tasks.append(task.id)
            async with open_http(url, era="modern") as client:
                results = [await client.resume_task(task).result() for task in tasks]
            server.process.send_signal(signal.SIGTERM)
            assert await server.process.ended() == 0
    assert {result.text for result in results} == {"roasted"}


async def test_session_with_shared_storage_continues_after_its_worker_ends(tmp_path: Path) -> None:
    file, shared = written(tmp_path / "server.py", SERVER), str(tmp_path / "shared.db")
    async with running("run", file, "--http", "0", "--workers", "2", "--shared", shared) as server:
        url = await server.line(AT)
        with trio.fail_after(PATIENCE):
            async with open_http(url, era="legacy") as client:
                session, pid = [(await client.call_tool(name)).text for name in ("session", "pid")]
                os.kill(int(pid), signal.SIGKILL)
                await server.line(rf"worker ({pid}) has ended with status -9; starting another")
                assert (await client.call_tool("pid")).text != pid
                assert (await client.call_tool("session")).text == session
            server.process.send_signal(signal.SIGTERM)
            assert await server.process.ended() == 0
