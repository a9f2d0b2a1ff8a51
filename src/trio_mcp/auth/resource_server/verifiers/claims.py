"""Claims: what an issuer says of a token, checked, and the principal that follows (RFC 7519 section 4.1, RFC 9068)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, cast

import attrs

from ....runtime.principal import Principal
from ..metadata import canonical
from .signed import Untrusted


@attrs.frozen(kw_only=True)
class ExpectedClaims:
    """The claims of tokens that are good here."""

    issuers: Collection[str]
    audiences: frozenset[str]
    """Names of this resource: see `audiences`."""
    leeway: float
    """Seconds by which clocks may differ."""

    def check_times(self, claims: Mapping[str, Any], now: float) -> None:
        """Raise `Untrusted` for a token whose time is not ``now``."""
        expires_at, begins_at, issued_at = (_time(claims, name) for name in ("exp", "nbf", "iat"))
        if expires_at is not None and now >= expires_at + self.leeway:
            raise Untrusted(f"expired {now - expires_at:g} s ago")
        for name, begins in (("nbf", begins_at), ("iat", issued_at)):
            if begins is not None and begins > now + self.leeway:
                raise Untrusted(f"{name} is {begins - now:g} s in the future")

    def check_issuer(self, claims: Mapping[str, Any]) -> str:
        """Return the issuer. Raises `Untrusted` for a token of anybody else."""
        issuer = claims.get("iss")
        # RFC 9068 section 4: identical, character by character.
        if not isinstance(issuer, str) or issuer not in self.issuers:
            raise Untrusted(f"the issuer is {issuer!a:.200}")
        return issuer

    def check_audience(self, claims: Mapping[str, Any]) -> None:
        """Raise `Untrusted` for a token that was not issued for this resource."""
        # 2026-07-28 authorization, Access Token Privilege Restriction: MUST be for here.
        if self.audiences.isdisjoint(map(_comparable, _texts(claims, "aud"))):
            raise Untrusted(f"the audience is {claims.get('aud')!a:.200}")

    def principal(self, claims: Mapping[str, Any], issuer: str | None) -> Principal:
        """Return the party that checked ``claims`` speak of. Raises `Untrusted` where there is none."""
        subject = _text(claims, "sub")
        client_id = _text(claims, "client_id") or _text(claims, "azp")
        if not subject and not client_id:
            raise Untrusted("neither a sub nor a client_id")
        expires_at = _time(claims, "exp")
        return Principal(
            issuer=issuer,
            subject=subject,
            client_id=client_id,
            scopes=frozenset(
                scope for name in ("scope", "scp") for text in _texts(claims, name) for scope in text.split()
            ),
            claims=claims,
            expires_at=None if expires_at is None else expires_at + self.leeway,
            key_thumbprint=_thumbprint(claims),
        )


def audiences(names: Iterable[str]) -> frozenset[str]:
    """Return the ``names`` of a resource in all forms in which tokens have them: as given, and as URLs are compared."""
    return frozenset(form for name in names for form in (name, _canonical(name)))


def _comparable(audience: str) -> str:
    """Return the ``audience`` of a token in the form in which URLs are compared. Text that is not ASCII stays as it is:
    no word of a token is worth a look into the tables of names."""
    return _canonical(audience) if audience.isascii() else audience


def _canonical(audience: str) -> str:
    try:
        return canonical(audience)
    except ValueError:  # what is no URL
        return audience


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Untrusted(f"{name} is no number")
    try:
        return float(value)
    except OverflowError:  # of an integer of hundreds of digits
        raise Untrusted(f"{name} is no time") from None


def _text(claims: Mapping[str, Any], name: str) -> str | None:
    value = claims.get(name)
    if value is not None and not isinstance(value, str):
        raise Untrusted(f"{name} is no text")
    return value


def _texts(claims: Mapping[str, Any], name: str) -> list[str]:
    value: object = claims.get(name)
    values = cast("list[object]", value) if isinstance(value, list) else [] if value is None else [value]
    texts = [text for text in values if isinstance(text, str)]
    if len(texts) < len(values):
        raise Untrusted(f"{name} is no text, and no list of texts")
    return texts


def _thumbprint(claims: Mapping[str, Any]) -> str | None:
    """Return the thumbprint of the key that the token is bound to (RFC 9449 section 6.1), `None` for a token that is
    bound to none. Raises `Untrusted` for a binding of another kind (RFC 7800), which nobody here could check."""
    confirmation: object = claims.get("cnf")
    if confirmation is None:
        return None
    thumbprint = cast("dict[str, Any]", confirmation).get("jkt") if isinstance(confirmation, dict) else None
    if not isinstance(thumbprint, str) or not thumbprint:
        raise Untrusted("the token is bound by other means than DPoP")
    return thumbprint
