"""Sessions: the legacy session of a client, and the one that follows when the server has forgotten the first
(2025-11-25 transports, Session Management); SessionQuestions: the requests of the server in a session that wait for an
answer of ours.
"""

from __future__ import annotations

import copy
import re
from typing import Final

import trio

from ...classes import define
from ...jsonrpc.errors import MCPError
from ...jsonrpc.messages import RequestId
from ...runtime.transport import HTTPError

_ID: Final = re.compile(r"[\x21-\x7e]+")


class Session:
    """What the server has agreed to in ``initialize``: the ``version``, and the session with ``id``; `None` where the
    server keeps no session."""

    def __init__(self, session_id: str | None, version: str) -> None:
        if session_id is not None and not _ID.fullmatch(session_id):
            raise HTTPError(200, "the server assigned a session id that has other characters than visible ASCII")
        self.id = session_id
        self.version = version
        self.opened = trio.Event()
        """Event set when messages may be sent: ``notifications/initialized`` has arrived, or its answer is slow."""
        self.was_heard = False
        """True once the server has opened a stream of its own in the session."""
        self.heard = 0
        """Number of messages on such streams."""
        self.over = trio.Event()
        """Event set when the server has forgotten the session, or the client is closed."""


class Sessions:
    """The present session, if any. Messages wait in `opened` until the session is open. `trouble` is to be waited for
    by a task that opens a new session, where one `is_wanted`, and tells of changes that were missed."""

    def __init__(self) -> None:
        self.present: Session | None = None
        """The last session; `None` before the first, and in the modern era."""
        self._failure: MCPError | None = None
        """The reason why the last attempt has opened no session; `None` after one that has."""
        self.is_wanted = False
        """True while a new session has to be opened."""
        self._has_missed = False
        self._opener = trio.lowlevel.ParkingLot()
        self._messages = trio.lowlevel.ParkingLot()

    @property
    def was_heard(self) -> bool:
        """True where the server has opened a stream of its own in the last session."""
        return self.present is not None and self.present.was_heard

    def begin(self, session: Session) -> None:
        """Note that the server has agreed to ``session``, which is not open yet."""
        self.present, self._failure, self.is_wanted = session, None, False
        self._messages.unpark_all()

    async def opened(self) -> Session:
        """Wait for a session that is open, and return the session. Raises the error of the attempt where none can be
        opened."""
        while True:
            session = self.present
            if session is not None and not session.over.is_set():
                await session.opened.wait()
                if not session.over.is_set():
                    return session
            if session is not None:
                self._want()
            await self._messages.park()
            if self._failure is not None:
                raise copy.copy(self._failure)

    def lose(self, session: Session) -> bool:
        """Note that the server has forgotten ``session``. Return whether that is news."""
        if session.over.is_set():
            return False
        session.over.set()
        session.opened.set()
        if session is self.present:
            self._want()
        return True

    def _want(self) -> None:
        self.is_wanted = True
        self._opener.unpark_all()

    def miss(self) -> None:
        """Note that the server may have told of changes which the client has not heard of."""
        self._has_missed = True
        self._opener.unpark_all()

    async def trouble(self) -> None:
        """Wait until a new session is wanted, or changes were missed."""
        while not (self.is_wanted or self._has_missed):
            await self._opener.park()
        self._has_missed = False

    def fail(self, error: MCPError) -> None:
        """Tell all who wait that no session can be opened now. The next message asks for another attempt."""
        if self.present is not None:
            self.lose(self.present)
        self._failure, self.is_wanted = error, False
        self._messages.unpark_all()


@define(eq=False)
class SessionQuestion:
    """A request of the server, which came in ``session``, in the answer to our request ``call``; `None` on a
    stream that belongs to no request of ours."""

    session: Session
    call: RequestId | None
    is_withdrawn: bool = False

    @property
    def is_over(self) -> bool:
        """True once the server wants no answer any more."""
        return self.is_withdrawn or self.session.over.is_set()


class SessionQuestions:
    """The requests of the server in flight, until the server has their answers. Answers are for one session alone: in
    the next one the same id may name another request."""

    def __init__(self) -> None:
        self._asked: dict[RequestId, SessionQuestion] = {}

    def asked(self, request_id: RequestId, session: Session, call: RequestId | None) -> None:
        """Note a request of the server: see `SessionQuestion`."""
        self.withdrawn(request_id)
        self._asked[request_id] = SessionQuestion(session, call)

    def withdrawn(self, request_id: RequestId) -> None:
        """Note that the server wants no answer any more."""
        question = self._asked.pop(request_id, None)
        if question is not None:
            question.is_withdrawn = True

    def find(self, request_id: RequestId) -> SessionQuestion | None:
        """Return the question that is being answered; `None` where that is not known."""
        return self._asked.get(request_id)

    def settled(self, request_id: RequestId, question: SessionQuestion) -> None:
        """Note that the server has its answer to ``question``, or never will."""
        if self._asked.get(request_id) is question:
            del self._asked[request_id]

    def forget(self, session: Session) -> tuple[RequestId, ...]:
        """Forget the requests of ``session``, which is over, and return their ids."""
        over = tuple(request_id for request_id, question in self._asked.items() if question.session is session)
        for request_id in over:
            del self._asked[request_id]
        return over
