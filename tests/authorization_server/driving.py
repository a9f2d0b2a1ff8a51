"""Carries out the steps of a machine, with a user who presses "Allow"."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import urlencode

import trio
from examples.authorization.provider import press

from trio_mcp.auth.fetching import Fetch, FetchFailed, HttpFetcher, UrlRules
from trio_mcp.auth.oauth_client.grants import Machine

T = TypeVar("T")


async def drive(
    machine: Machine[T],
    callbacks: trio.MemoryReceiveChannel[dict[str, str]] | None = None,
    visit: Callable[[str], Awaitable[None]] = press,
) -> T:
    """What ``machine`` ends with. ``callbacks`` are what arrives at the redirect URI."""
    fetcher = HttpFetcher(UrlRules(loopback=True), http_proxy=None)
    send, value = machine.send, None
    try:
        while True:
            step = send(value)
            send = machine.send
            if isinstance(step, Fetch):
                try:
                    value = await fetcher.fetch(step)
                except FetchFailed as error:
                    send, value = machine.throw, error
            else:
                assert callbacks is not None
                await visit(step.url)
                value = f"{step.redirect_uri}?{urlencode(await callbacks.receive())}"
    except StopIteration as end:
        return end.value
