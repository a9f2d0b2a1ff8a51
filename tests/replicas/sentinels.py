"""A primary, two copies of it and three sentinels, which take the primary for dead after a second."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import attrs
from tests.fleet.redis_server import RedisServer

__all__ = ["LAG", "Sentinels", "sentinels"]

LAG: Final = 2.0
"""Seconds within which what was accepted may be lost by a failover: ``min-replicas-max-lag``."""
_LINES: Final = (
    "appendonly yes",
    "appendfsync everysec",
    "min-replicas-to-write 1",
    f"min-replicas-max-lag {LAG:g}",
    "repl-diskless-sync-delay 0",
)


@attrs.frozen
class Sentinels:
    """The servers, of which one is the primary, and those who watch."""

    servers: list[RedisServer]
    watching: list[RedisServer]

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.watching)
        return f"redis+sentinel://{hosts}/main"

    @property
    def primary(self) -> RedisServer:
        """The primary, as the sentinels see it."""
        _, port = self.watching[0].ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")
        (found,) = [server for server in self.servers if server.port == int(port)]
        return found

    @property
    def are_ready(self) -> bool:
        """Whether the copies have what the primary has, and all know of each other."""
        copies = [server for server in self.servers if server is not self.primary]
        up = [copy.info("replication").get("master_link_status", "").strip() for copy in copies]
        known = [each.ask("SENTINEL", "SENTINELS", "main") for each in self.watching]
        seen = [each.ask("SENTINEL", "REPLICAS", "main") for each in self.watching]
        return up == ["up"] * 2 and all(len(each) == 2 for each in (*known, *seen))


@contextmanager
def sentinels(folder: Path) -> Iterator[Sentinels]:
    """Start them all; they take some seconds to know of each other."""
    with ExitStack() as running:
        first = running.enter_context(RedisServer(folder, *_LINES))
        copy_of = f"replicaof 127.0.0.1 {first.port}"
        copies = [running.enter_context(RedisServer(folder, *_LINES, copy_of)) for _ in range(2)]
        watch = [
            f"sentinel monitor main 127.0.0.1 {first.port} 2",
            "sentinel down-after-milliseconds main 1000",
            "sentinel failover-timeout main 5000",
        ]
        watching = [running.enter_context(RedisServer(folder, *watch, is_sentinel=True)) for _ in range(3)]
        yield Sentinels([first, *copies], watching)
