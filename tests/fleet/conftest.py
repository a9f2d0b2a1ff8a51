"""The Redis that the tests of this folder may use."""

from __future__ import annotations

from tests.fleet.redis_server import redis_of_process, redis_server, redis_url

__all__ = ["redis_of_process", "redis_server", "redis_url"]
