"""What is measured: the shop with each SDK."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..environments import ROOT, bun_of, go_of, node_of, python_of

__all__ = ["SUBJECTS", "ShopServer"]

_HERE = Path(__file__).parent
_SERVERS = _HERE.parent / "servers"

_CLIENTS = ("redis[hiredis]", "httpx2", "uvicorn[standard]")
_OURS = ("-e", f"{ROOT}[redis]", "httpx2")
_OFFICIAL = ("mcp>=2.3,<3", *_CLIENTS)
_FASTMCP = ("fastmcp>=4.1,<5", *_CLIENTS)
_PACKAGES = _HERE / "typescript"


@dataclass(frozen=True)
class ShopServer:
    """A server. ``command`` makes its environment where there is none, and raises `subprocess.CalledProcessError` where
    that cannot be had. ``stack``: what it consists of."""

    name: str
    stack: str
    command: Callable[[], list[str]]


def _python(requirements: tuple[str, ...], program: str) -> Callable[[], list[str]]:
    return lambda: [str(python_of(requirements)), str(_SERVERS / program)]


SUBJECTS = (
    ShopServer("trio-mcp", "`serve_http`, coredis, httpx2", _python(_OURS, "trio_mcp_shop.py")),
    ShopServer(
        "mcp",
        "uvicorn with uvloop and httptools, redis-py with hiredis, httpx2",
        _python(_OFFICIAL, "official_shop.py"),
    ),
    ShopServer("fastmcp", "the same", _python(_FASTMCP, "fastmcp_shop.py")),
    ShopServer("TypeScript 2, Node", "`node:http`, ioredis, `fetch`", lambda: node_of("shop.mjs", _PACKAGES)),
    ShopServer("TypeScript 2, Bun", "the same program", lambda: bun_of("shop.mjs", _PACKAGES)),
    ShopServer("go-sdk", "`net/http`, go-redis", lambda: go_of(_HERE / "go")),
)
