"""A list that has failed leads to nothing that the client has released."""

from __future__ import annotations

import gc
import weakref

from trio_mcp import Server, open_memory
from trio_mcp.client.listing import collect


async def test_pages_of_a_failed_listing_are_freed_without_garbage_collection(autojump_clock: object) -> None:
    server = Server("s")

    @server.middleware("tools/list")
    async def refused(request: object, next: object) -> object:
        raise ValueError("no")

    async with open_memory(server) as client:
        gc.collect()
        gc.disable()
        try:
            pages = client.list_tools()
            released = weakref.ref(pages)
            found = await collect(pages)
            assert found.problem is not None
            del pages, found
            assert released() is None
        finally:
            gc.enable()
