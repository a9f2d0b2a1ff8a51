"""Subjects: what is measured."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from .driver.cores import DRIVER_CORES
from .environments import FASTMCP, NODE, OFFICIAL, OURS, node_of, python_of

__all__ = [
    "BESIDE_ASYNCIO",
    "CLIENTS",
    "FLOOR",
    "LEGACY_HTTP_SERVERS",
    "MODERN_HTTP_SERVERS",
    "OURS_NAME",
    "PIPE_SERVERS",
    "SOCKET_SERVERS",
    "Subject",
]

_HERE = Path(__file__).parent

FLOOR = "floor"
OURS_NAME = "trio-mcp"


@dataclass(frozen=True)
class Subject:
    """A program, in an environment. ``scale``: see `Session`. ``lacks``: names of the probes that it does not serve."""

    name: str
    requirements: tuple[str, ...]
    program: str
    arguments: tuple[str, ...] = ()
    scale: float = 1.0
    lacks: frozenset[str] = frozenset()

    def command(self) -> list[str]:
        """How it is started."""
        if self.requirements == NODE:
            return [*node_of(self.program), *self.arguments]
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

_SLOW_HTTP = 0.1
_NODE = 0.3
_NO_LOGS = frozenset({"streamed"})
_NO_LISTENING = frozenset({"listening"})

_HTTP_FLOORS = (
    Subject(FLOOR, OURS, "servers/floor_http.py", ("h11",)),
    Subject("h11, written by hand", OURS, "servers/floor_http.py", ("written",)),
    Subject("httptools", OURS, "servers/floor_http.py", ("httptools",)),
    Subject(OURS_NAME, OURS, "servers/trio_mcp_http.py"),
)

_HTTP_PEERS = (
    Subject("mcp", OFFICIAL, "servers/official_http.py", ("events",), _SLOW_HTTP),
    Subject("mcp, JSON", OFFICIAL, "servers/official_http.py", ("json",), _SLOW_HTTP, _NO_LOGS),
    Subject("fastmcp", FASTMCP, "servers/fastmcp_http.py", (), _SLOW_HTTP, _NO_LISTENING),
    Subject("TypeScript 2", NODE, "http_2.mjs", (), _NODE),
)

_TOKEN = f"{'a' * 60}.{'b' * 640}.{'c' * 86}"
"""As long as a usual JWT, signed with ES256."""
_PROTECTED = Subject(f"{OURS_NAME}, protected", OURS, "servers/trio_mcp_http.py", ("--token", _TOKEN))

BESIDE_ASYNCIO = (
    Subject(OURS_NAME, OURS, "servers/trio_mcp_http.py"),
    Subject(f"{OURS_NAME}, uvicorn", (*OURS, "uvicorn"), "servers/trio_mcp_uvicorn.py"),
    *(peer for peer in _HTTP_PEERS if peer.name == "mcp, JSON"),
)
"""The same tools natively, and as an ASGI application beside an event loop of asyncio."""

MODERN_HTTP_SERVERS = (*_HTTP_FLOORS, _PROTECTED, *_HTTP_PEERS)
"""Over HTTP the floor reads and writes with h11."""

LEGACY_HTTP_SERVERS = (*_HTTP_FLOORS, *_HTTP_PEERS, Subject("TypeScript 1", NODE, "http_1.mjs", (), _NODE))


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
