"""Load: what all connections of one server carry together."""

from __future__ import annotations

import attrs

from .limits import Limits

__all__ = ["Load", "Statistics"]


@attrs.frozen
class Statistics:
    """A server at one moment, and what has happened to it since it was made."""

    connections: int
    """Open now."""
    in_flight: int
    """Requests whose handlers run now."""
    queued: int
    """Requests that wait for their turn now."""
    listening: int
    """Streams of ``subscriptions/listen`` that are open now. They do not count as in flight."""
    parked: int
    """Handlers that wait now for a modern client to come back with answers."""
    cancelled: int
    """Requests cancelled so far: by their caller, by the loss or the end of their connection, or while parked."""
    expired: int
    """Those of them that were parked, and for which no answers came in time or of which there were too many."""
    overrun: int
    """Cancelled requests so far whose cleanup took longer than its grace."""
    dropped_logs: int
    """Messages of Python's logging so far that had no room on their way to the client."""


@attrs.define(eq=False)
class Load:
    """The counts behind `Statistics`, kept by every connection, and the bounds that hold for all together."""

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

    def has_room(self, size: int, limits: Limits, kept: int, more: int) -> bool:
        """Whether ``more`` requests, and ``size`` bytes in the place of ``kept`` ones, are within the bounds of the
        whole server."""
        if self.in_flight + self.queued + self.listening + self.parked + more > limits.max_server_requests:
            return False
        others = self.inbound_bytes - kept
        return not others or others + size <= limits.max_server_bytes

    def statistics(self) -> Statistics:
        """As they are now."""
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
