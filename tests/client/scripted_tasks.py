"""A server in memory that runs one task, as a test says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
from tests.client.rounds import ANSWERS
from tests.interaction.client.raw import RawPeer, scripted

from trio_mcp import Client
from trio_mcp.client.opening import open_client
from trio_mcp.transports.lines import MemoryTransport

__all__ = ["CORE", "ENDED", "TaskPeer", "asks", "core", "created", "state", "with_core_tasks", "with_tasks"]

ENDED = {"content": [{"type": "text", "text": "done"}]}
CORE = {"tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}}
_TIMES = {"createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z"}


def state(status: str = "working", **more: Any) -> dict[str, Any]:
    """A state in the form of the extension, as ``tasks/get`` answers."""
    return {"resultType": "complete", "taskId": "t", "status": status, "ttlMs": None, **_TIMES, **more}


def created(**more: Any) -> dict[str, Any]:
    """A result of a call that goes on as a task."""
    return {**state(**more), "resultType": "task"}


def asks(**questions: Any) -> dict[str, Any]:
    """A state that asks."""
    return state("input_required", inputRequests=questions)


def core(status: str = "working", **more: Any) -> dict[str, Any]:
    """A state in the form of 2025-11-25."""
    return {"taskId": "t", "status": status, "ttl": None, **_TIMES, **more}


class TaskPeer(RawPeer):
    """Answers a call with ``made``, and each look at the task with what ``look`` returns. An integer is the code of an
    error, and `None` no answer."""

    made: Any = created()
    outcome: Any = ENDED
    """Answer to ``tasks/result``."""
    is_core = False
    support = "required"
    """How the server lists its tool."""

    def look(self) -> Any:
        """Say how the task is."""
        return state()

    def __init__(self, channel: MemoryTransport) -> None:
        super().__init__(channel)
        self.times: list[float] = []
        """Times of the looks."""
        self._news = trio.lowlevel.ParkingLot()

    async def read(self) -> dict[str, Any]:
        message = await super().read()
        self._news.unpark_all()
        return message

    async def got(self, method: str, count: int = 1) -> None:
        """Wait until so many requests of ``method`` were read."""
        while len(self.sent(method)) < count:
            await self._news.park()

    async def play(self) -> None:
        while True:
            message = await self.read()
            match message.get("method"):
                case "tools/call" if self.is_core and "task" not in message["params"]:
                    await self.error(message, -32601, "a task is required")
                case "tools/list":
                    tool = {
                        "name": "any",
                        "inputSchema": {"type": "object"},
                        "execution": {"taskSupport": self.support},
                    }
                    await self.result(message, {"tools": [tool]})
                case "tools/call":
                    await self.say(message, self.made)
                case "tasks/get":
                    self.times.append(trio.current_time())
                    await self.say(message, self.look())
                case "tasks/result":
                    await self.say(message, self.outcome)
                case "tasks/update" | "tasks/cancel":
                    await self.say(message, core("cancelled") if self.is_core else {"resultType": "complete"})
                case _:
                    pass

    async def say(self, message: dict[str, Any], said: Any) -> None:
        """Answer a request."""
        if isinstance(said, int):
            await self.error(message, said)
        elif said is not None:
            await self.result(message, said)

    def sent(self, method: str) -> list[Any]:
        """The parameters, without ``_meta``, of the requests of ``method`` that were read."""
        return [
            {name: value for name, value in message.get("params", {}).items() if name != "_meta"}
            for message in self.wire
            if message.get("method") == method
        ]


@asynccontextmanager
async def with_tasks(
    look: Callable[[], Any], made: Any = None, kind: type[TaskPeer] = TaskPeer, **options: Any
) -> AsyncIterator[tuple[Client, TaskPeer]]:
    """A client, and the modern server that it has."""

    async def play(peer: RawPeer) -> None:
        assert isinstance(peer, TaskPeer)
        await peer.discovered()
        peer.look = look
        peer.made = created() if made is None else made
        await peer.play()

    async with scripted(play, kind) as (channel, peer), open_client(channel, **(ANSWERS | options)) as client:
        assert isinstance(peer, TaskPeer)
        yield client, peer
        await trio.testing.wait_all_tasks_blocked()


@asynccontextmanager
async def with_core_tasks(
    look: Callable[[], Any],
    outcome: Any = None,
    made: Any = None,
    capabilities: Any = CORE,
    kind: type[TaskPeer] = TaskPeer,
    **options: Any,
) -> AsyncIterator[tuple[Client, TaskPeer]]:
    """A client, and the server of 2025-11-25 that it has."""

    async def play(peer: RawPeer) -> None:
        assert isinstance(peer, TaskPeer)
        peer.is_core = True
        await peer.handshake(**capabilities)
        peer.look = look
        peer.made = {"task": core()} if made is None else made
        peer.outcome = ENDED if outcome is None else outcome
        await peer.play()

    options = ANSWERS | {"era": "legacy"} | options
    async with scripted(play, kind) as (channel, peer), open_client(channel, **options) as client:
        assert isinstance(peer, TaskPeer)
        yield client, peer
        await trio.testing.wait_all_tasks_blocked()
