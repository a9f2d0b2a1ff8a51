"""SessionTable: the legacy clients of an endpoint, each known by the id in its headers (2025-11-25 transports, Session
Management)."""

from __future__ import annotations

import secrets
from typing import Final

import trio

from ...jsonrpc.messages import Request
from ...runtime.limits import Limits
from ...runtime.principal import PrincipalId
from ...server.served import Running
from .answers import busy
from .http_request import HttpRequest
from .session import Session

__all__ = ["SessionTable"]

_ID_BYTES: Final = 16
"""128 bits, which nobody guesses; as visible ASCII."""


class SessionTable:
    """The sessions of an endpoint of ``running``, whose tasks run in ``nursery``."""

    def __init__(self, running: Running, nursery: trio.Nursery) -> None:
        self._running = running
        self._nursery = nursery
        self._limits: Limits = running.limits
        self._sessions: dict[str, Session] = {}

    def find(self, session_id: str, principal: PrincipalId | None) -> Session | None:
        """Return the session with this id. `None`: there is none, for this principal (2025-11-25 security best
        practices, Session Hijacking)."""
        session = self._sessions.get(session_id)
        return session if session is not None and session.principal == principal and not session.is_over else None

    def open(self, message: Request, posted: HttpRequest) -> None:
        """Answer ``initialize``, and open a session for the caller."""
        if len(self._sessions) >= self._limits.max_sessions and not self._make_room():
            posted.response.answer(busy("Too busy: too many sessions; try again later", posted.extra, message.id))
            return
        session_id = secrets.token_urlsafe(_ID_BYTES)
        session = Session(self._running, session_id, posted.peer(session_id))
        self._sessions[session_id] = session
        self._nursery.start_soon(self._run, session)
        session.post(message, posted, opens=True)

    def _make_room(self) -> bool:
        """End the oldest session that its client has not used, and return whether there was one. Otherwise who opens
        sessions again and again would shut out everybody else."""
        for session in self._sessions.values():
            if not (session.is_confirmed or session.is_over):
                session.end("the session was not used, and another client wants its place")
                return True
        return False

    async def _run(self, session: Session) -> None:
        try:
            await session.run()
        finally:
            del self._sessions[session.id]

    def look_at_clock(self, now: float) -> None:
        """End idle sessions: see `Session.look_at_clock`."""
        for session in tuple(self._sessions.values()):
            session.look_at_clock(now)

    def break_silence(self) -> None:
        """Have streams that were silent send comments."""
        for session in tuple(self._sessions.values()):
            session.break_silence()

    def shut_down(self, reason: str, *, hurry: bool) -> None:
        """End each session when its requests are done."""
        for session in tuple(self._sessions.values()):
            session.shut_down(reason, hurry=hurry)

    async def ended(self) -> None:
        """Wait until all sessions have ended."""
        for session in tuple(self._sessions.values()):
            await session.ended()
