"""The hot paths. Each goes through one of them ``count`` times, over lines as on stdio, and checks that all came."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count as numbers

import trio
import trio.testing

from trio_mcp import Limits, RequestContext, Server
from trio_mcp.client.client import Client
from trio_mcp.client.opening import open_client
from trio_mcp.connecting.memory import open_server
from trio_mcp.transports.lines import LineChannel

from ..driver import messages
from ..driver.checks import check
from .scripted import ScriptedStream

__all__ = ["CLIENT_PATHS", "SERVER_PATHS", "ClientPath", "ServerPath", "served", "start_waiting", "used"]

_ids = numbers(1)
_LIMITS = Limits(max_in_flight=10_000)


def _server() -> Server:
    server = Server("counted", limits=_LIMITS)

    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.tool
    async def notify(count: int, ctx: RequestContext) -> None:
        for number in range(count):
            await ctx.log.info(f"row {number} was read")

    @server.tool
    async def progress(count: int, ctx: RequestContext) -> None:
        for number in range(count):
            ctx.progress(number, count)

    @server.tool
    async def ask(count: int, ctx: RequestContext) -> str:
        answers = [(await ctx.sample("question", max_tokens=10)).content.text for _ in range(count)]
        return " ".join(answers)

    @server.tool
    async def wait() -> None:
        await trio.sleep_forever()

    return server


@asynccontextmanager
async def served() -> AsyncIterator[ScriptedStream]:
    """A server, initialized, and the other end of its stream."""
    stream = ScriptedStream()
    async with open_server(_server(), LineChannel(stream, _LIMITS.max_message_bytes)):
        stream.give(messages.initialize(), messages.initialized())
        await stream.reply(0)
        yield stream


@asynccontextmanager
async def used(rows: list[str]) -> AsyncIterator[tuple[ScriptedStream, Client]]:
    """A client, connected, and the other end of its stream. ``rows`` gets what is logged."""
    stream = ScriptedStream()

    async def handshake() -> None:
        (request,) = await stream.taken()
        info = {"name": "scripted", "version": "1"}
        said = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}, "logging": {}}, "serverInfo": info}
        stream.give(messages.result(request["id"], said))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(handshake)
        channel = LineChannel(stream, _LIMITS.max_message_bytes)
        async with open_client(channel, era="legacy", on_log=lambda params: rows.append(params.data)) as client:
            check((await stream.taken())[0]["method"], "notifications/initialized", "the end of the handshake")
            yield stream, client


ServerPath = Callable[[ScriptedStream, int], Awaitable[None]]
ClientPath = Callable[[ScriptedStream, Client, list[str], int], Awaitable[None]]


def _call(stream: ScriptedStream, tool: str, token: int | None = None, **arguments: object) -> int:
    request_id = next(_ids)
    stream.give(messages.tool_call(request_id, tool, arguments, token))
    return request_id


async def _echo(stream: ScriptedStream, count: int) -> None:
    for number in range(count):
        request_id = _call(stream, "echo", text=messages.echo(number))
        (reply,) = await stream.reply(request_id)
        check(messages.text(reply, request_id), messages.echo(number), "an echo")


async def _notify(stream: ScriptedStream, count: int) -> None:
    received = await stream.reply(_call(stream, "notify", count=count))
    check(len(received), count + 1, "notifications and the reply")


async def _progress(stream: ScriptedStream, count: int) -> None:
    received = await stream.reply(_call(stream, "progress", token=7, count=count))
    check(received[-2]["params"]["progress"], count - 1, "the last progress")


async def _ask(stream: ScriptedStream, count: int) -> None:
    request_id = _call(stream, "ask", count=count)
    content = {"type": "text", "text": "answer"}
    for _ in range(count):
        (question,) = await stream.taken()
        stream.give(messages.result(question["id"], {"role": "assistant", "content": content, "model": "m"}))
    (reply,) = await stream.taken()
    check(messages.text(reply, request_id).split(), ["answer"] * count, "the answers")


async def start_waiting(stream: ScriptedStream, count: int) -> list[int]:
    """So many requests that wait to be cancelled."""
    ids = [_call(stream, "wait") for _ in range(count)]
    await trio.testing.wait_all_tasks_blocked()
    return ids


async def _cancel(stream: ScriptedStream, count: int) -> None:
    for _ in range(count):
        (request_id,) = await start_waiting(stream, 1)
        stream.give(messages.cancel(request_id))
        await trio.testing.wait_all_tasks_blocked()
    await _echo(stream, 1)  # which would find a reply to a cancelled request before its own


async def _client_call(stream: ScriptedStream, client: Client, rows: list[str], count: int) -> None:
    async def answer() -> None:
        for _ in range(count):
            (request,) = await stream.taken()
            content = [{"type": "text", "text": request["params"]["arguments"]["text"]}]
            stream.give(messages.result(request["id"], {"content": content}))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        for number in range(count):
            check((await client.call_tool("echo", {"text": str(number)})).text, str(number), "a result")


async def _client_notification(stream: ScriptedStream, client: Client, rows: list[str], count: int) -> None:
    async def tell() -> None:
        (request,) = await stream.taken()
        for number in range(count):
            stream.give(messages.notification("notifications/message", {"level": "info", "data": str(number)}))
        stream.give(messages.result(request["id"], {"content": []}))

    rows.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tell)
        await client.call_tool("notify")
    check(rows, [str(number) for number in range(count)], "the rows")


SERVER_PATHS: dict[str, ServerPath] = {
    "echo: decode, handler, reply": _echo,
    "log notification": _notify,
    "progress inside the interval": _progress,
    "sampling round trip": _ask,
    "request and its cancel": _cancel,
}
CLIENT_PATHS: dict[str, ClientPath] = {
    "client: call": _client_call,
    "client: notification handled": _client_notification,
}
