"""``trio-mcp bridge``: exposes a server over another transport."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import unquote, urlsplit

import click
import trio

from ...auth.credentials import AuthorizationError
from ...client.client import Client
from ...concurrency.contexts import asynccontextmanager
from ...connecting.stdio import Command
from ...connecting.targets import Address, Target
from ...diagnostics.log import ThreadedSink
from ...proxying.proxy import proxy
from ...runtime.transport import ConnectionLost
from ...serving.process import serve_stdio
from .. import ENDED_WELL, NO_CONNECTION, NOT_AUTHORIZED
from ..addresses import Addresses, address_options, log_level_option, serving_on
from ..group import choice, in_section
from ..printable import CopiedToStderr, log_to_stderr
from ..targets import SignIn, target_typed, with_extras
from .options import (
    CONNECTION,
    ERAS,
    TARGET,
    TargetCommand,
    config_option_of_starters,
    revision_option,
    sign_in_options,
    words_after_dashes,
)


@click.command(cls=TargetCommand)
@click.argument("target", type=TARGET)
@config_option_of_starters
@sign_in_options
@address_options
@in_section(
    CONNECTION,
    choice("--era", ERAS, "auto", "Era of the protocol to use. With auto, that of each client, if TARGET supports it."),
)
@revision_option
@log_level_option
def bridge(
    target: str,
    config: Path | None,
    addresses: Addresses,
    era: Literal["auto", "modern", "legacy"],
    revision: str | None,
    log_level: str,
    sign_in: SignIn,
) -> int:
    """Expose a server over another transport or protocol revision.

    TARGET is a command ("python server.py", or its words after --), a URL (https://, http://, wss://, ws://,
    tcp://HOST:PORT, unix:///PATH, http+unix://SOCKET/PATH), a Python file with a server for `trio-mcp run`, or a name
    from the configuration file of a host.

    With --http, --websocket, --tcp or --unix, each client gets its own connection to TARGET. If TARGET is a command,
    each client gets its own process. Modern clients over HTTP share one connection. Without these options, the only
    client is the program that started this command, on standard input and output. So a host that can only start
    commands can use a server with a URL.

    \b
        trio-mcp bridge --http 8000 -- npx -y some-server
        trio-mcp bridge https://mcp.example.com/mcp

    If TARGET is protected, requests of every client are sent with your authorization, so check who can reach the
    bridge. Tokens of clients are never passed on. If a host starts the bridge, it opens your browser only with
    --sign-in. You can sign in beforehand by running `trio-mcp inspect TARGET` in a terminal.

    Requests, cancellations, progress, logs, changes and questions pass in both directions. Clients of either era can
    use servers of the other era. The standard error of a command is copied to this one's.

    Exit status: 0 success; 2 wrong usage. With one client on standard input and output also: 3 TARGET couldn't be
    reached, or disconnected; 6 TARGET requires a token that wasn't available or was refused.
    """
    where = target_typed(words_after_dashes(target), config, ThreadedSink(CopiedToStderr().write), sign_in)
    where = with_extras(where, (), (), revision)
    serve = serving_on(addresses)
    log_to_stderr(log_level)
    status = ENDED_WELL

    @asynccontextmanager
    async def opened(**options: Any) -> AsyncGenerator[Client]:
        """Connect to the target, once for each client of the bridge."""
        nonlocal status
        if era != "auto":
            options["era"] = era
        try:
            async with where.open(**options) as client:
                yield client
        except ConnectionLost:
            status = NO_CONNECTION
            raise
        except AuthorizationError:
            status = NOT_AUTHORIZED
            raise

    trio.run(serve or serve_stdio, proxy(opened, name=_name_of(where)))
    return status if serve is None else ENDED_WELL


def _name_of(target: Target) -> str:
    """Return a name for ``target``, to be used in the bridge's messages on standard error."""
    if isinstance(target, Command):
        return os.path.basename(cast("str", target.words[0]))
    return unquote(urlsplit(target.url).netloc) or target.url if isinstance(target, Address) else "server"
