"""Authorization code: a user signs in with a browser (2026-07-28 authorization, Authorization Flow Steps).

`refresh` gets new tokens without the user, for the refresh token of that grant (RFC 6749 section 6).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from functools import partial
from typing import Final
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

import attrs

from ...classes import frozen
from ...protocol.authorization import ServerMetadata
from ...transports.http_client.origins import split_url
from ..errors import AuthorizationError
from ..fetching import nearness
from ..storage.records import IssuerRecord, Tokens
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
from .grants import Grant, GrantContext, Machine, OAuthSettings, Visit, refused
from .registration import client_at, client_of
from .token_request import TokenClient, tokens_by

_LOOPBACK: Final = frozenset(("127.0.0.1", "::1", "localhost"))
_LONGEST_CODE: Final = 8192
_MOST_PARAMETERS: Final = 32


@frozen(kw_only=True)
class _Request:
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
    request = _Request(
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
    return (
        yield from tokens_by(
            form, server=found.metadata, resource=found.resource, client=client, context=context, scopes=scopes
        )
    )


def _authorize_url(
    request: _Request, client: TokenClient, scopes: tuple[str, ...], resource: str, configured: Sequence[str]
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
            f"the URL that the authorization server {request.server.issuer[:200]!r} has for the browser is not to be"
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


def _code(callback: str, request: _Request) -> str:
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
    resource = record.resource or context.server_url
    tokens = yield from tokens_by(
        form, server=server, resource=resource, client=client, context=context, scopes=old.scopes
    )
    if tokens.refresh_token is None:
        tokens = attrs.evolve(tokens, refresh_token=old.refresh_token)
    return Grant(issuer=issuer, record=attrs.evolve(record, tokens=tokens))
