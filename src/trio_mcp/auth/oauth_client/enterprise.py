"""Enterprise-managed authorization: the identity provider of an enterprise decides which servers its people may use
(the extension ``io.modelcontextprotocol/enterprise-managed-authorization``)."""

from __future__ import annotations

from typing import Final

import attrs

from ...protocol.authorization import ServerMetadata
from ..errors import AuthorizationError
from .discovery import AuthorizationServer, discover, known_issuer, metadata_of
from .endpoints.client_authentication import preregistered
from .endpoints.token_request import ask, granted
from .grant import Grant, Situation
from .jwt_bearer import assertion_form
from .scopes import scope_parameter, scopes_at
from .settings import EnterpriseManagedSettings
from .steps import Machine

_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
_ID_JAG: Final = "urn:ietf:params:oauth:token-type:id-jag"


def enterprise_managed(settings: EnterpriseManagedSettings, situation: Situation) -> Machine[Grant]:
    """Find the authorization server, have the identity provider exchange the user's token for a grant there, and return
    the tokens for that grant.

    Asks for eleven URLs at most, beside the repeat that a nonce of DPoP demands.
    """
    found = yield from discover(situation, known_issuer(settings.client, situation.stored))
    situation.claim(settings.client, found.issuer)
    scopes = scopes_at(found, settings.scopes, situation)
    if settings.idp_token_endpoint is None:
        provider = yield from metadata_of(settings.idp_issuer)
    else:
        provider = ServerMetadata(issuer=settings.idp_issuer, token_endpoint=settings.idp_token_endpoint)
    grant = yield from _exchanged(settings, provider, found, scopes, situation)
    client = preregistered(settings.client, found.metadata.token_endpoint_auth_methods_supported)
    return (yield from granted(assertion_form(grant), found, client, scopes, situation))


def _exchanged(
    settings: EnterpriseManagedSettings,
    provider: ServerMetadata,
    found: AuthorizationServer,
    scopes: tuple[str, ...],
    situation: Situation,
) -> Machine[str]:
    """Return the grant that the identity provider gives for the authorization server (RFC 8693 section 2)."""
    form = {
        "grant_type": _EXCHANGE,
        "requested_token_type": _ID_JAG,
        "audience": found.issuer,
        "resource": found.resource,
        **scope_parameter(scopes),
        "subject_token": settings.subject_token,
        "subject_token_type": settings.subject_token_type,
    }
    client = preregistered(settings.idp_client, provider.token_endpoint_auth_methods_supported)
    # The grant is bound to no key, so the identity provider is shown none.
    answer = yield from ask(form, server=provider, client=client, situation=attrs.evolve(situation, proofs=None))
    # RFC 8693 section 2.2.1: any other token is for the client alone, and the authorization server must not see it.
    if answer.issued_token_type != _ID_JAG:
        raise AuthorizationError("the identity provider has given another token than a grant for the server")
    return answer.access_token
