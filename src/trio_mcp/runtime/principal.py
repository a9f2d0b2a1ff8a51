"""Principal and Auth: who calls, as authorization has found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import attrs

__all__ = ["Auth", "Principal"]

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


def _read_only(values: Mapping[str, Any]) -> Mapping[str, Any]:
    return values if isinstance(values, MappingProxyType) else MappingProxyType(dict(values))


def _scopes(scopes: str | Iterable[str]) -> frozenset[str]:
    return frozenset(scopes.split() if isinstance(scopes, str) else scopes)


@attrs.frozen(kw_only=True)
class Principal:
    """The party that a token speaks for, as a verifier has found. Raises `ValueError` for one without a name: neither
    ``subject`` nor ``client_id``."""

    issuer: str | None = None
    """The authorization server that vouches for the rest."""
    subject: str | None = None
    """The user, or the client itself, in the words of the issuer."""
    client_id: str | None = None
    """The OAuth client that holds the token."""
    scopes: frozenset[str] = attrs.field(default=frozenset[str](), converter=_scopes)
    """Permissions of the token; text is split at blanks."""
    claims: Mapping[str, Any] = attrs.field(default=_NOTHING, converter=_read_only, repr=False, eq=False)
    """All that the token, or its issuer, says. Read-only."""
    expires_at: float | None = None
    """Time until which this server takes the token, in seconds since the epoch, the leeway of its verifier included;
    `None` where nothing is known."""
    key_thumbprint: str | None = None
    """The key that the token is bound to (RFC 9449, ``cnf.jkt``); `None` for a token that whoever has it may use."""

    def __attrs_post_init__(self) -> None:
        if not (self.subject or self.client_id):
            raise ValueError("a principal has a subject or a client_id")

    @property
    def name(self) -> str:
        """The name under which sessions, waiting handlers and states are kept: ``issuer|subject``, or
        ``issuer|client_id`` where there is no subject."""
        return f"{self.issuer or ''}|{self.subject or self.client_id}"


@attrs.frozen
class Auth:
    """The caller of one request. Read-only; belongs to the request, never to the connection."""

    token: str = attrs.field(repr=False)
    """The token as it came. Nobody but its issuer and this server may see it (2026-07-28 authorization, Access Token
    Privilege Restriction)."""
    principal: Principal
    extra: Mapping[str, Any] = attrs.field(default=_NOTHING, converter=_read_only, repr=False)
    """Facts that the server's own ``on_authenticated`` has added."""

    @property
    def client_id(self) -> str | None:
        """The OAuth client that holds the token."""
        return self.principal.client_id

    @property
    def scopes(self) -> frozenset[str]:
        """Permissions of the token."""
        return self.principal.scopes

    @property
    def claims(self) -> Mapping[str, Any]:
        """All that the token, or its issuer, says."""
        return self.principal.claims
