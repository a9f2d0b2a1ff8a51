"""The challenge of a refused request, and the error of one that nothing helps."""

from __future__ import annotations

from typing import Final

from ...challenges import Challenge, parse_challenges
from ...credentials import RefusedRequest
from ...errors import AuthorizationError

_CODES: Final = frozenset(
    (
        *("invalid_request", "invalid_token", "insufficient_scope"),  # RFC 6750 section 3.1
        *("invalid_dpop_proof", "use_dpop_nonce", "insufficient_user_authentication"),  # RFC 9449, RFC 9470
    )
)
_METADATA: Final = "resource_metadata"


def challenge_of(request: RefusedRequest, *, is_dpop: bool) -> Challenge | None:
    """Return the challenge for a token, for one that is bound to a key where ``is_dpop``; `None` where the server has
    sent none. The resource metadata (RFC 9728 section 5.1) are those of any of the challenges."""
    found = [each for each in parse_challenges(request.challenges) if each.scheme in ("bearer", "dpop")]
    if not found:
        return None
    wanted = "dpop" if is_dpop else "bearer"
    chosen = next((each for each in found if each.scheme == wanted), found[0])
    metadata = next((each.params[_METADATA] for each in found if _METADATA in each.params), None)
    if metadata is None or _METADATA in chosen.params:
        return chosen
    return Challenge(chosen.scheme, {**chosen.params, _METADATA: metadata})


def hopeless(request: RefusedRequest, error: str | None, why: str) -> AuthorizationError:
    """Return the error for a request that the server has refused, with the code ``error``, and would refuse again."""
    known = error if error in _CODES else None
    word = "" if known is None else f" ({known})"
    return AuthorizationError(
        f"the server refuses the request with HTTP status {request.status}{word}, {why}", code=known
    )
