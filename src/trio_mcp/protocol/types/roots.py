"""Roots: the directories a client lets a server know of."""

from __future__ import annotations

from ...jsonrpc.values import value
from ..fields import JSONObject, since


@value
class Root:
    """A ``file://`` URI and a name to show for it."""

    uri: str
    name: str | None = None
    meta: JSONObject | None = since("2025-06-18")


@value
class ListRootsResult:
    """The roots of a client."""

    roots: list[Root]
    meta: JSONObject | None = since("2024-11-05", until="2025-11-25")
