"""SharedExchange: handles a POST in a legacy session that every replica can serve.

`InitializeExchange` is the exchange of the POST that opens such a session. Changes of the session that a request causes
are written for all replicas before the request is answered; `PendingChanges` are the unfinished writes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

import attrs
import trio

from ...jsonrpc.codec import encode_value
from ...jsonrpc.errors import TOO_BUSY
from ...jsonrpc.messages import ErrorResponse
from ...runtime.cancellation import CancelCause
from ...runtime.replies import error_line
from ...server.connection import ServerConnection
from ...serving.http.exchanges import HttpRequest
from ...serving.http.responses import busy, invalid
from ...serving.http.session_exchange import ClientSession, SessionExchange
from ...stores.task_store import StoreFull
from ...transports.http.application import Answer
from ..messenger import logged_failure
from .event_log import forget_events, lost_line
from .shared_state import SessionEnded, SessionServices, SharedSessionState, session_ended, unreachable
from .state import Change, SessionState, SessionStateTooLong, change_log_level, change_subscriptions, mark_initialized

if TYPE_CHECKING:
    from ...runtime.requests.scope import RequestScope
    from ...state.requests import InboundRequest


logger = logging.getLogger("trio_mcp")

_NOT_OPENED_TEXT: Final = "the session was not opened"

Refusal: TypeAlias = Callable[[bytes], Answer]
"""A function that makes the error response to a request, with additional headers."""


class PendingChange:
    """A change of the session state that is being written to the shared storage."""

    def __init__(self, change: Change) -> None:
        self.change = change
        self._done = trio.Event()
        self._refusal: Refusal | None = None

    def settle(self, refusal: Refusal | None) -> None:
        """Record whether this change of the session state was stored in the shared storage.

        ``refusal`` is `None` if the change is stored; otherwise it is a function that makes the error response for
        requests that depend on the change.
        """
        self._refusal = refusal
        self._done.set()

    async def outcome(self) -> Refusal | None:
        """Wait until the change is stored, and return `None`. If it can't be stored, return a function that makes the
        error response."""
        await self._done.wait()
        return self._refusal


class PendingChanges:
    """The changes of the session state that the client has requested on this replica, and that aren't stored yet.

    Such changes are a log level, subscriptions, or the end of initialization. ``served`` is the connection that this
    replica serves.
    """

    def __init__(self, services: SessionServices, session_state: SharedSessionState, served: ServerConnection) -> None:
        self._services = services
        self._session_state = session_state
        self._served = served
        self._expected = session_state.current
        """The session state, with the unfinished changes applied."""
        self._writes: list[PendingChange] = []
        """The unfinished writes, oldest first."""

    def __bool__(self) -> bool:
        """True while a change of the session state is being written to the shared storage."""
        return bool(self._writes)

    def apply(self) -> None:
        """Set the connection's state to the stored session state, plus the changes that are still being written to the
        storage."""
        told, state = self._session_state.current, self._served.state
        for write in self._writes:
            told = write.change(told)
        self._expected = told
        state.initialized = told.is_initialized
        state.set_log_level(told.log_level)
        if state.subscriptions != set(told.subscriptions):
            self._served.subscriptions.adopt(told.subscriptions)

    def start(self) -> PendingChange | None:
        """Start to write the connection's changes to the shared storage. Return the latest unfinished write, or `None`
        if all changes are stored."""
        state, told = self._served.state, self._expected
        changes = list[Change]()
        if state.initialized and not told.is_initialized:
            changes.append(mark_initialized)
        if state.log_level != told.log_level:
            changes.append(change_log_level(state.log_level))
        if len(state.subscriptions) != len(told.subscriptions) or state.subscriptions.difference(told.subscriptions):
            before = frozenset(told.subscriptions)
            changes.append(change_subscriptions(state.subscriptions - before, before - state.subscriptions))
        if not changes:
            return self._writes[-1] if self._writes else None
        write = PendingChange(partial(_apply_all, changes))
        self._expected = write.change(told)
        self._writes.append(write)
        self._services.start_soon(self._write, write)
        return write

    async def _write(self, write: PendingChange) -> None:
        refusal: Refusal | None = unreachable
        try:
            await self._session_state.change(write.change)
            refusal = None
        except SessionEnded:
            refusal = session_ended
        except SessionStateTooLong:
            refusal = partial(busy, "Too busy: too many subscriptions")
        except OSError as error:
            logger.debug("a session could not be changed: %s", error)
        finally:
            self._writes.remove(write)
            self.apply()
            write.settle(refusal)


def _apply_all(changes: list[Change], state: SessionState) -> SessionState:
    for change in changes:
        state = change(state)
    return state


class SharedExchange(SessionExchange):
    """One POST request in the MCP session ``session``. See `Exchange`.

    ``start_write`` starts to write the session's changes to the shared storage: see `PendingChanges.start`.
    """

    __slots__ = ("_requests", "_services", "_start_write")

    def __init__(
        self,
        session: ClientSession,
        posted: HttpRequest,
        request: InboundRequest | None,
        services: SessionServices,
        start_write: Callable[[], PendingChange | None],
    ) -> None:
        super().__init__(session, posted, request)
        self._services = services
        self._start_write = start_write
        self._requests: tuple[InboundRequest, ...] = ()
        """The requests of the POST that were accepted. A batch can have several requests."""

    @property
    def request_id(self) -> bytes:
        """The id of the POST's request, as JSON text. For a batch, this is an array of ids."""
        ids = [request.id for request in self._requests]
        return encode_value(ids if self.request is None else self.request.id)

    def hold(self, request: InboundRequest, held: RequestScope) -> None:
        super().hold(request, held)
        self._requests = (*self._requests, request)

    def abort(self, cause: CancelCause, reason: str) -> None:
        """Cancel all requests of this POST."""
        for request in self._requests:
            held = self.find(request)
            if held is not None:
                held.abort(cause, reason)

    # Replies

    def reply_at_once(self, line: bytes | None) -> None:
        write = self._start_write()
        if write is None:
            super().reply_at_once(line)
        else:
            self._services.start_soon(self._reply_when_written, line, write)

    async def _reply_when_written(self, line: bytes | None, write: PendingChange) -> None:
        refusal = await write.outcome()
        if refusal is None:
            super().reply_at_once(line)
        else:
            self.refuse_with(refusal)

    def refuse_with(self, refusal: Refusal) -> None:
        """Send the error response that the function ``refusal`` returns, because the request can't be served now."""
        if self.is_stream:
            answer = refusal(b"")
            request_id = None if self.request is None else self.request.id
            words = answer.body.decode(errors="replace")[:1000]
            self.reply(error_line(ErrorResponse(request_id, TOO_BUSY, words)))
        elif not self.is_over:
            self.close()
            self.response.answer(refusal(self.extra))

    def cancelled(self, request: InboundRequest, cause: CancelCause) -> None:
        if cause is CancelCause.SHUTDOWN and self.is_stream and not self.is_over and request is self.request:
            # End the SSE stream with an error, so that a client that resumes it on another replica stops waiting.
            self.outbox.put(lost_line(self.request_id))
        super().cancelled(request, cause)


class InitializeExchange(SharedExchange):
    """The POST request with ``initialize``, which opens an MCP session on all replicas. See `Exchange`.

    If opening fails, or the client doesn't get the session id, the session ends at once.
    """

    __slots__ = ("_session_state",)

    may_prime: ClassVar[bool] = False

    def __init__(
        self,
        session: ClientSession,
        posted: HttpRequest,
        request: InboundRequest | None,
        services: SessionServices,
        session_state: SharedSessionState,
    ) -> None:
        super().__init__(session, posted, request, services, lambda: None)
        self._session_state = session_state

    def commit(self) -> None:
        """Do nothing: the response doesn't begin before the session is open, because its headers contain the session
        id."""

    def reply_at_once(self, line: bytes | None) -> None:
        if line is not None and self.request is not None and self.request.error is None:
            self._services.start_soon(self._reply_when_open, line)
        else:
            super().reply_at_once(line)
            self._session.close(_NOT_OPENED_TEXT)

    def refuse(self, code: int, line: bytes) -> None:
        super().refuse(code, line)
        self._session.close(_NOT_OPENED_TEXT)

    async def _reply_when_open(self, line: bytes) -> None:
        refusal = None if self.response.is_gone else await self._open()
        if refusal is not None:
            self.refuse_with(refusal)
            self._session.close(_NOT_OPENED_TEXT)
        elif self.response.is_gone:
            self.close()
            await self._delete()
        else:
            self.extra += b"Mcp-Session-Id: %b\r\n" % self._session.id.encode()
            self.answer(HTTPStatus.OK, line)

    async def _open(self) -> Refusal | None:
        """Open the MCP session for all replicas.

        If the session can't be opened, return a function that makes the error response.
        """
        revision = self.state.revision
        assert revision is not None, "initialize has settled it"
        facts = attrs.evolve(self._session_state.current, revision=revision.name, cursor=self._services.changes.cursor)
        try:
            ended = await self._session_state.open(facts, self._session.caller)
        except StoreFull:
            return partial(busy, "Too busy: too many sessions; try again later")
        except SessionStateTooLong:
            return partial(invalid, HTTPStatus.BAD_REQUEST, "the parameters of initialize are too long")
        except OSError as failed:
            logger.debug("a session could not be opened: %s", failed)
            return unreachable
        if ended is not None:
            self._services.start_soon(forget_events, self._services.replica.events, ended)
        return None

    async def _delete(self) -> None:
        with logged_failure("a session could not be ended"):
            if self._session_state.is_open:
                await self._session_state.delete()
        self._session.close(_NOT_OPENED_TEXT)
