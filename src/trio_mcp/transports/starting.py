"""The start of a command: why it failed, and the output of a child before its connection is open."""

from __future__ import annotations

import codecs
import os
import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import trio

from ..jsonrpc.errors import clean

_LONGEST: Final = 300
"""Characters of a command, or of a path, that an error repeats."""


def shown_command(command: Sequence[str | os.PathLike[str]]) -> str:
    """Return the command as a shell would take it, printable and cut."""
    text = shlex.join(os.fsdecode(word) for word in command)
    return clean(text[:_LONGEST]) + ("…" if len(text) > _LONGEST else "")


def start_hint(program: str, cwd: str | os.PathLike[str] | None, search_path: str | None) -> str:
    """Return a hint about a ``program`` that the system has refused to start; empty if there is none."""
    if program.startswith("~"):
        return f"; only a shell expands '~': write {os.path.expanduser(program)[:_LONGEST]!r}"
    beside = Path(cwd or ".", program)
    found = shutil.which(program, os.F_OK, search_path) if "/" not in program else str(beside)
    if found is None or not os.path.exists(found):
        if len(words := program.split()) > 1:
            return f"; the program and its arguments must be separate words: {str(words[:20])[:_LONGEST]}"
        return f"; for the file in the working directory write ./{program}" if beside.is_file() else ""
    if not os.path.isfile(found) or not os.access(found, os.X_OK):
        return f"; {found[:_LONGEST]!r} is not an executable file: write its interpreter before it"
    with open(found, "rb") as file:
        line = file.read(_LONGEST).split(b"\n")[0]
    if not line.startswith(b"#!"):
        return "; it may need an interpreter before it, such as python or node"
    interpreter = os.fsdecode(line[2:].strip(b" \t").split(b" ")[0])
    return f"; its first line names the interpreter {interpreter!r}, which could not be started"


_AFTER_TEXT: Final = re.compile(
    rb'^([^{\n]++)(?=\{\s*"(?:jsonrpc|id|result|error)"(?![^\n]*"method")[^\n]*\}\r?\n)', re.MULTILINE
)
"""Text without a line end before an answer. Other messages may be copies in the log of the child."""


class EarlyOutput(trio.abc.ReceiveStream):
    """The stream ``source``. ``sink`` gets its text, and an answer after text on the same line gets its own line."""

    def __init__(self, source: trio.abc.ReceiveStream, sink: Callable[[str], object]) -> None:
        self._source = source
        self._sink = sink
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self._in_text = self._in_message = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Receive: see `trio.abc.ReceiveStream.receive_some`."""
        data = await self._source.receive_some(max_bytes)
        self._sink(self._text.decode(data))
        if not data:
            return data
        data = _AFTER_TEXT.sub(rb"\1\n", b" " + data if self._in_text else data)
        _, newline, rest = data.rpartition(b"\n")
        self._in_message = b"{" in rest or (self._in_message and not newline)
        self._in_text = bool(rest) and not self._in_message
        return data

    async def aclose(self) -> None:
        """Close the stream."""
        await self._source.aclose()
