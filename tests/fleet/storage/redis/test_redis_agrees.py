"""Whatever is done to them, the store in memory and the store in Redis say the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fleet.redis_server import RedisServer
from tests.stores.test_stores_agree import Clock, Operation, operations, outcome

from trio_mcp.fleet.storage.redis.link import Script, Value
from trio_mcp.fleet.storage.redis.task_store import RedisTaskStore
from trio_mcp.stores.memory import MemoryTaskStore
from trio_mcp.stores.task_store import HintQueues


class LinkWithClock:
    """Runs scripts in a Redis with another time, in which nothing goes by itself."""

    def __init__(self, server: RedisServer, clock: Clock) -> None:
        self._server = server
        self._clock = clock

    async def script(self, script: Script, keys: Sequence[Value], args: Sequence[Value]) -> Any:
        text = script.text
        for old, new in (
            ("call('TIME')", "{0, table.remove(ARGV) * 1000}"),
            ("call('PEXPIREAT', key, math.max(kept, now) + HOUR)", "call('PERSIST', key)"),
        ):
            assert text.count(old) == 1
            text = text.replace(old, new)
        return self._server.ask("EVAL", text, len(keys), *keys, *args, self._clock.now)


@settings(max_examples=examples(400))
@given(st.lists(operations(), max_size=30), st.sampled_from([(), (bytes(32),)]))
def test_memory_and_redis_task_stores_behave_the_same(
    redis_of_process: RedisServer, life: list[Operation | int], secrets: tuple[bytes, ...]
):
    async def main() -> None:
        memory, clock = MemoryTaskStore(), Clock()
        memory._now = clock  # type: ignore[assignment]
        link: Any = LinkWithClock(redis_of_process, clock)
        redis = RedisTaskStore(link, b"test", b"bus", HintQueues(), secrets)
        for operation in life:
            if isinstance(operation, int):
                clock.now += operation
            else:
                assert await outcome(operation, redis) == await outcome(operation, memory)

    redis_of_process.ask("FLUSHALL")
    trio.run(main)
