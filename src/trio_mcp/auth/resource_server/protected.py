"""Protected: the authorization of a server over HTTP, as authors configure it.

`Protected._gate` makes the `Gate` of a running endpoint, which knows the caller of each request by the token in its
Authorization header, and publishes the metadata of the resource (RFC 9728).
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
from .tokens import TokenCheck, log_defect
from .verification import BuiltInVerifier, Untrusted, Verifier, Verify, check_issuer, check_resource

if TYPE_CHECKING:
    from ...stores.shared import ReplayGuard
    from .proof_checks import ProofChecks, UsedProof

logger = logging.getLogger("trio_mcp")

_SCOPE: Final = lazy_pattern(r"[\x21\x23-\x5b\x5d-\x7e]+")
"""RFC 6749 section 3.3, ``scope-token``."""
_RESOURCE_METADATA: Final = "/.well-known/oauth-protected-resource"
"""RFC 9728 section 3."""
_OFFLINE: Final = "offline_access"


def scope_tokens(scopes: Iterable[str]) -> frozenset[str]:
    """Return ``scopes`` as a set. Raises `ValueError` for text that is no scope, `TypeError` for one text alone."""
    if isinstance(scopes, str):
        raise TypeError(f"scopes are several, [{scopes!r}] for example, not one text")
    found = frozenset(scopes)
    for scope in found:
        if not _SCOPE.fullmatch(scope):
            raise ValueError(f"a scope is printable ASCII without blanks, quotes and backslashes, not {scope[:100]!r}")
    return found


@frozen
class PublishedMetadata:
    """The metadata of one protected resource (RFC 9728 section 2)."""

    settings: Protected
    proof_algorithms: Sequence[str]
    """Algorithms of DPoP proofs; none where there is no DPoP."""

    @property
    def url(self) -> str:
        """The URL at which clients find the metadata (RFC 9728 section 3.1): never made from a Host header."""
        parts = urlsplit(self.settings.resource)
        path = "" if parts.path == "/" else parts.path
        return f"{origin_of(parts)}{_RESOURCE_METADATA}{path}{f'?{parts.query}' if parts.query else ''}"

    @property
    def paths(self) -> frozenset[str]:
        """Paths at which the metadata stand: of `url`, and at the root. Clients disagree about a slash at the end, so
        the metadata stand with and without."""
        path = urlsplit(self.settings.resource).path.rstrip("/")
        return frozenset(
            (_RESOURCE_METADATA, *((f"{_RESOURCE_METADATA}{path}", f"{_RESOURCE_METADATA}{path}/") if path else ()))
        )

    def to_json(self) -> bytes:
        """Return the document."""
        settings = self.settings
        scopes = settings.scopes if settings.scopes_supported is None else settings.scopes_supported
        document: dict[str, Any] = {
            "resource": settings.resource,
            "authorization_servers": settings.authorization_servers,
            "scopes_supported": sorted(scopes),
            "bearer_methods_supported": ["header"],  # RFC 6750 sections 2.2 and 2.3 are ways that a token leaks
            "resource_name": settings.resource_name,
            "resource_documentation": settings.resource_documentation,
            "dpop_signing_alg_values_supported": self.proof_algorithms,
            "dpop_bound_access_tokens_required": settings.dpop == "required",
        }
        # RFC 9728 section 3.2: what has no value is left out.
        return msgspec.json.encode({name: value for name, value in document.items() if value})


def _nonces(_: Any, __: Any, value: bool | bytes) -> None:
    if not isinstance(value, bool) and len(value) < 32:
        raise ValueError("a secret of dpop_nonces has 32 bytes or more")


def _issuers(urls: Sequence[str]) -> tuple[str, ...]:
    if isinstance(urls, str):
        raise TypeError(f"authorization_servers are several, [{urls!r}] for example, not one text")
    issuers = tuple(dict.fromkeys(urls))
    if not issuers:  # 2026-07-28 authorization, Authorization Server Discovery: at least one
        raise ValueError("a protected server needs an authorization server that its clients can get tokens from")
    return issuers


@frozen(kw_only=True)
class Protected:
    """Authorization of a server over HTTP, as an OAuth 2.1 resource server: the argument ``auth`` of `serve_http`.

        auth = Protected(
            resource="https://mcp.example.com/mcp",
            authorization_servers=["https://login.example.com"],
            verifier=JWTVerifier(),
            scopes=["mcp"],
        )

    Raises `ValueError` and `TypeError` for values that make no sense.
    """

    resource: str
    """The URL under which clients reach the server, as clients write it: with ``https``, or ``http`` on this machine.
    All that clients are told is made from this URL, never from a Host header, and tokens must be meant for
    this URL."""
    authorization_servers: Sequence[str] = attrs.field(converter=_issuers)
    """Issuers of the tokens, where clients get tokens; the first is the one that most clients use."""
    verifier: Verifier | BuiltInVerifier = attrs.field(repr=False)
    """The check of tokens: `JWTVerifier`, `IntrospectionVerifier`, or any ``async def verify(token)`` that returns a
    `Principal`, or `None` for a token that is not good. The function must refuse tokens for other resources."""
    scopes: frozenset[str] = attrs.field(default=frozenset[str](), converter=scope_tokens)
    """Scopes that each request needs."""
    scopes_supported: frozenset[str] | None = attrs.field(
        default=None, converter=attrs.converters.optional(scope_tokens)
    )
    """Scopes that a client should ask for at first, so as few as make sense; `None` for ``scopes``."""
    satisfies: Satisfies | None = None
    """Function of ``(granted, needed)`` that says whether a set of granted scopes holds one that is broader than the
    needed scope. Scopes that are granted themselves are never asked about."""
    dpop: Literal["off", "accepted", "required"] = attrs.field(
        default="off", validator=attrs.validators.in_(("off", "accepted", "required"))
    )
    """Tokens that are bound to a key of the client (RFC 9449), so that a stolen one is of no use: whether such tokens
    are taken, or no others. Needs the extra ``trio-mcp[auth]``."""
    dpop_nonces: bool | bytes = attrs.field(default=False, validator=_nonces, repr=False)
    """True has clients repeat a value of the server in each proof, so that no proof can be made in advance, and clocks
    need not agree; replicas that share a storage take each other's. A secret of 32 bytes or more does the same for all
    processes that share the secret."""
    on_authenticated: OnAuthenticated | None = attrs.field(default=None, repr=False)
    """An ``async`` function of the `Principal` and the headers of a request, which returns the content of
    `Auth.extra`. Called once for each request."""
    resource_name: str | None = None
    """The name of the server for users who are asked whether a client may use it."""
    resource_documentation: str | None = None
    """The URL of a page for developers of clients."""
    max_cached: int = attrs.field(default=10_000, validator=positive)
    """Number of good tokens that are remembered, so that each is verified once. Bad ones are counted apart."""
    cache_for: float | None = attrs.field(default=None, validator=attrs.validators.optional(positive))
    """Seconds after which a good token is verified again, such as one that may be revoked. `None`: when it expires,
    and after a minute where the verifier does not know when that is."""
    max_verifications: int = attrs.field(default=100, validator=positive)
    """Number of tokens that are verified at once. Requests beyond are refused with status 503."""
    trusted_http_hosts: Collection[str] = attrs.field(default=frozenset[str](), converter=host_names)
    """Hosts of a private network that ``resource`` and ``authorization_servers`` may name with plain ``http``. Whoever
    can read the traffic of that network sees the tokens, and whoever can change it can forge them."""

    def __attrs_post_init__(self) -> None:
        check_resource(self.resource, self.trusted_http_hosts)
        for issuer in self.authorization_servers:
            check_issuer(issuer, self.trusted_http_hosts)
        # 2026-07-28 authorization, Refresh Tokens: a matter of clients and their authorization server.
        if _OFFLINE in self.scopes or _OFFLINE in (self.scopes_supported or ()):
            raise ValueError("offline_access is no scope of a resource: clients ask for it by themselves")

    def _gate(self, *, now: Callable[[], float] = time.time) -> Gate:
        """Return a new gate. ``now`` tells the time in seconds since the epoch."""
        proofs = self._proofs(now)
        algorithms = () if proofs is None else proofs.algorithms
        metadata = PublishedMetadata(self, algorithms)
        refusals = Refusals(
            metadata_url=metadata.url,
            scopes=self.scopes,
            takes_bearer=self.dpop != "required",
            proof_algorithms=algorithms,
        )
        verify, answers_hold = self._verify(now)
        tokens = TokenCheck(
            verify,
            max_cached=self.max_cached,
            cache_for=min(answers_hold, math.inf if self.cache_for is None else self.cache_for),
            max_concurrent=self.max_verifications,
            now=now,
        )
        return Gate(metadata, tokens, refusals, proofs, self.satisfies, self.on_authenticated)

    def _proofs(self, now: Callable[[], float]) -> ProofChecks | None:
        if self.dpop == "off":
            return None
        from .proof_checks import ProofChecks, ProofNonces  # needs joserfc

        secret = self.dpop_nonces
        nonces = None if secret is False else ProofNonces(None if secret is True else secret)
        return ProofChecks(self.resource, nonces, now)

    def _verify(self, now: Callable[[], float]) -> tuple[Verify, float]:
        """Return the function that verifies, and the seconds for which its answers hold."""
        verifier = self.verifier
        if isinstance(verifier, BuiltInVerifier):
            trusted = frozenset(self.trusted_http_hosts)
            return verifier._at(self.resource, self.authorization_servers, now, trusted).verify, verifier._holds_for
        return cast("Verify", getattr(verifier, "verify", verifier)), math.inf


OnAuthenticated: TypeAlias = Callable[[Principal, Mapping[str, str]], Awaitable[Mapping[str, Any]]]
"""An async function that returns the `Auth.extra` of a principal whose request has these headers."""
Satisfies: TypeAlias = Callable[[frozenset[str], str], bool]
"""A function that returns whether the granted scopes include the needed one."""

_NO_TOKEN: Final = "the Authorization header has no token behind its scheme"


class HttpHead(Protocol):
    """The head of an HTTP request, or of one that becomes a WebSocket."""

    @property
    def method(self) -> str:
        """The method, in upper case."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Values by names in lower case; the values of a repeated header are joined with commas."""
        ...

    @property
    def repeated(self) -> Collection[str]:
        """Names of headers that came more than once."""
        ...


@final
class Gate:
    """Knows the callers of one endpoint. Made by `Protected._gate`, one for each running endpoint."""

    def __init__(
        self,
        metadata: PublishedMetadata,
        tokens: TokenCheck,
        refusals: Refusals,
        proofs: ProofChecks | None,
        satisfies: Satisfies | None,
        on_authenticated: OnAuthenticated | None,
    ) -> None:
        self.metadata = metadata.to_json()
        """The protected resource metadata (RFC 9728 section 2), as JSON."""
        self.metadata_paths = metadata.paths
        """Paths at which the metadata stand: with the path of the resource, and at the root (RFC 9728 section 3.1)."""
        self._tokens = tokens
        self._refusals = refusals
        self._scopes = refusals.scopes
        self._schemes = refusals.schemes
        self._proofs = proofs
        self._satisfies = satisfies
        self._on_authenticated = on_authenticated
        self._replay_guard: ReplayGuard | None = None
        """The proofs that were used on any replica; `None` where there are no replicas."""
        self._may_ask = on_authenticated is not None
        """True where there is more to ask than the verifier."""

    def share(self, replay_guard: ReplayGuard, secret: bytes) -> None:
        """Have each proof count once for all replicas together, which remember proofs in ``replay_guard``. With nonces,
        unless the author has given a secret for these, replicas know each other's nonces by ``secret``."""
        if self._proofs is not None:
            self._replay_guard, self._may_ask = replay_guard, True
            self._proofs.share(secret)

    def known(self, head: HttpHead) -> Auth | Refusal | None:
        """Return the caller, or the refusal; `None` where only `ask` can tell. Synchronous."""
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
        """Return the caller, or the refusal, of any request. Never raises but for a cancel: a defect of the author's
        functions is logged, and refuses the request with status 500."""
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
        """Return the refusal where the caller lacks one of the ``needed`` scopes. The refusal names all of the
        needed scopes (2026-07-28 authorization, Runtime Insufficient Scope Errors). Synchronous."""
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
        # 2026-07-28 authorization, Token Requirements: only in this header; in the query nobody looks.
        if "authorization" in head.repeated:
            return self._refusals.malformed("there is one Authorization header")
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
        """Return whether other replicas have to be asked for the proofs of ``principal``."""
        return self._replay_guard is not None and principal.key_thumbprint is not None

    async def _unproven_anywhere(self, head: HttpHead, came: PresentedToken, principal: Principal) -> Refusal | None:
        """Return the refusal where the client does not show that the token is its own, by a proof that no replica has
        seen. Where that cannot be found out, nobody is let in."""
        proof = self._proof(head, came, principal)
        if proof is None or isinstance(proof, Refusal):
            return proof
        assert self._replay_guard is not None, "other replicas are asked"
        try:
            is_new = await self._replay_guard.add(proof.digest, ttl_ms=proof.ttl)
        except OSError as error:  # the place logs its outages, and any client can come here
            logger.debug("no proof can be checked, since the replicas cannot tell which were used: %s", error)
            return unavailable()
        return None if is_new else self._refusals.bad_proof(USED_BEFORE)

    def _proof(self, head: HttpHead, came: PresentedToken, principal: Principal) -> UsedProof | Refusal | None:
        """Return the proof that the token is the client's own, or the refusal; `None` where no proof is needed."""
        if came.scheme == "bearer" or self._proofs is None:
            if principal.key_thumbprint is None:
                return None
            # RFC 9449 section 7.2: whoever has stolen the token would send it so.
            return self._refusals.bad_token(came.scheme, "the access token is bound to a key, and came without a proof")
        from .proof_checks import NonceNeeded, TooManyProofs

        if "dpop" in head.repeated or "dpop" not in head.headers:  # RFC 9449 section 4.3, 1
            return self._refusals.bad_proof("there is one DPoP header")
        try:
            return self._proofs.check(head.headers["dpop"], head.method, came.token, principal)
        except Untrusted as reason:
            return self._refusals.bad_proof(str(reason))
        except NonceNeeded as needed:
            return self._refusals.needs_nonce(needed.nonce)
        except TooManyProofs:
            return unavailable()


_TOKEN: Final = lazy_pattern(r"[A-Za-z0-9._~+/-]+=*")
"""RFC 6750 section 2.1, ``b64token``; RFC 9449 section 7.1, ``token68``."""
_SCHEME: Final = lazy_pattern(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""RFC 9110 section 11.1."""


class Malformed(Exception):
    """The Authorization header has one of our schemes, and no token behind."""


@define(eq=False)
class PresentedToken:
    """A token, and the scheme by which it came."""

    scheme: Literal["bearer", "dpop"]
    token: str = attrs.field(repr=False)

    def check(self) -> None:
        """Raise `Malformed` where the token has other characters than tokens have. Takes longer than all else here, so
        that known tokens are not checked again."""
        if not _TOKEN.fullmatch(self.token):
            raise Malformed


def presented_token(authorization: str | None, schemes: Container[str]) -> PresentedToken | None:
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
    return PresentedToken(scheme, token.lstrip(" "))
