"""The life of an HTTP connection, as a table of phases and steps.

========== ========== ========== ========== ========== ========== ========== ========== ========== ========== ==========
phase      RECEIVE    ASK        AWAIT      SERVE      REFUSE     GO_ON      DROP       LINGER     CLOSE      END
========== ========== ========== ========== ========== ========== ========== ========== ========== ========== ==========
NEW        FIRST      ASKED      BODY       SERVED     REFUSED                                                OVER
FIRST                 ASKED      BODY       SERVED     REFUSED                                                OVER
IDLE       HEAD       ASKED      BODY       SERVED     REFUSED                                                OVER
HEAD                  ASKED      BODY       SERVED     REFUSED                                                OVER
ASKED                            BODY       SERVED     REFUSED                                                OVER
BODY                                        SERVED     REFUSED                                                OVER
SERVED                                                            IDLE                             CLOSING    OVER
REFUSED                                                                      DROPPING   LINGERING  CLOSING    OVER
DROPPING                                                                                           CLOSING    OVER
LINGERING                                                                                                     OVER
CLOSING                                                                                            CLOSING    OVER
OVER                                                                                                          OVER
========== ========== ========== ========== ========== ========== ========== ========== ========== ========== ==========

An empty cell is a step that cannot be taken.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class ConnectionPhase(IntEnum):
    """The phases of a connection."""

    NEW = 0
    """The client has sent nothing."""
    FIRST = 1
    """A part of the first head has come."""
    IDLE = 2
    """The connection is between requests."""
    HEAD = 3
    """A part of a later head has come."""
    ASKED = 4
    """A head has come, and the application finds out whether to admit its caller."""
    BODY = 5
    """The caller is admitted, and not all of the body has come."""
    SERVED = 6
    """The application has the request, or an answer to a request that has come whole is being written."""
    REFUSED = 7
    """A refusal is being written to a request that is not read to its end."""
    DROPPING = 8
    """A refusal by the head is written, and the client may send the body and read the refusal."""
    LINGERING = 9
    """A refusal is written, and the client, which may send more, may read the refusal."""
    CLOSING = 10
    """No other request is read, and the client may read the last answer."""
    OVER = 11
    """The connection has ended, or becomes a WebSocket."""


class ConnectionStep(IntEnum):
    """The steps from phase to phase."""

    RECEIVE = 0
    """A part of a head has come."""
    ASK = 1
    """A head has come, on which the application decides later."""
    AWAIT = 2
    """The caller is admitted before all of the body has come."""
    SERVE = 3
    """The application gets the request, or refuses one that has come whole."""
    REFUSE = 4
    """The request is refused before it is read to its end."""
    GO_ON = 5
    """The answer is written, and the client may send another request."""
    DROP = 6
    """The refusal is written before the rest of the body has come, which most clients send before they read a word."""
    LINGER = 7
    """The refusal is written, and where the request ends is not known."""
    CLOSE = 8
    """The last answer is written; the client sends no more, but reads; or all of a refused body has come."""
    END = 9
    """The connection is closed, or handed on."""


class IllegalConnectionStep(RuntimeError):
    """A step that the table does not have: a defect of this package."""


_P: Final = ConnectionPhase
_UNREAD: Final = _P.ASKED, _P.BODY, _P.SERVED, _P.REFUSED, None, None, None, None, _P.OVER
_AFTER: Final[tuple[tuple[ConnectionPhase | None, ...], ...]] = (
    (_P.FIRST, *_UNREAD),
    (None, *_UNREAD),
    (_P.HEAD, *_UNREAD),
    (None, *_UNREAD),
    (None, None, *_UNREAD[1:]),
    (None, None, None, *_UNREAD[2:]),
    (None, None, None, None, None, _P.IDLE, None, None, _P.CLOSING, _P.OVER),
    (None, None, None, None, None, None, _P.DROPPING, _P.LINGERING, _P.CLOSING, _P.OVER),
    (None, None, None, None, None, None, None, None, _P.CLOSING, _P.OVER),
    (None, None, None, None, None, None, None, None, None, _P.OVER),
    (None, None, None, None, None, None, None, None, _P.CLOSING, _P.OVER),
    (None, None, None, None, None, None, None, None, None, _P.OVER),
)
"""Phase after each step, by the phase before."""


class ConnectionLife:
    """The phase of one connection, which only `enter` changes."""

    __slots__ = ("phase", "since")

    def __init__(self) -> None:
        self.phase = _P.NEW
        self.since: float | None = None
        """Time of the first look at the clock in this phase."""

    def enter(self, step: ConnectionStep) -> None:
        """Go on to the phase that follows by ``step``. Raises `IllegalConnectionStep`, with nothing changed, when the
        table has no such step."""
        after = _AFTER[self.phase][step]
        if after is None:
            raise IllegalConnectionStep(f"{step.name} is no step of a connection that is {self.phase.name}")
        self.phase = after
        self.since = None
