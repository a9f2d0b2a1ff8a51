"""``trio-mcp run`` for operators: metrics page, access log, JSON log lines, and recordings."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from urllib.request import urlopen

import pytest
import trio
from tests.cli.commands import TRIO_MCP, run, running, written
from tests.patience import PATIENCE
from tests.ports import free_port

from trio_mcp import open_http
from trio_mcp.recording.entries import read_recording

SERVER = """
    import os
    from trio_mcp import Server

    server = Server("measured")

    @server.tool
    def pid() -> int:
        return os.getpid()

    @server.tool
    def fail() -> int:
        raise ZeroDivisionError("nothing")
"""
AT = r"at (http://127\.0\.0\.1:\d+/mcp)"


async def pid_of(url: str, tool: str = "pid") -> str:
    with trio.fail_after(PATIENCE):
        async with open_http(url, era="modern") as client:
            return (await client.call_tool(tool)).text


async def page(port: int) -> str:
    def read() -> str:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
            return answer.read().decode()

    return await trio.to_thread.run_sync(read)


CALLS = re.compile(r'mcp_server_operation_duration_seconds_count\{([^}]*gen_ai_tool_name="pid"[^}]*)\} (\S+)')


async def test_run_command_with_metrics_option_serves_a_metrics_page(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.prometheus", reason="the extra prometheus is not installed")
    file = written(tmp_path / "server.py", SERVER)
    async with running("run", file, "--http", "0", "--metrics", "0") as server:
        port = int(await server.line(r"metrics at http://127\.0\.0\.1:(\d+)/metrics"))
        await pid_of(await server.line(AT))
        ((_, count),) = CALLS.findall(await page(port))
        assert float(count) == 1


async def test_metrics_page_shows_all_workers_before_and_after_a_reload(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.prometheus", reason="the extra prometheus is not installed")
    file, port = written(tmp_path / "server.py", SERVER), free_port()
    options = ["--stateless", "--workers", "2", "--metrics", str(port)]
    async with running("run", file, "--http", "0", *options) as server:
        url = await server.line(rf"{AT} with 2 workers;")
        served = set[str]()
        with trio.fail_after(PATIENCE):
            while len(served) < 2:
                served.add(await pid_of(url))
        assert {re.findall(r'worker="(\d+)"', labels)[0] for labels, _ in CALLS.findall(await page(port))} == served
        server.process.send_signal(signal.SIGHUP)
        for _ in served:
            await server.line(r"worker (\d+) replaces")
        after = set[str]()
        with trio.fail_after(PATIENCE):
            while len(after - served) < 2:  # an old worker may have accepted one connection more
                after.add(await pid_of(url))
        assert after - served <= {
            re.findall(r'worker="(\d+)"', labels)[0] for labels, _ in CALLS.findall(await page(port))
        }


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--metrics", "9464"], "--metrics needs --http"),
        (["--http", "0", "--metrics", "here"], "an address must be PORT or HOST:PORT"),
        (["--tcp", "0", "--access-log"], "--access-log needs --http"),
        (["--http", "0", "--record", "{file}/below"], "below: Not a directory"),
    ],
)
async def test_invalid_metrics_log_and_recording_options_are_reported_in_one_line(
    tmp_path: Path, options: list[str], told: str
) -> None:
    file = written(tmp_path / "server.py", SERVER)
    ended = await run([*TRIO_MCP, "run", file, *(option.format(file=file) for option in options)])
    assert (ended.status, ended.stderr.count("\n")) == (2, 1)
    assert told in ended.stderr


async def test_metrics_port_in_use_is_reported_in_one_line(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.prometheus", reason="the extra prometheus is not installed")
    file = written(tmp_path / "server.py", SERVER)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    taken = str(listeners[0].socket.getsockname()[1])
    for more in ([], ["--stateless", "--workers", "2"]):
        ended = await run([*TRIO_MCP, "run", file, "--http", "0", "--metrics", taken, *more])
        assert (ended.status, ended.stderr.count("\n")) == (2, 1)
        assert "--metrics: cannot listen on this address" in ended.stderr
    await listeners[0].aclose()


async def test_metrics_option_is_refused_if_the_server_sets_its_own_tracing(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.prometheus", reason="the extra prometheus is not installed")
    own = "from trio_mcp import Server\nfrom trio_mcp.otel import OpenTelemetry\nserver = Server('a', tracing={})"
    file = written(tmp_path / "a.py", own.format("OpenTelemetry()"))
    ended = await run([*TRIO_MCP, "run", file, "--http", "0", "--metrics", "0"])
    assert (ended.status, ended.stderr.count("\n")) == (2, 1)
    assert "use tracing=PrometheusPage().tracing instead" in ended.stderr


async def test_run_command_with_json_log_format_writes_each_log_line_as_json(tmp_path: Path) -> None:
    file = written(tmp_path / "server.py", SERVER)
    async with running("run", file, "--http", "0", "--access-log", "--log-format", "json") as server:
        lines = [json.loads(await server.line(r"(.*)\n"))]
        await pid_of(re.findall(AT, lines[0]["message"])[0], "fail")
        while not any("exception" in line for line in lines) or lines[-1].get("method") != "POST":
            lines.append(json.loads(await server.line(r"(.*)\n")))
    post, known = lines[-1], {"method": "POST", "path": "/mcp", "status": 200, "client": "127.0.0.1", "left": False}
    assert {**post, **known, "logger": "trio_mcp.access", "level": "INFO"} == post
    assert lines[0]["message"].startswith("serving 'measured' at")
    assert any("ZeroDivisionError: nothing" in line.get("exception", "") for line in lines)


async def test_record_option_writes_one_recording_per_session(tmp_path: Path) -> None:
    file, folder = written(tmp_path / "server.py", SERVER), tmp_path / "recordings"
    async with running("run", file, "--http", "0", "--record", str(folder)) as server:
        url = await server.line(AT)
        for _ in range(2):
            async with open_http(url, era="legacy") as client:
                await client.call_tool("pid")
        server.process.send_signal(signal.SIGTERM)
        with trio.fail_after(PATIENCE):
            assert await trio.to_thread.run_sync(server.process.wait) == 0
    files = sorted(folder.iterdir())
    assert [read_recording(path).header.role for path in files] == ["server", "server"]
    assert ["tools/call" in path.read_text() for path in files] == [True, True]
    assert folder.stat().st_mode & 0o777 == 0o700
