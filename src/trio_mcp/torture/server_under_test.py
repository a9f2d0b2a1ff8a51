"""ServerUnderTest: a server of any implementation. Scenarios call its tools to observe its handlers from outside."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final

import trio

from ..classes import frozen
from ..concurrency.contexts import asynccontextmanager
from ..connecting.stdio import Command
from ..connecting.targets import Target, open_messages
from ..jsonrpc.codec import encode_value
from ..jsonrpc.errors import MCPError, PeerError
from ..jsonrpc.messages import RequestId
from ..protocol.fields import JSONObject
from ..runtime.limits import DEFAULT_LIMITS
from ..runtime.outbox import Outbox
from ..runtime.transport import Frame, FramedTransport, ReplyLost, Transport
from ..testing.scripted_sides import ScriptedClient
from ..transports.process import ProcessTransport
from .scenarios import PROMPTLY, Era, Failed, Need, Skipped, TorturePeer, UnderTest, read_texts

_POLL: Final = 0.02
_LONGEST: Final = 45.0
"""Seconds after which every handler has ended."""
_STARTS: Final = 30.0
"""Seconds within which a server must start."""

TOOLS: Final[dict[str, str]] = read_texts()["tools"]
"""The tools that scenarios call, each with a description of its behavior. A scenario whose tool is missing is
skipped."""


class _Lines(Transport):
    """Lets a scripted client, which sends and receives lines, use ``transport``."""

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
                case _:  # the client gets no reply, so the scenario that waits for it fails
                    pass

    async def aclose(self) -> None:
        await self._transport.aclose()


class TortureClient(TorturePeer["ServerUnderTest"], ScriptedClient):
    """A scripted client that is connected to the server under test."""

    outbox: Outbox | None = None
    """Object that sends requests and cancellations over HTTP, where each request has its own exchange. `None` for other
    transports."""

    async def send(self, message: JSONObject | list[Any] | str | bytes) -> None:
        """Send a message to the server: see `ScriptedPeer.send`."""
        match message:
            case {"method": str(method), "id": int() | str() as id} if self.outbox is not None:
                self.outbox.put_request(id, method, message.get("params"), None)
            case {"params": {"requestId": int() | str() as id, **more}} if self.outbox is not None:  # a cancellation
                self.outbox.put_cancel(id, more.get("reason"))
            case _:
                await super().send(message)
                return
        self.transcript.append(("sent", message))

    async def call(
        self, kind: str, *, id: RequestId | None = None, meta: JSONObject | None = None, **params: Any
    ) -> RequestId:
        """Send a call of one of the tools in `TOOLS`, and return the request id. Raises `Skipped` if the server doesn't
        have the tool."""
        if kind not in self.under_test.tools:
            raise Skipped(f"the server has no tool {kind!r} (description of the tool: {TOOLS[kind]})")
        params = {"name": self.under_test.tools[kind], "arguments": {}, **params}
        return await self.request("tools/call", params, id=id, meta=meta)

    async def start_slow(self, **options: Any) -> RequestId:
        """Call the tool `slow`, wait until its handler is running, and return the request id. ``options`` are passed to
        `call`."""
        already = await self.running()
        found = await self.call("slow", **options)
        await self.until_running(already + 1)
        return found

    async def running(self) -> int:
        """Call the tool `running`, and return its result: the number of handlers that are running on the server."""
        return int(text_of(await self.response(await self.call("running"))))

    async def until_running(self, number: int, within: float = 3 * PROMPTLY, error: type[Exception] = Failed) -> None:
        """Wait until exactly ``number`` handlers are running on the server. Raises ``error`` if that takes too long."""
        now, seconds = -1, within * self.under_test.patience
        with trio.move_on_after(seconds):
            while (now := await self.running()) != number:  # noqa: ASYNC110, the other side has no event
                await trio.sleep(_POLL)
        if now != number:
            raise error(f"after {seconds:g} s, {now} handlers are running on the server instead of {number}")

    async def stop(self, ids: Sequence[RequestId]) -> None:
        """Cancel the requests with these ``ids``, and wait until no handler is running on the server."""
        for each in ids:
            await self.cancel(each)
        await self.until_running(0, PROMPTLY + len(ids) / 100)

    def progress_of(self, token: RequestId) -> list[float]:
        """Return the progress values received for the progress token ``token``. A token of another JSON type doesn't
        match."""
        params = [message["params"] for message in self.received(method="notifications/progress")]
        return [each["progress"] for each in params if repr(each["progressToken"]) == repr(token)]

    async def check_alive(self, within: float = 3 * PROMPTLY) -> None:
        """Check that the server still answers requests. Raises `Failed` if it doesn't."""
        text_of(await self.response(await self.call("fast"), within))


def text_of(response: JSONObject) -> str:
    """Return the text in the result of a tool call. Raises `Failed` if the call returned an error."""
    match response:
        case {"result": {"content": [{"text": str(text)}, *_], **more}} if not more.get("isError"):
            return text
        case _:
            raise Failed(f"the tool call failed: {str(response)[:200]}")


@frozen
class ServerUnderTest(UnderTest):
    """The server that the scenarios test: its target, and the names of its tools."""

    target: Target
    tools: Mapping[str, str]
    """For each tool in `TOOLS` that the server has, the server's own name of the tool."""

    @property
    def is_http(self) -> bool:
        """Whether the server is served over HTTP."""
        return not isinstance(self.target, Command) and getattr(self.target, "url", "").startswith("http")

    def missing(self, need: Need) -> str | None:
        """Return why this server can't run a scenario that requires the transport ``need``. Return `None` if it can."""
        if need == "http":
            return None if self.is_http else "the scenario is only for servers over HTTP"
        if need == "process":
            return None if isinstance(self.target, Command) else "the scenario is only for servers over stdio"
        return "the scenario isn't for servers over HTTP" if self.is_http else None

    @asynccontextmanager
    async def opened(self, capabilities: JSONObject | None = None) -> AsyncGenerator[TortureClient]:
        """Open a new connection to the server under test, and yield the scripted client. The handshake is already
        done."""
        async with open_messages(self.target, None if self.era == "legacy" else self.revision) as transport:
            client = TortureClient(_Lines(transport), patience=_STARTS * self.patience)
            client.under_test = self
            if isinstance(transport, ProcessTransport):
                client.process = transport
            if self.is_http:
                client.outbox = transport.make_outbox(DEFAULT_LIMITS.high_water)
            await client.open(self.revision, capabilities)
            client.patience = math.inf
            if self.era == "modern":  # the client hasn't sent anything yet, and the server may still be starting
                answer = await client.response(await client.request("server/discover"), _STARTS)
                if "result" not in answer:
                    raise Failed(f"the server doesn't speak {self.revision}: {str(answer)[:150]}")
            if self.is_http and "running" in self.tools:
                # wait until all handlers of the earlier scenario have ended
                await client.until_running(0, _LONGEST, Skipped)
            yield client


async def find_tools(target: Target, era: Era) -> dict[str, str] | None:
    """Return the tools of the tested server that the test scenarios can call. The dict maps each name in `TOOLS` to the
    server's name of this tool.

    Return `None` if the server doesn't speak the revision.
    """
    try:
        async with ServerUnderTest(era, target, {}).opened() as client:
            answer = await client.response(await client.request("tools/list"), _STARTS)
            return {each["name"]: each["name"] for each in answer["result"]["tools"] if each["name"] in TOOLS}
    except (AssertionError, ExceptionGroup, KeyError, MCPError):
        return None
