"""The scenarios that ``trio-mcp torture`` plays with a client under test.

The client under test is a program that connects to the stdio server ``{server}`` of its command line. It calls the tool
``next`` until the text of the result is ``end``. For ``NAME SECONDS``, it calls the tool ``NAME``, gives up after that
many seconds, and ignores the result or the error.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias, cast

import trio

from ..classes import frozen
from ..concurrency.contexts import asynccontextmanager
from ..protocol.fields import JSONObject, as_object
from ..protocol.revisions import LATEST_LEGACY, LATEST_MODERN
from ..runtime.limits import DEFAULT_LIMITS
from ..testing.scripted_peer import MissingMessage
from ..testing.scripted_sides import ScriptedServer
from ..transports.lines import LineTransport
from .scenarios import Era, Failed, Level, Scenario, Skipped, scenario_of

CLIENT_SCENARIOS: Final[list[Scenario[ClientUnderTest]]] = []
Play: TypeAlias = "Callable[[ClientUnderTest], Awaitable[None]]"

_STARTS: Final = 20.0
_TOOLS: Final = [
    {"name": name, "description": name, "inputSchema": {"type": "object"}} for name in ("next", "slow", "fast")
]
_CANCELS: Final = "2026-07-28 stdio, Cancellation: MUST send notifications/cancelled; 2025-11-25 lifecycle: SHOULD"
_LATE: Final = "cancellation: SHOULD ignore any response to the cancelled request that arrives afterward"


class TortureServer(ScriptedServer):
    """A scripted server that answers the requests that every client sends, and leaves tool calls to a scenario."""

    async def call(self, within: float = 10.0) -> JSONObject:
        """Return the next tool call of the client. Raises `Failed` if the client doesn't call a tool in time."""
        with trio.move_on_after(within * self.slowness):
            while True:
                message = await self._next()
                if message.get("method") == "tools/call":
                    return message
        raise Failed(f"no call of a tool within {within:g} s")

    async def ordered(self, tool: str, seconds: float) -> JSONObject:
        """Make the client call ``tool``, and return the call."""
        await self.answer_text(await self._call_of("next"), f"{tool} {seconds:g}")
        return await self._call_of(tool)

    async def _call_of(self, tool: str) -> JSONObject:
        call = await self.call()
        if call["params"]["name"] != tool:
            raise Failed(f"the client called {call['params']['name']!r} and not {tool!r}")
        return call

    async def end(self) -> None:
        """Make the client end its program."""
        await self.answer_text(await self._call_of("next"), "end")

    async def seen(self, method: str, otherwise: str, within: float = 5.0) -> JSONObject:
        """Return the next notification or request with ``method``. Raises `Failed` if the client doesn't send it in
        time."""
        with trio.move_on_after(within * self.slowness):
            while (message := await self._next()).get("method") != method:
                pass
            return message
        raise Failed(f"{otherwise} within {within:g} s")

    async def response(self, request_id: str, within: float = 5.0) -> JSONObject:
        """Return the response to a request of this server. Raises `Failed` if the client doesn't respond in time."""
        with trio.move_on_after(within * self.slowness):
            while (message := await self._next()).get("id") != request_id or "method" in message:
                pass
            return message
        raise Failed(f"no response to {request_id!r} within {within:g} s")

    async def drain(self, seconds: float) -> list[JSONObject]:
        """Return the messages that arrive within ``seconds``."""
        found: list[JSONObject] = []
        with trio.move_on_after(seconds):
            while True:
                found.append(await self._next())
        return found

    async def _next(self) -> JSONObject:
        while True:
            try:
                message = await self.receive()
            except MissingMessage as missing:
                if missing.ended:
                    raise Failed("the client ended the connection") from None
                continue
            match message:
                case {"method": "tools/list", "id": _}:
                    more = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
                    await self.answer(message, {"tools": _TOOLS, **(more if self.is_modern else {})})
                case {"method": "ping", "id": _}:
                    await self.answer(message, {})
                case {"method": "subscriptions/listen" | "logging/setLevel", "id": _}:
                    await self.refuse(message, -32601, "Method not found")
                case dict():
                    return cast("JSONObject", message)
                case _:
                    raise Failed(f"the client sent {str(message)[:200]}")

    is_modern = False
    slowness = 1.0
    """Factor for the time limits within which the client must react."""

    async def answer_text(self, call: JSONObject, text: str) -> None:
        """Answer a tool call with a text, in the result format of the protocol revision."""
        content: JSONObject = {"content": [{"type": "text", "text": text}]}
        await self.answer(call, {**content, "resultType": "complete"} if self.is_modern else content)


@frozen
class ClientUnderTest:
    """The client under test, which is a program that speaks a legacy or modern revision."""

    words: Sequence[str]
    """The command of the client, in which ``{server}`` stands for the command of the server."""
    era: Era
    patience: float = 1.0
    """Factor for the time limits within which the client must react."""

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[tuple[TortureServer, trio.Process]]:
        """Start the client, and yield the server that it connects to and the process of the client."""
        with TemporaryDirectory() as folder:
            path = str(Path(folder, "s"))
            listener = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
            await listener.bind(path)
            listener.listen(1)
            relay = [sys.executable, str(Path(__file__).with_name("relay.py")), path]
            process = await trio.lowlevel.open_process(
                [part for word in self.words for part in (relay if word == "{server}" else [word])],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                with listener:
                    accepted = None
                    with trio.move_on_after(_STARTS * self.patience):
                        accepted, _ = await listener.accept()
                if accepted is None:
                    raise Failed(f"the client didn't start its server within {_STARTS:g} s")
                stream = trio.SocketStream(accepted)
                async with stream:
                    transport = LineTransport(stream, DEFAULT_LIMITS.max_message_bytes)
                    server = TortureServer(transport, patience=_STARTS)
                    await self._accept(server)
                    server.patience, server.slowness = 0.5, self.patience
                    yield server, process
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
                    await process.wait()

    async def _accept(self, server: TortureServer) -> None:
        revision = (LATEST_LEGACY if self.era == "legacy" else LATEST_MODERN).name
        server.is_modern = self.era == "modern"
        try:
            await server.accept(revision, {"tools": {}, "logging": {}})
        except (AssertionError, KeyError) as error:
            raise Skipped(f"the client speaks no {revision}: {str(error).splitlines()[0]}") from None


def scenario(level: Level, clause: str, *, eras: Sequence[Era] = ("legacy", "modern")) -> Callable[[Play], Play]:
    """Return a decorator that registers a function as a scenario: see `scenario_of`."""

    def register(play: Play) -> Play:
        CLIENT_SCENARIOS.append(scenario_of(play, level, clause, eras))
        return play

    return register


def connected(
    level: Level, clause: str, *, eras: Sequence[Era] = ("legacy", "modern")
) -> Callable[[Callable[[TortureServer], Awaitable[None]]], object]:
    """Return a decorator that registers a function as a scenario, and gives it a connection of its own."""

    def register(play: Callable[[TortureServer], Awaitable[None]]) -> object:
        @wraps(play)
        async def connect(client: ClientUnderTest) -> None:
            async with client.connected() as (server, _):
                await play(server)

        return scenario(level, clause, eras=eras)(connect)

    return register


async def _cancelled(server: TortureServer) -> JSONObject:
    """Make the client time out on a tool call, wait for its cancellation, and return the call."""
    call = await server.ordered("slow", 0.3)
    cancel = await server.seen("notifications/cancelled", "no cancel of a call whose timeout has passed")
    if cancel["params"].get("requestId") != call["id"]:
        raise Failed(f"the cancel names {cancel['params'].get('requestId')!r}, not {call['id']!r}")
    return call


async def _works(server: TortureServer) -> None:
    """Check that the client can make one more tool call."""
    await server.answer_text(await server.ordered("fast", 5), "fine")
    await server.end()


@connected("MUST", _CANCELS)
async def client_cancels(server: TortureServer) -> None:
    """A call whose timeout has passed is cancelled, under its own id.

    The server works on for a user who has given up.
    """
    await _cancelled(server)
    await _works(server)


def _is_cancel(message: Any) -> bool:
    return as_object(message).get("method") == "notifications/cancelled"


@connected(
    "MUST",
    "cancellation, Behavior Requirements: MUST only reference requests that are believed to still be in-progress",
)
async def client_no_stray_cancel(server: TortureServer) -> None:
    """A call that is answered in time isn't cancelled.

    Servers stop other work.
    """
    await server.answer_text(await server.ordered("fast", 5), "fine")
    await _works(server)
    if any(way == "received" and _is_cancel(message) for way, message in server.transcript):
        raise Failed("a cancel came")


@connected("SHOULD", _LATE)
async def client_late_result(server: TortureServer) -> None:
    """A result that comes after the cancel is ignored.

    One slow tool ends the session.
    """
    call = await _cancelled(server)
    await server.answer_text(call, "too late")
    await server.refuse(call, -32603, "and once more")
    await _works(server)


@connected("better", "no clause: lenient reading")
async def client_line_not_json(server: TortureServer) -> None:
    """A line that isn't JSON doesn't end the connection.

    A stray print of a server ends the session.
    """
    await server.send(b"Server listening on stdio!")
    await server.send(b"")
    await server.send(b'{"jsonrpc": "2.0", "method": "\xff"}')
    await _works(server)


@connected("MUST", "2025-11-25 ping: the receiver MUST respond promptly", eras=("legacy",))
async def client_answers_ping(server: TortureServer) -> None:
    """A ping of the server is answered, also during a call.

    Servers end connections that are in use.
    """
    call = await server.ordered("slow", 10)
    await server.request("p", "ping")
    if "result" not in await server.response("p", 2):
        raise Failed("the ping was answered with an error")
    await server.answer_text(call, "done")
    await _works(server)


@connected("MUST", "JSON-RPC 2.0: -32601, Method not found", eras=("legacy",))
async def client_unknown_request(server: TortureServer) -> None:
    """An unknown request of the server is answered with -32601.

    Servers wait for ever.
    """
    call = await server.ordered("slow", 10)
    await server.request("u", "torture/unknown")
    answer = await server.response("u", 2)
    if answer.get("error", {}).get("code") != -32601:
        raise Failed(f"the answer was {str(answer)[:200]}")
    await server.answer_text(call, "done")
    await _works(server)


@connected("better", "no clause: back-pressure")
async def client_flood(server: TortureServer) -> None:
    """10,000 log messages during a call don't keep its result for more than ten seconds.

    A talkative tool freezes the host.
    """
    call = await server.ordered("slow", 20)
    with trio.move_on_after(10 * server.slowness):
        for number in range(10_000):
            await server.log("info", f"message {number}")
        await server.answer_text(call, "done")
        await _works(server)
        return
    raise Failed("the next call didn't come within 10 s")


@connected("better", "no clause: large messages")
async def client_large_result(server: TortureServer) -> None:
    """A result of 4 MiB arrives.

    Large files can't be read.
    """
    await server.answer_text(await server.ordered("slow", 20), "x" * (4 * 1024 * 1024))
    await _works(server)


@connected("MUST", "requests: the id MUST NOT have been used before")
async def client_ids(server: TortureServer) -> None:
    """No two requests have the same id.

    Responses reach the wrong call.
    """
    for _ in range(20):
        await server.answer_text(await server.ordered("fast", 5), "fine")
    await server.end()
    ids = [repr(m["id"]) for w, m in server.transcript if w == "received" and {"id", "method"} <= m.keys()]
    if len(ids) != len(set(ids)):
        raise Failed("an id was used twice")


@scenario("SHOULD", "stdio, Shutdown: the client SHOULD close the input stream")
async def client_exit(client: ClientUnderTest) -> None:
    """At its end, the client closes the input of its server.

    Servers are left behind.
    """
    async with client.connected() as (server, process):
        await server.end()
        with trio.move_on_after(10 * server.slowness):
            with suppress(Failed):
                while True:
                    await server.drain(1)
            await process.wait()
        if process.returncode is None:
            raise Failed("the client still runs 10 s later")


@scenario("better", "2026-07-28 stdio: if the server process exits unexpectedly, the client SHOULD restart it")
async def client_server_dies(client: ClientUnderTest) -> None:
    """A client whose server ends during a call ends as well, or goes on, within ten seconds.

    Hosts hang.
    """
    async with client.connected() as (server, process):
        await server.ordered("slow", 60)
        await server.aclose()
        with trio.move_on_after(10 * server.slowness):
            await process.wait()
        if process.returncode is None:
            raise Failed("the call is still pending 10 s later")


@connected("better", "JSON-RPC 2.0: notifications aren't answered; no clause on the others")
async def client_odd_messages(server: TortureServer) -> None:
    """Unknown notifications, unknown progress, and responses and cancels of unknown requests are ignored.

    A server that is newer than the client, or confused, ends the session.
    """
    await server.notify("notifications/torture", {"a": 1})
    await server.notify("notifications/progress", {"progressToken": "unknown", "progress": 1})
    await server.notify("notifications/cancelled", {"requestId": 99_999})
    await server.send({"id": 424_242, "result": {}})
    await server.send({"id": None, "error": {"code": -32700, "message": "?"}})
    await _works(server)
