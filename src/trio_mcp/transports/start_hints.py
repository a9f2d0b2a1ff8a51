"""Why a command could not be started: hints for the error, and the command as it was given."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from ..jsonrpc.errors import clean

_LONGEST = 300
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
