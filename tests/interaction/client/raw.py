"""Raw servers to test clients against: a child process that runs a program, and a scripted peer in memory."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import trio
from tests.interaction.client.http_front import open_client_by_http
from tests.patience import LONG, PATIENCE
from trio.testing import MockClock

from trio_mcp import Client, ConnectionLost, open_stdio, open_websocket
from trio_mcp.transports.lines import LineTransport, MemoryTransport, memory_transport_pair

__all__ = [
    "Journal",
    "RawPeer",
    "RawServer",
    "Serve",
    "alive",
    "cancels_in",
    "discovery",
    "methods_in",
    "scripted",
    "text_of",
]

_RAW_SERVER = str(Path(__file__).with_name("raw_server.py"))
INFO = {"name": "raw", "version": "1"}


class Journal:
    """A file of JSON lines that another process writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    @property
    def entries(self) -> list[dict[str, Any]]:
        """All there is so far."""
        whole, _, _ = self.path.read_bytes().rpartition(b"\n")
        return [json.loads(line) for line in whole.split(b"\n") if line]

    def of(self, event: str) -> list[dict[str, Any]]:
        """The entries of one kind."""
        return [entry for entry in self.entries if entry["event"] == event]

    @property
    def wire(self) -> list[dict[str, Any]]:
        """The messages that were read, in order."""
        return [json.loads(entry["line"]) for entry in self.of("read") if "line" in entry]

    async def has(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until there are ``count`` entries of this kind."""
        return await self._until(lambda: self.of(event), count)

    async def got(self, method: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until ``count`` messages of this method were read."""
        return await self._until(lambda: [message for message in self.wire if message.get("method") == method], count)

    async def jump_when_got(self, clock: MockClock, method: str, count: int = 1) -> None:
        """Let ``clock`` jump over a limit that is `LONG` as soon as ``count`` messages of this method were read."""
        await self.got(method, count)
        clock.jump(LONG)

    async def _until(self, found: Callable[[], list[dict[str, Any]]], count: int) -> list[dict[str, Any]]:
        # Files cannot be waited for, only looked at.
        with trio.fail_after(PATIENCE):
            while len(entries := found()) < count:  # noqa: ASYNC110 - the event is in another process
                await trio.sleep(0.005)
        return entries


class RawServer(Journal):
    """A child process that runs ``program`` (see ``raw_server.py``), and the journal of what it read."""

    def __init__(
        self, tmp_path: Path, program: str = "handshake()", name: str = "journal", transport: str = "stdio"
    ) -> None:
        super().__init__(tmp_path / name)
        self.transport = transport
        wire = "stdio" if transport == "http" else transport
        self.command = [sys.executable, "-S", _RAW_SERVER, str(self.path), wire, textwrap.dedent(program)]

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[Client]:
        """A client of it over its transport. Afterwards the process has ended, and the journal is complete."""
        if self.transport == "stdio":
            async with open_stdio(self.command, **options) as client:
                yield client
            return
        if self.transport == "http":
            async with self._by_http(**options) as client:
                yield client
            return
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            process = await trio.lowlevel.open_process(self.command, stdin=listener)
        try:
            async with open_websocket(f"ws://127.0.0.1:{port}/mcp", **options) as client:
                yield client
        finally:
            await _end_of(process)

    @asynccontextmanager
    async def _by_http(self, **options: Any) -> AsyncIterator[Client]:
        """A client of the HTTP server before the process, which reads and writes lines."""
        process = await trio.lowlevel.open_process(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdio is not None
        try:
            async with open_client_by_http(LineTransport(process.stdio, 1 << 26), **options) as client:
                yield client
        finally:
            await _end_of(process)


async def _end_of(process: trio.Process) -> None:
    with trio.CancelScope(shield=True):
        with trio.move_on_after(PATIENCE) as patience:
            await process.wait()
        process.kill()
        await process.wait()
    assert not patience.cancelled_caught, "the program waits for what never comes"


Serve: TypeAlias = Callable[..., RawServer]
"""`RawServer`, its directory and its transport settled."""


class RawPeer:
    """The server's end of a connection in memory, in the hands of a script."""

    def __init__(self, channel: MemoryTransport) -> None:
        self._channel = channel
        self.wire: list[dict[str, Any]] = []
        """The messages that were read, in order."""

    async def read(self) -> dict[str, Any]:
        """The next message. Raises `trio.EndOfChannel`."""
        message = json.loads(await self._channel.receive())
        self.wire.append(message)
        return message

    async def until(self, method: str) -> dict[str, Any]:
        """Read up to the next message of ``method``, and give it."""
        while (message := await self.read()).get("method") != method:
            pass
        return message

    async def to_the_end(self) -> None:
        """Read until the client closes."""
        with suppress(trio.EndOfChannel):
            while True:
                await self.read()

    async def write(self, line: str | bytes) -> None:
        """Send exactly this line."""
        await self._channel.send((line.encode() if isinstance(line, str) else line) + b"\n")

    async def send(self, message: dict[str, Any]) -> None:
        """Send a message."""
        await self.write(json.dumps({"jsonrpc": "2.0", **message}))

    async def result(self, request: dict[str, Any], value: Any) -> None:
        """Answer a request."""
        await self.send({"id": request["id"], "result": value})

    async def text(self, request: dict[str, Any], value: str = "done") -> None:
        """Answer a tool call with a text."""
        await self.result(request, {"content": [{"type": "text", "text": value}]})

    async def error(self, request: dict[str, Any], code: int, message: str = "no", **more: Any) -> None:
        """Answer a request with an error."""
        await self.send({"id": request["id"], "error": {"code": code, "message": message, **more}})

    async def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        """Send a notification."""
        await self.send({"method": method} if params is None else {"method": method, "params": params})

    async def progress(self, request: dict[str, Any], value: float, **more: Any) -> None:
        """Send progress of a request."""
        token = request["params"]["_meta"]["progressToken"]
        await self.notify("notifications/progress", {"progressToken": token, "progress": value, **more})

    async def log(self, data: Any) -> None:
        """Send a log message."""
        await self.notify("notifications/message", {"level": "info", "data": data})

    async def request(self, request_id: Any, method: str, params: dict[str, Any] | None = None) -> None:
        """Send a request of ours."""
        await self.send({"id": request_id, "method": method} | ({} if params is None else {"params": params}))

    async def handshake(self, version: str | None = None, **capabilities: Any) -> None:
        """Be opened by a legacy client: refuse ``server/discover``, answer ``initialize``, await the rest."""
        while True:
            message = await self.read()
            match message["method"]:
                case "initialize":
                    chosen = version or message["params"]["protocolVersion"]
                    await self.result(
                        message, {"protocolVersion": chosen, "capabilities": capabilities, "serverInfo": INFO}
                    )
                case "notifications/initialized":
                    return
                case "server/discover":
                    await self.error(message, -32601, "Method not found")

    async def discovered(self, *versions: str, **more: Any) -> None:
        """Be opened by a modern client."""
        await self.result(await self.until("server/discover"), discovery(*versions, **more))

    async def close(self) -> None:
        """Go away."""
        await self._channel.aclose()


def discovery(*versions: str, **more: Any) -> dict[str, Any]:
    """A modern server's answer to ``server/discover``."""
    supported = list(versions or ("2026-07-28",))
    return {
        "resultType": "complete",
        "supportedVersions": supported,
        "capabilities": {},
        "ttlMs": 0,
        "cacheScope": "private",
        **more,
    }


@asynccontextmanager
async def scripted(
    script: Callable[[RawPeer], Awaitable[None]], kind: type[RawPeer] = RawPeer
) -> AsyncIterator[tuple[MemoryTransport, RawPeer]]:
    """A channel for a client, whose server does what ``script`` says and reads on to the end after that."""
    ours, theirs = memory_transport_pair()
    peer = kind(theirs)

    ended = trio.Event()

    async def play() -> None:
        with suppress(trio.EndOfChannel, ConnectionLost):
            await script(peer)
        await peer.to_the_end()
        ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(play)
        yield ours, peer
        await ours.aclose()
        with trio.move_on_after(3600) as patience:
            await ended.wait()
        assert not patience.cancelled_caught, "the script waits for what never comes"


def text_of(result: Any) -> str:
    """The text of a tool's result."""
    return result.content[0].text


def cancels_in(wire: list[dict[str, Any]]) -> list[Any]:
    """The ids that were cancelled, in order."""
    return [m["params"]["requestId"] for m in wire if m.get("method") == "notifications/cancelled"]


def methods_in(wire: list[dict[str, Any]]) -> list[str]:
    """The methods in order; replies are left out."""
    return [message["method"] for message in wire if "method" in message]


def alive(pid: int) -> bool:
    """Whether there is such a process, zombies included."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
