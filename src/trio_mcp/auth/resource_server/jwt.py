"""JWTVerifier: verifies signed access tokens (RFC 9068)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

import attrs

from ...classes import frozen
from ...runtime.peer import Principal
from ...transports.http_client.origins import host_names
from ..fetching import Fetcher
from .keys import ASYMMETRIC, FetchedKeys, FixedKeys, KeySource, check_extra, check_jwks_uri, fetch_keys, read_key_set
from .verification import (
    BuiltInVerifier,
    ExpectedClaims,
    Untrusted,
    VerifyingObject,
    audiences,
    check_issuer,
    fetcher_for,
    none_if_untrusted,
    read_signed,
)

_LONGEST: Final = 8 * 1024
"""The maximum length of a token, in characters. Tokens of the largest issuers have 2 to 4 KiB."""
_TYPES: Final = frozenset(("at+jwt", "application/at+jwt"))
_ANY_TYPES: Final = frozenset(("jwt", "application/jwt", *_TYPES))


def _texts(values: str | Sequence[str] | None) -> tuple[str, ...]:
    return () if values is None else (values,) if isinstance(values, str) else tuple(values)


def _algorithms(values: Sequence[str]) -> tuple[str, ...]:
    algorithms = _texts(values)
    if not algorithms or not set(algorithms) <= set(ASYMMETRIC):
        raise ValueError(f"algorithms must be one or more of {', '.join(ASYMMETRIC)}, not {algorithms}")
    return algorithms


@frozen(kw_only=True)
class JWTVerifier(BuiltInVerifier):
    """Verifies tokens that are JWTs, signed by their issuer (RFC 9068). It checks the signature, issuer, audience and
    times.

    The keys of the issuer are fetched when needed, and cached. Needs the extra ``trio-mcp[auth]``. Raises `ValueError`
    for invalid values, and `ImportError` without the extra.
    """

    issuer: str | Sequence[str] | None = attrs.field(default=None, converter=attrs.converters.optional(_texts))
    """The accepted issuers, exactly as in the claim ``iss``. `None` means the ``authorization_servers`` of
    `Protected`."""
    audience: str | Sequence[str] | None = attrs.field(default=None, converter=attrs.converters.optional(_texts))
    """Names of this server, one of which must be in the claim ``aud``. `None` means the ``resource`` of `Protected`.
    Tokens for any other audience are always refused."""
    client_ids: str | Sequence[str] | None = attrs.field(default=None, converter=attrs.converters.optional(_texts))
    """Client ids whose tokens are accepted without an ``aud``, for issuers that don't write that claim, such as Amazon
    Cognito: the token's ``client_id`` must be one of these. Such a token is valid at every server that accepts that
    client, so only name clients of this server. If a token has an ``aud``, it's checked as always."""
    jwks_uri: str | None = None
    """The URL of the issuer's keys. `None` means the URL in the issuer's metadata."""
    keys: Mapping[str, Any] | None = attrs.field(default=None, repr=False)
    """The JWK set that is used instead of fetching keys."""
    algorithms: Sequence[str] = attrs.field(default=ASYMMETRIC, converter=_algorithms)
    """The accepted signature algorithms. Symmetric algorithms aren't supported."""
    leeway: float = attrs.field(default=60.0, validator=attrs.validators.ge(0))
    """How many seconds the clocks of the issuer and of this machine may differ."""
    require_typ: bool = True
    """If true, only tokens of the type ``at+jwt`` are accepted, that is, access tokens (RFC 9068 section 4). If false,
    tokens with the type ``JWT`` or without a type are accepted as well. Then only ``audience`` distinguishes them from
    ID tokens, so no ID token may be issued to a client of that name."""
    _fetcher: Fetcher | None = attrs.field(default=None, repr=False, alias="_fetcher")
    """The `Fetcher` that fetches the keys. `None` means a fetcher that only allows ``https``, and ``http`` if the
    issuer is on this machine."""
    trusted_http_hosts: Collection[str] = attrs.field(default=frozenset[str](), converter=host_names)
    """Hosts of a private network from which keys may be fetched over plain ``http``, in addition to those of
    `Protected`. Anyone who can change the traffic of that network can forge tokens."""

    def __attrs_post_init__(self) -> None:
        check_extra()
        if self.jwks_uri is not None:
            check_jwks_uri(self.jwks_uri, self.trusted_http_hosts)
        if self.keys is not None and self.jwks_uri is not None:
            raise ValueError("pass either keys or jwks_uri, not both")
        if self.keys is not None:
            read_key_set(self.keys)

    def _at(
        self,
        resource: str,
        authorization_servers: Sequence[str],
        now: Callable[[], float] = time.time,
        trusted_http_hosts: frozenset[str] = frozenset(),
    ) -> VerifyingObject:
        """Return the verifier for tokens that are issued for ``resource``: see `BuiltInVerifier`."""
        issuers = _texts(self.issuer) or tuple(authorization_servers)
        if self.jwks_uri is not None and len(issuers) > 1:
            raise ValueError("a JWTVerifier with jwks_uri supports one issuer only: pass one issuer=")
        names = _texts(self.audience) or (resource,)
        return _SignatureCheck(
            ExpectedClaims(issuers=issuers, audiences=audiences(names), leeway=self.leeway),
            {issuer: self._source(issuer, trusted_http_hosts.union(self.trusted_http_hosts)) for issuer in issuers},
            frozenset(self.algorithms),
            _TYPES if self.require_typ else _ANY_TYPES,
            _texts(self.client_ids),
            now,
        )

    def _source(self, issuer: str, trusted_http_hosts: frozenset[str]) -> KeySource:
        if self.keys is not None:
            return FixedKeys(read_key_set(self.keys))
        url = self.jwks_uri or check_issuer(issuer, trusted_http_hosts)
        fetcher = self._fetcher or fetcher_for(url, trusted_http_hosts)
        return FetchedKeys(issuer, partial(fetch_keys, issuer, self.jwks_uri, fetcher, trusted_http_hosts))


@frozen
class _SignatureCheck:
    """Verifies the signatures and claims of tokens. ``sources`` contains the public keys of each issuer."""

    _expected: ExpectedClaims
    _sources: Mapping[str, KeySource]
    _algorithms: frozenset[str]
    _types: frozenset[str]
    _client_ids: tuple[str, ...]
    _now: Callable[[], float]

    async def verify(self, token: str) -> Principal | None:
        """Return the principal of ``token``, or `None` if the token isn't valid for this server."""
        return await none_if_untrusted(self._checked(token))

    async def _checked(self, token: str) -> Principal:
        signed = read_signed(token, self._algorithms, _LONGEST)
        kind = signed.header.get("typ", "JWT")
        if not isinstance(kind, str) or kind.lower() not in self._types:  # RFC 9068 section 4
            raise Untrusted(
                f"the type (typ) of the token must be at+jwt, not {kind!a:.100} (see JWTVerifier.require_typ)"
            )
        claims, expected = signed.claims, self._expected
        # Check the signature before reading untrusted claims in detail.
        # The issuer is compared literally, so untrusted tokens don't cause additional fetches of keys.
        issuer = expected.check_issuer(claims)
        if not await self._sources[issuer].has_signed(signed):
            raise Untrusted(f"the token is not signed by a key of {issuer}")
        if claims.get("aud") is not None or claims.get("client_id") not in self._client_ids:
            expected.check_audience(claims)
        if claims.get("exp") is None:  # RFC 9068 section 2.2
            raise Untrusted("the token has no expiry (exp)")
        expected.check_times(claims, self._now())
        return expected.principal(claims, issuer)
