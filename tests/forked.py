"""Forked: child processes that need not import what all of them import.

To start Python and to import trio, msgspec and trio-mcp takes longer than most scenarios do. So a process that has done
that is started once, and forks the others. Each of those is a process as any other: it has its own id, session,
descriptors, environment, arguments and directory, a terminal at its standard input controls it, it runs the same
program from the same file, and it ends as a Python process ends. Only its modules are there already. Where the start of
a process is what is tested, there is `subprocess`.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import trio

__all__ = ["Forked", "forked_command"]

FORK_SERVER = Path(__file__).with_name("fork_server.py")
COMMAND = Path(__file__).with_name("forked_command.py")
NAME = f"trio-mcp-tests-{os.getpid()}-{secrets.token_hex(8)}"
"""Where the fork server of this process is reached by processes that it has not forked."""
COMMANDS = Path(__file__).parents[1] / "src" / "trio_mcp" / "cli" / "commands"
MODULES = [
    *(f"trio_mcp.cli.commands.{file.stem}" for file in sorted(COMMANDS.glob("[a-z]*.py"))),
    "trio_mcp.cli.group",
    "trio_mcp.serving.http.serve",
    "trio_mcp.serving.process",
    "trio_mcp.serving.websocket",
    "trio_mcp.serving.connections",
    *("rich._emoji_codes", "rich._unicode_data", "rich.live", "rich.table"),
]


class Forked:
    """A process that does what ``python`` does with ``arguments``, in a session of its own. It has the interface of
    `subprocess.Popen`, as far as that is needed here."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        stdin: int,
        stdout: int,
        stderr: int,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.args = list(arguments)
        self.returncode: int | None = None
        program = {"arguments": self.args, "env": dict(env or os.environ), "cwd": str(cwd or Path.cwd())}
        ours, theirs = os.pipe()
        self._told = os.fdopen(ours, "rb", buffering=0)
        try:
            socket.send_fds(fork_server(), [json.dumps(program).encode()], [stdin, stdout, stderr, theirs])
        finally:
            os.close(theirs)
        self.pid = int(self._told.readline())
        """It has its descriptors and its session when this is known."""

    def send_signal(self, number: int) -> None:
        """Send it, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it, unless it has ended, and wait for that."""
        self.send_signal(signal.SIGKILL)
        self.wait()

    def poll(self) -> int | None:
        """The exit status, if it has ended."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, when it has ended; for a signal its number below zero. Raises
        `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = os.waitstatus_to_exitcode(int(self._told.readline()))
            self._told.close()
        return self.returncode

    async def ended(self) -> int:
        """What `wait` returns, for trio."""
        if self.returncode is None:
            await trio.lowlevel.wait_readable(self._told)
        return self.wait()


@cache
def fork_server() -> socket.socket:
    """The socket of the one that forks for this process, which starts it, and ends it when it ends itself."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command: list[Any] = [sys.executable, "-P", FORK_SERVER, str(theirs.fileno()), NAME, *MODULES]
        # What may be said to Python only when it starts is what the tests say.
        env = {**os.environ, "PYTHONUTF8": "1"}
        env.pop("PYTHONUNBUFFERED", None)
        null = subprocess.DEVNULL
        process = subprocess.Popen(command, stdin=null, stdout=null, env=env, pass_fds=[theirs.fileno()])
    assert ours.recv(100) == b"listening", "the fork server has ended"

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def forked_command(arguments: Sequence[str]) -> list[str]:
    """A command for others, as ``python`` with ``arguments``. Its process, a bare Python that starts quickly, stands
    for one that is forked: it hands on its descriptors, its signals, and the exit status."""
    fork_server()
    return [sys.executable, "-S", "-E", str(COMMAND), NAME, *arguments]
