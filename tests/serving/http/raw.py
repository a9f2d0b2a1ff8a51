"""A raw HTTP client: bytes over a socket, answers as they are."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import h11
import trio

from trio_mcp import Server, serve_http

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/logLevel": "debug",
}
NAMES = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
BASE = {
    "Host": "127.0.0.1",
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
}


def modern(method: str, params: dict[str, Any] | None = None, request_id: Any = 1) -> tuple[dict[str, str], Any]:
    """Return the headers and the body of a modern request, as a good client sends them."""
    params = {**(params or {}), "_meta": {**META, **(params or {}).get("_meta", {})}}
    headers = {**BASE, "MCP-Protocol-Version": MODERN, "Mcp-Method": method}
    if method in NAMES:
        headers["Mcp-Name"] = params[NAMES[method]]
    return headers, {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


def message(method: str, params: dict[str, Any] | None = None, request_id: Any = None) -> dict[str, Any]:
    """Return a message of a legacy client."""
    body: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if request_id is not None:
        body["id"] = request_id
    return body if params is None else {**body, "params": params}


INITIALIZE = message(
    "initialize",
    {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}},
    "opening",
)


def request_bytes(method: str, headers: dict[str, str | None], body: Any = None, path: str = "/mcp") -> bytes:
    """Return a request; ``body`` is bytes or becomes JSON. A header of value `None` is left out."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = {**headers, "Content-Length": str(len(data))} if body is not None else headers
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value is not None)
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + data


@attrs.define
class Event:
    """A server-sent event."""

    id: str | None
    data: Any
    """The message; `None` for an event without data."""


@attrs.define
class Answer:
    """A response, whole."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Event]:
        return events_in(self.body)

    @property
    def reply(self) -> Any:
        """The reply to a legacy request, which becomes a stream where the handler takes a moment."""
        return self.events[-1].data if "event-stream" in self.headers["content-type"] else self.json

    @property
    def code(self) -> int:
        """The code of the JSON-RPC error."""
        return self.json["error"]["code"]


def events_in(body: bytes) -> list[Event]:
    """Return the events of a stream; comments apart."""
    found: list[Event] = []
    for block in body.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in fields:
            found.append(Event(fields.get("id"), json.loads(fields["data"]) if fields["data"] else None))
    return found


class Connection:
    """One connection to the server, on which requests follow each other."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.received = b""
        self._parser = h11.Connection(h11.CLIENT)
        self._begun = False

    async def send(self, method: str, headers: dict[str, str | None], body: Any = None, path: str = "/mcp") -> None:
        await self.stream.send_all(request_bytes(method, headers, body, path))
        self.expect(method)

    def expect(self, method: str = "POST") -> None:
        """Expect an answer to a request that was sent by other means."""
        if self._parser.our_state is h11.DONE:
            self._parser.start_next_cycle()
        self._parser.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
        self._parser.send(h11.EndOfMessage())

    async def _next(self) -> Any:
        while (event := self._parser.next_event()) is h11.NEED_DATA:
            self._parser.receive_data(await self.stream.receive_some(65536))
        return event

    async def head(self) -> Answer:
        """Wait for the head of the answer."""
        event = await self._next()
        while isinstance(event, h11.InformationalResponse):
            event = await self._next()
        assert isinstance(event, h11.Response), event
        headers = {name.decode(): value.decode() for name, value in event.headers}
        return Answer(event.status_code, headers, b"")

    async def more(self) -> bytes:
        """Wait for more of the body; empty at its end."""
        event = await self._next()
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    async def event(self) -> Event:
        """Wait for the next event of a stream."""
        while not (found := events_in(self.received.rpartition(b"\n\n")[0])):  # whole ones
            more = await self.more()
            assert more, "the stream has ended"
            self.received += more
        end = self.received.index(b"\n\n", self.received.index(b"data:")) + 2
        self.received = self.received[end:]
        return found[0]

    async def answer(self) -> Answer:
        """Wait for the whole answer."""
        answer = await self.head()
        while more := await self.more():
            answer.body += more
        return answer

    async def ask(self, method: str, headers: dict[str, str | None], body: Any = None, path: str = "/mcp") -> Answer:
        await self.send(method, headers, body, path)
        return await self.answer()

    async def modern(self, method: str, params: dict[str, Any] | None = None, **headers: str | None) -> Answer:
        """Ask as a modern client does. ``headers`` replace others; underscores stand for hyphens."""
        good, body = modern(method, params)
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.ask("POST", {**good, **more}, body)

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self.stream)


class Endpoint:
    """A server that serves HTTP on a port of this machine."""

    def __init__(self, port: int, nursery: trio.Nursery) -> None:
        self.port = port
        self.nursery = nursery

    async def connect(self) -> Connection:
        return Connection(await trio.open_tcp_stream("127.0.0.1", self.port))

    async def ask(self, method: str, headers: dict[str, str | None], body: Any = None, path: str = "/mcp") -> Answer:
        """Ask on a connection of its own."""
        connection = await self.connect()
        try:
            return await connection.ask(method, headers, body, path)
        finally:
            await connection.aclose()

    async def modern(self, method: str, params: dict[str, Any] | None = None, **headers: str | None) -> Answer:
        connection = await self.connect()
        try:
            return await connection.modern(method, params, **headers)
        finally:
            await connection.aclose()

    async def initialize(self, version: str = LEGACY, **capabilities: Any) -> dict[str, str | None]:
        """Open a session and return the headers that belong to it."""
        params = {**INITIALIZE["params"], "protocolVersion": version, "capabilities": capabilities}
        answer = await self.ask("POST", {**BASE}, {**INITIALIZE, "params": params})
        assert answer.status == 200, answer
        session: dict[str, str | None] = {**BASE, "Mcp-Session-Id": answer.headers["mcp-session-id"]}
        accepted = await self.ask("POST", session, message("notifications/initialized"))
        assert (accepted.status, accepted.body) == (202, b"")
        return session


@asynccontextmanager
async def served(server: Server, **options: Any) -> AsyncGenerator[Endpoint]:
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(lambda **more: serve_http(server, "127.0.0.1", 0, **options, **more))
        yield Endpoint(listeners[0].socket.getsockname()[1], nursery)
        nursery.cancel_scope.cancel(reason="the test is over")
