"""The server process of a stdio client: start, stderr, exit, and cleanup of the whole process tree."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.interaction.client.raw import RawServer, alive, text_of
from tests.patience import LONG, PATIENCE
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import Client, ConnectionLost, open_stdio

pytestmark = pytest.mark.skipif(os.name != "posix", reason="process groups")

# A grandchild that no process waits for, such as a shell that the server started in the background.
GRANDCHILD = """
import subprocess
sleeper = subprocess.Popen(["sleep", "60"])
note("pid", pid=os.getpid()); note("pid", pid=sleeper.pid)
handshake()
"""


def running(pid: int) -> bool:
    """Whether it is alive. An orphan's zombie is its new parent's to reap, and not counted."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except FileNotFoundError:
        return False
    return state != "Z"


def pids_of(raw: RawServer) -> list[int]:
    return [entry["pid"] for entry in raw.of("pid")]


# STD-09: standard error


class Sink:
    """An error log without a file descriptor."""

    def __init__(self) -> None:
        self.size = 0

    def write(self, text: str) -> None:
        self.size += len(text)


NOISY = """
handshake()
call = until("tools/call")
noise = b"x" * 1023 + b"\\n"
for _ in range(10 * 1024):
    os.write(2, noise)
text(call)
"""


@pytest.mark.parametrize("sink", [None, Sink(), io.StringIO()], ids=["default", "object", "text"])
async def test_std_09_server_that_writes_ten_mib_to_stderr_still_answers(tmp_path: Path, sink: Any) -> None:
    raw = RawServer(tmp_path, NOISY)
    with trio.fail_after(PATIENCE):
        async with open_stdio(raw.command, era="legacy", stderr=sink) as client:
            assert text_of(await client.call_tool("any")) == "done"
    if isinstance(sink, Sink):
        assert sink.size == 10 * 1024 * 1024
    if isinstance(sink, io.StringIO):
        assert len(sink.getvalue()) == 10 * 1024 * 1024


async def test_call_succeeds_although_the_file_for_stderr_output_of_the_server_raises(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Full:
        def write(self, text: str) -> None:
            raise OSError("no space left on device")

    raw = RawServer(tmp_path, NOISY)
    with trio.fail_after(PATIENCE):
        async with open_stdio(raw.command, era="legacy", stderr=Full()) as client:
            assert text_of(await client.call_tool("any")) == "done"
    assert "no space left on device" in caplog.text
    caplog.clear()


async def test_utf8_character_split_between_stderr_reads_is_decoded(tmp_path: Path) -> None:
    raw = RawServer(
        tmp_path,
        r"""
        handshake()
        os.write(2, b"caf\xc3"); note("half"); until("tools/call"); os.write(2, b"\xa9\n\xff\n"); text({"id": 2})
        """,
    )
    first_half_read = trio.Event()

    class Sink(io.StringIO):
        def write(self, text: str, /) -> int:
            first_half_read.set()
            return super().write(text)

    sink = Sink()
    with trio.fail_after(PATIENCE):
        async with open_stdio(raw.command, era="legacy", stderr=sink) as client:
            await first_half_read.wait()
            await client.call_tool("any")
    assert sink.getvalue() == "café\n\ufffd\n"


# STD-12: the ladder

WELL_BEHAVED = """
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda number, frame: note("signal", number=number))
note("pid", pid=os.getpid())
handshake()
ended()
note("exits")
os._exit(0)
"""


async def test_std_12_server_that_exits_at_end_of_input_gets_no_signal(tmp_path: Path) -> None:
    raw = RawServer(tmp_path, WELL_BEHAVED)
    with trio.fail_after(PATIENCE):
        async with open_stdio(raw.command, era="legacy", close_grace=PATIENCE):
            pass
    assert [entry["event"] for entry in raw.entries if entry["event"] != "read"] == ["pid", "eof", "exits"]
    assert not alive(pids_of(raw)[0])


async def test_std_12_client_close_returns_as_soon_as_the_server_exits(tmp_path: Path) -> None:
    raw = RawServer(tmp_path, WELL_BEHAVED)
    with trio.fail_after(PATIENCE):
        async with open_stdio(raw.command, era="legacy", close_grace=10 * PATIENCE):
            pass


async def test_std_12_server_that_ignores_end_of_input_gets_sigterm_after_the_grace_period(
    tmp_path: Path, jump_clock: MockClock
) -> None:
    raw = RawServer(
        tmp_path,
        """
        def leave(number, frame):
            note("signal", number=number); os._exit(0)
        signal.signal(signal.SIGTERM, leave)
        note("pid", pid=os.getpid())
        handshake()
        ended()
        time.sleep(1000)
        """,
    )
    jumped = 0.0

    async def jump_when_ended() -> None:
        nonlocal jumped
        await raw.has("eof")
        await wait_all_tasks_blocked()  # in the grace
        jumped = time.monotonic()
        jump_clock.jump(LONG)

    with trio.fail_after(LONG + PATIENCE):
        async with trio.open_nursery() as nursery, open_stdio(raw.command, era="legacy", close_grace=LONG):
            nursery.start_soon(jump_when_ended)
    [term] = raw.of("signal")
    assert term["number"] == signal.SIGTERM
    assert term["t"] > jumped
    assert not alive(pids_of(raw)[0])


async def test_std_12_server_that_ignores_sigterm_gets_sigkill(tmp_path: Path, jump_clock: MockClock) -> None:
    raw = RawServer(
        tmp_path,
        """
        signal.signal(signal.SIGTERM, lambda number, frame: note("signal", number=number))
        note("pid", pid=os.getpid())
        handshake()
        ended()
        while True:
            time.sleep(1000)
        """,
    )

    async def jump_over_both_graces() -> None:
        for sign in ("eof", "signal"):
            await raw.has(sign)
            await wait_all_tasks_blocked()  # in the grace
            jump_clock.jump(LONG)

    with trio.fail_after(2 * LONG + PATIENCE):
        async with trio.open_nursery() as nursery, open_stdio(raw.command, era="legacy", close_grace=LONG):
            nursery.start_soon(jump_over_both_graces)
    assert [entry["event"] for entry in raw.entries if entry["event"] != "read"] == ["pid", "eof", "signal"]
    assert not alive(pids_of(raw)[0])


async def test_client_reads_all_output_that_an_exiting_server_writes(tmp_path: Path) -> None:
    raw = RawServer(
        tmp_path,
        """
        note("pid", pid=os.getpid())
        handshake()
        ended()
        write(b"x" * (1 << 20) + b"\\n")
        os.write(2, b"y" * (1 << 20))
        note("exits")
        """,
    )
    with trio.fail_after(PATIENCE):
        async with open_stdio(raw.command, era="legacy", close_grace=60):
            pass
    assert raw.of("exits")


async def test_cancelled_client_reads_all_stderr_output_that_an_exiting_server_writes(tmp_path: Path) -> None:
    raw = RawServer(
        tmp_path,
        """
        handshake()
        note("open")
        ended()
        os.write(2, b"y" * (1 << 20))
        note("exits")
        """,
    )
    with trio.fail_after(PATIENCE), trio.CancelScope() as scope:
        async with open_stdio(raw.command, era="legacy", close_grace=60):
            await raw.has("open")
            scope.cancel()
            await trio.sleep_forever()
    assert raw.of("exits")


# STD-13: the whole tree


@pytest.mark.parametrize("left", ["by cancel in mid call", "by an exception", "by itself"])
async def test_std_13_closing_client_ends_the_server_and_all_its_child_processes(tmp_path: Path, left: str) -> None:
    raw = RawServer(tmp_path, GRANDCHILD)
    command = ["sh", "-c", 'echo $$ >&2; "$@"; exit $?', "sh", *raw.command]

    async def use(client: Client, scope: trio.CancelScope) -> None:
        if left == "by an exception":
            raise LookupError("body")
        if left == "by cancel in mid call":
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "any")
                await raw.got("tools/call")
                scope.cancel()

    with trio.fail_after(PATIENCE), trio.CancelScope() as scope:
        try:
            async with open_stdio(command, era="legacy", close_grace=0.2) as client:
                await use(client, scope)
        except LookupError as error:
            assert str(error) == "body"  # noqa: PT017 - only one of the three ways raises
    assert len(pids_of(raw)) == 2
    assert not any(running(pid) for pid in pids_of(raw))


async def test_std_13_cancelled_connect_ends_the_server_and_all_its_child_processes(tmp_path: Path) -> None:
    raw = RawServer(tmp_path, GRANDCHILD.replace("handshake()", "read()"))
    with trio.fail_after(PATIENCE), trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def cancel_when_asked() -> None:
                await raw.has("read")
                scope.cancel()

            nursery.start_soon(cancel_when_asked)
            async with open_stdio(["sh", "-c", '"$@"; exit $?', "sh", *raw.command], close_grace=0.2):
                pytest.fail("nobody answered")
    assert len(pids_of(raw)) == 2
    assert not any(running(pid) for pid in pids_of(raw))


async def test_child_process_left_behind_by_a_server_that_exits_is_killed(tmp_path: Path) -> None:
    raw = RawServer(tmp_path, GRANDCHILD)
    with trio.fail_after(PATIENCE):
        # close_grace is not waited for either, although the orphan may never be reaped.
        async with open_stdio(raw.command, era="legacy", close_grace=10 * PATIENCE):
            pass
    assert not any(running(pid) for pid in pids_of(raw))


# STD-16: death


async def test_std_16_missing_command_raises_connection_lost_that_names_the_command() -> None:
    with trio.fail_after(PATIENCE), pytest.raises(ConnectionLost, match=r"no-such-command.*No such file") as caught:
        async with open_stdio(["/nowhere/no-such-command", "x"]):
            pass
    assert caught.value.exit_status is None


@pytest.mark.parametrize("command", ["python server.py", [], ()])
async def test_command_that_is_not_a_list_raises_value_error(command: Any) -> None:
    with pytest.raises(ValueError, match="a command must be a list"):
        async with open_stdio(command):
            pass


async def test_std_16_server_that_exits_before_its_first_answer_causes_connection_lost_with_status_and_stderr(
    tmp_path: Path,
) -> None:
    raw = RawServer(tmp_path, 'read(); os.write(2, b"first line\\nno licence found\\n"); os._exit(3)')
    with trio.fail_after(PATIENCE), pytest.raises(ConnectionLost) as caught:
        async with open_stdio(raw.command):
            pass
    assert caught.value.exit_status == 3
    assert caught.value.stderr == ("first line", "no licence found")
    assert "exit status 3" in str(caught.value)
    assert "no licence found" in str(caught.value)


async def test_std_16_connection_lost_reports_exit_status_and_stderr_if_the_server_exits_without_reading(
    tmp_path: Path,
) -> None:
    with trio.fail_after(PATIENCE), pytest.raises(ConnectionLost) as caught:
        async with open_stdio([sys.executable, "-S", "-c", "raise SystemExit('bad configuration')"]):
            pass
    assert caught.value.exit_status == 1
    assert caught.value.stderr == ("bad configuration",)


async def _fail_three(client: Client) -> list[BaseException]:
    failures: list[BaseException] = []

    async def call() -> None:
        try:
            await client.call_tool("any")
        except BaseException as error:
            failures.append(error)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(call)
    return failures


@pytest.mark.parametrize("death", ["killed", "exits", "closes its output"])
async def test_std_16_pending_calls_immediately_raise_connection_lost_if_the_server_exits(
    tmp_path: Path, death: str
) -> None:
    act = {
        "killed": "os.kill(os.getpid(), signal.SIGKILL)",
        "exits": "os._exit(7)",
        "closes its output": "os.close(1)",
    }[death]
    status = {"killed": -9, "exits": 7, "closes its output": None}[death]
    raw = RawServer(tmp_path, f'handshake(); [until("tools/call") for _ in range(3)]; os.write(2, b"oops\\n"); {act}')
    with trio.fail_after(PATIENCE):
        async with open_stdio(raw.command, era="legacy", close_grace=1) as client:
            failures = await _fail_three(client)
            await trio.lowlevel.checkpoint()  # and nobody cancelled this task
            with pytest.raises(ConnectionLost):
                await client.call_tool("one more")
    for error in failures:
        assert type(error) is ConnectionLost
        assert error.exit_status == status
        assert error.stderr == ("oops",)
    assert len(failures) == 3


async def test_err_02_call_after_server_exit_raises_connection_lost(tmp_path: Path) -> None:
    raw = RawServer(tmp_path, 'handshake(); text(until("tools/call")); note("dies"); os._exit(9)')
    with trio.fail_after(PATIENCE):
        async with open_stdio(raw.command, era="legacy") as client:
            assert text_of(await client.call_tool("any")) == "done"
            await raw.has("dies")
            with pytest.raises(ConnectionLost) as caught:
                await client.call_tool("any")
    assert caught.value.exit_status == 9


async def test_std_16_after_the_server_closes_its_stdin_the_pending_call_succeeds_and_the_next_fails(
    tmp_path: Path,
) -> None:
    raw = RawServer(tmp_path, 'handshake(); call = until("tools/call"); os.close(0); text(call); time.sleep(60)')
    with trio.fail_after(PATIENCE):
        async with open_stdio(raw.command, era="legacy", close_grace=0.1) as client:
            assert text_of(await client.call_tool("any")) == "done"
            with pytest.raises(ConnectionLost):
                await client.call_tool("any")


async def test_connection_lost_error_contains_only_the_last_20_lines_of_stderr_of_the_server(tmp_path: Path) -> None:
    raw = RawServer(
        tmp_path, 'read(); [os.write(2, b"%d " % n + b"x" * 5000 + b"\\n") for n in range(100)]; os._exit(1)'
    )
    with trio.fail_after(PATIENCE), pytest.raises(ConnectionLost) as caught:
        async with open_stdio(raw.command):
            pass
    assert len(caught.value.stderr) == 20
    assert caught.value.stderr[-1].startswith("99 ")
    assert len(str(caught.value)) < 12_000


# What the child gets


@pytest.mark.parametrize("inherit", [False, True])
async def test_server_process_inherits_environment_only_if_inherit_env_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inherit: bool
) -> None:
    monkeypatch.setenv("MY_SECRET", "swordfish")
    raw = RawServer(tmp_path, 'note("env", env=dict(os.environ), cwd=os.getcwd()); handshake()')
    with trio.fail_after(PATIENCE):
        async with open_stdio(raw.command, era="legacy", env={"GIVEN": "1"}, inherit_env=inherit, cwd=tmp_path):
            pass
    [entry] = raw.of("env")
    assert entry["env"]["GIVEN"] == "1"
    assert entry["env"].get("MY_SECRET") == ("swordfish" if inherit else None)
    assert "PATH" in entry["env"]
    assert entry["cwd"] == os.path.realpath(tmp_path)  # noqa: ASYNC240 - nothing else runs


async def test_server_process_is_started_in_its_own_process_group(tmp_path: Path) -> None:
    raw = RawServer(tmp_path, 'note("group", group=os.getpgid(0), session=os.getsid(0)); handshake()')
    with trio.fail_after(PATIENCE):
        async with open_stdio(raw.command, era="legacy"):
            pass
    assert raw.of("group")[0]["group"] != os.getpgid(0)


async def test_stdio_clients_leak_no_file_descriptors_when_they_open_and_close(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for number in range(3):
        raw = RawServer(tmp_path, name=f"journal{number}")
        with trio.fail_after(PATIENCE):
            async with open_stdio(raw.command, era="legacy"):
                pass
    assert len(os.listdir("/proc/self/fd")) <= before
