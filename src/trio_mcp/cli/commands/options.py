"""Arguments and options that several commands share: TARGET, connection and token options, and shell completion.

Completion doesn't start a server, but connects to a server that listens.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast

import attrs
import click
import trio
from click.shell_completion import CompletionItem

from ...connecting.targets import Address, Target
from ..group import SectionedCommand, choice, in_section, repeatable
from ..printable import CopiedToStderr
from ..reporting import WITH_SERVER
from ..targets import NoTarget, SignIn, configured_names, target_typed, with_extras

if TYPE_CHECKING:
    from ...client.client import Client
    from ...transports.process import TextSink
    from ..request import CommandRequest

PLACEHOLDER: Final = "-"
_LOOKED_UP: Final = "Look up TARGET as a name in this file's mcpServers."
_ENVIRONMENT: Final = (
    "The command of an entry gets a few harmless environment variables (PATH, HOME, ...) and those of the entry. A "
    "command that you type as TARGET gets your whole environment, including secrets."
)
_WORDS: Final = "trio_mcp.command"
ERAS: Final = ("auto", "modern", "legacy")
_LOG_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency", "off")
"""Levels of a server's log messages."""


CONNECTION: Final = "Connection options"
"""The section of the help with the options for the server and the connection to it."""


class TargetCommand(SectionedCommand):
    """A click command with the argument TARGET. Instead of TARGET, the user can type ``--`` and a command that starts
    the server."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command-line arguments. Words after ``--`` are used as TARGET. See `click.Command.parse_args`."""
        if "--" in args:
            at = args.index("--")
            ctx.meta[_WORDS] = tuple(args[at + 1 :])
            if not ctx.meta[_WORDS] and not ctx.resilient_parsing:
                ctx.fail("a command is missing after --")
            args = [PLACEHOLDER, *args[:at]]
        return super().parse_args(ctx, args)


def words_after_dashes(target: str) -> str | tuple[str, ...]:
    """Return the words typed after ``--`` or, if there are none, TARGET."""
    context = click.get_current_context()
    if _WORDS in context.meta:
        return context.meta[_WORDS]
    return target


_CONFIG: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
config_option = click.option("--config", type=_CONFIG, help=_LOOKED_UP)
"""The --config option of commands that don't start servers."""
config_option_of_starters = in_section(
    CONNECTION, click.option("--config", type=_CONFIG, help=f"{_LOOKED_UP} {_ENVIRONMENT}")
)
"""The --config option of commands that may start a server."""
revision_option = in_section(
    CONNECTION,
    click.option("--revision", metavar="DATE", help="Protocol revision to use, such as 2025-06-18, instead of --era."),
)


class ConnectionOptions(NamedTuple):
    """The command-line options for the server and the connection to it, as the user has typed them."""

    config: Path | None
    era: Literal["auto", "modern", "legacy"]
    timeout: float | None
    stderr: bool
    sign_in: SignIn
    headers: tuple[str, ...]
    env: tuple[str, ...]
    revision: str | None

    def target(self, typed: str | tuple[str, ...], stderr: TextSink | None) -> Target:
        """Return the server that the user's text ``typed`` names. Raises `NoTarget` if no server is found.

        If the server is a command, its standard error goes to ``stderr``.
        """
        where = target_typed(typed, self.config, stderr, self.sign_in)
        return with_extras(where, self.headers, self.env, self.revision)


_connection_options: Final = in_section(
    CONNECTION,
    config_option_of_starters,
    choice("--era", ERAS, "auto", "Era of the protocol to use. With auto, the client probes the server."),
    click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        help="Time limit for the server's responses.",
    ),
    click.option("--stderr", is_flag=True, help="Show the server's standard error."),
    repeatable(
        "--header",
        "headers",
        "'NAME: VALUE'",
        "A header for each request, if TARGET is a URL. Other users of this machine can see the command line.",
    ),
    repeatable("--env", "env", "NAME=VALUE", "An environment variable for TARGET, if it is a command."),
    repeatable(
        "--trust-http",
        "trust_http",
        "HOST",
        "A host of a private network to which tokens may be sent over http://, in plain text.",
    ),
    revision_option,
)


def connection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the connection options to a command: --config, --era, --timeout, --stderr, --header, --env, --revision,
    --trust-http, and the token options that `sign_in_options` adds.

    The command's function gets the argument ``connection``, a `ConnectionOptions`.
    """

    @_connection_options
    @sign_in_options
    @wraps(command)
    def run(**named: Any) -> Any:
        named["sign_in"] = attrs.evolve(named["sign_in"], trust_http=named.pop("trust_http"))
        typed = {name: named.pop(name) for name in ConnectionOptions._fields}
        return command(connection=ConnectionOptions(**typed), **named)

    return run


def request_options(request: Callable[..., CommandRequest[Any]]) -> Callable[..., int]:
    """Turn a function that returns a `CommandRequest` into a click command. The command has the connection options,
    sends the request to the server, and exits.

    The command has an argument ``target``, and gets --server-log-level and the options of `connection_options` after
    its own. Invalid arguments and options are reported in click's way.
    """

    @wraps(request)
    def run(*, target: str, server_log_level: str, connection: ConnectionOptions, **named: Any) -> int:
        from ..request import RecentStderr, RequestRun

        recent_stderr, level = None if connection.stderr else RecentStderr(), server_log_level.lower()
        run = RequestRun(
            target=connection.target(words_after_dashes(target), recent_stderr or CopiedToStderr()),
            recent_stderr=recent_stderr,
            log_level=None if level == "off" else level,
            era=connection.era,
            timeout=connection.timeout,
            request=request(**named),
        )
        return run.run()

    level = choice("--server-log-level", _LOG_LEVELS, "info", "Lowest level of the server's log messages to show.")
    return level(connection_options(run))


_VARIABLE: Final = "TRIO_MCP_TOKENS"

tokens_option = choice(
    "--tokens",
    ("file", "keyring", "memory"),
    "file",
    "Where to store the tokens of your sign-ins: private files, the keyring of your desktop, or only memory. "
    f"The environment variable {_VARIABLE} sets this for all commands.",
    envvar=_VARIABLE,
)


_sign_in_options: Final = in_section(
    CONNECTION,
    click.option(
        "--sign-in/--no-sign-in",
        "asks",
        default=None,
        help="Open your browser if a server requires you to sign in, or fail. Default: sign in if standard error is a "
        "terminal. Stored tokens are used in either case.",
    ),
    click.option(
        "--bearer-env",
        metavar="NAME",
        help="Send the token in this environment variable, instead of signing in.",
    ),
    tokens_option,
)


def sign_in_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the token options --sign-in, --bearer-env and --tokens to a command. The command's function gets the argument
    ``sign_in``, a `SignIn`."""

    @_sign_in_options
    @wraps(command)
    def run(**named: Any) -> Any:
        typed = {name: named.pop(name) for name in ("asks", "bearer_env", "tokens")}
        return command(sign_in=SignIn(**typed), **named)

    return run


_PATIENCE: Final = 2.0
# Complete only words that consist of characters of names and URIs: other characters need quotes in a shell.
_TYPEABLE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./:@%+,-]*")


class _Target(click.ParamType):  # pyright: ignore[reportMissingTypeArgument] - not generic in click 8.1
    """The click type of the argument TARGET. Shell completion proposes server names from configuration files or, if
    none match, any file."""

    name = "target"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the server names and files that begin like the typed text. See `click.ParamType.shell_complete`."""
        try:
            names = configured_names(cast("Path | None", ctx.params.get("config")))
        except NoTarget:
            names = []
        fitting = [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return fitting or [CompletionItem(incomplete, type="file")]


class _Offered(click.ParamType):  # pyright: ignore[reportMissingTypeArgument] - not generic in click 8.1
    """The click type of an argument that names a tool, resource or prompt.

    If TARGET is a URL, shell completion proposes the names that the server at this URL has. Shell completion starts no
    processes, so it proposes nothing for other servers.
    """

    def __init__(self, name: str, offers: Callable[[Client], AsyncIterator[Any]], member: str = "name") -> None:
        self.name = name
        self._offers = offers
        self._member = member

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names of the server's tools, resources or prompts that begin like the typed text. See
        `click.ParamType.shell_complete`."""
        try:
            target = target_typed(cast("str", ctx.params.get("target") or ""), ctx.params.get("config"))
        except NoTarget:
            return []
        if not isinstance(target, Address):
            return []
        names = [name for name in self._asked(target) if _TYPEABLE.fullmatch(name)]
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]

    def _asked(self, address: Address) -> list[str]:
        async def ask() -> list[str]:
            with trio.fail_after(_PATIENCE):
                async with address.open() as client:
                    return [getattr(offer, self._member) async for offer in self._offers(client)]

        try:
            return trio.run(ask)
        except WITH_SERVER:
            return []  # shell completion can't show an error message


TARGET: Final = _Target()
TOOL: Final = _Offered("tool", lambda client: client.list_tools())
URI: Final = _Offered("uri", lambda client: client.list_resources(), "uri")
PROMPT: Final = _Offered("prompt", lambda client: client.list_prompts())
