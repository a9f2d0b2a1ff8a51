"""Many WebSocket clients at once on one server: nothing is lost, and how much memory an idle connection takes.

``python -m benchmarks.connections [N]`` starts a server in a child process, on loopback, and opens N (1000) clients,
every other one in the legacy era. Each makes two calls; when all 2 N are in flight, each cancels one of them; when the
server has counted N cleanups, the others are answered. It fails when anything is lost.
"""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import attrs
import trio

from trio_mcp import CancelCause, Client, Limits, RequestContext, Server, open_websocket, serve_websocket

DEADLINE = 300
"""Seconds after which something was lost; no measure of speed."""
SPARE = 100
"""Descriptors for all but the connections."""
WARMING = 20
"""Connections before the first look at the memory, so that only what each further one adds is counted."""


@attrs.define
class Count:
    """A number that grows, and can be waited for."""

    value: int = 0
    changed: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)

    def add(self) -> None:
        self.value += 1
        self.changed.unpark_all()

    async def reach(self, value: int) -> None:
        while self.value < value:
            await self.changed.park()


# The server


def crowded(clients: int) -> Server:
    """``held`` waits to be released, ``left`` to be cancelled; the other tools are for who controls it."""
    server = Server(
        "crowded", limits=Limits(max_connections=2 * clients + 2)
    )  # all come from one address, which gets half
    began, cleaned, released = Count(), Count(), trio.Event()

    @server.tool
    async def held(text: str) -> str:
        began.add()
        await released.wait()
        return text

    @server.tool
    async def left(ctx: RequestContext) -> None:
        began.add()
        try:
            await trio.sleep_forever()
        finally:
            if ctx.cancellation is not None and ctx.cancellation.cause is CancelCause.PEER:
                cleaned.add()

    @server.tool
    async def all_began() -> None:
        await began.reach(2 * clients)

    @server.tool
    async def all_cleaned() -> None:
        await cleaned.reach(clients)

    @server.tool
    async def release() -> None:
        released.set()

    @server.tool
    async def all_gone() -> None:
        while server.statistics().connections > 1:  # noqa: ASYNC110 - statistics can only be looked at
            await trio.sleep(0.01)

    @server.tool
    async def statistics() -> dict[str, int]:
        gc.collect()
        return {"cleaned": cleaned.value, **attrs.asdict(server.statistics())}

    return server


async def serve(clients: int) -> None:
    """Serve, and say the port on standard output. It ends even when nobody is left to end it."""
    with trio.move_on_after(DEADLINE + 60):
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(partial(serve_websocket, crowded(clients), port=0))
            print(listeners[0].socket.getsockname()[1], flush=True)


@contextmanager
def serving(clients: int) -> Iterator[tuple[int, str]]:
    """Process id and URL of the server; asked to end, it has to do so by itself."""
    command = [sys.executable, "-m", "benchmarks.connections", str(clients), "serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.pid, f"ws://127.0.0.1:{int(process.stdout.readline())}/mcp"
            process.terminate()
            assert process.wait(30) == 0
        finally:
            process.kill()


# The clients


@attrs.define
class Crowd:
    """The clients, and what became of their calls."""

    url: str
    open: Count = attrs.field(factory=Count)
    call: trio.Event = attrs.field(factory=trio.Event)
    scopes: list[trio.CancelScope] = attrs.field(factory=list[trio.CancelScope])
    cancelled: Count = attrs.field(factory=Count)
    replies: dict[int, str] = attrs.field(factory=dict[int, str])
    replied: Count = attrs.field(factory=Count)
    close: trio.Event = attrs.field(factory=trio.Event)

    async def one(self, number: int) -> None:
        async with open_websocket(self.url, era="legacy" if number % 2 else "modern") as client:
            self.open.add()
            await self.call.wait()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.leave, client)
                self.replies[number] = (await client.call_tool("held", {"text": f"reply {number}"})).text
                self.replied.add()
            await self.close.wait()

    async def leave(self, client: Client) -> None:
        with trio.CancelScope() as scope:
            self.scopes.append(scope)
            await client.call_tool("left")
        if scope.cancelled_caught:
            self.cancelled.add()


def resident(pid: int) -> int:
    """Bytes of memory a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def drive(clients: int, pid: int, url: str) -> None:
    """Go through all of it, checking and printing."""
    crowd, started = Crowd(url), time.perf_counter()

    def lap(what: str) -> None:
        nonlocal started
        print(f"{time.perf_counter() - started:7.2f} s  {what}", flush=True)
        started = time.perf_counter()

    with trio.fail_after(DEADLINE):
        async with open_websocket(url) as control, trio.open_nursery() as nursery:

            async def look(**expected: int) -> None:
                result = (await control.call_tool("statistics")).structured_content
                result["in_flight"] -= 1  # this one
                result["connections"] -= 1
                assert result == {**dict.fromkeys(result, 0), **expected}, result  # all else is 0

            for _ in range(WARMING):
                async with open_websocket(url) as client:
                    await client.ping()
            await control.call_tool("all_gone")
            before = resident(pid)
            lap("to warm up")

            for number in range(clients):
                nursery.start_soon(crowd.one, number)
            await crowd.open.reach(clients)
            lap(f"until {clients} clients were connected at once")
            await look(connections=clients, in_flight=0, cancelled=0, cleaned=0)
            each = (resident(pid) - before) / clients
            print(f"{each / 1024:7.1f} KiB of the server's memory per idle connection ({before / 2**20:.0f} MiB alone)")

            crowd.call.set()
            await control.call_tool("all_began")
            lap(f"until {2 * clients} calls were in flight")

            for scope in crowd.scopes:
                scope.cancel()
            await control.call_tool("all_cleaned")
            await crowd.cancelled.reach(clients)
            lap(f"until {clients} of them were cancelled and cleaned up")
            await look(connections=clients, in_flight=clients, cancelled=clients, cleaned=clients)

            await control.call_tool("release")
            await crowd.replied.reach(clients)
            lap(f"until the other {clients} had their replies")
            assert crowd.replies == {number: f"reply {number}" for number in range(clients)}
            await look(connections=clients, in_flight=0, cancelled=clients, cleaned=clients)

            crowd.close.set()
            await control.call_tool("all_gone")
            lap("until all were closed")
            await look(connections=0, in_flight=0, cancelled=clients, cleaned=clients)


def main(clients: str = "1000", role: str = "") -> None:
    """See the module."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, int(clients) + SPARE), hard))
    if role == "serve":
        trio.run(serve, int(clients))
    else:
        with serving(int(clients)) as (pid, url):
            trio.run(drive, int(clients), pid, url)
        print("nothing was lost")


if __name__ == "__main__":
    main(*sys.argv[1:])
