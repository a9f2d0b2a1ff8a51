"""Revocation: tokens that nobody is to use any more (RFC 7009).

`sign_out` forgets the record of a server, and has each authorization server in it revoke its tokens by `revoke`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import trio

from ...protocol.authorization import ServerMetadata
from ..errors import AuthorizationError
from ..fetching import Fetcher
from ..storage.records import Storage, StorageFailed, Stored
from .acquisition import drive
from .discovery import metadata_of
from .grants import ClientBindings, GrantContext, Machine, OAuthSettings, error_code, refused
from .registration import client_of
from .token_request import TokenClient, authentication, post_form

_SIGN_OUT_DEADLINE: Final = 10.0
"""Seconds for all revocations together."""


async def sign_out(
    server_url: str,
    storage: Storage,
    settings: OAuthSettings,
    fetcher: Fetcher,
    *,
    now: Callable[[], float] = time.time,
) -> list[str] | None:
    """Forget the record of the server at ``server_url``, and have its tokens revoked; return the reasons why some may
    be good still, and `None` where there was no record.

    The record is gone first, readable or not; then each authorization server is asked, all within ten seconds. Raises
    `StorageFailed` where the record stays.
    """
    reasons: list[str] = []
    stored = Stored()
    async with storage.lock(server_url):
        try:
            stored = await storage.load(server_url) or stored
        except StorageFailed as error:
            reasons.append(str(error))
        if not await storage.remove(server_url):
            return None
    bindings = ClientBindings(storage)
    with trio.move_on_after(_SIGN_OUT_DEADLINE) as patience:
        for issuer in stored.issuers:
            context = GrantContext(server_url=server_url, stored=stored, now=now, bindings=bindings)
            try:
                await drive(revoke(settings, context, issuer), fetcher, None, _nothing, bindings.settle)
            except AuthorizationError as error:
                reasons.append(str(error))
    if patience.cancelled_caught:
        reasons.append(f"the authorization server has not answered within {_SIGN_OUT_DEADLINE:g} s")
    return reasons


def _nothing() -> None:
    """Do nothing: leaving a revocation halfway harms nobody."""


def revoke(settings: OAuthSettings, context: GrantContext, issuer: str) -> Machine[None]:
    """Have ``issuer`` revoke the stored tokens that it has granted; the refresh token first, since its end is that of
    the access tokens, too (RFC 7009 section 2.1). Asks for five URLs at most.

    Raises `AuthorizationError` where a token may be good still.
    """
    record = context.stored.issuers.get(issuer)
    if record is None or record.tokens is None:
        return
    server = yield from metadata_of(issuer, context.server_url)
    url = server.revocation_endpoint
    if url is None:
        raise AuthorizationError(f"the authorization server {issuer[:200]!r} revokes no tokens")
    client = client_of(server, record, settings, context.now())
    if client is None:
        if record.client is None:
            raise AuthorizationError("it is not known which client the tokens were granted to")
        # Its id is all that is left of a client that other settings had made: enough for one without a secret.
        client = TokenClient(client_id=record.client.client_id, auth_method="none", kept=record.client)
    elif settings.client is not None:
        context.claim(settings.client, issuer)
    tokens = record.tokens
    for hint, token in (("refresh_token", tokens.refresh_token), ("access_token", tokens.access_token)):
        if token is not None:
            yield from _revoke_one(url, {"token": token, "token_type_hint": hint}, server, client, context.now())


def _revoke_one(
    url: str, form: dict[str, str], server: ServerMetadata, client: TokenClient, now: float
) -> Machine[None]:
    headers, named = authentication(client, server.issuer, now, server.token_endpoint_auth_signing_alg_values_supported)
    answer = yield from post_form("revocation", url, headers, {**form, **named}, server.issuer)
    if answer.status != HTTPStatus.OK:  # a token that is not known is answered alike (RFC 7009 section 2.2)
        what = f"the revocation endpoint of {server.issuer[:200]!r} has refused"
        raise refused(what, error_code(answer.body), answer.status)
