"""Situation and Grant: the start and the end of a machine that gets tokens.

The machines, each a `Machine` of a `Grant`: `sign_in` (authorization_code), `refresh` (refreshing),
`client_credentials` (client_credentials), `workload_identity` (jwt_bearer) and `enterprise_managed` (enterprise). Each
takes its settings and a `Situation`, raises `AuthorizationError` alone, and asks for a bounded number of steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import attrs

from ..challenges import Challenge
from ..storage.stored import IssuerRecord, Stored
from .settings import PreregisteredClient


class Bindings(Protocol):
    """The authorization servers that the credentials of clients belong to."""

    async def issuer_of(self, client: PreregisteredClient) -> str | None:
        """Return the issuer that the credentials of ``client`` belong to; `None` where the first use decides. Raises
        `AuthorizationError`."""
        ...

    def claim(self, client: PreregisteredClient, issuer: str) -> None:
        """Note that the credentials of ``client`` belong to ``issuer``. Where another issuer has the
        credentials already, the next step of the machine is not carried out. Synchronous."""
        ...


class ProofMaker(Protocol):
    """A key of DPoP, with a clock."""

    def proof(self, method: str, url: str, *, nonce: str | None = None) -> str:
        """Return a new proof for one request by ``method`` to ``url`` (RFC 9449 section 4.2)."""
        ...


@attrs.frozen(kw_only=True)
class Situation:
    """The start of a machine."""

    server_url: str
    """The canonical URL of the MCP server (2026-07-28 authorization, Canonical Server URI)."""
    stored: Stored
    """The record of the client's authorization at this server."""
    challenge: Challenge | None = None
    """The Bearer or DPoP challenge of the refusal; `None` where there was none, or no refusal at all."""
    now: Callable[[], float] = time.time
    """Returns the time in seconds since the epoch. A user may take minutes between two steps."""
    proofs: ProofMaker | None = attrs.field(default=None, repr=False)
    """Makes the proofs of DPoP at the token endpoint; `None` without DPoP."""
    bindings: Bindings | None = attrs.field(default=None, repr=False)
    """Binds credentials to the first issuer in use; `None` where nobody remembers."""

    async def bound(self, client: PreregisteredClient) -> PreregisteredClient:
        """Return ``client`` with its issuer, as far as known. Raises `AuthorizationError`."""
        if self.bindings is None:
            return client
        return attrs.evolve(client, issuer=await self.bindings.issuer_of(client))

    def claim(self, client: PreregisteredClient, issuer: str) -> None:
        """Note that the credentials of ``client`` are about to be used at ``issuer``: see `Bindings.claim`."""
        if self.bindings is not None and client.issuer is None:
            self.bindings.claim(client, issuer)


@attrs.frozen(kw_only=True)
class Grant:
    """The end of a machine, to be kept by ``stored.with_record(issuer, record)``."""

    issuer: str
    """The authorization server, as its metadata names it."""
    record: IssuerRecord
    """The record of that server from now on, tokens included. The proof key is the one that was stored before;
    the maker of the proofs adds a new one."""
