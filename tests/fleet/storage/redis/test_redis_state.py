"""``ctx.state`` in Redis."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fleet.redis_server import RedisServer
from tests.fleet.shared_state import SECRET, state_is_shared_by_replicas

from trio_mcp import RedisStorage


@pytest.mark.parametrize(("secrets", "is_readable"), [((), True), ([SECRET], False)], ids=["plain", "sealed"])
async def test_replicas_share_the_caller_state_of_each_principal_through_redis(
    redis_url: str, redis_server: RedisServer, secrets: Any, is_readable: bool
) -> None:
    await state_is_shared_by_replicas(RedisStorage(redis_url, limit=10.0), secrets)
    names = [name for name in redis_server.ask("KEYS", "*") if b":state:s}:s:" in name]
    assert len(names) == 2
    facts = [redis_server.ask("HGET", name, "facts") for name in names]
    assert any(b"hidden words" in each for each in facts) == is_readable
    assert all(0 < redis_server.ask("PTTL", name) <= 3_600_000 for name in names)
