"""The storage in Redis does what every storage that replicas share has to do."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import pytest

from trio_mcp.fleet.storage.redis.storage import RedisStorage
from trio_mcp.stores.shared import Replica
from trio_mcp.testing import SharedStorageSuite


class TestRedis(SharedStorageSuite):
    @pytest.fixture(autouse=True)
    def storage(self, redis_url: str) -> None:
        self.redis = RedisStorage(redis_url, limit=10.0)

    def open_replica(self, name: str = "tested") -> AbstractAsyncContextManager[Replica]:
        return self.redis.join(name)
