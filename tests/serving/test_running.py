"""run: a server on a transport, in a program that does nothing else."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import trio

from trio_mcp import Client, Limits, Server, open_http, open_stdio, open_unix, run
from trio_mcp.serving import accepting, websocket
from trio_mcp.serving.connections import serve_tcp, serve_unix
from trio_mcp.serving.http.serve import serve_http
from trio_mcp.serving.process import serve_stdio

from ..patience import PATIENCE

RUN: Any = run
PROGRAM = """
import sys
from trio_mcp import Server, run

server = Server("program")

@server.tool
def knock() -> str:
    return "who is there"

run(server, {})
print("served", file=sys.stderr)
"""


def accepts_connections(path: Path) -> bool:
    """Whether a server listens at ``path``. The file exists a moment before that."""
    with socket.socket(socket.AF_UNIX) as visitor:
        return visitor.connect_ex(str(path)) == 0


async def knock(client: Client) -> str:
    return (await client.call_tool("knock")).text


async def test_server_run_serves_stdio_until_the_end_of_input() -> None:
    with trio.fail_after(PATIENCE):
        async with open_stdio([sys.executable, "-c", PROGRAM.format("")], stderr=subprocess.DEVNULL) as client:
            assert await knock(client) == "who is there"


@pytest.mark.parametrize("transport", ["http", "unix"])
async def test_server_run_serves_until_sigint_and_then_returns(transport: str, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    options = f'"http", unix={str(path)!r}' if transport == "http" else f'"unix", path={str(path)!r}'
    command = [sys.executable, "-c", PROGRAM.format(options)]
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            process: trio.Process = await nursery.start(
                partial(trio.run_process, command, capture_stderr=True, check=False)
            )
            while not accepts_connections(path):  # noqa: ASYNC110 - another process makes it
                await trio.sleep(0.01)
            url = f"http+unix://{quote(str(path), safe='')}/mcp"
            async with open_http(url) if transport == "http" else open_unix(path) as client:
                assert await knock(client) == "who is there"
            process.send_signal(signal.SIGINT)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("transport", "function"),
    [
        ("stdio", serve_stdio),
        ("http", serve_http),
        ("websocket", websocket.serve_websocket),
        ("tcp", serve_tcp),
        ("unix", serve_unix),
    ],
)
def test_server_run_passes_its_options_to_the_serve_function_of_the_transport(
    transport: str, function: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(trio, "run", started.append)
    server = Server("s")
    RUN(server, transport, stateless=True)
    assert (started[0].func, started[0].args, started[0].keywords) == (function, (server,), {"stateless": True})


@pytest.mark.parametrize("transport", ["sse", "streamable-http", ""])
def test_server_run_with_an_unknown_transport_raises_an_error_that_lists_the_transports(transport: str) -> None:
    with pytest.raises(ValueError, match=f"one of 'stdio', 'http', 'websocket', 'tcp', 'unix', not '{transport}'"):
        RUN(Server("s"), transport)


def test_server_run_with_a_port_but_no_transport_raises_an_error_with_instructions() -> None:
    with pytest.raises(TypeError, match=r'port= is not allowed with the transport stdio: write run\(server, "http"'):
        RUN(Server("s"), port=8000)


@pytest.mark.parametrize("transport", ["http", "websocket", "tcp"])
def test_server_run_with_a_misspelled_option_raises_and_suggests_the_right_name(transport: str) -> None:
    with pytest.raises(TypeError, match="no option 'stateles'; did you mean stateless="):
        RUN(Server("s"), transport, port=0, stateles=True)


async def test_server_run_inside_trio_raises_an_error_that_names_the_function_to_await() -> None:
    with pytest.raises(RuntimeError, match=r"await serve_http\(server, \.\.\.\)"):
        run(Server("s"), "http", port=0)


def test_serving_options_function_returns_only_the_options_common_to_all_transports() -> None:
    limits = Limits(max_queued=1)
    options: accepting.WebSocketOptions = {"path": "/mcp", "limits": limits, "handle_signals": False, "stateless": True}
    assert accepting.serving_options(options) == {"limits": limits, "handle_signals": False, "stateless": True}


def test_server_run_with_arguments_in_the_wrong_order_raises_type_error_and_shows_the_correct_call() -> None:
    with pytest.raises(TypeError, match=r"the first argument of run\(\) must be the server. Write\n    run\(server\)$"):
        RUN(serve_stdio, Server("program"))
