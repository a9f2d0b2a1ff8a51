"""``trio-mcp record``, ``timeline`` and ``replay``."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import trio
from tests.cli.commands import quick
from tests.forked import forked_command
from tests.recording.scenes import made

from trio_mcp import open_memory, open_stdio, serve_http
from trio_mcp.recording.entries import read_recording

SERVER = """
import sys, trio
from trio_mcp import RequestContext, Server, serve_stdio
server = Server("s")
@server.tool
async def greet(name: str) -> str:
    return f"{sys.argv[1]} {name}"
@server.tool
async def slow(ctx: RequestContext) -> None:
    ctx.progress(1)
    await trio.sleep_forever()
trio.run(serve_stdio, server)
"""


def command(folder: Path, greeting: str = "hello") -> list[str]:
    (folder / "server.py").write_text(SERVER)
    return forked_command([str(folder / "server.py"), greeting])


def typed(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(quick(*map(str, words)), capture_output=True, text=True, timeout=120, check=False)


async def recorded(folder: Path) -> Path:
    path = folder / "calls.jsonl"
    words = quick("record", "-o", str(path), "--", *command(folder))
    async with open_stdio(words, era="legacy") as client:
        with trio.CancelScope() as scope:
            await client.call_tool("slow", on_progress=lambda _: scope.cancel(reason="slow has begun"))
        assert (await client.call_tool("greet", {"name": "Ann \N{SNOWMAN}" + "x" * 200_000})).text.startswith(
            "hello Ann"
        )
    return path


async def test_record_command_forwards_all_messages_and_the_recording_can_be_replayed(tmp_path: Path) -> None:
    path = await recorded(tmp_path)
    read = read_recording(path)
    assert read.header.role == "relay"
    methods = [each.get("method") for entry in read if entry.dir == "out" for each in entry.messages]
    assert methods == ["initialize", "notifications/initialized", "tools/call", "notifications/cancelled", "tools/call"]
    same = await trio.to_thread.run_sync(typed, "replay", path, "--", *command(tmp_path))
    assert (same.returncode, same.stdout) == (0, ""), same.stderr
    other = await trio.to_thread.run_sync(typed, "replay", path, "--", *command(tmp_path, "bye"))
    assert other.returncode == 1
    assert "result.content[0].text" in other.stdout


async def test_timeline_command_writes_an_svg_and_a_perfetto_trace(tmp_path: Path) -> None:
    path = await recorded(tmp_path)
    drawn = await trio.to_thread.run_sync(typed, "timeline", path, "-o", tmp_path / "p.svg", "--title", "Two calls")
    assert drawn.returncode == 0, drawn.stderr
    picture = (tmp_path / "p.svg").read_text()
    assert "Two calls" in picture
    assert "slow" in picture
    traced: Any = await trio.to_thread.run_sync(typed, "timeline", path, "--format", "perfetto")
    assert json.loads(traced.stdout)["traceEvents"]


def test_timeline_and_replay_commands_report_an_invalid_recording_with_the_line_number(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("no\n")
    for words in (("timeline", tmp_path / "bad.jsonl"), ("replay", tmp_path / "bad.jsonl", "--", "true")):
        ended = typed(*words)
        assert ended.returncode == 2
        assert "bad.jsonl, line 1: this line is not the header of a recording" in ended.stderr


def test_record_command_exits_with_the_status_of_the_recorded_server(tmp_path: Path) -> None:
    code = "import sys; sys.exit(7)"
    ended = typed("record", "-o", tmp_path / "r.jsonl", "--", sys.executable, "-c", code)
    assert ended.returncode == 7


async def test_replay_command_against_a_url_reports_differences(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    async with open_memory(made(), record=path) as client:
        await client.call_tool("greet", {"name": "Ann"})
    async with trio.open_nursery() as nursery:
        for greeting, status in (("hello", 0), ("bye", 1)):
            (listener,) = await nursery.start(serve_http, made(greeting), "127.0.0.1", 0)
            url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/mcp"
            ended = await trio.to_thread.run_sync(typed, "replay", path, url)
            assert ended.returncode == status, ended.stderr
            assert ("bye Ann" in ended.stdout) is (status == 1)
        nursery.cancel_scope.cancel(reason="done")


async def test_replay_command_with_as_server_option_answers_a_client_from_the_recording(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    async with open_memory(made(), record=path, era="modern") as client:
        await client.call_tool("greet", {"name": "Ann"})
    words = quick("replay", str(path), "--as-server")
    said = io.StringIO()
    async with open_stdio(words, inherit_env=True, era="modern", stderr=said) as client:
        assert (await client.call_tool("greet", {"name": "Bea"})).text == "hello Ann"
    assert '"Ann" was recorded, and now there is "Bea"' in said.getvalue()


def test_replay_command_requires_either_a_target_or_the_as_server_option(tmp_path: Path) -> None:
    (tmp_path / "calls.jsonl").write_text("")
    for more in ((), ("--as-server", "true")):
        ended = typed("replay", tmp_path / "calls.jsonl", *more)
        assert (ended.returncode, "--as-server" in ended.stderr) == (2, True)
