"""Requests as a gate sees them, and what the gate says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from trio_mcp.auth import Auth, Principal, Protected
from trio_mcp.auth.credentials import Challenge, parse_challenges
from trio_mcp.auth.resource_server.protected import Gate
from trio_mcp.auth.resource_server.refusals import Refusal

RESOURCE = "https://mcp.example.com/mcp"
METADATA = "https://mcp.example.com/.well-known/oauth-protected-resource/mcp"
ISSUER = "https://login.example.com"
NOW = 1_800_000_000.0


@attrs.frozen
class Head:
    """The head of a request."""

    headers: Mapping[str, str] = attrs.field(factory=dict[str, str])
    repeated: frozenset[str] = frozenset()
    method: str = "POST"


def bearing(token: str) -> Head:
    return Head({"authorization": f"Bearer {token}"})


class Clock:
    """A time that tests move."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


class Verifier:
    """Knows some tokens, and counts the questions."""

    def __init__(self, **principals: Principal) -> None:
        self.principals = principals
        self.asked: list[str] = []

    async def verify(self, token: str) -> Principal | None:
        self.asked.append(token)
        return self.principals.get(token)


def anna(*scopes: str, **more: Any) -> Principal:
    return Principal(issuer=ISSUER, subject="anna", client_id="app", scopes=frozenset(scopes), **more)


def protected(verifier: Any = None, **more: Any) -> Protected:
    return Protected(
        **{"resource": RESOURCE, "authorization_servers": [ISSUER], "verifier": verifier or Verifier(), **more}
    )


async def asked(gate: Gate, head: Head) -> Auth | Refusal:
    """What the gate says, in the way of an endpoint."""
    known = gate.known(head)
    return await gate.ask(head) if known is None else known


async def refused(gate: Gate, head: Head) -> Refusal:
    refusal = await asked(gate, head)
    assert isinstance(refusal, Refusal)
    return refusal


async def let_in(gate: Gate, head: Head) -> Auth:
    auth = await asked(gate, head)
    assert isinstance(auth, Auth), auth
    return auth


def challenges(refusal: Refusal) -> list[Challenge]:
    return parse_challenges(", ".join(value for name, value in refusal.headers if name == "WWW-Authenticate"))
