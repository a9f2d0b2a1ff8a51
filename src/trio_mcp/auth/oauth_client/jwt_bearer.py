"""JWT bearer: a signed statement about the caller is the grant (RFC 7523 section 2.1)."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from typing import Final

import msgspec

from ..errors import AuthorizationError
from ..storage.stored import RegisteredClient
from .discovery import AuthorizationServer, discover
from .endpoints.client_authentication import TokenClient
from .endpoints.token_request import granted
from .grant import Grant, Situation
from .scopes import scopes_at
from .settings import WorkloadIdentitySettings
from .steps import Machine

_GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"


class _Claims(msgspec.Struct):
    aud: str | list[str]


def workload_identity(settings: WorkloadIdentitySettings, situation: Situation) -> Machine[Grant]:
    """Find the authorization server, and return the tokens for the assertion of the platform.

    Asks for seven URLs at most, beside the repeat that a nonce of DPoP demands. A refusal is final: another assertion
    may help, the same one would not (``"invalid_grant"``, ``"invalid_scope"``, ``"unauthorized_client"``).
    """
    found = yield from discover(situation, settings.issuer)
    if settings.issuer is None and not _is_audience(found, settings.assertion):
        # Else a hostile server could have any authorization server named, and redeem the assertion at the right one.
        raise AuthorizationError(
            f"the assertion is not for the authorization server of this server, {found.issuer[:200]!r}: its audience"
            " must be that, or the settings must name that issuer"
        )
    client_id = settings.client_id
    client = None
    if client_id is not None:
        client = TokenClient(client_id=client_id, auth_method="none", kept=RegisteredClient(client_id=client_id))
    scopes = scopes_at(found, settings.scopes, situation)
    return (yield from granted(assertion_form(settings.assertion), found, client, scopes, situation))


def assertion_form(assertion: str) -> dict[str, str]:
    """Return the grant of ``assertion`` in a token request."""
    return {"grant_type": _GRANT, "assertion": assertion}


def _is_audience(found: AuthorizationServer, assertion: str) -> bool:
    """Return whether ``assertion`` is for that server, by its issuer or its token endpoint (RFC 7523 section 3). Nobody
    has verified the signature, which is the business of the server."""
    try:
        claims = assertion.split(".")[1]
        audience = msgspec.json.decode(urlsafe_b64decode(claims + "=" * (-len(claims) % 4)), type=_Claims).aud
    except (IndexError, ValueError, RecursionError):
        return False
    named = [audience] if isinstance(audience, str) else audience
    names = (found.issuer, f"{found.issuer}/", found.issuer.rstrip("/"), found.metadata.token_endpoint)
    return any(name in named for name in names)
