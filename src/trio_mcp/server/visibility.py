"""Visibility: which tools, resources and prompts exist for a caller, and which OAuth scopes each of them needs.

Authors set it with ``visible=`` and ``scopes=``. A `Registry` consults this module for listings and for requests.
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
"""Predicate that decides whether a tool, resource or prompt exists for a caller. It takes an `Auth`, or `None` if the
caller is unauthenticated."""


class Offer(Protocol):
    """A tool, resource, template, prompt or skill that a server offers to all callers, or only to some of them."""

    @property
    def scopes(self) -> frozenset[str]:
        """OAuth scopes that a caller needs to use the tool, resource or prompt."""
        ...

    @property
    def visible(self) -> Visible | None:
        """Function that is called with the caller and returns whether the caller can see the tool, resource or prompt.

        The function never raises. `None` if all callers can see it.
        """
        ...

    @property
    def tags(self) -> frozenset[str]:
        """Tags by which the author can disable and enable tools, resources and prompts."""
        ...


def depends_on_caller(offer: Offer) -> bool:
    """Return whether only some callers can see the tool, resource or prompt ``offer``."""
    return bool(offer.scopes) or offer.visible is not None


def checked_visible(name: str, visible: Visible | None) -> Visible | None:
    """Return a function that calls ``visible`` and never raises. ``visible`` decides which callers can see the tool,
    resource or prompt ``name``.

    Raises `TypeError` unless ``visible`` is a plain function that takes the caller.
    """
    if visible is None:
        return None
    try:
        inspect.signature(visible).bind(None)
        fits = not inspect.iscoroutinefunction(visible)
    except TypeError:
        fits = False
    if not fits:
        raise TypeError(
            f"{name}: visible must be a plain function that takes the caller, an Auth or None:\n"
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
                logger.exception("%s is hidden: its visible=... raised an exception, which is logged only once", name)
            return False

    return is_visible


def _truth(answer: Any) -> bool:
    """Return ``answer``, the result of a predicate, as a `bool`. Raises `TypeError` for an awaitable, because every
    awaitable counts as true."""
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise TypeError("visible=... returned an awaitable: it must be a plain function")
    return bool(answer)


_SCOPE: Final = lazy_pattern(r"[!#-\[\]-~]+")
"""The characters that an OAuth scope may have (RFC 6749 section 3.3)."""


def checked_scopes(name: str, scopes: Sequence[str]) -> frozenset[str]:
    """Validate the ``scopes`` of the tool, resource or prompt ``name``, and return them as a set.

    Raises `TypeError` for a single string, and `ValueError` for a scope that cannot occur in a token.
    """
    if isinstance(scopes, str):
        raise TypeError(
            f"{name}: scopes must be a list:\n    wrong:  scopes={scopes!r}\n    right:  scopes=[{scopes!r}]"
        )
    for scope in scopes:
        if not _SCOPE.fullmatch(scope):
            raise ValueError(
                f"{name}: {scope[:200]!r} is not a valid scope: use ASCII without spaces, quotes and backslashes"
            )
    return frozenset(scopes)


def checked_tags(name: str, tags: Sequence[str]) -> frozenset[str]:
    """Validate the ``tags`` of the tool, resource or prompt ``name``, and return them as a set. Raises `TypeError`
    unless the tags are a collection of strings."""
    if isinstance(tags, str) or not all(isinstance(tag, str) for tag in tags):  # pyright: ignore[reportUnnecessaryIsInstance] - for untyped code
        raise TypeError(
            f'{name}: tags must be a list of strings:\n    wrong:  tags={tags!r}\n    right:  tags=["beta"]'
        )
    return frozenset(tags)
