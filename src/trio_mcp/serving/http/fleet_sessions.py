"""The contract between an HTTP endpoint and the legacy sessions of all replicas: `HttpFleet` opens `FleetSessions`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import trio

from ...jsonrpc.messages import Request, Unreadable
from ...runtime.peer import PrincipalId
from ...server.server import RunningServer
from ...server.sharing import Fleet
from .exchanges import HttpRequest
from .session_exchange import ClientSession


class FleetSessions(ABC):
    """The legacy sessions of an endpoint that any replica serves, each known by the id in its headers (2025-11-25
    transports, Session Management)."""

    @abstractmethod
    def find(self, session_id: str, principal: PrincipalId | None) -> ClientSession | None:
        """Return the session with this id, if ``principal`` has one that can be served at once (2025-11-25 security
        best practices, Session Hijacking). `None`: see `look_up`."""

    @abstractmethod
    def look_up(self, session_id: str, posted: HttpRequest, on_found: Callable[[ClientSession | None], None]) -> None:
        """Read the session with this id, and call ``on_found`` with the session, or with `None` if the principal has no
        such session. If the storage is unavailable, ``posted`` is answered instead."""

    @abstractmethod
    def fail_question(self, session_id: str, principal: PrincipalId | None, message: Unreadable) -> None:
        """Fail the question to the client, on any replica, that ``message`` was meant to answer, if the message names
        one and ``principal`` has the session."""

    @abstractmethod
    def open(self, message: Request, posted: HttpRequest) -> None:
        """Answer ``initialize``, and open a session for the caller, within its share."""

    @abstractmethod
    def expire(self, now: float) -> None:
        """End idle sessions. To be called about every second."""

    @abstractmethod
    def send_keep_alive(self) -> None:
        """Send a comment on each stream that was silent."""

    @abstractmethod
    def shut_down(self, reason: str, *, hurry: bool) -> None:
        """End each session in this process when its requests are done."""

    @abstractmethod
    async def ended(self) -> None:
        """Wait until all sessions in this process have ended."""


class HttpFleet(Fleet):
    """A fleet whose replicas all serve the same legacy sessions over HTTP."""

    @abstractmethod
    def open_sessions(self, running: RunningServer, nursery: trio.Nursery, retry_interval: float) -> FleetSessions:
        """Return the sessions of an endpoint of ``running``, whose tasks run in ``nursery``. Clients come back
        ``retry_interval`` seconds after a response broke."""
