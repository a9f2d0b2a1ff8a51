"""The HTTP responses with which a protected endpoint refuses requests (RFC 6750 section 3, RFC 9449 section 7.1, RFC
9728).

A server without authorization imports only this module of the package.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Final

import attrs

from ...classes import frozen
from ...lazy import lazy_pattern

USED_BEFORE: Final = "the DPoP proof was used before"
"""The reason in the response if a DPoP proof was already used."""


@frozen
class Refusal:
    """The HTTP response that refuses a request because its caller isn't authenticated or lacks permission."""

    status: HTTPStatus
    reason: str
    """A sentence for the people who run the client. It reveals nothing internal."""
    headers: tuple[tuple[str, str], ...] = ()
    """The headers of the response: ``WWW-Authenticate``, and ``DPoP-Nonce`` if a proof needs a nonce."""


@frozen(kw_only=True)
class Refusals:
    """Creates the HTTP responses with which one protected endpoint refuses requests."""

    metadata_url: str
    scopes: frozenset[str]
    """The scopes that every caller needs."""
    takes_bearer: bool
    proof_algorithms: Sequence[str]
    """The accepted signature algorithms of DPoP proofs; empty without DPoP."""

    @property
    def schemes(self) -> frozenset[str]:
        """The authentication schemes that the endpoint accepts, in lower case: ``bearer``, ``dpop``, or both."""
        return frozenset((*(("bearer",) if self.takes_bearer else ()), *(("dpop",) if self.proof_algorithms else ())))

    def no_token(self) -> Refusal:
        """Return the HTTP response that refuses a request without a token (status 401)."""
        # RFC 6750 section 3.1: send no error code, since the client hasn't tried to authenticate.
        return self._refused(HTTPStatus.UNAUTHORIZED, None, "a token is required")

    def malformed(self, reason: str) -> Refusal:
        """Return the HTTP response that refuses a request with a malformed Authorization header (status 400)."""
        return self._refused(HTTPStatus.BAD_REQUEST, "invalid_request", reason)

    def bad_token(
        self, scheme: str, reason: str = "the access token is expired, revoked, or for another server"
    ) -> Refusal:
        """Return the HTTP response that refuses an invalid token. The client sent the token with the authentication
        scheme ``scheme``."""
        return self._refused(HTTPStatus.UNAUTHORIZED, "invalid_token", reason, scheme)

    def bad_proof(self, reason: str) -> Refusal:
        """Return the HTTP response that refuses an invalid DPoP proof (RFC 9449 section 7.1). The client hasn't shown
        that it has the key of its token."""
        return self._refused(HTTPStatus.UNAUTHORIZED, "invalid_dpop_proof", reason, "dpop")

    def needs_nonce(self, nonce: str) -> Refusal:
        """Return the HTTP response that makes the client send the request again, with a DPoP proof that contains
        ``nonce`` (RFC 9449 section 9)."""
        reason = "the DPoP proof must contain the nonce of the DPoP-Nonce header"
        refusal = self._refused(HTTPStatus.UNAUTHORIZED, "use_dpop_nonce", reason, "dpop")
        return attrs.evolve(refusal, headers=(*refusal.headers, ("DPoP-Nonce", nonce)))

    def lacks_scope(self, scheme: str, needed: Iterable[str]) -> Refusal:
        """Return the HTTP response that refuses a request whose token lacks one of the ``needed`` scopes (status
        403)."""
        reason = "the access token lacks a required scope"
        # 2026-07-28 authorization, Runtime Insufficient Scope Errors: name all scopes that the operation needs.
        return self._refused(HTTPStatus.FORBIDDEN, "insufficient_scope", reason, scheme, needed)

    def _refused(
        self, status: HTTPStatus, code: str | None, reason: str, scheme: str | None = None, needed: Iterable[str] = ()
    ) -> Refusal:
        """Return an HTTP response that refuses a request. It has a ``WWW-Authenticate`` challenge for each accepted
        scheme.

        Only the challenge of the ``scheme`` that the client used has the error ``code`` (RFC 9449 section 7.2). If that
        scheme is unknown or isn't accepted, each challenge has the code.
        """
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
    """Return the HTTP response to a request whose token can't be verified now (status 503)."""
    reason = "tokens cannot be checked at the moment; try again later"
    return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, reason, (("Retry-After", "5"),))


def broken() -> Refusal:
    """Return the HTTP response with status 500 that a client gets if a function of the server's author raises an
    exception."""
    return Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "the server failed to identify the caller")


_NAME: Final = lazy_pattern(r"[!#$%&'*+.^_`|~0-9A-Za-z-]++")
_WRITTEN: Final = lazy_pattern(r"[\x20-\x7e]*")


def challenge_text(scheme: str, params: Mapping[str, str]) -> str:
    """Return a challenge for the header ``WWW-Authenticate``, with all values quoted.

    Raises `ValueError` if a name isn't a token or a value isn't printable ASCII. The error's message doesn't contain
    the value.
    """
    for name in (scheme, *params):
        if not _NAME.fullmatch(name):
            raise ValueError(f"invalid name of a scheme or parameter for WWW-Authenticate: {name[:100]!r}")
    for name, value in params.items():
        if not _WRITTEN.fullmatch(value):
            raise ValueError(f"the parameter {name} of WWW-Authenticate must have printable ASCII characters only")
    texts = [f'{name}="{_escaped(value)}"' for name, value in params.items()]
    return f"{scheme} {', '.join(texts)}" if texts else scheme


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"")
