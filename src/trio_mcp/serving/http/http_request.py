"""HttpRequest is one request that an endpoint has admitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ...concurrency.fair_share import Caller
from ...runtime.peer import Headers, Peer
from ...runtime.principal import Auth, PrincipalId
from ...transports.http.application import Response
from ...transports.http.heads import RequestHead
from ..scopes import scope_check

if TYPE_CHECKING:
    from ...auth.resource_server.gate import Gate

__all__ = ["HttpRequest"]


@attrs.define(eq=False)
class HttpRequest:
    """A request, and the way back."""

    head: RequestHead
    body: bytes = attrs.field(repr=False)
    response: Response
    extra: bytes
    """Headers of any answer."""
    auth: Auth | None
    """The caller; `None` where the endpoint is not protected."""
    principal: PrincipalId | None
    """The name of the caller."""
    caller: Caller
    """The party whose share of the bounds the request takes."""
    gate: Gate | None = None
    """The gate that has let the caller in."""

    def peer(self, session_id: str | None = None) -> Peer:
        """Return the caller as handlers see callers."""
        headers, auth, gate = Headers.of_lower_case(self.head.headers), self.auth, self.gate
        check = None if gate is None or auth is None else scope_check(gate, auth)
        return Peer(session_id, headers, self.principal, auth, self.caller, check_scopes=check)
