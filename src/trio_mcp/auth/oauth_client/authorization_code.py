"""Authorization code: a user signs in with a browser (2026-07-28 authorization, Authorization Flow Steps), and out.

`refresh` gets new tokens without the user, for the refresh token of that grant (RFC 6749 section 6). `sign_out` forgets
the record of a server, and has each authorization server in it revoke its tokens by `revoke` (RFC 7009).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

import attrs
import trio

from ...classes import frozen
from ...protocol.authorization import ServerMetadata
from ...transports.http_client.origins import split_url
from ..credentials import AuthorizationError
from ..fetching import Fetcher, nearness
from ..storage.records import IssuerRecord, Storage, StorageFailed, Stored, Tokens
from .acquisition import drive
from .discovery import (
    OFFLINE_ACCESS,
    AuthorizationServer,
    discover,
    known_issuer,
    metadata_of,
    scope_parameter,
    scopes_at,
    scopes_to_register,
)
from .grants import ClientBindings, Grant, GrantContext, Machine, OAuthSettings, Visit, error_code, refused, shown
from .token_request import TokenClient, client_at, client_of, post_form, tokens_by

_LOOPBACK: Final = frozenset(("127.0.0.1", "::1", "localhost"))
_LONGEST_CODE: Final = 8192
_MOST_PARAMETERS: Final = 32


@frozen(kw_only=True)
class _SignInRequest:
    """An authorization request, with all that its answer is checked against (RFC 9207 section 2.4, RFC 7636)."""

    server: ServerMetadata
    redirect_uri: str
    state: str = attrs.field(repr=False)
    verifier: str = attrs.field(repr=False)


def sign_in(settings: OAuthSettings, context: GrantContext) -> Machine[Grant]:
    """Find the authorization server, register the client where that is needed, have the user sign in, and return the
    tokens: the whole way from a refusal. A challenge for ``insufficient_scope`` is a step-up, which asks for all scopes
    that were requested before, too.

    Asks for eight URLs at most, beside one visit and the repeat that a nonce of DPoP demands. A kept registration that
    the server has forgotten (``"invalid_client"``) is replaced once, at the cost of another visit. The codes of the
    `AuthorizationError` are those of the authorization server, ``"access_denied"`` for a user who has said no.
    """
    only = None if settings.client is None else known_issuer(settings.client, context.stored)
    found = yield from discover(context, only)
    server = found.metadata
    if settings.client is not None:
        context.claim(settings.client, found.issuer)
    # Without S256, a stolen code could be redeemed by the thief (Authorization Code Protection).
    if "S256" not in (server.code_challenge_methods_supported or ()):
        raise AuthorizationError("the authorization server does not support PKCE with S256")
    record = context.stored.issuers.get(found.issuer, IssuerRecord())
    wanted = scopes_at(found, settings.scopes, context)
    scopes = wanted
    # Refresh Tokens: where the authorization server lists the scope. Alone, the scope would replace those by default.
    if wanted and settings.refreshable and OFFLINE_ACCESS in (server.scopes_supported or ()):
        scopes = tuple(dict.fromkeys((*wanted, OFFLINE_ACCESS)))
    named = scopes_to_register(found, scopes)
    client = yield from client_at(server, record, settings, named, context.now())
    visit = partial(_tokens_of_user, settings, found, scopes=scopes, context=context)
    tokens: Tokens | None = None
    try:
        tokens = yield from visit(client)
    except AuthorizationError as error:
        # RFC 6749 section 5.2: the server has forgotten, as some do, a client that had registered itself.
        if error.code != "invalid_client" or client.kept is not record.client:
            raise
    if tokens is None:
        forgotten = attrs.evolve(record, client=None)
        client = yield from client_at(server, forgotten, settings, named, context.now())
        tokens = yield from visit(client)
    record = attrs.evolve(record, client=client.kept, tokens=tokens, requested_scopes=wanted, resource=found.resource)
    return Grant(issuer=found.issuer, record=record)


def _tokens_of_user(
    settings: OAuthSettings,
    found: AuthorizationServer,
    client: TokenClient,
    *,
    scopes: tuple[str, ...],
    context: GrantContext,
) -> Machine[Tokens]:
    """Have the user sign in, and return the tokens with ``scopes`` for the code that the browser brings."""
    request = _SignInRequest(
        server=found.metadata,
        redirect_uri=settings.redirect_uri,
        state=secrets.token_urlsafe(32),
        verifier=secrets.token_urlsafe(48),  # 64 characters (RFC 7636 section 4.1)
    )
    named = None if settings.client is None else settings.client.issuer
    configured = [context.server_url, *([] if named is None else [named])]
    url = _authorize_url(request, client, scopes, found.resource, configured)
    callback: str = yield Visit(url=url, redirect_uri=settings.redirect_uri)
    form = {
        "grant_type": "authorization_code",
        "code": _code(callback, request),
        "redirect_uri": settings.redirect_uri,
        "code_verifier": request.verifier,
    }
    return (yield from tokens_by(form, found, client, scopes, context))


def _authorize_url(
    request: _SignInRequest, client: TokenClient, scopes: tuple[str, ...], resource: str, configured: Sequence[str]
) -> str:
    """Return the URL for the browser. Raises `AuthorizationError` for an endpoint that no browser should open
    (2026-07-28 security best practices, OAuth Authorization URL Validation): a stranger must not have the browser ask
    services of this machine, or of a private network, where none of the URLs that people have ``configured`` leads."""
    endpoint = request.server.authorization_endpoint or ""
    try:
        origin, target = split_url(endpoint)
    except ValueError:
        raise AuthorizationError("the authorization server has no URL for the browser") from None
    if not origin.secure and origin.host not in _LOOPBACK:
        raise AuthorizationError("the URL that the authorization server has for the browser is not https")
    if nearness(origin.host) > max(nearness(split_url(url)[0].host) for url in configured):
        raise AuthorizationError(
            f"the URL that the authorization server {shown(request.server.issuer)} has for the browser is not to be"
            f" opened: {origin} is an address of this machine, or of a private network"
        )
    challenge = (
        urlsafe_b64encode(hashlib.sha256(request.verifier.encode("ascii")).digest()).rstrip(b"=").decode("ascii")
    )
    parameters = {
        "response_type": "code",
        "client_id": client.client_id,
        "redirect_uri": request.redirect_uri,
        "state": request.state,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
        "resource": resource,  # RFC 8707 section 2, whether the server supports it or not
        **scope_parameter(scopes),
    }
    if OFFLINE_ACCESS in scopes:
        parameters["prompt"] = "consent"  # OpenID Connect Core section 11
    # RFC 6749 section 3.1: a query of the endpoint is kept, and no parameter comes twice.
    path, _, query = target.partition("?")
    kept = [pair for pair in query.split("&") if pair and unquote_plus(pair.partition("=")[0]) not in parameters]
    return f"{origin}{path}?{'&'.join([*kept, urlencode(parameters)])}"


def _code(callback: str, request: _SignInRequest) -> str:
    """Return the code in the URL that the browser was sent to. The order of checks matters: nothing of an answer that
    may be another's is used, not even its error."""
    try:
        pairs = parse_qsl(urlsplit(callback).query, keep_blank_values=True, max_num_fields=_MOST_PARAMETERS)
    except ValueError:
        raise AuthorizationError("the answer of the authorization server cannot be read") from None
    answer = dict(pairs)
    if len(answer) < len(pairs):  # RFC 6749 section 3.1
        raise AuthorizationError("the answer of the authorization server has a parameter twice")
    if not hmac.compare_digest(answer.get("state", "").encode(errors="replace"), request.state.encode()):
        raise AuthorizationError("the browser has brought the answer to another request")
    # RFC 9207 section 2.4; 2026-07-28 authorization, Authorization Response Validation: compared as it is
    issuer = answer.get("iss")
    if issuer is None and request.server.authorization_response_iss_parameter_supported:
        raise AuthorizationError("the answer does not say which authorization server it is from")
    if issuer is not None and issuer != request.server.issuer:
        raise AuthorizationError("the answer is from another authorization server")
    if "error" in answer:
        raise refused("the authorization server has not let the user in", answer["error"])
    code = answer.get("code", "")
    if not 0 < len(code) <= _LONGEST_CODE:
        raise AuthorizationError("the answer of the authorization server has no code")
    return code


def refresh(settings: OAuthSettings, context: GrantContext) -> Machine[Grant]:
    """Return the tokens that the current authorization server grants for the stored refresh token: with its new refresh
    token, or else with the old one (RFC 6749 section 6). The scopes stay the same, so a step-up is a `sign_in`.

    Asks for four URLs at most, beside the repeat that a nonce of DPoP demands. Raises `AuthorizationError` with the
    code ``"invalid_grant"`` where the refresh token is of no use any more, or there is none; with any other code, or
    none, the stored tokens are as good as before.
    """
    issuer = context.stored.current
    record = None if issuer is None else context.stored.issuers.get(issuer)
    if issuer is None or record is None or record.tokens is None or record.tokens.refresh_token is None:
        raise AuthorizationError("there is no refresh token", code="invalid_grant")
    server = yield from metadata_of(issuer, context.server_url)
    client = client_of(server, record, settings, context.now())
    if client is None:
        raise AuthorizationError("the refresh token belongs to another client", code="invalid_grant")
    if settings.client is not None:
        context.claim(settings.client, issuer)
    form = {"grant_type": "refresh_token", "refresh_token": record.tokens.refresh_token}
    old = record.tokens
    # RFC 8707 section 2.2: no other resource than the one of the grant
    found = AuthorizationServer(metadata=server, resource=record.resource or context.server_url)
    tokens = yield from tokens_by(form, found, client, old.scopes, context)
    if tokens.refresh_token is None:
        tokens = attrs.evolve(tokens, refresh_token=old.refresh_token)
    return Grant(issuer=issuer, record=attrs.evolve(record, tokens=tokens))


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
        raise AuthorizationError(f"the authorization server {shown(issuer)} revokes no tokens")
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
            form = {"token": token, "token_type_hint": hint}
            answer = yield from post_form("revocation", url, form, server, client, context.now())
            if answer.status != HTTPStatus.OK:  # a token that is not known is answered alike (RFC 7009 section 2.2)
                what = f"the revocation endpoint of {shown(server.issuer)} has refused"
                raise refused(what, error_code(answer.body), answer.status)
