"""Programs in a terminal: what they show, and what is typed."""

import fcntl
import os
import pty
import struct
import sys
import termios
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio
from tests.cli.commands import plain_environment
from tests.patience import PATIENCE


class Terminal:
    """The other end of a program's terminal: what it shows, and what is typed."""

    def __init__(self, process: trio.Process, fd: int) -> None:
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
        return await self.process.wait()

    async def _read(self) -> bool:
        await trio.lowlevel.wait_readable(self._fd)
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # EIO: nobody has the terminal open any more
            return False
        self.shown += data.decode(errors="replace")
        return bool(data)

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())


LOGIN = "import os, sys; os.login_tty(0); os.execv(sys.argv[1], sys.argv[1:])"
"""Makes standard input the controlling terminal, which turns Ctrl-C into a signal."""


@asynccontextmanager
async def in_terminal(command: Sequence[str], *, columns: int = 120) -> AsyncIterator[Terminal]:
    """A command in a terminal of its own."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    try:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-c", LOGIN, *command], stdin=theirs, stdout=theirs, stderr=theirs, env=plain_environment()
        )
        os.close(theirs)
        try:
            with trio.fail_after(PATIENCE):
                yield Terminal(process, ours)
        finally:
            process.kill()
    finally:
        os.close(ours)
