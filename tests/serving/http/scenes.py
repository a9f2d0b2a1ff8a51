"""A server whose handlers write down what they went through, and an endpoint of it over memory, on a virtual clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import attrs
import trio
from tests.serving.http.raw import Answer, Connection, Endpoint, events_in, message, served
from trio.testing import lockstep_stream_pair, memory_stream_pair

from trio_mcp import Cancellation, Limits, RequestContext, Server, WorkerContext
from trio_mcp.auth.resource_server.protected import Protected
from trio_mcp.server.servable import Servable, running_with
from trio_mcp.server.sharing import SharedStorage
from trio_mcp.serving.http.responses import EndpointSettings
from trio_mcp.serving.http.serve import HttpFront
from trio_mcp.transports.host_checks import host_checks_for

SAMPLING = {"sampling": {}}


@attrs.define(eq=False)
class Journal:
    """What the handler of one call went through."""

    started: trio.Event = attrs.field(factory=trio.Event)
    may_go_on: trio.Event = attrs.field(factory=trio.Event)
    ended: trio.Event = attrs.field(factory=trio.Event)
    runs: int = 0
    cancellation: Cancellation | None = None
    failure: Exception | None = None


class Scene:
    """``server`` with the tools below, and the ``journals`` of their calls by name."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.server = Server("scene", limits=limits or Limits())
        self.journals: dict[str, Journal] = defaultdict(Journal)
        add_tools(self.server, self.journals)

    def __getitem__(self, name: str) -> Journal:
        return self.journals[name]


def add_tools(server: Server, journals: dict[str, Journal]) -> None:
    @server.tool
    async def echo(text: str) -> str:
        return text

    @server.tool
    async def wait(name: str, ctx: RequestContext, speaks: bool = False) -> str:
        """Wait until told to go on."""
        journal = journals[name]
        journal.runs += 1
        try:
            if speaks:
                await ctx.log.error("waiting")
            journal.started.set()
            await journal.may_go_on.wait()
            return f"{name} is done"
        finally:
            journal.cancellation = ctx.cancellation
            journal.ended.set()

    @server.tool
    async def steps(name: str, ctx: RequestContext) -> str:
        """Log ``one``, wait until told to go on, log ``two``."""
        await ctx.log.error("one")
        journals[name].started.set()
        await journals[name].may_go_on.wait()
        await ctx.log.error("two")
        return "three"

    @server.tool
    async def poll(name: str, ctx: RequestContext) -> str:
        """Have the client come back for the answer."""
        journal = journals[name]
        closed = ctx.close_stream(2.5)
        journal.started.set()
        await journal.may_go_on.wait()
        return f"closed {closed}"

    @server.tool
    def poll_in_a_thread(name: str, ctx: WorkerContext) -> str:
        return f"closed {ctx.close_stream(2.5)}"

    @server.tool
    async def ask(name: str, ctx: RequestContext) -> str:
        """Ask the client's model."""
        journal = journals[name]
        journal.started.set()
        try:
            answer = await ctx.sample("well?", max_tokens=5)
        except Exception as error:
            journal.failure = error
            raise
        finally:
            journal.ended.set()
        return f"{answer.model} has answered"

    @server.tool
    async def flood(name: str, count: int, ctx: RequestContext) -> str:
        journal = journals[name]
        journal.started.set()
        try:
            for number in range(count):
                await ctx.log.error({"number": number, "padding": "x" * 1000})
                journal.runs = number
            return "flooded"
        finally:
            journal.cancellation = ctx.cancellation
            journal.ended.set()

    @server.tool
    async def levels(ctx: RequestContext) -> str:
        await ctx.log.debug("debug")
        await ctx.log.error("error")
        return "logged"

    @server.tool
    async def notify(ctx: RequestContext) -> str:
        await ctx.send_notification("notifications/scene", {"n": 1})
        return "notified"

    @server.tool
    async def who(ctx: RequestContext) -> dict[str, Any]:
        return {"session": ctx.session_id, "stateless": ctx.stateless, "headers": dict(ctx.headers or {})}

    @server.tool
    async def finish_elicitation(ctx: RequestContext) -> bool:
        return await ctx.elicitation_complete("elicited")

    @server.resource("scene:thing")
    async def thing() -> str:
        return "thing"


def call(tool: str, request_id: Any = 1, *, token: Any = None, **arguments: Any) -> dict[str, Any]:
    """Return a legacy call of a tool."""
    params: dict[str, Any] = {"name": tool, "arguments": arguments}
    if token is not None:
        params["_meta"] = {"progressToken": token}
    return message("tools/call", params, request_id)


def cancel(request_id: Any) -> dict[str, Any]:
    return message("notifications/cancelled", {"requestId": request_id, "reason": "enough"})


def text_of(reply: dict[str, Any]) -> str:
    """Return the text in the result of a tool."""
    return reply["result"]["content"][0]["text"]


def messages_in(answer: Answer) -> list[dict[str, Any]]:
    """Return the messages of an answer in either form, the reply last."""
    if answer.headers["content-type"] == "application/json":
        return [answer.json]
    return [event.data for event in answer.events if event.data is not None]


async def rest_of(connection: Connection) -> list[dict[str, Any]]:
    """Return the messages of a stream up to its end, behind what was taken of it."""
    while more := await connection.more():
        connection.received += more
    return [event.data for event in events_in(connection.received) if event.data is not None]


async def next_message(connection: Connection) -> dict[str, Any]:
    """Wait for the next event of a stream that has data."""
    while (event := await connection.event()).data is None:
        pass
    return event.data


class MemoryEndpoint(Endpoint):
    """An endpoint that is reached over memory. ``front`` is what serves."""

    def __init__(self, front: HttpFront, nursery: trio.Nursery) -> None:
        super().__init__(0, nursery)
        self.front = front
        self.scope = trio.CancelScope()
        """Scope of the one who serves."""
        self._opened: list[trio.abc.Stream] = []

    async def aclose(self) -> None:
        """Leave all connections."""
        for stream in self._opened:
            await trio.aclose_forcefully(stream)

    async def connect(self, *, lockstep: bool = False) -> Connection:
        """Return a new connection. ``lockstep``: nothing is sent that the other end does not read."""
        ours, theirs = lockstep_stream_pair() if lockstep else memory_stream_pair()
        self._opened.append(theirs)
        self.nursery.start_soon(self._serve, ours)
        return Connection(theirs)

    async def _serve(self, stream: trio.abc.Stream) -> None:
        async with stream:
            await self.front.serve(stream, self.front.callers.hop(stream))

    async def get(self, session: dict[str, str | None], cursor: str | None = None) -> Connection:
        """Return a connection on which a GET was sent."""
        connection = await self.connect()
        await connection.send("GET", {**session, "Last-Event-ID": cursor})
        return connection

    async def post(self, session: dict[str, str | None], body: Any) -> Connection:
        """Return a connection on which a message was posted."""
        connection = await self.connect()
        await connection.send("POST", session, body)
        return connection


@asynccontextmanager
async def in_memory(
    server: Servable,
    *,
    stateless: bool = False,
    auth: Protected | None = None,
    shared: SharedStorage | None = None,
    **limits: Any,
) -> AsyncGenerator[MemoryEndpoint]:
    gate = None if auth is None else auth._gate()
    settings = EndpointSettings("/mcp", host_checks_for("127.0.0.1", None, None), gate)
    bounds = Limits(**limits) if limits else None
    async with (
        running_with(server, shared, bounds, stateless=stateless) as running,
        trio.open_nursery() as nursery,
    ):
        endpoint = MemoryEndpoint(HttpFront(running, nursery, settings, websocket=False), nursery)
        yield endpoint
        await endpoint.aclose()
        nursery.cancel_scope.cancel(reason="the test is over")


class SocketEndpoint(Endpoint):
    """An endpoint that is reached over sockets, which `connections_to` closes."""

    def __init__(self, port: int, nursery: trio.Nursery, opened: ExitStack) -> None:
        super().__init__(port, nursery)
        self._opened = opened

    async def connect(self) -> Connection:
        connection = await super().connect()
        assert isinstance(connection.stream, trio.SocketStream)
        self._opened.callback(connection.stream.socket.close)
        return connection


@asynccontextmanager
async def connections_to(port: int) -> AsyncGenerator[SocketEndpoint]:
    with ExitStack() as opened:
        async with trio.open_nursery() as nursery:
            yield SocketEndpoint(port, nursery, opened)
            nursery.cancel_scope.cancel(reason="the test is over")


@asynccontextmanager
async def over_sockets(server: Server, **options: Any) -> AsyncGenerator[SocketEndpoint]:
    async with served(server, **options) as one, connections_to(one.port) as endpoint:
        yield endpoint
