"""Wiring holds what all parts of one connection share, so that none of them needs to know the whole."""

from __future__ import annotations

import attrs
import trio

from ...concurrency.graces import Graces
from ...concurrency.places import WorkerShare
from ...state.connection_state import ConnectionState
from ..limits import Limits
from ..load import Load
from ..outbox import Outbox
from ..peer import Peer
from .late_progress import LateProgress
from .retry import Seal

__all__ = ["Wiring"]


@attrs.frozen(eq=False)
class Wiring:
    """The objects and settings that the parts of one connection share."""

    state: ConnectionState
    limits: Limits
    outbox: Outbox
    late_progress: LateProgress
    workers: WorkerShare
    """The threads that plain ``def`` handlers of this connection may have."""
    may_log: bool
    """True when handlers' log messages may go out."""
    trio_token: trio.lowlevel.TrioToken
    """Token for threads that have something to say to the connection."""
    load: Load
    """Counts of what happens, across connections where it is shared."""
    peer: Peer
    """The other end of the connection."""
    stateless: bool
    """True when nothing is kept between requests, so that none of them can wait for an answer of the client."""
    graces: Graces
    """Times that cancelled handlers in threads may clean up."""
    seal: Seal | None
    """Maker of ``requestState``; `None`: this side does not answer requests with questions."""
    ending: trio.Event = attrs.field(factory=trio.Event)
    """Event set when the connection starts to end: streams end now, and nothing else is hurried."""
