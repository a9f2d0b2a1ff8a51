"""Subjects: what is measured."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from .driver.cores import DRIVER_CORES
from .environments import FASTMCP, OFFICIAL, OURS, python_of

__all__ = ["CLIENTS", "FLOOR", "OURS_NAME", "PIPE_SERVERS", "SOCKET_SERVERS", "Subject"]

_HERE = Path(__file__).parent

FLOOR = "floor"
OURS_NAME = "trio-mcp"


@dataclass(frozen=True)
class Subject:
    """A program, in an environment. ``scale``: see `Session`."""

    name: str
    requirements: tuple[str, ...]
    program: str
    arguments: tuple[str, ...] = ()
    scale: float = 1.0

    def command(self) -> list[str]:
        """How it is started."""
        return [str(python_of(self.requirements)), str(_HERE / self.program), *self.arguments]


_SLOW = 0.03

PIPE_SERVERS = (
    Subject(FLOOR, OURS, "servers/floor_stdio.py"),
    Subject(OURS_NAME, OURS, "servers/trio_mcp_stdio.py"),
    Subject("mcp, asyncio", OFFICIAL, "servers/official_stdio.py", ("asyncio",), _SLOW),
    Subject("mcp, trio", OFFICIAL, "servers/official_stdio.py", ("trio",), _SLOW),
    Subject("fastmcp", FASTMCP, "servers/fastmcp_stdio.py", scale=_SLOW),
)

SOCKET_SERVERS = (
    Subject(FLOOR, OURS, "servers/bare_websocket.py"),
    Subject(OURS_NAME, OURS, "servers/trio_mcp_websocket.py"),
)
"""Over WebSocket the floor is a bare trio-websocket loop."""


def _client(name: str, requirements: tuple[str, ...], program: str, *arguments: str, scale: float = 1.0) -> Subject:
    cores = ",".join(map(str, sorted(DRIVER_CORES)))
    server = (str(_HERE / "servers/raw.py"), cores)
    return Subject(name, requirements, program, (*arguments, sys.executable, *server), scale)


CLIENTS = (
    _client(FLOOR, OURS, "clients/floor_client.py"),
    _client(OURS_NAME, OURS, "clients/trio_mcp_client.py"),
    _client("mcp, asyncio", OFFICIAL, "clients/official_client.py", "asyncio", scale=_SLOW),
    _client("mcp, trio", OFFICIAL, "clients/official_client.py", "trio", scale=_SLOW),
    _client("fastmcp", FASTMCP, "clients/fastmcp_client.py", scale=_SLOW),
)
"""They start the raw server themselves, on the driver's core."""
