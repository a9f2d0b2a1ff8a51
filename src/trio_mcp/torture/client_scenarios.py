"""The scenarios for clients, and ClientUnderTest: a client of any implementation, as a program. ``scenarios.toml`` has
the texts of each scenario.

In the command line of the client, ``{server}`` stands for the command of the stdio server that the client starts. The
client calls the tool ``next`` until the text of the result is ``end``. For ``NAME SECONDS``, it calls the tool
``NAME``, gives up after that many seconds, and ignores the result or the error.
"""

from __future__ import annotations

import math
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
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
from .scenarios import PROMPTLY, Failed, Skipped, TorturePeer, UnderTest, load_scenarios

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


_EXIT: Final = 10.0
"""Seconds within which a client must exit."""
_FLOOD: Final = 10.0
"""Seconds within which a client must read 10,000 messages."""


async def client_cancels(server: TortureServer) -> None:
    await server.cancelled_call()
    await server.check_alive()


async def client_no_stray_cancel(server: TortureServer) -> None:
    await server.answer_text(await server.order("fast"), "fine")
    await server.check_alive()
    if server.received(method="notifications/cancelled"):
        raise Failed("the client cancelled a call that the server had already answered")


async def client_late_result(server: TortureServer) -> None:
    call = await server.cancelled_call()
    await server.answer_text(call, "too late")
    await server.refuse(call, -32603, "and once more")
    await server.check_alive()


async def client_line_not_json(server: TortureServer) -> None:
    for line in (b"Server listening on stdio!", b"", b'{"jsonrpc": "2.0", "method": "\xff"}'):
        await server.send(line)
    await server.check_alive()


def _request_during_a_call(method: str, error_code: int | None) -> Callable[[TortureServer], Awaitable[None]]:
    """Return a scenario in which the server sends a request to the client during a call.

    The client must answer with this error code, or with a result if the code is `None`.
    """

    async def request(server: TortureServer) -> None:
        call = await server.order("slow")
        await server.request("torture", method)
        answer = await server.response("torture", PROMPTLY)
        if answer.get("error", {}).get("code") != error_code:
            raise Failed(f"the client's response has the wrong error code: {str(answer)[:200]}")
        await server.answer_text(call, "done")
        await server.check_alive()

    return request


client_answers_ping = _request_during_a_call("ping", None)
client_unknown_request = _request_during_a_call("torture/unknown", -32601)


async def client_flood(server: TortureServer) -> None:
    call = await server.order("slow")
    with trio.move_on_after(_FLOOD * server.under_test.patience) as scope:
        for number in range(10_000):
            await server.log("info", f"message {number}")
        await server.answer_text(call, "done")
        await server.check_alive()
    if scope.cancelled_caught:
        raise Failed(f"the client didn't make its next tool call within {_FLOOD:g} s")


async def client_large_result(server: TortureServer) -> None:
    await server.answer_text(await server.order("slow"), "x" * (4 * 1024 * 1024))
    await server.check_alive()


async def client_ids(server: TortureServer) -> None:
    for _ in range(20):
        await server.answer_text(await server.order("fast"), "fine")
    await server.check_alive()
    ids = [repr(message["id"]) for message in server.received() if {"id", "method"} <= message.keys()]
    if len(ids) != len(set(ids)):
        raise Failed("the client used a request id twice")


async def client_exit(server: TortureServer) -> None:
    await server.end()
    with trio.move_on_after(_EXIT * server.under_test.patience) as scope, suppress(Failed):
        await server.drain(math.inf)
    if scope.cancelled_caught:
        raise Failed(f"the client didn't close the server's standard input within {_EXIT:g} s")
    await server.aclose()
    await server.check_exit(_EXIT)


async def client_server_dies(server: TortureServer) -> None:
    await server.order("slow")
    await server.aclose()
    await server.check_exit(_EXIT)


async def client_odd_messages(server: TortureServer) -> None:
    await server.notify("notifications/torture", {"a": 1})
    await server.notify("notifications/progress", {"progressToken": "unknown", "progress": 1})
    await server.notify("notifications/cancelled", {"requestId": 99_999})
    await server.send({"id": 424_242, "result": {}})
    await server.send({"id": None, "error": {"code": -32700, "message": "?"}})
    await server.check_alive()


CLIENT_SCENARIOS: Final = load_scenarios("client", vars())
