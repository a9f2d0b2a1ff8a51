"""Errors of a command that doesn't start contain its last output, the command line, and a hint."""

from __future__ import annotations

import sys
from pathlib import Path

import attrs
import pytest
import trio
from tests.patience import PATIENCE
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import Command, ConnectionLost, MCPError, PeerError, ProtocolViolation, fail_after_work
from trio_mcp.hosting import MemberDescription, MemberState, open_group

ENDS = "import sys; print('usage: server [OPTIONS]'); print('API_KEY is missing', file=sys.stderr); sys.exit(3)"
WAITS = """
import sys
print("Listening on port 3000")
print('{"jsonrpc": "2.0", "method": "notifications/initialized"}')
print("Ok to proceed? (y) \\x1b[1m", end="", flush=True)
print("Password: ", end="", file=sys.stderr, flush=True)
sys.stdin.read()
"""
REFUSES = """
import json, sys
print("no licence: run 'server login'", flush=True)
for line in sys.stdin:
    print(json.dumps({"jsonrpc": "2.0", "id": json.loads(line)["id"], ANSWER}), flush=True)
"""


LONG = 30.0
"""Seconds to connect."""


def command(code: str) -> Command:
    return Command([sys.executable, "-c", code], env={"TOKEN": "s3cret"}, close_grace=0.1)


async def failure(target: Command) -> MCPError | trio.TooSlowError:
    with trio.fail_after(PATIENCE), pytest.raises((MCPError, trio.TooSlowError)) as caught:
        async with target.open(connect_timeout=LONG):
            raise AssertionError("the server was opened")
    return caught.value


class Jump:
    """Lets the time to connect pass once the server has written its last words to standard error."""

    def __init__(self, clock: MockClock) -> None:
        self._clock = clock
        self._text = ""
        self._complete = trio.Event()

    def write(self, text: str, /) -> None:
        self._text += text
        if self._text.endswith("Password: "):
            self._complete.set()

    async def run(self) -> None:
        await self._complete.wait()
        await wait_all_tasks_blocked()
        self._clock.jump(LONG)


async def test_error_for_a_command_that_exits_at_start_contains_stdout_and_stderr_of_the_command() -> None:
    error = await failure(command(ENDS))
    assert isinstance(error, ConnectionLost)
    assert (error.exit_status, error.stdout, error.stderr) == (3, ("usage: server [OPTIONS]",), ("API_KEY is missing",))
    assert error.command is not None
    assert error.command.startswith(f"{sys.executable} -c 'import sys;")
    assert str(error).startswith("the server exited")
    assert str(error).endswith(
        "(exit status 3); its last lines on stderr:\n  API_KEY is missing\n"
        f"its last lines on stdout:\n  usage: server [OPTIONS]\nits command: {error.command}"
    )


async def test_error_for_a_command_that_closes_stdout_contains_what_it_writes_to_stderr_later() -> None:
    error = await failure(Command(["sh", "-c", "exec >&-; sleep 0.6; echo no key >&2; exit 1"]))
    assert isinstance(error, ConnectionLost)
    assert error.stderr == ("no key",)


async def test_timeout_error_for_a_command_that_never_answers_contains_the_output_of_the_command(
    jump_clock: MockClock,
) -> None:
    jump = Jump(jump_clock)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(jump.run)
        error = await failure(attrs.evolve(command(WAITS), stderr=jump))
    assert isinstance(error, trio.TooSlowError)
    reason, *lines = str(error).split("\n")
    assert reason.startswith("the server was not ready within 30 s (connect_timeout); ")
    assert lines[:4] == [
        "  Password:",
        "its last lines on stdout:",
        "  Listening on port 3000",
        "  Ok to proceed? (y) \N{REPLACEMENT CHARACTER}[1m",
    ]
    assert lines[4].startswith(f"its command: {sys.executable} -c ")
    assert "s3cret" not in str(error)


async def test_outer_timeout_during_a_command_start_raises_an_error_with_the_output_of_the_command(
    jump_clock: MockClock,
) -> None:
    jump = Jump(jump_clock)
    expected = pytest.raises(trio.TooSlowError, match=r"(?s)the time is over: 9 s; .*  Ok to proceed.*its command: ")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(jump.run)
        with expected, fail_after_work(9):
            async with attrs.evolve(command(WAITS), stderr=jump).open():
                raise AssertionError("the server was opened")


OUTPUT = f"its last lines on stdout:\n  no licence: run 'server login'\nits command: {sys.executable} -c "


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        ("'error': {'code': -1, 'message': 'no'}", PeerError, f"the peer answered: no (-1)|{OUTPUT}"),
        (
            "'result': []",
            ProtocolViolation,
            f"the result of server/discover is invalid: expected an object @ $; {OUTPUT}",
        ),
    ],
)
async def test_error_for_a_command_that_refuses_the_handshake_contains_the_output_of_the_command(
    answer: str, kind: type[MCPError], words: str
) -> None:
    error = await failure(command(REFUSES.replace("ANSWER", answer)))
    assert type(error) is kind
    assert "|".join([str(error), *getattr(error, "__notes__", ())]).startswith(words)


async def test_command_start_error_contains_only_the_last_output_lines_without_control_characters() -> None:
    code = "for n in range(1000): print(n, '\x1b]0;x\x07' + 'y' * 9999)"
    error = await failure(command(code + "\nprint('\u00e9', 'end' * 9999, end='')"))
    assert isinstance(error, ConnectionLost)
    assert len(error.stdout) == 20
    assert max(map(len, error.stdout)) == 500
    assert error.stdout[-2].startswith("999 \N{REPLACEMENT CHARACTER}]0;x\N{REPLACEMENT CHARACTER}yyy")
    assert error.stdout[-1].startswith("\u00e9 endend")
    assert str(error).isprintable() is False  # line ends
    assert "\x1b" not in str(error)


@pytest.mark.parametrize(("code", "wanted"), [(WAITS, "Ok to proceed?"), (ENDS, "usage: server")])
async def test_group_status_of_a_server_that_fails_to_start_contains_its_output(
    code: str, wanted: str, jump_clock: MockClock
) -> None:
    jump = Jump(jump_clock)
    description = MemberDescription(attrs.evolve(command(code), stderr=jump), options={"connect_timeout": LONG})
    async with trio.open_nursery() as nursery, open_group({"a": description}) as group:
        nursery.start_soon(jump.run)
        await group.settled()
        status = group.statuses["a"]
        nursery.cancel_scope.cancel()
    assert status.state is MemberState.FAILED
    assert isinstance(status.error, ConnectionLost)
    assert wanted in str(status.error)
    assert "its command: " in str(status.error)
    assert status.stderr == status.error.stderr != ()


SCRIPTS = {
    "no-interpreter": ("#!/nowhere/node --x\n", 0o755),
    "carriage-return": ("#!/bin/sh\r\n", 0o755),
    "not-executable": ("#!/bin/sh\n", 0o644),
    "no-shebang": ("print('hello')\n", 0o755),
}


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["~/bin/server", "-x"], "only a shell expands '~': write '/home/me/bin/server'"),
        (["npx -y server"], "the program and its arguments must be separate words: ['npx', '-y', 'server']"),
        (["/nowhere/my tool --port 1"], "must be separate words: ['/nowhere/my', 'tool', '--port', '1']"),
        (["./no-interpreter"], "its first line names the interpreter '/nowhere/node', which could not be started"),
        (["./carriage-return"], "names the interpreter '/bin/sh\\r'"),
        (["./not-executable"], "is not an executable file: write its interpreter before the file"),
        (["./no-shebang"], "the file may need an interpreter before its name, such as python or node"),
        (["no-shebang"], "for the file in the working directory write ./no-shebang"),
        (["./folder"], "is not an executable file"),
        (["no-such-command"], "No such file or directory; its command: no-such-command"),
    ],
)
async def test_command_that_cannot_be_started_raises_an_error_with_advice(
    words: list[str], hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    (tmp_path / "folder").mkdir()
    for name, (text, mode) in SCRIPTS.items():
        (tmp_path / name).write_bytes(text.encode())
        (tmp_path / name).chmod(mode)
    error = await failure(Command(words, cwd=tmp_path, env={"TOKEN": "s3cret"}))
    assert isinstance(error, ConnectionLost)
    assert hint in str(error)
    assert error.command is not None
    assert words[0].split()[0] in error.command
    assert "s3cret" not in str(error)


async def test_error_for_a_working_directory_with_a_tilde_says_that_only_a_shell_expands_the_tilde(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    error = await failure(Command([sys.executable], cwd="~/project"))
    assert "could not be started in ~/project: No such file or directory; only a shell expands '~'" in str(error)


async def test_error_for_a_server_that_exits_after_the_handshake_omits_the_output_printed_at_start() -> None:
    code = REFUSES.replace("ANSWER", "'result': RESULT}), flush=True) or sys.exit(1)\n#")
    result = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "a", "version": "1"}}
    with trio.fail_after(PATIENCE), pytest.raises(ConnectionLost) as caught:
        async with command(code.replace("RESULT", repr(result))).open(era="legacy") as client:
            await client.until_lost()
    assert str(caught.value) == "the server exited (exit status 1)"
