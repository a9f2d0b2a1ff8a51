"""The verifiers of access tokens: JWTVerifier verifies signed tokens (RFC 9068), and IntrospectionVerifier asks the
issuer of each token (RFC 7662)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Literal, cast
from urllib.parse import urlencode

import attrs
import msgspec

from ...classes import frozen
from ...jsonrpc.codec import check_levels
from ...runtime.peer import Principal
from ...transports.http_client.origins import host_names
from ..fetching import Fetch, Fetcher, FetchFailed, HttpFetcher, UrlRules
from ..signing import ASSERTION_TYPE, basic_credentials, client_assertion
from .keys import ASYMMETRIC, FetchedKeys, FixedKeys, KeySource, check_extra, check_jwks_uri, fetch_keys, read_key_set
from .verification import (
    BuiltInVerifier,
    ExpectedClaims,
    Untrusted,
    VerifierUnavailable,
    VerifyingObject,
    audiences,
    check_issuer,
    check_url,
    none_if_untrusted,
    read_signed,
)

_LONGEST: Final = 8 * 1024
"""The maximum length of a token, in characters. Tokens of the largest issuers have 2 to 4 KiB."""
_ISSUER_DEADLINE: Final = 10.0
"""The number of seconds within which an issuer has to respond."""


def fetcher_for(url: str, trusted_http_hosts: frozenset[str]) -> Fetcher:
    """Return a fetcher for ``url``, and for the URLs that the response from ``url`` names.

    The fetcher allows ``https`` URLs. It allows ``http`` URLs at ``trusted_http_hosts``, and on this machine if ``url``
    is also on this machine. Raises `ValueError` if ``url`` is forbidden.
    """
    # Allow plain HTTP to the trusted hosts, because the author of this server has chosen these hosts and the URL.
    rules = attrs.evolve(UrlRules.for_server(url), trusted_http_hosts=trusted_http_hosts)
    return HttpFetcher(rules, deadline=_ISSUER_DEADLINE)


def _texts(values: str | Sequence[str] | None) -> tuple[str, ...]:
    return () if values is None else (values,) if isinstance(values, str) else tuple(values)


# Signed tokens (RFC 9068)

_JWT_TYPES: Final = frozenset(("at+jwt", "application/at+jwt"))
_ANY_JWT_TYPES: Final = frozenset(("jwt", "application/jwt", *_JWT_TYPES))


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
            _JWT_TYPES if self.require_typ else _ANY_JWT_TYPES,
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


# Token introspection (RFC 7662)

_TOKEN_TYPES: Final = frozenset(("bearer", "dpop", "access_token"))
"""Accepted values of ``token_type``, in lower case. An issuer may also report refresh tokens as active; those aren't
accepted here."""


@frozen(kw_only=True)
class IntrospectionVerifier(BuiltInVerifier):
    """Verifies each token by asking the issuer of the token (token introspection, RFC 7662).

    Use it for tokens that aren't JWTs, and for tokens that can be revoked.

    Responses are cached for ``cache_for`` seconds. While the issuer doesn't respond, clients get status 503 and retry
    later. Raises `ValueError` for invalid values.
    """

    endpoint: str
    """The URL of the issuer's introspection endpoint."""
    client_id: str
    """The client id of this server at the issuer."""
    client_secret: str | None = attrs.field(default=None, repr=False)
    """The secret of this server at the issuer."""
    private_key: str | Mapping[str, Any] | None = attrs.field(default=None, repr=False)
    """The private key that is used instead of the secret (``private_key_jwt``), as PEM or JWK. Needs the extra
    ``trio-mcp[auth]``."""
    secret_in: Literal["header", "body"] = attrs.field(
        default="header", validator=attrs.validators.in_(("header", "body"))
    )
    """How the secret is sent: ``client_secret_basic`` in a header, or ``client_secret_post`` in the body."""
    issuer: str | None = None
    """The issuer of the tokens. `None` means the only one in ``authorization_servers`` of `Protected`."""
    audience: str | Sequence[str] | None = None
    """Names of this server, one of which must be in the claim ``aud``. `None` means the ``resource`` of `Protected`."""
    require_audience: bool = True
    """If false, tokens are also accepted if the issuer reports no ``aud`` for them. Use this for issuers whose tokens
    are all for this server."""
    cache_for: float = attrs.field(default=60.0, validator=attrs.validators.ge(0))
    """How many seconds a response is cached. A revoked token stays valid that long."""
    leeway: float = attrs.field(default=60.0, validator=attrs.validators.ge(0))
    """How many seconds the clocks of the issuer and of this machine may differ."""
    _fetcher: Fetcher | None = attrs.field(default=None, repr=False, alias="_fetcher")
    """The `Fetcher` that sends the requests. `None` means a fetcher that only allows ``https``, and ``http`` if the
    issuer is on this machine."""
    trusted_http_hosts: Collection[str] = attrs.field(default=frozenset[str](), converter=host_names)
    """Hosts of a private network to which plain ``http`` is allowed, in addition to those of `Protected`. Anyone who
    can read the traffic of that network sees the tokens and the secret."""

    def __attrs_post_init__(self) -> None:
        check_url("endpoint", self.endpoint, self.trusted_http_hosts)
        if (self.client_secret is None) == (self.private_key is None):
            raise ValueError("IntrospectionVerifier needs exactly one of client_secret and private_key")

    @property
    def _holds_for(self) -> float:
        """The number of seconds for which the verifier's result for a token is cached."""
        return self.cache_for

    def _at(
        self,
        resource: str,
        authorization_servers: Sequence[str],
        now: Callable[[], float] = time.time,
        trusted_http_hosts: frozenset[str] = frozenset(),
    ) -> VerifyingObject:
        """Return the verifier for tokens that are issued for ``resource``: see `BuiltInVerifier`."""
        issuers = tuple(authorization_servers) if self.issuer is None else (self.issuer,)
        if len(issuers) != 1:
            raise ValueError("IntrospectionVerifier supports the tokens of one issuer only: pass issuer=")
        # Check the key now, so that an unusable key fails at the start and not at the first request.
        if self.private_key is not None:
            client_assertion(self.client_id, issuers[0], self.private_key, now=now())
        names = _texts(self.audience) or (resource,)
        expected = ExpectedClaims(issuers=issuers, audiences=audiences(names), leeway=self.leeway)
        fetcher = self._fetcher or fetcher_for(self.endpoint, trusted_http_hosts.union(self.trusted_http_hosts))
        return _Introspection(self, issuers[0], expected, fetcher, now)


@frozen
class _Introspection:
    """Verifies tokens of ``issuer`` by token introspection, with the client credentials in ``settings``."""

    _settings: IntrospectionVerifier
    _issuer: str
    _expected: ExpectedClaims
    _fetcher: Fetcher
    _now: Callable[[], float]

    async def verify(self, token: str) -> Principal | None:
        """Return the principal of ``token``, or `None` if the token isn't valid for this server. Raises
        `VerifierUnavailable` if the issuer can't be reached."""
        return None if len(token) > _LONGEST else await none_if_untrusted(self._checked(token))

    async def _checked(self, token: str) -> Principal:
        claims, expected = await self._answer(token), self._expected
        if claims.get("active") is not True:
            raise Untrusted("the issuer says that the token is not active")
        kind = claims.get("token_type", "bearer")
        if not isinstance(kind, str) or kind.lower() not in _TOKEN_TYPES:
            raise Untrusted(f"the token_type must be bearer, dpop or access_token, not {kind!a:.100}")
        if claims.get("iss") is not None:
            expected.check_issuer(claims)
        if claims.get("aud") is not None or self._settings.require_audience:
            expected.check_audience(claims)
        expected.check_times(claims, self._now())
        principal = expected.principal(claims, self._issuer)
        if kind.lower() == "dpop" and principal.key_thumbprint is None:  # RFC 9449 section 6.2
            raise Untrusted("the issuer reports a DPoP token, but not the key (cnf) that the token is bound to")
        return principal

    async def _answer(self, token: str) -> Mapping[str, Any]:
        """Return the issuer's introspection response for a token (RFC 7662 section 2.2).

        Raises `VerifierUnavailable` for an error or an invalid response, since the token may still be valid: for
        example, the credentials of this server may be wrong.
        """
        try:
            fetched = await self._fetcher.fetch(self._request(token))
        except FetchFailed as error:
            raise VerifierUnavailable(str(error)) from None
        if fetched.status != HTTPStatus.OK:
            raise VerifierUnavailable(f"{self._settings.endpoint}: status {fetched.status}")
        try:
            answer: object = msgspec.json.decode(fetched.body)
            check_levels(fetched.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise VerifierUnavailable(f"{self._settings.endpoint}: the response must be a JSON object")
        return cast("dict[str, Any]", answer)

    def _request(self, token: str) -> Fetch:
        settings = self._settings
        form = {"token": token, "token_type_hint": "access_token"}
        headers = [("accept", "application/json")]
        if settings.private_key is not None:
            assertion = client_assertion(settings.client_id, self._issuer, settings.private_key, now=self._now())
            form |= {"client_assertion_type": ASSERTION_TYPE, "client_assertion": assertion}
        elif settings.secret_in == "header":
            headers.append(("authorization", basic_credentials(settings.client_id, settings.client_secret or "")))
        else:
            form |= {"client_id": settings.client_id, "client_secret": settings.client_secret or ""}
        return Fetch(
            method="POST",
            url=settings.endpoint,
            headers=headers,
            body=urlencode(form).encode("ascii"),
            content_type="application/x-www-form-urlencoded",
            secrets_of=self._issuer,
        )
