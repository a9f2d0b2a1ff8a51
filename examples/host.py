"""A host at the terminal: each line that the user types is a call of a tool, of any server of a configuration file.

    python -m examples.host servers.json 60

The file has ``mcpServers`` as the files of other hosts: commands, ``http://…`` and ``ws://…``. Where a server wants a
token, the user signs in with the browser. A call ends after 60 seconds, without the time in which the user is asked;
Ctrl-C ends a call, too, and Ctrl-D the host. The handlers in the servers end with their calls.

    > clock__sleep {"seconds": 3}
"""

import json
import sys

import trio

from trio_mcp import MCPError, Progress, cancel_on_interrupt, fail_after_work
from trio_mcp.auth import OAuth
from trio_mcp.cli import terminal_options
from trio_mcp.hosting import Group, RestartPolicy, open_group, read_config

WIDTH = 30


def printable(text: str) -> str:
    """Return the text of a server without characters that control the terminal."""
    return "".join(each if each.isprintable() or each in "\n\t" else "\N{REPLACEMENT CHARACTER}" for each in text)


def show(progress: Progress) -> None:
    """Draw the bar of a call, which moves with its progress."""
    share = max(0.0, min(1.0, progress.progress / progress.total)) if progress.total else 0.0
    bar = "#" * round(share * WIDTH)
    print(f"\r[{bar:<{WIDTH}}] {share:4.0%} {printable(progress.message or '')}", end="", file=sys.stderr, flush=True)


async def call(group: Group, line: str, limit: float) -> None:
    """Call a tool, and print its result or the reason why there is none."""
    name, _, arguments = line.partition(" ")
    with cancel_on_interrupt() as interrupt:
        try:
            with fail_after_work(limit):
                result = await group.call_tool(name, json.loads(arguments or "{}"), on_progress=show)
            print(f"\n{'failed: ' if result.is_error else ''}{printable(result.text)}")
        except trio.TooSlowError:
            print(f"\ncancelled after {limit:g} seconds")
        except (MCPError, ValueError) as error:
            print(f"\n{printable(str(error))}")
    if interrupt.cancelled_caught:
        print("\ncancelled")


async def typed(prompt: str) -> str:
    """Return the line that the user types, empty at Ctrl-D."""
    print(prompt, end="", flush=True)
    return await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)


async def main(path: str, limit: float) -> None:
    """Open the servers, and call until the user has said all."""
    config = read_config(path, restart=RestartPolicy(), auth=OAuth(client_name="Example host"))
    for name, problem in config.problems.items():
        print(f"{name}: {problem}")
    async with open_group(config.members, **terminal_options(log_level="warning")) as group:
        await group.settled()
        for name, status in group.statuses.items():
            print(f"{name}: {status.state}", printable(str(status.error or "")), *status.problems.values())
        print("tools:", *(printable(name) for name in group.catalogue.tools))
        while line := await typed("> "):
            if line.strip():
                await call(group, line.strip(), limit)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], float(sys.argv[2]))
