"""Situation and Grant: what a machine that gets tokens starts from, and what it ends with.

The machines, each a `Machine` of a `Grant`: `sign_in` (authorization_code), `refresh` (refreshing),
`client_credentials` (client_credentials), `workload_identity` (jwt_bearer) and `enterprise_managed` (enterprise). Each
takes its settings and a `Situation`, raises `AuthorizationError` alone, and asks for a bounded number of steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ..storage.stored import IssuerRecord, Stored

if TYPE_CHECKING:
    from ..challenges import Challenge
    from ..proofs import ProofMaker

__all__ = ["Grant", "Situation"]


@attrs.frozen(kw_only=True)
class Situation:
    """What a machine starts from."""

    server_url: str
    """The canonical URL of the MCP server, which is the ``resource`` of all requests (RFC 8707)."""
    stored: Stored
    """What the client keeps of its authorization at this server."""
    challenge: Challenge | None = None
    """The Bearer or DPoP challenge of the refusal; `None` where there was none, or no refusal at all."""
    now: float
    """Time in seconds since the epoch."""
    proofs: ProofMaker | None = attrs.field(default=None, repr=False)
    """Makes the proofs of DPoP at the token endpoint; `None` without DPoP."""


@attrs.frozen(kw_only=True)
class Grant:
    """What a machine ends with, to be kept by ``stored.with_record(issuer, record)``."""

    issuer: str
    """The authorization server, as its metadata names it."""
    record: IssuerRecord
    """All that is kept of that server from now on, tokens included. The proof key is the one that was stored before;
    whoever has made the proofs adds a new one."""
