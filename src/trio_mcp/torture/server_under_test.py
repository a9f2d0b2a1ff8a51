"""ServerUnderTest: a server of any implementation. Scenarios call its tools to observe its handlers from outside."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

import trio

from ..classes import frozen
from ..concurrency.contexts import asynccontextmanager
from ..connecting.stdio import Command
from ..connecting.targets import Target, open_messages
from ..jsonrpc.codec import encode_value
from ..jsonrpc.errors import MCPError, PeerError
from ..jsonrpc.messages import RequestId
from ..protocol.fields import JSONObject, as_object
from ..protocol.revisions import LATEST_LEGACY, LATEST_MODERN
from ..runtime.limits import DEFAULT_LIMITS
from ..runtime.outbox import Outbox
from ..runtime.transport import Frame, FramedTransport, ReplyLost, Transport
from ..testing.scripted_peer import MissingMessage, Pattern
from ..testing.scripted_sides import ScriptedClient
from .scenarios import Era, Failed, Skipped

PROMPTLY: Final = 2.0
"""Seconds within which a server must react, with a patience of 1."""
QUIET: Final = 1.0
"""Seconds for which a client listens for messages that the server must not send."""
_POLL: Final = 0.02
_LONGEST: Final = 45.0
"""Seconds after which each handler has ended."""
_STARTS: Final = 30.0
"""Seconds within which a server must start."""

TOOLS: Final = {
    "fast": "returns at once",
    "slow": "runs for 30 seconds or more, reports progress about every 50 ms, and stops when it is cancelled",
    "running": "returns the number of `slow` and `ask` handlers that run now, as text",
    "ask": "asks the user for a string `value` by elicitation, and returns the string",
    "flood": "sends 10,000 progress notifications as fast as it can, and returns",
    "logs": "logs one message at each level, from debug to emergency, and returns",
    "spawn": "starts a child process that would run for a minute, and runs as long",
}
"""The tools that scenarios call, each with a description of its behavior. A scenario whose tool is missing is
skipped."""


class _Lines(Transport):
    """A line stream for a scripted client that sends and receives the messages of ``transport``."""

    def __init__(self, transport: FramedTransport) -> None:
        self._transport = transport

    async def send(self, messages: bytes | bytearray) -> None:
        await self._transport.send(messages)

    async def receive(self) -> bytes | bytearray:
        while True:
            match await self._transport.receive():
                case Frame(data=line):
                    return line
                case bytes() | bytearray() as line:
                    return line
                case ReplyLost(request_id=request_id, error=PeerError() as refused):
                    error = {"code": refused.code, "message": refused.message}
                    return encode_value({"jsonrpc": "2.0", "id": request_id, "error": error})
                case _:  # a reply is lost, so the scenario that waits for it fails
                    pass

    async def aclose(self) -> None:
        await self._transport.aclose()


class TortureClient(ScriptedClient):
    """A scripted client, with methods for the checks that scenarios make."""

    tools: Mapping[str, str]
    """The server's own name of each tool in `TOOLS` that it has."""
    promptly = PROMPTLY
    """Seconds within which the server must react."""
    outbox: Outbox | None = None
    """Object that sends requests and cancellations over HTTP, where each request has its own exchange. `None` for other
    transports."""

    async def send(self, message: JSONObject | list[Any] | str | bytes) -> None:
        """Send a message to the server: see `ScriptedPeer.send`."""
        match message:
            case {"method": str(method), "id": int() | str() as request_id} if self.outbox is not None:
                self.outbox.put_request(request_id, method, message.get("params"), None)
            case {"method": "notifications/cancelled", "params": {"requestId": int() | str() as request_id}} if (
                self.outbox is not None
            ):
                self.outbox.put_cancel(request_id, as_object(message["params"]).get("reason"))
            case _:
                await super().send(message)
                return
        self.transcript.append(("sent", message))

    def tool(self, kind: str) -> str:
        """Return the server's own name of a tool. Raises `Skipped` if the server doesn't have the tool."""
        if kind not in self.tools:
            raise Skipped(f"the server has no tool {kind!r}: it {TOOLS[kind]}")
        return self.tools[kind]

    async def start(self, kind: str, *, id: RequestId | None = None, meta: JSONObject | None = None) -> RequestId:
        """Call a tool, wait until its handler runs, and return the request id."""
        already = await self.running()
        found = await self.call_tool(self.tool(kind), id=id, meta=meta)
        await self.until_running(already + 1)
        return found

    async def text(self, kind: str, arguments: JSONObject | None = None, *, within: float | None = None) -> str:
        """Call a tool and return the text of its result. Raises `Failed` if the call takes longer than ``within``
        seconds."""
        sent = await self.call_tool(self.tool(kind), arguments)
        return text_of(await self.response(sent, within=within))

    async def response(self, request_id: RequestId, *, within: float | None = None) -> JSONObject:
        """Return the response to a request. Raises `Failed` if it doesn't arrive within ``within`` seconds."""
        for message in self.received(id=request_id):
            if "method" not in message:
                return message
        return await self.seen({"id": request_id, ...: ...}, f"no response to request {request_id!r}", within)

    async def seen(self, pattern: Pattern, otherwise: str, within: float | None = None) -> JSONObject:
        """Return the next message that matches. Raises `Failed` with the message ``otherwise`` if none arrives in
        time."""
        within = 3 * self.promptly if within is None else within
        with trio.move_on_after(within):
            while True:
                try:
                    return await self.until({"jsonrpc": "2.0", **pattern})
                except MissingMessage as missing:
                    if missing.ended:
                        raise Failed(f"{otherwise}: the server ended the connection") from None
        raise Failed(f"{otherwise} within {within:g} s")

    async def running(self) -> int:
        """Return the number of handlers that are running on the server."""
        return int(await self.text("running"))

    async def until_running(self, number: int, within: float | None = None) -> None:
        """Wait until exactly ``number`` handlers are running on the server. Raises `Failed` if that takes too long."""
        within = 3 * self.promptly if within is None else within
        now = -1
        with trio.move_on_after(within):
            while (now := await self.running()) != number:  # noqa: ASYNC110, the other side has no event
                await trio.sleep(_POLL)
        if now != number:
            raise Failed(f"{now} handlers run {within:g} s later; {number} must")

    async def drain(self, seconds: float) -> None:
        """Read messages for a time, and add them to `transcript`. Raises `Failed` if the connection ends."""
        with trio.move_on_after(seconds):
            while True:
                try:
                    await self.receive()
                except MissingMessage as missing:
                    if missing.ended:
                        raise Failed("the server ended the connection") from None

    def received(self, **members: Any) -> list[JSONObject]:
        """Return the messages received so far that have these members."""
        found = [as_object(message) for way, message in self.transcript if way == "received"]
        return [message for message in found if members.items() <= message.items()]

    def progress_of(self, token: RequestId) -> list[JSONObject]:
        """Return the params of all received progress notifications whose token is ``token``, with the same JSON
        type."""
        params = [message["params"] for message in self.received(method="notifications/progress")]
        return [
            each for each in params if each["progressToken"] == token and type(each["progressToken"]) is type(token)
        ]

    async def check_alive(self) -> None:
        """Check that the server still answers requests. Raises `Failed` if it doesn't."""
        await self.text("fast")


def text_of(response: JSONObject) -> str:
    """Return the text in the result of a tool call. Raises `Failed` if the call returned an error."""
    match response:
        case {"result": {"content": [{"type": "text", "text": str(text)}, *_]}} if not response["result"].get(
            "isError"
        ):
            return text
        case {"result": {"content": []}}:
            return ""
        case _:
            raise Failed(f"the tool failed: {str(response)[:200]}")


@frozen
class ServerUnderTest:
    """The server under test, which speaks a legacy or modern revision."""

    target: Target
    era: Era
    tools: Mapping[str, str]
    patience: float = 1.0
    """Factor for the time limits within which the server must react."""

    @property
    def revision(self) -> str:
        """The protocol revision that is spoken with the server."""
        return (LATEST_LEGACY if self.era == "legacy" else LATEST_MODERN).name

    @property
    def is_http(self) -> bool:
        """Whether the server is served over HTTP."""
        return not isinstance(self.target, Command) and getattr(self.target, "url", "").startswith("http")

    @asynccontextmanager
    async def opened(self, capabilities: JSONObject | None = None) -> AsyncGenerator[TortureClient]:
        """Open a new connection with a handshake, and yield the client."""
        async with self.unopened() as client:
            client.patience = _STARTS
            await client.open(self.revision, capabilities)
            if self.era == "modern":  # `open` has sent nothing, and the server may still be starting
                answer = await client.response(await client.request("server/discover"), within=_STARTS)
                if "result" not in answer:
                    raise Failed(f"the server doesn't speak {self.revision}: {str(answer)[:150]}")
            client.patience = 0.5
            if self.is_http and "running" in self.tools:  # handlers that an earlier scenario has left behind
                await client.until_running(0, within=_LONGEST)
            yield client

    @asynccontextmanager
    async def unopened(self) -> AsyncGenerator[TortureClient]:
        """Open a new connection without a handshake, and yield the client."""
        async with open_messages(self.target, None if self.era == "legacy" else self.revision) as transport:
            client = TortureClient(_Lines(transport), patience=0.5)
            client.tools, client.promptly = self.tools, PROMPTLY * self.patience
            if self.is_http:
                client.outbox = transport.make_outbox(DEFAULT_LIMITS.high_water)
            yield client

    def command(self) -> Command:
        """Return the command that starts the server. Raises `Skipped` if the server is not started by this program."""
        if not isinstance(self.target, Command):
            raise Skipped("the server isn't started over stdio")
        return self.target


async def find_tools(target: Target, era: Era) -> dict[str, str] | None:
    """Return the tools of `TOOLS` that the server has, keyed by name. Return `None` if the server doesn't speak the
    revision."""
    try:
        async with ServerUnderTest(target, era, {}).opened() as client:
            answer = await client.response(await client.request("tools/list"), within=30.0)
    except (AssertionError, ExceptionGroup, MCPError):
        return None
    tools = answer.get("result", {}).get("tools")
    return None if tools is None else {each["name"]: each["name"] for each in tools if each["name"] in TOOLS}
