"""``trio-mcp demo``, piped and in a terminal."""

import importlib.util
import re
import signal
import sys

import pytest
from tests.cli.commands import TRIO_MCP, run
from tests.cli.terminals import in_terminal

DEMO = [*TRIO_MCP, "demo"]


async def test_demo_command_without_a_terminal_prints_lines_without_control_characters():
    ended = await run(DEMO)
    assert (ended.status, ended.stderr) == (0, "")
    assert "\x1b" not in ended.stdout
    assert "\r" not in ended.stdout
    for words in (
        "Pack files into an archive",
        "log info: packing 10 files",
        "progress 10 of 10: photo-10.jpg",
        "Name of the archive: holidays (answered automatically: this is not a terminal)",
        "the cancel reason in the handler: the caller's deadline passed",
        "same connection, one more call: packed 2 files",
        "task: developed 5 photos, while its caller did something else",
    ):
        assert words in ended.stdout
    for claim in ("the handler's finally ran", "the handler's child task ended"):
        (milliseconds,) = re.findall(rf"the server: {claim} (-?[\d.]+) ms after", ended.stdout)
        assert 0 <= float(milliseconds) < 5000


@pytest.mark.parametrize(("option", "url"), [("--http", "http://"), ("--websocket", "ws://")])
async def test_demo_command_over_the_network_runs_two_clients_and_cancels_one(option: str, url: str):
    ended = await run([*DEMO, option])
    assert (ended.status, ended.stderr) == (0, "")
    for words in (
        f"{url}127.0.0.1:",
        "client one: revision 2025-11-25; client two: revision 2026-07-28",
        "progress 10 of 10: photo-10.jpg",
        "the cancel reason in the handler: the caller's deadline passed",
        "client two, all the while: packed 10 files",
        "same connection, one more call: packed 2 files",
        "the server exited with status 0 after SIGTERM",
    ):
        assert words in ended.stdout


async def test_demo_command_with_auth_option_points_to_the_authorization_example():
    ended = await run([*DEMO, "--auth"])
    assert (ended.status, ended.stdout) == (2, "")
    assert "python -m examples.authorization" in ended.stderr
    assert importlib.util.find_spec("examples.authorization.__main__")


async def test_demo_command_reports_why_its_server_could_not_be_called():
    code = """if True:
        import sys
        from trio_mcp.cli.commands import demo
        demo.SERVER = [sys.executable, "-c", "import sys; sys.exit('no luck')"]
        sys.exit(demo.run_demo())
    """
    ended = await run([sys.executable, "-c", code])
    assert ended.status == 1
    assert ended.stderr.startswith("trio-mcp demo: the server exited")
    assert "no luck" in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_demo_in_a_terminal_shows_a_progress_bar_and_prompts_the_user():
    async with in_terminal(DEMO) as terminal:
        await terminal.read_until("Name of the archive [holidays]: ")
        assert "30/30" in terminal.shown
        assert "log notice: half of it is done" in terminal.shown
        terminal.type("winter\n")
        assert await terminal.read_to_end() == 0
    assert 'elicitation: the archive is called "winter"' in terminal.shown


async def test_ctrl_c_at_the_demo_prompt_exits_with_130_without_traceback():
    async with in_terminal(DEMO) as terminal:
        await terminal.read_until("Name of the archive [holidays]: ")
        terminal.type("\x03")
        assert await terminal.read_to_end() == 130
    assert "interrupted; the server process has exited" in terminal.shown
    assert "Traceback" not in terminal.shown


async def test_sigint_during_a_demo_call_exits_with_130_without_traceback():
    async with in_terminal(DEMO) as terminal:
        await terminal.read_until("log info: packing 30 files")
        terminal.process.send_signal(signal.SIGINT)
        assert await terminal.read_to_end() == 130
    assert "Traceback" not in terminal.shown
