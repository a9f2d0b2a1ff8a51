"""Child processes as members of a group, and what is left of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.interaction.client.raw import RawServer

from trio_mcp import Command
from trio_mcp.hosting import MemberDescription, RestartPolicy

__all__ = ["SERVES", "SOON", "children", "member", "pids_of", "running"]

SERVES = """
note("pid", pid=os.getpid())
handshake(capabilities={"tools": {}})
while (message := read()) is not None:
    method, name = message.get("method"), message.get("params", {}).get("name")
    if method == "tools/list":
        result(message, {"tools": [{"name": n, "inputSchema": {"type": "object"}} for n in ("echo", "wait", "die")]})
    elif name == "echo":
        text(message, str(os.getpid()))
    elif name == "die":
        os.write(2, b"what a day\\n")
        os.kill(os.getpid(), signal.SIGKILL)
"""
"""Offers ``echo``, which tells the process id, ``wait``, which is not answered, and ``die``."""

SOON = RestartPolicy(first_delay=0.01, jitter=0)


def member(
    raw: RawServer, *, restart: RestartPolicy | None = None, close_grace: float = 2.0, **options: Any
) -> MemberDescription:
    """The server as a member."""
    target = Command(raw.command, close_grace=close_grace)
    return MemberDescription(target, restart=restart, options={"era": "legacy", **options})  # type: ignore[typeddict-item]


def pids_of(raw: RawServer) -> list[int]:
    """Of all processes that wrote to its journal, in order."""
    return [entry["pid"] for entry in raw.of("pid")]


def running(pid: int) -> bool:
    """Whether it is alive. An orphan's zombie is its new parent's to reap, and not counted."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def children() -> set[int]:
    """All children of this process, zombies included."""
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(") ")[2].split()
        except OSError:  # gone meanwhile
            continue
        if int(fields[1]) == os.getpid():
            found.add(int(path.parent.name))
    return found
