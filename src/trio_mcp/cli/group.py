"""The click group ``trio-mcp`` with all commands. A command's module is imported only when the command is used.
`choice`, `repeatable` and `in_section` help to define options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])

SUMMARIES: Final = {
    "bridge": "Expose a server over another transport or protocol revision.",
    "call": "Call a tool of a server and print its result.",
    "complete": "Print the values that a server suggests for an argument.",
    "demo": "Run a demo with a bundled server in a child process.",
    "gateway": "Combine the servers of a configuration file into one server.",
    "inspect": "Show the tools, resources, prompts and skills of a server.",
    "install": "Add your server to the configuration of an MCP host.",
    "logout": "Sign out of a server: delete and revoke its tokens.",
    "pack": "Write a server.json and an MCP bundle of your server.",
    "pins": "Show and approve the changed tools of a gateway.",
    "prompt": "Get a prompt from a server and print its messages.",
    "read": "Read a resource of a server and print its contents.",
    "record": "Record the messages between a host and a stdio server.",
    "replay": "Replay one side of a recording, and report differences.",
    "run": "Serve your server over stdio, HTTP or another transport.",
    "tasks": "List, wait for and cancel the tasks of a server.",
    "timeline": "Draw recordings as a timeline, with the times of both sides.",
    "torture": "Test cancellation and robustness of a server or client.",
}
"""The names of all commands, each with the first sentence of its help."""
_MODULES: Final = {
    **dict.fromkeys(("call", "complete", "prompt", "read", "tasks"), "requests"),
    **dict.fromkeys(("record", "replay", "timeline"), "recordings"),
    **dict.fromkeys(("bridge", "gateway", "pins"), "proxies"),
}
"""Modules that contain several commands. Every other command is in a module with its name."""


class _LazyGroup(click.Group):
    """A click group that imports the module of a command only when the command is used. Help texts list the commands
    from `SUMMARIES`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all ``trio-mcp`` commands: see `click.Group.list_commands`."""
        return list(SUMMARIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a ``trio-mcp`` command and return it: see `click.Group.get_command`."""
        if cmd_name not in SUMMARIES:
            return None
        return getattr(import_module(f".commands.{_MODULES.get(cmd_name, cmd_name)}", __package__), cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands for ``--help``: see `click.Group.format_commands`."""
        with formatter.section("Commands"):
            formatter.write_dl(_summaries_within(formatter.width - 6 - max(map(len, SUMMARIES))))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the names of commands that match the typed text: see `click.Group.shell_complete`."""
        fitting = [(name, words) for name, words in _summaries_within() if name.startswith(incomplete)]
        return [CompletionItem(name, help=words) for name, words in fitting] + click.Command.shell_complete(
            self, ctx, incomplete
        )


def _summaries_within(limit: int = 45) -> list[tuple[str, str]]:
    """Return the names of all commands with their summaries, truncated by click to ``limit`` characters."""
    return [(name, click.Command(name, help=words).get_short_help_str(limit)) for name, words in SUMMARIES.items()]


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="trio-mcp")
def trio_mcp() -> None:
    """Serve and call the Model Context Protocol, with cancel scopes that cross the process boundary.

    \b
    Run the demo:              trio-mcp demo
    Serve your own server:     trio-mcp run server.py
    List a server's tools:     trio-mcp inspect server.py
    Call a tool:               trio-mcp call server.py TOOL key=value
    Wait for a task:           trio-mcp tasks result https://mcp.example.com/mcp ID
    Read a resource:           trio-mcp read server.py URI
    Get a prompt:              trio-mcp prompt server.py PROMPT key=value
    Sign out:                  trio-mcp logout https://mcp.example.com/mcp
    Expose a server over HTTP: trio-mcp bridge --http 8000 -- npx -y some-server
    Serve several as one:      trio-mcp gateway --config mcp.json --http 8000
    Approve changed tools:     trio-mcp pins approve pins.json --config mcp.json
    Add a server to a host:    trio-mcp install server.py --client cursor
    Record a server:           trio-mcp record -o calls.jsonl -- python server.py
    Draw a timeline:           trio-mcp timeline calls.jsonl server.jsonl -o calls.svg
    Bundle a server:           trio-mcp pack server.py --name com.example/server
    """


_SECTIONS: Final[dict[click.Parameter, str]] = {}
"""Title of the section in the help in which an option is listed, keyed by option."""


def in_section(title: str, *options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return a decorator that adds ``options`` to a command, in this order. The command's help lists them under
    ``title``.

    The command must be a `SectionedCommand`. Options that are already in a section stay there.
    """

    def add(command: F) -> F:
        before = frozenset[click.Parameter](getattr(command, "__click_params__", ()))
        for option in reversed(options):
            command = option(command)
        for option in getattr(command, "__click_params__", ()):
            if option not in before:
                _SECTIONS.setdefault(option, title)
        return command

    return add


class SectionedCommand(click.Command):
    """A click command whose help lists the options added with `in_section` in sections, after the other options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's options for ``--help``, section by section: see `click.Command.format_options`."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            record = None if isinstance(parameter, click.Argument) else parameter.get_help_record(ctx)
            if record is not None:
                sections.setdefault(_SECTIONS.get(parameter, "Options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def choice(name: str, values: Sequence[str], default: str | None, help: str, **more: Any) -> Callable[[F], F]:
    """Return a click option that accepts one of ``values``, ignoring case."""
    kind = click.Choice(values, case_sensitive=False)
    return click.option(name, type=kind, default=default, show_default=default is not None, help=help, **more)


def repeatable(name: str, parameter: str, metavar: str, help: str) -> Callable[[F], F]:
    """Return a click option that the user can repeat. Its values are passed to the command as ``parameter``."""
    return click.option(name, parameter, multiple=True, metavar=metavar, help=f"{help} Repeatable.")
