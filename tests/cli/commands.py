"""The command line as its users meet it: a child process with arguments, output and an exit status."""

import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from textwrap import dedent

import attrs
import trio
from tests.patience import PATIENCE

TRIO_MCP = [sys.executable, "-m", "trio_mcp.cli.main"]


@attrs.frozen
class Ended:
    status: int
    stdout: str
    stderr: str


async def run(command: Sequence[str], *, stdin: bytes = b"", cwd: Path | None = None) -> Ended:
    """Run a command to its end."""
    with trio.fail_after(PATIENCE):
        done = await trio.run_process(
            command,
            stdin=stdin,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            cwd=cwd,
            env=plain_environment(),
        )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


def plain_environment() -> dict[str, str]:
    """Ours, without what talks a program into colours, and with a terminal that knows them."""
    unwanted = ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS")
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return {**kept, "TERM": "xterm-256color", "PYTHONUTF8": "1"}


def written(path: Path, code: str) -> str:
    """Write a Python file; its name."""
    path.write_text(dedent(code))
    return str(path)


class Running:
    """``trio-mcp`` in a child process, line by line."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self._text = ""

    async def line(self, pattern: str) -> str:
        """Wait for a line that matches on standard error; the first group of the match."""
        assert self.process.stderr is not None
        with trio.fail_after(PATIENCE):
            while not (found := re.search(pattern, self._text)):
                data = await self.process.stderr.receive_some()
                assert data, self._text
                self._text += data.decode()
        self._text = self._text[found.end() :]
        return found.group(1)


@asynccontextmanager
async def running(*arguments: str) -> AsyncIterator[Running]:
    """``trio-mcp`` with ``arguments``; killed at the end unless it has exited."""
    process = await trio.lowlevel.open_process([*TRIO_MCP, *arguments], stderr=subprocess.PIPE, env=plain_environment())
    try:
        yield Running(process)
    finally:
        process.kill()
        await process.wait()
