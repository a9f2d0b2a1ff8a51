"""`ReplicaFleet` connects one replica of a server with its other replicas. `FleetStorage` is the base class of all
storages that replicas share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from ..server.sharing import ServedReplica, SharedStorage
from ..serving.http.session import HttpFleet
from .change_replicator import ChangeReplicator, ReplicatedNotifications
from .messenger import Messenger
from .retry_forwarder import RetryForwarder
from .sessions.shared_state import SessionServices
from .sessions.table import SharedSessionTable

if TYPE_CHECKING:
    from ..runtime.requests.scope import RequestScope
    from ..server.request_state import RemoteRetry
    from ..server.server import RunningServer


class ReplicaFleet(HttpFleet):
    """Connects one replica of a server with the server's other replicas.

    It exchanges messages, forwards retried requests, and replicates changes and legacy sessions.

    See `FleetStorage`.
    """

    def __init__(self, served: ServedReplica) -> None:
        notifications, cipher = served.notifications, served.cipher
        replicated = ReplicatedNotifications(cipher, notifications) if notifications else None
        self.changes = ChangeReplicator(served.observers, served.replica.changes, replicated)
        self.messenger = Messenger(served.replica)
        self.retries = RetryForwarder(served.host, self.messenger, cipher, served.vocabulary)

    def count_sent(self) -> int:
        """Return the number of messages that this replica has sent to other replicas so far. See `Fleet.count_sent`."""
        return self.messenger.sent_count

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Exchange messages and changes with other replicas until cancelled. See `Fleet.run`."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.changes.run)
            await nursery.start(self.messenger.run)
            await nursery.start(self.retries.run)
            task_status.started()

    async def forward(self, scope: RequestScope, retry: RemoteRetry) -> Any:
        """Forward a client's retry of a request to the replica where the request's handler waits for the client's
        input. See `Fleet.forward`."""
        return await self.retries.forward(scope, retry)

    def shut_down(self, *, hurry: bool) -> None:
        """Begin the shutdown of this replica. See `Fleet.shut_down`.

        Handlers that wait for a client's input, and requests from other replicas, get time to finish.
        """
        self.retries.shut_down(hurry=hurry)

    async def drain(self) -> None:
        """Wait until no handler on this replica waits for a client's input, and no request that another replica has
        forwarded runs on this replica.

        See `Fleet.drain`.
        """
        await self.retries.drain()

    def open_sessions(self, running: RunningServer, nursery: trio.Nursery, retry_interval: float) -> SharedSessionTable:
        """Return the table of an HTTP endpoint's MCP sessions (legacy protocol revisions). Every replica can serve
        these sessions. See `HttpFleet.open_sessions`."""
        services = SessionServices(running, self.messenger, self.changes, nursery, retry_interval)
        return SharedSessionTable(services)


class FleetStorage(SharedStorage):
    """The base class for storages that the replicas of a server share. To write a storage, subclass it and implement
    `join`."""

    def _make_fleet(self, served: ServedReplica) -> ReplicaFleet:
        """Return the `ReplicaFleet` that connects a running server with its other replicas. See
        `SharedStorage._make_fleet`."""
        return ReplicaFleet(served)
