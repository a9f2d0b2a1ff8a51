"""Memories of a model: a port of `mcp-server-qdrant` (github.com/qdrant/mcp-server-qdrant, written with fastmcp), over
any store whose client blocks, as `QdrantClient` does; the original uses the client that runs on asyncio."""

import json
from typing import Annotated, Any, Protocol

import attrs
from pydantic import Field

from trio_mcp import Provide, Server, WorkerContext
from trio_mcp.types import TextContent

__all__ = ["Entry", "Memory", "make_server"]


@attrs.frozen
class Entry:
    content: str
    metadata: dict[str, Any] | None = None

    def __str__(self) -> str:
        told = json.dumps(self.metadata) if self.metadata else ""
        return f"<entry><content>{self.content}</content><metadata>{told}</metadata></entry>"


class Memory(Protocol):
    def store(self, entry: Entry, collection: str) -> None: ...

    def search(self, query: str, collection: str, limit: int, filter: dict[str, Any] | None) -> list[Entry]: ...


def make_server(
    memory: Memory, *, collection: str | None = None, limit: int = 10, filters: bool = False, read_only: bool = False
) -> Server:
    """Without a ``collection`` the model names one; ``filters``: the model may give filters of the store."""

    async def given() -> str:
        assert collection is not None
        return collection

    async def no_filter() -> None:
        return None

    collection_to_store: Any = Annotated[str, Field(description="Where to keep it.")]
    collection_to_search: Any = Annotated[str, Field(description="Where to look.")]
    query_filter_type: Any = dict[str, Any] | None
    if collection is not None:
        collection_to_store = collection_to_search = Annotated[str, Provide(given)]
    if not filters:
        query_filter_type = Annotated[dict[str, Any] | None, Provide(no_filter)]

    def store(
        ctx: WorkerContext,
        information: Annotated[str, Field(description="What to keep.")],
        collection_name: collection_to_store,
        metadata: Annotated[dict[str, Any] | None, Field(description="What else is known of it.")] = None,
    ) -> str:
        ctx.log.debug(f"keeping {information}")
        memory.store(Entry(information, metadata), collection_name)
        return f"Remembered: {information} in collection {collection_name}"

    def find(
        ctx: WorkerContext,
        query: Annotated[str, Field(description="What to look for.")],
        collection_name: collection_to_search,
        query_filter: query_filter_type = None,
    ) -> list[TextContent]:
        ctx.log.debug(f"looking for {query}")
        entries = memory.search(query, collection_name, limit, query_filter)
        if not entries:
            return []
        return [TextContent(f"Results for the query '{query}'"), *(TextContent(str(entry)) for entry in entries)]

    server = Server("mcp-server-qdrant")
    server.tool(name="qdrant-find", description="Find what was kept.")(find)
    if not read_only:
        server.tool(name="qdrant-store", description="Keep something for later.")(store)
    return server
