"""run_demo: start a server in a child process, and show the features of a client."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import trio

from ... import CallToolResult, Client, MCPError, Progress, TextContent, open_stdio
from ..statuses import INTERRUPTED
from ..terminal.interrupts import run_until_interrupted
from .screen import Screen

# -P: what lies in the current directory is none of the demo's business.
SERVER: Final = [sys.executable, "-P", "-m", "trio_mcp.cli.demo.server"]
PATIENCE: Final = 0.5


class Disappointed(Exception):
    """The demo did not show its point."""


def run_demo(tell: Callable[[Screen], Awaitable[None]] | None = None) -> int:
    """Run the demo on standard output: ``tell``, or the story over stdio.

    Return the exit status: 0, 1 when it failed, 130 after Ctrl-C.
    """
    try:
        run_until_interrupted(lambda: (tell or _story_over_stdio)(Screen()))
    except KeyboardInterrupt:
        print("\ntrio-mcp demo: interrupted; the server process has exited", file=sys.stderr)
        return INTERRUPTED
    except (MCPError, Disappointed, trio.TooSlowError) as error:
        print(f"trio-mcp demo: {error or 'the server did not answer in time'}", file=sys.stderr)
        return 1
    return 0


async def _story_over_stdio(screen: Screen) -> None:
    screen.headline("1. A server in a child process, connected over its standard input and output")
    started = time.monotonic()
    async with open_stdio(SERVER, inherit_env=True, elicitation=screen.answer, on_log=screen.log) as client:
        await client.set_log_level("info")
        assert client.server_info is not None
        screen.say(f"  {client.server_info.name} {client.server_info.version}, revision {client.revision.name}")
        screen.tools([tool async for tool in client.list_tools()])
        summary = [
            await pack(client, screen),
            await label(client, screen),
            *await _give_up(client, screen),
            await pack_again(client, screen),
            await _start_task(client, screen),
        ]
    screen.headline("Summary")
    for line in summary:
        screen.say(f"  - {line}")
    screen.say(f"  - the server process has exited; all of it took {time.monotonic() - started:.1f} s")


async def pack(client: Client, screen: Screen) -> str:
    """Make a long call, with progress and log lines on the way, and return a line for the summary."""
    screen.headline("2. A long call, with progress and log lines on the way")
    notifications = 0
    with screen.progress() as show:

        def count(news: Progress) -> None:
            nonlocal notifications
            notifications += 1
            show(news)

        files = 30 if screen.is_terminal else 10
        result = await client.call_tool("pack", {"files": files}, on_progress=count)
    screen.say(f"  {tool_text(result)}")
    return f"long call: {tool_text(result)}, with {notifications} progress notifications"


async def label(client: Client, screen: Screen) -> str:
    """Make a call in which the server asks the user, and return a line for the summary."""
    screen.headline("3. A call in which the server asks the user (elicitation)")
    result = tool_text(await client.call_tool("label"))
    screen.say(f"  {result}")
    return f"elicitation: {result}"


async def _give_up(client: Client, screen: Screen) -> list[str]:
    screen.headline(f"4. A call that never ends, inside trio.move_on_after({PATIENCE})")
    return await watch(client, screen)


async def watch(client: Client, screen: Screen) -> list[str]:
    """Give up on a call that never ends, and return lines about the events in the server."""
    with trio.move_on_after(PATIENCE) as scope:
        await client.call_tool("watch", {"folder": "photos"})
    gave_up = time.monotonic() + scope.deadline - trio.current_time()
    end = await _last_watch(client)
    # Both processes read the machine's monotonic clock.
    handler = (end["handler_ended"] - gave_up) * 1000
    child = (end["child_task_ended"] - gave_up) * 1000
    screen.say(f"  process {os.getpid()}, the client: its deadline passed and it left the scope")
    screen.say(f"  process {end['process']}, the server: the handler's finally ran {handler:.1f} ms after the deadline")
    screen.say(f"  process {end['process']}, the server: the handler's child task ended {child:.1f} ms after it")
    screen.say(f"  what the handler was told: {end['reason']}")
    return [
        f"cancelled call: the handler's finally ran {handler:.1f} ms after the deadline, in the other process",
        f"its child task: ended {child:.1f} ms after the deadline",
    ]


async def _last_watch(client: Client) -> Mapping[str, Any]:
    with trio.fail_after(5):
        result = await client.call_tool("last_watch")
    tool_text(result)
    return result.structured_content


async def pack_again(client: Client, screen: Screen, number: int = 5) -> str:
    """Make one more call, to show that the connection goes on, and return a line for the summary."""
    screen.headline(f"{number}. The same connection, one more call")
    result = tool_text(await client.call_tool("pack", {"files": 2}))
    screen.say(f"  {result}")
    return f"same connection, one more call: {result}"


async def _start_task(client: Client, screen: Screen) -> str:
    screen.headline("6. A call that goes on without its caller, as a task")
    task = await client.start_task("develop", {"photos": 5})
    screen.say(f"  the server has answered with the id of the task, {task.id}")
    screen.say(f"  meanwhile: {tool_text(await client.call_tool('pack', {'files': 2}))}")
    screen.say(f"  the task is {(await task.get()).status}")
    result = tool_text(await task.result())
    screen.say(f"  the result, asked for by the id: {result}")
    return f"task: {result}, while its caller did something else"


def tool_text(result: CallToolResult) -> str:
    """Return the text of ``result``. Raises `Disappointed` for one that says that the tool failed."""
    text = " ".join(block.text for block in result.content if isinstance(block, TextContent))
    if result.is_error:
        raise Disappointed(f"a tool of the demo server failed: {text}")
    return text
