"""Servers that start slowly, and read ``server/discover`` and ``initialize`` together.

A good answer to ``server/discover`` wins, in whatever order the tasks of the client run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.interaction.client.raw import INFO, RawServer, discovery
from tests.orders import run_in_order_of
from tests.patience import PATIENCE
from trio.testing import MockClock

from trio_mcp import Client, ConnectionLost, open_stdio, open_tcp, open_unix, open_websocket
from trio_mcp.client.opening import open_client
from trio_mcp.transports.memory import memory_channel_pair

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455 section 1.3
MODERN, LEGACY = "2026-07-28", "2025-11-25"
SEEDS = 1000
GREETED = {"protocolVersion": LEGACY, "capabilities": {}, "serverInfo": INFO}
LOG = {"method": "notifications/message", "params": {"level": "info", "data": "ready"}}
TOGETHER = 0.0
"""A limit of the probe that is over at once, so that both questions are sent together."""

Answers = Callable[[Any, Any], list[dict[str, Any]]]


def both(discover: Any, initialize: Any) -> list[dict[str, Any]]:
    return [{"id": discover, "result": discovery()}, {"id": initialize, "result": GREETED}]


def both_after_a_log(discover: Any, initialize: Any) -> list[dict[str, Any]]:
    return [LOG, *both(discover, initialize)]


def refusing_initialize(discover: Any, initialize: Any) -> list[dict[str, Any]]:
    return [{"id": initialize, "error": {"code": -32601, "message": "no"}}, {"id": discover, "result": discovery()}]


def greeting_senselessly(discover: Any, initialize: Any) -> list[dict[str, Any]]:
    return [{"id": discover, "result": discovery()}, {"id": initialize, "result": {"protocolVersion": "none"}}]


def refusing_discover(discover: Any, initialize: Any) -> list[dict[str, Any]]:
    return [{"id": discover, "error": {"code": -32601, "message": "no"}}, {"id": initialize, "result": GREETED}]


def discovering_senselessly(discover: Any, initialize: Any) -> list[dict[str, Any]]:
    return [{"id": discover, "result": {"supportedVersions": 5}}, {"id": initialize, "result": GREETED}]


def lines(messages: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n" for message in messages)


# In memory


async def in_memory(answers: Answers, *, is_offered: bool = False, dies: bool = False) -> str:
    ours, theirs = memory_channel_pair()

    async def serve() -> None:
        discover = json.loads(await theirs.receive())
        initialize = json.loads(await theirs.receive())
        for message in answers(discover["id"], initialize["id"]):
            await theirs.send(lines([message]))
        if is_offered:
            again = json.loads(await theirs.receive())
            assert again["method"] == "server/discover"
            await theirs.send(lines([{"id": again["id"], "result": discovery()}]))
        if dies:
            return await theirs.aclose()
        with pytest.raises((trio.EndOfChannel, ConnectionLost)):
            while True:
                await theirs.receive()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        async with open_client(ours) as client:
            return client.revision.name


# Over sockets


class Reading:
    """The client's messages on a stream, as they come."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.buffer = b""

    async def up_to(self, mark: bytes) -> bytes:
        while mark not in self.buffer:
            self.buffer += await self.stream.receive_some()
        found, _, self.buffer = self.buffer.partition(mark)
        return found

    async def exactly(self, count: int) -> bytes:
        while len(self.buffer) < count:
            self.buffer += await self.stream.receive_some()
        found, self.buffer = self.buffer[:count], self.buffer[count:]
        return found


async def serve_lines(stream: trio.SocketStream, answers: Answers) -> None:
    reading = Reading(stream)
    ids = [json.loads(await reading.up_to(b"\n"))["id"] for _ in range(2)]
    await stream.send_all(lines(answers(*ids)))


async def serve_websocket(stream: trio.SocketStream, answers: Answers) -> None:
    reading = Reading(stream)
    head = await reading.up_to(b"\r\n\r\n")
    [key] = [line[18:].strip() for line in head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key:")]
    await stream.send_all(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Protocol: mcp\r\nSec-WebSocket-Accept: "
        + base64.b64encode(hashlib.sha1(key + GUID).digest())
        + b"\r\n\r\n"
    )
    ids = [json.loads(await frame(reading))["id"] for _ in range(2)]
    await stream.send_all(b"".join(framed(line) for line in lines(answers(*ids)).splitlines()))


async def frame(reading: Reading) -> bytes:
    _, length = await reading.exactly(2)
    length &= 0x7F
    if length == 126:
        length = int.from_bytes(await reading.exactly(2), "big")
    key, masked = await reading.exactly(4), await reading.exactly(length)
    return bytes(each ^ key[at % 4] for at, each in enumerate(masked))


def framed(text: bytes) -> bytes:
    length = bytes([len(text)]) if len(text) < 126 else b"\x7e" + len(text).to_bytes(2, "big")
    return b"\x81" + length + text


Serve = Callable[[trio.SocketStream, Answers], Awaitable[None]]


async def over_socket(
    listening: trio.socket.SocketType,
    connect: Callable[[], AbstractAsyncContextManager[Client]],
    serve: Serve,
    answers: Answers,
) -> str:
    async def accept() -> None:
        connection, _ = await listening.accept()
        async with trio.SocketStream(connection) as stream:
            await serve(stream, answers)
            await stream.receive_some()  # the end, or the frame that closes a WebSocket

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept)
            async with connect() as client:
                return client.revision.name


@asynccontextmanager
async def bound(family: int, address: Any) -> AsyncIterator[trio.socket.SocketType]:
    with trio.socket.socket(family) as listening:
        await listening.bind(address)
        listening.listen()
        yield listening


async def over_tcp(answers: Answers, folder: Path) -> str:
    async with bound(socket.AF_INET, ("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        return await over_socket(
            listening, lambda: open_tcp("127.0.0.1", port, probe_timeout=TOGETHER), serve_lines, answers
        )


async def over_unix(answers: Answers, folder: Path) -> str:
    path = folder / "socket"
    path.unlink(missing_ok=True)
    async with bound(socket.AF_UNIX, str(path)) as listening:
        return await over_socket(listening, lambda: open_unix(path, probe_timeout=TOGETHER), serve_lines, answers)


async def over_websocket(answers: Answers, folder: Path) -> str:
    async with bound(socket.AF_INET, ("127.0.0.1", 0)) as listening:
        url = f"ws://127.0.0.1:{listening.getsockname()[1]}/mcp"
        return await over_socket(
            listening, lambda: open_websocket(url, probe_timeout=TOGETHER), serve_websocket, answers
        )


MODERN_ANSWERS = [both, both_after_a_log, refusing_initialize, greeting_senselessly]


@pytest.mark.parametrize("answers", MODERN_ANSWERS)
def test_a_good_answer_to_discover_wins_in_every_order_of_tasks(answers: Answers) -> None:
    found = {run_in_order_of(seed, in_memory, answers, clock=MockClock(autojump_threshold=0)) for seed in range(SEEDS)}
    assert found == {MODERN}


@pytest.mark.parametrize("answers", [refusing_discover, discovering_senselessly])
def test_the_answer_to_initialize_counts_where_discover_has_no_good_one(answers: Answers) -> None:
    found = {run_in_order_of(seed, in_memory, answers, clock=MockClock(autojump_threshold=0)) for seed in range(SEEDS)}
    assert found == {LEGACY}


def test_an_offer_of_a_modern_revision_wins_over_the_answer_to_initialize() -> None:
    def offering(discover: Any, initialize: Any) -> list[dict[str, Any]]:
        data = {"supported": [MODERN], "requested": MODERN}
        error = {"code": -32022, "message": "ask once more", "data": data}
        return [{"id": discover, "error": error}, {"id": initialize, "result": GREETED}]

    opened = partial(in_memory, offering, is_offered=True)
    found = {run_in_order_of(seed, opened, clock=MockClock(autojump_threshold=0)) for seed in range(SEEDS)}
    assert found == {MODERN}


def test_a_good_answer_to_discover_wins_over_the_end_of_the_server() -> None:
    opened = partial(in_memory, both, dies=True)
    found = {run_in_order_of(seed, opened, clock=MockClock(autojump_threshold=0)) for seed in range(SEEDS)}
    assert found == {MODERN}


@pytest.mark.parametrize("way", [over_tcp, over_unix, over_websocket])
@pytest.mark.parametrize("answers", MODERN_ANSWERS)
def test_a_good_answer_to_discover_wins_over_sockets(
    way: Callable[[Answers, Path], Awaitable[str]], answers: Answers, tmp_path: Path
) -> None:
    found = {run_in_order_of(seed, way, answers, tmp_path) for seed in range(SEEDS // len(MODERN_ANSWERS))}
    assert found == {MODERN}


def test_a_good_answer_to_discover_wins_over_stdio(tmp_path: Path) -> None:
    raw = RawServer(
        tmp_path,
        """
        discover, initialize = read(), read()
        write(b"".join(
            json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode() + b"\\n"
            for id, result in [
                (discover["id"], {"supportedVersions": ["2026-07-28"], "capabilities": {},
                                  "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}),
                (initialize["id"], {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": INFO}),
            ]
        ))
        """,
    )

    async def opened() -> str:
        with trio.fail_after(PATIENCE):
            async with open_stdio(raw.command, probe_timeout=TOGETHER) as client:
                return client.revision.name

    assert {run_in_order_of(seed, opened) for seed in range(20)} == {MODERN}
