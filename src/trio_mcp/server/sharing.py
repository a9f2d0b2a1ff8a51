"""The contract between a running server and the other replicas of the server: `SharedStorage` makes a `Fleet`.

The package `trio_mcp.fleet` implements both. A server without ``shared=`` imports nothing of that package.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import trio

if TYPE_CHECKING:
    from ..protocol.methods import Method
    from ..protocol.revisions import Vocabulary
    from ..runtime.requests.host import RequestHost
    from ..runtime.requests.scope import RequestScope
    from ..stores.shared import Replica
    from .connected_clients import Observers
    from .request_state import RemoteRetry, StateCipher


class Fleet(ABC):
    """The other replicas, as one running server sees them."""

    @abstractmethod
    def count_sent(self) -> int:
        """Return the number of the messages that this replica has sent to others so far."""

    @abstractmethod
    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Exchange messages and changes with other replicas until cancelled. Started once this replica is alive in the
        storage, and misses no change."""

    @abstractmethod
    async def forward(self, scope: RequestScope, retry: RemoteRetry) -> Any:
        """Have another replica resume the handler of ``retry``, the request of ``scope``, and return the result, plain
        data. Raises `CodedError`."""

    @abstractmethod
    def shut_down(self, *, hurry: bool) -> None:
        """Give parked handlers, and retries of other replicas, `Limits.drain_timeout` to finish. ``hurry``: less than a
        second is left."""

    @abstractmethod
    async def drain(self) -> None:
        """Shut down, and wait until no handler is parked here, and no retry of another replica runs here."""


class SharedStorage(ABC):
    """A storage that the replicas of a server share.

    `MemoryStorage`, `SQLiteStorage`, `RedisStorage`, or a subclass of `FleetStorage`."""

    @abstractmethod
    def join(self, name: str, secrets: Sequence[bytes] = ()) -> AbstractAsyncContextManager[Replica]:
        """Join the server ``name`` as a new replica, until the end of the block. While the storage is unavailable,
        entering the block waits, and logs that. With ``secrets``, the records of tasks are sealed as `RecordCodec`
        says.

        Servers with different names share nothing. The replica isn't alive before its first `Courier.heartbeat`."""

    @abstractmethod
    def _make_fleet(
        self,
        replica: Replica,
        host: RequestHost,
        cipher: StateCipher,
        observers: Observers,
        vocabulary: Vocabulary,
        notifications: Mapping[str, Method],
    ) -> Fleet:
        """Return the fleet of ``replica``, for the server whose handlers run in ``host``. ``cipher`` has the secrets
        that all replicas share, ``observers`` are notified of changes on other replicas, ``vocabulary`` has the methods
        of the server, and ``notifications`` the extension notifications that all clients get."""
