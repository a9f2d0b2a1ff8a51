"""Presented: the token that a request came with."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Final, Literal

import attrs

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""RFC 6750 section 2.1, ``b64token``; RFC 9449 section 7.1, ``token68``."""
_SCHEME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""RFC 9110 section 11.1."""


class Malformed(Exception):
    """The Authorization header has one of our schemes, and no token behind."""


@attrs.define(eq=False)
class Presented:
    """A token, and the scheme by which it came."""

    scheme: Literal["bearer", "dpop"]
    token: str = attrs.field(repr=False)

    def check(self) -> None:
        """Raise `Malformed` where the token has other characters than tokens have. Takes longer than all else here, so
        that known tokens are not checked again."""
        if not _TOKEN.fullmatch(self.token):
            raise Malformed


def presented(authorization: str | None, schemes: Container[str]) -> Presented | None:
    """Return the token in the value of an Authorization header; `None` without a header, and for any scheme that is
    not in ``schemes``, ``bearer`` and ``dpop`` at most. Raises `Malformed`."""
    if not authorization:
        return None
    name, _, token = authorization.partition(" ")  # RFC 9110 section 11.4
    scheme = name.lower()  # RFC 9110 section 11.1: in any case of letters
    if scheme not in schemes or (scheme != "bearer" and scheme != "dpop"):
        if not _SCHEME.fullmatch(name):
            raise Malformed
        return None
    return Presented(scheme, token.lstrip(" "))
