"""A protected endpoint: who has which token, and how a test asks with one."""

from __future__ import annotations

import time
from typing import Any

import attrs
import trio
from tests.serving.http.raw import BASE, INITIALIZE, Answer, Endpoint, message, modern

from trio_mcp.auth import Principal
from trio_mcp.auth.resource_server.protected import Protected

ISSUER = "https://login.example.com"
RESOURCE = "https://mcp.example.com/mcp"
METADATA = "https://mcp.example.com/.well-known/oauth-protected-resource/mcp"


@attrs.define(eq=False)
class Tokens:
    """The tokens that somebody has issued, and the verifier that knows them."""

    principals: dict[str, Principal] = attrs.field(factory=dict[str, Principal])
    verified: list[str] = attrs.field(factory=list[str])
    may_answer: trio.Event = attrs.field(factory=trio.Event)
    cancelled: int = 0

    def issue(self, token: str, subject: str, scopes: str = "", lifetime: float | None = None) -> str:
        """Issue ``token``, and return the header that carries it."""
        expires_at = None if lifetime is None else time.time() + lifetime
        self.principals[token] = Principal(
            issuer=ISSUER, subject=subject, client_id=f"{subject}'s client", scopes=scopes, expires_at=expires_at
        )
        return f"Bearer {token}"

    async def verify(self, token: str) -> Principal | None:
        self.verified.append(token)
        try:
            await self.may_answer.wait()
        except trio.Cancelled:
            self.cancelled += 1
            raise
        return self.principals.get(token)


def issued() -> Tokens:
    """Return tokens of Alice, who has two, and of Bob, and a verifier that answers at once."""
    tokens = Tokens()
    tokens.issue("alice-1", "alice", "read")
    tokens.issue("alice-2", "alice", "read write")
    tokens.issue("bob-1", "bob", "read")
    tokens.may_answer.set()
    return tokens


def protected(tokens: Tokens, **options: Any) -> Protected:
    return Protected(**{"resource": RESOURCE, "authorization_servers": [ISSUER], "verifier": tokens.verify, **options})


def bearer(token: str) -> dict[str, str | None]:
    return {**BASE, "Authorization": f"Bearer {token}"}


async def call(endpoint: Endpoint, token: str, tool: str, **arguments: Any) -> Answer:
    """Call a tool as a modern client."""
    headers, body = modern("tools/call", {"name": tool, "arguments": arguments})
    return await endpoint.ask("POST", {**headers, **bearer(token)}, body)


async def session_of(endpoint: Endpoint, token: str, **capabilities: Any) -> dict[str, str | None]:
    """Open a legacy session, and return the headers that belong to it, the token included."""
    params = {**INITIALIZE["params"], "capabilities": capabilities}
    answer = await endpoint.ask("POST", bearer(token), {**INITIALIZE, "params": params})
    assert answer.status == 200, answer
    session = {**bearer(token), "Mcp-Session-Id": answer.headers["mcp-session-id"]}
    accepted = await endpoint.ask("POST", session, message("notifications/initialized"))
    assert accepted.status == 202, accepted
    return session
