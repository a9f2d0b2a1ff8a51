"""RequestTables holds the requests that are in flight on one connection, in either direction.

Inbound and outbound ids are two separate tables (DESIGN ruling 6). An id is in flight from its entry until
`finish` or its cancel, whichever comes first, and free again at once.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from ..jsonrpc.messages import RequestId
from ..protocol.errors import MethodUnavailable
from ..protocol.revisions import Revision, requests_of
from .requests import InboundRequest, OutboundRequest

Role: TypeAlias = Literal["client", "server"]


class RequestTables:
    """The requests of a connection, seen from ``role``. `ConnectionState` rules on which requests may enter."""

    def __init__(self, role: Role) -> None:
        self.role: Final[Role] = role
        self._inbound: dict[RequestId, InboundRequest] = {}
        self._parked: dict[RequestId, InboundRequest] = {}
        """Requests that were answered with questions: see `park`."""
        self._outbound: dict[RequestId, OutboundRequest] = {}
        self._next_id = 1

    # Requests of ours

    def open_request(self, method: str, revision: Revision) -> OutboundRequest:
        """Enter a request of ours into the table under a fresh id.

        The id differs from every id in flight in either direction. Raises `MethodUnavailable` when
        ``revision`` does not let our role send ``method``.
        """
        row = requests_of(self.role, revision).get(method)
        if row is None:
            raise MethodUnavailable(method, revision)
        request_id = self._next_id
        while request_id in self._inbound:
            request_id += 1
        self._next_id = request_id + 1
        call = OutboundRequest(request_id, row, revision)
        self._outbound[request_id] = call
        return call

    def abandon(self, request: OutboundRequest) -> bool:
        """Give up on a request of ours, and return whether a cancel is to be sent: true when the request was still
        open, except for ``initialize``, which must not be cancelled. Idempotent."""
        if self._outbound.get(request.id) is not request:
            return False
        del self._outbound[request.id]
        return request.method.name != "initialize"

    def abandon_all(self) -> list[OutboundRequest]:
        """Empty the outbound table, since the connection is gone, and return its requests, each exactly once."""
        calls = list(self._outbound.values())
        self._outbound.clear()
        return calls

    @property
    def outbound(self) -> tuple[OutboundRequest, ...]:
        """Requests of ours in flight, oldest first."""
        return tuple(self._outbound.values())

    # Requests of the peer

    def finish(self, request: InboundRequest) -> bool:
        """Take an inbound request out of the table, and return whether the request is to be answered now.

        The entry must be the same object: a request that was cancelled is never answered, and its late end cannot
        touch a newer request under the same id (DESIGN rulings 1 and 6). Idempotent.
        """
        if self._parked.get(request.id) is request:
            del self._parked[request.id]
        if self._inbound.get(request.id) is not request:
            return False
        del self._inbound[request.id]
        return True

    def park(self, request: InboundRequest) -> None:
        """Note that an inbound request is answered with questions. The id is free, but until the id is taken again, or
        `finish` is called, a cancel that names the id is for the handler that waits for the answers."""
        if self.finish(request):
            self._parked[request.id] = request

    @property
    def inbound(self) -> tuple[InboundRequest, ...]:
        """Requests of the peer in flight, oldest first."""
        return tuple(self._inbound.values())
