"""Members of a group in the hands of a script."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
from tests.interaction.client.raw import RawPeer, scripted

from trio_mcp import Client, InMemory, Server
from trio_mcp.client.opening import open_client
from trio_mcp.hosting import MemberDescription, MemberState, MemberStatus, RestartPolicy

__all__ = [
    "QUICK",
    "Scripted",
    "describe",
    "greeter",
    "hangs",
    "in_memory",
    "refuses",
    "serves",
    "until",
]

Script = Callable[[RawPeer], Awaitable[None]]

QUICK = RestartPolicy(first_delay=1, max_delay=60, jitter=0)


class Scripted(InMemory):
    """Opened for the first time it follows the first script, and so on; the last one ever after."""

    def __init__(self, *scripts: Script) -> None:
        super().__init__(Server("unused"))
        object.__setattr__(self, "scripts", scripts)
        object.__setattr__(self, "peers", [])
        object.__setattr__(self, "may_close", trio.Event())
        self.may_close.set()

    scripts: tuple[Script, ...]
    peers: list[RawPeer]
    may_close: trio.Event
    """Until it is set, no connection ends its closing."""

    @property
    def opened(self) -> int:
        """How many times."""
        return len(self.peers)

    def calls(self) -> int:
        """How many tool calls it was ever sent."""
        return sum(message.get("method") == "tools/call" for peer in self.peers for message in peer.wire)

    @asynccontextmanager
    async def open(self, **options: Any) -> AsyncIterator[Client]:
        """Play the next script."""
        script = self.scripts[min(self.opened, len(self.scripts) - 1)]
        async with scripted(script) as (channel, peer):
            self.peers.append(peer)
            async with open_client(channel, **{"era": "legacy", **options}) as client:
                try:
                    yield client
                finally:
                    with trio.CancelScope(shield=True, deadline=trio.current_time() + 3600):
                        await self.may_close.wait()


def describe(*scripts: Script, restart: RestartPolicy | None = None, **options: Any) -> MemberDescription:
    """A member that follows the scripts."""
    return MemberDescription(Scripted(*scripts), restart=restart, options=options)


def target_of(description: MemberDescription) -> Scripted:
    """The target of `describe`."""
    assert isinstance(description.target, Scripted)
    return description.target


async def hangs(peer: RawPeer) -> None:
    """Read, and say nothing."""
    await peer.to_the_end()


async def refuses(peer: RawPeer) -> None:
    """Answer ``initialize`` with an error."""
    await peer.error(await peer.until("initialize"), -32000, "no licence")


def serves(*tools: str, dies_on: str = "die", first_death: float | None = None) -> Script:
    """Offer ``tools``, which all answer their own name; a call of ``dies_on`` ends the connection unanswered, a call
    of ``wait`` is not answered. ``first_death``: end it after so many seconds in any case."""

    async def answer(peer: RawPeer) -> None:
        await peer.handshake(tools={"listChanged": True})
        while True:
            message = await peer.read()
            match message.get("method"):
                case "tools/list":
                    listed = [{"name": name, "inputSchema": {"type": "object"}} for name in tools]
                    await peer.result(message, {"tools": listed})
                case "tools/call" if message["params"]["name"] == dies_on:
                    return await peer.close()
                case "tools/call" if message["params"]["name"] != "wait":
                    await peer.text(message, message["params"]["name"])

    async def script(peer: RawPeer) -> None:
        if first_death is None:
            return await answer(peer)
        with trio.move_on_after(first_death):
            await answer(peer)
        return await peer.close()

    return script


def greeter(name: str = "greeter") -> Server:
    """A server in memory that offers ``greet`` and ``sleep``."""
    server = Server(name)

    @server.tool
    async def greet() -> str:
        return f"hello from {name}"

    @server.tool
    async def sleep(seconds: float) -> str:
        await trio.sleep(seconds)
        return "slept"

    return server


async def until(statuses: Any, name: str, state: MemberState) -> MemberStatus:
    """Take news until this one comes."""
    async for status in statuses:
        if (status.name, status.state) == (name, state):
            return status
    raise AssertionError(f"{name} never was {state}")


def in_memory(name: str = "greeter", **options: Any) -> MemberDescription:
    """A server in this process that greets."""
    return MemberDescription(greeter(name), options={"era": "legacy", **options})  # type: ignore[typeddict-item]
