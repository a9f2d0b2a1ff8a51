from __future__ import annotations

import pytest
import trio
from tests.patience import PATIENCE
from tests.stores.redis_server import RedisServer
from trio_mcp.stores.redis.link import Link, Message, Script, open_link
from trio_mcp.stores.task_store import GAP, StoreDown, Uncertain

COUNT = Script("count", "return redis.call('INCR', KEYS[1])")


async def until_up(link: Link) -> None:
    with trio.fail_after(PATIENCE):
        while not link.is_up:
            await trio.sleep(0.01)


async def test_script_returns_its_result(redis_url: str) -> None:
    async with open_link(redis_url) as link:
        await until_up(link)
        assert await link.script(COUNT, ["a"]) == 1
        assert await link.script(COUNT, ["a"]) == 2
        assert await link.pipeline([("SET", "b", 1), ("GET", b"b")]) == [b"OK", b"1"]
        async with link.subscribe(["x"]) as messages:
            await link.pipeline([("PUBLISH", "x", b"1")])
            assert await anext(messages) == Message("x", b"1")
