"""Refusals: the words in which an endpoint refuses a caller (RFC 6750 section 3, RFC 9449 section 7.1, RFC 9728).

A server without authorization imports this module alone of its room.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Final

import attrs

from ...classes import frozen
from ...lazy import lazy_pattern

USED_BEFORE: Final = "the proof was used before"
"""Reason of the refusal of a proof that somebody sends once more."""


@frozen
class Refusal:
    """The answer to a request whose caller is not known, or may not do this."""

    status: HTTPStatus
    reason: str
    """A sentence for the client's people, which tells nothing internal."""
    headers: tuple[tuple[str, str], ...] = ()
    """``WWW-Authenticate``, and ``DPoP-Nonce`` where a proof needs one."""


@frozen(kw_only=True)
class Refusals:
    """The refusals of one endpoint."""

    metadata_url: str
    scopes: frozenset[str]
    """Scopes that every caller needs."""
    takes_bearer: bool
    proof_algorithms: Sequence[str]
    """Algorithms of DPoP proofs; none where there is no DPoP."""

    @property
    def schemes(self) -> frozenset[str]:
        """The schemes that are taken here, in lower case."""
        return frozenset((*(("bearer",) if self.takes_bearer else ()), *(("dpop",) if self.proof_algorithms else ())))

    def no_token(self) -> Refusal:
        """Return the answer to a request without a token."""
        # RFC 6750 section 3.1: no error code where the client did not try to authenticate.
        return self._refused(HTTPStatus.UNAUTHORIZED, None, "a token is needed here")

    def malformed(self, reason: str) -> Refusal:
        """Return the answer to a request whose credentials make no sense."""
        return self._refused(HTTPStatus.BAD_REQUEST, "invalid_request", reason)

    def bad_token(self, scheme: str, reason: str = "the access token is expired, revoked, or not for here") -> Refusal:
        """Return the answer to a request whose token, that came by ``scheme``, is none for this resource."""
        return self._refused(HTTPStatus.UNAUTHORIZED, "invalid_token", reason, scheme)

    def bad_proof(self, reason: str) -> Refusal:
        """Return the answer to a request whose proof does not show that the client has the key of its token (RFC 9449
        section 7.1)."""
        return self._refused(HTTPStatus.UNAUTHORIZED, "invalid_dpop_proof", reason, "dpop")

    def needs_nonce(self, nonce: str) -> Refusal:
        """Return the answer to a request whose proof has to be made again, with ``nonce`` (RFC 9449 section 9)."""
        reason = "the proof of the key needs the nonce of the DPoP-Nonce header"
        refusal = self._refused(HTTPStatus.UNAUTHORIZED, "use_dpop_nonce", reason, "dpop")
        return attrs.evolve(refusal, headers=(*refusal.headers, ("DPoP-Nonce", nonce)))

    def lacks_scope(self, scheme: str, needed: Iterable[str]) -> Refusal:
        """Return the answer to a request whose token lacks one of the ``needed`` scopes."""
        reason = "the access token lacks a scope that is needed here"
        # 2026-07-28 authorization, Runtime Insufficient Scope Errors: all scopes that the operation needs, at once.
        return self._refused(HTTPStatus.FORBIDDEN, "insufficient_scope", reason, scheme, needed)

    def _refused(
        self, status: HTTPStatus, code: str | None, reason: str, scheme: str | None = None, needed: Iterable[str] = ()
    ) -> Refusal:
        """Return a refusal with a challenge for each scheme that is taken here. The error ``code`` stands in that of
        the ``scheme`` that was used (RFC 9449 section 7.2); in each, if the scheme is not known or not taken."""
        error = {} if code is None else {"error": code, "error_description": reason}
        scope = " ".join(sorted(self.scopes.union(needed)))
        common = {"resource_metadata": self.metadata_url, **({"scope": scope} if scope else {})}
        own = {"bearer": ("Bearer", dict[str, str]()), "dpop": ("DPoP", {"algs": " ".join(self.proof_algorithms)})}
        headers = list[tuple[str, str]]()
        for name in sorted(self.schemes):
            word, more = own[name]
            at_fault = scheme not in self.schemes or name == scheme
            headers.append(
                ("WWW-Authenticate", challenge_text(word, {**(error if at_fault else {}), **common, **more}))
            )
        return Refusal(status, reason, tuple(headers))


def unavailable() -> Refusal:
    """Return the answer when nobody can say now whether a token is good."""
    reason = "tokens cannot be checked at the moment; try again later"
    return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, reason, (("Retry-After", "5"),))


def broken() -> Refusal:
    """Return the answer when a function of the author has failed."""
    return Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "the server has failed to check the caller")


_NAME: Final = lazy_pattern(r"[!#$%&'*+.^_`|~0-9A-Za-z-]++")
_WRITTEN: Final = lazy_pattern(r"[\x20-\x7e]*")


def challenge_text(scheme: str, params: Mapping[str, str]) -> str:
    """Return the challenge as a part of ``WWW-Authenticate``. All values are quoted. Raises `ValueError` for a name
    that is no token, and for a value that has other than printable ASCII characters; the value is not in the text."""
    for name in (scheme, *params):
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name[:100]!r} is no name of a scheme or parameter of WWW-Authenticate")
    for name, value in params.items():
        if not _WRITTEN.fullmatch(value):
            raise ValueError(f"the parameter {name} of WWW-Authenticate must have printable ASCII characters only")
    texts = [f'{name}="{_escaped(value)}"' for name, value in params.items()]
    return f"{scheme} {', '.join(texts)}" if texts else scheme


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"")
