"""The scenarios that end a connection: standard input that closes, signals, process trees, and HTTP clients that
disconnect."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import SplitResult, urlsplit

import msgspec
import trio

from ..concurrency.contexts import asynccontextmanager
from ..connecting.targets import Address
from ..protocol.fields import JSONObject
from ..protocol.revisions import LATEST_LEGACY
from ..runtime.limits import DEFAULT_LIMITS
from ..transports.lines import LineTransport
from .scenarios import Failed, Skipped
from .server_scenarios import SERVER_SCENARIOS, scenario
from .server_under_test import PROMPTLY, QUIET, ServerUnderTest, TortureClient

__all__ = ["SERVER_SCENARIOS"]

_EXIT: Final = 5.0
"""Seconds within which a server must exit."""
_CLOSED: Final = (
    "2026-07-28 stdio, Shutdown: servers SHOULD exit promptly when their standard input is closed; 2025-11-25"
    " lifecycle, Shutdown"
)


class _Process:
    """The process of a server that was started over stdio, in its own process group."""

    def __init__(self, process: trio.Process, patience: float) -> None:
        self._process = process
        self._patience = patience

    def terminate(self) -> None:
        self._process.terminate()

    async def close_input(self) -> None:
        assert self._process.stdin is not None
        await self._process.stdin.aclose()

    async def check_exit(self) -> None:
        """Check that the process exits, and that no other process of its group is left running. Raises `Failed`
        otherwise."""
        with trio.move_on_after(_EXIT * self._patience):
            await self._process.wait()
        if self._process.returncode is None:
            raise Failed(f"the server still runs {_EXIT:g} s later")
        with trio.move_on_after(PROMPTLY * self._patience):
            while self._group_runs():  # noqa: ASYNC110, there is no event for a process group
                await trio.sleep(0.05)
        if self._group_runs():
            raise Failed("the server has exited, and a process that it started runs on")

    def _group_runs(self) -> bool:
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return False
        return True


@asynccontextmanager
async def _started(
    server: ServerUnderTest, *, is_opened: bool = True
) -> AsyncGenerator[tuple[TortureClient, _Process]]:
    command = server.command()
    env = {**os.environ, **command.env}
    process = await trio.lowlevel.open_process(
        list(command.words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=env,
        cwd=command.cwd,
        start_new_session=True,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        pipes = trio.StapledStream(process.stdin, process.stdout)
        client = TortureClient(LineTransport(pipes, DEFAULT_LIMITS.max_message_bytes), patience=0.5)
        client.tools, client.promptly = server.tools, PROMPTLY * server.patience
        if is_opened:
            client.patience = 30.0
            await client.open(server.revision)
            await client.response(await client.request("tools/list"), within=30.0)  # the server has started
            client.patience = 0.5
        yield client, _Process(process, server.patience)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _EXIT):
            await process.wait()


@scenario("SHOULD", _CLOSED)
async def exit_idle(server: ServerUnderTest) -> None:
    """An idle server exits when its input closes.

    After the host has ended, processes are left behind.
    """
    async with _started(server) as (client, process):
        await client.check_alive()
        await process.close_input()
        await process.check_exit()


@scenario("SHOULD", _CLOSED)
async def exit_busy(server: ServerUnderTest) -> None:
    """A server with running handlers exits when its input closes.

    After the host has ended, processes are left behind.
    """
    async with _started(server) as (client, process):
        for _ in range(3):
            await client.start("slow")
        await process.close_input()
        await process.check_exit()


@scenario("SHOULD", _CLOSED)
async def exit_unread(server: ServerUnderTest) -> None:
    """A server exits though its output isn't read.

    After the host has ended, processes are left behind.
    """
    async with _started(server) as (client, process):
        await client.call_tool(client.tool("flood"), meta={"progressToken": 1})
        await process.close_input()
        await process.check_exit()


@scenario("SHOULD", "lifecycle, Shutdown: SIGTERM, then SIGKILL")
async def exit_sigterm(server: ServerUnderTest) -> None:
    """A busy server exits at SIGTERM.

    Hosts have to kill the server, and its cleanup doesn't run.
    """
    async with _started(server) as (client, process):
        await client.start("slow")
        process.terminate()
        await process.check_exit()


@scenario("better", "cancellation, Behavior Requirements: SHOULD free associated resources")
async def cancel_process_tree(server: ServerUnderTest) -> None:
    """A cancel ends the child process that the handler has started.

    After the host has ended, processes are left behind.
    """
    async with _started(server) as (client, process):
        call = await client.call_tool(client.tool("spawn"))
        await client.drain(QUIET)
        await client.cancel(call)
        await client.drain(QUIET)
        await process.close_input()
        await process.check_exit()


@scenario("better", _CLOSED)
async def exit_process_tree(server: ServerUnderTest) -> None:
    """After a server has exited, none of its child processes runs.

    After the host has ended, processes are left behind.
    """
    async with _started(server) as (client, process):
        await client.call_tool(client.tool("spawn"))
        await client.drain(QUIET)
        await process.close_input()
        await process.check_exit()


async def _posted(url: SplitResult, message: JSONObject, headers: Mapping[str, str] | None = None) -> trio.SocketStream:
    """POST a message, and return the response stream without reading from it."""
    body = msgspec.json.encode({"jsonrpc": "2.0", **message})
    head = {
        "Host": url.netloc,
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": LATEST_LEGACY.name,
        "Content-Length": str(len(body)),
        **(headers or {}),
    }
    stream = await trio.open_tcp_stream(url.hostname or "", url.port or 80)
    lines = [f"POST {url.path or '/'} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items()), "", ""]
    await stream.send_all("\r\n".join(lines).encode() + body)
    return stream


def _http_only(server: ServerUnderTest) -> None:
    if not server.is_http:
        raise Skipped("the server isn't reached over HTTP")


@scenario(
    "MUST", "2026-07-28 streamable HTTP, Cancellation: MUST be treated by the server as cancellation", eras=("modern",)
)
async def http_departure(server: ServerUnderTest) -> None:
    """A client that disconnects has cancelled its request.

    The work continues after the user has closed the host.
    """
    _http_only(server)
    async with server.opened() as watching:
        async with server.opened() as leaving:
            await leaving.call_tool(leaving.tool("slow"))
            await watching.until_running(1)
        await watching.until_running(0, within=watching.promptly)


@scenario(
    "SHOULD",
    "2025-11-25 transports: disconnection SHOULD NOT be interpreted as the client cancelling its request",
    eras=("legacy",),
)
async def http_no_departure(server: ServerUnderTest) -> None:
    """A client that loses its connection has not cancelled its request.

    A change of the network loses long calls.
    """
    _http_only(server)
    url = urlsplit(server.target.url if isinstance(server.target, Address) else "")
    if url.scheme != "http" or url.hostname is None:
        raise Skipped("the server isn't reached over plain HTTP")
    async with server.opened() as watching:
        tool = watching.tool("slow")
        opening = {
            "protocolVersion": server.revision,
            "capabilities": {},
            "clientInfo": {"name": "torture", "version": "1"},
        }
        stream = await _posted(url, {"id": 1, "method": "initialize", "params": opening})
        head = b""
        while b"\r\n\r\n" not in head:
            head += await stream.receive_some() or b"\r\n\r\n"
        found = re.search(rb"(?i)^mcp-session-id: *([!-~]+)", head, re.MULTILINE)
        session = {} if found is None else {"Mcp-Session-Id": found[1].decode()}
        await stream.aclose()
        ready = await _posted(url, {"method": "notifications/initialized"}, session)
        await ready.receive_some()
        await ready.aclose()
        leaving = await _posted(
            url, {"id": 2, "method": "tools/call", "params": {"name": tool, "arguments": {}}}, session
        )
        await watching.until_running(1)
        await leaving.aclose()
        await watching.drain(QUIET)
        was_running = await watching.running()
        ending = await _posted(url, {"method": "notifications/cancelled", "params": {"requestId": 2}}, session)
        await ending.receive_some()
        await ending.aclose()
        if was_running != 1:
            raise Failed("the handler was stopped")


@scenario("MUST", "2025-11-25 transports, Session Management")
async def http_sessions_apart(server: ServerUnderTest) -> None:
    """A cancel of one client doesn't stop the request of another with the same id.

    Users stop each other's calls.
    """
    _http_only(server)
    async with server.opened() as one, server.opened() as other:
        call = await one.start("slow", id=7171)
        await other.cancel(7171)
        await other.drain(0.5)
        if await one.running() != 1:
            raise Failed("the other client's request was stopped")
        await one.cancel(call)
