"""Protected: the settings with which authors require authorization on a server over HTTP.

`Protected._gate` creates the `Gate` of a running endpoint. The gate identifies the caller of each request by the token
in the Authorization header, and publishes the metadata of the resource (RFC 9728).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, cast, final
from urllib.parse import urlsplit

import attrs
import msgspec

from ...classes import define, frozen, positive
from ...lazy import lazy_pattern
from ...runtime.peer import Auth, Headers, Principal
from ...transports.http_client.origins import host_names, origin_of
from .refusals import USED_BEFORE, Refusal, Refusals, broken, unavailable
from .verification import (
    BuiltInVerifier,
    TokenCheck,
    Untrusted,
    Verifier,
    Verify,
    check_issuer,
    check_url,
    log_defect,
)

if TYPE_CHECKING:
    from ...stores.shared import ReplayGuard
    from .proof_checks import ProofChecks, UsedProof

logger = logging.getLogger("trio_mcp")

_SCOPE: Final = lazy_pattern(r"[\x21\x23-\x5b\x5d-\x7e]+")
"""Matches one scope (RFC 6749 section 3.3, ``scope-token``)."""
_RESOURCE_METADATA: Final = "/.well-known/oauth-protected-resource"
"""The well-known path of the protected resource metadata (RFC 9728 section 3)."""
_OFFLINE: Final = "offline_access"


def scope_tokens(scopes: Iterable[str]) -> frozenset[str]:
    """Return ``scopes`` as a set. Raises `ValueError` if a scope is invalid, and `TypeError` if ``scopes`` is a single
    string."""
    if isinstance(scopes, str):
        raise TypeError(f"scopes must be a list of strings: write [{scopes!r}], not {scopes!r}")
    found = frozenset(scopes)
    for scope in found:
        if not _SCOPE.fullmatch(scope):
            raise ValueError(
                f"a scope must be printable ASCII without spaces, quotes and backslashes, not {scope[:100]!r}"
            )
    return found


def _metadata_url(resource: str) -> str:
    """Return the URL at which clients find the metadata of ``resource`` (RFC 9728 section 3.1). The URL is never
    derived from a Host header."""
    parts = urlsplit(resource)
    path = "" if parts.path == "/" else parts.path
    return f"{origin_of(parts)}{_RESOURCE_METADATA}{path}{f'?{parts.query}' if parts.query else ''}"


def _metadata_paths(resource: str) -> frozenset[str]:
    """Return the paths at which the metadata of ``resource`` is served.

    These are the path of its URL, with and without a trailing slash because clients disagree about it, and the
    well-known path without the resource's own path.
    """
    path = urlsplit(resource).path.rstrip("/")
    return frozenset(
        (_RESOURCE_METADATA, *((f"{_RESOURCE_METADATA}{path}", f"{_RESOURCE_METADATA}{path}/") if path else ()))
    )


def _metadata_of(settings: Protected, proof_algorithms: Sequence[str]) -> bytes:
    """Return the metadata that a protected resource publishes, as a JSON document (RFC 9728 section 2)."""
    scopes = settings.scopes if settings.scopes_supported is None else settings.scopes_supported
    document: dict[str, Any] = {
        "resource": settings.resource,
        "authorization_servers": settings.authorization_servers,
        "scopes_supported": sorted(scopes),
        # a token in a body or query would leak (RFC 6750 sections 2.2 and 2.3)
        "bearer_methods_supported": ["header"],
        "resource_name": settings.resource_name,
        "resource_documentation": settings.resource_documentation,
        "dpop_signing_alg_values_supported": proof_algorithms,
        "dpop_bound_access_tokens_required": settings.dpop == "required",
    }
    # RFC 9728 section 3.2: leave out parameters without a value.
    return msgspec.json.encode({name: value for name, value in document.items() if value})


def _nonces(_: Any, __: Any, value: bool | bytes) -> None:
    if not isinstance(value, bool) and len(value) < 32:
        raise ValueError("the secret for dpop_nonces must have at least 32 bytes")


def _issuers(urls: Sequence[str]) -> tuple[str, ...]:
    if isinstance(urls, str):
        raise TypeError(f"authorization_servers must be a list of URLs: write [{urls!r}], not {urls!r}")
    issuers = tuple(dict.fromkeys(urls))
    if not issuers:  # 2026-07-28 authorization, Authorization Server Discovery: require at least one server
        raise ValueError("authorization_servers must not be empty: clients get their tokens there")
    return issuers


@frozen(kw_only=True)
class Protected:
    """Settings with which a server over HTTP requires authorization, as an OAuth 2.1 resource server. Pass them to
    `serve_http` as ``auth``.

        auth = Protected(
            resource="https://mcp.example.com/mcp",
            authorization_servers=["https://login.example.com"],
            verifier=JWTVerifier(),
            scopes=["mcp"],
        )

    Raises `ValueError` and `TypeError` for invalid values.
    """

    resource: str
    """The URL at which clients reach the server, exactly as clients write it: with ``https``, or ``http`` on this
    machine. All URLs that the server sends to clients are derived from it, never from a Host header. Tokens must be
    issued for this URL."""
    authorization_servers: Sequence[str] = attrs.field(converter=_issuers)
    """The issuers of the tokens: the authorization servers from which clients get tokens. Most clients use the first
    one."""
    verifier: Verifier | BuiltInVerifier = attrs.field(repr=False)
    """The verifier of tokens: `JWTVerifier`, `IntrospectionVerifier`, or any ``async def verify(token)`` that returns a
    `Principal`, or `None` for an invalid token. The function must refuse tokens for other resources."""
    scopes: frozenset[str] = attrs.field(default=frozenset[str](), converter=scope_tokens)
    """Scopes that every request needs."""
    scopes_supported: frozenset[str] | None = attrs.field(
        default=None, converter=attrs.converters.optional(scope_tokens)
    )
    """Scopes that a client should request first, as few as possible. `None` means the same as ``scopes``."""
    satisfies: Satisfies | None = None
    """A function ``(granted, needed)`` that returns whether one of the granted scopes includes the needed scope. It
    isn't called if the needed scope was itself granted."""
    dpop: Literal["off", "accepted", "required"] = attrs.field(
        default="off", validator=attrs.validators.in_(("off", "accepted", "required"))
    )
    """Whether to accept or require DPoP tokens, which are bound to a key of the client (RFC 9449), so that a stolen
    token is useless. Needs the extra ``trio-mcp[auth]``."""
    dpop_nonces: bool | bytes = attrs.field(default=False, validator=_nonces, repr=False)
    """True if clients must repeat a nonce of the server in each DPoP proof. Then proofs can't be made in advance, and
    clocks needn't agree. Replicas that share storage accept each other's nonces. For other processes, pass the same
    secret of at least 32 bytes to all of them."""
    on_authenticated: OnAuthenticated | None = attrs.field(default=None, repr=False)
    """An async function that gets the `Principal` and the headers of a request, and returns the content of
    `Auth.extra`. It is called once for each request."""
    resource_name: str | None = None
    """The server's name, shown to users who decide whether a client may use the server."""
    resource_documentation: str | None = None
    """The URL of a documentation page for developers of clients."""
    max_cached: int = attrs.field(default=10_000, validator=positive)
    """The maximum number of valid tokens that are cached, so that each is verified only once. Invalid tokens are
    counted separately."""
    cache_for: float | None = attrs.field(default=None, validator=attrs.validators.optional(positive))
    """Seconds after which a valid token is verified again. Set this field if tokens may be revoked. `None` means that a
    token is verified again when it expires, or after a minute if its expiry is unknown."""
    max_verifications: int = attrs.field(default=100, validator=positive)
    """How many tokens are verified concurrently. Further requests get status 503."""
    trusted_http_hosts: Collection[str] = attrs.field(default=frozenset[str](), converter=host_names)
    """Hosts of a private network for which ``resource`` and ``authorization_servers`` may use plain ``http``. Anyone
    who can read the traffic of that network sees the tokens; anyone who can change it can forge them."""

    def __attrs_post_init__(self) -> None:
        check_url("resource", self.resource, self.trusted_http_hosts)
        for issuer in self.authorization_servers:
            check_issuer(issuer, self.trusted_http_hosts)
        # 2026-07-28 authorization, Refresh Tokens: offline_access concerns only clients and their authorization server.
        if _OFFLINE in self.scopes or _OFFLINE in (self.scopes_supported or ()):
            raise ValueError("scopes must not contain offline_access: clients request it themselves")

    def _gate(self, *, now: Callable[[], float] = time.time) -> Gate:
        """Return a new `Gate`, which authenticates the callers of one endpoint. ``now`` returns the time in seconds
        since the epoch."""
        proofs = self._proofs(now)
        refusals = Refusals(
            metadata_url=_metadata_url(self.resource),
            scopes=self.scopes,
            takes_bearer=self.dpop != "required",
            proof_algorithms=() if proofs is None else proofs.algorithms,
        )
        verify, answers_hold = self._verify(now)
        tokens = TokenCheck(
            verify,
            max_cached=self.max_cached,
            cache_for=min(answers_hold, math.inf if self.cache_for is None else self.cache_for),
            max_concurrent=self.max_verifications,
            now=now,
        )
        return Gate(self, tokens, refusals, proofs)

    def _proofs(self, now: Callable[[], float]) -> ProofChecks | None:
        if self.dpop == "off":
            return None
        from .proof_checks import ProofChecks, ProofNonces  # needs joserfc

        secret = self.dpop_nonces
        nonces = None if secret is False else ProofNonces(None if secret is True else secret)
        return ProofChecks(self.resource, nonces, now)

    def _verify(self, now: Callable[[], float]) -> tuple[Verify, float]:
        """Return the function that verifies tokens, and the number of seconds for which its results are cached."""
        verifier = self.verifier
        if isinstance(verifier, BuiltInVerifier):
            trusted = frozenset(self.trusted_http_hosts)
            return verifier._at(self.resource, self.authorization_servers, now, trusted).verify, verifier._holds_for
        return cast("Verify", getattr(verifier, "verify", verifier)), math.inf


OnAuthenticated: TypeAlias = Callable[[Principal, Mapping[str, str]], Awaitable[Mapping[str, Any]]]
"""An async function that returns the `Auth.extra` for a principal and the headers of its request."""
Satisfies: TypeAlias = Callable[[frozenset[str], str], bool]
"""A function that returns whether the granted scopes include the needed scope."""

_NO_TOKEN: Final = "the Authorization header has no token after its scheme"


class HttpHead(Protocol):
    """The request line and headers of an HTTP request, which may be an upgrade to a WebSocket."""

    @property
    def method(self) -> str:
        """The HTTP method of the request, in upper case."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The request's headers, by their names in lower case. The values of a repeated header are joined with
        commas."""
        ...

    @property
    def repeated(self) -> Collection[str]:
        """The names of headers that occur more than once in the request."""
        ...


@final
class Gate:
    """Identifies the callers of one HTTP endpoint. `Protected._gate` creates one for each running endpoint."""

    def __init__(self, settings: Protected, tokens: TokenCheck, refusals: Refusals, proofs: ProofChecks | None) -> None:
        self.metadata = _metadata_of(settings, refusals.proof_algorithms)
        """The protected resource metadata (RFC 9728 section 2), as JSON."""
        self.metadata_paths = _metadata_paths(settings.resource)
        """The paths at which the metadata is served: with the path of the resource, and at the root (RFC 9728 section
        3.1)."""
        self._tokens = tokens
        self._refusals = refusals
        self._scopes = refusals.scopes
        self._schemes = refusals.schemes
        self._proofs = proofs
        self._satisfies = settings.satisfies
        self._on_authenticated = settings.on_authenticated
        self._replay_guard: ReplayGuard | None = None
        """Remembers the DPoP proofs that were used on any replica; `None` without replicas."""
        self._may_ask = self._on_authenticated is not None
        """True if requests need more checks than those of the token verifier."""

    def share(self, replay_guard: ReplayGuard, secret: bytes) -> None:
        """Store used DPoP proofs in ``replay_guard``, which all replicas share. A proof that one replica has accepted
        is then refused by all replicas.

        DPoP nonces are derived from the shared ``secret``, unless the author has passed a secret for nonces.
        """
        if self._proofs is not None:
            self._replay_guard, self._may_ask = replay_guard, True
            self._proofs.share(secret)

    def known(self, head: HttpHead) -> Auth | Refusal | None:
        """Return the authenticated caller of a request, or the HTTP response that refuses the request. Uses only cached
        results of the token verifier.

        Returns `None` if the caller can't be identified without waiting: then call `ask`. Synchronous.
        """
        came = self._presented(head)
        if isinstance(came, Refusal):
            return came
        found = self._tokens.known(came.token)
        if found is None:
            return self._malformed(came)
        is_good = isinstance(found, Principal)
        if self._may_ask and is_good and (self._on_authenticated is not None or self._is_asked_for(found)):
            return None
        return self._decide(head, came, found)

    async def ask(self, head: HttpHead) -> Auth | Refusal:
        """Return the authenticated caller of a request, or the HTTP response that refuses the request. Calls the token
        verifier if no result is cached.

        Raises nothing except a cancellation: if one of the author's functions raises, the error is logged and the
        request is refused with status 500.
        """
        came = self._presented(head)
        if isinstance(came, Refusal):
            return came
        if (malformed := self._malformed(came)) is not None:
            return malformed
        found = await self._tokens.find(came.token)
        if isinstance(found, Refusal):
            return found
        if isinstance(found, Principal) and self._is_asked_for(found):
            refusal = await self._unproven_anywhere(head, came, found)
            auth = self._allowed(came, found) if refusal is None else refusal
        else:
            auth = self._decide(head, came, found)
        if isinstance(auth, Refusal) or self._on_authenticated is None:
            return auth
        try:
            extra = await self._on_authenticated(auth.principal, Headers.of_lower_case(head.headers))
            return Auth(auth.token, auth.principal, extra)
        except Exception as error:
            log_defect("on_authenticated failed", error, auth.token)
            return broken()

    def missing(self, auth: Auth, needed: Collection[str]) -> Refusal | None:
        """Return the HTTP response that refuses a caller who lacks one of the ``needed`` scopes. Returns `None` if the
        caller has all of them.

        The response names all needed scopes (2026-07-28 authorization, Runtime Insufficient Scope Errors). Synchronous.
        """
        try:
            if self._holds(auth.principal.scopes, needed):
                return None
        except Exception as error:
            log_defect("satisfies failed", error, auth.token)
            return broken()
        scheme = "bearer" if auth.principal.key_thumbprint is None else "dpop"
        return self._refusals.lacks_scope(scheme, needed)

    def _holds(self, granted: frozenset[str], needed: Collection[str]) -> bool:
        if granted.issuperset(needed):
            return True
        satisfies = self._satisfies
        return satisfies is not None and all(scope in granted or satisfies(granted, scope) for scope in needed)

    def _presented(self, head: HttpHead) -> PresentedToken | Refusal:
        # 2026-07-28 authorization, Token Requirements: accept a token only in the Authorization header.
        if "authorization" in head.repeated:
            return self._refusals.malformed("there must be exactly one Authorization header")
        try:
            came = presented_token(head.headers.get("authorization"), self._schemes)
        except Malformed:
            return self._refusals.malformed(_NO_TOKEN)
        return self._refusals.no_token() if came is None else came

    def _malformed(self, came: PresentedToken) -> Refusal | None:
        try:
            came.check()
        except Malformed:
            return self._refusals.malformed(_NO_TOKEN)
        return None

    def _decide(self, head: HttpHead, came: PresentedToken, found: Principal | Literal["bad"]) -> Auth | Refusal:
        if not isinstance(found, Principal):
            return self._refusals.bad_token(came.scheme)
        proof = self._proof(head, came, found)
        return proof if isinstance(proof, Refusal) else self._allowed(came, found)

    def _allowed(self, came: PresentedToken, principal: Principal) -> Auth | Refusal:
        auth = Auth(came.token, principal)
        refusal = self.missing(auth, self._scopes) if self._scopes else None
        return auth if refusal is None else refusal

    def _is_asked_for(self, principal: Principal) -> bool:
        """Return whether the DPoP proofs of ``principal`` must be compared with the proofs that other replicas have
        accepted."""
        return self._replay_guard is not None and principal.key_thumbprint is not None

    async def _unproven_anywhere(self, head: HttpHead, came: PresentedToken, principal: Principal) -> Refusal | None:
        """Check that the DPoP proof of a request is valid, and that no replica has accepted it before.

        Returns `None` if the proof is valid and new, else the HTTP response that refuses the request. If the shared
        storage fails, the request is refused.
        """
        proof = self._proof(head, came, principal)
        if proof is None or isinstance(proof, Refusal):
            return proof
        assert self._replay_guard is not None, "other replicas are asked"
        try:
            is_new = await self._replay_guard.add(proof.digest, ttl_ms=proof.ttl)
        except OSError as error:  # log at level DEBUG, because clients could flood the log at a higher level
            logger.debug("no proof can be checked, since the replicas cannot tell which were used: %s", error)
            return unavailable()
        return None if is_new else self._refusals.bad_proof(USED_BEFORE)

    def _proof(self, head: HttpHead, came: PresentedToken, principal: Principal) -> UsedProof | Refusal | None:
        """Return the valid DPoP proof of a request, or the HTTP response that refuses the request. Returns `None` if no
        proof is needed."""
        if came.scheme == "bearer" or self._proofs is None:
            if principal.key_thumbprint is None:
                return None
            # RFC 9449 section 7.2: refuse a key-bound token without a DPoP proof, since the token may be stolen.
            return self._refusals.bad_token(came.scheme, "the access token is bound to a key; send a DPoP proof")
        from .proof_checks import NonceNeeded, TooManyProofs

        # RFC 9449 section 4.3, check 1: require exactly one DPoP header.
        if "dpop" in head.repeated or "dpop" not in head.headers:
            return self._refusals.bad_proof("there must be exactly one DPoP header")
        try:
            return self._proofs.check(head.headers["dpop"], head.method, came.token, principal)
        except Untrusted as reason:
            return self._refusals.bad_proof(str(reason))
        except NonceNeeded as needed:
            return self._refusals.needs_nonce(needed.nonce)
        except TooManyProofs:
            return unavailable()


_TOKEN: Final = lazy_pattern(r"[A-Za-z0-9._~+/-]+=*")
"""Matches a token (RFC 6750 section 2.1, ``b64token``; RFC 9449 section 7.1, ``token68``)."""
_SCHEME: Final = lazy_pattern(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""Matches the name of an authentication scheme (RFC 9110 section 11.1)."""


class Malformed(Exception):
    """The Authorization header has a supported scheme, but not a valid token after the scheme."""


@define(eq=False)
class PresentedToken:
    """The token in a request, and the authentication scheme with which it was sent (``bearer`` or ``dpop``)."""

    scheme: Literal["bearer", "dpop"]
    token: str = attrs.field(repr=False)

    def check(self) -> None:
        """Raise `Malformed` if the token contains invalid characters. This check is slow, so call it only for tokens
        that aren't cached."""
        if not _TOKEN.fullmatch(self.token):
            raise Malformed


def presented_token(authorization: str | None, schemes: Container[str]) -> PresentedToken | None:
    """Return the token in the value of an Authorization header.

    Returns `None` if there is no header, or if its scheme isn't in ``schemes`` (``bearer``, ``dpop``, or both). Raises
    `Malformed` if there is no token after the scheme.
    """
    if not authorization:
        return None
    name, _, token = authorization.partition(" ")  # RFC 9110 section 11.4
    scheme = name.lower()  # RFC 9110 section 11.1: the scheme is case-insensitive
    if scheme not in schemes or (scheme != "bearer" and scheme != "dpop"):
        if not _SCHEME.fullmatch(name):
            raise Malformed
        return None
    return PresentedToken(scheme, token.lstrip(" "))
