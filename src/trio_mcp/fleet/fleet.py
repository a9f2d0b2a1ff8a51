"""`ReplicaFleet` connects a running server with its other replicas. `FleetStorage` is the base of all shared
storages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import trio

from ..runtime.requests.host import RequestHost
from ..server.sharing import SharedStorage
from ..serving.http.session import HttpFleet
from .change_replicator import ChangeReplicator, ReplicatedNotifications
from .messenger import Messenger
from .retry_forwarder import RetryForwarder
from .sessions.shared_state import SessionServices
from .sessions.table import SharedSessionTable

if TYPE_CHECKING:
    from ..protocol.methods import Method
    from ..protocol.revisions import Vocabulary
    from ..runtime.requests.scope import RequestScope
    from ..server.connected_clients import Observers
    from ..server.request_state import RemoteRetry, StateCipher
    from ..server.server import RunningServer
    from ..stores.shared import Replica


class ReplicaFleet(HttpFleet):
    """The connections of one replica with the others: messages, forwarded retries, replicated changes and sessions.

    See `FleetStorage`.
    """

    def __init__(
        self,
        replica: Replica,
        host: RequestHost,
        cipher: StateCipher,
        observers: Observers,
        vocabulary: Vocabulary,
        notifications: Mapping[str, Method],
    ) -> None:
        replicated = ReplicatedNotifications(cipher, notifications) if notifications else None
        self.changes = ChangeReplicator(observers, replica.changes, replicated)
        self.messenger = Messenger(replica)
        self.retries = RetryForwarder(host, self.messenger, cipher, vocabulary)

    def count_sent(self) -> int:
        """Return how many messages this replica has sent so far. See `Fleet.count_sent`."""
        return self.messenger.sent_count

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Exchange messages and changes until cancelled. See `Fleet.run`."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.changes.run)
            await nursery.start(self.messenger.run)
            await nursery.start(self.retries.run)
            task_status.started()

    async def forward(self, scope: RequestScope, retry: RemoteRetry) -> Any:
        """Forward a retry to the replica whose handler it resumes. See `Fleet.forward`."""
        return await self.retries.forward(scope, retry)

    def shut_down(self, *, hurry: bool) -> None:
        """Give parked handlers and retries time to finish. See `Fleet.shut_down`."""
        self.retries.shut_down(hurry=hurry)

    async def drain(self) -> None:
        """Wait until no handler is parked and no retry is forwarded on this replica. See `Fleet.drain`."""
        await self.retries.drain()

    def open_sessions(self, running: RunningServer, nursery: trio.Nursery, retry_interval: float) -> SharedSessionTable:
        """Return the sessions of an endpoint. See `HttpFleet.open_sessions`."""
        services = SessionServices(running, self.messenger, self.changes, nursery, retry_interval)
        return SharedSessionTable(services)


class FleetStorage(SharedStorage):
    """The base class of a storage that replicas share: subclass it, and implement `join`."""

    def _make_fleet(
        self,
        replica: Replica,
        host: RequestHost,
        cipher: StateCipher,
        observers: Observers,
        vocabulary: Vocabulary,
        notifications: Mapping[str, Method],
    ) -> ReplicaFleet:
        """Return the fleet of ``replica``. See `SharedStorage._make_fleet`."""
        return ReplicaFleet(replica, host, cipher, observers, vocabulary, notifications)
