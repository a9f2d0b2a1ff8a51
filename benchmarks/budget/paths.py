"""The hot paths. Each goes through one of them ``count`` times, over lines or over HTTP, and checks that all came."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count as numbers

import trio
import trio.testing
from pydantic import BaseModel

from trio_mcp import Limits, RequestContext, Server, serve_http
from trio_mcp.auth import Principal, Protected
from trio_mcp.client.client import Client
from trio_mcp.client.opening import open_client
from trio_mcp.connecting.memory import open_server
from trio_mcp.transports.lines import LineTransport
from trio_mcp.types import TextContent

from ..driver import messages
from ..driver.checks import check
from ..driver.http import Response, size_of
from ..driver.http_session import Requests
from .scripted import ScriptedStream

__all__ = [
    "CLIENT_PATHS",
    "HTTP_PATHS",
    "SERVER_PATHS",
    "ClientPath",
    "HttpClient",
    "HttpPath",
    "ServerPath",
    "protected_over_http",
    "served",
    "served_over_http",
    "start_listening",
    "start_sessions",
    "start_waiting",
    "used",
]

_ids = numbers(1)
_LIMITS = Limits(max_in_flight=10_000, max_replay_bytes=65_536)  # so that a flood also drops the events of a session


class _Line(BaseModel):
    text: str
    count: int = 1


def _server() -> Server:
    server = Server("counted", limits=_LIMITS)

    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.tool
    async def echo_model(line: _Line) -> _Line:
        return line

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
        answers = [(await ctx.sample("question", max_tokens=10)).content for _ in range(count)]
        return " ".join(answer.text for answer in answers if isinstance(answer, TextContent))

    @server.resource("note://one")
    async def note() -> str:
        return "a note"

    @server.tool
    async def wait() -> None:
        await trio.sleep_forever()

    return server


@asynccontextmanager
async def served() -> AsyncIterator[ScriptedStream]:
    """A server, initialized, and the other end of its stream."""
    stream = ScriptedStream()
    async with open_server(_server(), LineTransport(stream, _LIMITS.max_message_bytes)):
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
        channel = LineTransport(stream, _LIMITS.max_message_bytes)
        async with open_client(channel, era="legacy", on_log=lambda params: rows.append(params.data)) as client:
            check((await stream.taken())[0]["method"], "notifications/initialized", "the end of the handshake")
            yield stream, client


class HttpClient:
    """One connection to a server over HTTP, and the requests of one era for that."""

    def __init__(self, stream: trio.SocketStream, requests: Requests) -> None:
        self.requests = requests
        self._stream = stream

    async def ask(self, request: bytes) -> Response:
        """Send a request, and wait for all of the response."""
        await self._stream.send_all(request)
        buffer = bytearray()
        while not size_of(buffer):
            buffer += await self._stream.receive_some(1 << 16)
        return Response.of(bytes(buffer))


@asynccontextmanager
async def served_over_http() -> AsyncIterator[tuple[HttpClient, HttpClient]]:
    """A server over HTTP, and a client in each era, the legacy one with a session."""
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(serve_http, _server(), port=0, handle_signals=False))
        port = listener.socket.getsockname()[1]
        async with (
            await trio.open_tcp_stream("127.0.0.1", port) as one,
            await trio.open_tcp_stream("127.0.0.1", port) as other,
        ):
            legacy = HttpClient(other, Requests(port=port, era="legacy"))
            opened = await legacy.ask(legacy.requests.post(messages.initialize()))
            legacy.requests.session_id = opened.headers["mcp-session-id"]
            await legacy.ask(legacy.requests.post(messages.initialized()))
            yield HttpClient(one, Requests(port=port, era="modern")), legacy
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def protected_over_http() -> AsyncIterator[HttpClient]:
    """A server over HTTP that knows its callers by their tokens, and a client of the modern era with one."""

    async def verify(token: str) -> Principal:
        return Principal(subject="driver", expires_at=math.inf)

    auth = Protected(resource="http://127.0.0.1/mcp", authorization_servers=["http://127.0.0.1:9000"], verifier=verify)
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(serve_http, _server(), port=0, handle_signals=False, auth=auth))
        port = listener.socket.getsockname()[1]
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            yield HttpClient(stream, Requests(port=port, era="modern", token="a" * 800))
        nursery.cancel_scope.cancel()


async def start_listening(client: HttpClient, streams: AsyncExitStack, count: int) -> None:
    """So many streams for the changes of a resource, each of which has begun, until the end of ``streams``."""
    for _ in range(count):
        stream = await trio.open_tcp_stream("127.0.0.1", client.requests.port)
        await streams.enter_async_context(stream)
        await stream.send_all(client.requests.listen(next(_ids), "note://one"))
        received = b""
        while b"acknowledged" not in received:
            received += await stream.receive_some(1 << 16)


async def start_sessions(client: HttpClient, count: int) -> None:
    """So many sessions, over one connection."""
    requests = Requests(port=client.requests.port, era="legacy")
    for _ in range(count):
        opened = await client.ask(requests.post(messages.initialize()))
        check("mcp-session-id" in opened.headers, True, "a session")


HttpPath = Callable[[HttpClient, int], Awaitable[None]]
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


async def _echo_model(stream: ScriptedStream, count: int) -> None:
    for number in range(count):
        request_id = _call(stream, "echo_model", line={"text": messages.echo(number)})
        (reply,) = await stream.reply(request_id)
        check(reply["result"]["structuredContent"]["text"], messages.echo(number), "an echo")


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


async def _http_echo(client: HttpClient, count: int) -> None:
    for number in range(count):
        request_id = next(_ids)
        call = client.requests.call(request_id, "echo", {"text": messages.echo(number)})
        (reply,) = (await client.ask(call)).messages()
        check(messages.text(reply, request_id), messages.echo(number), "an echo")


async def _http_notify(client: HttpClient, count: int) -> None:
    response = await client.ask(client.requests.call(next(_ids), "notify", {"count": count}))
    check(len(response.messages()), count + 1, "notifications and the reply")


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
    "echo of a model of pydantic": _echo_model,
    "log notification": _notify,
    "progress inside the interval": _progress,
    "sampling round trip": _ask,
    "request and its cancel": _cancel,
}
HTTP_PATHS: dict[str, HttpPath] = {"echo": _http_echo, "log notification": _http_notify}
"""Over HTTP, in each era."""
CLIENT_PATHS: dict[str, ClientPath] = {
    "client: call": _client_call,
    "client: notification handled": _client_notification,
}
