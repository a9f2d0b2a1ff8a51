"""Presented: the token that a request came with."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Final, Literal

import attrs

__all__ = ["Malformed", "Presented", "presented"]

_CREDENTIALS: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+)(?: +(.*))?")
"""RFC 9110 section 11.4."""
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""RFC 6750 section 2.1, ``b64token``; RFC 9449 section 7.1, ``token68``."""


class Malformed(Exception):
    """The Authorization header has one of our schemes, and no token behind."""


@attrs.frozen
class Presented:
    """A token, and how the client says to hold it."""

    scheme: Literal["bearer", "dpop"]
    token: str = attrs.field(repr=False)


def presented(authorization: str | None, schemes: Container[str]) -> Presented | None:
    """Return the token in the value of an Authorization header; `None` without a header, and for any scheme that is
    not in ``schemes``, ``bearer`` and ``dpop`` at most. Raises `Malformed`."""
    if not authorization:
        return None
    credentials = _CREDENTIALS.fullmatch(authorization)
    if credentials is None:
        raise Malformed
    scheme = credentials[1].lower()  # RFC 9110 section 11.1: in any case of letters
    if scheme not in schemes or (scheme != "bearer" and scheme != "dpop"):
        return None
    token = credentials[2]
    if not token or not _TOKEN.fullmatch(token):
        raise Malformed
    return Presented(scheme, token)
