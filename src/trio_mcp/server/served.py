"""What can be served over a transport: a `Server`, or what stands in for one."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

import trio

from ..runtime.channel import MessageChannel
from ..runtime.duplex import DuplexChannel
from ..runtime.limits import Limits
from ..runtime.peer import NOBODY_KNOWN, Peer
from ..spec.lifecycle import Implementation
from .connection import ServerConnection
from .server import RunningServer, Server

__all__ = ["Connection", "Running", "Servable", "connection_to"]


class Connection(Protocol):
    """One client that is served."""

    @property
    def duplex(self) -> DuplexChannel:
        """The connection."""
        ...

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """See `DuplexChannel.run`."""
        ...


class StandInRunning(Protocol):
    """A stand-in that serves clients now."""

    @property
    def limits(self) -> Limits:
        """Of each connection."""
        ...

    def connect(self, channel: MessageChannel, peer: Peer) -> Connection:
        """One more client."""
        ...


class StandIn(Protocol):
    """What looks like a server to its clients. A proxy, for example."""

    @property
    def info(self) -> Implementation:
        """Its name, for the people who run it."""
        ...

    @property
    def limits(self) -> Limits:
        """Of each connection, unless `running` is given others."""
        ...

    def running(
        self, limits: Limits | None = None, *, stateless: bool = False
    ) -> AbstractAsyncContextManager[StandInRunning]:
        """See `Server.running`."""
        ...


Servable: TypeAlias = Server | StandIn
Running: TypeAlias = RunningServer | StandInRunning


def connection_to(running: Running, channel: MessageChannel, peer: Peer = NOBODY_KNOWN) -> Connection:
    """One client of what runs."""
    if isinstance(running, RunningServer):
        return ServerConnection(running, channel, peer)
    return running.connect(channel, peer)
