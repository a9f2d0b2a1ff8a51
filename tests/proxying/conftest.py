"""What proxies are tested with: either era on either side, over a connection of its own or a shared one."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import pytest

from trio_mcp import Client, Server, open_memory, proxy
from trio_mcp.types import ClientCapabilities, Elicitation, Proxy, Roots, Sampling

ALL = ClientCapabilities(
    sampling=Sampling(context={}, tools={}), elicitation=Elicitation(form={}, url={}), roots=Roots(list_changed=True)
)


@pytest.fixture(params=("legacy", "modern"))
def front(request: pytest.FixtureRequest) -> Any:
    """The era of the client of the proxy."""
    return request.param


@pytest.fixture(params=("legacy", "modern"))
def back(request: pytest.FixtureRequest) -> Any:
    """The era of the server behind it."""
    return request.param


@pytest.fixture(params=("own", "shared"))
def sharing(request: pytest.FixtureRequest) -> Any:
    """Whether each client has a connection of its own to the server behind."""
    return request.param


class Proxied(Protocol):
    """Puts a proxy before a server."""

    def __call__(self, server: Server) -> AbstractAsyncContextManager[Proxy]: ...


@pytest.fixture
def proxied(back: Any, sharing: str) -> Proxied:
    """A proxy before a server that lives in the era ``back`` only."""

    def opening(server: Server, **options: Any) -> AbstractAsyncContextManager[Client]:
        if back == "modern":
            options.pop("revision", None)
        return open_memory(server, **{**options, "era": back})

    @asynccontextmanager
    async def before(server: Server) -> AsyncGenerator[Proxy]:
        if sharing == "own":

            def open_behind(**options: Any) -> AbstractAsyncContextManager[Client]:
                return opening(server, **options)

            yield proxy(open_behind)
        else:
            async with opening(server, forwards=ALL) as client:
                yield proxy(client)

    return before
