"""The redirects that are followed: to another path of the same origin, with the same request."""

from __future__ import annotations

from typing import Final
from urllib.parse import urljoin

from .origin import Origin, split_url

MOST_REDIRECTS: Final = 5
_KEEPING: Final = frozenset((307, 308))
_CHANGING: Final = frozenset((301, 302, 303))
"""Statuses after which clients send GET instead of POST (RFC 9110 sections 15.4.2 to 15.4.4)."""
_SAFE: Final = frozenset(("GET", "HEAD"))


def redirected(origin: Origin, method: str, target: str, status: int, location: str | None) -> str | None:
    """Return the target to ask instead of ``target``, or `None` where the answer must not be followed.

    The redirect must stay within ``origin``, because the request carries credentials for the origin, and must not turn
    the request into another one.
    """
    if status not in _KEEPING and not (status in _CHANGING and method in _SAFE):
        return None
    if not location:
        return None
    try:
        # RFC 9110 section 10.2.2: a fragment is for the user agent alone.
        elsewhere, path = split_url(urljoin(f"{origin}{target}", location).partition("#")[0])
    except ValueError:
        return None
    return path if elsewhere == origin else None
