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
    """The phases of an HTTP connection. Each connection is always in one of them."""

    NEW = 0
    """The client hasn't sent anything."""
    FIRST = 1
    """A part of the first head has arrived."""
    IDLE = 2
    """The connection is between requests."""
    HEAD = 3
    """A part of a head has arrived, and it isn't the connection's first head."""
    ASKED = 4
    """A head has arrived, and the application is deciding whether to admit its caller."""
    BODY = 5
    """The caller is admitted, and the body hasn't arrived completely."""
    SERVED = 6
    """The application is serving the request, or the response to a completely received request is being written."""
    REFUSED = 7
    """A request was refused before all of it was read, and the refusal is being written."""
    DROPPING = 8
    """A request was refused because of its head, and the refusal is written. The client may still send the body and
    read the refusal."""
    LINGERING = 9
    """A refusal is written. The client may still send bytes, and read the refusal."""
    CLOSING = 10
    """The last response is written. No further request is read, and the client may still read the response."""
    OVER = 11
    """The connection has ended, or has become a WebSocket."""


class ConnectionStep(IntEnum):
    """The events that move an HTTP connection from one phase to the next."""

    RECEIVE = 0
    """A part of a head has arrived."""
    ASK = 1
    """A head has arrived, and the application will decide on it later."""
    AWAIT = 2
    """The caller was admitted before the whole body has arrived."""
    SERVE = 3
    """The application gets a request that has arrived completely, or refuses this request."""
    REFUSE = 4
    """The request is refused before it is read to its end."""
    GO_ON = 5
    """The response is written, and the client may send another request."""
    DROP = 6
    """The refusal is written before the rest of the body has arrived. Most clients send the body before they read."""
    LINGER = 7
    """The refusal is written, and it's unknown where the request ends."""
    CLOSE = 8
    """The last response is written, the client has finished sending but still reads, or a refused body has arrived
    completely."""
    END = 9
    """The connection is closed, or becomes a WebSocket."""


class IllegalConnectionStep(RuntimeError):
    """Raised for a step that isn't allowed in the current phase of an HTTP connection. This shows a bug in this
    package."""


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
"""The phase after each step, keyed by the phase before the step."""


class ConnectionLife:
    """The current phase of an HTTP connection. Only `enter` changes it."""

    __slots__ = ("phase", "since")

    def __init__(self) -> None:
        self.phase = _P.NEW
        self.since: float | None = None
        """The time of the first clock check in the current phase."""

    def enter(self, step: ConnectionStep) -> None:
        """Move the connection from its current phase to the next phase, which depends on ``step``.

        Raises `IllegalConnectionStep` if the step isn't allowed in the current phase. The phase then stays the same.
        """
        after = _AFTER[self.phase][step]
        if after is None:
            raise IllegalConnectionStep(f"step {step.name} is not allowed in phase {self.phase.name}")
        self.phase = after
        self.since = None
