"""A server on whatever standard input and output are: pipes, sockets, terminals, files, ``/dev/null``.

What is inherited belongs to others too, so its flags stay as they are found, also while the server runs: the
tests keep a descriptor of the very same open file and look at it.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.interaction.conversation import Conversation
from tests.interaction.harness import JOURNAL_VARIABLE, Journal, is_alive, wait_until
from tests.interaction.raw_client import FIXTURE, LATEST_LEGACY, MODERN, RawClient, Wire, serving
from tests.patience import PATIENCE

Ends = tuple[int, int, Wire]
"""The child's standard input and output, and the wire to them."""


@contextmanager
def pipes() -> Iterator[Ends]:
    (their_in, our_out), (our_in, their_out) = os.pipe(), os.pipe()
    yield their_in, their_out, Wire(our_out, our_in)
    os.close(their_in)
    os.close(their_out)


@contextmanager
def one_socket() -> Iterator[Ends]:
    """The same socket on both, as inetd and some hosts do it."""
    ours, theirs = socket.socketpair()
    yield theirs.fileno(), theirs.fileno(), Wire(os.dup(ours.fileno()), ours.detach())
    theirs.close()


@contextmanager
def two_sockets() -> Iterator[Ends]:
    """One for each direction, as Node.js makes them for its children."""
    our_out, their_in = socket.socketpair()
    our_in, their_out = socket.socketpair()
    yield their_in.fileno(), their_out.fileno(), Wire(our_out.detach(), our_in.detach())
    their_in.close()
    their_out.close()


@contextmanager
def terminal() -> Iterator[Ends]:
    """A pseudo terminal in raw mode on both."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    yield theirs, theirs, Wire(os.dup(ours), ours)
    os.close(theirs)


KINDS: dict[str, Callable[[], Any]] = {
    "pipes": pipes,
    "one socket": one_socket,
    "two sockets": two_sockets,
    "terminal": terminal,
}


def on_ends(tmp_path: Path, ends: Ends) -> AbstractContextManager[RawClient]:
    """The fixture server on these ends, opened."""
    their_in, their_out, wire = ends
    limits = {"drain_timeout": PATIENCE}
    return serving(tmp_path, stdio=(their_in, their_out), wire=wire, revision=LATEST_LEGACY, limits=limits)


def is_blocking(*fds: int) -> list[bool]:
    return [not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK for fd in fds]


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "non-blocking"])
@pytest.mark.parametrize("kind", KINDS)
def test_inherited_file_descriptors_keep_their_blocking_mode(tmp_path: Path, kind: str, blocking: bool) -> None:
    with KINDS[kind]() as (their_in, their_out, wire):
        for fd in (their_in, their_out):
            os.set_blocking(fd, blocking)
        found = [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in (their_in, their_out)]
        with serving(tmp_path, stdio=(their_in, their_out), wire=wire, revision=LATEST_LEGACY) as client:
            text = "x" * 300_000  # more than any of them takes at once, so that both sides have to wait
            assert client.echo(text) == text
            assert [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in (their_in, their_out)] == found, "while it runs"
            assert is_blocking(their_in, their_out) == [blocking, blocking]
            os.kill(client.pid, signal.SIGTERM)
            assert client.wait() == 0
            assert [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in (their_in, their_out)] == found, "after its end"
            assert client.stderr() == ""


@pytest.mark.parametrize("kind", ["pipes", "one socket", "two sockets"])
def test_server_ends_at_end_of_input_on_every_kind_of_file_descriptor(tmp_path: Path, kind: str) -> None:
    with KINDS[kind]() as ends, on_ends(tmp_path, ends) as client:
        client.started("sleep", {"ms": 200}, id=1)
        client.wire.close_input()
        assert client.text(1) == "slept 200"
        assert client.wait() == 0
        assert client.stderr() == ""


def test_server_ends_without_a_traceback_when_its_terminal_hangs_up(tmp_path: Path) -> None:
    with terminal() as ends, on_ends(tmp_path, ends) as client:
        client.ping()
        client.wire.close()
        client.wait()
        assert "Traceback" not in client.stderr()


def test_server_whose_stdio_is_a_socket_ends_and_cancels_handlers_when_the_peer_closes_the_socket(
    tmp_path: Path,
) -> None:
    with one_socket() as ends, on_ends(tmp_path, ends) as client:
        client.started("sleep", {"ms": 60_000}, id=1)
        client.call("big", {"count": 1 << 22})
        client.wire.peek()
        client.wire.close()
        client.wait()
        assert "Traceback" not in client.stderr()
        assert client.journal.events(1) == ["start", "cancelled", "finally"]


def conversation(revision: str) -> bytes:
    """A whole conversation, its last line without a newline."""
    client = Conversation()
    client.revision = revision
    messages = [client.call_message("echo", {"text": str(number)}, id=number) for number in range(10, 20)]
    if revision != MODERN:
        opening = client.message("initialize", client.opening(revision), id=1)
        messages = [opening, {"jsonrpc": "2.0", "method": "notifications/initialized"}, *messages]
    return b"\n".join(json.dumps(message).encode() for message in messages)


def run_on_files(tmp_path: Path, stdin: Any, stdout: Any) -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, JOURNAL_VARIABLE: str(tmp_path / "journal")}
    command = [sys.executable, str(FIXTURE)]
    return subprocess.run(
        command, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, env=env, timeout=PATIENCE, check=False
    )


@pytest.mark.parametrize("revision", [LATEST_LEGACY, MODERN])
def test_server_with_regular_files_as_stdin_and_stdout_reads_to_the_end_and_appends_replies(
    tmp_path: Path, revision: str
) -> None:
    (tmp_path / "in").write_bytes(conversation(revision))
    (tmp_path / "out").write_bytes(b"what was there before\n")
    with (tmp_path / "in").open("rb") as stdin, (tmp_path / "out").open("ab") as stdout:
        ended = run_on_files(tmp_path, stdin, stdout)
    assert (ended.returncode, ended.stderr) == (0, b"")
    first, *lines = (tmp_path / "out").read_bytes().splitlines()
    assert first == b"what was there before"
    replies = {message["id"]: message for message in map(json.loads, lines)}
    assert [replies[number]["result"]["content"][0]["text"] for number in range(10, 20)] == [
        str(number) for number in range(10, 20)
    ]


def test_server_reads_a_regular_file_from_its_current_offset(tmp_path: Path) -> None:
    """As ``(read line; server) < file`` would have it: what others read before is not read again."""
    (tmp_path / "in").write_bytes(b"not for the server\n" + conversation(MODERN))
    with (tmp_path / "in").open("rb", buffering=0) as stdin:
        os.lseek(stdin.fileno(), len(b"not for the server\n"), os.SEEK_SET)
        ended = run_on_files(tmp_path, stdin, subprocess.PIPE)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert len(ended.stdout.splitlines()) == 10
    assert b"error" not in ended.stdout


def test_server_ends_if_stdin_is_dev_null_and_discards_replies_if_stdout_is_dev_null(tmp_path: Path) -> None:
    ended = run_on_files(tmp_path, subprocess.DEVNULL, subprocess.PIPE)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
    (tmp_path / "in").write_bytes(conversation(LATEST_LEGACY))
    with (tmp_path / "in").open("rb") as stdin:
        ended = run_on_files(tmp_path, stdin, subprocess.DEVNULL)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_server_whose_stdout_is_a_full_device_ends_with_one_line_on_stderr(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(conversation(LATEST_LEGACY))
    with (tmp_path / "in").open("rb") as stdin, Path("/dev/full").open("wb") as stdout:
        ended = run_on_files(tmp_path, stdin, stdout)
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert ended.returncode == 0


def test_server_with_dev_null_as_stderr_answers_all_requests(tmp_path: Path) -> None:
    command = [sys.executable, str(FIXTURE)]
    ended = subprocess.run(
        command,
        input=conversation(MODERN),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=PATIENCE,
        check=True,
    )
    assert len(ended.stdout.splitlines()) == 10


def test_stdin_and_stdout_are_restored_after_serve_stdio(tmp_path: Path) -> None:
    script = tmp_path / "after.py"
    script.write_text(
        f"import os, sys, trio; sys.path.insert(0, {str(FIXTURE.parent)!r})\n"
        "from fixture_server import serve_stdio, server\n"
        "found = [os.fstat(fd)[:3] for fd in (0, 1)]\n"
        "trio.run(serve_stdio, server)\n"
        "assert [os.fstat(fd)[:3] for fd in (0, 1)] == found\n"
        "print('out again', os.read(0, 10))\n"
    )
    ended = subprocess.run(
        [sys.executable, str(script)], input=conversation(MODERN), capture_output=True, timeout=PATIENCE, check=False
    )
    *replies, last = ended.stdout.splitlines()
    assert (ended.returncode, ended.stderr, len(replies)) == (0, b"", 10)
    assert last == b"out again b''"


@pytest.mark.parametrize(("redirection", "name"), [("<&-", "input"), (">&-", "output")])
def test_server_with_a_closed_standard_stream_raises_os_error_that_names_the_stream(
    redirection: str, name: str
) -> None:
    """Its number was given to something else by then, which must be neither used nor closed."""
    command = f"exec {sys.executable} {FIXTURE} {redirection}"
    ended = subprocess.run(
        ["sh", "-c", command], stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == f"OSError: [Errno 9] standard {name} is not open".encode()
    assert ended.stdout == b""


def test_server_without_stderr_writes_only_protocol_messages_to_stdout(tmp_path: Path) -> None:
    command = ["sh", "-c", f"exec {sys.executable} {FIXTURE} 2>&-"]
    with serving(tmp_path, command=command, revision=LATEST_LEGACY) as client:
        assert client.text(client.call("dirty")) == "read b'' and ''"
        assert client.result(client.call("fail", {"kind": "value_error"}))["isError"] is True
        assert client.echo("on") == "on"
        assert client.finish() == 0


def test_std_15_server_in_a_terminal_ends_without_a_traceback_after_ctrl_c(tmp_path: Path) -> None:
    """Ctrl-C typed into the terminal that is the server's input, and its controlling terminal."""
    ours, theirs = pty.openpty()
    journal = Journal(tmp_path / "journal")
    env = {**os.environ, JOURNAL_VARIABLE: str(journal.path)}
    process = subprocess.Popen(
        [sys.executable, str(FIXTURE)],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(theirs, termios.TIOCSCTTY, 0),
    )
    try:
        os.write(ours, json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode() + b"\n")
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"jsonrpc": "2.0", "id": 1, "result": {}}
        os.write(ours, b"\x03")
        out, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out, err) == (0, b"", b"")
        assert journal.entries("end", tool="lifespan")
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


def test_child_processes_of_handlers_do_not_inherit_the_stdio_connection(tmp_path: Path) -> None:
    """A grandchild that lives on must not keep the client waiting for the end of the output."""
    with serving(tmp_path, revision=LATEST_LEGACY) as client:
        grandchild = int(client.text(client.call("spawn")))
        try:
            opened = [os.readlink(f"/proc/{grandchild}/fd/{name}") for name in os.listdir(f"/proc/{grandchild}/fd")]
            assert not [name for name in opened if name.startswith("pipe:")], opened
            assert client.finish() == 0  # reads to the end of the output
            assert is_alive(grandchild)
        finally:
            os.kill(grandchild, signal.SIGKILL)
            wait_until(lambda: not is_alive(grandchild))
