"""The commands with a server whose results break the specification."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
import trio
from tests.cli.commands import TRIO_MCP, run, written
from tests.patience import PATIENCE
from tests.proxying.test_odd_results import CAPABILITIES, RESULTS, UNKNOWN

from trio_mcp import open_stdio
from trio_mcp.types import Implementation, UnknownContent

SERVER = """
    import json, sys

    answers = json.loads({answers!r})
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        result = answers.get(message["method"])
        reply = {{"result": result}} if result else {{"error": {{"code": -32601, "message": "Method not found"}}}}
        print(json.dumps({{"jsonrpc": "2.0", "id": message["id"], **reply}}), flush=True)
"""


@pytest.fixture
def odd(tmp_path: Path) -> str:
    """The command of the server."""
    opening = {"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES, "serverInfo": {"name": "odd"}}
    answers = json.dumps({**RESULTS, "initialize": opening})
    return shlex.join([sys.executable, written(tmp_path / "odd.py", SERVER.format(answers=answers))])


async def test_inspect_command_shows_readable_parts_and_faults_of_a_nonconforming_server(odd: str) -> None:
    ended = await run([*TRIO_MCP, "inspect", odd])
    assert ended.status == 0, ended
    assert all(word in ended.stdout for word in ("odd", "good", "bare", "a:b"))
    assert all(fault in ended.stderr for fault in ("$.capabilities.tools", "missing 'version'"))
    assert all(
        fault in ended.stdout for fault in ("$.tools[0].annotations.readOnlyHint", "missing 'name' @ $.tools[3]")
    )
    assert "Traceback" not in ended.stderr


async def test_inspect_command_prints_valid_json_for_a_nonconforming_server(odd: str) -> None:
    ended = await run([*TRIO_MCP, "inspect", odd, "--json"])
    assert ended.status == 0, ended
    shown = json.loads(ended.stdout)
    assert shown["server"] == {"name": "odd", "version": ""}
    assert shown["capabilities"]["tools"] == {}
    assert [tool["name"] for tool in shown["tools"]] == ["good", "bare"]
    assert shown["tools"][0]["annotations"] == {"title": "T"}


@pytest.mark.parametrize(
    ("command", "arguments", "printed"),
    [
        ("call", ["good"], 'useful\n{"type": "hologram", "data": [1]}\n'),
        ("prompt", ["p"], "useful"),
        ("read", ["a:b"], 'useful{"a": 1}'),
        ("complete", ["p", "a=u"], "useful\n"),
    ],
)
async def test_command_prints_the_readable_parts_of_a_result_that_violates_the_protocol(
    odd: str, command: str, arguments: list[str], printed: str
) -> None:
    ended = await run([*TRIO_MCP, command, odd, *arguments])
    assert (ended.status, printed in ended.stdout) == (0, True), ended


async def test_client_of_a_bridge_can_use_a_nonconforming_server(odd: str) -> None:
    with trio.fail_after(PATIENCE):
        async with open_stdio([*TRIO_MCP, "bridge", odd], connect_timeout=PATIENCE) as client:
            assert client.server_info == Implementation("odd", "")
            assert client.server_capabilities.tools is not None
            assert [tool.name async for tool in client.list_tools()] == ["good", "bare"]
            result = await client.call_tool("good")
            assert (result.text, result.content[1]) == ("useful", UnknownContent(UNKNOWN))
