"""The command line as its users meet it: a child process with arguments, output and an exit status."""

import os
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from textwrap import dedent

import attrs
import trio
from tests.forked import Forked, forked_command
from tests.patience import PATIENCE

TRIO_MCP = [sys.executable, "-m", "trio_mcp.cli.main"]
"""The command line. What begins like this is started the quick way by what is in here."""


def quick(*arguments: str) -> list[str]:
    """The command line with ``arguments``, for others to start: they get a process that starts the quick way."""
    return forked_command([*TRIO_MCP[1:], *arguments])


@attrs.frozen
class Ended:
    status: int
    stdout: str
    stderr: str


async def run(command: Sequence[str], *, stdin: bytes = b"", cwd: Path | None = None) -> Ended:
    """Run a command to its end."""
    with trio.fail_after(PATIENCE):
        if is_ours(command):
            return await _run_ours(command, stdin, cwd)
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


async def _run_ours(command: Sequence[str], stdin: bytes, cwd: Path | None) -> Ended:
    pipes = [os.pipe() for _ in range(3)]
    (their_input, our_input), (our_output, their_output), (our_errors, their_errors) = pipes
    process = forked(command, their_input, their_output, their_errors, cwd)
    texts = {our_output: b"", our_errors: b""}

    async def write() -> None:
        async with trio.lowlevel.FdStream(our_input) as stream:
            with suppress(trio.BrokenResourceError):
                await stream.send_all(stdin)

    async def read(fd: int) -> None:
        async with trio.lowlevel.FdStream(fd) as stream:
            texts[fd] = b"".join([part async for part in stream])

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            nursery.start_soon(read, our_output)
            nursery.start_soon(read, our_errors)
        return Ended(await process.ended(), *(text.decode() for text in texts.values()))
    finally:
        process.kill()


def is_ours(command: Sequence[str]) -> bool:
    """Whether it is `TRIO_MCP`."""
    return command[: len(TRIO_MCP)] == TRIO_MCP


def forked(command: Sequence[str], stdin: int, stdout: int, stderr: int, cwd: Path | None = None) -> Forked:
    """A process of `TRIO_MCP`; the descriptors are its alone from here on."""
    try:
        environment = plain_environment()
        return Forked(command[1:], stdin=stdin, stdout=stdout, stderr=stderr, env=environment, cwd=cwd)
    finally:
        for fd in {stdin, stdout, stderr}:
            os.close(fd)


def plain_environment() -> dict[str, str]:
    """Ours, without what talks a program into colours, and with a terminal that knows them."""
    unwanted = ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS")
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return {**kept, "TERM": "xterm-256color", "PYTHONUTF8": "1"}


def written(path: Path, code: str) -> str:
    """Write a Python file; its name."""
    path.write_text(dedent(code))
    return str(path)


async def answer_to(url: str, method: str, path: str) -> bytes:
    """The whole answer to a request without a body."""
    host, _, port = url.removeprefix("http://").partition("/")[0].partition(":")
    with trio.fail_after(PATIENCE):
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            return b"".join([data async for data in stream])


class Running:
    """``trio-mcp`` in a child process, line by line."""

    def __init__(self, process: Forked, stderr: trio.abc.ReceiveStream) -> None:
        self.process = process
        self._stderr = stderr
        self._text = ""

    async def line(self, pattern: str) -> str:
        """Wait for a line that matches on standard error; the first group of the match."""
        with trio.fail_after(PATIENCE):
            while not (found := re.search(pattern, self._text)):
                data = await self._stderr.receive_some()
                assert data, self._text
                self._text += data.decode()
        self._text = self._text[found.end() :]
        return found.group(1)

    async def close_stderr(self) -> None:
        """Read no more, as ``| head`` does when it ends."""
        await self._stderr.aclose()


@asynccontextmanager
async def running(*arguments: str) -> AsyncIterator[Running]:
    """``trio-mcp`` with ``arguments``; killed at the end unless it has exited."""
    ours, theirs = os.pipe()
    process = forked([*TRIO_MCP, *arguments], os.open(os.devnull, os.O_RDONLY), os.dup(1), theirs)
    try:
        async with trio.lowlevel.FdStream(ours) as stderr:
            yield Running(process, stderr)
    finally:
        process.kill()


@asynccontextmanager
async def served_page(*arguments: str) -> AsyncIterator[tuple[Forked, str]]:
    """The process that serves a page, ``trio-mcp inspect --web``, and the address that it has printed."""
    ours, theirs = os.pipe()
    command = [*TRIO_MCP, "inspect", "--web", *arguments]
    process = forked(command, os.open(os.devnull, os.O_RDONLY), theirs, os.open(os.devnull, os.O_WRONLY))
    try:
        async with trio.lowlevel.FdStream(ours) as output:
            said = b""
            with trio.fail_after(PATIENCE):
                while not said.endswith(b"\n"):
                    data = await output.receive_some()
                    assert data, "it has ended"
                    said += data
            yield process, said.decode().strip()
    finally:
        process.kill()
