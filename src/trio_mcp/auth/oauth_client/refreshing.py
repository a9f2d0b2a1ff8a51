"""Refreshing: new tokens for a refresh token (RFC 6749 section 6)."""

from __future__ import annotations

import attrs

from ..errors import AuthorizationError
from .discovery import metadata_of
from .endpoints.registration import client_of
from .endpoints.token_request import tokens_by
from .grant import Grant, Situation
from .settings import OAuthSettings
from .steps import Machine


def refresh(settings: OAuthSettings, situation: Situation) -> Machine[Grant]:
    """Return the tokens that the current authorization server grants for the stored refresh token: with its new refresh
    token, or else with the old one (RFC 6749 section 6). The scopes stay the same, so a step-up is a `sign_in`.

    Asks for four URLs at most, beside the repeat that a nonce of DPoP demands. Raises `AuthorizationError` with the
    code ``"invalid_grant"`` where the refresh token is of no use any more, or there is none; with any other code, or
    none, the stored tokens are as good as before.
    """
    issuer = situation.stored.current
    record = None if issuer is None else situation.stored.issuers.get(issuer)
    if issuer is None or record is None or record.tokens is None or record.tokens.refresh_token is None:
        raise AuthorizationError("there is no refresh token", code="invalid_grant")
    server = yield from metadata_of(issuer, situation.server_url)
    client = client_of(server, record, settings, situation.now())
    if client is None:
        raise AuthorizationError("the refresh token belongs to another client", code="invalid_grant")
    if settings.client is not None:
        situation.claim(settings.client, issuer)
    form = {"grant_type": "refresh_token", "refresh_token": record.tokens.refresh_token}
    old = record.tokens
    # RFC 8707 section 2.2: no other resource than the one of the grant
    resource = record.resource or situation.server_url
    tokens = yield from tokens_by(
        form, server=server, resource=resource, client=client, situation=situation, scopes=old.scopes
    )
    if tokens.refresh_token is None:
        tokens = attrs.evolve(tokens, refresh_token=old.refresh_token)
    return Grant(issuer=issuer, record=attrs.evolve(record, tokens=tokens))
