"""Declared: the capabilities that a client has declared, limited to those of the client's revision."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from .methods import METHODS
from .revisions import Revision
from .types.capabilities import ClientCapabilities

ASKED_BY: Final[Mapping[str, str]] = {
    "sampling": "sampling/createMessage",
    "elicitation": "elicitation/create",
    "roots": "roots/list",
}
"""Capabilities that allow requests to a client, and the requests."""

_ALWAYS: Final = frozenset(("sampling.context", "elicitation.form"))
"""Parts that belonged to the whole capability before parts were declared (2025-11-25 changelog)."""


def has_capability(revision: Revision, path: str) -> bool:
    """Return whether a client that speaks ``revision`` can declare ``path``, ``"sampling.tools"`` for example.

    A capability that allows no request, such as an extension, can be declared in all revisions.
    """
    kind, _, part = path.partition(".")
    if kind == "tasks":
        return revision.tasks == "core"
    method = ASKED_BY.get(kind)
    if method is None:
        return True
    return METHODS[method].since <= revision.name and (not part or revision.sub_capabilities or path in _ALWAYS)


def declares(capabilities: ClientCapabilities, path: str, revision: Revision) -> bool:
    """Return whether a client that speaks ``revision`` and declared ``capabilities`` supports ``path``.

    A member introduced by a later revision is ignored. In a revision that declares no parts, each part is supported
    with the whole.
    """
    said = _said_as(revision, path)
    return said is not None and capabilities.supports(said)


@lru_cache(maxsize=256)
def _said_as(revision: Revision, path: str) -> str | None:
    """Return the path that a client of ``revision`` declares to support ``path``; `None` if there is no such path."""
    if not has_capability(revision, path):
        return None
    return path if revision.sub_capabilities or path not in _ALWAYS else path.partition(".")[0]
