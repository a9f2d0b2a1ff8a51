"""``trio-mcp demo``: starts a bundled server in a child process, and shows what a client can do.

Over HTTP or WebSocket, two clients use one server at the same time, and one of them cancels.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from importlib.util import find_spec
from typing import Final

import click
import trio
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ... import Client, MCPError, Progress, open_stdio
from ...concurrency.contexts import asynccontextmanager
from ...concurrency.nurseries import open_service_nursery
from ...connecting.targets import Address
from ...types import CallToolResult, ElicitFormParams, ElicitResult, LogParams, TextContent, Tool
from .. import INTERRUPTED
from ..signals import run_until_interrupted
from ..terminal import Terminal, progress_words

_WITH_AUTHORIZATION = """the demo with authorization is an example in the repository, not in the package. \
In a clone, with Node.js 22 or newer and npm:
  pip install -e '.[cli,auth]'
  python -m examples.authorization"""


@click.command()
@click.option(
    "--http", "transport", flag_value="http", help="Run the demo over HTTP, with two clients, one of which cancels."
)
@click.option("--websocket", "transport", flag_value="websocket", help="Run the demo over WebSocket, with two clients.")
@click.option(
    "--auth",
    "transport",
    flag_value="auth",
    help="Print how to run the demo with an authorization server: sign-in, step-up, refresh, revocation.",
)
def demo(transport: str | None) -> int:
    """Run a demo with a bundled server in a child process.

    The demo lists the server's tools and makes a long call with progress and log messages. The server asks you a
    question. Then the demo cancels a call, to show how soon the handler's cleanup runs in the other process, and starts
    a task. It takes about five seconds. Without a terminal, the demo answers the question itself and prints plain
    lines.
    """
    if transport is None:
        return run_demo()
    if transport == "auth":
        raise click.UsageError(_WITH_AUTHORIZATION)
    return run_demo(lambda screen: _run_story(screen, f"--{transport}"))


# Pass -P, so that Python doesn't import modules from the current directory.
SERVER: Final = [sys.executable, "-P", "-m", "trio_mcp.cli.demo_server"]
PATIENCE: Final = 0.5


class DemoFailed(Exception):
    """The demo failed: a tool of the demo server had an unexpected result."""


def run_demo(story: Callable[[Screen], Awaitable[None]] | None = None) -> int:
    """Run the demo ``story``, and print it on standard output. The default story is the demo of a server over stdio.

    Return the exit status: 0 success, 1 failure, 130 after Ctrl-C.
    """
    try:
        run_until_interrupted(lambda: (story or _story_over_stdio)(Screen()))
    except KeyboardInterrupt:
        print("\ntrio-mcp demo: interrupted; the server process has exited", file=sys.stderr)
        return INTERRUPTED
    except (MCPError, DemoFailed, trio.TooSlowError) as error:
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
    screen.summary([*summary, f"the server process has exited; all of it took {time.monotonic() - started:.1f} s"])


async def pack(client: Client, screen: Screen) -> str:
    """Part of the demo: make a long call with progress and log messages. Returns a line for the summary."""
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
    """Part of the demo: make a call during which the server sends an elicitation request to the user. Returns a line
    for the summary."""
    screen.headline("3. A call in which the server asks the user (elicitation)")
    result = tool_text(await client.call_tool("label"))
    screen.say(f"  {result}")
    return f"elicitation: {result}"


async def _give_up(client: Client, screen: Screen) -> list[str]:
    screen.headline(f"4. A call that never ends, inside trio.move_on_after({PATIENCE})")
    return await watch(client, screen)


async def watch(client: Client, screen: Screen) -> list[str]:
    """Part of the demo: cancel a call that would never end. Returns lines for the summary that say when the handler in
    the server was cancelled."""
    with trio.move_on_after(PATIENCE) as scope:
        await client.call_tool("watch", {"folder": "photos"})
    gave_up = time.monotonic() + scope.deadline - trio.current_time()
    with trio.fail_after(5):
        last = await client.call_tool("last_watch")
    tool_text(last)
    end = last.structured_content
    # The monotonic clock is the same in both processes, so their times can be compared.
    handler = (end["handler_ended"] - gave_up) * 1000
    child = (end["child_task_ended"] - gave_up) * 1000
    screen.say(f"  process {os.getpid()}, the client: its deadline passed and it left the scope")
    screen.say(f"  process {end['process']}, the server: the handler's finally ran {handler:.1f} ms after the deadline")
    screen.say(f"  process {end['process']}, the server: the handler's child task ended {child:.1f} ms after it")
    screen.say(f"  the cancel reason in the handler: {end['reason']}")
    return [
        f"cancelled call: the handler's finally ran {handler:.1f} ms after the deadline, in the other process",
        f"its child task: ended {child:.1f} ms after the deadline",
    ]


async def pack_again(client: Client, screen: Screen) -> str:
    """Part of the demo: make another call, which shows that the connection still works. Returns a line for the
    summary."""
    screen.headline("5. The same connection, one more call")
    result = tool_text(await client.call_tool("pack", {"files": 2}))
    screen.say(f"  {result}")
    return f"same connection, one more call: {result}"


async def _start_task(client: Client, screen: Screen) -> str:
    screen.headline("6. A call that continues without its caller, as a task")
    task = await client.start_task("develop", {"photos": 5})
    screen.say(f"  the server has answered with the id of the task, {task.id}")
    screen.say(f"  meanwhile: {tool_text(await client.call_tool('pack', {'files': 2}))}")
    screen.say(f"  the task is {(await task.get()).status}")
    result = tool_text(await task.result())
    screen.say(f"  the result, requested with the id: {result}")
    return f"task: {result}, while its caller did something else"


def tool_text(result: CallToolResult) -> str:
    """Return the text in ``result``, the result of a tool call. Raises `DemoFailed` if the tool has failed."""
    text = " ".join(block.text for block in result.content if isinstance(block, TextContent))
    if result.is_error:
        raise DemoFailed(f"a tool of the demo server failed: {text}")
    return text


_START_DEADLINE: Final = 20.0
_END_DEADLINE: Final = 10.0


async def _run_story(screen: Screen, option: str) -> None:
    calls = {"--http": "HTTP requests", "--websocket": "WebSockets"}[option]
    screen.headline(f"1. A server in a child process that listens for {calls}, and two clients")
    started = time.monotonic()
    async with _server(option) as (process, url):
        screen.say(f"  {url}")
        # The server serves modern and legacy protocol revisions, and sends an elicitation request in both.
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
        with trio.fail_after(_END_DEADLINE):
            status = await process.wait()
    took = time.monotonic() - started
    screen.summary([*summary, f"the server exited with status {status} after SIGTERM; all took {took:.1f} s"])


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
    """Start the demo server in its own process with ``trio-mcp run`` and the address option ``option``.

    Yields the process and the server's URL. The process is killed at the end.
    """
    spec = find_spec("trio_mcp.cli.demo_server")
    assert spec is not None
    assert spec.origin is not None
    # Pass -P, so that Python doesn't import modules from the current directory.
    command = [sys.executable, "-P", "-m", "trio_mcp.cli", "run", spec.origin, option, "0"]
    process = await trio.lowlevel.open_process(
        command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        assert process.stderr is not None
        told = ""
        with trio.fail_after(_START_DEADLINE):
            while not (address := _address_in(told)):
                data = await process.stderr.receive_some()
                if not data:
                    raise DemoFailed(f"the server did not start: {told}")
                told += data.decode(errors="replace")
        async with open_service_nursery("the story is over") as nursery:
            nursery.start_soon(_copy, process.stderr)
            yield process, address
    finally:
        process.kill()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _END_DEADLINE):
            await process.wait()


def _address_in(output: str) -> str:
    """Return the server's address in ``output``, the lines that the server has printed. Returns an empty string until
    the line with the address is complete."""
    for line in output.split("\n")[:-1]:
        address, end, _ = line.rpartition(" at ")[2].partition(";")
        if end and "://" in address:
            return address
    return ""


async def _copy(stderr: trio.abc.ReceiveStream) -> None:
    """Copy the remaining output of the server to this process's standard error."""
    async for data in stderr:
        print(data.decode(errors="replace"), end="", file=sys.stderr)


class Screen(Terminal):
    """The user's screen during a demo: standard output and, for elicitation, standard input.

    ``is_terminal`` is true if both are a terminal, so that a user can answer. Otherwise only plain lines are written,
    without control codes.
    """

    def __init__(self) -> None:
        super().__init__(None)
        self.is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        self._console = Console(highlight=False, force_terminal=None if self.is_terminal else False)

    def headline(self, text: str) -> None:
        """Print the headline of the next part of the demo."""
        self._console.print()
        self.say(text, "bold")

    def summary(self, lines: Iterable[str]) -> None:
        """Print the summary of the demo, with one line per part."""
        self.headline("Summary")
        for line in lines:
            self.say(f"  - {line}")

    def tools(self, tools: Iterable[Tool]) -> None:
        """Print a table of the server's tools."""
        table = Table("tool", "arguments", "description")
        for tool in tools:
            names = ", ".join(tool.input_schema.get("properties", {}))
            table.add_row(Text(tool.name, "cyan"), Text(names), Text(tool.description or ""))
        self._console.print(table)

    def log(self, message: LogParams) -> None:
        """Print a log message of the server, above the progress bar if there is one."""
        self.say(f"  log {message.level}: {message.data}", "dim")

    def _progress_line(self, news: Progress) -> None:
        self.say(f"  {progress_words(news)}")

    async def answer(self, question: ElicitFormParams) -> ElicitResult:
        """Ask the user to fill in the elicitation form. If standard output isn't a terminal, return the form's default
        values instead."""
        self.say(f"  the server asks: {question.message}")
        content: dict[str, str] = {}
        for name, field in question.requested_schema["properties"].items():
            prompt, default = f"  {field.get('description', name)}", str(field.get("default", ""))
            if not self.is_terminal:
                self.say(f"{prompt}: {default} (answered automatically: this is not a terminal)")
                content[name] = default
                continue
            line = await self.read(f"{prompt} [{default}]")
            if line is None:  # Ctrl-D
                return ElicitResult("decline")
            content[name] = line or default
        return ElicitResult("accept", content)
