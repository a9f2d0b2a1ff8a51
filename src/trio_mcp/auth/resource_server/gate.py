"""Gate: knows the caller of each request to an endpoint."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, final

from ...runtime.peer import Headers
from ...runtime.principal import Auth, Principal
from .defects import log_defect
from .metadata import PublishedMetadata
from .presented import Malformed, Presented, presented
from .proof_nonces import NonceNeeded
from .refusal import Refusal
from .refusing import Refusals, broken, unavailable
from .seen_proofs import TooManyProofs
from .tokens import TokenCheck
from .verifiers.signed import Untrusted

if TYPE_CHECKING:
    from .proof_checks import ProofChecks

OnAuthenticated: TypeAlias = Callable[[Principal, Mapping[str, str]], Awaitable[Mapping[str, Any]]]
Satisfies: TypeAlias = Callable[[frozenset[str], str], bool]

_NO_TOKEN: Final = "the Authorization header has no token behind its scheme"


class RequestHead(Protocol):
    """The head of an HTTP request."""

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
    """Knows the callers of one endpoint. Made by `Protected.gate`, one for each running endpoint."""

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

    def known(self, head: RequestHead) -> Auth | Refusal | None:
        """Return the caller, or the refusal; `None` where only `ask` can tell. Synchronous."""
        came = self._presented(head)
        if isinstance(came, Refusal):
            return came
        found = self._tokens.known(came.token)
        if found is None:
            return self._malformed(came)
        if isinstance(found, Principal) and self._on_authenticated is not None:
            return None
        return self._judged(head, came, found)

    async def ask(self, head: RequestHead) -> Auth | Refusal:
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
        auth = self._judged(head, came, found)
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

    def _presented(self, head: RequestHead) -> Presented | Refusal:
        # 2026-07-28 authorization, Token Requirements: only in this header; in the query nobody looks.
        if "authorization" in head.repeated:
            return self._refusals.malformed("there is one Authorization header")
        try:
            came = presented(head.headers.get("authorization"), self._schemes)
        except Malformed:
            return self._refusals.malformed(_NO_TOKEN)
        return self._refusals.no_token() if came is None else came

    def _malformed(self, came: Presented) -> Refusal | None:
        try:
            came.check()
        except Malformed:
            return self._refusals.malformed(_NO_TOKEN)
        return None

    def _judged(self, head: RequestHead, came: Presented, found: Principal | Literal["bad"]) -> Auth | Refusal:
        if not isinstance(found, Principal):
            return self._refusals.bad_token(came.scheme)
        auth = Auth(came.token, found)
        refusal = self._unproven(head, came, found)
        if refusal is None and self._scopes:
            refusal = self.missing(auth, self._scopes)
        return auth if refusal is None else refusal

    def _unproven(self, head: RequestHead, came: Presented, principal: Principal) -> Refusal | None:
        """Return the refusal where the client does not show that the token is its own; `None` where it does, or need
        not."""
        if came.scheme == "bearer" or self._proofs is None:
            if principal.key_thumbprint is None:
                return None
            # RFC 9449 section 7.2: whoever has stolen the token would send it so.
            return self._refusals.bad_token(came.scheme, "the access token is bound to a key, and came without a proof")
        if "dpop" in head.repeated or "dpop" not in head.headers:  # RFC 9449 section 4.3, 1
            return self._refusals.bad_proof("there is one DPoP header")
        try:
            self._proofs.check(head.headers["dpop"], head.method, came.token, principal)
        except Untrusted as reason:
            return self._refusals.bad_proof(str(reason))
        except NonceNeeded as needed:
            return self._refusals.needs_nonce(needed.nonce)
        except TooManyProofs:
            return unavailable()
        return None
