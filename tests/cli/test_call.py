"""``trio-mcp call`` without a terminal: a result on standard output, all else on standard error."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.cli.commands import TRIO_MCP, run, written
from tests.patience import LONG

from trio_mcp import serve_websocket
from trio_mcp.cli.request import _report_cancel

from .desk import server

DESK = str(Path(__file__).with_name("desk.py"))
CALL = [*TRIO_MCP, "call"]


async def test_call_command_prints_result_to_stdout_and_logs_and_progress_to_stderr():
    ended = await run([*CALL, DESK, "pack", "files=2"])
    assert (ended.status, ended.stdout) == (0, "packed 2\n")
    lines = ended.stderr.splitlines()
    assert 'warning: {"box": "is \\u001b[31mold"}' in lines
    assert "progress 2 of 2: file [2]" in lines
    assert not any("found the" in line for line in lines)


@pytest.mark.parametrize(("level", "told"), [("debug", True), ("error", False), ("off", False)])
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_call_command_shows_server_logs_at_or_above_the_requested_level(level: str, told: bool, era: str):
    ended = await run([*CALL, DESK, "pack", "files=0", "--server-log-level", level, "--era", era])
    assert ended.stdout == "packed 0\n"
    assert ("debug: found the \ufffdbox" in ended.stderr) == told
    assert ("31mold" in ended.stderr) == told


async def test_call_command_exits_with_1_and_prints_the_error_of_a_failed_tool_to_stderr():
    ended = await run([*CALL, DESK, "fail"])
    assert (ended.status, ended.stdout) == (1, "")
    assert ended.stderr == "no luck today\ntrio-mcp: the tool 'fail' failed\n"


async def test_call_command_shows_the_traceback_of_a_tool_that_crashes():
    ended = await run([*CALL, DESK, "crash"])
    assert ended.status != 0
    assert ended.stdout == ""
    _, said, traceback = ended.stderr.partition("trio-mcp: the server wrote to standard error:\n")
    assert said
    assert "  Traceback (most recent call last):\n" in traceback
    assert traceback.count("KeyError: 'no \\x1b[31msuch key'") == 1
    assert "\x1b" not in ended.stderr


CRASHING = """
    import json, sys
    ANSWER = {answer}
    for line in sys.stdin:
        message = json.loads(line)
        method = message.get("method")
        result = {{"error": {{"code": -32601, "message": "no such method"}}}}
        if method == "initialize":
            info = {{"name": "crashing", "version": "1"}}
            result = {{"protocolVersion": "2025-11-25", "capabilities": {{"tools": {{}}}}, "serverInfo": info}}
            result = {{"result": result}}
            print("Traceback (most recent call last): of long ago", file=sys.stderr, flush=True)
        elif method == "tools/list":
            result = {{"result": {{"tools": [{{"name": "crash", "inputSchema": {{"type": "object"}}}}]}}}}
        elif method == "tools/call":
            result = ANSWER
            print("INFO: called", file=sys.stderr)
            print("Traceback (most recent call last):\\n" + 50 * "  line\\n" + "KeyError: 1", file=sys.stderr)
            sys.stderr.flush()
        if "id" in message:
            print(json.dumps({{"jsonrpc": "2.0", "id": message["id"], **result}}), flush=True)
"""


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ({"error": {"code": -32603, "message": "Internal error"}}, 4),
        ({"result": {"content": [{"type": "text", "text": "internal error in tool crash"}], "isError": True}}, 1),
    ],
)
async def test_call_command_shows_the_server_traceback_if_the_call_returns_an_error(
    answer: dict[str, Any], status: int, tmp_path: Path
):
    server = written(tmp_path / "crashing.py", CRASHING.format(answer=answer))
    ended = await run([*CALL, "crash", "--era", "legacy", "--", sys.executable, server])
    assert ended.status == status
    shown = ended.stderr.partition("the server wrote to standard error:\n")[2].splitlines()
    assert shown == ["  INFO: called", "  Traceback (most recent call last):", *["    line"] * 50, "  KeyError: 1"]


async def test_call_command_with_stderr_option_prints_the_traceback_only_once():
    ended = await run([*CALL, DESK, "crash", "--stderr"])
    assert ended.stderr.count("KeyError: 'no ") == 1
    assert "the server wrote to standard error" not in ended.stderr


async def test_call_command_describes_an_image_in_text_output_and_prints_its_data_in_json_output():
    assert (await run([*CALL, DESK, "picture"])).stdout == "a dot\x07\n[image, image/png, 3 bytes]\n"
    ended = await run([*CALL, DESK, "picture", "--json"])
    assert json.loads(ended.stdout)["content"][1] == {"type": "image", "data": "AAAA", "mimeType": "image/png"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["pack", "files=many"], "argument 'files' must be an integer, not 'many'"),
        (["pack", "boxes=2"], "the tool has no argument 'boxes'; it has files"),
        (["pac"], "the server has no tool 'pac'; it has pack"),
        (["pack", "--args", "{"], "--args is not valid JSON"),
    ],
)
async def test_call_command_reports_invalid_arguments_as_usage_errors(words: list[str], told: str):
    ended = await run([*CALL, DESK, *words])
    assert (ended.status, ended.stdout) == (2, "")
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_call_command_reports_an_argument_that_is_not_valid_unicode_as_a_usage_error():
    ended = await run([*CALL, DESK, "hang", "note=\udcff"])
    assert ended.status == 2
    assert "the arguments cannot be sent" in ended.stderr


async def test_call_command_accepts_all_arguments_as_one_json_object():
    ended = await run([*CALL, DESK, "pack", "--args", '{"files": 3}', "--server-log-level", "off"])
    assert ended.stdout == "packed 3\n"


async def test_call_command_without_a_terminal_reports_that_it_cannot_answer_elicitations():
    ended = await run([*CALL, DESK, "order"])
    assert (ended.status, ended.stdout) == (4, "")
    assert "the server responded with an error" in ended.stderr
    assert "'elicitation.form'" in ended.stderr


async def test_call_command_shows_the_urls_that_the_user_must_visit_before_a_new_call():
    ended = await run([*CALL, DESK, "locked", "--era", "legacy"])
    assert ended.status == 4
    assert ended.stderr == (
        "trio-mcp: visit this page, then call again: https://b\\xfccher.example/in (Sign \ufffdin.)\n"
        "trio-mcp: the server responded with an error: Sign in first (code -32042)\n"
    )


async def test_call_command_shows_the_last_stderr_lines_of_a_server_that_dies():
    ended = await run([*CALL, DESK, "die"])
    assert ended.status == 3
    assert "the server exited (exit status -9); its last lines on stderr:\n  oh \ufffd[1mno\n" in ended.stderr
    assert "Traceback" not in ended.stderr


IMPATIENT = """
import os, sys
from functools import partial
import trio
from trio.testing import MockClock

class Impatience(trio.abc.Instrument):
    # The clock jumps over the time limit, once: when the call is in the server, which has written its note then.
    jumped = False

    def after_io_wait(self, timeout):
        if not self.jumped and os.path.exists(NOTE):
            self.jumped = True
            clock.jump(LONG)

clock = MockClock(rate=1)
trio.run = partial(trio.run, clock=clock, instruments=[Impatience()])
from trio_mcp.cli.main import main
main()
"""


async def test_call_command_that_exceeds_its_timeout_cancels_the_call_in_the_server(tmp_path: Path):
    note = tmp_path / "note"
    code = IMPATIENT.replace("NOTE", repr(str(note))).replace("LONG", f"{LONG}")
    command = [sys.executable, "-c", code, "call", DESK, "hang", f"note={note}", "--timeout", f"{LONG}"]
    ended = await run(command)
    assert ended.status == 5
    assert ended.stderr.endswith("trio-mcp: the server did not respond in time\n")
    assert note.read_text() == "the caller's deadline passed"


async def test_call_command_can_call_a_tool_over_websocket(nursery: trio.Nursery):
    listeners: Any = await nursery.start(serve_websocket, server, "127.0.0.1", 0)
    url = f"ws://127.0.0.1:{listeners[0].socket.getsockname()[1]}/mcp"
    ended = await run([*CALL, url, "pack", "files=1"])
    assert (ended.status, ended.stdout) == (0, "packed 1\n")


class Silent:
    async def ping(self) -> None:
        await trio.sleep_forever()


async def test_cancelled_call_command_reports_a_server_that_answers_no_ping_within_5_seconds(capsys, autojump_clock):
    await _report_cancel(Silent())
    assert capsys.readouterr().err == (
        "trio-mcp: the call was cancelled, but the server has not answered a ping for 5 s\n"
    )
