"""The command line with servers of other software."""

import json
import sys
from pathlib import Path

import pytest
from tests.cli.commands import TRIO_MCP, run
from tests.cli.terminals import answer, in_terminal, plain
from tests.peers.installed import needs_other_sdks

SERVERS = Path(__file__).parent / "servers"
CALL = [*TRIO_MCP, "call"]
INSPECT = [*TRIO_MCP, "inspect"]

pytestmark = [needs_other_sdks, pytest.mark.parametrize("kind", ["official", "fastmcp"])]


async def test_inspect_command_lists_the_tools_of_servers_of_other_sdks(kind: str):
    ended = await run([*INSPECT, "--json", "--", sys.executable, str(SERVERS / f"{kind}_server.py")])
    assert ended.status == 0
    offers = json.loads(ended.stdout)
    assert offers["server"]["name"] == "peer"
    assert {"echo", "add"} <= {tool["name"] for tool in offers["tools"]}


async def test_call_command_calls_tools_of_servers_of_other_sdks(kind: str):
    command = [sys.executable, str(SERVERS / f"{kind}_server.py")]
    counted = await run([*CALL, "count", "to=2", "--", *command])
    assert (counted.status, counted.stdout) == (0, "2\n")
    assert "progress 2 of 2: step 2" in counted.stderr
    failed = await run([*CALL, "fail", "--", *command])
    assert failed.status == 1
    assert "no luck today" in failed.stderr


async def test_call_command_prompts_in_the_terminal_for_elicitations_from_servers_of_other_sdks(kind: str):
    command = [sys.executable, str(SERVERS / f"{kind}_server.py")]
    async with in_terminal([*CALL, "ask_user", "message=Which?", "--era", "legacy", "--", *command]) as terminal:
        await answer(terminal, ("olour: ", "red\n"), ("edit [yes]: ", "\n"))
        assert await terminal.read_to_end() == 0
    shown = plain(terminal.shown)
    assert "peer asks: Which?" in shown
    assert shown.endswith("accept red\n")
