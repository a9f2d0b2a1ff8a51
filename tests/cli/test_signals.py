"""Signals and timeouts end a command even during a computation."""

import os
import signal
import sys
from pathlib import Path

import pytest
import trio
from tests.cli.commands import TRIO_MCP, Running, run, written
from tests.cli.terminals import in_terminal
from tests.patience import LONG, PATIENCE

STUCK = """
import sys
import trio
from trio_mcp.cli.signals import Signals

async def main():
    with Signals() as signals, signals.limited({limit}):
        print("stuck", file=sys.stderr, flush=True)
        while True:
            pass

trio.run(main)
"""
CALL = """
import sys
from trio_mcp.cli.commands import requests

def stuck(*_):
    print("stuck", file=sys.stderr, flush=True)
    while True:
        pass

requests.arguments_typed = stuck
from trio_mcp.cli.main import main
main()
"""
DESK = str(Path(__file__).with_name("desk.py"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_command_whose_event_loop_is_blocked_ends_after_one_signal(number: signal.Signals):
    process = await trio.lowlevel.open_process([sys.executable, "-c", STUCK.format(limit=None)], stderr=-1)
    stuck = Running(process, process.stderr)
    await stuck.line("(stuck)")
    os.kill(process.pid, number)
    await stuck.line(f"(trio-mcp: ended by {number.name} during a computation)")
    with trio.fail_after(PATIENCE):
        assert await process.wait() == 128 + number


async def test_commands_succeed_even_if_stderr_is_closed():
    closed = ["sh", "-c", 'exec "$@" 2>&-', "sh"]
    ended = await run([*closed, *TRIO_MCP, "inspect", "--json", DESK])
    assert ended.status == 0
    ended = await run([*closed, *TRIO_MCP, "call", "--json", DESK, "picture"])
    assert ended.status == 0
    stuck = await run([*closed, sys.executable, "-c", CALL, "call", "--timeout", "0.5", DESK, "picture"])
    assert (stuck.status, stuck.stdout) == (5, "")


async def test_command_whose_event_loop_is_blocked_still_ends_when_the_timeout_expires():
    ended = await run([sys.executable, "-c", STUCK.format(limit=0.01)])
    assert (ended.status, ended.stderr) == (
        5,
        "stuck\n\ntrio-mcp: timeout during a computation\n",
    )


async def test_call_command_that_is_blocked_ends_after_ctrl_c_and_restores_the_terminal(tmp_path: Path):
    async with in_terminal([sys.executable, written(tmp_path / "stuck.py", CALL), "call", DESK, "fail"]) as terminal:
        await terminal.read_until("stuck")
        terminal.type("\x03")
        assert await terminal.read_to_end() == 130
    assert "\x1b[?25h" in terminal.shown
    assert "Traceback" not in terminal.shown


OBEYING = """
import signal, sys
import trio
from trio_mcp.cli.signals import Signals

async def main():
    with Signals() as signals, signals.limited({limit}):
        print("ready", file=sys.stderr, flush=True)
        async for number in signals.numbers:
            print("got", signal.Signals(number).name, file=sys.stderr, flush=True)
            if number == signal.SIGHUP:
                break
    print("over", file=sys.stderr, flush=True)

trio.run(main)
"""


async def test_command_whose_event_loop_runs_handles_each_signal_in_the_event_loop():
    process = await trio.lowlevel.open_process([sys.executable, "-c", OBEYING.format(limit=LONG)], stderr=-1)
    obeying = Running(process, process.stderr)
    await obeying.line("(ready)")
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(process.pid, number)
        await obeying.line(f"(got {number.name})")
    await obeying.line("(over)")
    with trio.fail_after(PATIENCE):
        assert await process.wait() == 0
