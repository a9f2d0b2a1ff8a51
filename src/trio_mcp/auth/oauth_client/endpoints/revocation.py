"""Revocation: tokens that nobody is to use any more (RFC 7009)."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final
from urllib.parse import urlencode

from ....protocol.authorization import ServerMetadata
from ...errors import AuthorizationError
from ...fetching.exchange import Fetch, Fetched, FetchFailed
from ..discovery import metadata_of
from ..grant import Situation
from ..settings import OAuthSettings
from ..steps import Machine
from .client_authentication import TokenClient, authentication
from .refusals import error_code, refused
from .registration import client_of

_FORM: Final = "application/x-www-form-urlencoded"


def revoke(settings: OAuthSettings, situation: Situation, issuer: str) -> Machine[None]:
    """Have ``issuer`` revoke the stored tokens that it has granted; the refresh token first, since its end is that of
    the access tokens, too (RFC 7009 section 2.1). Asks for five URLs at most.

    Raises `AuthorizationError` where a token may be good still.
    """
    record = situation.stored.issuers.get(issuer)
    if record is None or record.tokens is None:
        return
    server = yield from metadata_of(issuer, situation.server_url)
    url = server.revocation_endpoint
    if url is None:
        raise AuthorizationError(f"the authorization server {issuer[:200]!r} revokes no tokens")
    client = client_of(server, record, settings, situation.now())
    if client is None:
        if record.client is None:
            raise AuthorizationError("it is not known which client the tokens were granted to")
        # Its id is all that is left of a client that other settings had made: enough for one without a secret.
        client = TokenClient(client_id=record.client.client_id, auth_method="none", kept=record.client)
    elif settings.client is not None:
        situation.claim(settings.client, issuer)
    tokens = record.tokens
    for hint, token in (("refresh_token", tokens.refresh_token), ("access_token", tokens.access_token)):
        if token is not None:
            yield from _revoke_one(url, {"token": token, "token_type_hint": hint}, server, client, situation.now())


def _revoke_one(
    url: str, form: dict[str, str], server: ServerMetadata, client: TokenClient, now: float
) -> Machine[None]:
    headers, named = authentication(client, server.issuer, now, server.token_endpoint_auth_signing_alg_values_supported)
    try:
        answer: Fetched = yield Fetch(
            method="POST",
            url=url,
            headers=tuple(headers.items()),
            body=urlencode({**form, **named}).encode("ascii"),
            content_type=_FORM,
            secrets_of=server.issuer,
        )
    except FetchFailed as error:
        raise AuthorizationError(f"the revocation endpoint could not be asked: {error}") from None
    if answer.status != HTTPStatus.OK:  # a token that is not known is answered alike (RFC 7009 section 2.2)
        what = f"the revocation endpoint of {server.issuer[:200]!r} has refused"
        raise refused(what, error_code(answer.body), answer.status)
