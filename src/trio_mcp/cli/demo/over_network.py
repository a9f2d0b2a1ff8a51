"""The demo over HTTP or WebSocket, with two clients at once on one server, one cancelled and one not."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from importlib.util import find_spec
from typing import Final

import trio

from ... import Client
from ...concurrency.contexts import asynccontextmanager
from ...concurrency.nurseries import open_service_nursery
from ...connecting.targets import Address
from .over_stdio import PATIENCE, Disappointed, label, pack, pack_again, watch
from .screen import Screen

_START: Final = 20.0
_END: Final = 10.0


async def tell_story_over_http(screen: Screen) -> None:
    """Show the demo over HTTP on ``screen``."""
    screen.headline("1. A server in a child process that listens for HTTP requests, and two clients")
    await _tell_story(screen, "--http")


async def tell_story_over_websocket(screen: Screen) -> None:
    """Show the demo over WebSocket on ``screen``."""
    screen.headline("1. A server in a child process that listens for WebSockets, and two clients")
    await _tell_story(screen, "--websocket")


async def _tell_story(screen: Screen, option: str) -> None:
    started = time.monotonic()
    async with _server(option) as (process, url):
        screen.say(f"  {url}")
        # One server serves both eras, and asks in both.
        async with (
            Address(url).open(era="legacy", elicitation=screen.answer, on_log=screen.log) as one,
            Address(url).open(era="modern") as two,
        ):
            assert one.server_info is not None
            screen.say(f"  {one.server_info.name} {one.server_info.version}")
            screen.say(f"  client one: revision {one.revision.name}; client two: revision {two.revision.name}")
            screen.tools([tool async for tool in one.list_tools()])
            summary = [
                await pack(one, screen),
                await label(one, screen),
                *await _at_once(one, two, screen),
                await pack_again(one, screen),
            ]
        process.send_signal(signal.SIGTERM)
        with trio.fail_after(_END):
            status = await process.wait()
    screen.headline("Summary")
    for line in summary:
        screen.say(f"  - {line}")
    screen.say(f"  - the server exited with status {status} after SIGTERM; all took {time.monotonic() - started:.1f} s")


async def _at_once(one: Client, two: Client, screen: Screen) -> list[str]:
    screen.headline(f"4. Both clients at once: one gives up after trio.move_on_after({PATIENCE}), the other does not")
    packed = ""

    async def meanwhile() -> None:
        nonlocal packed
        packed = (await two.call_tool("pack", {"files": 10})).text

    async with trio.open_nursery() as nursery:
        nursery.start_soon(meanwhile)
        summary = await watch(one, screen)
    screen.say(f"  client two, all the while: {packed}")
    return [*summary, f"the other client, at the same time: {packed}"]


@asynccontextmanager
async def _server(option: str) -> AsyncGenerator[tuple[trio.Process, str]]:
    """Run the server in a process of its own, where ``option`` of `trio-mcp run` says, and yield the process and the
    server's URL. The process is killed at the end."""
    spec = find_spec("trio_mcp.cli.demo.server")
    assert spec is not None
    assert spec.origin is not None
    # -P: what lies in the current directory is none of the demo's business.
    command = [sys.executable, "-P", "-m", "trio_mcp.cli", "run", spec.origin, option, "0"]
    process = await trio.lowlevel.open_process(
        command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        assert process.stderr is not None
        told = ""
        with trio.fail_after(_START):
            while not (found := re.search(r"at (\w+://\S+);.*\n", told)):  # the whole line, to its end
                data = await process.stderr.receive_some()
                if not data:
                    raise Disappointed(f"the server did not start: {told}")
                told += data.decode(errors="replace")
        async with open_service_nursery("the story is over") as nursery:
            nursery.start_soon(_copy, process.stderr)
            yield process, found.group(1)
    finally:
        process.kill()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _END):
            await process.wait()


async def _copy(stderr: trio.abc.ReceiveStream) -> None:
    """Copy further output of the server to our standard error, for the user."""
    async for data in stderr:
        print(data.decode(errors="replace"), end="", file=sys.stderr)
