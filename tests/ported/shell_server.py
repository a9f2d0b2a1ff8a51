"""Commands that an operator has allowed: a port of `mcp-shell-server` (github.com/tumf/mcp-shell-server, written with
the low-level server of the Python SDK and asyncio's processes), but for redirections and rules of single commands.

ALLOW_COMMANDS=ls,cat python shell_server.py
"""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import suppress
from functools import partial
from typing import Any

import trio

from trio_mcp import Server, ToolError, run_process_tree, serve_stdio
from trio_mcp.types import TextContent

__all__ = ["make_server"]

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "command": {
            "type": "array",
            "items": {"type": "string"},
            "description": "A program and its arguments; a | begins another.",
        },
        "stdin": {"type": "string", "description": "What the first program reads."},
        "directory": {"type": "string", "description": "Where they run."},
        "timeout": {"type": "integer", "minimum": 1, "description": "Seconds after which the programs end."},
    },
    "required": ["command"],
}
OPERATORS = {";", "&&", "||", "&", ">", ">>", "<"}


def stages(command: list[str], allowed: re.Pattern[str]) -> list[list[str]]:
    """The commands of a pipeline, all of which are allowed."""
    found: list[list[str]] = [[]]
    for word in command:
        if word in OPERATORS:
            raise ToolError(f"no operator of shells: {word}")
        if word == "|":
            found.append([])
        else:
            found[-1].append(word)
    for stage in found:
        if not stage:
            raise ToolError("a program is missing")
        if not allowed.fullmatch(stage[0]):
            raise ToolError(f"not allowed: {stage[0]}")
    return found


async def run(command: list[str], stdin: bytes, directory: str, most: int) -> tuple[int, bytes, bytes]:
    """Run one command, and read up to ``most`` bytes of what it writes."""
    output: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
    start = partial(
        run_process_tree, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False
    )
    async with trio.open_nursery() as nursery:

        async def feed(stream: trio.abc.SendStream) -> None:
            async with stream:
                with suppress(trio.BrokenResourceError):  # the command reads no more
                    await stream.send_all(stdin)

        async def collect(name: str, stream: trio.abc.ReceiveStream) -> None:
            while chunk := await stream.receive_some(65536):
                output[name] += chunk
                if len(output["stdout"]) + len(output["stderr"]) > most:
                    nursery.cancel_scope.cancel(reason="too much output")

        try:
            process: trio.Process = await nursery.start(partial(start, command, cwd=directory))
        except FileNotFoundError:
            raise ToolError(f"there is no program {command[0]}") from None
        assert process.stdin
        assert process.stdout
        assert process.stderr
        nursery.start_soon(feed, process.stdin)
        nursery.start_soon(collect, "stdout", process.stdout)
        nursery.start_soon(collect, "stderr", process.stderr)
    if nursery.cancel_scope.cancelled_caught:
        raise ToolError(f"The command wrote more than {most} bytes")
    assert process.returncode is not None
    return process.returncode, bytes(output["stdout"]), bytes(output["stderr"])


def make_server(
    commands: str = "", patterns: str = "", *, default: int = 15, longest: int = 300, most: int = 1_000_000
) -> Server:
    """``commands`` and ``patterns`` of allowed ones, with commas; times in seconds, and bytes of output."""
    names = [name.strip() for name in commands.split(",") if name.strip()]
    allowed = re.compile("|".join([*map(re.escape, names), *filter(None, patterns.split(","))]) or r"(?!)")
    server = Server("mcp-shell-server")

    @server.tool(
        description=f"Run programs that are allowed: {', '.join(names)}; by pattern: {patterns}",
        input_schema=SCHEMA,
    )
    async def shell_execute(arguments: dict[str, Any]) -> list[TextContent]:
        directory = str(await trio.Path(arguments.get("directory", ".")).absolute())
        if not await trio.Path(directory).is_dir():
            raise ToolError(f"there is no directory {directory}")
        seconds = min(arguments.get("timeout", default), longest)
        data, errors, status = arguments.get("stdin", "").encode(), b"", 0
        with trio.move_on_after(seconds) as scope:
            for stage in stages(arguments["command"], allowed):
                status, data, errors = await run(stage, data, directory, most)
                if status:
                    break
        if scope.cancelled_caught:
            raise ToolError(f"no end after {seconds} seconds")
        texts = [text.decode(errors="replace") for text in (data, errors) if text]
        if status:
            raise ToolError("\n".join([f"exit status {status}", *texts]))
        return [TextContent(text) for text in texts]

    return server


if __name__ == "__main__":
    allow = {key: os.environ.get(f"ALLOW_{key.upper()}", "") for key in ("commands", "patterns")}
    trio.run(serve_stdio, make_server(**allow))
