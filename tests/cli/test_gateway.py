"""``trio-mcp gateway``: serves the servers of a configuration file as one server."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.cli.commands import TRIO_MCP, answer_to, quick, run, running, written
from tests.patience import PATIENCE

from trio_mcp import PeerError, open_http, open_stdio

SERVER = """
    import os, signal
    from trio_mcp import Server

    server = Server("behind")

    @server.tool
    async def pid() -> int:
        return os.getpid()

    @server.tool
    async def die() -> int:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    """A file with two servers that work, one that does not, and one entry that makes no sense."""
    behind = written(tmp_path / "behind.py", SERVER)
    program, *words = quick("run", behind)
    entry = {"command": program, "args": words}
    servers = {"one": entry, "two": entry, "none": {"command": str(tmp_path / "none")}, "bad": {"type": "stdio"}}
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return str(path)


def add_entry(config: str, name: str, entry: dict[str, Any]) -> None:
    entries = json.loads(Path(config).read_text())
    entries["mcpServers"][name] = entry
    Path(config).write_text(json.dumps(entries))


def entry_of(config: str, name: str) -> dict[str, Any]:
    return json.loads(Path(config).read_text())["mcpServers"][name]


async def test_gateway_over_http_merges_servers_and_restarts_a_server_that_dies(config: str) -> None:
    async with running("gateway", "--config", config, "--http", "0") as gate:
        await gate.line("(bad) in .* is left out")
        url = await gate.line(r"serving 'mcp' at (\S+);")
        await gate.line("none is (restarting)")
        with trio.fail_after(PATIENCE):
            async with open_http(url) as client:
                wanted = {f"{name}__{tool}" for name in ("one", "two") for tool in ("pid", "die")}
                assert {tool.name async for tool in client.list_tools()} == wanted
                pids = [(await client.call_tool(f"{name}__pid")).text for name in ("one", "two", "one")]
                assert pids[0] == pids[2] != pids[1]
                with pytest.raises(PeerError, match="'one', a server behind this gateway, is gone"):
                    await client.call_tool("one__die")
                assert {tool.name async for tool in client.list_tools()} == wanted
                assert (await client.call_tool("two__pid")).text == pids[1]
                assert (await client.call_tool("one__pid")).text not in pids
        gate.process.send_signal(signal.SIGTERM)
        with trio.fail_after(PATIENCE):
            assert await gate.process.ended() == 0


async def test_gateway_over_stdio_serves_the_program_that_started_it(config: str) -> None:
    with trio.fail_after(PATIENCE):
        async with open_stdio(quick("gateway", "--config", config)) as client:
            assert (await client.call_tool("two__pid")).text.isdigit()


async def test_unresponsive_server_does_not_delay_the_gateway_or_other_servers(config: str) -> None:
    add_entry(config, "mute", {"command": sys.executable, "args": ["-c", "import sys; sys.stdin.read()"]})
    async with running("gateway", "--config", config, "--http", "0") as gate:
        url = await gate.line(r"serving 'mcp' at (\S+);")
        with trio.fail_after(PATIENCE):
            async with open_http(url) as client:
                assert (await client.call_tool("one__pid")).text.isdigit()


@pytest.mark.parametrize("storage", [["--stateless"], ["--shared", "{folder}/shared.db"]], ids=["stateless", "shared"])
async def test_gateway_with_workers_serves_all_servers_on_one_port(
    config: str, tmp_path: Path, storage: list[str]
) -> None:
    options = [each.format(folder=tmp_path) for each in storage]
    async with running("gateway", "--config", config, "--http", "0", "--workers", "2", "--health", *options) as gate:
        url = await gate.line(r"serving 'mcp' at (\S+) with 2 workers;")
        assert (await answer_to(url, "GET", "/readyz")).startswith(b"HTTP/1.1 200 ")
        with trio.fail_after(PATIENCE):
            for _ in range(4):
                async with open_http(url) as client:
                    assert (await client.call_tool("two__pid")).text.isdigit()
        gate.process.send_signal(signal.SIGTERM)
        with trio.fail_after(PATIENCE):
            assert await gate.process.ended() == 0


async def test_gateway_with_issuer_option_requires_tokens(config: str) -> None:
    options = ["--issuer", "https://issuer.example", "--resource", "https://mcp.example/mcp"]
    async with running("gateway", "--config", config, "--http", "0", *options) as gate:
        url = await gate.line(r"serving 'mcp' at (\S+);")
        assert (await answer_to(url, "POST", "/mcp")).startswith(b"HTTP/1.1 401 ")


async def test_gateway_with_searchable_option_lists_only_search_tools_and_the_pinned_server_tools(config: str) -> None:
    with trio.fail_after(PATIENCE):
        command = quick("gateway", "--config", config, "--searchable", "--pinned", "two__pid")
        async with open_stdio(command) as client:
            assert [tool.name async for tool in client.list_tools()] == ["search_tools", "call_tool", "two__pid"]
            assert (await client.call_tool("call_tool", {"name": "one__pid"})).text.isdigit()


async def test_gateway_shortens_tool_names_to_max_name_length(config: str) -> None:
    add_entry(config, "m" * 70, entry_of(config, "one"))
    with trio.fail_after(PATIENCE):
        async with open_stdio(quick("gateway", "--config", config, "--max-name-length", "64")) as client:
            names = [tool.name async for tool in client.list_tools()]
            assert {"one__pid", "two__pid"} <= set(names)
            (limited,) = [name for name in names if name.startswith("mm") and "_pid_" in name]
            assert len(limited) <= 64
            assert (await client.call_tool(limited)).text.isdigit()


@pytest.mark.parametrize(
    ("text", "arguments", "wanted"),
    [
        ("{", [], "mcp.json"),
        ('{"mcpServers": {}}', [], "has no usable server"),
        ('{"mcpServers": {"a": {"command": "a", "enabled": false}}}', [], "has no usable server"),
        ('{"mcpServers": {"": {"command": "a"}}}', [], "'' in /"),
        ('{"mcpServers": {}}', ["--pinned", "one__pid"], "--pinned needs --searchable"),
        ('{"mcpServers": {}}', ["--max-name-length", "20"], "20 is not in the range 32<=x<=128"),
        ('{"mcpServers": {}}', ["--bearer-env", "TOKEN"], "--bearer-env works for a single server"),
        ('{"mcpServers": {"a": {"command": "a"}}}', ["--health"], "--health needs --http"),
        ('{"mcpServers": {"a": {"command": "a"}}}', ["--http", "0", "--workers", "2"], "--workers needs --shared"),
        ('{"mcpServers": {"a": {"command": "a"}}}', ["--http", "0", "--scope", "x"], "need --issuer"),
    ],
)
async def test_invalid_gateway_configuration_is_a_usage_error(
    tmp_path: Path, text: str, arguments: list[str], wanted: str
) -> None:
    (tmp_path / "mcp.json").write_text(text)
    ended = await run([*TRIO_MCP, "gateway", "--config", str(tmp_path / "mcp.json"), *arguments])
    assert ended.status == 2
    assert wanted in ended.stderr
    assert "Traceback" not in ended.stderr
