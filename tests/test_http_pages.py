"""The examples in `docs/deployment` run as they stand, but for ports."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import attrs
import pytest
import trio
import trustme
from tests.pages import Page, examples_in
from tests.patience import PATIENCE
from tests.ports import free_port

from trio_mcp import Limits, open_http, open_stdio, open_websocket, serve_http
from trio_mcp.types import HTTPOptions

HTTP, ASGI = Page("deployment/http.md").text, Page("deployment/asgi.md").text
EXAMPLES = {**examples_in(Page("get-started/quickstart.md").text), **examples_in(Page("deployment").text)}


def commands(page: str) -> list[str]:
    return [line for block in re.findall(r"```sh\n(.*?)```", page, flags=re.DOTALL) for line in block.splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, code in EXAMPLES.items():
        (tmp_path / name).write_text(code)
    return tmp_path


@pytest.fixture
def port() -> int:
    return free_port()


@asynccontextmanager
async def running(folder: Path, words: list[str], port: int) -> AsyncGenerator[trio.Process]:
    """Run a command in ``folder`` that listens on ``port``."""
    modules = {"trio-mcp": "trio_mcp.cli", "hypercorn": "hypercorn", "uvicorn": "uvicorn"}
    started = ["-m", modules[words[0]]] if words[0] in modules else []
    command = [sys.executable, *started, *words[1:]]
    process = await trio.lowlevel.open_process(command, cwd=folder, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        with trio.fail_after(PATIENCE):
            while True:
                try:
                    stream = await trio.open_tcp_stream("127.0.0.1", port)
                    break
                except OSError:
                    assert process.poll() is None, "it listens, and does not end"
            await stream.aclose()
        yield process
    finally:
        with suppress(ProcessLookupError):  # it has ended
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def processed(url: str, **options: ssl.SSLContext) -> str:
    with trio.fail_after(PATIENCE):
        async with open_http(url, http_proxy=None, **options) as client:
            return (await client.call_tool("process_batch", {"items": ["a", "b"]})).text


@pytest.mark.parametrize("typed", ["python listen.py", commands(HTTP)[0]])
async def test_http_example_serves_until_sigterm(folder: Path, port: int, typed: str) -> None:
    file = folder / "listen.py"
    file.write_text(file.read_text().replace("8000", str(port)))
    words = [word.replace("8000", str(port)) for word in shlex.split(typed)]
    async with running(folder, words, port) as process:
        assert await processed(f"http://127.0.0.1:{port}/mcp") == "processed 2 items"
        process.send_signal(signal.SIGTERM)
        with trio.fail_after(PATIENCE):
            assert await process.wait() == 0


async def test_https_example_serves_with_its_ssl_context(folder: Path, port: int) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    file = folder / "serve_https.py"
    file.write_text(file.read_text().replace("8443", str(port)).replace("mcp.example.com", "127.0.0.1"))
    async with running(folder, ["python", "serve_https.py"], port):
        url = f"https://127.0.0.1:{port}/mcp"
        assert await processed(url, ssl_context=trusting) == "processed 2 items"


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("call_over_http.py", b"processed 2 items\n"),
        ("call_over_websocket.py", b"processed 1 items\n"),
    ],
)
async def test_documented_example_with_server_and_client_prints_the_documented_result(
    folder: Path, name: str, printed: bytes
) -> None:
    with trio.fail_after(PATIENCE):
        ended = await trio.run_process([sys.executable, name], cwd=folder, capture_stdout=True)
    assert ended.stdout == printed


async def test_unix_socket_example_answers_calls(folder: Path, socket_folder: Path) -> None:
    with trio.fail_after(PATIENCE):
        ended = await trio.run_process(
            [sys.executable, "call_over_unix_socket.py"],
            cwd=folder,
            env={**os.environ, "XDG_RUNTIME_DIR": str(socket_folder)},
            capture_stdout=True,
        )
    assert ended.stdout == b"processed 1 items\n"
    assert os.listdir(socket_folder) == []


async def test_websocket_example_answers_calls(folder: Path, port: int) -> None:
    file = folder / "serve_websocket.py"
    file.write_text(file.read_text().replace("8765", str(port)))
    async with running(folder, ["python", "serve_websocket.py"], port):
        with trio.fail_after(PATIENCE):
            async with open_websocket(f"ws://127.0.0.1:{port}/mcp") as client:
                assert (await client.call_tool("process_batch", {"items": ["a"]})).text == "processed 1 items"


async def test_stdio_example_answers_calls(folder: Path) -> None:
    with trio.fail_after(PATIENCE):
        async with open_stdio([sys.executable, str(folder / "serve_on_stdio.py")]) as client:
            assert (await client.call_tool("process_batch", {"items": ["a"]})).text == "processed 1 items"


async def test_health_check_example_answers_liveness_and_readiness(folder: Path, port: int) -> None:
    file = folder / "serve_with_health.py"
    file.write_text(file.read_text().replace("8000", str(port)))
    async with running(folder, ["python", "serve_with_health.py"], port):
        for path in ("/healthz", "/readyz"):
            with await trio.to_thread.run_sync(urlopen, f"http://127.0.0.1:{port}{path}") as answer:
                assert answer.status == 200


async def test_replica_example_answers_a_session_opened_at_another_replica(folder: Path, port: int) -> None:
    other = free_port()
    asked = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}

    def post(port: int, method: str, params: dict[str, Any], **headers: str) -> Any:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        request = Request(f"http://127.0.0.1:{port}/mcp", body, {**asked, **headers})
        with urlopen(request, timeout=PATIENCE) as answer:
            return answer.headers["Mcp-Session-Id"], json.load(answer)

    async with (
        running(folder, ["python", "replicas.py", str(port)], port),
        running(folder, ["python", "replicas.py", str(other)], other),
    ):
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "one", "version": "1"}}
        session, _ = await trio.to_thread.run_sync(post, port, "initialize", hello)
        call = partial(post, **{"Mcp-Session-Id": session})
        params = {"name": "process_batch", "arguments": {"items": ["a", "b"]}}
        _, reply = await trio.to_thread.run_sync(call, other, "tools/call", params)
        assert reply["result"]["content"][0]["text"] == "processed 2 items"


@pytest.mark.parametrize(
    ("module", "path", "framework"),
    [
        ("starlette_app", "/tools/mcp", "starlette"),
        ("starlette_app", "/tools/mcp/", "starlette"),
        ("fastapi_app", "/batch/mcp", "fastapi"),
    ],
)
@pytest.mark.parametrize("asgi_server", ["hypercorn", "uvicorn"])
async def test_asgi_example_mounts_the_server_in_each_framework(
    folder: Path, port: int, module: str, path: str, framework: str, asgi_server: str
) -> None:
    pytest.importorskip(framework)
    (command,) = [each for each in commands(ASGI) if each.startswith(f"{asgi_server} ")]
    words = [word.replace("8000", str(port)) for word in shlex.split(command)]
    async with running(folder, [*words[:-1], f"{module}:app"], port):
        assert await processed(f"http://127.0.0.1:{port}{path}") == "processed 2 items"


def test_documented_table_of_serve_http_arguments_is_complete() -> None:
    table = HTTP.split("| argument of `serve_http` |")[1].split("\n\n")[0]
    named = re.findall(r"`(\w+)`", "\n".join(line.split("|")[1] for line in table.splitlines()[2:]))
    taken = [*serve_http.__annotations__, *HTTPOptions.__annotations__]
    assert set(named) == {*taken} - {"server", "task_status", "options", "return"}
    limits = {attribute.name for attribute in attrs.fields(Limits)}
    section = Page("deployment/http-limits.md").text
    assert set(re.findall(r"`(\w+)`", section)) <= limits


async def test_server_card_example_serves_the_card_and_catalog(folder: Path, port: int) -> None:
    file = folder / "serve_with_card.py"
    file.write_text(file.read_text().replace("8000", str(port)))
    async with running(folder, ["python", "serve_with_card.py"], port):
        for path, member in (("/mcp/server-card", "name"), ("/.well-known/ai-catalog.json", "entries")):
            with await trio.to_thread.run_sync(urlopen, f"http://127.0.0.1:{port}{path}") as answer:
                assert member in json.load(answer)
