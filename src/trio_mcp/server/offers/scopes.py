"""Scopes that the caller of a tool, a prompt or a resource needs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_SCOPE: Final = re.compile(r"[!#-\[\]-~]+")
"""RFC 6749 section 3.3."""


def checked_scopes(name: str, scopes: Sequence[str]) -> frozenset[str]:
    """Return the ``scopes`` of the offer ``name``. Raises `TypeError` for a text in place of several scopes, and
    `ValueError` for a scope that cannot stand in a token."""
    if isinstance(scopes, str):
        raise TypeError(f"{name}: scopes are several:\n    wrong:  scopes={scopes!r}\n    right:  scopes=[{scopes!r}]")
    for scope in scopes:
        if not _SCOPE.fullmatch(scope):
            raise ValueError(f"{name}: {scope[:200]!r} is no scope: no blanks, quotes and backslashes, ASCII alone")
    return frozenset(scopes)
