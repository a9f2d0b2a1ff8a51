"""IdleConnections: connections that wait for their next request."""

from __future__ import annotations

import trio

from ...concurrency.wakeups import Alarm, Alarms
from .connection import Connection


class IdleConnections:
    """Up to ``most`` connections, each with a time after which ``alarms`` have the connection closed."""

    def __init__(self, most: int, alarms: Alarms) -> None:
        self._most = most
        self._alarms = alarms
        self._waiting: dict[Connection, Alarm] = {}
        """Connections in the order of their coming, so the last one is the freshest."""

    def put(self, connection: Connection, seconds: float) -> None:
        """Keep ``connection`` for ``seconds``. The one that has waited longest is closed where there are too many."""
        due = trio.current_time() + seconds
        self._waiting[connection] = self._alarms.set(due, lambda: self._close(connection))
        if len(self._waiting) > self._most:
            self._close(next(iter(self._waiting)))

    def take(self) -> Connection | None:
        """Take out the freshest connection that is of use; close all useless ones on the way."""
        while self._waiting:
            connection, alarm = self._waiting.popitem()
            alarm.stop()
            if not connection.is_stale:
                return connection
            connection.close()
        return None

    def close(self) -> None:
        """Close all."""
        for connection in list(self._waiting):
            self._close(connection)

    def _close(self, connection: Connection) -> None:
        self._waiting.pop(connection).stop()
        connection.close()
