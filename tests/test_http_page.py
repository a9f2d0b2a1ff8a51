"""The examples of `docs/http.md` run as they stand, but for ports."""

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
from tests.patience import PATIENCE
from tests.ports import free_port

from trio_mcp import Limits, open_http, serve_http
from trio_mcp.types import HTTPOptions

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "http.md").read_text()
EXAMPLES = re.compile(r"```python\n# (\w+\.py)\n(.*?)```", flags=re.DOTALL)
BLOCKS = dict(EXAMPLES.findall(PAGE))
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL) for line in block.splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, code in [*EXAMPLES.findall((ROOT / "README.md").read_text()), *BLOCKS.items()]:
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


@pytest.mark.parametrize("typed", ["python listen.py", COMMANDS[0]])
async def test_a_server_listens_and_ends_at_a_signal(folder: Path, port: int, typed: str) -> None:
    file = folder / "listen.py"
    file.write_text(file.read_text().replace("8000", str(port)))
    words = [word.replace("8000", str(port)) for word in shlex.split(typed)]
    async with running(folder, words, port) as process:
        assert await processed(f"http://127.0.0.1:{port}/mcp") == "processed 2 items"
        process.send_signal(signal.SIGTERM)
        with trio.fail_after(PATIENCE):
            assert await process.wait() == 0


async def test_a_server_speaks_tls(folder: Path, port: int) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    file = folder / "secure.py"
    file.write_text(file.read_text().replace("8443", str(port)).replace("mcp.example.com", "127.0.0.1"))
    async with running(folder, ["python", "secure.py"], port):
        url = f"https://127.0.0.1:{port}/mcp"
        assert await processed(url, ssl_context=trusting) == "processed 2 items"


async def test_a_server_and_its_client_run_in_one_program(folder: Path) -> None:
    with trio.fail_after(PATIENCE):
        ended = await trio.run_process([sys.executable, "remote.py"], cwd=folder, capture_stdout=True)
    assert ended.stdout == b"processed 2 items\n"


async def test_a_server_on_a_unix_socket_is_called(folder: Path, socket_folder: Path) -> None:
    with trio.fail_after(PATIENCE):
        ended = await trio.run_process(
            [sys.executable, "local.py"],
            cwd=folder,
            env={**os.environ, "XDG_RUNTIME_DIR": str(socket_folder)},
            capture_stdout=True,
        )
    assert ended.stdout == b"processed 2 items\n"
    assert os.listdir(socket_folder) == []


async def test_replicas_serve_one_session(folder: Path, port: int) -> None:
    """Which one has opened, and the other goes on with."""
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
    [("app", "/tools/mcp", "starlette"), ("app", "/tools/mcp/", "starlette"), ("several", "/batch/mcp", "fastapi")],
)
@pytest.mark.parametrize("asgi_server", ["hypercorn", "uvicorn"])
async def test_a_server_is_mounted_in_a_web_framework(
    folder: Path, port: int, module: str, path: str, framework: str, asgi_server: str
) -> None:
    pytest.importorskip(framework)
    (command,) = [each for each in COMMANDS if each.startswith(f"{asgi_server} ")]
    words = [word.replace("8000", str(port)) for word in shlex.split(command)]
    async with running(folder, [*words[:-1], f"{module}:app"], port):
        assert await processed(f"http://127.0.0.1:{port}{path}") == "processed 2 items"


def test_the_page_names_each_argument_and_each_limit_as_it_is() -> None:
    table = PAGE.split("| argument of `serve_http` |")[1].split("\n\n")[0]
    named = re.findall(r"`(\w+)`", "\n".join(line.split("|")[1] for line in table.splitlines()[2:]))
    taken = [*serve_http.__annotations__, *HTTPOptions.__annotations__]
    assert set(named) == {*taken} - {"server", "task_status", "options", "return"}
    limits = {attribute.name for attribute in attrs.fields(Limits)}
    section = PAGE.split("\n## Limits\n")[1].split("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", section)) <= limits


async def test_a_card_and_a_catalogue_are_served(folder: Path, port: int) -> None:
    file = folder / "public.py"
    file.write_text(file.read_text().replace("8000", str(port)))
    async with running(folder, ["python", "public.py"], port):
        for path, member in (("/mcp/server-card", "name"), ("/.well-known/ai-catalog.json", "entries")):
            with await trio.to_thread.run_sync(urlopen, f"http://127.0.0.1:{port}{path}") as answer:
                assert member in json.load(answer)
