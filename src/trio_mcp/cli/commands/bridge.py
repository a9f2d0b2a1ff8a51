"""``trio-mcp bridge``: arguments, options and help."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .address_options import LEVELS, address_options
from .shell_completion import TARGET
from .sign_in_options import sign_in_options
from .target_options import TargetCommand, config_option_of_starters, words_after_dashes

if TYPE_CHECKING:
    from ..signing_in import SignIn


@click.command(cls=TargetCommand)
@click.argument("target", type=TARGET)
@config_option_of_starters
@sign_in_options
@address_options
@click.option(
    "--era",
    type=click.Choice(["auto", "modern", "legacy"]),
    default="auto",
    show_default=True,
    help="Era of the protocol to speak to the server; auto: the era of each client, if the server has it.",
)
@click.option(
    "--log-level",
    type=click.Choice(LEVELS, case_sensitive=False),
    default="warning",
    show_default=True,
    help="Lowest level of the bridge's own messages on standard error.",
)
def bridge(
    target: str,
    config: Path | None,
    http: str | None,
    websocket: str | None,
    tcp: str | None,
    unix: str | None,
    path: str | None,
    origins: tuple[str, ...],
    names: tuple[str, ...],
    proxies: tuple[str, ...],
    era: Any,
    log_level: str,
    sign_in: SignIn,
) -> int:
    """Serve another server, over another transport or in another era.

    TARGET is a command ("python server.py", or the words of it after --), a URL (https://, http://, wss://, ws://,
    tcp://HOST:PORT, unix:///PATH), a Python file with a server for `trio-mcp run`, or a name from the configuration
    file of a host.

    With --http, --websocket, --tcp or --unix, each client gets its own connection to TARGET: its own process if TARGET
    is a command; modern clients over HTTP share one. Otherwise the only client is the program that started this
    command, on standard input and output; a host that can only start commands can thus use a server that listens.

    \b
        trio-mcp bridge --http 8000 -- npx -y some-server
        trio-mcp bridge https://mcp.example.com/mcp

    A TARGET that is protected is called with your authorization, whoever the client is, so see who can reach the
    bridge. Tokens of clients are never handed on. A bridge that a host has started needs --sign-in to open your
    browser; `trio-mcp inspect TARGET` in a terminal signs in beforehand.

    Requests, cancels, progress, logs, changes and questions pass in both directions. Clients of either era can use
    servers of the other. The standard error of a command is copied to ours.

    Exit status: 0; 2 for wrong usage; and while there was one client on standard input and output, 3 when TARGET could
    not be reached, or was lost, and 6 when TARGET wanted a token, and there was no good one.
    """
    from ...diagnostics.log import WrittenInAThread
    from ..servers.addresses import Addresses
    from ..servers.bridging import run_bridge
    from ..targets import NoTarget, target_typed
    from ..terminal.printable import CopiedToStderr

    try:
        where = target_typed(words_after_dashes(target), config, WrittenInAThread(CopiedToStderr()), sign_in)
    except NoTarget as error:
        raise click.UsageError(str(error)) from None
    return run_bridge(where, era, log_level, Addresses(http, websocket, tcp, unix, path, origins, names, proxies))
