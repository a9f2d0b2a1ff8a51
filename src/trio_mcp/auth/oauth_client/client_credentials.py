"""Client credentials: a program acts on its own behalf (RFC 6749 section 4.4; the extension
``io.modelcontextprotocol/oauth-client-credentials``)."""

from __future__ import annotations

from .discovery import discover, known_issuer
from .endpoints.client_authentication import preregistered
from .endpoints.token_request import granted
from .grant import Grant, Situation
from .scopes import scopes_at
from .settings import ClientCredentialsSettings
from .steps import Machine


def client_credentials(settings: ClientCredentialsSettings, situation: Situation) -> Machine[Grant]:
    """Find the authorization server, and return the tokens that the client has there in its own name. A challenge for
    ``insufficient_scope`` asks for all scopes that were requested before, too.

    Asks for seven URLs at most, beside the repeat that a nonce of DPoP demands.
    """
    found = yield from discover(situation, known_issuer(settings.client, situation.stored))
    situation.claim(settings.client, found.issuer)
    client = preregistered(settings.client, found.metadata.token_endpoint_auth_methods_supported)
    scopes = scopes_at(found, settings.scopes, situation)
    return (yield from granted({"grant_type": "client_credentials"}, found, client, scopes, situation))
