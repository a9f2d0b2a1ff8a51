"""A TokenSource in memory, whose authorization server gives each refresh token for one use."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import attrs
import trio

from trio_mcp.auth.credentials import AuthorizationError, RefusedRequest
from trio_mcp.auth.fetching import Fetch, Fetched, FetchFailed
from trio_mcp.auth.oauth_client.acquisition import RunMachine
from trio_mcp.auth.oauth_client.grants import Grant, GrantContext, Machine, Visit
from trio_mcp.auth.oauth_client.token_keeper import TokenKeeper
from trio_mcp.auth.storage.records import IssuerRecord, MemoryTokenStorage, Tokens, TokenStorage
from trio_mcp.concurrency.nurseries import open_service_nursery

__all__ = ["ISSUER", "URL", "FakeSource", "broken", "opened", "refusal", "token_of"]

URL = "https://mcp.example/mcp"
ISSUER = "https://as.example"


@attrs.define(eq=False)
class FakeSource:
    """The authorization server, and the way there; a `Fetcher`, too."""

    good: str | None = None
    """The one refresh token that is good."""
    issued: int = 0
    asked: list[str] = attrs.field(factory=list[str])
    """What was asked for, in order."""
    lifetime: float | None = None
    now: float = 1000.0
    fetch_gate: trio.Event | None = None
    visit_gate: trio.Event | None = None
    failure: Exception | None = None
    requested: tuple[str, ...] = ()
    asks_user: ClassVar[bool] = True
    prepared: int = 0
    """Errands that are under way."""

    def _grant(self, context: GrantContext, kind: str) -> Machine[Grant]:
        yield Fetch(method="GET", url=f"{ISSUER}/metadata")
        if kind == "sign in":
            yield Visit(url=f"{ISSUER}/authorize", redirect_uri="http://127.0.0.1:1/callback")
            given = "code"
        else:
            tokens = context.stored.tokens
            given = (tokens and tokens.refresh_token) or ""
        answer: Fetched = yield Fetch(method="POST", url=f"{ISSUER}/token", body=given.encode(), secrets_of=ISSUER)
        if answer.status != 200:
            raise AuthorizationError("refused", code=answer.body.decode())
        number = int(answer.body)
        challenge = context.challenge
        scopes = tuple((challenge.params.get("scope", "") if challenge else "").split())
        kept = context.stored.issuers.get(ISSUER, IssuerRecord())
        requested = tuple(dict.fromkeys((*kept.requested_scopes, *scopes)))
        tokens = Tokens(
            access_token=f"access-{number}",
            refresh_token=f"refresh-{number}",
            expires_at=None if self.lifetime is None else self.now + self.lifetime,
        )
        return Grant(issuer=ISSUER, record=IssuerRecord(tokens=tokens, requested_scopes=requested))

    def _refreshing(self, context: GrantContext) -> Machine[Grant] | None:
        return self._grant(context, "refresh")

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[None]:
        yield

    async def _acquire(self, context: GrantContext, run: RunMachine) -> None:
        self.prepared += 1
        try:
            await run(self._grant(context, "sign in"), self._visit)
        finally:
            self.prepared -= 1

    async def _visit(self, visit: Visit) -> str:
        self.asked.append("visit")
        await _through(self.visit_gate)
        return f"{visit.redirect_uri}?code=c"

    async def fetch(self, request: Fetch) -> Fetched:
        if request.method == "GET":
            await trio.lowlevel.checkpoint()
            return Fetched(status=200, headers={}, body=b"")
        given = request.body.decode()
        self.asked.append(given)
        if self.failure is not None:
            raise self.failure
        await trio.lowlevel.checkpoint()
        if given != "code" and given != self.good:
            self.good = None
            return Fetched(status=400, headers={}, body=b"invalid_grant")
        self.issued += 1
        self.good = f"refresh-{self.issued}"
        await _through(self.fetch_gate)
        return Fetched(status=200, headers={}, body=str(self.issued).encode())


async def _through(gate: trio.Event | None) -> None:
    await trio.lowlevel.checkpoint()
    if gate is not None:
        await gate.wait()


@asynccontextmanager
async def opened(source: FakeSource, storage: TokenStorage | None = None) -> AsyncGenerator[TokenKeeper]:
    """A keeper, whose tasks end with the block."""
    async with open_service_nursery("the client was closed") as nursery:
        keeper = TokenKeeper(URL, source, storage or MemoryTokenStorage(), source, nursery, now=lambda: source.now)
        try:
            yield keeper
        finally:
            keeper.close()


async def refusal(
    keeper: TokenKeeper, status: int = 401, *, attempt: int = 1, begun: float | None = None, scope: str = ""
) -> RefusedRequest:
    """The refusal of a request that is sent now."""
    sent = await keeper.headers("POST")
    challenge = f'Bearer error="insufficient_scope", scope="{scope}"' if scope else "Bearer"
    return RefusedRequest(status, challenge, sent, attempt, trio.current_time() if begun is None else begun)


async def token_of(keeper: TokenKeeper) -> str | None:
    sent: Any = dict(await keeper.headers("POST"))
    return sent[b"Authorization"].decode().removeprefix("Bearer ") if sent else None


def broken() -> FetchFailed:
    return FetchFailed("no answer")
