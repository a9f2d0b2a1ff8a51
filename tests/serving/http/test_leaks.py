"""BPL-04 and BPL-06 over HTTP: many exchanges and many clients that vanish leave a server as small and as idle as it
was."""

from __future__ import annotations

import gc
import os
import time
from typing import Any

import trio
from tests.interaction.harness import descriptors_of, resident_bytes
from tests.patience import PATIENCE
from tests.serving.http.raw import Connection, modern, request_bytes
from tests.serving.http.scenes import Scene, SocketEndpoint, call, cancel, over_sockets
from trio.testing import wait_all_tasks_blocked

from trio_mcp import Limits

AT_ONCE = 25


def modern_call(tool: str, **arguments: Any) -> bytes:
    params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": 1}}
    headers, body = modern("tools/call", params)
    return request_bytes("POST", {**headers}, body)


class Load:
    """Exchanges of every kind, and disconnects, against one server."""

    def __init__(self, scene: Scene, endpoint: SocketEndpoint, session: dict[str, str | None]) -> None:
        self._scene = scene
        self._endpoint = endpoint
        self._session = session
        self.exchanges = 0
        self.disconnects = 0

    async def exchange(self, rounds: int, who: str) -> None:
        """Send pipelined requests of every kind on one connection, and read all answers."""
        kinds = [
            *[modern_call("echo", text="x" * 100)] * 6,
            modern_call("levels"),
            modern_call("no such tool"),
            *[request_bytes("POST", self._session, call("echo", f"{who} 1", text="x" * 100))] * 2,
            request_bytes("POST", self._session, call("levels", f"{who} 2")),
            request_bytes("POST", self._session, cancel(99)),
        ]
        stream = await trio.open_tcp_stream("127.0.0.1", self._endpoint.port)
        async with stream:
            for _ in range(rounds):
                await stream.send_all(b"".join(kinds))
                answers, received = 0, b""
                while answers < len(kinds):
                    received += await stream.receive_some()
                    answers = received.count(b"HTTP/1.1 20")
                self.exchanges += len(kinds)

    async def _connect(self) -> Connection:
        return Connection(await trio.open_tcp_stream("127.0.0.1", self._endpoint.port))

    async def cancel_calls(self, count: int) -> None:
        """Begin calls of the session, and cancel each by another POST."""
        for number in range(count):
            name = f"cancelled {number}"
            connection, other = [await self._connect() for _ in range(2)]
            await connection.send("POST", self._session, call("wait", name, name=name))
            await self._scene[name].started.wait()
            await other.ask("POST", self._session, cancel(name))
            await connection.answer()
            await connection.aclose()
            await other.aclose()
            del self._scene.journals[name]
            self.exchanges += 2

    async def disconnect(self, name: str, request: bytes) -> None:
        """Begin a call, and go away."""
        stream = await trio.open_tcp_stream("127.0.0.1", self._endpoint.port)
        await stream.send_all(request)
        await self._scene[name].started.wait()
        await trio.aclose_forcefully(stream)
        await self._scene[name].ended.wait()
        del self._scene.journals[name]
        self.disconnects += 1

    async def run(self, *, rounds: int, disconnects: int) -> None:
        async with trio.open_nursery() as nursery:
            for who in ("one", "two"):
                nursery.start_soon(self.exchange, rounds, who)
            nursery.start_soon(self.cancel_calls, rounds // 5)
        for batch in range(disconnects // AT_ONCE):
            async with trio.open_nursery() as nursery:
                for number in range(AT_ONCE):
                    name = f"left {batch} {number}"
                    request = modern_call("wait", name=name, speaks=bool(number % 2))
                    nursery.start_soon(self.disconnect, name, request)


async def settled() -> tuple[int, int, int, int]:
    """Return the numbers of tasks, descriptors and objects, and the memory in bytes."""
    await wait_all_tasks_blocked()
    gc.collect()
    tasks = trio.lowlevel.current_statistics().tasks_living
    return tasks, descriptors_of(os.getpid()), len(gc.get_objects()), resident_bytes(os.getpid())


async def test_bpl_04_bpl_06_server_leaks_nothing_after_10000_requests_and_1000_disconnects() -> None:
    scene = Scene(Limits(max_replay_bytes=20_000))
    async with over_sockets(scene.server) as endpoint:
        load = Load(scene, endpoint, await endpoint.initialize())
        with trio.fail_after(PATIENCE):
            await load.run(rounds=50, disconnects=50)
            tasks, descriptors, objects, memory = await settled()
            load.exchanges = load.disconnects = 0
            await load.run(rounds=410, disconnects=1000)
            assert (load.exchanges >= 10_000, load.disconnects) == (True, 1000)
            after = await settled()
        assert after[:2] == (tasks, descriptors)
        assert after[2] - objects < 2000
        assert after[3] - memory < 5 * 2**20
        used = time.process_time()
        await trio.sleep(1)
        assert time.process_time() - used < 0.05
