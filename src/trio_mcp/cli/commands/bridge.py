"""``trio-mcp bridge``, as it is typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .address_options import LEVELS, address_options
from .shell_completion import TARGET
from .target_options import TargetCommand, config_option, words_after_dashes

__all__ = ["bridge"]


@click.command(cls=TargetCommand)
@click.argument("target", type=TARGET)
@config_option
@address_options
@click.option(
    "--era",
    type=click.Choice(["auto", "modern", "legacy"]),
    default="auto",
    show_default=True,
    help="Which era of the protocol to speak to the server; auto: that of each client, if the server has it.",
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
    websocket: str | None,
    tcp: str | None,
    unix: str | None,
    origins: tuple[str, ...],
    names: tuple[str, ...],
    era: Any,
    log_level: str,
) -> int:
    """Serve another server, over another transport or in another era.

    TARGET is a command ("python server.py", or the words of it after --), a URL (ws://, wss://, tcp://HOST:PORT,
    unix:///PATH), a Python file with a server for `trio-mcp run`, or a name from the configuration file of a host.

    With --websocket, --tcp or --unix, each client gets a connection to TARGET of its own: a process of its own where
    TARGET is a command. Without, the one client is whoever started this command, on standard input and output; so a
    host that can only start commands can use a server that listens.

    \b
        trio-mcp bridge --websocket 8765 -- npx -y some-server
        trio-mcp bridge wss://mcp.example.com/mcp

    Requests, cancels, progress, logs, changes and questions pass in both directions. Clients of either era can use
    servers of the other. What a command writes to standard error goes to ours.

    Exit status: 0; 2 for what cannot be meant, and 3 when TARGET could not be reached, or was lost, while there was
    one client on standard input and output.
    """
    from ...diagnostics.log import WrittenInAThread
    from ..servers.addresses import Addresses
    from ..servers.bridging import run_bridge
    from ..targets import NoTarget, target_typed
    from ..terminal.printable import CopiedToStderr

    try:
        where = target_typed(words_after_dashes(target), config, WrittenInAThread(CopiedToStderr()))
    except NoTarget as error:
        raise click.UsageError(str(error)) from None
    return run_bridge(where, era, log_level, Addresses(websocket, tcp, unix, origins, names))
