"""The modules from which users import."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

FACE = ("trio_mcp", "trio_mcp.types", "trio_mcp.auth", "trio_mcp.stores", "trio_mcp.hosting")
"""Each name is in one of these."""
NAMESPACES = (
    *FACE,
    "trio_mcp.testing",
    "trio_mcp.aio",
    "trio_mcp.blocking",
    "trio_mcp.cli",
    "trio_mcp.otel",
    "trio_mcp.prometheus",
)


def module(namespace: str) -> ModuleType:
    return import_module(namespace)


def names(*namespaces: str) -> dict[str, Any]:
    """The public things of the ``namespaces``, by their names."""
    return {name: getattr(module(each), name) for each in namespaces for name in module(each).__all__}
