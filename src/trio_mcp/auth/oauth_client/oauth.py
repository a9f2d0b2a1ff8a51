"""OAuth: a user signs in with a browser."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, ClassVar

import attrs
import trio

from ...classes import frozen
from ...concurrency.contexts import asynccontextmanager
from ..credentials import Credentials, SignInNeeded, UserIsAsked
from .acquisition import RunMachine, TokenSource
from .authorization_code import refresh, sign_in
from .browser import Browser, OnVisit, is_loopback_uri, open_in_browser, open_loopback
from .grants import Grant, GrantContext, Machine, OAuthSettings, PreregisteredClient
from .token_keeper import OAuthClient


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
    """The authorization server that ``client_id`` and ``client_secret`` belong to, character by character. Without an
    issuer a ``client_secret`` goes to the first one that any server names, which is kept in ``storage``, and to no
    other afterwards: a server of another authorization server is an error."""
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
    """Whether refresh tokens are asked for and used."""
    sign_in_timeout: float = attrs.field(default=300.0, validator=attrs.validators.gt(0))
    """Seconds that the user has for each visit. No other limit runs meanwhile."""
    _turns: dict[str, trio.Lock] = attrs.field(init=False, factory=dict[str, trio.Lock], eq=False, repr=False)
    """The turns to ask the user, by server: two clients do not ask for the same."""

    def opened(self, server_url: str, user_is_asked: UserIsAsked) -> AbstractAsyncContextManager[Credentials]:
        """Return the credentials for one server: see `ClientAuth.opened`."""
        lock = self._turns.setdefault(server_url, trio.Lock())
        return self.open_keeper(server_url, _UserTokens(self, user_is_asked, lock))

    def settings(self, redirect_uri: str = "") -> OAuthSettings:
        """Return the settings for the machines of OAuth."""
        client = None
        if self.client_id is not None:
            client = PreregisteredClient(client_id=self.client_id, client_secret=self.client_secret, issuer=self.issuer)
        return OAuthSettings(
            redirect_uri=redirect_uri,
            client=client,
            client_metadata_url=self.client_metadata_url,
            client_name=self.client_name,
            scopes=self.scopes,
            refreshable=self.refresh,
        )


@frozen
class _UserTokens(TokenSource):
    """The `TokenSource` of one server."""

    auth: OAuth
    user_is_asked: UserIsAsked
    lock: trio.Lock
    asks_user: ClassVar[bool] = True

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        try:
            self.lock.acquire_nowait()
        except trio.WouldBlock:
            with self.user_is_asked():  # by another client
                await self.lock.acquire()
        try:
            yield
        finally:
            self.lock.release()

    async def acquire(self, context: GrantContext, run: RunMachine) -> None:
        auth, uri = self.auth, self.auth.redirect_uri
        if not auth.asks_user:
            raise SignInNeeded("the user has to sign in, and is not to be asked")
        settings = auth.settings()
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

    def refreshing(self, context: GrantContext) -> Machine[Grant] | None:
        # The redirect URI is of no use without a visit.
        return refresh(self.auth.settings(), context) if self.auth.refresh else None
