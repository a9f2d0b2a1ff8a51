"""`ConnectionState` decides which messages are legal on one connection, and in which protocol revision.

The state is sans-IO: no trio, no clock, no bytes. `receive` takes a message, changes the tables, and returns an event.
Other methods of `ConnectionState` return whether a step is allowed. No function of `trio_mcp.state` waits or can be
cancelled, so the tables are always consistent.

========== =================================== ======================================================
before     message                             after
========== =================================== ======================================================
opening    ``initialize``                      legacy: connection-wide revision and capabilities
opening    a request with modern ``_meta``     opening: served under its own revision, nothing kept
opening    ``ping``                            opening: answered
opening    any other request                   opening: refused
legacy     ``notifications/initialized``       legacy, initialized
legacy     a request with modern ``_meta``     legacy: served under its own revision, nothing kept
========== =================================== ======================================================

`StatelessState` does the same for stateless requests: there was no handshake, and the ids of different exchanges are
independent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from itertools import islice
from typing import Any, Final, cast

from ..jsonrpc.errors import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, CodedError, MCPError, clean
from ..jsonrpc.messages import (
    Batch,
    ErrorResponse,
    Message,
    Notification,
    Request,
    RequestId,
    Response,
    Unreadable,
    is_request_id,
)
from ..protocol.converters import structure_params
from ..protocol.errors import NOT_INITIALIZED, MethodUnavailable
from ..protocol.meta import CLIENT_CAPABILITIES, PROTOCOL_VERSION, RELATED_TASK, SUBSCRIPTION_ID
from ..protocol.methods import METHODS, Method
from ..protocol.revisions import CORE, LATEST_LEGACY, LATEST_MODERN, Revision, Vocabulary, negotiate, notifications_of
from ..protocol.types.lifecycle import ClientCapabilities, Implementation, InitializeParams
from ..protocol.types.notifications import DEFAULT_LOG_LEVEL, log_level_rank
from .events import (
    AnswerLost,
    BatchReceived,
    CancelReceived,
    ErrorReceived,
    Event,
    Ignored,
    NotificationReceived,
    ProgressReceived,
    Refused,
    ReplyUnreadable,
    RequestFailed,
    RequestReceived,
    ResultReceived,
    StreamCancelled,
    StreamReceived,
    Unread,
)
from .requests import InboundRequest, OutboundRequest, PerRequestFields, Role, progress_token_of

_NO_BATCHES: Final = "Invalid request: batches are not part of this revision"
_IN_BATCH: Final = "the answer is a batch, which this revision does not have"
_NO_CAPABILITIES: Final = ClientCapabilities()
_QUOTED: Final = 200
"""Maximum number of characters of an id or method name that an error message quotes."""


class ConnectionState:
    """Validates the messages that one side of a connection receives, and stores the requests in flight.

    ``role`` is this side's role: client or server.

    Inbound and outbound ids are in two separate tables (ruling 6). An id is in flight from its entry until `finish` or
    its cancellation, whichever comes first.

    ``require_initialized``: as a server, refuse legacy requests with -32002 until ``notifications/initialized`` has
    arrived. Otherwise, requests between ``initialize`` and that notification are served, as most peers expect.
    ``vocabulary``: the known methods.
    """

    def __init__(self, role: Role, vocabulary: Vocabulary = CORE, *, require_initialized: bool = False) -> None:
        self.role: Final[Role] = role
        self.peer: Final[Role] = "client" if role == "server" else "server"
        self.require_initialized = require_initialized
        self.learn(vocabulary)
        self.revision: Revision | None = None
        """Protocol revision negotiated by ``initialize`` or, for a client, by discovery. `None` until then."""
        self.initialized = False
        self.client_capabilities: ClientCapabilities = _NO_CAPABILITIES
        self.client_info: Implementation | None = None
        self.log_level: str = DEFAULT_LOG_LEVEL.value
        """Least severe log level that a legacy client wants: see `set_log_level`."""
        self.log_rank = log_level_rank(self.log_level)
        self.subscriptions: set[str] = set()
        self._fields = PerRequestFields()
        self._inbound: dict[RequestId, InboundRequest] = {}
        self._parked: dict[RequestId, InboundRequest] = {}
        """Requests that were answered with input requests, by their old ids: see `park`."""
        self._outbound: dict[RequestId, OutboundRequest] = {}
        self._next_id = 1
        self.new_id: Callable[[], RequestId] | None = None
        """Function that returns a new id for each outgoing request. If it's `None`, the ids are consecutive numbers."""

    def resume(self, revision: Revision, opening: InitializeParams) -> None:
        """Continue a session of a legacy protocol revision that was initialized elsewhere, for example by another
        process.

        ``opening`` is the ``initialize`` request with which the client opened the session.
        """
        self.revision = revision
        self.client_capabilities, self.client_info = opening.capabilities, opening.client_info

    def learn(self, vocabulary: Vocabulary) -> None:
        """From now on, the methods known to this connection are the methods in ``vocabulary``."""
        self._vocabulary = vocabulary
        self._requests_of, self._notifications_of = vocabulary.requests_of, vocabulary.notifications_of

    def set_log_level(self, level: str) -> None:
        """Set the least severe level of log messages to send. ``level`` is a log level of RFC 5424."""
        self.log_level, self.log_rank = level, log_level_rank(level)

    # Requests of ours

    def open_request(self, method: str, revision: Revision) -> OutboundRequest:
        """Return a new outgoing request with a new id. The request is in flight from now on.

        The id differs from every id in flight in either direction. Raises `MethodUnavailable` if this side can't send
        ``method`` in ``revision``.
        """
        row = self._requests_of(self.role, revision).get(method)
        if row is None:
            raise MethodUnavailable(method, revision)
        request_id = self._fresh_id()
        call = OutboundRequest(request_id, row, revision)
        self._outbound[request_id] = call
        return call

    def _fresh_id(self) -> RequestId:
        if self.new_id is not None:
            made = self.new_id()
            return made if made not in self._inbound else self._fresh_id()
        request_id = self._next_id
        while request_id in self._inbound:
            request_id += 1
        self._next_id = request_id + 1
        return request_id

    def abandon(self, request: OutboundRequest) -> bool:
        """Stop waiting for an outgoing request.

        Return true if the request was still open, so that a cancellation must be sent. Return false for ``initialize``,
        which must not be cancelled. Idempotent.
        """
        if self._outbound.get(request.id) is not request:
            return False
        del self._outbound[request.id]
        return request.method.name != "initialize"

    def abandon_all(self) -> list[OutboundRequest]:
        """Remove and return all outgoing requests in flight, because the connection is lost."""
        calls = list(self._outbound.values())
        self._outbound.clear()
        return calls

    @property
    def outbound(self) -> tuple[OutboundRequest, ...]:
        """This side's outgoing requests in flight, oldest first."""
        return tuple(self._outbound.values())

    # Requests of the peer

    def finish(self, request: InboundRequest) -> bool:
        """Remove a request of the peer from the table of requests in flight. Return true if the request must be
        answered now.

        The entry must be the same object. A cancelled request is never answered, and its late end doesn't affect a
        newer request with the same id (rulings 1 and 6). Idempotent.
        """
        if self._parked.get(request.id) is request:
            del self._parked[request.id]
        if self._inbound.get(request.id) is not request:
            return False
        del self._inbound[request.id]
        return True

    def park(self, request: InboundRequest) -> None:
        """Record that a request of the peer was answered with input requests, and free the request's id.

        A cancellation with this id still cancels the handler that waits for the answers, until another request uses the
        id or `finish` is called.
        """
        if self.finish(request):
            self._parked[request.id] = request

    def knows(self, request_id: RequestId) -> bool:
        """Return true if a request of the peer with this id is in flight, or waits for the client's retry.

        A request waits for a retry after it was answered with input requests.
        """
        return request_id in self._inbound or request_id in self._parked

    @property
    def inbound(self) -> tuple[InboundRequest, ...]:
        """The peer's requests in flight, oldest first."""
        return tuple(self._inbound.values())

    # Receiving

    def receive(self, message: Message | Batch | Unreadable) -> Event:
        """Handle one message from the peer: update the tables of requests, and return the resulting event. Never
        raises."""
        match message:
            case Request():
                return self._receive_request(message)
            case Notification():
                revision = self.revision
                params: dict[str, Any] | None = message.params
                if revision is not None and type(params) is dict and "_meta" not in params:
                    row = _plain_notifications(self.peer, revision).get(message.method)
                    if row is not None:
                        return NotificationReceived(row, params, revision)
                return self._receive_notification(message)
            case Response():
                call = self._outbound.pop(message.id, None)
                if call is None:
                    return self._receive_stray(message.id, "a result for no request in flight")
                return ResultReceived(call, message.result)
            case ErrorResponse():
                call = None if message.id is None else self._outbound.pop(message.id, None)
                if call is None:
                    return self._receive_stray(
                        message.id,
                        f"an error for no request in flight: {message.message[:200]!r}",
                        noteworthy=message.id is None,
                    )
                return ErrorReceived(call, message)
            case Unreadable():
                return self._receive_unreadable(message)
            case Batch():
                return self._receive_batch(message)

    def reply_lost(self, request_id: RequestId, error: MCPError) -> Event:
        """End the outgoing request ``request_id``, if it is still in flight, because its reply won't arrive."""
        call = self._outbound.pop(request_id, None)
        return Ignored("the end of no request in flight") if call is None else RequestFailed(call, error)

    def question_lost(self, request_id: RequestId, reason: str) -> Event:
        """End the peer's request with the id ``request_id``, because the peer no longer waits for the reply."""
        entry = self._inbound.get(request_id)
        return Ignored("the loss of no request in flight") if entry is None else self._cancelled(entry, reason)

    def _receive_stray(self, named: Any, what: str, *, noteworthy: bool = False) -> Event:
        """Return the event for a reply whose id belongs to no request in flight."""
        call = self._meant(named)
        if call is None:
            return Ignored(what, noteworthy=noteworthy, is_reply=self.role == "client")
        return ReplyUnreadable(call, f"its id is {clean(repr(named)[:_QUOTED])} instead of {call.id!r}", is_odd=True)

    def _meant(self, named: Any) -> OutboundRequest | None:
        """Remove and return the outgoing request to which an invalid reply with the id ``named`` probably belongs.

        Return `None` if that isn't clear. If only the type of the id is wrong, return the request only if no other
        request is waiting.
        """
        if self.role != "client" or named is None:
            return None
        if is_request_id(named) and named in self._outbound:
            return self._outbound.pop(named)
        waiting = [*islice((call for call in self._outbound.values() if not call.method.streams), 2)]
        if len(waiting) != 1 or _plain(named) != _plain(waiting[0].id):
            return None
        return self._outbound.pop(waiting[0].id)

    def _is_no_request(self, method: str, request_id: Any) -> bool:
        """Return true if a message that looks like a request of the server can't be such a request.

        The decision uses the ``method`` and the id of the message.

        For example, the message may be an outgoing request that the server sent back. The id alone doesn't show this,
        because a server may use the same id for its own request. A server may also send methods that are unknown here.
        """
        call = self._outbound.get(request_id) if is_request_id(request_id) else None
        if call is None:
            return False
        if method == call.method.name:
            return method not in self._requests_of(self.peer, self.revision or LATEST_LEGACY)
        if self._never_replies:
            return not method.startswith("notifications/")
        row = METHODS.get(method)
        return row is not None and row.is_request and not row.sent_by("server")

    def _receive_odd(self, message: Unreadable) -> Event | None:
        """Return the event for an invalid line from the server, if the line seems to be the reply to an outgoing
        request. Otherwise, return `None`."""
        if message.is_answer and message.settles is None:
            return None
        named, asks = message.named, message.asks
        meant = self._meant(named) if asks is None or self._is_no_request(asks, named) else None
        if meant is None and not message.also:
            return None
        calls = [meant, self._outbound.pop(message.settles, None) if message.settles is not None else None]
        calls += [self._outbound.pop(each, None) for each in message.also]
        is_odd = message.reply is not None
        failed = tuple(ReplyUnreadable(call, message.reason, is_odd) for call in calls if call is not None)
        return None if not failed else failed[0] if len(failed) == 1 else BatchReceived(failed)

    def _receive_unreadable(self, message: Unreadable) -> Event:
        if self.role == "client" and (event := self._receive_odd(message)) is not None:
            return event
        reply = message.reply
        if message.is_answer or (message.may_be_answer and (self.role == "client" or self._outbound)):
            # If this server has no outgoing request in flight, a line that may be a request or a reply is a request.
            return self._receive_bad_answer(message)
        if reply is None:
            return Unread(message.reason)
        if self.role == "client" and (self._never_replies or not message.too_long or reply.id is None):
            # If a server sends a line that can't be read, reply only if the line was a request, but too long.
            # Don't reply to a line that may be printed text: a server that is printing doesn't read its input.
            # If the client replied to all printed lines, the server's input could fill up, and both would wait forever.
            return Unread(message.reason)
        return Refused(reply)

    @property
    def _never_replies(self) -> bool:
        """True if this side must not send responses, because it's a client of a modern protocol revision (2026-07-28
        stdio, Sending Messages)."""
        return self.revision is not None and not self.revision.server_requests

    def _receive_bad_answer(self, answer: Unreadable) -> Event:
        if answer.settles is not None:
            call = self._outbound.pop(answer.settles, None)
            return Unread(answer.reason) if call is None else ReplyUnreadable(call, answer.reason)
        calls = tuple(call for call in self._outbound.values() if not call.method.streams)
        return AnswerLost(calls, answer.reason) if calls else Unread(answer.reason)

    def _receive_batch(self, batch: Batch) -> Event:
        # Accept batches only in MCP 2025-03-26, which requires them. Later revisions have no batches.
        if self.revision is None or not self.revision.batches:
            named = [each.id for each in batch.members if isinstance(each, Response | ErrorResponse)]
            named += [each.named for each in batch.members if isinstance(each, Unreadable) and each.asks is None]
            if meant := [call for call in map(self._meant, named) if call is not None]:
                return BatchReceived(tuple(ReplyUnreadable(call, _IN_BATCH, is_odd=True) for call in meant))
            return self._receive_unreadable(Unreadable(_NO_BATCHES, ErrorResponse(None, INVALID_REQUEST, _NO_BATCHES)))
        return BatchReceived(tuple(self._receive_member(member) for member in batch.members))

    def _receive_member(self, member: Message | Unreadable) -> Event:
        event = no_initialize(member) or self.receive(member)
        if isinstance(event, RequestReceived) and not event.request.revision.batches:
            self.finish(event.request)
            return refused(event.request.id, INVALID_REQUEST, _NO_BATCHES)
        return event

    def _receive_request(self, message: Request) -> Event:
        request_id = message.id
        if self.role == "client" and self._outbound and self._is_no_request(message.method, request_id):
            call = self._outbound.pop(request_id)
            return ReplyUnreadable(call, f"it is a request, {clean(message.method[:_QUOTED])}", is_odd=True)
        if self.role == "client" and self._never_replies:
            # MCP 2026-07-28, stdio page: a server MUST NOT send requests.
            return Ignored(
                f"since MCP 2026-07-28, servers must not send requests: {clean(message.method[:200])}",
                noteworthy=True,
            )
        if request_id in self._inbound:
            return refused(request_id, INVALID_REQUEST, f"Invalid request: id {request_id!r:.100} is already in flight")
        try:
            params, meta = params_and_meta(message)
            if (PROTOCOL_VERSION in meta or CLIENT_CAPABILITIES in meta) and message.method != "initialize":
                entry = self._modern_request(message, params, meta)
            else:
                revision = self.revision
                if revision is None or message.method == "initialize" or self.require_initialized:
                    revision = self._opening_revision(message.method, params)
                entry = self._request_of(message, params, meta, revision)
        except CodedError as error:
            return refused(request_id, error.code, error.message, error.data)
        except _NotOurs as reason:
            return Ignored(str(reason), noteworthy=True)
        self._inbound[request_id] = entry
        # The client may reuse the id of a call that waits for the client's retry. Then the id means the new request.
        self._parked.pop(request_id, None)
        return RequestReceived(entry)

    def _method(self, name: str, revision: Revision) -> Method:
        row = self._requests_of(self.peer, revision).get(name)
        if row is None:
            raise CodedError(METHOD_NOT_FOUND, "Method not found", {"method": name[:200]})
        return row

    def _modern_request(self, message: Request, params: dict[str, Any], meta: dict[str, Any]) -> InboundRequest:
        if self.role == "client":
            # Ignore the request: since MCP 2026-07-28, servers MUST NOT send requests, and clients never reply.
            raise _NotOurs(f"since MCP 2026-07-28, servers must not send requests: {clean(message.method[:200])}")
        fields = self._fields
        revision = fields.revision(meta)
        method = self._method(message.method, revision)
        level = fields.log_level(meta)
        return InboundRequest(
            message.id,
            method,
            params,
            revision,
            meta,
            fields.capabilities(meta, revision),
            fields.client_info(meta, revision),
            level,
            progress_token_of(meta),
            message.size,
        )

    def _opening_revision(self, method: str, params: dict[str, Any]) -> Revision:
        """Return the legacy protocol revision that applies to a request.

        Raises `CodedError` if the request isn't allowed before the end of the handshake.
        """
        if self.role == "client":
            return self.revision or LATEST_LEGACY  # a server may send pings before the handshake has ended
        if method == "initialize":
            return self._initialize(params)
        if self.revision is None:
            return self._before_initialize(method)
        if not self.initialized and method != "ping":
            raise CodedError(NOT_INITIALIZED, "Not initialized: notifications/initialized has not arrived yet")
        return self.revision

    def _request_of(
        self, message: Request, params: dict[str, Any], meta: dict[str, Any], revision: Revision
    ) -> InboundRequest:
        return InboundRequest(
            message.id,
            self._method(message.method, revision),
            params,
            revision,
            meta,
            self.client_capabilities,
            self.client_info,
            None,
            progress_token_of(meta) if meta else None,
            message.size,
        )

    def _initialize(self, params: dict[str, Any]) -> Revision:
        if self.revision is not None:
            raise CodedError(INVALID_REQUEST, "Invalid request: this connection is already initialized")
        requested = params.get("protocolVersion")
        revision = negotiate(requested) if type(requested) is str else LATEST_LEGACY
        opening = structure_params(params, InitializeParams, revision)
        self.revision = revision
        self.client_capabilities = opening.capabilities
        self.client_info = opening.client_info
        return self.revision

    def _before_initialize(self, method: str) -> Revision:
        if method == "ping":  # MCP 2025-11-25, lifecycle page: pings are allowed before initialization
            return LATEST_LEGACY
        if method not in self._vocabulary.names:
            raise CodedError(METHOD_NOT_FOUND, "Method not found", {"method": method[:200]})
        if self.require_initialized:
            raise CodedError(NOT_INITIALIZED, "Not initialized: send initialize first")
        # The request is valid in no revision: a modern one requires more in _meta, and a legacy one a handshake first.
        # In modern protocol revisions, the error code for missing fields in _meta MUST be -32602.
        raise CodedError(
            INVALID_PARAMS, f"Invalid params: {PROTOCOL_VERSION} is missing in _meta; add it, or send initialize first"
        )

    def _receive_notification(self, message: Notification) -> Event:
        params: dict[str, Any] = message.params if message.params is not None else {}
        if type(params) is not dict:
            return Ignored(f"{clean(message.method[:200])} whose parameters are not an object")
        method = message.method
        if method == "notifications/cancelled":
            return self._receive_cancel(params)
        if method == "notifications/progress":
            return self._receive_progress(params)
        revision = self.revision
        if revision is None:  # there was no handshake, so the latest revision without a handshake applies to extensions
            revision = LATEST_LEGACY if method in METHODS else LATEST_MODERN
        row = self._notifications_of(self.peer, revision).get(method)
        if row is None:
            # Ignore an unknown notification, because no reply to a notification is allowed.
            return Ignored(f"unknown notification {clean(method[:200])}")
        if row.requires_client and self.peer == "client" and revision.handshake and not self._has_declared(row):
            return Ignored(f"{method} of an extension that the client has not declared")
        if method == "notifications/initialized":
            self.initialized = self.revision is not None
        event = NotificationReceived(row, params, revision)
        if revision.changes != "listen":
            return event
        meta = params.get("_meta")
        if type(meta) is not dict or SUBSCRIPTION_ID not in meta:
            return event
        # MCP 2026-07-28, subscriptions page: a client MUST find a notification's stream by the subscription id.
        stream = self._stream(cast("dict[str, Any]", meta)[SUBSCRIPTION_ID])
        return Ignored("a notification on no open stream") if stream is None else StreamReceived(stream, event)

    def _has_declared(self, row: Method) -> bool:
        # An extension is only declared if its value is an object.
        return type((self.client_capabilities.extensions or {}).get(str(row.extension))) is dict

    def _stream(self, subscription_id: object) -> OutboundRequest | None:
        request = self._outbound.get(subscription_id) if is_request_id(subscription_id) else None
        return request if request is not None and request.method.streams else None

    def _receive_cancel(self, params: dict[str, Any]) -> Event:
        request_id, reason = params.get("requestId"), params.get("reason")
        if not is_request_id(request_id):
            return Ignored("a cancel that names no request")
        # While a client collects the user's input for a call, the call has no open request.
        # To cancel a call for which the user is entering input, the client sends the id of the call's last request.
        entry = self._inbound.get(request_id) or self._parked.get(request_id)
        if type(reason) is not str:
            reason = None
        if entry is None:
            # MCP 2026-07-28, cancellation page: a server MUST send a cancellation when it ends a stream.
            # A server MUST NOT send a cancellation for any other reason than the end of a stream.
            stream = self._stream(request_id)
            if stream is None:
                return Ignored("a cancel for no request in flight")
            del self._outbound[stream.id]
            return StreamCancelled(stream, reason)
        if entry.method.name == "initialize":
            # MCP 2025-11-25, cancellation page: initialize MUST NOT be cancelled.
            return Ignored("a cancel for initialize")
        return self._cancelled(entry, reason)

    def _cancelled(self, entry: InboundRequest, reason: str | None) -> Event:
        self.finish(entry)
        return CancelReceived(entry, reason)

    def _receive_progress(self, params: dict[str, Any]) -> Event:
        token = params.get("progressToken")
        call = self._outbound.get(token) if is_request_id(token) else None
        if call is not None:
            return ProgressReceived(call, params)
        meta, revision = params.get("_meta"), self.revision or LATEST_LEGACY
        if revision.tasks == "core" and type(meta) is dict and RELATED_TASK in meta:
            # MCP 2025-11-25, tasks page: a task's progress token stays valid until the task ends.
            return NotificationReceived(METHODS["notifications/progress"], params, revision)
        return Ignored("progress for no request in flight")


_RULED_ON: Final = ("notifications/initialized", "notifications/cancelled", "notifications/progress")
"""Notifications of the specification that need more checks than the method name."""


@cache
def _plain_notifications(role: Role, revision: Revision) -> Mapping[str, Method]:
    """Return the notifications that ``role`` can send in ``revision``, by name.

    Only notifications for which checking the name is enough are returned, and no notifications of extensions.
    """
    rows = notifications_of(role, revision)
    return {name: row for name, row in rows.items() if name not in _RULED_ON}


def _plain(request_id: Any) -> str | None:
    """Return a number or string as text, so that ids of different types can be compared.

    Returns `None` for any other value, which can't be an id.
    """
    if type(request_id) is str:
        return request_id
    if type(request_id) is float and request_id.is_integer():
        return str(int(request_id))
    return str(request_id) if type(request_id) is int else None


class _NotOurs(Exception):
    """Raised for a request of the peer that must not get any reply."""


def params_and_meta(request: Request) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters of ``request`` and the ``_meta`` in these parameters.

    If the parameters or the ``_meta`` are absent, an empty object is returned instead. Raises `CodedError` if either
    isn't an object.
    """
    params: dict[str, Any] = request.params if request.params is not None else {}
    if type(params) is not dict:
        raise CodedError(INVALID_PARAMS, "Invalid params: the parameters must be an object")
    meta: dict[str, Any] | None = params.get("_meta")
    if meta is None:
        return params, {}
    if type(meta) is not dict:
        raise CodedError(INVALID_PARAMS, "Invalid params: _meta must be an object")
    return params, meta


def no_initialize(member: Message | Unreadable) -> Refused | None:
    """Return an error for the request ``initialize``, which must not be in a batch. Return `None` for any other message
    in the batch."""
    if isinstance(member, Request) and member.method == "initialize":
        # MCP 2025-03-26, lifecycle page: a batch MUST NOT contain initialize.
        return refused(member.id, INVALID_REQUEST, "Invalid request: initialize is never part of a batch")
    return None


def refused(request_id: RequestId, code: int, message: str, data: Any = None) -> Refused:
    """Return a `Refused` event. It means that a request of the peer must be answered with the error ``code`` and
    ``message``."""
    return Refused(ErrorResponse(request_id, code, message, data))
