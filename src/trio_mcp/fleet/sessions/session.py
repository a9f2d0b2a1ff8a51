"""SharedSession: a legacy session on one replica. Any replica can serve the session, since its state is in shared
storage.

It has the session state as last read, a connection that continues from this state, and the requests that run on this
replica. No message is refused because of outdated state.

Two rules only hold within one replica: that a request id is used once (otherwise a cancel may reach two requests with
this id), and the order of two messages from a client that doesn't wait for the first answer.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast

import trio

from ...concurrency.fair_share import Caller
from ...jsonrpc.codec import decode, decode_value
from ...jsonrpc.messages import Batch, Message, Notification, Unreadable
from ...protocol.revisions import REVISIONS
from ...runtime.cancellation import CancelCause
from ...runtime.peer import Peer, PrincipalId
from ...server.connection import ServerConnection
from ...serving.http.exchanges import HttpRequest
from ...serving.http.responses import empty
from ...serving.http.session_exchange import ClientSession, SessionExchange
from ...state.connection import ConnectionState
from ..messenger import logged_failure
from .event_log import ResumedStreams, StreamLog, forget_events, new_holder, new_stream_name
from .exchange import InitializeExchange, PendingChange, PendingChanges, SharedExchange
from .routing import Delivery, SessionRouter
from .shared_state import FRESH_SECONDS, SessionServices, SharedSessionState, to_milliseconds, unreachable
from .standalone_streams import StandaloneStreams
from .state import Cancel, SessionState, initialize_params
from .streams import SharedStream

if TYPE_CHECKING:
    from ...state.requests import InboundRequest

logger = logging.getLogger("trio_mcp")

_IDLE: Final = 60.0
"""Seconds after which an unused `SharedSession` is removed from this replica."""
_LONGEST_LOOK: Final = 30.0
"""Maximum seconds between two checks of a session whose client has an open response or running requests."""
_LAST_LINES: Final = 2.0
_HURRIED_LINES: Final = 0.1
"""Seconds that an ending replica has for writing its last messages to the event log, and for sending its last
responses."""


class SharedSession(ClientSession):
    """An MCP session (legacy protocol revisions) on this replica. Other replicas can serve this session at the same
    time.

    ``session_id`` is the id of the session, whose state is in the shared storage.

    ``peer`` sent the first message to this replica. In the replica that opens the session, ``opening`` has the
    parameters of ``initialize``, as JSON text.
    """

    def __init__(
        self,
        services: SessionServices,
        session_id: str,
        peer: Peer,
        caller: Caller,
        on_end: Callable[[ClientSession], object],
        opening: bytes = b"",
    ) -> None:
        server = services.running.server
        state = ConnectionState("server", server._vocabulary, require_initialized=server.require_initialized)
        state.new_id = services.new_id
        super().__init__(services.running, session_id, peer, caller, services.retry_interval, on_end, state)
        self._services = services
        limits = self._limits
        most, keep = max(limits.max_replay_bytes * 3 // 4, 1), to_milliseconds(limits.replay_timeout)
        owner = principal_text(peer.principal)
        self._log = StreamLog(services.replica.events, session_id, most, keep, services.keys, owner)
        """The event log of the SSE streams that respond to POSTs."""
        unknown = SessionState(opening, "", owner, new_stream_name())
        self.session_state = SharedSessionState(services, session_id, unknown, self._apply_state, self.close)
        served = cast("ServerConnection", self._connection.served)
        self._resumed_streams = ResumedStreams(services, self._log, self.close_resumed)
        self.standalone_streams = StandaloneStreams(
            services, self.session_state, served, self._outbox, self._log, self._resumed_streams
        )
        self._pending_changes = PendingChanges(services, self.session_state, served)
        self._router = SessionRouter(services, self.session_state, state)
        self._streams: set[SharedStream] = set()
        """The unfinished SSE streams to which this replica writes."""
        self._left = trio.lowlevel.ParkingLot()
        self._finished = trio.Event()
        self._shutdown_scope = trio.CancelScope()
        self._looked_at = self._touched_at = self.used_at
        self._was_reached = False
        self._is_unused = bool(opening)
        """True while the client hasn't used the session, so that other replicas don't know whether it is used."""
        self._uses = 0
        """The number of HTTP requests for which this replica is reading or writing something."""
        self._context = copy_context()

    # Lifecycle

    async def run(self) -> None:
        """Serve the session on this replica, until the session ends or this object is closed."""
        try:
            await self._connection.run()
            if self._connection.connection.lost is None:
                self._shutdown_scope.deadline = min(self._shutdown_scope.deadline, trio.current_time() + _LAST_LINES)
                with self._shutdown_scope:
                    while self._streams or self._uses:
                        await self._left.park()
        finally:
            for stream in self._streams:
                stream.scope.cancel(reason="the session has ended in this process")
            self.standalone_streams.close()
            self._outbox.close()
            self._finished.set()

    def shut_down(self, reason: str, *, drain_timeout: float | None = None, hurry: bool = False) -> None:
        """Stop serving the session on this replica when the running requests of the session are done.

        Responses to GETs end at once, so that clients reconnect to another replica.
        """
        if hurry:
            self._shutdown_scope.deadline = trio.current_time() + _HURRIED_LINES
        self.standalone_streams.end_responses()
        super().shut_down(reason, drain_timeout=drain_timeout, hurry=hurry)

    async def ended(self) -> None:
        """Wait until the session's last request on this replica has ended, and its messages are stored in the event
        log."""
        await self._finished.wait()

    # Session state

    @property
    def is_fresh(self) -> bool:
        """True if this replica can serve a request without first reading the session from the shared storage."""
        state = self._connection.state
        return self.session_state.is_fresh and (state.initialized or not state.require_initialized)

    def on_hint(self) -> None:
        """Handle a notification that says that another replica may have changed the session.

        This reads the session again or, if this replica has no unfinished work for the session, closes this object.
        """
        self.session_state.is_hinted = True
        if self._is_needed:
            self.session_state.read_soon()
        else:
            self.close("the session was changed in another process")

    def _apply_state(self, before: SessionState | None) -> None:
        """Update the connection from the session state that was just read or written. ``before`` is the session state
        that was known until then."""
        facts, state = self.session_state.current, self._connection.state
        if self.is_over:
            return
        if state.revision is None:
            state.resume(REVISIONS[facts.revision], initialize_params(facts))
        self._pending_changes.apply()
        self.standalone_streams.check_listener(facts.listener)
        # After the first read, ignore the session's cancellations: this replica runs no request of the session yet.
        if before is not None:
            known, here = {cancel.mark for cancel in before.cancels}, f"{self._services.replica.id}."
            # Skip the cancellations that this replica itself has stored, because they are for other replicas.
            for cancel in facts.cancels:
                if cancel.mark not in known and not cancel.mark.startswith(here):
                    self._cancel(cancel)

    def _cancel(self, cancel: Cancel) -> None:
        params = {"requestId": decode_value(cancel.request_id), "reason": cancel.reason}
        event = self._connection.state.receive(Notification("notifications/cancelled", params))
        self._connection.feed(event, b"", self._connection.exchange)

    # Changes by requests

    def _accept(self, posted: HttpRequest) -> None:
        write = self._pending_changes.start()
        if write is None:
            super()._accept(posted)
        else:
            self._services.start_soon(self._accept_when_written, posted, write)

    async def _accept_when_written(self, posted: HttpRequest, write: PendingChange) -> None:
        refusal = await write.outcome()
        if refusal is None:
            super()._accept(posted)
        else:
            posted.response.answer(refusal(posted.extra))

    # Messages

    def post(self, message: Message | Batch, posted: HttpRequest, *, opens: bool = False) -> None:
        """Handle a POST with a message or batch. Messages that concern requests on other replicas are forwarded to
        those replicas."""
        steps, rest = self._router.route(message, posted.body)
        if not steps:
            super().post(message, posted, opens=opens)
            if self._is_unused and not opens:
                self._is_unused = False
                if not self._pending_changes:
                    # Reading the state marks the session as used. Sessions without this mark are evicted first.
                    self.session_state.read_soon()
        else:
            self.used_at = trio.current_time()
            self._start_use(posted, self._deliver_then_post, steps, rest)

    async def _deliver_then_post(
        self, deliveries: list[Delivery], rest: Message | Batch | None, posted: HttpRequest
    ) -> None:
        if not await self._router.deliver_all(deliveries, posted):
            return
        if rest is None:
            self._accept(posted)
        else:
            super().post(rest, posted)

    def receive_message(self, body: bytes) -> bool:
        """Handle a client's message that concerns a request on this replica, but arrived at another replica.

        Returns false if this object is closed, or is being closed.
        """
        if self.is_over:
            return False
        self.used_at = trio.current_time()
        event = self._connection.state.receive(decode(body))
        self._connection.feed(event, body, self.exchange)
        return True

    def receive_unreadable(self, request_id: str, reason: str) -> bool:
        """Make a server-to-client request fail, because the client's response can't be read.

        This replica has sent the request, and the response arrived at another replica.

        Return false if this object is closed, or is being closed.
        """
        if self.is_over:
            return False
        message = Unreadable(reason, None, request_id, is_answer=True)
        self._connection.feed(self._connection.state.receive(message), b"", self.exchange)
        return True

    def fail_question(self, message: Unreadable, body: bytes) -> None:
        """Make a server-to-client request fail, because the client's response ``message`` is unreadable.

        Any replica may have sent the request.
        """
        step = self._router.delivery_for(message, body)
        if step is None:
            super().fail_question(message, body)
        else:
            self._services.start_soon(self._router.deliver_or_log, step)

    def _exchange(self, posted: HttpRequest, request: InboundRequest | None, *, opens: bool) -> SessionExchange:
        if opens:
            return InitializeExchange(self, posted, request, self._services, self.session_state)
        return SharedExchange(self, posted, request, self._services, self._pending_changes.start)

    # Streams

    def open_stream(self, exchange: SessionExchange, *, primes: bool) -> SharedStream:
        """Return a new SSE stream for the messages of ``exchange``, which handles a POST.

        A separate task creates the stream in the event log.
        """
        assert isinstance(exchange, SharedExchange), "a shared session only has shared exchanges"
        holder, request_id = new_holder(self._services.replica), exchange.request_id
        lost = partial(self._abort_exchange, exchange)
        longest = self._limits.max_message_bytes
        finished = partial(self.send_late_lines, exchange.outbox)
        stream = SharedStream(self._log, exchange.outbox, holder, request_id, lost, finished, longest, primes=primes)
        self._streams.add(stream)
        self._context.run(self._services.start_soon, self._run_stream, stream)
        return stream

    async def _run_stream(self, stream: SharedStream) -> None:
        try:
            await stream.run()
        finally:
            self._streams.discard(stream)
            self._left.unpark_all()

    async def _abort_exchange(self, exchange: SharedExchange) -> None:
        """Cancel the requests of ``exchange``, because this replica can no longer write the SSE stream for their
        responses."""
        with logged_failure("a session could not be read"):
            if not await self.session_state.read():
                return
        exchange.abort(CancelCause.LEASE, "this process can no longer store the events of this call")

    def close_resumed(self, name: str, replica: str) -> None:
        """End the response that sends the SSE stream ``name``, because the client has reconnected to ``replica``.

        The response may be on any replica.
        """
        for stream in self._streams:
            if stream.name == name:
                before, stream.response_at = stream.response_at, replica
                stream.detach()
                if before not in ("", self._services.replica.id, replica):
                    self._resumed_streams.notify_resumed(before, name, replica)
        if replica != self._services.replica.id:
            self._resumed_streams.close_stream(name)

    @property
    def is_listened_to(self) -> bool:
        """True while the client receives the session's standalone stream, as the response to a GET request.

        The response may be here or, as far as is known, on another replica.
        """
        return not self.is_over and (self.standalone_streams.is_open or self.standalone_streams.is_elsewhere)

    # Timeouts

    @property
    def _is_reached(self) -> bool:
        return (
            any(stream.is_open for stream in self._streams)
            or any(post.is_open for post in self.posts)
            or self.standalone_streams.is_reached
        )

    @property
    def _is_needed(self) -> bool:
        """True while this replica has an unfinished request, an open SSE stream, or an unfinished write of the session
        state."""
        state = self._connection.state
        has_requests = state.inbound or state.outbound or self.posts or self._streams
        return bool(has_requests or self._pending_changes or self._uses) or self.standalone_streams.is_needed

    def _start_use(self, posted: HttpRequest, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Run ``function`` in a new task to respond to the HTTP request ``posted``.

        This object stays open until the function returns.
        """
        self._uses += 1
        self._services.start_soon(self._run_used, posted, function, *args)

    async def _run_used(self, posted: HttpRequest, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        try:
            await function(*args, posted)
        except Exception:
            posted.fail()
        finally:
            self._uses -= 1
            self._left.unpark_all()

    def expire(self, now: float) -> None:
        """Check timeouts of the session. Called at intervals while the client is connected or has running requests.

        Closes this object if the session has ended, or if this replica no longer needs it.
        """
        self.standalone_streams.expire(now)
        if not self.session_state.is_open or self.is_over:
            return
        timeout = self._limits.session_timeout
        was_reached, self._was_reached = self._was_reached, self._is_reached
        if (was_reached and not self._was_reached) or (self.session_state.is_hinted and self._is_needed):
            # Read the session again if the client has just disconnected, or if the last read has failed.
            self.session_state.read_soon()
        if self._was_reached:
            self.used_at = now
            longest = FRESH_SECONDS if self._connection.state.inbound else _LONGEST_LOOK
            if now - max(self.session_state.read_at, self._looked_at) >= min(timeout / 4, longest):
                self._looked_at = now
                self.session_state.read_soon()
        elif not self._is_needed:
            if now - self.used_at >= min(_IDLE, timeout):
                self.close("the session is unused in this process")
        elif now - self._looked_at >= min(timeout / 30, _LONGEST_LOOK):
            self._looked_at = now
            self._services.start_soon(self.session_state.check_exists)
        if self._streams and now - self._touched_at >= self._limits.replay_timeout / 3:
            self._touched_at = now
            self._services.start_soon(self._log.touch, next(iter(self._streams)).name)

    def send_keep_alive(self) -> None:
        """Send keep-alive comments on the SSE streams that were silent since the last call. See
        `PostExchange.send_keep_alive`."""
        super().send_keep_alive()
        self.standalone_streams.send_keep_alive()

    # GET and DELETE

    def get(self, asked: HttpRequest) -> None:
        """Respond to a GET with an SSE stream of the session. See `StandaloneStreams.get`."""
        self.used_at = trio.current_time()
        self._start_use(asked, self.standalone_streams.get)

    def delete(self, asked: HttpRequest) -> None:
        """Respond to a DELETE: end the session for all replicas."""
        self._start_use(asked, self._delete)

    async def _delete(self, asked: HttpRequest) -> None:
        try:
            await self.session_state.delete()
        except OSError as failed:
            logger.debug("a session could not be ended: %s", failed)
            asked.response.answer(unreachable(asked.extra))
            return
        await forget_events(self._services.replica.events, self.id)
        asked.response.answer(empty(HTTPStatus.NO_CONTENT, asked.extra))


def principal_text(principal: PrincipalId | None) -> str:
    """Return a principal as the text that is stored in the session state. Return an empty text for an anonymous
    caller."""
    return "" if principal is None else principal.to_json()
