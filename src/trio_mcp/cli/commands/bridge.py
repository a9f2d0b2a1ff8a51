"""``trio-mcp bridge`` serves a server that runs or listens elsewhere."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import unquote, urlsplit

import click
import trio

from ...auth.credentials import AuthorizationError
from ...classes import define
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
from ..group import choice
from ..printable import CopiedToStderr, log_to_stderr
from ..targets import SignIn, target_typed, with_extras
from .options import (
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
@choice("--era", ERAS, "auto", "Era of the protocol to speak; auto: the era of each client, if the server has it.")
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
    """Serve another server, over another transport or in another era.

    TARGET is a command ("python server.py", or the words of it after --), a URL (https://, http://, wss://, ws://,
    tcp://HOST:PORT, unix:///PATH, http+unix://SOCKET/PATH), a Python file with a server for `trio-mcp run`, or a name
    from the configuration file of a host.

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
    where = target_typed(words_after_dashes(target), config, ThreadedSink(CopiedToStderr().write), sign_in)
    where = with_extras(where, (), (), revision)
    serve = serving_on(addresses)
    log_to_stderr(log_level)
    way = _TargetOpener(where, era)
    trio.run(serve or serve_stdio, proxy(way.open, name=_name_of(where)))
    return way.status if serve is None else ENDED_WELL


@define
class _TargetOpener:
    """Open ``target`` for each client, in ``era`` if given."""

    _target: Target
    _era: Literal["auto", "modern", "legacy"]
    status: int = ENDED_WELL
    """The exit status for the latest loss of a connection, or refusal of one."""

    @asynccontextmanager
    async def open(self, **options: Any) -> AsyncGenerator[Client]:
        """Open a connection for a client."""
        if self._era != "auto":
            options["era"] = self._era
        try:
            async with self._target.open(**options) as client:
                yield client
        except ConnectionLost:
            self.status = NO_CONNECTION
            raise
        except AuthorizationError:
            self.status = NOT_AUTHORIZED
            raise


def _name_of(target: Target) -> str:
    """Return the bridge's name for ``target``, for the people who run the bridge."""
    if isinstance(target, Command):
        return os.path.basename(cast("str", target.words[0]))
    return unquote(urlsplit(target.url).netloc) or target.url if isinstance(target, Address) else "server"
