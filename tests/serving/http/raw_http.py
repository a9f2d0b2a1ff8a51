"""A raw HTTP client: requests are bytes that a test has built by hand, and answers are taken apart to the byte."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import attrs
import h11
import trio
from tests.patience import PATIENCE

from trio_mcp import Limits, Server
from trio_mcp.serving.http.serve import serve_http
from trio_mcp.transports.sse import Event, EventReader

__all__ = [
    "CAPABILITIES",
    "LEGACY",
    "MODERN",
    "Answer",
    "Endpoint",
    "Events",
    "Wire",
    "initialize",
    "modern",
    "open_endpoint",
]

LEGACY = "2025-11-25"
MODERN = "2026-07-28"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
    CAPABILITIES: {},
}
Headers: TypeAlias = Mapping[str, str | None]
"""`None` leaves out a header that would be sent by default."""


@attrs.frozen
class Answer:
    """A whole answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> int:
        """The code of a JSON-RPC error."""
        return self.json["error"]["code"]

    @property
    def messages(self) -> list[Any]:
        """The messages in a body that is a stream of events; those without data aside."""
        assert self.headers["content-type"] == "text/event-stream"
        return [json.loads(event.data) for event in EventReader(1 << 20).feed(self.body) if event.data]


def modern(method: str, params: Mapping[str, Any] | None = None, *, id: Any = 1, **meta: Any) -> dict[str, Any]:
    """A request that describes itself, with further members of ``_meta``."""
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": {**(params or {}), "_meta": {**META, **meta}}}


def _mirrored(body: Any) -> dict[str, str]:
    """The headers that repeat what a modern ``body`` says."""
    params = body.get("params") if isinstance(body, dict) else None
    meta = params.get("_meta") if isinstance(params, dict) else None
    if not isinstance(meta, dict) or "io.modelcontextprotocol/protocolVersion" not in meta:
        return {}
    version = meta["io.modelcontextprotocol/protocolVersion"]
    headers = {"MCP-Protocol-Version": str(version), "Mcp-Method": str(body.get("method"))}
    name = params.get("uri", params.get("name"))
    return headers if name is None else {**headers, "Mcp-Name": str(name)}


class Wire:
    """One connection. Each wait has a bound of last resort."""

    def __init__(self, stream: trio.SocketStream, host: str) -> None:
        self.stream = stream
        self._host = host
        self._parser = h11.Connection(h11.CLIENT)

    def request(
        self, body: Any = None, headers: Headers | None = None, *, method: str = "POST", target: str = "/mcp"
    ) -> bytes:
        """The bytes of a request. A ``body`` that is no bytes is sent as JSON, with the headers that repeat it."""
        text = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        sent: dict[str, str | None] = {"Host": self._host, "Accept": "application/json, text/event-stream"}
        if method == "POST":
            sent |= {"Content-Type": "application/json", "Content-Length": str(len(text)), **_mirrored(body)}
        for name, value in (headers or {}).items():
            known = next((each for each in sent if each.lower() == name.lower()), name)
            sent[known] = value
        lines = [
            f"{method} {target} HTTP/1.1",
            *(f"{name}: {value}" for name, value in sent.items() if value is not None),
        ]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + text

    async def send(self, data: bytes, method: str = "POST") -> None:
        """Send the bytes of a request, or of its first part. ``method`` tells how to read the answer."""
        if self._parser.our_state is h11.DONE and self._parser.their_state is h11.DONE:
            self._parser.start_next_cycle()
        if self._parser.our_state is h11.IDLE:
            self._parser.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
            self._parser.send(h11.EndOfMessage())
        with trio.fail_after(PATIENCE):
            await self.stream.send_all(data)

    async def ask(self, body: Any = None, headers: Headers | None = None, **how: Any) -> Answer:
        """Send a request and return the whole answer."""
        await self.send(self.request(body, headers, **how), how.get("method", "POST"))
        return await self.answer()

    async def head(self) -> Answer:
        """The beginning of an answer. Those of the 100s are passed over."""
        while True:
            event = await self._event()
            if isinstance(event, h11.Response):
                headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
                return Answer(event.status_code, headers, b"")
            assert isinstance(event, h11.InformationalResponse), event

    async def answer(self) -> Answer:
        """The whole answer."""
        head, body = await self.head(), b""
        while part := await self.part():
            body += part
        return attrs.evolve(head, body=body)

    async def part(self) -> bytes:
        """The next bytes of a body; empty at its end."""
        event = await self._event()
        if isinstance(event, h11.EndOfMessage):
            return b""
        assert isinstance(event, h11.Data), event
        return bytes(event.data)

    async def _event(self) -> Any:
        while (event := self._parser.next_event()) is h11.NEED_DATA:
            with trio.fail_after(PATIENCE):
                self._parser.receive_data(await self.stream.receive_some())
        return event

    def events(self) -> Events:
        """The events of a stream whose head was read."""
        return Events(self)

    async def close(self) -> None:
        await self.stream.aclose()


class Events:
    """The events of an answer, as they come."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._reader = EventReader(1 << 20)
        self._ahead = deque[Event]()

    async def next(self) -> Event | None:
        """The next event; `None` at the end."""
        while not self._ahead:
            part = await self._wire.part()
            if not part:
                return None
            self._ahead += self._reader.feed(part)
        return self._ahead.popleft()

    async def message(self) -> Any:
        """The next message. Events without data are passed over."""
        messages = await self._messages(1)
        assert messages, "the stream has ended"
        return messages[0]

    async def rest(self) -> list[Any]:
        """All messages until the end."""
        return await self._messages(1 << 30)

    async def _messages(self, most: int) -> list[Any]:
        found = list[Any]()
        while len(found) < most and (event := await self.next()) is not None:
            if event.data:
                found.append(json.loads(event.data))
        return found

    @property
    def retry(self) -> int | None:
        """The milliseconds to wait before coming back."""
        return self._reader.retry

    @property
    def cursor(self) -> str:
        """The id to come back with."""
        return self._reader.last_event_id


@attrs.frozen
class Endpoint:
    """A server at work. ``end`` ends it, as the end of its block does."""

    port: int
    scope: trio.CancelScope
    over: trio.Event
    wires: list[Wire] = attrs.field(factory=list[Wire])

    async def wire(self) -> Wire:
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        self.wires.append(Wire(stream, f"127.0.0.1:{self.port}"))
        return self.wires[-1]

    async def ask(self, body: Any = None, headers: Headers | None = None, **how: Any) -> Answer:
        """Send a request over a connection of its own, and return the answer."""
        wire = await self.wire()
        answer = await wire.ask(body, headers, **how)
        await wire.close()
        return answer

    async def call(self, tool: str, headers: Headers | None = None, **arguments: Any) -> Answer:
        """Call a tool as a modern client."""
        return await self.ask(modern("tools/call", {"name": tool, "arguments": arguments}), headers)

    async def session(self, revision: str = LEGACY, **capabilities: Any) -> dict[str, str]:
        """Open a legacy session and return the headers of its requests."""
        answer = await self.ask(initialize(revision, **capabilities))
        assert answer.status == 200, answer
        headers = {"Mcp-Session-Id": answer.headers["mcp-session-id"]}
        if revision >= "2025-06-18":
            headers["MCP-Protocol-Version"] = revision
        told = await self.ask({"jsonrpc": "2.0", "method": "notifications/initialized"}, headers)
        assert told.status == 202, told
        return headers

    async def ended(self) -> None:
        """Wait until the server has ended."""
        with trio.fail_after(PATIENCE):
            await self.over.wait()

    def end(self) -> None:
        self.scope.cancel("the test ends the server")


def initialize(revision: str = LEGACY, **capabilities: Any) -> dict[str, Any]:
    """The first request of a session."""
    info = {"name": "raw", "version": "1"}
    params = {"protocolVersion": revision, "capabilities": capabilities, "clientInfo": info}
    return {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}


@asynccontextmanager
async def open_endpoint(server: Server[Any], limits: Limits | None = None, **options: Any) -> AsyncGenerator[Endpoint]:
    """Serve ``server`` on a free port of this machine for the block."""
    scope, over = trio.CancelScope(), trio.Event()

    async def serve(*, task_status: trio.TaskStatus[Any]) -> None:
        with scope:
            await serve_http(
                server, "127.0.0.1", 0, limits=limits, task_status=task_status, **{"handle_signals": False, **options}
            )
        over.set()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(serve)
        endpoint = Endpoint(listeners[0].socket.getsockname()[1], scope, over)
        try:
            yield endpoint
        finally:
            with trio.move_on_after(PATIENCE, shield=True):
                for wire in endpoint.wires:
                    await wire.close()
            endpoint.end()
