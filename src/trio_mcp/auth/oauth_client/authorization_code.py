"""Authorization code: a user signs in with a browser (2026-07-28 authorization, Authorization Flow Steps), and out.

`OAuth` is the configuration, and `sign_in` the machine. `refresh` gets new tokens without the user, for the refresh
token of that grant (RFC 6749 section 6). `sign_out` forgets the record of a server, and has each authorization server
in the record revoke its tokens by `revoke` (RFC 7009).
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
    methods = server.code_challenge_methods_supported
    if "S256" not in (methods or ()) and not (methods is None and settings.auth.assume_pkce):
        hint = ": its metadata don't say so; if you know that it does, use assume_pkce=True" if methods is None else ""
        raise AuthorizationError(f"the authorization server does not support PKCE with S256{hint}")
    record = context.stored.issuers.get(found.issuer, IssuerRecord())
    wanted = scopes_at(found, settings.auth.scopes, context)
    scopes = wanted
    # Refresh Tokens: where the authorization server lists the scope. Alone, the scope would replace those by default.
    if wanted and settings.auth.refresh and OFFLINE_ACCESS in (server.scopes_supported or ()):
        scopes = tuple(dict.fromkeys((*wanted, OFFLINE_ACCESS)))
    named = scopes_to_register(found, scopes)
    client = yield from client_at(server, record, settings, named, context.now())
    visit = partial(_tokens_of_user, settings, found, scopes=scopes, context=context)
    tokens: Tokens | None = None
    try:
        tokens = yield from visit(client)
    except AuthorizationError as error:
        # RFC 6749 section 5.2: the server has forgotten, as some do, a client that had registered itself.
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
    storage: TokenStorage,
    settings: OAuthSettings,
    fetcher: Fetcher,
    *,
    now: Callable[[], float] = time.time,
) -> list[str] | None:
    """Forget the record of the server at ``server_url``, and have its tokens revoked; return the reasons why some may
    be good still, and `None` where there was no record.

    The record is gone first, readable or not; then each authorization server is asked, all within ten seconds. Raises
    `TokenStorageFailed` where the record stays.
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
                # To leave a revocation halfway harms nobody, so there is nothing to do before secrets.
                await drive(revoke(settings, context, issuer), fetcher, None, lambda: None, bindings.settle)
            except AuthorizationError as error:
                reasons.append(str(error))
    if patience.cancelled_caught:
        reasons.append(f"the authorization server has not answered within {_SIGN_OUT_DEADLINE:g} s")
    return reasons


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
    if not url:
        raise AuthorizationError(f"the authorization server {shown(issuer)} revokes no tokens")
    client = client_of(server, record, settings, context.now())
    if client is None:
        if record.client is None:
            raise AuthorizationError("it is not known which client the tokens were granted to")
        # Its id is all that is left of a client that other settings had made: enough for one without a secret.
        client = TokenClient(client_id=record.client.client_id, auth_method="none", registration=record.client)
    elif settings.client is not None:
        context.claim(settings.client, issuer)
    tokens = record.tokens
    for hint, token in (("refresh_token", tokens.refresh_token), ("access_token", tokens.access_token)):
        if token is not None:
            form = {"token": token, "token_type_hint": hint}
            answer = yield from post_form("revocation", url, form, server, client, context.now())
            if answer.status != HTTPStatus.OK:  # a token that is not known is answered alike (RFC 7009 section 2.2)
                what = f"the revocation endpoint of {shown(server.issuer)} has refused"
                raise refused(what, error_code(answer.body), answer.status, (token, client.client_secret))


def _redirect(auth: OAuth, _: Any, uri: str | None) -> None:
    if uri is not None and not is_loopback_uri(uri) and auth.on_visit is None:
        raise ValueError(
            f"nobody hears where a browser is sent at {uri[:300]!r}: the redirect_uri is like "
            "http://127.0.0.1:3000/callback, or an on_visit function returns where the browser was sent"
        )


@frozen(kw_only=True)
class OAuth(OAuthClient):
    """Signs the user in with the browser, when the server first asks for a token, and whenever the server asks for more
    scopes (authorization code with PKCE; 2026-07-28 authorization).

        async with open_http("https://example.com/mcp", auth=OAuth(client_name="My editor")) as client:

    The client finds the authorization server, registers itself there where need be, keeps the tokens in ``storage``,
    and refreshes the tokens. One object may serve many servers and clients; what belongs to one server is shown to no
    other. Raises `ValueError` for a redirect URI that nobody could listen at.
    """

    client_name: str = "trio-mcp"
    """The name that the user reads at the authorization server."""
    client_id: str | None = None
    """The client id of a client that the authorization server knows already."""
    client_secret: str | None = attrs.field(default=None, repr=False)
    issuer: str | None = None
    """The authorization server that ``client_id`` and ``client_secret`` belong to, character by character but for a
    final slash. Without an issuer a ``client_secret`` goes to the first one that any server names, which is kept in
    ``storage``, and to no other afterwards: a server of another authorization server is an error."""
    client_metadata_url: str | None = None
    """The URL of a client id metadata document of this client."""
    on_visit: OnVisit | None = attrs.field(default=None, repr=False)
    """Async function that is given the URL for the user's browser, in place of opening the URL. The function shows or
    opens the URL, and returns `None`, or returns the URL that the browser was sent to, where the function knows."""
    asks_user: bool = True
    """False where nobody is there to sign in: the tokens in ``storage`` are used and refreshed, and where these do not
    do, calls fail with `SignInNeeded`."""
    redirect_uri: str | None = attrs.field(default=None, validator=_redirect)
    """Where the browser is sent after the user has decided, as agreed with the authorization server. On this machine,
    as in ``http://localhost:3000/callback``, somebody listens there. `None`: any port of 127.0.0.1."""
    refresh: bool = True
    """True: refresh tokens are asked for and used."""
    assume_pkce: bool = False
    """True for an authorization server without methods of PKCE in its metadata, which is known to support S256:
    Microsoft Entra ID. Otherwise such a server is refused; a server with other methods alone is refused always."""
    sign_in_timeout: float = attrs.field(default=300.0, validator=attrs.validators.gt(0))
    """Seconds that the user has for each visit. No other limit runs meanwhile."""
    _turns: dict[str, trio.Lock] = attrs.field(init=False, factory=dict[str, trio.Lock], eq=False, repr=False)
    """The turns to ask the user, by server: two clients do not ask for the same."""

    def _opened(self, server_url: str, user_is_asked: UserIsAsked) -> AbstractAsyncContextManager[Credentials]:
        """Return the credentials for one server: see `ClientAuth`."""
        lock = self._turns.setdefault(server_url, trio.Lock())
        return self._open_keeper(server_url, _UserTokens(self, user_is_asked, lock))

    def _settings(self) -> OAuthSettings:
        """Return the settings for the machines of OAuth."""
        client = None
        if self.client_id is not None:
            client = PreregisteredClient(client_id=self.client_id, client_secret=self.client_secret, issuer=self.issuer)
        return OAuthSettings(auth=self, client=client)


@frozen(kw_only=True)
class OAuthSettings:
    """For a user who signs in with a browser (authorization code with PKCE), as ``auth`` says."""

    auth: OAuth = attrs.field(factory=OAuth)
    client: PreregisteredClient | None = None
    """The client of ``auth``, with the issuer that its secret is bound to."""
    redirect_uri: str = ""
    """The URL that the browser is sent to after the user has decided; for a listener on loopback, with its port."""


@frozen
class _UserTokens(TokenSource):
    """The `TokenSource` of one server."""

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
            raise SignInNeeded("the user has to sign in, and is not to be asked")
        settings = auth._settings()
        client = None if settings.client is None else await context.bound(settings.client)
        # The redirect URIs that authorization servers know
        known = [each.client for each in context.stored.issuers.values() if each.client is not None]
        is_elsewhere = uri is not None and not is_loopback_uri(uri)
        listening = open_loopback(uri, [each for client in known for each in client.redirect_uris])
        async with nullcontext() if is_elsewhere else listening as listener:
            browser = Browser(auth.on_visit or open_in_browser, listener, auth.sign_in_timeout, self.user_is_asked)
            redirect_uri = uri or "" if listener is None else listener.redirect_uri
            settings = attrs.evolve(settings, client=client, redirect_uri=redirect_uri)
            await run(sign_in(settings, context), browser.make)

    def _refreshing(self, context: GrantContext) -> Machine[Grant] | None:
        # The redirect URI is of no use without a visit.
        return refresh(self.auth._settings(), context) if self.auth.refresh else None
