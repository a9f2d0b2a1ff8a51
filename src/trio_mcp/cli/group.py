"""trio_mcp: the group of all commands, which imports the file of a command only when the command is typed. `choice` and
`repeatable` are kinds of options that several commands have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])

SUMMARIES: Final = {
    "bridge": "Serve another server, over another transport or in another era.",
    "call": "Call a tool of a server and print its result.",
    "complete": "Print the values that a server suggests for an argument.",
    "demo": "Call a bundled server and see what happens in it.",
    "gateway": "Serve the servers of a configuration file as one server.",
    "inspect": "Show the tools, resources, prompts and skills of a server.",
    "install": "Write a server of yours into the configuration file of a host.",
    "logout": "Sign out of a server: forget its tokens.",
    "pack": "Write the server.json and the MCP bundle of your server.",
    "pins": "Show and approve the changed tools of a gateway.",
    "prompt": "Fill in a prompt of a server and print its messages.",
    "read": "Read a resource of a server, to standard output.",
    "record": "Record the messages between a host and a stdio server.",
    "replay": "Replay one side of a recording, and report differences.",
    "run": "Serve your server over stdio, or on an address.",
    "tasks": "List, wait for and cancel the tasks of a server.",
    "timeline": "Draw recordings as a timeline, as seen by both sides.",
}
"""The commands by their names, each with the first sentence of its help."""
_MODULES: Final = {
    **dict.fromkeys(("call", "complete", "prompt", "read"), "requests"),
    **dict.fromkeys(("record", "replay", "timeline"), "recordings"),
}
"""The modules of commands that share one. Each of the others has a module of its name."""


class _LazyGroup(click.Group):
    """A group of the commands in `SUMMARIES`. Lists of all commands import no command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names: see `click.Group.list_commands`."""
        return list(SUMMARIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command: see `click.Group.get_command`."""
        if cmd_name not in SUMMARIES:
            return None
        return getattr(import_module(f".commands.{_MODULES.get(cmd_name, cmd_name)}", __package__), cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands: see `click.Group.format_commands`."""
        with formatter.section("Commands"):
            formatter.write_dl(_summaries_within(formatter.width - 6 - max(map(len, SUMMARIES))))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer names of commands: see `click.Group.shell_complete`."""
        fitting = [(name, words) for name, words in _summaries_within() if name.startswith(incomplete)]
        return [CompletionItem(name, help=words) for name, words in fitting] + click.Command.shell_complete(
            self, ctx, incomplete
        )


def _summaries_within(limit: int = 45) -> list[tuple[str, str]]:
    """Return the commands and their summaries, cut to ``limit`` characters in the way of click."""
    return [(name, click.Command(name, help=words).get_short_help_str(limit)) for name, words in SUMMARIES.items()]


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="trio-mcp")
def trio_mcp() -> None:
    """Serve and call the Model Context Protocol, with cancel scopes that cross the process boundary.

    \b
    See a demonstration:     trio-mcp demo
    Serve your own server:   trio-mcp run server.py
    Show a server's offers:  trio-mcp inspect server.py
    Call a tool:             trio-mcp call server.py TOOL key=value
    Wait for a task:         trio-mcp tasks result https://mcp.example.com/mcp ID
    Read a resource:         trio-mcp read server.py URI
    Fill in a prompt:        trio-mcp prompt server.py PROMPT key=value
    Forget a sign-in:        trio-mcp logout https://mcp.example.com/mcp
    Serve another server:    trio-mcp bridge --http 8000 -- npx -y some-server
    Serve several as one:    trio-mcp gateway --config mcp.json --http 8000
    Approve their tools:     trio-mcp pins approve pins.json --config mcp.json
    Add a server to a host:  trio-mcp install server.py --client cursor
    Record a server:         trio-mcp record -o calls.jsonl -- python server.py
    Draw both sides:         trio-mcp timeline calls.jsonl server.jsonl -o calls.svg
    Bundle a server:         trio-mcp pack server.py --name com.example/server
    """


def choice(name: str, values: Sequence[str], default: str | None, help: str, **more: Any) -> Callable[[F], F]:
    """Return an option that has one of ``values``, in any case."""
    kind = click.Choice(values, case_sensitive=False)
    return click.option(name, type=kind, default=default, show_default=default is not None, help=help, **more)


def repeatable(name: str, parameter: str, metavar: str, help: str) -> Callable[[F], F]:
    """Return an option that may be given several times, whose values are in ``parameter``."""
    return click.option(name, parameter, multiple=True, metavar=metavar, help=f"{help} Repeatable.")
