"""bridge: serve a server that runs or listens elsewhere."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import trio

from ...auth.errors import AuthorizationError
from ...client.client import Client
from ...concurrency.contexts import asynccontextmanager
from ...connecting.stdio import Command
from ...connecting.targets import Address, Target
from ...proxying.proxy import proxy
from ...runtime.channel import ConnectionLost
from ...serving.stdio import serve_stdio
from ..log_lines import log_to_stderr
from ..reporting import say
from ..statuses import ENDED_WELL, NO_CONNECTION, NOT_AUTHORIZED, USAGE
from .addresses import Addresses, BadAddress, CannotListen, serving_on


def run_bridge(target: Target, era: Literal["auto", "modern", "legacy"], log_level: str, addresses: Addresses) -> int:
    """Serve ``target`` on ``addresses``, or over standard input and output; return the exit status."""
    try:
        serve = serving_on(addresses)
    except BadAddress as error:
        say(str(error))
        return USAGE
    log_to_stderr(log_level)
    way = _Way(target, era)
    bridge = proxy(way.open, name=_name_of(target))
    if serve is None:
        trio.run(serve_stdio, bridge)
        return way.status
    try:
        trio.run(serve, bridge)
    except CannotListen as error:
        say(str(error))
        return USAGE
    return ENDED_WELL


class _Way:
    """Open ``target`` for each client, in ``era`` if given."""

    def __init__(self, target: Target, era: Literal["auto", "modern", "legacy"]) -> None:
        self._target = target
        self._era = era
        self.status = ENDED_WELL
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
    return urlsplit(target.url).netloc or target.url if isinstance(target, Address) else "server"
