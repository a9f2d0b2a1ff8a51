"""SharedSession is a replica's view of a legacy session that all replicas serve: the facts of the session, as they were
last read, a connection that goes on from these facts, and the requests that run here.

Nothing is refused on old facts. Two things hold within one replica alone: the refusal of an id that is in use twice at
a time (a cancel reaches both requests), and the order of two messages of a client that does not wait for the answer to
the first.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import msgspec
import trio

from ...concurrency.fair_share import Caller
from ...jsonrpc.codec import decode, decode_value, encode_value
from ...jsonrpc.errors import NotSerializable
from ...jsonrpc.messages import Batch, ErrorResponse, Message, Notification, Response, Unreadable, is_request_id
from ...protocol.converters import structure_params
from ...protocol.revisions import REVISIONS
from ...protocol.types.lifecycle import InitializeParams
from ...runtime.cancellation import CancelCause
from ...runtime.peer import Peer, PrincipalId
from ...server.connection import ServerConnection
from ...state.connection import ConnectionState
from ...stores.letters import LetterRefused, ReplicaDead
from ...stores.task_store import StoreFull
from .entrance import busy, empty, invalid, unavailable
from .exchanges import HttpRequest
from .session_exchange import ClientSession, SessionExchange
from .session_facts import (
    MAX_CANCELLED_ID,
    Cancel,
    Change,
    SessionFacts,
    cancelled,
    initialized,
    new_cancel_mark,
    subscribed,
    with_level,
)
from .shared_exchange import Refusal, SharedExchange, SharedOpening, Write
from .shared_facts import ENDED, UNREACHABLE, FactsTooLong, SessionEnded, SharedFacts, SharedPlace, in_milliseconds
from .shared_listening import SharedListening
from .shared_streams import SharedStream, StreamLog, new_holder, new_stream_name

if TYPE_CHECKING:
    from ...state.requests import InboundRequest

logger = logging.getLogger("trio_mcp")

MESSAGE_LETTER: Final = "session.message"
"""Kind of the letters with a message for a request of the replica that reads it."""
UNREADABLE_LETTER: Final = "session.unreadable"
"""Kind of the letters that say that the answer to a request cannot be read."""
_LETTER_PATIENCE: Final = 5.0
_IDLE: Final = 60.0
"""Seconds after which a view goes that nobody uses."""
_LONGEST_LOOK: Final = 30.0
"""Seconds between two looks at a session whose client has a response open, or has left requests here, at most."""
_LAST_LINES: Final = 2.0
"""Seconds for which the last lines of a replica that ends may take on their way to the log."""

Step: TypeAlias = Callable[[], Awaitable[object]]


class SharedSession(ClientSession):
    """The view of the session ``session_id``. ``peer`` came first; ``opening`` has the parameters of ``initialize``, as
    JSON text, in the replica that opens the session."""

    def __init__(
        self,
        place: SharedPlace,
        session_id: str,
        peer: Peer,
        caller: Caller,
        on_end: Callable[[ClientSession], None],
        opening: bytes = b"",
    ) -> None:
        state = ConnectionState("server", require_initialized=place.running.server.require_initialized)
        state.new_id = place.new_id
        super().__init__(place.running, session_id, peer, caller, place.retry_interval, on_end, state)
        self._place = place
        limits = self._limits
        most, keep = max(limits.max_replay_bytes * 3 // 4, 1), in_milliseconds(limits.replay_timeout)
        self._log = StreamLog(place.replica.events, session_id, most, keep)
        """The log of the streams that answer requests."""
        unknown = SessionFacts(opening, "", principal_text(peer.principal), new_stream_name())
        self.facts = SharedFacts(place, session_id, unknown, self._adopt, self.end)
        served = cast("ServerConnection", self._connection.served)
        self._subscriptions = served.subscriptions
        self.listening = SharedListening(place, session_id, self.facts, served, self._outbox, self._log, self.resumed)
        self._told = unknown
        """The facts, with the changes that are on their way."""
        self._writes: list[Write] = []
        """The writes that are on their way, oldest first."""
        self._streams: set[SharedStream] = set()
        """The streams that are not finished."""
        self._left = trio.lowlevel.ParkingLot()
        self._over = trio.Event()
        self._looked_at = self._touched_at = self.used_at
        self._was_reached = False
        self._uses = 0
        """Number of the requests that are being read or written for."""
        self._context = copy_context()

    # Life

    async def run(self) -> None:
        """Serve until the session ends, or nobody uses it here."""
        try:
            await self._connection.run()
            if self._connection.connection.lost is None:
                with trio.move_on_after(_LAST_LINES):
                    while self._streams:
                        await self._left.park()
        finally:
            for stream in self._streams:
                stream.scope.cancel(reason="the session is over in this process")
            self.listening.close()
            self._outbox.let_go()
            self._over.set()

    async def ended(self) -> None:
        """Wait until the last request is over, and its lines are in the log."""
        await self._over.wait()

    # Facts

    @property
    def is_fresh(self) -> bool:
        """True while nothing needs to be read for a request."""
        state = self._connection.state
        return self.facts.are_fresh and (state.initialized or not state.require_initialized)

    @property
    def is_unused(self) -> bool:
        """True while the client, as far as is known, has not used the session that was opened here."""
        return self.facts.are_kept and not (self.is_confirmed or self.facts.now.is_initialized)

    def note_hint(self) -> None:
        """Note that the facts may have changed: read them, or end a view that nobody uses."""
        self.facts.is_hinted = True
        if self._is_needed:
            self.facts.read_soon()
        else:
            self.end("the session was changed in another process")

    def _adopt(self, before: SessionFacts | None) -> None:
        """Go on from the facts that are known now."""
        facts, state = self.facts.now, self._connection.state
        if self.is_over:
            return
        if state.revision is None:
            revision = REVISIONS[facts.revision]
            opening = structure_params(decode_value(facts.opening), InitializeParams, revision)
            state.resume(revision, opening)
        self._show()
        self.listening.check(facts.listener)
        if before is not None:  # what was cancelled before this view was there does not run here
            known = {cancel.mark for cancel in before.cancels}
            for cancel in facts.cancels:
                if cancel.mark not in known:
                    self._cancel(cancel)

    def _show(self) -> None:
        """Have the connection go by the facts, and by the changes that are on their way."""
        told, state = self.facts.now, self._connection.state
        for write in self._writes:
            told = write.change(told)
        self._told = told
        state.initialized = told.is_initialized
        state.set_log_level(told.log_level)
        if state.subscriptions != set(told.subscriptions):
            self._subscriptions.adopt(told.subscriptions)

    def _cancel(self, cancel: Cancel) -> None:
        params = {"requestId": decode_value(cancel.request_id), "reason": cancel.reason}
        event = self._connection.state.receive(Notification("notifications/cancelled", params))
        self._connection.feed(event, b"", self._connection.exchange)

    async def _open(self) -> Refusal | None:
        """Open the session for all replicas; return the refusal where that is impossible."""
        revision = self._connection.state.revision
        assert revision is not None, "initialize has settled it"
        unknown = self.facts.now
        place = self._place.changes.place
        facts = SessionFacts(unknown.opening, revision.name, unknown.principal, unknown.own_stream, place=place)
        try:
            try:
                await self.facts.open(facts)
            except StoreFull:
                if not await self._place.make_room(self.caller):
                    raise
                await self.facts.open(facts)
        except StoreFull:
            return partial(busy, "Too busy: too many sessions; try again later")
        except FactsTooLong:
            return partial(invalid, HTTPStatus.BAD_REQUEST, "the client says too much of itself in initialize")
        except OSError as error:
            logger.debug("a session could not be opened: %s", error)
            return partial(unavailable, UNREACHABLE)
        return None

    async def _delete_unknown(self) -> None:
        """End the session, whose client does not know it."""
        try:
            if self.facts.are_kept:
                await self.facts.end()
        except OSError as error:
            logger.debug("a session could not be ended: %s", error)
        self.end("the session was not opened")

    # Changes by requests

    def _unwritten(self) -> Write | None:
        """Return the write of all that the connection has changed and other replicas do not know; `None`: nothing."""
        state, told = self._connection.state, self._told
        changes = list[Change]()
        if state.initialized and not told.is_initialized:
            changes.append(initialized)
        if state.log_level != told.log_level:
            changes.append(with_level(state.log_level))
        if len(state.subscriptions) != len(told.subscriptions) or state.subscriptions.difference(told.subscriptions):
            before = frozenset(told.subscriptions)
            changes.append(subscribed(state.subscriptions - before, before - state.subscriptions))
        if not changes:
            return self._writes[-1] if self._writes else None
        write = Write(partial(_all, changes))
        self._told = write.change(told)
        self._writes.append(write)
        self._place.start(self._write, write)
        return write

    async def _write(self, write: Write) -> None:
        refusal: Refusal | None = partial(unavailable, UNREACHABLE)
        try:
            await self.facts.change(write.change)
            refusal = None
        except SessionEnded:
            refusal = partial(invalid, HTTPStatus.NOT_FOUND, ENDED)
        except FactsTooLong:
            refusal = partial(busy, "Too busy: too many subscriptions")
        except OSError as error:
            logger.debug("a session could not be changed: %s", error)
        finally:
            self._writes.remove(write)
            self._show()
            write.end(refusal)

    def _accept(self, posted: HttpRequest) -> None:
        write = self._unwritten()
        if write is None:
            super()._accept(posted)
        else:
            self._place.start(self._accept_when_written, posted, write)

    async def _accept_when_written(self, posted: HttpRequest, write: Write) -> None:
        refusal = await write.outcome()
        if refusal is None:
            super()._accept(posted)
        else:
            posted.response.answer(refusal(posted.extra))

    # Messages

    def post(self, message: Message | Batch, posted: HttpRequest, *, opens: bool = False) -> None:
        """Take a message, or a batch, that was ``posted``. What is about requests of other replicas goes there."""
        if isinstance(message, Batch):
            steps, rest = self._sorted(message, posted.body)
        else:
            step = self._elsewhere(message, posted.body)
            steps, rest = ([] if step is None else [step]), message
        if not steps:
            super().post(message, posted, opens=opens)
        else:
            self.used_at = trio.current_time()
            only_steps = not isinstance(rest, Batch) or not rest.members
            self._use(self._post_elsewhere, steps, None if only_steps else rest, posted)

    def _sorted(self, batch: Batch, body: bytes) -> tuple[list[Step], Batch]:
        """Return what is to be done for other replicas, and the rest of the batch."""
        bodies = msgspec.json.decode(body, type=list[msgspec.Raw])
        steps = [self._elsewhere(member, bytes(raw)) for member, raw in zip(batch.members, bodies, strict=True)]
        rest = [member for member, step in zip(batch.members, steps, strict=True) if step is None]
        return [step for step in steps if step is not None], Batch(tuple(rest))

    def _elsewhere(self, message: Message | Unreadable, body: bytes) -> Step | None:
        """Return what is to be done for other replicas; `None`: nothing."""
        named: object = None
        match message:
            case Response() | ErrorResponse():
                named = message.id
            case Notification("notifications/progress"):
                named = _params(message).get("progressToken")
            case Notification("notifications/cancelled"):
                return self._cancel_elsewhere(_params(message))
            case Unreadable():
                if owner := self._place.owner_of(message.settles):
                    content = msgspec.msgpack.encode((self.id, message.settles, message.reason))
                    return partial(self._send, owner, UNREADABLE_LETTER, content)
            case _:
                pass
        owner = self._place.owner_of(named)
        if not owner:
            return None
        return partial(self._send, owner, MESSAGE_LETTER, msgspec.msgpack.encode((self.id, body)))

    def _cancel_elsewhere(self, params: dict[str, Any]) -> Step | None:
        """Return what tells other replicas of a cancel; `None` for a request that runs here, and for what is no id."""
        request_id, reason = params.get("requestId"), params.get("reason")
        if not is_request_id(request_id) or self._connection.state.knows(request_id):
            return None
        try:
            if len(encode_value(request_id)) > MAX_CANCELLED_ID:
                return None
        except NotSerializable:
            return None
        told = reason if isinstance(reason, str) else None
        return partial(self.facts.change, cancelled(new_cancel_mark(), request_id, told))

    def _send(self, owner: str, kind: str, content: bytes) -> Awaitable[bytes]:
        return self._place.letters.send(owner, kind, content, patience=_LETTER_PATIENCE)

    async def _post_elsewhere(self, steps: list[Step], rest: Batch | None, posted: HttpRequest) -> None:
        response, extra = posted.response, posted.extra
        try:
            for step in steps:
                await step()
        except (ReplicaDead, LetterRefused):
            reason = "the process that ran the request has ended, and takes no answer any more"
            response.answer(invalid(HTTPStatus.BAD_REQUEST, reason, extra))
        except SessionEnded:
            response.answer(invalid(HTTPStatus.NOT_FOUND, ENDED, extra))
        except (OSError, FactsTooLong) as error:
            logger.debug("a message could not be passed on: %s", error)
            response.answer(unavailable(UNREACHABLE, extra))
        else:
            if rest is None:
                response.answer(empty(HTTPStatus.ACCEPTED, extra))
            else:
                super().post(rest, posted)

    def take_message(self, body: bytes) -> None:
        """Take a message about a request of this replica, which came to another one."""
        self.used_at = trio.current_time()
        event = self._connection.state.receive(decode(body))
        self._connection.feed(event, body, self._connection.exchange)

    def take_unreadable(self, request_id: str, reason: str) -> None:
        """Fail a request of this replica, whose answer came to another one and cannot be read."""
        message = Unreadable(reason, None, request_id, is_answer=True)
        self._connection.feed(self._connection.state.receive(message), b"", self._connection.exchange)

    def fail_question(self, message: Unreadable, body: bytes) -> None:
        """Fail the request of ours that ``message`` was meant to answer, here or elsewhere."""
        step = self._elsewhere(message, body)
        if step is None:
            super().fail_question(message, body)
        else:
            self._place.start(self._try, step)

    async def _try(self, step: Step) -> None:
        try:
            await step()
        except (ReplicaDead, LetterRefused, OSError) as error:
            logger.debug("an answer that cannot be read could not be told of: %s", error)

    def _exchange(self, posted: HttpRequest, request: InboundRequest | None, *, opens: bool) -> SessionExchange:
        connection, high_water = self._connection.exchange, self._limits.high_water
        start = self._place.start
        if opens:
            return SharedOpening(self, connection, posted, request, high_water, start, self._open, self._delete_unknown)
        return SharedExchange(self, connection, posted, request, high_water, self._unwritten, start)

    # Streams

    def open_stream(self, exchange: SessionExchange, *, primes: bool) -> SharedStream:
        """Return a stream for the lines of ``exchange``, which begins in a task of its own."""
        assert isinstance(exchange, SharedExchange), "this session has no others"
        holder, request_id = new_holder(self._place.replica), exchange.request_id
        lost = partial(self._lost, exchange)
        longest = self._limits.max_message_bytes
        finished = partial(self.send_late_lines, exchange.outbox)
        stream = SharedStream(self._log, exchange.outbox, holder, request_id, lost, finished, longest, primes=primes)
        self._streams.add(stream)
        self._context.run(self._place.start, self._run_stream, stream)
        return stream

    async def _run_stream(self, stream: SharedStream) -> None:
        try:
            await stream.run()
        finally:
            self._streams.discard(stream)
            self._left.unpark_all()

    async def _lost(self, exchange: SharedExchange) -> None:
        """Cancel the requests of a stream with which this replica may not go on."""
        try:
            if not await self.facts.read():
                return
        except OSError as error:
            logger.debug("a session could not be read: %s", error)
        exchange.abort(CancelCause.LEASE, "the events of this call cannot be kept by this process any more")

    def resumed(self, name: str, replica: str) -> None:
        """End the response of the stream ``name``, for which the client has come back to ``replica``, wherever that
        response is."""
        for stream in self._streams:
            if stream.name == name:
                before, stream.response_at = stream.response_at, replica
                stream.keep()
                if before not in ("", self._place.replica.id, replica):
                    self.listening.tell_resumed(before, name, replica)
        if replica != self._place.replica.id:
            self.listening.leave(name)

    @property
    def is_listened_to(self) -> bool:
        """True while a response takes the lines that belong to no request, here or, as far as is known, elsewhere."""
        return self.listening.is_open or self.listening.is_elsewhere

    # Time

    @property
    def _is_reached(self) -> bool:
        return (
            any(stream.is_open for stream in self._streams)
            or any(post.is_open for post in self.posts)
            or self.listening.is_reached
        )

    @property
    def _is_needed(self) -> bool:
        """True while anything runs here, or waits."""
        state = self._connection.state
        has_requests = state.inbound or state.outbound or self.posts or self._streams
        return bool(has_requests or self._writes or self._uses) or self.listening.is_needed

    def _use(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Run ``function``, and keep the view until its end."""
        self._uses += 1
        self._place.start(self._used, function, *args)

    async def _used(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        try:
            await function(*args)
        finally:
            self._uses -= 1

    def expire(self, now: float) -> None:
        """Look at the session now and then while its client is here, or has left requests here; end the view where the
        session has ended, or nobody uses it here."""
        self.listening.expire(now)
        if not self.facts.are_kept or self.is_over:
            return
        timeout = self._limits.session_timeout
        was_reached, self._was_reached = self._was_reached, self._is_reached
        if was_reached and not self._was_reached:  # the time of the session begins now
            self.facts.read_soon()
        if self._was_reached:
            self.used_at = now
            if now - max(self.facts.read_at, self._looked_at) >= min(timeout / 4, _LONGEST_LOOK):
                self._looked_at = now
                self.facts.read_soon()
        elif not self._is_needed:
            if now - self.used_at >= min(_IDLE, timeout):
                self.end("nobody uses the session in this process")
        elif now - self._looked_at >= min(timeout / 30, _LONGEST_LOOK):
            self._looked_at = now
            self._place.start(self.facts.look)
        if self._streams and now - self._touched_at >= self._limits.replay_timeout / 3:
            self._touched_at = now
            self._place.start(self._touch, next(iter(self._streams)).name)

    async def _touch(self, name: str) -> None:
        try:
            await self._log.touch(name)
        except OSError as error:
            logger.debug("the events of a session could not be kept: %s", error)

    def send_keep_alive(self) -> None:
        """Have streams that were silent send comments: see `PostExchange.send_keep_alive`."""
        for post in tuple(self.posts):
            post.send_keep_alive()
        self.listening.send_keep_alive()

    # GET and DELETE

    def get(self, asked: HttpRequest) -> None:
        """Answer a GET. See `SharedListening.get`."""
        self.used_at = trio.current_time()
        self._use(self.listening.get, asked)

    def delete(self, asked: HttpRequest) -> None:
        """Answer a DELETE: end the session for all replicas."""
        self._use(self._delete, asked)

    async def _delete(self, asked: HttpRequest) -> None:
        try:
            await self.facts.end()
        except OSError as error:
            logger.debug("a session could not be ended: %s", error)
            asked.response.answer(unavailable(UNREACHABLE, asked.extra))
            return
        try:
            await self._log.forget()
            await self.listening.own_log.forget()
        except OSError as error:  # they go by themselves, later
            logger.debug("the events of a session could not be forgotten: %s", error)
        asked.response.answer(empty(HTTPStatus.NO_CONTENT, asked.extra))


def principal_text(principal: PrincipalId | None) -> str:
    """Return a principal as it stands in facts."""
    return "" if principal is None else principal.to_json()


def _params(message: Notification) -> dict[str, Any]:
    params: Any = message.params
    return cast("dict[str, Any]", params) if isinstance(params, dict) else {}


def _all(changes: list[Change], facts: SessionFacts) -> SessionFacts:
    for change in changes:
        facts = change(facts)
    return facts
