"""Protected: the authorization of a server over HTTP, as authors configure it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import attrs

from .gate import Gate, OnAuthenticated, Satisfies
from .metadata import PublishedMetadata, check_issuer, check_resource, scope_tokens
from .proof_nonces import ProofNonces
from .refusing import Refusals
from .tokens import TokenCheck
from .verifiers.verifier import BuiltInVerifier, Verifier, Verify

if TYPE_CHECKING:
    from .proof_checks import ProofChecks

_OFFLINE: Final = "offline_access"


def _positive(_: Any, field: attrs.Attribute[Any], value: float) -> None:
    if not value > 0:
        raise ValueError(f"{field.name} must be greater than 0, not {value!r}")


def _nonces(_: Any, __: Any, value: bool | bytes) -> None:
    if not isinstance(value, bool) and len(value) < 32:
        raise ValueError("a secret of dpop_nonces has 32 bytes or more")


def _issuers(urls: Sequence[str]) -> tuple[str, ...]:
    if isinstance(urls, str):
        raise TypeError(f"authorization_servers are several, [{urls!r}] for example, not one text")
    issuers = tuple(dict.fromkeys(check_issuer(url) for url in urls))
    if not issuers:  # 2026-07-28 authorization, Authorization Server Discovery: at least one
        raise ValueError("a protected server needs an authorization server that its clients can get tokens from")
    return issuers


@attrs.frozen(kw_only=True)
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

    resource: str = attrs.field(converter=check_resource)
    """The URL under which clients reach the server, as clients write it: with ``https``, or ``http`` on this machine.
    All that clients are told is made from this URL, never from a Host header, and tokens must be meant for
    this URL."""
    authorization_servers: Sequence[str] = attrs.field(converter=_issuers)
    """Issuers of the tokens, where clients get tokens; the first is the one that most clients use."""
    verifier: Verifier | BuiltInVerifier = attrs.field(repr=False)
    """How tokens are checked: `JWTVerifier`, `IntrospectionVerifier`, or any ``async def verify(token)`` that returns a
    `Principal`, or `None` for a token that is not good. The function must refuse tokens for other resources."""
    scopes: frozenset[str] = attrs.field(default=frozenset[str](), converter=scope_tokens)
    """Scopes that each request needs."""
    scopes_supported: frozenset[str] | None = attrs.field(
        default=None, converter=attrs.converters.optional(scope_tokens)
    )
    """Scopes that a client should ask for at first, so as few as make sense; `None` for ``scopes``."""
    satisfies: Satisfies | None = None
    """Whether ``(granted, needed)``: a set of granted scopes holds one that is broader than the needed scope. Scopes
    that are granted themselves are never asked about."""
    dpop: Literal["off", "accepted", "required"] = attrs.field(
        default="off", validator=attrs.validators.in_(("off", "accepted", "required"))
    )
    """Tokens that are bound to a key of the client (RFC 9449), so that a stolen one is of no use: whether such tokens
    are taken, or no others. Needs the extra ``trio-mcp[auth]``."""
    dpop_nonces: bool | bytes = attrs.field(default=False, validator=_nonces, repr=False)
    """True has clients repeat a value of the server in each proof, so that no proof can be made in advance, and clocks
    need not agree. A secret of 32 bytes or more does the same for all processes that share the secret."""
    on_authenticated: OnAuthenticated | None = attrs.field(default=None, repr=False)
    """An ``async`` function of the `Principal` and the headers of a request, which returns the content of
    `Auth.extra`. Called once for each request."""
    resource_name: str | None = None
    """The name of the server for users who are asked whether a client may use it."""
    resource_documentation: str | None = None
    """The URL of a page for developers of clients."""
    max_cached: int = attrs.field(default=10_000, validator=_positive)
    """Number of good tokens that are remembered, so that each is verified once. Bad ones are counted apart."""
    cache_for: float | None = attrs.field(default=None, validator=attrs.validators.optional(_positive))
    """Seconds after which a good token is verified again, such as one that may be revoked. `None`: when it expires,
    and after a minute where the verifier does not know when that is."""
    max_verifications: int = attrs.field(default=100, validator=_positive)
    """Number of tokens that are verified at once. Requests beyond are refused with status 503."""

    def __attrs_post_init__(self) -> None:
        # 2026-07-28 authorization, Refresh Tokens: a matter of clients and their authorization server.
        if _OFFLINE in self.scopes or _OFFLINE in (self.scopes_supported or ()):
            raise ValueError("offline_access is no scope of a resource: clients ask for it by themselves")

    def gate(self, *, now: Callable[[], float] = time.time) -> Gate:
        """Return a new gate. ``now`` tells the time in seconds since the epoch."""
        proofs = self._proofs(now)
        algorithms = () if proofs is None else proofs.algorithms
        metadata = PublishedMetadata(
            resource=self.resource,
            authorization_servers=self.authorization_servers,
            scopes_supported=self.scopes if self.scopes_supported is None else self.scopes_supported,
            name=self.resource_name,
            documentation=self.resource_documentation,
            proof_algorithms=algorithms,
            bound_tokens_only=self.dpop == "required",
        )
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
            most_at_once=self.max_verifications,
            now=now,
        )
        return Gate(metadata, tokens, refusals, proofs, self.satisfies, self.on_authenticated)

    def _proofs(self, now: Callable[[], float]) -> ProofChecks | None:
        if self.dpop == "off":
            return None
        from .proof_checks import ProofChecks  # needs joserfc

        secret = self.dpop_nonces
        nonces = None if secret is False else ProofNonces(None if secret is True else secret)
        return ProofChecks(self.resource, nonces, now)

    def _verify(self, now: Callable[[], float]) -> tuple[Verify, float]:
        """Return the function that verifies, and the seconds for which its answers hold."""
        verifier = self.verifier
        if isinstance(verifier, BuiltInVerifier):
            return verifier.at(self.resource, self.authorization_servers, now).verify, verifier.holds_for
        return cast("Verify", getattr(verifier, "verify", verifier)), math.inf
