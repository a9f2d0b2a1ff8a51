"""SharedSessionTable: the legacy sessions that this replica serves now, by session id. Any replica can serve them.

A view is created when a request arrives, and removed when it is no longer used.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable
from typing import Final, TypeVar

import attrs
import msgspec
import trio

from ...jsonrpc.codec import encode_value
from ...jsonrpc.messages import Request, Unreadable
from ...protocol.fields import as_object
from ...runtime.peer import PrincipalId
from ...serving.http.exchanges import HttpRequest
from ...serving.http.responses import unavailable
from ...serving.http.session import FleetSessions
from ...stores.shared import StoredSession
from ...stores.task_store import HintsLost
from ..messenger import ReplicaMessage, logged_failure
from .event_log import RESUMED_MESSAGE
from .routing import FORWARDED_MESSAGE, UNREADABLE_MESSAGE, forward_unreadable
from .session import SharedSession, principal_text
from .shared_state import SessionServices, to_milliseconds, unreachable
from .standalone_streams import LINES_MESSAGE
from .state import SessionState, SessionStateUnreadable

logger = logging.getLogger("trio_mcp")

_ID_BYTES: Final = 16
"""128 random bits, which can't be guessed; written as visible ASCII."""
_LONGEST_ID: Final = 100
_NOT_HERE: Final = "this replica does not serve the session"


class _SessionMessage(msgspec.Struct, frozen=True, array_like=True):
    """A message between replicas that concerns a session. Extra fields at the end, which a later version has written,
    are ignored."""

    session_id: str


M = TypeVar("M", bound=_SessionMessage)


class _ForwardedMessage(_SessionMessage, frozen=True):
    body: bytes


class _UnreadableMessage(_SessionMessage, frozen=True):
    request_id: str
    reason: str


class _StandaloneLinesMessage(_SessionMessage, frozen=True):
    lines: bytes


class _ResumedMessage(_SessionMessage, frozen=True):
    stream: str
    replica: str


class _SessionRead:
    """An MCP session that is being read from the shared storage, so that this replica can serve it."""

    def __init__(self) -> None:
        self.readers = 0
        self.is_hinted = False


class SharedSessionTable(FleetSessions[SharedSession]):
    """The MCP sessions of one HTTP endpoint. ``services`` has the objects that all sessions of the replica use."""

    def __init__(self, services: SessionServices) -> None:
        super().__init__(services.nursery)
        self._services = services
        self._replica = services.replica
        self._idle = to_milliseconds(services.running.limits.session_timeout)
        self._readings: dict[str, _SessionRead] = {}
        self._poll_schedule = 0
        """The number of requests whose session is being looked up."""
        self._looked_up = trio.lowlevel.ParkingLot()
        self._drained_at = math.inf
        """The time at which the shutdown's drain ends; infinite before the drain begins."""
        self._ends_for = ""
        """The reason why the replica ends; empty while the replica isn't ending."""
        self._is_watching = trio.Event()
        self._register(FORWARDED_MESSAGE, _ForwardedMessage, lambda view, sent: view.receive_message(sent.body))
        self._register(
            UNREADABLE_MESSAGE,
            _UnreadableMessage,
            lambda view, sent: view.receive_unreadable(sent.request_id, sent.reason),
        )
        self._register(
            LINES_MESSAGE, _StandaloneLinesMessage, lambda view, sent: view.standalone_streams.put_lines(sent.lines)
        )
        services.sealed_messenger.register(RESUMED_MESSAGE, _ResumedMessage, self._read_resumed)
        self._nursery.start_soon(self._watch_sessions)
        self._nursery.start_soon(services.notify_watchers)

    # Views

    def find(self, session_id: str, principal: PrincipalId | None) -> SharedSession | None:
        """Return the session with this id if this replica can serve it without reading the shared storage.

        Otherwise return `None`: use `look_up` then.
        """
        view = self._sessions.get(session_id)
        return view if view is not None and view.is_fresh and view.principal == principal and not view.is_over else None

    def look_up(self, session_id: str, posted: HttpRequest, on_found: Callable[[SharedSession | None], None]) -> None:
        """Read the session with this id from the shared storage, and call ``on_found`` with its `SharedSession`.

        Calls it with `None` if there is no such session for this principal (2025-11-25 security best practices, Session
        Hijacking). If the shared storage is unavailable, ``posted`` is answered instead.
        """
        self._services.start_soon(self._look_up, session_id, posted, on_found)

    async def _look_up(
        self, session_id: str, posted: HttpRequest, on_found: Callable[[SharedSession | None], None]
    ) -> None:
        self._poll_schedule += 1
        try:
            on_found(await self._view(session_id, posted))
        except OSError as failed:
            logger.debug("a session could not be read: %s", failed)
            is_unreadable, extra = isinstance(failed, SessionStateUnreadable), posted.extra
            posted.response.answer(unavailable(str(failed), extra) if is_unreadable else unreachable(extra))
        except Exception:
            posted.fail()
        finally:
            self._poll_schedule -= 1
            self._looked_up.unpark_all()

    async def _view(self, session_id: str, posted: HttpRequest) -> SharedSession | None:
        await self._is_watching.wait()
        view = self._sessions.get(session_id)
        if view is not None and not view.is_over:
            if view.principal != posted.principal or not await view.session_state.read():
                return None
            if not view.is_over:
                return view
        return await self._create_view(session_id, posted) if len(session_id) <= _LONGEST_ID else None

    async def _create_view(self, session_id: str, posted: HttpRequest) -> SharedSession | None:
        """Read the session from the shared storage, and return its `SharedSession` on this replica.

        Another task may have created that object meanwhile.
        """
        reading = self._readings.setdefault(session_id, _SessionRead())
        reading.readers += 1
        try:
            stored = await self._replica.sessions.read(session_id, idle_ms=self._idle)
        finally:
            reading.readers -= 1
            if not reading.readers:
                del self._readings[session_id]
        facts = self._read_state(session_id, stored, posted.principal)
        if stored is None or facts is None:
            return None
        view = self._sessions.get(session_id)
        if view is None or view.is_over:
            view = self._add_view(session_id, posted)
            view.session_state.adopt(facts, stored.mark)
            if reading.is_hinted:
                view.session_state.is_hinted = True
                # Another replica may have changed the session while this replica read it, so read it again.
                # Don't call `on_hint` to read the session: it might close the session object, which a request needs.
                view.session_state.read_soon()
        return view

    def _read_state(
        self, session_id: str, stored: StoredSession | None, principal: PrincipalId | None
    ) -> SessionState | None:
        """Return the decoded state of a stored session. Return `None` if it doesn't exist or doesn't belong to
        ``principal``.

        Raises `SessionStateUnreadable` if the stored state can't be decoded.
        """
        facts = None if stored is None else self._services.read_state(session_id, stored.state)
        return facts if facts is not None and facts.principal == principal_text(principal) else None

    def _add_view(self, session_id: str, posted: HttpRequest, opening: bytes = b"") -> SharedSession:
        caller = posted.caller.connection()
        peer = attrs.evolve(posted.peer(session_id), caller=caller)
        view = SharedSession(self._services, session_id, peer, caller, self._remove, opening)
        self._add(view)
        # Open the session even during a shutdown, because the server has already accepted the request.
        if self._ends_for:
            view.shut_down(self._ends_for, drain_timeout=self._drain_left)
        return view

    def fail_question(self, session_id: str, principal: PrincipalId | None, message: Unreadable) -> None:
        """Make a server-to-client request fail, because the client's response ``message`` is unreadable.

        Any replica may have sent the request.

        Does nothing if the message names no request, or the session doesn't belong to ``principal``.
        """
        if message.settles is not None:
            self._services.start_soon(self._fail_question, session_id, principal, message)

    async def _fail_question(self, session_id: str, principal: PrincipalId | None, message: Unreadable) -> None:
        with logged_failure("could not report an unreadable answer"):
            stored = await self._replica.sessions.read(session_id, idle_ms=self._idle)
            if self._read_state(session_id, stored, principal) is None:
                return
            if owner := self._services.owning_replica(message.settles):
                await forward_unreadable(self._services, session_id, owner, message)
            elif (view := self._sessions.get(session_id)) is not None and not view.is_over:
                view.fail_question(message, b"")

    def open(self, message: Request, posted: HttpRequest) -> None:
        """Handle ``initialize``: open a session for the caller, and send the response.

        The limits of all replicas together must allow the session.
        """
        params = as_object(message.params)
        names = ("protocolVersion", "capabilities", "clientInfo")
        opening = encode_value({name: params[name] for name in names if name in params})
        self._add_view(secrets.token_urlsafe(_ID_BYTES), posted, opening).post(message, posted, opens=True)

    def shut_down(self, reason: str, *, hurry: bool) -> None:
        """Stop serving each session on this replica when the session's requests are done. Other replicas continue the
        sessions.

        This also applies to sessions that this replica reads later, for requests accepted earlier.
        """
        drain = 0.0 if hurry or self._ends_for else self._services.running.limits.drain_timeout
        self._drained_at = min(self._drained_at, trio.current_time() + drain)
        self._ends_for = reason
        self._looked_up.unpark_all()
        super().shut_down(reason, hurry=hurry)

    @property
    def _drain_left(self) -> float:
        return max(0.0, self._drained_at - trio.current_time())

    async def ended(self) -> None:
        """Wait until this replica no longer reads a session from the storage for a request, and no longer serves any
        session.

        The wait for the storage ends at the latest when the time for the shutdown is over.
        """
        while self._poll_schedule and (left := self._drain_left):
            with trio.move_on_after(left):
                await self._looked_up.park()
        while views := [*self._sessions.values(), *self._ended]:
            for view in views:
                await view.ended()

    # Notifications

    async def _watch_sessions(self) -> None:
        async with self._replica.sessions.watch() as hints:
            self._is_watching.set()
            async for hint in hints:
                if isinstance(hint, HintsLost):
                    for view in tuple(self._sessions.values()):
                        view.session_state.forget_hints()
                        view.on_hint()
                    for reading in self._readings.values():
                        reading.is_hinted = True
                    continue
                if (view := self._sessions.get(hint)) is not None and not view.session_state.is_own_hint():
                    view.on_hint()
                if (reading := self._readings.get(hint)) is not None:
                    reading.is_hinted = True

    # Messages of other replicas

    def _register(self, kind: str, form: type[M], deliver: Callable[[SharedSession, M], bool]) -> None:
        """Register a handler for messages of ``kind`` from other replicas.

        The handler calls ``deliver`` with the message's session, and refuses the message if this replica doesn't serve
        the session or if ``deliver`` returns false.
        """

        def read(message: ReplicaMessage, content: M) -> None:
            view = self._sessions.get(content.session_id)
            if view is not None and deliver(view, content):
                message.ack()
            else:
                message.refuse(_NOT_HERE)

        self._services.sealed_messenger.register(kind, form, read)

    def _read_resumed(self, message: ReplicaMessage, content: _ResumedMessage) -> None:
        view = self._sessions.get(content.session_id)
        if view is not None:
            view.close_resumed(content.stream, content.replica)
        message.ack()
