from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import partial

import pytest
import trio

from trio_mcp import Server, serve_tcp

DEFAULT = (700, 10, 10)


@pytest.fixture(autouse=True)
def pythons_own_threshold() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*DEFAULT)
    yield
    gc.set_threshold(*before)


async def started(nursery: trio.Nursery) -> trio.CancelScope:
    """Start a server, and return the scope that ends it."""
    scope = trio.CancelScope()

    async def serve(*, task_status: trio.TaskStatus[None]) -> None:
        with scope:
            async with trio.open_nursery() as inner:
                await inner.start(partial(serve_tcp, Server("any"), port=0))
                task_status.started()

    await nursery.start(serve)
    return scope


async def ended(nursery: trio.Nursery, scope: trio.CancelScope) -> None:
    left = len(nursery.child_tasks) - 1
    scope.cancel()
    while len(nursery.child_tasks) > left:
        await trio.lowlevel.checkpoint()


async def test_garbage_collector_threshold_is_raised_while_a_server_runs() -> None:
    async with trio.open_nursery() as nursery:
        server = await started(nursery)
        assert gc.get_threshold() == (10_000, 10, 10)
        await ended(nursery, server)
        assert gc.get_threshold() == DEFAULT


@pytest.mark.parametrize("own", [0, 50_000, 500])
async def test_custom_garbage_collector_threshold_is_not_changed(own: int) -> None:
    gc.set_threshold(own, 5, 5)
    async with trio.open_nursery() as nursery:
        server = await started(nursery)
        assert gc.get_threshold() == (own, 5, 5)
        await ended(nursery, server)
        assert gc.get_threshold() == (own, 5, 5)


async def test_garbage_collector_threshold_set_while_serving_is_kept() -> None:
    async with trio.open_nursery() as nursery:
        server = await started(nursery)
        gc.set_threshold(20_000, 20, 20)
        await ended(nursery, server)
        assert gc.get_threshold() == (20_000, 20, 20)


@pytest.mark.parametrize("first", [0, 1])
async def test_garbage_collector_threshold_is_restored_when_the_last_of_two_servers_ends(first: int) -> None:
    async with trio.open_nursery() as nursery:
        servers = [await started(nursery), await started(nursery)]
        await ended(nursery, servers.pop(first))
        await ended(nursery, servers.pop())
        assert gc.get_threshold() == DEFAULT
