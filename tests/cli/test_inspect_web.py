"""``trio-mcp inspect --web``: serves the web inspector until Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from pathlib import Path

import pytest
import trio
from tests.cli.commands import TRIO_MCP, run, served_page
from tests.patience import PATIENCE

INSPECT = [*TRIO_MCP, "inspect", "--web"]
DESK = str(Path(__file__).with_name("desk.py"))


async def status_of(address: str) -> int:
    """The status of the answer to a GET."""
    found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)(/.*)", address)
    assert found is not None
    async with await trio.open_tcp_stream("127.0.0.1", int(found[1])) as stream:
        head = f"GET {found[2]} HTTP/1.1\r\nHost: 127.0.0.1:{found[1]}\r\nConnection: close\r\n\r\n"
        await stream.send_all(head.encode())
        return int(b"".join([part async for part in stream]).split()[1])


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_web_inspector_prints_a_url_with_token_and_serves_until_ctrl_c(era: str):
    async with served_page(DESK, "--era", era) as (process, address):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", address)
        assert await status_of(address) == 200
        assert await status_of(address[:-3] + "/") == 403
        os.kill(process.pid, signal.SIGINT)
        with trio.fail_after(PATIENCE):
            assert await process.ended() == 0


async def test_web_inspector_does_not_start_without_a_connection():
    ended = await run([*INSPECT, "--", "/no/such/program"])
    assert (ended.status, ended.stdout) == (3, "")
    assert "could not be started" in ended.stderr


async def test_web_inspector_reports_a_port_in_use():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = await run([*INSPECT, DESK, "--port", str(port)])
    assert (ended.status, ended.stdout) == (2, "")
    assert f"cannot serve the web inspector on port {port}" in ended.stderr


async def test_inspect_command_refuses_the_web_and_json_options_together():
    ended = await run([*INSPECT, "--json", DESK])
    assert (ended.status, "cannot be combined" in ended.stderr) == (2, True)


async def test_inspect_without_web_option_does_not_import_the_web_inspector():
    code = "import trio_mcp.cli.commands.inspect, sys; print([name for name in sys.modules if '.inspecting' in name])"
    done = await trio.run_process([sys.executable, "-c", code], capture_stdout=True)
    assert done.stdout == b"[]\n"
