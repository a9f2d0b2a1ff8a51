"""``trio-mcp read``: prints a resource to standard output."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.commands import TRIO_MCP, plain_environment, run
from tests.cli.terminals import in_terminal

DESK = str(Path(__file__).with_name("desk.py"))
READ = [*TRIO_MCP, "read"]
SILENT = [sys.executable, "-c", "import sys; sys.stdin.read()"]


def test_read_command_writes_binary_contents_unchanged(tmp_path: Path):
    with (tmp_path / "dot.png").open("wb") as file:
        subprocess.run([*READ, DESK, "desk://dot"], stdout=file, env=plain_environment(), check=True)
    assert (tmp_path / "dot.png").read_bytes() == b"\x89PNG"


async def test_read_command_writes_text_unchanged_and_progress_to_stderr():
    ended = await run([*READ, DESK, "desk://note"])
    assert (ended.status, ended.stdout) == (0, "soup\u2028\x07 of the day")
    assert "progress 1 of 1" in ended.stderr


async def test_read_command_prints_json_on_request():
    ended = await run([*READ, DESK, "desk://dot", "--json"])
    (contents,) = json.loads(ended.stdout)["contents"]
    assert contents == {"uri": "desk://dot", "mimeType": "image/png", "blob": "iVBORw=="}


@pytest.mark.parametrize(
    ("uri", "shown"),
    [("desk://note", "soup\\u2028\ufffd of the day"), ("desk://dot", "[resource desk://dot, image/png, 4 bytes]")],
)
async def test_read_command_in_a_terminal_prints_no_control_characters(uri: str, shown: str):
    async with in_terminal([*READ, DESK, uri, "--server-log-level", "off"]) as terminal:
        assert await terminal.read_to_end() == 0
    assert terminal.shown.endswith(f"{shown}\r\n")


async def test_read_command_reports_the_server_error_for_an_unknown_resource():
    ended = await run([*READ, DESK, "desk://nothing"])
    assert (ended.status, ended.stdout) == (4, "")
    assert "the server responded with an error" in ended.stderr


async def test_read_command_shows_the_traceback_of_a_resource_that_crashes():
    ended = await run([*READ, DESK, "desk://broken"])
    assert ended.status == 4
    assert "LookupError: the drawer is stuck" in ended.stderr


async def test_read_command_reports_an_unknown_target_as_a_usage_error():
    ended = await run([*READ, "no-such-thing", "desk://note"])
    assert ended.status == 2
    assert "there is no command 'no-such-thing'" in ended.stderr


async def test_read_command_times_out_if_the_server_never_answers():
    ended = await run([*READ, "desk://note", "--timeout", "0.3", "--", *SILENT])
    assert (ended.status, ended.stderr) == (
        5,
        "trio-mcp: the server did not respond in time: the server was not ready within 0.3 s (connect_timeout); "
        f"its command: {shlex.join(SILENT)}\n",
    )
