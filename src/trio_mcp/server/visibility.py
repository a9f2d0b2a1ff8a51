"""Visibility: which offers of a server exist for a caller, and which scopes an offer needs.

An author says so by ``visible=`` and ``scopes=``; a `Registry` of offers asks here, for listings and for requests.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias

from ..lazy import lazy_pattern
from ..runtime.peer import Auth

logger = logging.getLogger("trio_mcp")

Visible: TypeAlias = Callable[[Auth | None], Any]
"""Tells by its truth whether something exists for a caller; `None`: nobody knows who calls."""


class Offer(Protocol):
    """Something that a server offers to callers, to all or to some."""

    @property
    def scopes(self) -> frozenset[str]:
        """Scopes that a caller must have."""
        ...

    @property
    def visible(self) -> Visible | None:
        """Tells for whom the offer exists, and never raises; `None`: for everybody."""
        ...

    @property
    def tags(self) -> frozenset[str]:
        """Words of the author, by which offers are disabled and enabled."""
        ...


def depends_on_caller(offer: Offer) -> bool:
    """Return whether some callers may see ``offer`` and others not."""
    return bool(offer.scopes) or offer.visible is not None


def checked_visible(name: str, visible: Visible | None) -> Visible | None:
    """Return the predicate ``visible`` of the offer ``name``, as one that never raises. Raises `TypeError` for
    anything but a plain function of the caller."""
    if visible is None:
        return None
    try:
        inspect.signature(visible).bind(None)
        fits = not inspect.iscoroutinefunction(visible)
    except TypeError:
        fits = False
    if not fits:
        raise TypeError(
            f"{name}: visible is a plain function of the caller, an Auth or None:\n"
            '    right:  visible=lambda auth: auth is not None and "admin" in auth.scopes'
        )
    is_told = False

    def is_visible(auth: Auth | None) -> bool:
        nonlocal is_told
        try:
            return _truth(visible(auth))
        except Exception:
            if not is_told:
                is_told = True
                logger.exception("%s is hidden: its visible=... failed, which is not logged again", name)
            return False

    return is_visible


def _truth(answer: Any) -> bool:
    """Return the truth of an answer. Raises `TypeError` for an awaitable, which nobody waits for, and which is true."""
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise TypeError("visible=... returned an awaitable: it is a plain function")
    return bool(answer)


_SCOPE: Final = lazy_pattern(r"[!#-\[\]-~]+")
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


def checked_tags(name: str, tags: Sequence[str]) -> frozenset[str]:
    """Return the ``tags`` of the offer ``name``. Raises `TypeError` for anything but several texts."""
    if isinstance(tags, str) or not all(isinstance(tag, str) for tag in tags):  # pyright: ignore[reportUnnecessaryIsInstance] authors' own
        raise TypeError(f'{name}: tags are several texts:\n    wrong:  tags={tags!r}\n    right:  tags=["beta"]')
    return frozenset(tags)
