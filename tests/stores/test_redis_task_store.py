"""Tasks are safe in Redis: all that a store has to do, and that nothing is left, lost ones write nothing, and numbers of
peers do no harm."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from tests.patience import PATIENCE
from tests.stores.redis_server import RedisServer

from trio_mcp.stores.redis.link import Link, open_link
from trio_mcp.stores.redis.task_store import RedisTaskStore
from trio_mcp.stores.task_store import GAP, StoreDown, StoreFull, TaskStore, Uncertain, UnreadableRecord, Watchers
from trio_mcp.testing.store_records import HOUR, change, claim, create, ended, interrupt, kept, next_of, over, record
from trio_mcp.testing.store_suite import TaskStoreSuite

SECRET, OLDER = bytes(range(32)), bytes(range(32, 64))
BUS = "test:bus"
BASE = b"{test:t}1:"


@asynccontextmanager
async def open_store(
    url: str, secrets: tuple[bytes, ...] = (), *, prefix: str = "test", hears: bool = True
) -> AsyncGenerator[RedisTaskStore]:
    """Open a store on a link of its own, as a replica does."""
    watchers = Watchers[str]()

    async def pass_on(messages: Any) -> None:
        async for message in messages:
            watchers.tell([GAP if message is GAP else message.data.removeprefix(b"t").decode()])

    async with open_link(url) as link, link.subscribe([BUS]) as messages, trio.open_nursery() as nursery:
        if hears:
            nursery.start_soon(pass_on, messages)
        yield RedisTaskStore(link, prefix, BUS, watchers, secrets)
        nursery.cancel_scope.cancel(reason="the store is closed")


class TestRedisTaskStore(TaskStoreSuite):
    secrets: tuple[bytes, ...] = ()

    @pytest.fixture(autouse=True)
    def storage(self, redis_url: str) -> None:
        self.url = redis_url

    def open_store(self) -> AbstractAsyncContextManager[TaskStore]:
        return open_store(self.url, self.secrets)


class TestSealedRedisTaskStore(TestRedisTaskStore):
    secrets = (SECRET, OLDER)
