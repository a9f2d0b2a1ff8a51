"""The authorization code grant: a user signs in with a browser (2026-07-28 authorization, Authorization Flow Steps), or
signs out.

`OAuth` is the configuration, and `sign_in` the machine (a generator). `refresh` gets new tokens without the user, with
the refresh token of that grant (RFC 6749 section 6). `sign_out` deletes the record of a server, and revokes its tokens
at each authorization server in the record with `revoke` (RFC 7009).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from http import HTTPStatus
from typing import Any, ClassVar, Final
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

import attrs
import trio

from ...classes import frozen
from ...concurrency.contexts import asynccontextmanager
from ...protocol.authorization import ServerMetadata
from ...transports.http_client.origins import split_url
from ..credentials import AuthorizationError, Credentials, SignInNeeded, UserIsAsked
from ..fetching import Fetcher, nearness
from ..storage.records import IssuerRecord, StoredAuthorization, Tokens, TokenStorage, TokenStorageFailed
from .acquisition import RunMachine, TokenSource, drive
from .browser import Browser, OnVisit, is_loopback_uri, open_in_browser, open_loopback
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
from .grants import (
    ClientBindings,
    Grant,
    GrantContext,
    Machine,
    PreregisteredClient,
    Visit,
    error_code,
    refused,
    shown,
)
from .token_keeper import OAuthClient
from .token_request import LOOPBACK, TokenClient, client_at, client_of, post_form, tokens_by

_LONGEST_CODE: Final = 8192
_MOST_PARAMETERS: Final = 32


@frozen(kw_only=True)
class _SignInRequest:
    """An authorization request, with the values that its response must match (RFC 9207 section 2.4, RFC 7636)."""

    server: ServerMetadata
    redirect_uri: str
    state: str = attrs.field(repr=False)
    verifier: str = attrs.field(repr=False)


def sign_in(settings: OAuthSettings, context: GrantContext) -> Machine[Grant]:
    """Send the user to the sign-in page of the authorization server, and return the tokens that the server issues.

    Finds the authorization server, registers the client if needed, and opens the sign-in page.

    If the challenge says ``insufficient_scope``, this is a step-up: it also requests all scopes that were requested
    before.

    Fetches at most eight URLs, besides one visit and the repeated request that a DPoP nonce demands. If the server has
    forgotten a stored registration (``"invalid_client"``), the client registers again once, which costs another visit.
    The codes of the `AuthorizationError` are those of the authorization server: ``"access_denied"`` if the user has
    declined.
    """
    only = None if settings.client is None else known_issuer(settings.client, context.stored)
    found = yield from discover(context, only)
    server = found.metadata
    if settings.client is not None:
        context.claim(settings.client, found.issuer)
    # Require the PKCE method S256: without it, an attacker could redeem a stolen authorization code.
    methods = server.code_challenge_methods_supported
    if "S256" not in (methods or ()) and not (methods is None and settings.auth.assume_pkce):
        hint = (
            ": its metadata doesn't list S256; if you know that it does, use assume_pkce=True"
            if methods is None
            else ""
        )
        raise AuthorizationError(f"the authorization server does not support PKCE with S256{hint}")
    record = context.stored.issuers.get(found.issuer, IssuerRecord())
    wanted = scopes_at(found, settings.auth.scopes, context)
    scopes = wanted
    # 2026-07-28 authorization, Refresh Tokens: request offline_access only if the authorization server lists it.
    # Don't request offline_access alone, because it would replace the server's default scopes.
    if wanted and settings.auth.refresh and OFFLINE_ACCESS in (server.scopes_supported or ()):
        scopes = tuple(dict.fromkeys((*wanted, OFFLINE_ACCESS)))
    named = scopes_to_register(found, scopes)
    client = yield from client_at(server, record, settings, named, context.now())
    visit = partial(_tokens_of_user, settings, found, scopes=scopes, context=context)
    tokens: Tokens | None = None
    try:
        tokens = yield from visit(client)
    except AuthorizationError as error:
        # RFC 6749 section 5.2: the error invalid_client can mean that the server doesn't know the client.
        # If the server has deleted a stored registration, register the client again.
        if error.code != "invalid_client" or client.registration is not record.client:
            raise
    if tokens is None:
        forgotten = attrs.evolve(record, client=None)
        client = yield from client_at(server, forgotten, settings, named, context.now())
        tokens = yield from visit(client)
    record = attrs.evolve(
        record, client=client.registration, tokens=tokens, requested_scopes=wanted, resource=found.resource
    )
    return Grant(issuer=found.issuer, record=record)


def _tokens_of_user(
    settings: OAuthSettings,
    found: AuthorizationServer,
    client: TokenClient,
    *,
    scopes: tuple[str, ...],
    context: GrantContext,
) -> Machine[Tokens]:
    """Send the user to the sign-in page, and exchange the authorization code from the redirect for tokens with
    ``scopes``."""
    request = _SignInRequest(
        server=found.metadata,
        redirect_uri=settings.redirect_uri,
        state=secrets.token_urlsafe(32),
        # 48 bytes become 64 characters, and RFC 7636 section 4.1 requires 43 to 128
        verifier=secrets.token_urlsafe(48),
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
    """Return the URL of the sign-in page for the browser.

    Raises `AuthorizationError` if a browser must not open the endpoint (2026-07-28 security best practices, OAuth
    Authorization URL Validation).

    An untrusted server must not make the browser send requests to services of this machine, or of a private network,
    unless one of the URLs that people have ``configured`` leads there.
    """
    endpoint = request.server.authorization_endpoint or ""
    try:
        origin, target = split_url(endpoint)
    except ValueError:
        raise AuthorizationError(
            "the metadata of the authorization server contains no valid authorization_endpoint"
        ) from None
    if not origin.secure and origin.host not in LOOPBACK:
        raise AuthorizationError("the authorization endpoint of the authorization server must be an https URL")
    if nearness(origin.host) > max(nearness(split_url(url)[0].host) for url in configured):
        raise AuthorizationError(
            f"refusing to open the authorization endpoint of {shown(request.server.issuer)} in the browser:"
            f" {origin} is an address of this machine, or of a private network"
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
        "resource": resource,  # RFC 8707 section 2: send the resource even if the server may not support it
        **scope_parameter(scopes),
    }
    if OFFLINE_ACCESS in scopes:
        parameters["prompt"] = "consent"  # OpenID Connect Core section 11: offline_access requires prompt=consent
    # RFC 6749 section 3.1: keep the query of the endpoint's URL, and don't repeat a parameter.
    path, _, query = target.partition("?")
    kept = [pair for pair in query.split("&") if pair and unquote_plus(pair.partition("=")[0]) not in parameters]
    return f"{origin}{path}?{'&'.join([*kept, urlencode(parameters)])}"


def _code(callback: str, request: _SignInRequest) -> str:
    """Return the authorization code from ``callback``, the URL that the browser was redirected to.

    The order of the checks matters: if the URL may be the response to another authorization request, or may come from
    another server, nothing in the URL is used, not even an error.
    """
    try:
        pairs = parse_qsl(urlsplit(callback).query, keep_blank_values=True, max_num_fields=_MOST_PARAMETERS)
    except ValueError:
        raise AuthorizationError(
            "the authorization server redirected the browser to a URL with a malformed query"
        ) from None
    answer = dict(pairs)
    if len(answer) < len(pairs):  # RFC 6749 section 3.1
        raise AuthorizationError("the authorization server redirected the browser to a URL that repeats a parameter")
    if not hmac.compare_digest(answer.get("state", "").encode(errors="replace"), request.state.encode()):
        raise AuthorizationError("the state in the redirect URL is wrong: it belongs to another authorization request")
    # RFC 9207 section 2.4: compare the issuers as strings, without normalizing them.
    issuer = answer.get("iss")
    if issuer is None and request.server.authorization_response_iss_parameter_supported:
        raise AuthorizationError("the redirect URL has no parameter iss, although the authorization server supports it")
    if issuer is not None and issuer != request.server.issuer:
        raise AuthorizationError("the parameter iss in the redirect URL names another authorization server")
    if "error" in answer:
        sent = request.state, request.verifier  # don't quote an error that contains the state or verifier
        raise refused("the authorization server denied the user access", answer["error"], secrets=sent)
    code = answer.get("code", "")
    if not 0 < len(code) <= _LONGEST_CODE:
        raise AuthorizationError("the redirect URL contains no valid authorization code")
    return code


def refresh(settings: OAuthSettings, context: GrantContext) -> Machine[Grant]:
    """Exchange the stored refresh token for new tokens at the current authorization server, and return the new tokens.

    If the server issues no new refresh token, the returned tokens contain the old refresh token (RFC 6749 section 6).
    The scopes stay the same: to get more scopes, call `sign_in`.

    Fetches at most four URLs, besides the repeated request that a DPoP nonce demands. Raises `AuthorizationError`: with
    the code ``"invalid_grant"`` if the refresh token is no longer usable, or there is none. With any other code, or
    none, the stored tokens are as valid as before.
    """
    issuer = context.stored.current
    record = None if issuer is None else context.stored.issuers.get(issuer)
    if issuer is None or record is None or record.tokens is None or record.tokens.refresh_token is None:
        raise AuthorizationError("the stored record contains no refresh token", code="invalid_grant")
    server = yield from metadata_of(issuer, context.server_url)
    client = client_of(server, record, settings, context.now())
    if client is None:
        raise AuthorizationError(
            "the stored refresh token was issued to a client other than the configured one", code="invalid_grant"
        )
    if settings.client is not None:
        context.claim(settings.client, issuer)
    form = {"grant_type": "refresh_token", "refresh_token": record.tokens.refresh_token}
    old = record.tokens
    # RFC 8707 section 2.2: a refresh request names the same resource as the original authorization request.
    found = AuthorizationServer(metadata=server, resource=record.resource or context.server_url)
    tokens = yield from tokens_by(form, found, client, old.scopes, context)
    if tokens.refresh_token is None:
        tokens = attrs.evolve(tokens, refresh_token=old.refresh_token)
    return Grant(issuer=issuer, record=attrs.evolve(record, tokens=tokens))


_SIGN_OUT_DEADLINE: Final = 10.0
"""Seconds that all revocations of a sign-out together may take."""


async def sign_out(
    server_url: str,
    storage: TokenStorage,
    settings: OAuthSettings,
    fetcher: Fetcher,
    *,
    now: Callable[[], float] = time.time,
) -> list[str] | None:
    """Sign the user out of the MCP server at ``server_url``: delete the stored record, and revoke its tokens.

    Returns the reasons why some tokens may still be valid; `None` if there was no record. The record is deleted first,
    readable or not; then the tokens are revoked at each authorization server, within ten seconds altogether. Raises
    `TokenStorageFailed` if the record can't be deleted.
    """
    reasons: list[str] = []
    stored = StoredAuthorization()
    async with storage.lock(server_url):
        try:
            stored = await storage.load(server_url) or stored
        except TokenStorageFailed as error:
            reasons.append(str(error))
        if not await storage.remove(server_url):
            return None
    bindings = ClientBindings(storage)
    with trio.move_on_after(_SIGN_OUT_DEADLINE) as patience:
        for issuer in stored.issuers:
            context = GrantContext(server_url=server_url, stored=stored, now=now, bindings=bindings)
            try:
                # No shield is needed: no token is lost if a revocation is cancelled.
                await drive(revoke(settings, context, issuer), fetcher, None, lambda: None, bindings.settle)
            except AuthorizationError as error:
                reasons.append(str(error))
    if patience.cancelled_caught:
        reasons.append(f"the authorization server did not answer within {_SIGN_OUT_DEADLINE:g} s")
    return reasons


def revoke(settings: OAuthSettings, context: GrantContext, issuer: str) -> Machine[None]:
    """Revoke the stored tokens that were issued by the authorization server ``issuer``.

    The refresh token is revoked first, since this also invalidates its access tokens (RFC 7009 section 2.1). Fetches at
    most five URLs.

    Raises `AuthorizationError` if a token may still be valid.
    """
    record = context.stored.issuers.get(issuer)
    if record is None or record.tokens is None:
        return
    server = yield from metadata_of(issuer, context.server_url)
    url = server.revocation_endpoint
    if not url:
        raise AuthorizationError(f"the authorization server {shown(issuer)} does not support revocation")
    client = client_of(server, record, settings, context.now())
    if client is None:
        if record.client is None:
            raise AuthorizationError(
                "cannot revoke the tokens: the stored record does not name the client that they were issued to"
            )
        # The settings have changed since the sign-in, so send only the stored client id, without a secret.
        client = TokenClient(client_id=record.client.client_id, auth_method="none", registration=record.client)
    elif settings.client is not None:
        context.claim(settings.client, issuer)
    tokens = record.tokens
    for hint, token in (("refresh_token", tokens.refresh_token), ("access_token", tokens.access_token)):
        if token is not None:
            form = {"token": token, "token_type_hint": hint}
            answer = yield from post_form("revocation", url, form, server, client, context.now())
            # the revocation of an unknown token also succeeds (RFC 7009 section 2.2)
            if answer.status != HTTPStatus.OK:
                what = f"the revocation endpoint of {shown(server.issuer)} refused the request"
                raise refused(what, error_code(answer.body), answer.status, (token, client.client_secret))


def _redirect(auth: OAuth, _: Any, uri: str | None) -> None:
    if uri is not None and not is_loopback_uri(uri) and auth.on_visit is None:
        raise ValueError(
            f"trio-mcp can't receive the browser's redirect at {uri[:300]!r}: use a redirect_uri like "
            "http://127.0.0.1:3000/callback, or an on_visit function that returns the URL of the browser's redirect"
        )


@frozen(kw_only=True)
class OAuth(OAuthClient):
    """Signs the user in with the browser when a server requires a token, and again when the server requires more
    scopes. Uses the authorization code grant with PKCE (2026-07-28 authorization).

        async with open_http("https://example.com/mcp", auth=OAuth(client_name="My editor")) as client:

    The client finds the authorization server, registers there if needed, keeps the tokens in ``storage``, and refreshes
    them. You may use one object for many servers and clients; nothing that belongs to one server is sent to another.
    Raises `ValueError` for a redirect URI that trio-mcp can't receive.
    """

    client_name: str = "trio-mcp"
    """The name of this client that the authorization server shows to the user."""
    client_id: str | None = None
    """The client id, if the client is already registered at the authorization server."""
    client_secret: str | None = attrs.field(default=None, repr=False)
    """The client's secret at the authorization server; `None` for a public client."""
    issuer: str | None = None
    """The authorization server that ``client_id`` and ``client_secret`` belong to, compared character by character
    except for a trailing slash. Without an issuer, a ``client_secret`` is sent to the first authorization server that
    any server names. That choice is stored in ``storage``; if a server names another authorization server later, an
    error is raised."""
    client_metadata_url: str | None = None
    """The URL of a client id metadata document that describes this client."""
    on_visit: OnVisit | None = attrs.field(default=None, repr=False)
    """An async function that gets the URL for the user's browser, instead of opening it. It shows or opens the URL. It
    returns `None`, or the URL that the browser was redirected to, if the function receives that URL."""
    asks_user: bool = True
    """False for non-interactive programs: the tokens in ``storage`` are used and refreshed, and if these aren't enough,
    calls raise `SignInNeeded`."""
    redirect_uri: str | None = attrs.field(default=None, validator=_redirect)
    """The URL that the browser is redirected to after the user has decided, as registered at the authorization server.
    For a URI of this machine, such as ``http://localhost:3000/callback``, trio-mcp listens at that URI. `None` means
    any free port of 127.0.0.1."""
    refresh: bool = True
    """True if refresh tokens are requested and used."""
    assume_pkce: bool = False
    """True for an authorization server that supports S256 but lists no PKCE methods in its metadata, such as Microsoft
    Entra ID. By default, such a server is refused. A server that lists only other methods is always refused."""
    sign_in_timeout: float = attrs.field(default=300.0, validator=attrs.validators.gt(0))
    """Seconds that the user may take for each sign-in. All other timeouts are paused meanwhile."""
    _turns: dict[str, trio.Lock] = attrs.field(init=False, factory=dict[str, trio.Lock], eq=False, repr=False)
    """Locks, by server, so that two clients don't ask the user to sign in for the same tokens."""

    def _opened(self, server_url: str, user_is_asked: UserIsAsked) -> AbstractAsyncContextManager[Credentials]:
        """Return a context manager that yields the OAuth `Credentials` for the server at ``server_url``. See
        `ClientAuth`."""
        lock = self._turns.setdefault(server_url, trio.Lock())
        return self._open_keeper(server_url, _UserTokens(self, user_is_asked, lock))

    def _settings(self) -> OAuthSettings:
        """The settings of this `OAuth` object, converted to an `OAuthSettings` object."""
        client = None
        if self.client_id is not None:
            client = PreregisteredClient(client_id=self.client_id, client_secret=self.client_secret, issuer=self.issuer)
        return OAuthSettings(auth=self, client=client)


@frozen(kw_only=True)
class OAuthSettings:
    """The settings with which ``auth``, an `OAuth` object, signs a user in with the browser (authorization code with
    PKCE)."""

    auth: OAuth = attrs.field(factory=OAuth)
    client: PreregisteredClient | None = None
    """The client registration of ``auth``, with the issuer that its secret is bound to."""
    redirect_uri: str = ""
    """The URL that the browser is redirected to after the user has decided. For a loopback listener, the URL includes
    the port."""


@frozen
class _UserTokens(TokenSource):
    """The `TokenSource` that signs a user in to one server with the browser."""

    auth: OAuth
    user_is_asked: UserIsAsked
    lock: trio.Lock
    asks_user: ClassVar[bool] = True

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[None]:
        try:
            self.lock.acquire_nowait()
        except trio.WouldBlock:
            with self.user_is_asked():  # by another client
                await self.lock.acquire()
        try:
            yield
        finally:
            self.lock.release()

    async def _acquire(self, context: GrantContext, run: RunMachine) -> None:
        auth, uri = self.auth, self.auth.redirect_uri
        if not auth.asks_user:
            raise SignInNeeded("the user must sign in, but OAuth was created with asks_user=False")
        settings = auth._settings()
        client = None if settings.client is None else await context.bound(settings.client)
        # Collect the redirect URIs of earlier registrations, since an authorization server may accept only these.
        known = [each.client for each in context.stored.issuers.values() if each.client is not None]
        is_elsewhere = uri is not None and not is_loopback_uri(uri)
        listening = open_loopback(uri, [each for client in known for each in client.redirect_uris])
        async with nullcontext() if is_elsewhere else listening as listener:
            browser = Browser(auth.on_visit or open_in_browser, listener, auth.sign_in_timeout, self.user_is_asked)
            redirect_uri = uri or "" if listener is None else listener.redirect_uri
            settings = attrs.evolve(settings, client=client, redirect_uri=redirect_uri)
            await run(sign_in(settings, context), browser.make)

    def _refreshing(self, context: GrantContext) -> Machine[Grant] | None:
        # A refresh needs no redirect URI, because no user signs in.
        return refresh(self.auth._settings(), context) if self.auth.refresh else None
