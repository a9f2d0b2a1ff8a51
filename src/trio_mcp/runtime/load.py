"""Load counts the connections of one server, and their requests, streams and bytes together."""

from __future__ import annotations

import attrs

from ..concurrency.fair_share import Callers
from .limits import Limits


@attrs.frozen
class Statistics:
    """The counts of a server: of one moment, and of all events since the server was made."""

    connections: int
    """Connections that are open now."""
    in_flight: int
    """Requests whose handlers run now."""
    queued: int
    """Requests that wait for their turn now."""
    listening: int
    """Streams of ``subscriptions/listen`` that are open now. Streams do not count as in flight."""
    parked: int
    """Handlers that wait now for a modern client to come back with answers."""
    cancelled: int
    """Requests cancelled so far: by their caller, by the loss or the end of their connection, or while parked."""
    expired: int
    """Parked requests cancelled so far, because no answers came in time or too many requests were parked."""
    overrun: int
    """Cancelled requests so far whose cleanup took longer than its grace."""
    dropped_logs: int
    """Messages of Python's logging so far that had no room on their way to the client."""


@attrs.define(eq=False)
class Load:
    """The counts behind `Statistics`, kept by every connection, and the room that the bounds of the whole server leave
    free."""

    connections: int = 0
    in_flight: int = 0
    queued: int = 0
    listening: int = 0
    parked: int = 0
    inbound_bytes: int = 0
    cancelled: int = 0
    expired: int = 0
    overrun: int = 0
    dropped_logs: int = 0
    callers: Callers = attrs.Factory(Callers)
    """The parties that the bounds are shared by."""

    def free_requests(self, limits: Limits) -> int:
        """Return how many more requests the whole server may take, streams apart."""
        return limits.max_server_requests - self.in_flight - self.queued - self.parked

    def free_streams(self, limits: Limits) -> int:
        """Return how many more streams the whole server may have open."""
        return limits.max_server_streams - self.listening

    def statistics(self) -> Statistics:
        """Return the present counts."""
        return Statistics(
            connections=self.connections,
            in_flight=self.in_flight,
            queued=self.queued,
            listening=self.listening,
            parked=self.parked,
            cancelled=self.cancelled,
            expired=self.expired,
            overrun=self.overrun,
            dropped_logs=self.dropped_logs,
        )
