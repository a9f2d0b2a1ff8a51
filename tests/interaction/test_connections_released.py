"""A closed connection and all that it served are freed by reference counting, without the garbage collector.
References inside trio and the transport libraries don't count.
"""

from __future__ import annotations

import gc
import json
import logging
import math
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any

import pytest
import trio
from tests.interaction.websocket.raw_peer import PATIENCE, RawPeer, connected, masked_frame, port_of, serving

from trio_mcp import (
    Client,
    ConnectionLost,
    Limits,
    PeerError,
    RequestContext,
    Server,
    fail_after_silence,
    open_http,
    open_memory,
    open_stdio,
    open_tcp,
    open_websocket,
    serve_http,
    serve_tcp,
    serve_websocket,
)
from trio_mcp.client.opening import open_client
from trio_mcp.hosting import MemberDescription, MemberUnavailable, open_group
from trio_mcp.transports.lines import MemoryTransport, memory_transport_pair
from trio_mcp.types import CreateMessageResult, TextContent

Act = Callable[[Client], Awaitable[object]]


def server() -> Server:
    """Handlers that end in every way there is."""
    server = Server("s", limits=Limits(drain_timeout=0, retry_timeout=0.2))

    @server.tool
    async def echo(ctx: RequestContext, text: str) -> str:
        ctx.progress(1)
        ctx.progress(2)  # kept for later
        await ctx.log.error("said")
        return text

    @server.tool
    async def hang() -> None:
        await trio.sleep_forever()

    @server.tool(timeout=0.02)
    async def hang_for_a_moment() -> None:
        await trio.sleep_forever()

    @server.tool
    async def fail() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hang)
            raise ValueError("secret")

    @server.tool
    def plain(ctx: RequestContext, seconds: float) -> str:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            ctx.check_cancelled()
            time.sleep(0.001)
        if not seconds:
            raise ValueError("secret")
        return "done"

    @server.tool
    async def ask(ctx: RequestContext) -> None:
        await ctx.sample("well?", max_tokens=5)

    @server.tool
    def plain_ask(ctx: RequestContext) -> None:
        ctx.sample("well?", max_tokens=5)

    return server


async def open_nothing(client: Client) -> None:
    """Nothing was called."""


async def call(client: Client, tool: str, **arguments: Any) -> None:
    """The end of a call, whichever it is."""
    with suppress(PeerError):
        await client.call_tool(tool, arguments, on_progress=lambda _: None)


async def give_up(client: Client, tool: str, **arguments: Any) -> None:
    """Leave a call."""
    with trio.move_on_after(0.02):
        await call(client, tool, **arguments)


async def leave_when_asked(client: Client, tool: str) -> None:
    """Leave a call while its question waits for an answer."""
    user = client.settings.sampling
    assert isinstance(user, User)
    user.answers = False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call, client, tool)
        await user.asked.wait()
        nursery.cancel_scope.cancel(reason="the caller leaves")


async def fail_after(client: Client, tool: str) -> None:
    with suppress(trio.TooSlowError), fail_after_silence(0.02, maximum=1):
        await call(client, tool)


async def fail_in_callback(client: Client) -> None:
    with suppress(ZeroDivisionError):
        await client.call_tool("echo", {"text": "x"}, on_progress=lambda _: 1 / 0)


ACTS: dict[str, Act] = {
    "nothing": open_nothing,
    "an answer": partial(call, tool="echo", text="x"),
    "a failure": partial(call, tool="fail"),
    "an unknown tool": partial(call, tool="none"),
    "a cancel": partial(give_up, tool="hang"),
    "a question": partial(call, tool="ask"),
    "a question that was left": partial(leave_when_asked, tool="ask"),
    "a thread": partial(call, tool="plain", seconds=0.01),
    "a thread that failed": partial(call, tool="plain", seconds=0),
    "a thread that was cancelled": partial(give_up, tool="plain", seconds=100),
    "a question of a thread": partial(call, tool="plain_ask"),
    "a question of a thread that was left": partial(leave_when_asked, tool="plain_ask"),
    "a callback that failed": fail_in_callback,
    "a time limit that passed": partial(fail_after, tool="hang"),
    "a time limit of the server's": partial(call, tool="hang_for_a_moment"),
    "a cancel from around": partial(call, tool="hang"),
}
LEFT_AFTER = {"a cancel from around": 0.2}
"""Seconds after which all is left from around, the connection included."""


class User:
    """Who answers questions, after a moment or never."""

    def __init__(self) -> None:
        self.asked = trio.Event()
        self.answers = True

    async def __call__(self, _: Any) -> CreateMessageResult:
        self.asked.set()
        await trio.sleep(0.01 if self.answers else math.inf)
        return CreateMessageResult("assistant", TextContent("hi"), "m")


def opening(wire: str, port: int, **options: Any) -> AbstractAsyncContextManager[Client]:
    if wire == "tcp":
        return open_tcp("127.0.0.1", port, **options)
    if wire == "http":
        return open_http(f"http://127.0.0.1:{port}/mcp", **options)
    return open_websocket(f"ws://127.0.0.1:{port}/mcp", **options)


SERVE: dict[str, Callable[..., Awaitable[None]]] = {
    "tcp": serve_tcp,
    "websocket": serve_websocket,
    "http": serve_http,
}


async def let_act(act: Act, wire: str, **options: Any) -> None:
    """Open a server and its only client, and let it ``act``. No context manager of contextlib: where its generator
    opens a nursery, as `serving` does, from CPython 3.12 on it keeps a cancel from around, and all that this has left.
    """
    if wire == "memory":
        async with open_memory(server(), **options) as client:
            await act(client)
        return
    async with trio.open_nursery() as nursery:
        port = port_of(await nursery.start(partial(SERVE[wire], server(), port=0)))
        async with opening(wire, port, **options) as client:
            await act(client)
        nursery.cancel_scope.cancel(reason="the test is over")


async def garbage_of(scenario: Callable[[], Awaitable[object]]) -> list[str]:
    """What ``scenario`` leaves to the garbage collector of our objects, and of frames of our code."""
    logging.disable(logging.CRITICAL)  # pytest keeps what is logged, tracebacks included
    await scenario()  # what is made once and kept is made now
    gc.disable()
    gc.freeze()  # what there is now takes long to look through, and is not what this is about
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        await scenario()
        gc.collect()
        return sorted(filter(None, map(_ours, gc.garbage)))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        logging.disable(logging.NOTSET)


def _ours(item: object) -> str:
    if isinstance(item, FrameType):
        module, name = item.f_globals.get("__name__", ""), f"frame of {item.f_code.co_qualname}"
    else:
        module, name = type(item).__module__ or "", type(item).__qualname__
    return name if str(module).startswith("trio_mcp") else ""


WAYS = [
    ("memory", "legacy"),
    ("memory", "modern"),
    ("tcp", "modern"),
    ("websocket", "legacy"),
    ("http", "legacy"),
    ("http", "modern"),
]
UNTOLD = ("http", "legacy", "a cancel from around")
"""Left out: server and client end at once, and the client still asks for the session that is gone."""


@pytest.mark.parametrize(("wire", "era", "act"), [(*way, act) for way in WAYS for act in ACTS if (*way, act) != UNTOLD])
async def test_closed_connection_is_freed_without_garbage_collection(wire: str, act: str, era: str) -> None:
    async def scenario() -> None:
        with trio.move_on_after(LEFT_AFTER.get(act, PATIENCE)):
            await let_act(ACTS[act], wire, era=era, sampling=User())

    with trio.fail_after(PATIENCE):
        assert await garbage_of(scenario) == []


async def hear_and_go(channel: MemoryTransport) -> None:
    await channel.receive()
    await channel.aclose()


@pytest.mark.parametrize("era", ["legacy", "modern", "auto"])
async def test_connection_to_a_server_that_closes_before_its_answer_is_freed_without_garbage_collection(
    era: str,
) -> None:
    async def scenario() -> None:
        ours, theirs = memory_transport_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hear_and_go, theirs)
            with suppress(ConnectionLost):
                async with open_client(ours, era=era):
                    pytest.fail("nobody answers")

    with trio.fail_after(PATIENCE):
        assert await garbage_of(scenario) == []


async def vanish(peer: RawPeer) -> None:
    await peer.reset()


async def say(peer: RawPeer, frames: bytes) -> None:
    await peer.stream.send_all(frames)
    await peer.closed()


@pytest.mark.parametrize(
    "end",
    [
        vanish,
        partial(say, frames=masked_frame(8, b"")),
        partial(say, frames=masked_frame(2, b"")),
        partial(say, frames=masked_frame(1, b"\xff")),
        partial(say, frames=b"\x81\xff" + bytes((1, *[0] * 11))),
    ],
    ids=["reset", "closed", "binary", "no utf-8", "too long"],
)
async def test_broken_websocket_connection_is_freed_without_garbage_collection(
    end: Callable[[RawPeer], Awaitable[None]],
) -> None:
    async def scenario() -> None:
        async with (
            serving(serve_websocket, server(), port=0) as listeners,
            connected(port_of(listeners)) as peer,
        ):
            await peer.open_legacy()
            await peer.ask(1, "tools/call", {"name": "hang"})
            await peer.ask(2, "ping")
            await peer.reply(2)
            await end(peer)

    with trio.fail_after(PATIENCE):
        assert await garbage_of(scenario) == []


async def reset(stream: trio.SocketStream) -> None:
    """Vanish once the other side has said something."""
    await stream.receive_some()
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()


async def test_reset_client_connection_is_freed_without_garbage_collection() -> None:
    async def scenario() -> None:
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(partial(trio.serve_tcp, reset, 0, host="127.0.0.1"))
            with suppress(ConnectionLost):
                async with open_tcp("127.0.0.1", port_of(listeners)):
                    pytest.fail("nobody answers")
            nursery.cancel_scope.cancel(reason="the test is over")

    with trio.fail_after(PATIENCE):
        assert await garbage_of(scenario) == []


async def test_reset_tcp_server_connection_is_freed_without_garbage_collection() -> None:
    async def scenario() -> None:
        served, left = Server("s"), trio.Event()

        @served.tool
        async def hang(ctx: RequestContext) -> None:
            await ctx.log.error("said")
            try:
                await trio.sleep_forever()
            finally:
                left.set()

        async with serving(serve_tcp, served, port=0) as listeners:
            stream = await trio.open_tcp_stream("127.0.0.1", port_of(listeners))
            prefix = "io.modelcontextprotocol/"
            meta = {
                f"{prefix}protocolVersion": "2026-07-28",
                f"{prefix}clientCapabilities": {},
                f"{prefix}logLevel": "info",
            }
            params = {"name": "hang", "arguments": {}, "_meta": meta}
            request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            await stream.send_all(json.dumps(request).encode() + b"\n")
            await reset(stream)
            await left.wait()

    with trio.fail_after(PATIENCE):
        assert await garbage_of(scenario) == []


async def say_nothing(stream: trio.SocketStream) -> None:
    while await stream.receive_some():
        pass


@pytest.mark.parametrize("wire", ["tcp", "websocket", "http"])
async def test_connection_attempt_that_times_out_is_freed_without_garbage_collection(wire: str) -> None:
    async def scenario() -> None:
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(partial(trio.serve_tcp, say_nothing, 0, host="127.0.0.1"))
            with suppress(trio.TooSlowError):
                async with opening(wire, port_of(listeners), connect_timeout=0.02):
                    pytest.fail("nobody answers")
            nursery.cancel_scope.cancel(reason="the test is over")

    with trio.fail_after(PATIENCE):
        assert await garbage_of(scenario) == []


async def test_stdio_connection_whose_command_is_missing_is_freed_without_garbage_collection() -> None:
    async def scenario() -> None:
        with suppress(ConnectionLost):
            async with open_stdio(["/nowhere/to/be/found"]):
                pytest.fail("there is none")

    with trio.fail_after(PATIENCE):
        assert await garbage_of(scenario) == []


async def test_server_of_a_client_group_that_exceeds_connect_timeout_is_freed_without_garbage_collection() -> None:
    @asynccontextmanager
    async def lifespan(_: Server) -> AsyncIterator[None]:
        await trio.sleep_forever()
        yield

    async def scenario() -> None:
        slow = MemberDescription(Server("s", lifespan=lifespan), options={"connect_timeout": 0.02})
        async with open_group({"slow": slow}) as group:
            with suppress(MemberUnavailable):
                await group.client("slow")

    with trio.fail_after(PATIENCE):
        assert await garbage_of(scenario) == []
