"""HttpRequest is one request that an endpoint has admitted."""

from __future__ import annotations

import attrs

from ...concurrency.fair_share import Caller
from ...runtime.peer import CheckScopes, Headers, Peer
from ...runtime.principal import Auth, PrincipalId
from ...transports.http.application import Response
from ...transports.http.heads import RequestHead


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
    check_scopes: CheckScopes | None = None
    """The check of what the caller may do, where the endpoint is protected."""

    def peer(self, session_id: str | None = None) -> Peer:
        """Return the caller as handlers see callers."""
        headers = Headers.of_lower_case(self.head.headers)
        return Peer(session_id, headers, self.principal, self.auth, self.caller, check_scopes=self.check_scopes)
