"""TokenKeeper: gets, stores and refreshes the tokens for one server, shared by all requests of one client.

`OAuthClient`, the base class of all configurations, opens the keeper. When the server refuses a request, its challenge
says which token to get; if no other token would help, the refusal is final.
"""

from __future__ import annotations

import copy
import logging
import math
import ssl
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Final, Literal

import attrs
import trio

from ...classes import define, frozen
from ...concurrency.contexts import asynccontextmanager
from ...concurrency.nurseries import ServiceNursery, open_service_nursery
from ...transports.http_client.origins import host_names, is_local_host, names_socket, split_url
from ..credentials import AuthorizationError, Challenge, ClientAuth, Credentials, RefusedRequest, parse_challenges
from ..fetching import Fetcher, HttpFetcher, UrlRules
from ..signing import ProofKey
from ..storage.records import MemoryTokenStorage, StoredAuthorization, TokenStorage
from .acquisition import (
    Acquisition,
    CompletionShield,
    Record,
    TokensInUse,
    TokenSource,
    Visitor,
    drive,
    nonce_in,
    token_in,
)
from .discovery import scopes_in
from .grants import ClientBindings, Grant, GrantContext, Machine
from .token_request import NONCE

logger = logging.getLogger("trio_mcp")

_MOST_ATTEMPTS: Final = 6
"""The maximum number of times that one request is sent: without a token, with a token, with a nonce, with more scopes,
and some spare attempts."""
_MOST_STEPS_UP: Final = 2
"""How often more scopes are requested for a single refused request."""
_PASSING: Final = frozenset((None, "temporarily_unavailable", "server_error"))
"""Error codes of a refresh that don't mean that the refresh token is invalid."""
_USELESS: Final = frozenset(("invalid_grant", "invalid_client"))
"""Error codes of a refresh that mean that the refresh token, or the client, is invalid (RFC 6749 section 5.2)."""


@define(eq=False)
class TokenKeeper:
    """The OAuth implementation of `Credentials` for the server at ``server_url``.

    Gets tokens from ``source``, stores them in ``storage``, and refreshes them.

    Only one acquisition runs at a time, and all requests that need a token wait for it. Before a refresh, the record is
    read again under the lock that spans processes: a refresh token may be valid for one use only, and another process
    may have used it. The lock isn't held while a request of the client runs or the user is asked. With ``is_dpop``,
    tokens must be bound to a key.
    """

    _server_url: str
    _source: TokenSource
    _storage: TokenStorage
    _fetcher: Fetcher
    _nursery: ServiceNursery
    _is_dpop: bool = attrs.field(default=False, kw_only=True, alias="is_dpop")
    _now: Callable[[], float] = attrs.field(default=time.time, kw_only=True, alias="now")
    _record: Record = attrs.field(init=False)
    _is_loaded: bool = attrs.field(default=False, init=False)
    _loading: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _current: TokensInUse | None = attrs.field(default=None, init=False)
    _nonce: str | None = attrs.field(default=None, init=False)
    _acquisition: Acquisition | None = attrs.field(default=None, init=False)
    _failed: dict[bool, Acquisition] = attrs.field(factory=dict[bool, Acquisition], init=False)
    """The last refresh that failed (under the key true), and the last new grant that failed (under false)."""
    _stepped_up: deque[float] = attrs.field(factory=partial(deque[float], maxlen=_MOST_STEPS_UP), init=False)
    _background: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    """Background requests that were refused, and that wait until another request has made the user sign in."""
    _finishing: CompletionShield = attrs.field(factory=CompletionShield, init=False)

    def __attrs_post_init__(self) -> None:
        self._record = Record(self._server_url, self._storage)

    def close(self) -> None:
        """Limit all unfinished token requests to a few seconds, because the client is being closed."""
        self._finishing.shorten()

    # Methods that the HTTP client calls

    async def headers(self, method: str) -> Sequence[tuple[bytes, bytes]]:
        """Return the authorization headers of one request: see `Credentials.headers`."""
        await self._load_once()
        held = self._current
        if held is not None and self._acquisition is None and self._now() >= held.refresh_at:
            self._start(partial(self._refresh, held), is_refresh=True)
        if self._acquisition is not None and self._acquisition.is_refresh:
            try:
                await self._acquisition.wait()
            except AuthorizationError as error:
                # Send the old token: the server's response shows whether that token is still valid.
                logger.info("the token is not refreshed: %s", error)
        if self._current is None:
            return ()
        return self._current.headers(method, self._server_url, self._nonce, self._now())

    def noticed(self, headers: Mapping[str, str]) -> None:
        """If the headers of a response contain a new DPoP nonce, store the nonce: see `Credentials.noticed`."""
        nonce = headers.get("dpop-nonce")
        if nonce is not None and NONCE.fullmatch(nonce):
            self._nonce = nonce

    async def refused(self, request: RefusedRequest) -> None:
        """Get the token that the server demands for a refused request: see `Credentials.refused`."""
        challenge = challenge_of(request, is_dpop=self._is_dpop)
        error = None if challenge is None else challenge.params.get("error")
        if request.attempt >= _MOST_ATTEMPTS:
            raise final_refusal(request, error, f"{request.attempt} attempts failed")
        if error == "use_dpop_nonce":  # RFC 9449 section 9
            if self._nonce is None or self._nonce == nonce_in(request.sent):
                raise final_refusal(request, error, "the server requires a new DPoP nonce, but sent no new nonce")
            return
        steps_up = request.status == HTTPStatus.FORBIDDEN and error == "insufficient_scope"
        if not steps_up and request.status != HTTPStatus.UNAUTHORIZED:
            raise final_refusal(request, error, "the token is not the reason, so a new token would not help")
        while True:
            held = self._current
            if (None if held is None else held.token) != token_in(request.sent):
                return  # send the request again, since another request has got a new token meanwhile
            is_young = held is not None and held.since >= request.begun
            is_refresh = held is not None and held.is_refreshable and not is_young and not steps_up
            asks = not (is_refresh if self._acquisition is None else self._acquisition.is_refresh)
            if request.is_background and self._source.asks_user and asks:
                await self._background.park()
                continue
            if self._acquisition is None:
                self._start_for(request, challenge, held, steps_up=steps_up, is_refresh=is_refresh)
            assert self._acquisition is not None, "an acquisition has begun"
            await self._acquisition.wait()
            if self._current is not held:
                return

    def _start_for(
        self,
        request: RefusedRequest,
        challenge: Challenge | None,
        held: TokensInUse | None,
        *,
        steps_up: bool,
        is_refresh: bool,
    ) -> None:
        """Start to get a new token, because the server has refused the token ``held``.

        Raises `AuthorizationError` if a replacement was already tried for this request.
        """
        if held is not None and held.since >= request.begun and held.is_granted:
            # 2026-07-28 authorization, Step-Up Authorization Flow: stop if all demanded scopes were already requested.
            scopes = scopes_in("" if challenge is None else challenge.params.get("scope", ""))
            if not steps_up or set(scopes) <= set(held.requested_scopes):
                code = "insufficient_scope" if steps_up else None
                raise final_refusal(request, code, "the server refuses even the client's new token")
        if steps_up:
            if len(self._stepped_up) == _MOST_STEPS_UP and self._stepped_up[0] >= request.begun:
                raise final_refusal(
                    request, "insufficient_scope", "the server demands more scopes after each new token"
                )
            self._stepped_up.append(trio.current_time())
        last = self._failed.get(is_refresh)
        if last is not None and last.failure is not None and last.failed >= request.begun:
            raise copy.copy(last.failure)
        if held is not None and is_refresh:
            self._start(partial(self._refresh, held), is_refresh=True)
        else:
            self._start(partial(self._get, held, challenge), is_refresh=False)

    # Acquisitions

    def _start(self, acquire: Callable[[], Awaitable[None]], *, is_refresh: bool) -> None:
        self._acquisition = Acquisition(is_refresh=is_refresh)
        self._nursery.start_soon(self._acquire, self._acquisition, acquire)

    async def _acquire(self, acquisition: Acquisition, acquire: Callable[[], Awaitable[None]]) -> None:
        try:
            await acquisition.run(acquire)
        finally:
            self._acquisition = None
            self._background.unpark_all()
            if acquisition.failure is not None:
                self._failed[acquisition.is_refresh] = acquisition

    async def _get(self, held: TokensInUse | None, challenge: Challenge | None) -> None:
        """Get tokens with a new OAuth grant, or use tokens that another client or process has stored meanwhile."""
        async with self._source._turn():
            stored = await self._record.load()
            if self._adopts(stored, held):
                return
            key = ProofKey.generate() if self._is_dpop else None
            bindings = ClientBindings(self._storage)

            async def run(machine: Machine[Grant], visitor: Visitor | None) -> None:
                with self._finishing.shielded_after_start() as begin:
                    grant = await drive(machine, self._fetcher, visitor, begin, bindings.settle)
                    self._check(grant)
                    jwk = None if key is None else key.to_jwk()
                    grant = attrs.evolve(grant, record=attrs.evolve(grant.record, proof_key=jwk))
                    async with self._record.lock():
                        await self._record.save(grant, await self._record.load())
                    self._use_grant(grant, is_granted=True)

            await self._source._acquire(self._grant_context(stored, bindings, key, challenge), run)

    async def _refresh(self, held: TokensInUse) -> None:
        """Refresh the tokens, or use tokens that another process has refreshed. If the authorization server says that
        the refresh token is invalid, remove it from the storage."""
        held.refresh_at = math.inf  # after a failure, don't refresh again at once
        async with self._record.lock():
            stored = await self._record.load()
            if self._adopts(stored, held):
                return
            bindings = ClientBindings(self._storage)
            machine = self._source._refreshing(self._grant_context(stored, bindings, held.key))
            # There may be no stored tokens, for example if another process has signed the user out.
            if machine is None or stored.tokens is None:
                held.forget_refresh_token()
                return
            with self._finishing.shielded_after_start() as begin:
                try:
                    grant = await drive(machine, self._fetcher, None, begin, bindings.settle)
                    self._check(grant)
                except AuthorizationError as error:
                    if error.code in _PASSING:
                        raise
                    logger.info("the tokens cannot be refreshed: %s", error)
                    held.forget_refresh_token()
                    if error.code in _USELESS:
                        await self._record.save(_without_refresh_token(stored, error.code), stored)
                else:
                    await self._record.save(grant, stored)
                    self._use_grant(grant, is_granted=False)

    # Tokens

    async def _load_once(self) -> None:
        if self._is_loaded:
            return
        async with self._loading:
            if not self._is_loaded:
                self._adopts(await self._record.load(), None)
                self._is_loaded = True

    def _adopts(self, stored: StoredAuthorization, held: TokensInUse | None) -> bool:
        """If the stored tokens differ from the current tokens (``held``) and may be valid, use the stored tokens from
        now on.

        Returns whether the client now uses the stored tokens.
        """
        tokens = stored.tokens
        if tokens is None or (held is not None and tokens.access_token == held.token):
            return False
        is_over = tokens.expires_at is not None and tokens.expires_at <= self._now() and tokens.refresh_token is None
        found = TokensInUse.of(stored, self._now())
        if found is None or (self._is_dpop and found.key is None) or (is_over and self._is_loaded):
            return False
        self._current = found
        return True

    def _check(self, grant: Grant) -> None:
        tokens = grant.record.tokens
        if self._is_dpop and (tokens is None or tokens.token_type != "DPoP"):
            raise AuthorizationError("the authorization server granted a token that isn't bound to a key (DPoP)")

    def _use_grant(self, grant: Grant, *, is_granted: bool) -> None:
        stored = StoredAuthorization()._with_record(grant.issuer, grant.record)
        self._current = TokensInUse.of(stored, self._now(), since=trio.current_time(), is_granted=is_granted)

    def _grant_context(
        self,
        stored: StoredAuthorization,
        bindings: ClientBindings,
        key: ProofKey | None,
        challenge: Challenge | None = None,
    ) -> GrantContext:
        return GrantContext(
            server_url=self._server_url,
            stored=stored,
            challenge=challenge,
            now=self._now,
            proof_key=key,
            bindings=bindings,
        )


def _without_refresh_token(stored: StoredAuthorization, error: str | None) -> Grant:
    assert stored.current is not None, "there are tokens"
    record = stored.issuers[stored.current]
    assert record.tokens is not None, "there are tokens"
    client = record.client
    if error == "invalid_client" and client is not None and client.redirect_uris:
        client = None  # the server no longer knows the registered client, so register again
    tokens = attrs.evolve(record.tokens, refresh_token=None)
    return Grant(issuer=stored.current, record=attrs.evolve(record, client=client, tokens=tokens))


_CHALLENGE_CODES: Final = frozenset(
    (
        *("invalid_request", "invalid_token", "insufficient_scope"),  # RFC 6750 section 3.1
        *("invalid_dpop_proof", "use_dpop_nonce", "insufficient_user_authentication"),  # RFC 9449, RFC 9470
    )
)
_METADATA: Final = "resource_metadata"


def challenge_of(request: RefusedRequest, *, is_dpop: bool) -> Challenge | None:
    """Return the challenge in which a server demands a token. If ``is_dpop`` is true, a challenge for a DPoP-bound
    token is preferred, otherwise one for a bearer token.

    Returns `None` if the server sent no such challenge. The URL of the resource metadata (RFC 9728 section 5.1) may
    come from any of the challenges.
    """
    found = [each for each in parse_challenges(request.challenges) if each.scheme in ("bearer", "dpop")]
    if not found:
        return None
    wanted = "dpop" if is_dpop else "bearer"
    chosen = next((each for each in found if each.scheme == wanted), found[0])
    metadata = next((each.params[_METADATA] for each in found if _METADATA in each.params), None)
    if metadata is None or _METADATA in chosen.params:
        return chosen
    return Challenge(chosen.scheme, {**chosen.params, _METADATA: metadata})


def final_refusal(request: RefusedRequest, error: str | None, why: str) -> AuthorizationError:
    """Return the exception for a request that the server has refused with the error code ``error``, if sending the
    request again wouldn't help."""
    known = error if error in _CHALLENGE_CODES else None
    word = "" if known is None else f" ({known})"
    return AuthorizationError(
        f"the server refused the request with HTTP status {request.status}{word}: {why}", code=known
    )


def _scopes(scopes: Sequence[str] | None) -> tuple[str, ...] | None:
    if isinstance(scopes, str):
        raise TypeError('scopes must be a sequence of strings, for example ["files:read"]')
    return None if scopes is None else tuple(scopes)


@frozen(kw_only=True)
class OAuthClient(ClientAuth):
    """Base class of all OAuth configurations of clients, with their common settings."""

    scopes: tuple[str, ...] | None = attrs.field(default=None, converter=_scopes)
    """Scopes to request instead of those that the server suggests."""
    storage: TokenStorage = attrs.field(factory=MemoryTokenStorage)
    """The storage for the tokens. By default this is the memory of this object, so a user signs in once for each
    process."""
    dpop: bool = False
    """True if tokens must be bound to a key (DPoP, RFC 9449). Needs ``trio-mcp[auth]``."""
    public_addresses_only: bool = False
    """True for clients that run on servers: URLs that come from an MCP server must not lead to a private network."""
    ssl_context: ssl.SSLContext | None = attrs.field(default=None, repr=False)
    """The TLS settings for authorization servers, instead of the system's defaults."""
    http_proxy: str | Literal[True] | None = attrs.field(default=True, repr=False)
    """The URL of an HTTP proxy for requests to authorization servers, `None` for no proxy, or `True` for the proxy that
    the environment names. With ``public_addresses_only`` the proxy of the environment isn't used, as it would look up
    names itself."""
    trusted_http_hosts: Collection[str] = attrs.field(default=frozenset[str](), converter=host_names)
    """Hosts of a private network to which tokens may be sent over plain ``http``: servers, and authorization servers of
    servers that are themselves reached with ``http`` at one of these hosts. Anyone who can read the traffic of that
    network can use the tokens."""

    @asynccontextmanager
    async def _open_keeper(self, server_url: str, source: TokenSource) -> AsyncGenerator[Credentials]:
        """Open the `TokenKeeper` that gets tokens from ``source`` for one server.

        Raises `ValueError` if the server's URL isn't secure, since a token could be intercepted (OAuth 2.1, draft 13,
        section 1.5).
        """
        if names_socket(server_url):
            raise ValueError("OAuth does not work with a server on a Unix socket: pass auth=Bearer(token)")
        origin = split_url(server_url)[0]
        trusted = frozenset(self.trusted_http_hosts)
        if not (origin.secure or is_local_host(origin.host) or origin.host in trusted):
            raise ValueError(f"refusing to send a token to {origin} in plain text: the server needs https")
        rules = UrlRules.for_server(
            server_url, public_addresses_only=self.public_addresses_only, trusted_http_hosts=trusted
        )
        fetcher = HttpFetcher(rules, ssl_context=self.ssl_context, http_proxy=self.http_proxy)
        async with open_service_nursery("the client was closed") as nursery:
            keeper = TokenKeeper(server_url, source, self.storage, fetcher, nursery, is_dpop=self.dpop)
            try:
                yield keeper
            finally:
                keeper.close()
