"""TokenKeeper: the tokens for one server, for all requests of one client."""

from __future__ import annotations

import copy
import logging
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Final

import attrs
import trio

from ....concurrency.nurseries import ServiceNursery
from ...challenges import Challenge
from ...credentials import RefusedRequest
from ...errors import AuthorizationError
from ...fetching.exchange import Fetcher
from ...proofs import ProofKey
from ...storage.stored import Storage, Stored
from ..grant import Grant, Situation
from ..scopes import scopes_in
from .bindings import ClientBindings
from .driving import drive
from .finishing import Finishing
from .flight import Flight
from .held_tokens import HeldTokens, nonce_in, token_in
from .record import Record
from .refusals_of_requests import challenge_of, hopeless
from .token_source import TokenSource

logger = logging.getLogger("trio_mcp")

_MOST_ATTEMPTS: Final = 6
"""Times that one request is sent: without a token, with one, with a nonce, with more scopes, and some to spare."""
_MOST_STEPS_UP: Final = 2
"""Times that more scopes are asked for, for the sake of one request."""
_NONCE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,1024}")
"""RFC 9449 section 8.1."""
_PASSING: Final = frozenset((None, "temporarily_unavailable", "server_error"))
"""Errors of a refresh that say nothing of the refresh token."""
_USELESS: Final = frozenset(("invalid_grant", "invalid_client"))
"""RFC 6749 section 5.2: errors of a refresh after which the refresh token, or the client, is of no use."""


class TokenKeeper:
    """The `Credentials` for the server at ``server_url``: gets tokens from ``source``, keeps the tokens in ``storage``,
    and has them refreshed.

    At most one way to a token is gone at a time, and all who need a token wait for that one. A refresh looks at the
    record again first, under the lock that spans processes: a refresh token may be good for one use alone, and another
    process may have used ours. The lock is held neither while a request of the client runs nor while a user is asked.
    With ``is_dpop`` tokens must be bound to a key.
    """

    def __init__(
        self,
        server_url: str,
        source: TokenSource,
        storage: Storage,
        fetcher: Fetcher,
        nursery: ServiceNursery,
        *,
        is_dpop: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._server_url = server_url
        self._source = source
        self._storage = storage
        self._record = Record(server_url, storage)
        self._fetcher = fetcher
        self._nursery = nursery
        self._is_dpop = is_dpop
        self._now = now
        self._is_loaded = False
        self._loading = trio.Lock()
        self._held: HeldTokens | None = None
        self._nonce: str | None = None
        self._flight: Flight | None = None
        self._failed: dict[bool, Flight] = {}
        """The last refresh that failed (true), and the last grant (false)."""
        self._stepped_up: deque[float] = deque(maxlen=_MOST_STEPS_UP)
        self._background = trio.lowlevel.ParkingLot()
        """Requests that wait until somebody else has had the user asked."""
        self._finishing = Finishing()

    def close(self) -> None:
        """Give all that must be finished no more than a few seconds from now on, since the client is closed."""
        self._finishing.hurry()

    # Questions of the HTTP client

    async def headers(self, method: str) -> Sequence[tuple[bytes, bytes]]:
        """Return the headers of one request: see `Credentials.headers`."""
        await self._load_once()
        held = self._held
        if held is not None and self._flight is None and held.is_to_be_refreshed(self._now()):
            self._start(partial(self._refresh, held), is_refresh=True)
        if self._flight is not None and self._flight.is_refresh:
            try:
                await self._flight.wait()
            except AuthorizationError as error:
                logger.info("the token is not refreshed: %s", error)  # and the server says how good the token is
        if self._held is None:
            return ()
        return self._held.headers(method, self._server_url, self._nonce, self._now())

    def noticed(self, headers: Mapping[str, str]) -> None:
        """Note the headers of an answer: see `Credentials.noticed`."""
        nonce = headers.get("dpop-nonce")
        if nonce is not None and _NONCE.fullmatch(nonce):
            self._nonce = nonce

    async def refused(self, request: RefusedRequest) -> None:
        """Get what the server asks for: see `Credentials.refused`."""
        challenge = challenge_of(request, is_dpop=self._is_dpop)
        error = None if challenge is None else challenge.params.get("error")
        if request.attempt >= _MOST_ATTEMPTS:
            raise hopeless(request, error, f"{request.attempt} times")
        if error == "use_dpop_nonce":  # RFC 9449 section 9
            if self._nonce is None or self._nonce == nonce_in(request.sent):
                raise hopeless(request, error, "and has sent no other nonce")
            return
        steps_up = request.status == HTTPStatus.FORBIDDEN and error == "insufficient_scope"
        if not steps_up and request.status != HTTPStatus.UNAUTHORIZED:
            raise hopeless(request, error, "not for want of a token")
        while True:
            held = self._held
            if (None if held is None else held.token) != token_in(request.sent):
                return  # there is another one by now
            is_young = held is not None and held.since >= request.begun
            is_refresh = held is not None and held.is_refreshable and not is_young and not steps_up
            asks = not (is_refresh if self._flight is None else self._flight.is_refresh)
            if request.is_background and self._source.asks_user and asks:
                await self._background.park()
                continue
            if self._flight is None:
                self._start_for(request, challenge, held, steps_up=steps_up, is_refresh=is_refresh)
            assert self._flight is not None, "a flight has begun"
            await self._flight.wait()
            if self._held is not held:
                return

    def _start_for(
        self,
        request: RefusedRequest,
        challenge: Challenge | None,
        held: HeldTokens | None,
        *,
        steps_up: bool,
        is_refresh: bool,
    ) -> None:
        """Start what may get a better token than ``held``. Raises `AuthorizationError` where that was tried for this
        request already."""
        if held is not None and held.since >= request.begun and held.is_granted:
            # 2026-07-28 authorization, Step-Up Authorization Flow: the union of scopes was asked for already.
            scopes = scopes_in("" if challenge is None else challenge.params.get("scope", ""))
            if not steps_up or set(scopes) <= set(held.requested_scopes):
                raise hopeless(request, "insufficient_scope" if steps_up else None, "although the token is new")
        if steps_up:
            if len(self._stepped_up) == _MOST_STEPS_UP and self._stepped_up[0] >= request.begun:
                raise hopeless(request, "insufficient_scope", "and asks for ever more scopes")
            self._stepped_up.append(trio.current_time())
        last = self._failed.get(is_refresh)
        if last is not None and last.failure is not None and last.failed >= request.begun:
            raise copy.copy(last.failure)
        if held is not None and is_refresh:
            self._start(partial(self._refresh, held), is_refresh=True)
        else:
            self._start(partial(self._get, held, challenge), is_refresh=False)

    # Flights

    def _start(self, way: Callable[[], Awaitable[None]], *, is_refresh: bool) -> None:
        self._flight = Flight(is_refresh=is_refresh)
        self._nursery.start_soon(self._fly, self._flight, way)

    async def _fly(self, flight: Flight, way: Callable[[], Awaitable[None]]) -> None:
        try:
            await flight.run(way)
        finally:
            self._flight = None
            self._background.unpark_all()
            if flight.failure is not None:
                self._failed[flight.is_refresh] = flight

    async def _get(self, held: HeldTokens | None, challenge: Challenge | None) -> None:
        """Get a new grant, or find one that another client or process has got."""
        async with self._source.turn():
            stored = await self._record.load()
            if self._adopts(stored, held):
                return
            key = ProofKey.generate() if self._is_dpop else None
            bindings = ClientBindings(self._storage)
            async with self._source.errand(self._situation(stored, bindings, key, challenge)) as errand:
                with self._finishing.once_begun() as begin:
                    grant = await drive(errand.machine, self._fetcher, errand.visitor, begin, bindings.settle)
                    self._check(grant)
                    jwk = None if key is None else key.to_jwk()
                    grant = attrs.evolve(grant, record=attrs.evolve(grant.record, proof_key=jwk))
                    async with self._record.lock():
                        await self._record.keep(grant, await self._record.load())
                    self._hold(grant, is_granted=True)

    async def _refresh(self, held: HeldTokens) -> None:
        """Refresh the tokens, or find some that another process has refreshed. Where the refresh token is of no use any
        more, that is all that changes."""
        held.refresh_no_more()  # a failure is not tried again at once
        async with self._record.lock():
            stored = await self._record.load()
            if self._adopts(stored, held):
                return
            bindings = ClientBindings(self._storage)
            machine = self._source.refreshing(self._situation(stored, bindings, held.key))
            if machine is None or stored.tokens is None:  # as the user has logged out, in another process
                held.forget_refresh_token()
                return
            with self._finishing.once_begun() as begin:
                try:
                    grant = await drive(machine, self._fetcher, None, begin, bindings.settle)
                    self._check(grant)
                except AuthorizationError as error:
                    if error.code in _PASSING:
                        raise
                    logger.info("the tokens cannot be refreshed: %s", error)
                    held.forget_refresh_token()
                    if error.code in _USELESS:
                        await self._record.keep(_without_refresh_token(stored, error.code), stored)
                else:
                    await self._record.keep(grant, stored)
                    self._hold(grant, is_granted=False)

    # Tokens

    async def _load_once(self) -> None:
        if self._is_loaded:
            return
        async with self._loading:
            if not self._is_loaded:
                self._adopts(await self._record.load(), None)
                self._is_loaded = True

    def _adopts(self, stored: Stored, held: HeldTokens | None) -> bool:
        """Hold the tokens of ``stored``, and return true, where they are others than ``held``, and may be good."""
        tokens = stored.tokens
        if tokens is None or (held is not None and tokens.access_token == held.token):
            return False
        is_over = tokens.expires_at is not None and tokens.expires_at <= self._now() and tokens.refresh_token is None
        found = HeldTokens.of(stored, self._now())
        if found is None or (self._is_dpop and found.key is None) or (is_over and self._is_loaded):
            return False
        self._held = found
        return True

    def _check(self, grant: Grant) -> None:
        tokens = grant.record.tokens
        if self._is_dpop and (tokens is None or tokens.token_type != "DPoP"):
            raise AuthorizationError("the authorization server has granted a token that is bound to no key")

    def _hold(self, grant: Grant, *, is_granted: bool) -> None:
        stored = Stored().with_record(grant.issuer, grant.record)
        self._held = HeldTokens.of(stored, self._now(), since=trio.current_time(), is_granted=is_granted)

    def _situation(
        self, stored: Stored, bindings: ClientBindings, key: ProofKey | None, challenge: Challenge | None = None
    ) -> Situation:
        return Situation(
            server_url=self._server_url,
            stored=stored,
            challenge=challenge,
            now=self._now,
            proofs=None if key is None else _Proofs(key, self._now),
            bindings=bindings,
        )


def _without_refresh_token(stored: Stored, error: str | None) -> Grant:
    assert stored.current is not None, "there are tokens"
    record = stored.issuers[stored.current]
    assert record.tokens is not None, "there are tokens"
    client = record.client
    if error == "invalid_client" and client is not None and client.redirect_uris:
        client = None  # it had registered itself, which the authorization server has forgotten: let it do so again
    tokens = attrs.evolve(record.tokens, refresh_token=None)
    return Grant(issuer=stored.current, record=attrs.evolve(record, client=client, tokens=tokens))


@attrs.frozen
class _Proofs:
    """A `ProofMaker`."""

    _key: ProofKey
    _now: Callable[[], float]

    def proof(self, method: str, url: str, *, nonce: str | None = None) -> str:
        return self._key.proof(method, url, nonce=nonce, now=self._now())
