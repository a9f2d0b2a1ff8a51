"""What a server and a client have loaded at their first answer: hosts start them by the dozen."""

import json
import subprocess
import sys
from typing import Any

import pytest

_COUNT = """
def report():
    ours = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "trio_mcp"}
    classes = {
        each
        for name, module in ours.items()
        for each in vars(module).values()
        if isinstance(each, type) and each.__module__ == name and "__attrs_attrs__" in vars(each)
    }
    compiled = [each.__name__ for each in classes if isinstance(vars(each)["__attrs_attrs__"], tuple)]
    print(json.dumps({"modules": list(sys.modules), "classes": len(classes), "compiled": compiled}), file=sys.stderr)
"""

_SERVER = f"""
import json, sys
import trio
from trio_mcp import Server, serve_stdio
{_COUNT}
server = Server("small")

@server.tool
async def echo(text: str) -> str:
    return text

trio.run(serve_stdio, server)
report()
"""

_HTTP = f"""
import json, sys
from functools import partial
import trio
from trio_mcp import Server, serve_http
from trio_mcp.auth import Protected
{_COUNT}
server = Server("small")

@server.tool
async def echo(text: str) -> str:
    return text

async def main():
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(serve_http, server, port=0))
        port = listeners[0].socket.getsockname()[1]
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        body = sys.stdin.readline().encode()
        await stream.send_all(
            b"POST /mcp HTTP/1.1\\r\\nHost: 127.0.0.1:%d\\r\\nContent-Type: application/json\\r\\n"
            b"Accept: application/json, text/event-stream\\r\\n"
            b"Content-Length: %d\\r\\n\\r\\n%s" % (port, len(body), body)
        )
        print((await stream.receive_some()).splitlines()[0].decode())
        nursery.cancel_scope.cancel()

trio.run(main)
report()
"""

_CLIENT = f"""
import json, sys
import trio
from trio_mcp import Client, open_stdio
{_COUNT}
async def main():
    async with open_stdio([sys.executable, sys.argv[1]]) as client:
        print((await client.call_tool("echo", {{"text": "hi"}})).content[0].text)
    report()

trio.run(main)
"""

_INITIALIZE: dict[str, Any] = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}
_MESSAGES: list[dict[str, Any]] = [
    {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": _INITIALIZE},
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
    {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "echo", "arguments": {"text": "hi"}}},
]
_MODELS = "async def echo(text: Text) -> Text:\n    return text"
_WITH_MODELS: list[dict[str, Any]] = [
    *_MESSAGES[:2],
    {**_MESSAGES[2], "params": {"name": "echo", "arguments": {"text": {"text": "hi"}}}},
]


RUNNING_TASKS = {"trio_mcp.tasks.host", "trio_mcp.tasks.records", "trio_mcp.server.context.tasks"}


def run(code: str, *args: object, messages: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    """Return what the program printed, and its report."""
    lines = "".join(json.dumps(message) + "\n" for message in messages)
    ended = subprocess.run(
        [sys.executable, "-c", code, *map(str, args)], input=lines, capture_output=True, text=True, check=True
    )
    return ended.stdout, json.loads(ended.stderr.splitlines()[-1])


def ours(report: dict[str, Any]) -> list[str]:
    return [name for name in report["modules"] if name.partition(".")[0] == "trio_mcp"]


def rooms(report: dict[str, Any]) -> set[str]:
    return {name.split(".")[1] for name in report["modules"] if name.startswith("trio_mcp.")}


def test_stdio_server_imports_no_client_or_network_modules():
    said, report = run(_SERVER, messages=_MESSAGES)
    assert [json.loads(line)["id"] for line in said.splitlines()] == [1, 2]
    assert not rooms(report) & {"client", "auth", "connecting", "hosting", "proxying", "testing", "cli", "otel"}
    unused = {"trio_mcp.stores.task_store", "trio_mcp.transports.http", "trio_mcp.server.middleware"}
    assert not (unused | RUNNING_TASKS) & set(report["modules"])
    assert not {"cattrs", "trio_mcp.protocol.cattrs_converters"} & set(report["modules"])
    assert len(ours(report)) <= 111
    assert report["classes"] <= 154
    assert report["compiled"] == []


def test_http_server_imports_no_client_modules_for_the_first_response():
    said, report = run(_HTTP, messages=_MESSAGES[:1])
    assert said == "HTTP/1.1 200 OK\n"
    assert not rooms(report) & {"client", "connecting", "hosting", "proxying", "testing", "cli", "otel"}
    unused = {"cattrs", "csv", "email", "h11", "importlib.metadata", "trio_mcp.transports.http_client.client"}
    assert not (unused | RUNNING_TASKS) & set(report["modules"])
    assert len(ours(report)) <= 145
    assert report["classes"] <= 178
    assert report["compiled"] == []


def test_server_with_pydantic_models_imports_only_one_additional_module():
    pytest.importorskip("pydantic", reason="needs pydantic: pip install -e '.[test]'")
    model = "import pydantic\nclass Text(pydantic.BaseModel):\n    text: str\n"
    code = model + _SERVER.replace("async def echo(text: str) -> str:\n    return text", _MODELS)
    plain, models = ours(run(_SERVER, messages=_MESSAGES)[1]), ours(run(code, messages=_WITH_MODELS)[1])
    assert set(models) - set(plain) == {"trio_mcp.protocol.pydantic_models"}


def test_stdio_client_imports_no_server_or_network_modules(tmp_path: Any):
    (tmp_path / "server.py").write_text(_SERVER)
    said, report = run(_CLIENT, tmp_path / "server.py", messages=[])
    assert said == "hi\n"
    assert not rooms(report) & {"server", "serving", "auth", "hosting", "proxying", "testing", "cli", "otel"}
    assert not {"trio_mcp.tasks.host", "cattrs"} & set(report["modules"])
    assert len(ours(report)) <= 93
    assert report["classes"] <= 161
    assert len(report["compiled"]) <= 3


def test_importing_the_package_imports_no_submodules():
    code = "import sys, trio_mcp; print(*[name for name in sys.modules if name.startswith('trio')])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["trio_mcp"]


def test_redis_storage_imports_no_redis_client_before_connecting():
    code = (
        "import sys; from trio_mcp import RedisStorage; "
        "RedisStorage('redis://127.0.0.1'); print('coredis' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["False"]


@pytest.mark.parametrize("state", ["enable", "disable"])
def test_lazy_import_leaves_the_garbage_collector_enabled_or_disabled_as_before(state: str):
    code = f"import gc, trio_mcp; gc.{state}(); trio_mcp.Server; print(gc.isenabled())"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == str(state == "enable")


@pytest.mark.skipif(sys.version_info[:2] == (3, 12), reason="the interpreter itself has frozen objects in 3.12")
def test_lazy_import_triggers_no_garbage_collection_of_imported_objects():
    code = (
        "import gc, trio_mcp; looks = []; gc.collect(); gc.callbacks.append(lambda *look: looks.append(look)); "
        "trio_mcp.Server; made = [[]]; print(looks)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_lazy_import_does_not_unfreeze_objects_that_the_program_froze_for_the_garbage_collector():
    code = "import gc, trio_mcp; gc.freeze(); trio_mcp.Server; print(gc.get_freeze_count() > 0)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "True"
