"""SessionTable: the legacy clients of an endpoint, each known by the id in its headers (2025-11-25 transports, Session
Management)."""

from __future__ import annotations

import secrets
from operator import attrgetter
from typing import Final

import trio

from ...concurrency.fair_share import Caller, SharedBytes
from ...jsonrpc.messages import Request
from ...runtime.limits import Limits
from ...runtime.peer import Headers, Peer, PrincipalId
from ...server.servable import Running
from .exchanges import HttpRequest
from .responses import busy
from .session import HttpSession
from .session_exchange import ClientSession

_ID_BYTES: Final = 16
"""128 bits, which nobody guesses; as visible ASCII."""


class SessionTable:
    """The sessions of an endpoint of ``running``, whose tasks run in ``nursery``. Clients come back ``retry_interval``
    seconds after a response broke."""

    def __init__(self, running: Running, nursery: trio.Nursery, retry_interval: float) -> None:
        self._running = running
        self._nursery = nursery
        self._limits: Limits = running.limits
        self._retry_interval = retry_interval
        self._sessions: dict[str, HttpSession] = {}
        self._counts: dict[Caller, dict[ClientSession, None]] = {}
        """The sessions of each party, oldest first."""
        self._replayed = SharedBytes(running.limits.max_server_replay_bytes)
        """Bytes that all sessions keep for clients that come back."""
        self._ended: set[ClientSession] = set()
        """Sessions that have ended, but whose requests still clean up. They take no place: their requests have one."""

    def find(self, session_id: str, principal: PrincipalId | None) -> HttpSession | None:
        """Return the session with this id. `None`: there is none, for this principal (2025-11-25 security best
        practices, Session Hijacking)."""
        session = self._sessions.get(session_id)
        return session if session is not None and session.principal == principal and not session.is_over else None

    def open(self, message: Request, posted: HttpRequest) -> None:
        """Answer ``initialize``, and open a session for the caller, within its share."""
        caller = posted.caller
        if not (self._has_room(caller) or self._make_room(caller)):
            posted.response.answer(busy("Too busy: too many sessions; try again later", posted.extra, message.id))
            return
        session_id = secrets.token_urlsafe(_ID_BYTES)
        headers = Headers.of_lower_case(posted.head.headers)
        user, check = posted.response.client.user, posted.check_scopes
        part = caller.connection()
        peer = Peer(session_id, headers, posted.principal, posted.auth, part, check_scopes=check, user=user)
        session = HttpSession(self._running, session_id, peer, part, self._replayed, self._retry_interval, self._remove)
        self._sessions[session_id] = session
        self._counts.setdefault(caller, {})[session] = None
        self._nursery.start_soon(self._run, session)
        session.post(message, posted, opens=True)

    def _has_room(self, caller: Caller) -> bool:
        free = self._limits.max_sessions - len(self._sessions)
        return caller.may_take(lambda party: len(self._counts.get(party, ())), free)

    def _make_room(self, caller: Caller) -> bool:
        """End a session for one more of ``caller``, and return whether there was one to end.

        A party that has its share gives up its own oldest session that its client has not used. One that has no session
        takes the place of the idlest of whoever has the most, or, where nobody has two, of the oldest that was not
        used: otherwise who opens sessions again and again would shut out everybody else.
        """
        held = self._counts.get(caller)
        if held is None:
            held = max(self._counts.values(), key=len)
            if len(held) > 1:
                idlest = min(
                    (session for session in held if not session.is_over), key=attrgetter("used_at"), default=None
                )
                return self._close_session(idlest)
            held = dict.fromkeys(self._sessions.values())
        return self._close_session(next((each for each in held if not (each.is_confirmed or each.is_over)), None))

    def _close_session(self, session: ClientSession | None) -> bool:
        if session is None:
            return False
        session.close("another client wants the place of the session, which was not used for longer than others")
        return True

    def _remove(self, session: ClientSession) -> None:
        """Note that ``session`` has ended: from now on there is room for another one."""
        if self._sessions.pop(session.id, None) is None:
            return
        self._ended.add(session)
        whole = session.caller.whole
        held = self._counts[whole]
        del held[session]
        if not held:
            del self._counts[whole]

    async def _run(self, session: HttpSession) -> None:
        try:
            await session.run()
        finally:
            self._remove(session)
            self._ended.discard(session)

    def expire(self, now: float) -> None:
        """End idle sessions: see `HttpSession.expire`."""
        for session in tuple(self._sessions.values()):
            session.expire(now)

    def send_keep_alive(self) -> None:
        """Have streams that were silent send comments."""
        for session in tuple(self._sessions.values()):
            session.send_keep_alive()

    def shut_down(self, reason: str, *, hurry: bool) -> None:
        """End each session when its requests are done."""
        for session in (*self._sessions.values(), *self._ended):
            session.shut_down(reason, hurry=hurry)

    async def ended(self) -> None:
        """Wait until all sessions have ended."""
        for session in (*self._sessions.values(), *self._ended):
            await session.ended()
