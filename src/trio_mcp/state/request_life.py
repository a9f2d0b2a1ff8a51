"""RequestLife is the life of one inbound request, as a table of phases and steps. No trio, no clock.

========== ========== ========== ========== ========== ==========
phase      START      PARK       COME_BACK  MUTE       END
========== ========== ========== ========== ========== ==========
WAITING    RUNNING                          MUTED
RUNNING               PARKED                MUTED
PARKED                           WAITING    MUTED
MUTED                                       MUTED      OVER
OVER
========== ========== ========== ========== ========== ==========

An empty cell is a step that cannot be taken. Lines of a request are sent while the request runs, and in no other phase
(DESIGN ruling 1).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Phase(IntEnum):
    """The phases in the life of a request."""

    WAITING = 0
    """The request waits for its turn: for the first time, or with the answers to the questions of its handler."""
    RUNNING = 1
    """The handler runs, and may send."""
    PARKED = 2
    """The request was answered with questions. The handler waits for the client to come back, and may not send."""
    MUTED = 3
    """Nothing more is sent but, perhaps, the reply: the handler is done, or the request was cancelled."""
    OVER = 4
    """The handler, all its tasks and its cleanup have ended."""


class Step(IntEnum):
    """The steps from phase to phase."""

    START = 0
    """The turn of the request has come."""
    PARK = 1
    """The request is answered with questions."""
    COME_BACK = 2
    """The client has brought the answers."""
    MUTE = 3
    """The handler is done, or the request is cancelled."""
    END = 4
    """The handler, its child tasks and their cleanup have ended."""


class IllegalStep(RuntimeError):
    """A step that the table does not have: a defect of this package."""


_NEXT: Final[tuple[tuple[Phase | None, ...], ...]] = (
    (Phase.RUNNING, None, None, Phase.MUTED, None),
    (None, Phase.PARKED, None, Phase.MUTED, None),
    (None, None, Phase.WAITING, Phase.MUTED, None),
    (None, None, None, Phase.MUTED, Phase.OVER),
    (None, None, None, None, None),
)
"""Phase after each step, by the phase before."""

_RUNNING: Final = Phase.RUNNING


class RequestLife:
    """The phase of one request, which only `take` changes."""

    __slots__ = ("phase", "sends")

    def __init__(self) -> None:
        self.phase = Phase.WAITING
        self.sends = False
        """True while lines of the request are sent, its reply apart."""

    def take(self, step: Step) -> None:
        """Go on to the phase that follows by ``step``. Raises `IllegalStep`, with nothing changed, when the table has
        no such step."""
        after = _NEXT[self.phase][step]
        if after is None:
            raise IllegalStep(f"{step.name} is no step of a request that is {self.phase.name}")
        self.phase = after
        self.sends = after is _RUNNING
