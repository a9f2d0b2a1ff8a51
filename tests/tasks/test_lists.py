"""Lists of tasks: their order, their cursors, and what is in none (TK-09)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
import trio
from tests.tasks.callers import settings
from tests.tasks.touchy_store import TouchyStore
from trio.testing import MockClock

from trio_mcp import Client, PeerError, RequestContext, Server
from trio_mcp.client.opening import open_client
from trio_mcp.concurrency.contexts import asynccontextmanager
from trio_mcp.runtime.peer import SOLE_CLIENT, Peer, PrincipalId
from trio_mcp.server.servable import connection_to
from trio_mcp.stores.memory import MemoryTaskStore
from trio_mcp.transports.lines import memory_transport_pair

ADA = PrincipalId(None, "ada")
PEERS = pytest.mark.parametrize("peer", [SOLE_CLIENT, Peer(principal=ADA)], ids=["of a connection", "of a principal"])


@asynccontextmanager
async def connected(server: Server, peer: Peer = SOLE_CLIENT) -> AsyncGenerator[Client]:
    """A client of 2025-11-25, which ``server`` knows as ``peer``."""
    async with server._running() as running, trio.open_nursery() as nursery:
        ours, theirs = memory_transport_pair()
        nursery.start_soon(connection_to(running, theirs, peer).run)
        async with open_client(ours, era="legacy") as client:
            yield client
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def listing(peer: Peer = SOLE_CLIENT, **options: Any) -> AsyncGenerator[tuple[Client, TouchyStore]]:
    """A client of 2025-11-25, of a server with a tool that is a task for 1000 seconds."""
    store = TouchyStore()
    server = Server("listing", tasks=settings(store, **options))

    @server.tool(task="required")
    async def work(ctx: RequestContext) -> None:
        await trio.sleep(1000)

    async with connected(server, peer) as client:
        yield client, store


async def started(client: Client, count: int) -> list[str]:
    """The ids of so many tasks, in their order."""
    ids = list[str]()
    for _ in range(count):
        task = await client.start_task("work")
        assert task.id is not None
        ids.append(task.id)
    return ids


async def page(client: Client, cursor: str | None = None) -> tuple[list[str], str | None]:
    """The ids of a page, and the next cursor."""
    params = {} if cursor is None else {"cursor": cursor}
    result = await client._connection.outbound.request("tasks/list", params, client.revision)
    return [task["taskId"] for task in result["tasks"]], result.get("nextCursor")


async def test_tasks_created_in_the_same_millisecond_are_listed_in_creation_order(autojump_clock: MockClock) -> None:
    async with listing() as (client, _):
        ids = await started(client, 30)  # the clock of the store stands still meanwhile
        assert [task.id async for task in client.list_tasks()] == ids


async def test_anonymous_client_lists_only_tasks_of_its_own_connection(
    autojump_clock: MockClock,
) -> None:
    store = MemoryTaskStore()

    def sharing() -> Server:
        server = Server("sharing", tasks=settings(store))

        @server.tool(task="required")
        async def work(ctx: RequestContext) -> None:
            await trio.sleep(1000)

        return server

    async with connected(sharing()) as client, connected(sharing()) as another:
        mine, theirs = await started(client, 103), await started(another, 2)
        assert [task.id async for task in client.list_tasks()] == mine
        assert [task.id async for task in another.list_tasks()] == theirs
        first, cursor = await page(client)
        assert first == mine[:100]
        await store.discard(mine[99], retention_ms=0)
        await store.discard(mine[101], retention_ms=0)
        assert await page(client, cursor) == ([mine[100], mine[102]], None)
    async with connected(sharing()) as client:
        assert await page(client) == ([], None)


@PEERS
async def test_task_list_cursor_stays_valid_even_if_the_task_at_the_cursor_was_deleted(
    autojump_clock: MockClock, peer: Peer
) -> None:
    async with listing(peer) as (client, store):
        ids = await started(client, 105)
        first, cursor = await page(client)
        assert first == ids[:100]
        await store.discard(ids[99], retention_ms=0)
        await store.discard(ids[101], retention_ms=0)
        assert await page(client, cursor) == ([ids[100], *ids[102:]], None)


@pytest.mark.parametrize("cursor", ["", "x", ".", "1", "-1.x", "1_0.x", "\N{SUPERSCRIPT TWO}.x", "9" * 30 + ".x"])
@PEERS
async def test_task_list_request_with_an_invalid_cursor_gets_error_invalid_params(
    autojump_clock: MockClock, cursor: str, peer: Peer
) -> None:
    async with listing(peer) as (client, _):
        with pytest.raises(PeerError, match="unknown cursor") as refused:
            await page(client, cursor)
        assert refused.value.code == -32602


async def test_tasks_list_omits_an_expired_task(autojump_clock: MockClock) -> None:
    """Also before its record is deleted."""
    async with listing(ttl=5.0, retention=2.0) as (client, store):
        store.fails.add("expire")
        ids = await started(client, 1)
        await trio.sleep(6)
        assert await page(client) == (ids, None)
        await trio.sleep(2)
        assert await page(client) == ([], None)


async def test_task_of_a_dead_process_is_listed_as_failed_after_its_ttl(
    autojump_clock: MockClock,
) -> None:
    async with listing(Peer(principal=ADA), ttl=100.0) as (client, store):
        (task_id,) = await started(client, 1)
        way = store.store
        store.die()
        await trio.sleep(110)
        server = Server("another", tasks=settings(way))

        @server.tool(task="required")
        async def other() -> None: ...

        async with connected(server, Peer(principal=ADA)) as another:
            tasks = [task async for task in another.list_tasks()]
        assert [(task.id, task.status, task.message) for task in tasks] == [
            (task_id, "failed", "the time to live of the task was over")
        ]
        store.fails.clear()
