"""Programs in a terminal: what they show, and what is typed."""

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio
from tests.cli.commands import forked, is_ours, plain_environment
from tests.forked import Forked
from tests.patience import PATIENCE


class Terminal:
    """The other end of a program's terminal: what it shows, and what is typed."""

    def __init__(self, process: trio.Process | Forked, fd: int) -> None:
        self.process = process
        self._fd = fd
        self.shown = ""

    async def read_until(self, words: str) -> None:
        while words not in self.shown:
            assert await self._read(), f"ended without {words!r}:\n{self.shown}"

    async def read_to_end(self) -> int:
        """The exit status."""
        while await self._read():
            pass
        return await (self.process.ended() if isinstance(self.process, Forked) else self.process.wait())

    async def _read(self) -> bool:
        await trio.lowlevel.wait_readable(self._fd)
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # EIO: nobody has the terminal open any more
            return False
        self.shown += data.decode(errors="replace")
        return bool(data)

    def close(self) -> None:
        """Close the terminal, as one closes its window."""
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, self._fd)
        os.close(null)

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())


LOGIN = "import os, sys; os.login_tty(0); os.execv(sys.argv[1], sys.argv[1:])"
"""Makes standard input the controlling terminal, which turns Ctrl-C into a signal."""


async def _started(command: Sequence[str], terminal: int) -> trio.Process | Forked:
    if is_ours(command):
        return forked(command, terminal, terminal, terminal)
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
    try:
        command = [sys.executable, "-S", "-c", LOGIN, *command]
        return await trio.lowlevel.open_process(command, **streams, env=plain_environment())
    finally:
        os.close(terminal)


@asynccontextmanager
async def in_terminal(command: Sequence[str], *, columns: int = 120) -> AsyncIterator[Terminal]:
    """A command in a terminal of its own."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    try:
        process = await _started(command, theirs)
        try:
            with trio.fail_after(PATIENCE):
                yield Terminal(process, ours)
        finally:
            process.kill()
    finally:
        os.close(ours)


def plain(shown: str) -> str:
    """What is left without the control codes."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown).replace("\r\n", "\n")


async def answer(terminal: Terminal, *dialogue: tuple[str, str]) -> None:
    """Type each answer once its question is there."""
    for question, typed in dialogue:
        await terminal.read_until(question)
        terminal.type(typed)
