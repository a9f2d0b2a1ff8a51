"""Wiring: what all parts of one connection share, so that none of them needs to know the whole."""

from __future__ import annotations

import attrs
import trio

from ..state.connection_state import ConnectionState
from .graces import Graces
from .late_progress import LateProgress
from .limits import Limits
from .load import Load
from .outbox import Outbox
from .peer import Peer
from .places import WorkerShare
from .retry import Seal

__all__ = ["Wiring"]


@attrs.frozen(eq=False)
class Wiring:
    """One of each, for one connection."""

    state: ConnectionState
    limits: Limits
    outbox: Outbox
    late_progress: LateProgress
    workers: WorkerShare
    """The threads that plain ``def`` handlers of this connection may have."""
    may_log: bool
    """Handlers' log messages may go out."""
    trio_token: trio.lowlevel.TrioToken
    """For threads that have something to say to the connection."""
    load: Load
    """Counts what happens, across connections where it is shared."""
    peer: Peer
    """Who is at the other end."""
    stateless: bool
    """Nothing is kept between requests, so none of them can wait for an answer of the client."""
    graces: Graces
    """How long cancelled handlers in threads may clean up."""
    seal: Seal | None
    """Makes ``requestState``; `None`: nobody here asks by answering."""
    ending: trio.Event = attrs.field(factory=trio.Event)
    """Set when the connection starts to end: streams end now, and nothing else is hurried."""
