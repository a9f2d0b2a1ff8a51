"""`terminal_options`: applications prompt their user in the terminal as the commands do."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.cli.terminals import answer, in_terminal, plain

from trio_mcp.cli import terminal_options

_HOST = """
import signal
import trio
from trio_mcp import RequestContext, Server, cancel_on_interrupt
from trio_mcp.hosting import MemberDescription, open_group
from trio_mcp.cli import terminal_options

server = Server("desk")

@server.tool
async def order(ctx: RequestContext) -> str:
    return str((await ctx.elicit("Dish?", {"type": "object", "properties": {"dish": {"type": "string"}}})).content)

async def main():
    async with open_group({"kitchen": MemberDescription(server)}, **terminal_options(log_level="info")) as group:
        with cancel_on_interrupt() as scope:
            print(await group.call_tool("kitchen__order"))
        if scope.cancelled_caught:
            print("cancelled")
        print((await group.call_tool("kitchen__order")).content[0].text)

trio.run(main)
"""


async def test_ctrl_c_in_a_terminal_elicitation_form_of_a_group_cancels_only_that_form(tmp_path: Path) -> None:
    host = tmp_path / "host.py"
    host.write_text(_HOST)
    async with in_terminal([sys.executable, str(host)]) as terminal:
        await answer(terminal, ("dish (optional): ", "\x03"), ("cancelled", ""))
        terminal.shown = terminal.shown.partition("cancelled")[2]
        await answer(terminal, ("dish (optional): ", "soup\n"), ("edit [yes]: ", "\n"))
        assert await terminal.read_to_end() == 0
    shown = plain(terminal.shown)
    assert "kitchen asks: Dish?" in shown
    assert shown.endswith("{'dish': 'soup'}\n")


def test_client_options_for_the_terminal_are_empty_if_there_is_no_terminal() -> None:
    assert terminal_options() == {}
