"""The interface between a running server and its other replicas.

The package `trio_mcp.fleet` implements both. A server without ``shared=`` doesn't import it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import trio

from ..classes import frozen

if TYPE_CHECKING:
    from ..protocol.methods import Method
    from ..protocol.revisions import Vocabulary
    from ..runtime.requests.host import RequestHost
    from ..runtime.requests.scope import RequestScope
    from ..stores.shared import Replica
    from .connected_clients import Observers
    from .request_state import RemoteRetry, StateCipher


@frozen
class ServedReplica:
    """A running server that is one of several replicas."""

    replica: Replica
    host: RequestHost
    """Runs the server's request handlers."""
    cipher: StateCipher
    """Has the secrets that all replicas share."""
    observers: Observers
    """Are notified of changes on other replicas."""
    vocabulary: Vocabulary
    """Has the methods of the server."""
    notifications: Mapping[str, Method]
    """The extension notifications that are sent to all clients, by method."""


class Fleet(ABC):
    """Connects one running replica of a server with the other replicas. Created by `SharedStorage`."""

    @abstractmethod
    def count_sent(self) -> int:
        """Return how many messages this replica has sent to other replicas so far."""

    @abstractmethod
    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Exchange messages, and notifications of changes, with other replicas until cancelled.

        Calls ``task_status.started()`` as soon as the storage lists this replica as alive, so that this replica misses
        no change.
        """

    @abstractmethod
    async def forward(self, scope: RequestScope, retry: RemoteRetry) -> Any:
        """Forward a client's retry to the replica in which the handler waits for the client's input, and return the
        handler's result as plain data.

        Raises `CodedError` if the request fails.

        Until then, the other messages of the handler are sent to the client. ``scope`` is the retried request on this
        replica, and ``retry`` names the replica and the handler.
        """

    @abstractmethod
    def shut_down(self, *, hurry: bool) -> None:
        """End the handlers that wait for a client's input, within `Limits.drain_timeout` seconds. Within this time,
        also end the requests that other replicas forwarded to this replica.

        If ``hurry`` is true, less than a second is left.
        """

    @abstractmethod
    async def drain(self) -> None:
        """Call `shut_down`, and wait until this replica has finished its work.

        The work consists of handlers that wait for a client's input, and of requests that other replicas forwarded
        here.
        """


class SharedStorage(ABC):
    """A storage that the replicas of a server share.

    Implemented by `MemoryStorage`, `SQLiteStorage`, `RedisStorage` and subclasses of `FleetStorage`.
    """

    @abstractmethod
    def join(self, name: str, secrets: Sequence[bytes] = ()) -> AbstractAsyncContextManager[Replica]:
        """Register a new replica of the server ``name``. It stays registered until the end of the ``async with`` block.

        While the storage is unavailable, entering the block waits, and logs that it waits. With ``secrets``, task
        records are encrypted as described in `RecordCodec`.

        Servers with different names share nothing. The replica counts as alive from its first `Courier.heartbeat`.
        """

    @abstractmethod
    def _make_fleet(self, served: ServedReplica) -> Fleet:
        """Return the object that connects a running server with its other replicas."""
