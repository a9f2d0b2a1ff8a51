"""Openings of the connections of recordings: by a handshake, or by requests that each name a modern revision."""

from __future__ import annotations

from typing import Any, cast

from ..classes import frozen
from ..protocol.meta import PROTOCOL_VERSION
from .entries import Recorded


@frozen
class ConnectionOpening:
    """The beginning of the first connection in a recording."""

    legacy: str | None = None
    """The revision that ``initialize`` offered; `None` where there was none."""
    modern: str | None = None
    """The modern revision of the first request; `None` where a handshake came first."""


def opening_of(recorded: Recorded) -> ConnectionOpening:
    """Return how the client of ``recorded`` has begun: by its first request that was answered with a result. Raises
    `OSError` and `BadRecording`."""
    begun: dict[Any, ConnectionOpening] = {}
    for entry in recorded:
        for message in entry.messages:
            key = message.get("id") if isinstance(message.get("id"), int | str) else None
            if "method" in message and key is not None:
                begun.setdefault(key, _opened_by(message))
            elif "result" in message and key in begun:
                return begun[key]
            if len(begun) > _MOST:
                return ConnectionOpening()
    return ConnectionOpening()


_MOST = 100
"""Requests among which the first one is that was answered."""


def _opened_by(message: dict[str, Any]) -> ConnectionOpening:
    params: Any = message.get("params")
    if message.get("method") == "initialize" and isinstance(params, dict):
        revision = cast("dict[str, Any]", params).get("protocolVersion")
        return ConnectionOpening(legacy=revision if isinstance(revision, str) else None)
    revision = meta_of(params).get(PROTOCOL_VERSION)
    return ConnectionOpening(modern=revision if isinstance(revision, str) else None)


def meta_of(params: Any) -> dict[str, Any]:
    """Return the ``_meta`` of ``params``; empty where there is none."""
    found: Any = cast("dict[str, Any]", params).get("_meta") if isinstance(params, dict) else None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
