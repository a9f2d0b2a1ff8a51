"""ScriptedClient and ScriptedServer: a test acts as one side of a connection, message by message, to test the other
side.

The openers run a scripted side in memory, or over the standard input and output of a process. `assert_replays` plays
one side of a recording, and so uses the recording as a regression test of a server or client.
"""

from __future__ import annotations

import math
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, Unpack

import trio

from ..client.client import Client
from ..client.opening import open_client
from ..client.options import ClientOptions
from ..concurrency.contexts import asynccontextmanager
from ..concurrency.misuse import async_with_only, check_keywords
from ..concurrency.nurseries import open_service_nursery
from ..connecting.memory import open_server
from ..connecting.stdio import Command, open_process
from ..connecting.targets import Address, open_messages
from ..jsonrpc.errors import METHOD_NOT_FOUND
from ..jsonrpc.messages import RequestId
from ..protocol.fields import JSONObject
from ..protocol.meta import CLIENT_CAPABILITIES, CLIENT_INFO, PROGRESS_TOKEN, PROTOCOL_VERSION, SERVER_INFO
from ..protocol.revisions import LATEST_MODERN, REVISIONS, Revision
from ..recording.comparing import Difference
from ..recording.entries import BadRecording, Recorded, read_recording
from ..recording.replay import opening_of, replay
from ..runtime.limits import DEFAULT_LIMITS
from ..runtime.transport import Transport, framed
from ..server.servable import Servable
from ..transports.lines import memory_transports
from ..transports.process import TextSink
from ..transports.stdio import own_stdio
from .scripted_peer import Pattern, ScriptedPeer, UnexpectedMessage

_CLIENT_INFO: Final = {"name": "scripted-client", "version": "1"}


class ScriptedClient(ScriptedPeer):
    """The client side of a connection, controlled by a test. Its requests get the ids 1, 2, 3 …, unless you pass an
    id."""

    def __init__(self, channel: Transport, *, patience: float = 10.0) -> None:
        super().__init__(channel, patience=patience)
        self.revision: Revision | None = None
        """The protocol revision of the client's requests; `None` before `open`."""
        self.capabilities: JSONObject = {}
        """The capabilities that the client declares, as JSON data; empty before `open`."""
        self._last_id = 0

    async def open(
        self, revision: str = LATEST_MODERN.name, capabilities: JSONObject | None = None
    ) -> JSONObject | None:
        """Open the connection with the protocol ``revision``, and declare the client's ``capabilities``.

        With a legacy revision, this performs the handshake, and returns its result. With a modern revision it sends
        nothing, because each request carries the revision and the capabilities.
        """
        self.revision = REVISIONS[revision]
        self.capabilities = capabilities or {}
        if not self.revision.handshake:
            return None
        params = {"protocolVersion": revision, "capabilities": self.capabilities, "clientInfo": _CLIENT_INFO}
        result = await self.expect_result(await self.request("initialize", params))
        await self.notify("notifications/initialized")
        return result

    def request_message(
        self,
        method: str,
        params: JSONObject | None = None,
        *,
        id: RequestId | None = None,
        meta: JSONObject | None = None,
    ) -> JSONObject:
        """Return a request message for the connection's protocol revision, without sending it. ``meta`` is added to
        ``params._meta``."""
        self._last_id += 1
        meta = {**self._required_meta(), **(meta or {})}
        params = {**(params or {}), **({"_meta": meta} if meta else {})}
        message: JSONObject = {"jsonrpc": "2.0", "id": self._last_id if id is None else id, "method": method}
        return {**message, "params": params} if params else message

    def _required_meta(self) -> JSONObject:
        # By MCP 2026-07-28, section "Per-request protocol fields", each request must have these ``_meta`` fields.
        if self.revision is None or self.revision.handshake:
            return {}
        return {PROTOCOL_VERSION: self.revision.name, CLIENT_INFO: _CLIENT_INFO, CLIENT_CAPABILITIES: self.capabilities}

    async def request(
        self,
        method: str,
        params: JSONObject | None = None,
        *,
        id: RequestId | None = None,
        meta: JSONObject | None = None,
    ) -> RequestId:
        """Send a request, and return its id without waiting for the reply."""
        message = self.request_message(method, params, id=id, meta=meta)
        await self.send(message)
        return message["id"]

    async def call_tool(
        self,
        name: str,
        arguments: JSONObject | None = None,
        *,
        id: RequestId | None = None,
        meta: JSONObject | None = None,
    ) -> RequestId:
        """Send a tool call, and return its id. To request progress, pass ``meta={"progressToken": 7}``."""
        return await self.request("tools/call", {"name": name, "arguments": arguments or {}}, id=id, meta=meta)

    async def expect_result(self, request_id: RequestId, result: Pattern = ...) -> Any:
        """Check that the next message is the successful response to the request ``request_id``, and return its
        result."""
        return (await self.expect({"id": request_id, "result": result}))["result"]

    async def expect_text(self, request_id: RequestId, text: str) -> None:
        """Check that the next message is the result of a successful tool call, with ``text`` as its only content."""
        pattern = {"id": request_id, "result": {"content": [{"type": "text", "text": text}], ...: ...}}
        message = await self.expect(pattern)
        if message["result"].get("isError"):
            raise UnexpectedMessage(pattern, message, ["$.result.isError: the tool failed"], self.transcript)

    async def expect_error(self, request_id: RequestId | None, code: Pattern = ..., message: Pattern = ...) -> Any:
        """Check that the next message is the error response to the request ``request_id``, and return its error object.

        A ``request_id`` of `None` means that the response has the id null.
        """
        error = {"code": code, "message": message, ...: ...}
        return (await self.expect({"id": request_id, "error": error}))["error"]


_SERVER_INFO: Final = {"name": "scripted-server", "version": "1"}


class ScriptedServer(ScriptedPeer):
    """The server side of a connection, controlled by a test."""

    async def accept(self, revision: str = LATEST_MODERN.name, capabilities: JSONObject | None = None) -> JSONObject:
        """Accept the client's opening request like a server that supports only ``revision``, and return this request.

        A legacy server refuses ``server/discover``, answers ``initialize``, and waits for
        ``notifications/initialized``. A modern server answers ``server/discover``.

        Raises `UnexpectedMessage` if the client sends anything else, and `MissingMessage` if it sends nothing.
        """
        opening = "initialize" if REVISIONS[revision].handshake else "server/discover"
        pattern = {"jsonrpc": "2.0", "id": ..., "method": opening, ...: ...}
        while True:
            message = await self._receive(pattern)
            match message:
                case {"method": "initialize", "id": _} if opening == "initialize":
                    opened = {
                        "protocolVersion": revision,
                        "capabilities": capabilities or {},
                        "serverInfo": _SERVER_INFO,
                    }
                    await self.answer(message, opened)
                    await self.expect({"method": "notifications/initialized", ...: ...})
                    return message
                case {"method": "server/discover", "id": _} if opening == "server/discover":
                    discovered = {
                        "resultType": "complete",
                        "supportedVersions": [revision],
                        "capabilities": capabilities or {},
                        "ttlMs": 0,
                        "cacheScope": "private",
                        "_meta": {SERVER_INFO: _SERVER_INFO},
                    }
                    await self.answer(message, discovered)
                    return message
                case {"method": "initialize" | "server/discover", "id": _}:
                    await self.refuse(message, METHOD_NOT_FOUND, "Method not found")
                case _:
                    raise UnexpectedMessage(pattern, message, [], self.transcript)

    async def expect_request(self, method: str, params: Pattern = ...) -> JSONObject:
        """Check that the next message is a request with this ``method``, and return it. Without ``params``, any
        parameters match."""
        more: dict[Any, Any] = {...: ...} if params is ... else {"params": params}
        return await self.expect({"id": ..., "method": method, **more})

    async def expect_call(self, tool: str, arguments: Pattern = ...) -> JSONObject:
        """Check that the next message is a call of ``tool``, and return it. Reply with `answer_text` or `answer`."""
        return await self.expect_request("tools/call", {"name": tool, "arguments": arguments, ...: ...})

    async def expect_cancel(self, request: JSONObject, reason: Pattern = ...) -> None:
        """Check that the next message cancels ``request``. If you pass ``reason``, the message must contain that
        reason."""
        more: dict[Any, Any] = {...: ...} if reason is ... else {"reason": reason}
        await self.expect({"method": "notifications/cancelled", "params": {"requestId": request["id"], **more}})

    async def answer_text(self, call: JSONObject, text: str) -> None:
        """Reply to the tool call ``call`` with a result whose only content is ``text``."""
        await self.answer(call, {"content": [{"type": "text", "text": text}]})

    async def progress(self, request: JSONObject, progress: float, **more: Any) -> None:
        """Send a progress notification for ``request``, which must carry a progress token. ``more`` can contain
        ``total`` and ``message``."""
        token = request["params"]["_meta"][PROGRESS_TOKEN]
        await self.notify("notifications/progress", {"progressToken": token, "progress": progress, **more})

    async def log(self, level: str, data: Any, **more: Any) -> None:
        """Send a log message to the client. ``more`` can contain ``logger``."""
        await self.notify("notifications/message", {"level": level, "data": data, **more})

    async def request(self, request_id: RequestId, method: str, params: JSONObject | None = None) -> None:
        """Send a request from the server to the client (legacy protocol revisions only)."""
        message: JSONObject = {"id": request_id, "method": method}
        await self.send(message if params is None else {**message, "params": params})


Script: TypeAlias = Callable[[ScriptedServer], Awaitable[None]]
"""An async function that acts as the server, message by message."""


@async_with_only("client")
@asynccontextmanager
async def open_scripted_client(
    server: Servable,
    revision: str | None = LATEST_MODERN.name,
    capabilities: JSONObject | None = None,
    *,
    stateless: bool = False,
    patience: float = 10.0,
) -> AsyncGenerator[ScriptedClient]:
    """Run ``server`` in this process, and control its client message by message.

    At the end of the block, the connection is closed, and requests that still run are cancelled.

    Args:
        revision: The protocol revision to open with, see `ScriptedClient.open`. With `None`, the script opens it.
        capabilities: The capabilities that the client declares, see `ScriptedClient.open`.
    """
    ours, theirs = memory_transports()
    async with open_server(server, theirs, stateless=stateless):
        client = ScriptedClient(ours, patience=patience)
        try:
            if revision is not None:
                await client.open(revision, capabilities)
            yield client
        finally:
            await client.aclose()


@async_with_only("client")
@asynccontextmanager
async def open_scripted_process(
    command: Sequence[str | os.PathLike[str]],
    revision: str | None = LATEST_MODERN.name,
    capabilities: JSONObject | None = None,
    *,
    env: Mapping[str, str] | None = None,
    inherit_env: bool = False,
    cwd: str | os.PathLike[str] | None = None,
    stderr: TextSink | None = None,
    close_grace: float = 2.0,
    patience: float = 10.0,
) -> AsyncGenerator[ScriptedClient]:
    """Start any server with ``command``, and control its client over stdio. See `open_scripted_client`.

    The process is started and stopped in the same way as by `trio_mcp.open_stdio`. Don't use a virtual clock, which
    wouldn't wait for another process.
    """
    child = Command(command, env=env or {}, inherit_env=inherit_env, cwd=cwd, stderr=stderr, close_grace=close_grace)
    async with open_process(child) as channel:
        client = ScriptedClient(channel, patience=patience)
        if revision is not None:
            await client.open(revision, capabilities)
        yield client


@async_with_only("client")
@asynccontextmanager
async def open_scripted_server(
    script: Script, *, patience: float = 10.0, **options: Unpack[ClientOptions]
) -> AsyncGenerator[Client]:
    """Open a client that is connected to a scripted server. The function ``script`` acts as the server while the block
    runs.

    If the script fails, the block is cancelled, and raises the exception of the script unchanged. At the end of the
    block the client is closed, and the connection of the script ends. If the script is still running then, it has
    ``patience`` seconds to return. Messages that arrive after the script has returned are read, but not answered.

    ``options`` are the client options of `trio_mcp.open_stdio`.
    """
    ours, theirs = memory_transports()
    play = _ScriptRun(script, ScriptedServer(theirs, patience=patience))
    try:
        with play.beside:
            async with open_service_nursery("the block was left") as nursery:
                nursery.start_soon(play.run)
                async with open_client(ours, **options) as client:
                    try:
                        yield client
                    except Exception:
                        play.block_failed = True
                        raise
                await play.wait_finished(patience)
    except Exception as error:
        if play.failure is None:
            raise
        raise play.failure from error
    if play.failure is not None:
        raise play.failure


class _ScriptRun:
    """Runs the function ``script`` as the server while the caller's block runs. If both fail, the first error is
    raised."""

    def __init__(self, script: Script, server: ScriptedServer) -> None:
        self._script = script
        self._server = server
        self.block_failed = False
        self._ended = trio.Event()
        self.beside = trio.CancelScope()
        self.failure: Exception | None = None
        """The exception that ``script`` has raised, unless the caller's block failed first."""

    async def run(self) -> None:
        try:
            await self._script(self._server)
        except Exception as error:
            if not self.block_failed:
                self.failure = error
                self.beside.cancel(reason="the script of the server failed")
        else:
            await self._server.read_to_end()
        self._ended.set()

    async def wait_finished(self, patience: float) -> None:
        with trio.move_on_after(patience):
            await self._ended.wait()
        if not self._ended.is_set():
            raise trio.TooSlowError(
                f"the server's script was still running {patience:g} seconds after the client was closed"
            )


async def serve_scripted_stdio(script: Script, *, patience: float = 10.0) -> None:
    """Run the function ``script`` as an MCP server on standard input and output. Use it to test a host that starts its
    servers itself.

    After the script returns, the input is read to its end. Raises the exceptions of the script.
    """
    with own_stdio(DEFAULT_LIMITS.max_message_bytes) as channel:
        server = ScriptedServer(channel, patience=patience)
        await script(server)
        await server.read_to_end()


async def assert_replays(
    recording: str | os.PathLike[str],
    server: Servable | Command | Address | Callable[[Client], Awaitable[object]],
    *,
    patience: float = 10.0,
    **options: Unpack[ClientOptions],
) -> None:
    """Replay one side of ``recording`` to a server or client, and assert that it answers with the recorded messages.

        await assert_replays("calls.jsonl", server)

    A server gets the messages of the recorded client. It runs in this process, is started as a child process, or
    listens at an address. A function is a client, and gets the messages of the recorded server. It is called with a
    `Client`, which is opened with ``options`` and in the revision of the recording::

        async def use(client: Client) -> None:
            await client.call_tool("now")

        await assert_replays("calls.jsonl", use)

    A message can be up to ``patience`` seconds late. ``trio-mcp replay`` does the same from a shell.

    Raises:
        AssertionError: messages differ from the recording; the text lists them.
        BadRecording: the recording is invalid.
        OSError: the recording can't be read.
    """
    check_keywords(assert_replays, options)
    recorded = read_recording(recording)
    if isinstance(server, Command | Address):
        async with open_messages(server, opening_of(recorded).modern) as transport:
            differences = await replay(recorded, transport, patience=patience)
    elif callable(server):
        differences = await _played_to_client(recorded, server, patience, options)
    else:
        ours, theirs = memory_transports()
        async with open_server(server, theirs):
            differences = await replay(recorded, ours, patience=patience)
    assert not differences, "\n".join(map(str, differences))


async def _played_to_client(
    recorded: Recorded, use: Callable[[Client], Awaitable[object]], patience: float, options: ClientOptions
) -> list[Difference]:
    opening = opening_of(recorded)
    by_recording: ClientOptions = {"era": "modern" if opening.legacy is None else "legacy"}
    if opening.legacy is not None:
        by_recording["revision"] = opening.legacy
    differences: list[Difference] = []
    failures: list[Exception] = []

    async def play(server: ScriptedServer) -> None:
        try:
            differences.extend(await replay(recorded, framed(server._channel), side="server", patience=patience))
        except (BadRecording, OSError) as error:
            failures.append(error)

    try:
        # Wait for the end of the recording without a limit, since each of its messages may take `patience` seconds.
        async with open_scripted_server(play, patience=math.inf, **{**by_recording, **options}) as client:
            await use(client)
    finally:
        if failures:  # raise the real cause, because the client only reports that its connection ended
            raise failures[0]
    return differences
