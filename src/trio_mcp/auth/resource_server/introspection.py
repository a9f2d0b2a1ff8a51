"""IntrospectionVerifier: verifies access tokens with requests to their issuer (RFC 7662)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, Literal, cast
from urllib.parse import urlencode

import attrs
import msgspec

from ...classes import frozen
from ...jsonrpc.codec import check_levels
from ...runtime.peer import Principal
from ...transports.http_client.origins import host_names
from ..fetching import Fetch, Fetcher, FetchFailed
from ..signing import ASSERTION_TYPE, basic_credentials, client_assertion
from .verification import (
    BuiltInVerifier,
    ExpectedClaims,
    Untrusted,
    VerifierUnavailable,
    VerifyingObject,
    audiences,
    check_url,
    fetcher_for,
    none_if_untrusted,
)

_LONGEST: Final = 8 * 1024
"""The maximum length of a token, in characters."""
_TYPES: Final = frozenset(("bearer", "dpop", "access_token"))
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
        audience = self.audience
        names = (audience,) if isinstance(audience, str) else tuple(audience or (resource,))
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
        if not isinstance(kind, str) or kind.lower() not in _TYPES:
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
