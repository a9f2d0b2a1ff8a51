"""`StatelessState` decides which requests are legal on a stateless server. There is no handshake, and different HTTP
exchanges may use the same ids."""

from __future__ import annotations

from typing import Any, cast

from ..jsonrpc.errors import INVALID_REQUEST, CodedError
from ..jsonrpc.messages import Batch, ErrorResponse, Message, Notification, Request, Response, Unreadable
from ..protocol.converters import structure_params
from ..protocol.methods import METHODS
from ..protocol.revisions import CORE, LATEST_LEGACY, Revision, Vocabulary, negotiate
from ..protocol.types.lifecycle import ClientCapabilities, InitializeParams
from .connection import ConnectionState, no_initialize, params_and_meta, refused
from .events import BatchReceived, Event, Ignored, Refused, RequestReceived
from .requests import InboundRequest


class StatelessState(ConnectionState):
    """Validates messages from a server's clients, each message independently of all others (2026-07-28 basic,
    Statelessness).

    Each message has its own `Exchange`.

    Each client chooses its own ids, so requests are identified by their object. A message can't name a request of
    another exchange: otherwise one client could cancel the work of another.
    """

    def __init__(self, vocabulary: Vocabulary = CORE) -> None:
        super().__init__("server", vocabulary)
        self._open: set[InboundRequest] = set()

    def receive(self, message: Message | Batch | Unreadable) -> Event:
        """Handle one message of a client that uses a modern protocol revision. Never raises."""
        match message:
            case Request():
                return self._request(message, None)
            case Notification():
                return Ignored("a notification that belongs to no connection")
            case Unreadable():
                return self._receive_unreadable(message)
            case Response() | ErrorResponse() | Batch():
                # MCP 2026-07-28, streamable HTTP page: the body of a POST must be a request or a notification.
                return _no_request("Invalid request: one request or notification is expected")

    def notification(self, message: Notification, revision: Revision, size: int) -> InboundRequest | None:
        """Return a notification of an extension in the form of an `InboundRequest` that gets no reply. ``size`` is its
        length in bytes.

        Only the notification's HTTP exchange identifies the sender, and the form of a request keeps this exchange.

        Return `None` for notifications of the specification. For example, a cancellation would be ambiguous, because
        different clients may use the same request id.
        """
        params: Any = message.params if message.params is not None else {}
        row = self._notifications_of("client", revision).get(message.method)
        if row is None or row.name in METHODS or type(params) is not dict:
            return None
        given = cast("dict[str, Any]", params)
        return InboundRequest("", row, given, revision, {}, ClientCapabilities(), None, None, None, size)

    def receive_legacy(self, message: Message | Batch | Unreadable, revision: Revision) -> Event:
        """Handle one message of a client that uses ``revision``, a legacy protocol revision. Never raises.

        The server stores no data about the client's handshake.
        """
        match message:
            case Request():
                return self._request(message, revision)
            case Batch():
                if not revision.batches:
                    return _no_request("Invalid request: batches are not part of this revision")
                return BatchReceived(tuple(self._member(member, revision) for member in message.members))
            case _:
                return self.receive(message)

    def _member(self, member: Message | Unreadable, revision: Revision) -> Event:
        return no_initialize(member) or self.receive_legacy(member, revision)

    def _request(self, message: Request, legacy: Revision | None) -> Event:
        try:
            params, meta = params_and_meta(message)
            if legacy is None:
                request = self._modern_request(message, params, meta)
            else:
                if message.method == "initialize":
                    requested = params.get("protocolVersion")
                    legacy = negotiate(requested) if type(requested) is str else LATEST_LEGACY
                    structure_params(params, InitializeParams, legacy)
                request = self._request_of(message, params, meta, legacy)
        except CodedError as error:
            return refused(message.id, error.code, error.message, error.data)
        self._open.add(request)
        return RequestReceived(request)

    def set_log_level(self, level: str) -> None:
        """Ignore the requested log level, because all stateless clients would share it.

        All clients get the messages of the default level.
        """

    def finish(self, request: InboundRequest) -> bool:
        """Remove ``request`` from the open requests: see `ConnectionState.finish`."""
        if request in self._open:
            self._open.discard(request)
            return True
        return False

    def park(self, request: InboundRequest) -> None:
        """Remove ``request``, which was answered with input requests, from the open requests."""
        self._open.discard(request)

    @property
    def inbound(self) -> tuple[InboundRequest, ...]:
        """The requests in flight, in any order."""
        return tuple(self._open)


def _no_request(reason: str) -> Refused:
    return Refused(ErrorResponse(None, INVALID_REQUEST, reason))
