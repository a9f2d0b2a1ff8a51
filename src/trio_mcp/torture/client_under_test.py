"""ClientUnderTest: a client of any implementation, as a program. In its command line, ``{server}`` stands for the
command of the stdio server that the client starts.

The client calls the tool ``next`` until the text of the result is ``end``. For ``NAME SECONDS``, it calls the tool
``NAME``, gives up after that many seconds, and ignores the result or the error.
"""

from __future__ import annotations

import math
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import trio

from ..classes import frozen
from ..concurrency.contexts import asynccontextmanager
from ..connecting.stdio import Command, open_process
from ..protocol.fields import JSONObject
from ..runtime.limits import DEFAULT_LIMITS
from ..testing.scripted_sides import ScriptedServer
from ..transports.lines import LineTransport
from .peers import TorturePeer
from .scenarios import Failed, Skipped, UnderTest

_STARTS: Final = 20.0
"""Seconds within which a client must start."""
_CALL: Final = 10.0
"""Seconds within which a client must make the next tool call."""
_KILL: Final = 0.5
"""Seconds after which a client is killed at the end of a scenario."""
_TOOLS: Final = [{"name": name, "inputSchema": {"type": "object"}} for name in ("next", "slow", "fast")]


class TortureServer(TorturePeer["ClientUnderTest"], ScriptedServer):
    """A scripted server to which the client under test connects.

    It answers the requests that every client sends. The scenario handles the tool calls.
    """

    async def next_message(self) -> JSONObject:
        """Return the client's next message, except for routine requests, such as ``ping``, which are answered here.

        Raises `Failed` if the client ends the connection.
        """
        while True:
            match message := await super().next_message():
                case {"method": "tools/list", "id": _}:
                    await self.answer(message, {"tools": _TOOLS, **self._modern(ttlMs=0, cacheScope="private")})
                case {"method": "ping", "id": _}:
                    await self.answer(message, {})
                case {"method": "subscriptions/listen" | "logging/setLevel", "id": _}:
                    await self.refuse(message, -32601, "Method not found")
                case _:
                    return message

    async def answer_text(self, call: JSONObject, text: str) -> None:
        """Answer a tool call with a text, in the result format of the protocol revision."""
        await self.answer(call, {"content": [{"type": "text", "text": text}], **self._modern()})

    def _modern(self, **members: Any) -> JSONObject:
        """Return the members that only the results of modern protocol revisions have. For a legacy revision, return an
        empty object."""
        return {"resultType": "complete", **members} if self.under_test.era == "modern" else {}

    async def _call_of(self, tool: str) -> JSONObject:
        call = await self.seen({"method": "tools/call"}, "the client called no tool", _CALL)
        if call["params"]["name"] != tool:
            raise Failed(f"the client called {call['params']['name']!r} instead of {tool!r}")
        return call

    async def order(self, tool: str, seconds: float = 60.0) -> JSONObject:
        """Let the client under test call ``tool`` and give up after ``seconds``. Return the request that the client
        sends."""
        await self.answer_text(await self._call_of("next"), f"{tool} {seconds:g}")
        return await self._call_of(tool)

    async def cancelled_call(self) -> JSONObject:
        """Make the client call a tool and time out. Return the call after the client has cancelled it."""
        call = await self.order("slow", 0.3)
        cancel = await self.seen(
            {"method": "notifications/cancelled"}, "the client didn't cancel a call that timed out"
        )
        if (cancelled := cancel["params"].get("requestId")) != call["id"]:
            raise Failed(f"the client cancelled request {cancelled!r} instead of {call['id']!r}")
        return call

    async def end(self) -> None:
        """Make the client's program end."""
        await self.answer_text(await self._call_of("next"), "end")

    async def check_alive(self) -> None:
        """Check that the client can make one more tool call. Then make the client's program end."""
        await self.answer_text(await self.order("fast"), "fine")
        await self.end()


@frozen
class ClientUnderTest(UnderTest):
    """The client that the scenarios test, as the command that starts it."""

    words: Sequence[str]
    """The command of the client, in which ``{server}`` stands for the command of the server."""

    @asynccontextmanager
    async def opened(self, capabilities: JSONObject | None = None) -> AsyncGenerator[TortureServer]:
        """Start the client under test, and yield the scripted server to which it connects."""
        with TemporaryDirectory() as folder, trio.socket.socket(trio.socket.AF_UNIX) as listener:
            path = str(Path(folder, "s"))
            await listener.bind(path)
            listener.listen(1)
            relay = [sys.executable, str(Path(__file__).with_name("relay.py")), path]
            words = [part for word in self.words for part in (relay if word == "{server}" else [word])]
            async with open_process(Command(words, inherit_env=True, close_grace=_KILL)) as process:
                try:
                    with trio.fail_after(_STARTS * self.patience):
                        connection, _ = await listener.accept()
                except trio.TooSlowError:
                    raise Failed(f"the client didn't start its server within {_STARTS:g} s") from None
                transport = LineTransport(trio.SocketStream(connection), DEFAULT_LIMITS.max_message_bytes)
                server = TortureServer(transport, patience=_STARTS * self.patience)
                server.under_test, server.process = self, process
                try:
                    await server.accept(self.revision, {"tools": {}, "logging": {}})
                except (AssertionError, KeyError) as error:
                    raise Skipped(f"the client doesn't speak {self.revision}: {str(error).splitlines()[0]}") from None
                server.patience = math.inf
                yield server
                await server.aclose()
