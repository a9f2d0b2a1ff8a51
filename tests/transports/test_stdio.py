from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.patience import PATIENCE

SERVE = "import trio; from trio_mcp import Server, serve_stdio; trio.run(serve_stdio, Server('s'))"
PING = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}) + "\n"


@pytest.mark.parametrize(("closed", "name"), [("<&-", "input"), (">&-", "output")])
def test_stdio_server_with_a_closed_standard_stream_exits_with_an_error_that_names_the_stream(
    closed: str, name: str
) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", SERVE],
        input=PING if closed == ">&-" else None,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 1
    assert f"standard {name} is not open" in done.stderr
    assert done.stdout == ""


def test_stdio_server_without_standard_error_serves_requests() -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", SERVE],
        input=PING,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0
    assert json.loads(done.stdout) == {"jsonrpc": "2.0", "id": 1, "result": {}}


def test_server_writes_to_the_real_stdout_even_if_sys_stdout_was_replaced() -> None:
    script = "import io, sys; sys.stdout = io.TextIOWrapper(io.BytesIO()); " + SERVE  # as test runners put there
    done = subprocess.run([sys.executable, "-c", script], input=PING, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"jsonrpc": "2.0", "id": 1, "result": {}}
