"""Refusals: the errors that an authorization server answers with, as errors of the client.

The words of a refusal are chosen by the authorization server, which knows the secrets of the request. So no text of the
answer is repeated but one of the registered codes.
"""

from __future__ import annotations

from typing import Final

from ....protocol.authorization import InvalidDocument, OAuthErrorResponse
from ...errors import AuthorizationError

_CODES: Final = frozenset(
    (
        # RFC 6749 sections 4.1.2.1 and 5.2
        *("access_denied", "invalid_client", "invalid_grant", "invalid_request", "invalid_scope", "server_error"),
        *("temporarily_unavailable", "unauthorized_client", "unsupported_grant_type", "unsupported_response_type"),
        # RFC 7009 section 2.2.1, RFC 7591 section 3.2.2, RFC 8707 section 2, RFC 9449 sections 5 and 8
        *("invalid_client_metadata", "invalid_redirect_uri", "invalid_software_statement", "invalid_target"),
        *("unapproved_software_statement", "unsupported_token_type", "invalid_dpop_proof", "use_dpop_nonce"),
        # RFC 6750 section 3.1 and RFC 9470 section 3; OpenID Connect Core section 3.1.2.6
        *("insufficient_scope", "insufficient_user_authentication", "invalid_token"),
        *("account_selection_required", "consent_required", "interaction_required", "login_required"),
    )
)


def error_code(body: bytes) -> str | None:
    """Return the ``error`` in an answer, whose word the server has chosen; `None` where the answer has none."""
    try:
        return OAuthErrorResponse.from_json(body).error
    except InvalidDocument:
        return None


def refused(what: str, error: str | None, status: int | None = None) -> AuthorizationError:
    """Return the error for ``what``, a sentence, was refused with the OAuth error ``error`` and the HTTP status."""
    known = error if error in _CODES else None
    word = known or (f"status {status}" if status is not None and error is None else "an unknown error")
    return AuthorizationError(f"{what}: {word}", code=known)
