"""Programs that fail with SDKs that keep a cancel scope open around the caller ("Attempted to exit cancel scope in a
different task than it was entered in") work here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from itertools import permutations

import pytest
from tests.bridging.seen import Seen, run

from trio_mcp import aio


def test_asyncio_clients_in_an_exit_stack_of_one_task_can_be_closed_by_another_task(seen: Seen) -> None:
    async def main() -> None:
        stack = AsyncExitStack()
        client = await stack.enter_async_context(aio.open_memory(seen.server))
        await client.ping()
        await asyncio.create_task(stack.aclose())
        assert client.lost is not None

    run(main)


def test_asyncio_clients_opened_in_separate_tasks_can_be_closed_by_the_main_task(seen: Seen) -> None:
    async def main() -> None:
        stack = AsyncExitStack()
        opening = (stack.enter_async_context(aio.open_memory(seen.server)) for _ in range(5))
        clients = await asyncio.gather(*opening)
        await asyncio.gather(*(client.ping() for client in clients))
        await stack.aclose()

    run(main)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_asyncio_clients_can_be_closed_in_any_order(seen: Seen, order: tuple[int, ...]) -> None:
    async def main() -> None:
        stacks = [AsyncExitStack() for _ in order]
        clients = [await stack.enter_async_context(aio.open_memory(seen.server)) for stack in stacks]
        for number, place in enumerate(order):
            await stacks[place].aclose()
            for left in order[number + 1 :]:
                await clients[left].ping()

    run(main)


def test_async_generator_with_an_open_asyncio_client_can_be_closed_in_another_task_or_abandoned(seen: Seen) -> None:
    async def connected() -> AsyncGenerator[aio.Client]:
        async with aio.open_memory(seen.server) as client:
            yield client

    async def main() -> None:
        closed, left_alone = connected(), connected()
        for generator in (closed, left_alone):
            await (await anext(generator)).ping()
        await asyncio.create_task(closed.aclose())
        abandoned.append(left_alone)

    abandoned: list[object] = []
    run(main)


def test_asyncio_client_can_be_opened_and_closed_in_two_run_calls_of_one_asyncio_runner(seen: Seen) -> None:
    with asyncio.Runner() as runner:
        opened = aio.open_memory(seen.server)
        client = runner.run(opened.__aenter__())
        runner.run(client.ping())
        runner.run(opened.__aexit__(None, None, None))


def test_exception_raised_while_asyncio_clients_are_open_propagates_unchanged(seen: Seen) -> None:
    async def main() -> None:
        async with aio.open_memory(seen.server), aio.open_memory(seen.server):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(main)
