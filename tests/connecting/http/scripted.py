"""A server over HTTP that answers each request as a test says."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import attrs
import h11
import trio
import trio.testing
from tests.patience import PATIENCE

__all__ = [
    "Answer",
    "Got",
    "Handler",
    "ScriptedHttp",
    "answer_all",
    "discovered",
    "error",
    "initialized",
    "legacy",
    "modern",
    "result",
    "serving",
    "text",
]

STREAM = {"content-type": "text/event-stream"}


@attrs.define(eq=False)
class Got:
    """A request, and its body as JSON."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def message(self) -> Any:
        return json.loads(self.body)

    @property
    def name(self) -> str:
        """Method of the message, or that of HTTP where there is none."""
        return self.message.get("method", "reply") if self.body else self.method


@attrs.define(eq=False)
class Answer:
    """The way to answer one request."""

    stream: trio.SocketStream
    begun: bool = False

    async def raw(self, data: bytes) -> None:
        self.begun = True
        await self.stream.send_all(data)

    async def whole(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Send a whole answer."""
        await self.head(status, {"content-length": str(len(body)), **_named(headers)}, body)

    async def json(self, message: Any, status: int = 200, **headers: str) -> None:
        await self.whole(status, json.dumps(message).encode(), content_type="application/json", **headers)

    async def head(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        lines = "".join(f"{name}: {text}\r\n" for name, text in headers.items())
        await self.raw(f"HTTP/1.1 {status} Said\r\n{lines}\r\n".encode() + body)

    async def open(self, **headers: str) -> None:
        """Begin a stream of events."""
        await self.head(200, {**STREAM, "transfer-encoding": "chunked", **_named(headers)})

    async def chunk(self, data: bytes) -> None:
        await self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    async def event(self, message: Any, **fields: object) -> None:
        """Send an event, with ``id`` or ``retry`` before its data."""
        lines = "".join(f"{name}: {content}\n" for name, content in fields.items())
        data = message if isinstance(message, str) else json.dumps(message)
        await self.chunk(f"{lines}data: {data}\n\n".encode())

    async def end(self) -> None:
        await self.raw(b"0\r\n\r\n")

    async def cut(self) -> None:
        """Close the connection in the middle."""
        await self.stream.aclose()

    async def gone(self) -> None:
        """Wait until the client closes the connection."""
        with trio.fail_after(PATIENCE):
            while await self.stream.receive_some():
                pass


def _named(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): text for name, text in headers.items()}


Handler: TypeAlias = Callable[[Got, Answer], Awaitable[None]]


async def answer_all(stream: trio.SocketStream, handler: Handler) -> None:
    """Answer the requests of one connection, until the client ends it, or ``handler`` says nothing to one."""
    while True:
        parser = h11.Connection(h11.SERVER)
        head: h11.Request | None = None
        body = b""
        while True:
            event = parser.next_event()
            if event is h11.NEED_DATA:
                parser.receive_data(await stream.receive_some())
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                break
            else:
                return
        assert head is not None
        headers = {name.decode(): text.decode("latin-1") for name, text in head.headers}
        answer = Answer(stream)
        await handler(Got(head.method.decode(), head.target.decode(), headers, body), answer)
        if not answer.begun:
            return


class ScriptedHttp:
    """All that came, and the URL."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.got: list[Got] = []
        self.connections = 0
        self.news = trio.Condition()
        self.scope = trio.CancelScope()

    async def stop(self) -> None:
        """Listen no more, and close all connections."""
        self.scope.cancel()
        await trio.testing.wait_all_tasks_blocked()

    @property
    def names(self) -> list[str]:
        return [got.name for got in self.got]

    def named(self, name: str) -> list[Got]:
        return [got for got in self.got if got.name == name]

    async def until(self, name: str, count: int = 1) -> Got:
        """Wait until so many requests of this name came, and return the last."""
        with trio.fail_after(PATIENCE):
            while len(self.named(name)) < count:
                async with self.news:
                    await self.news.wait()
        return self.named(name)[count - 1]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncGenerator[ScriptedHttp]:
    """Answer with ``handler`` inside."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    server = ScriptedHttp(f"http://127.0.0.1:{port}/mcp")

    async def connected(stream: trio.SocketStream) -> None:
        server.connections += 1
        try:
            async with stream:
                await answer_all(stream, noted)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async def noted(got: Got, answer: Answer) -> None:
        server.got.append(got)
        async with server.news:
            server.news.notify_all()
        await handler(got, answer)

    async def listening() -> None:
        with server.scope:
            await trio.serve_listeners(connected, listeners)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listening)
        with trio.fail_after(10 * PATIENCE):
            yield server
        nursery.cancel_scope.cancel()


def result(request: Got, **members: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request.message["id"], "result": members}


def error(request: Got, code: int, message: str = "no", **data: Any) -> dict[str, Any]:
    body = {"code": code, "message": message, **({"data": data} if data else {})}
    return {"jsonrpc": "2.0", "id": request.message["id"], "error": body}


def text(request: Got, words: str = "done") -> dict[str, Any]:
    """A result of ``tools/call``, of either era."""
    return result(request, resultType="complete", content=[{"type": "text", "text": words}])


def discovered(request: Got, **capabilities: Any) -> dict[str, Any]:
    return result(
        request,
        resultType="complete",
        supportedVersions=["2026-07-28"],
        capabilities=capabilities or {"tools": {}},
        ttlMs=0,
        cacheScope="private",
    )


def initialized(request: Got, **capabilities: Any) -> dict[str, Any]:
    return result(
        request,
        protocolVersion=request.message["params"]["protocolVersion"],
        capabilities=capabilities or {"tools": {}},
        serverInfo={"name": "scripted", "version": "1"},
    )


def modern(then: Handler, **capabilities: Any) -> Handler:
    """A modern server that answers ``server/discover``, and leaves the rest to ``then``."""

    async def handler(got: Got, answer: Answer) -> None:
        if got.name == "server/discover":
            await answer.json(discovered(got, **capabilities))
        else:
            await then(got, answer)

    return handler


def legacy(then: Handler, session: str | None = "s-1", **capabilities: Any) -> Handler:
    """A legacy server that opens ``session``, offers no stream, and leaves the rest to ``then``."""

    async def handler(got: Got, answer: Answer) -> None:
        match got.name:
            case "server/discover":
                await answer.json(error(got, -32601), 400)
            case "initialize":
                more = {} if session is None else {"mcp_session_id": session}
                await answer.json(initialized(got, **capabilities), **more)
            case "notifications/initialized" | "notifications/cancelled":
                await answer.whole(202)
            case "GET" if "last-event-id" not in got.headers:
                await answer.whole(405)
            case "DELETE":
                await answer.whole(200)
            case _:
                await then(got, answer)

    return handler
