"""Storm: replicas under load are killed, frozen and replaced, and the Redis that they share is killed and frozen, too.

``python -m tests.replicas.storm --seconds 120`` runs all of it; the tests of this folder run parts. See `Load` for what
is counted.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import trio
from tests.fleet.redis_server import RedisServer
from tests.replicas.fleet import LEASE, SESSION_LEASE, Fleet, Replica, fleet, until
from tests.replicas.load import Load
from tests.replicas.sentinels import LAG, Sentinels, sentinels
from tests.reverse_proxies.proxies import HAPROXY, NGINX, Proxy

__all__ = ["FAULTS", "Storm", "run_storm"]

Fault: TypeAlias = "Callable[[Storm, float], Awaitable[None]]"

AOF: Final = ("appendonly yes", "appendfsync everysec")
SETTLED: Final = 60.0
"""Seconds in which everything has come to its end behind the last fault."""


class Storm:
    """Faults of ``fleet``, and of ``redis``, which it shares."""

    def __init__(self, fleet: Fleet, redis: RedisServer | Sentinels, load: Load, *, seed: int) -> None:
        self._fleet = fleet
        self._storage = redis
        self._load = load
        self._random = random.Random(seed)
        self._starting = set[Replica]()
        self.counts: dict[str, int] = {}

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def _disturb(self) -> None:
        self._load.disturbed = trio.current_time()

    @property
    def _redis(self) -> RedisServer:
        """The server that answers now."""
        return self._storage.primary if isinstance(self._storage, Sentinels) else self._storage

    async def kill_each_second(self, seconds: float) -> None:
        """Kill a replica each second, and start it again at once; two at least are left alone."""
        async with trio.open_nursery() as nursery:
            end = trio.current_time() + seconds
            while trio.current_time() < end:
                await trio.sleep(self._random.uniform(0.7, 1.3))
                running = [each for each in self._fleet.replicas if each not in self._starting]
                if len(running) > 2:
                    victim = self._random.choice(running)
                    self._load.killed[victim.pid] = trio.current_time()
                    victim.kill()
                    self._count("kills")
                    self._starting.add(victim)
                    nursery.start_soon(self._start, victim)

    async def _start(self, replica: Replica) -> None:
        await replica.start()
        self._starting.discard(replica)

    async def freeze_beyond_leases(self, seconds: float) -> None:
        """Freeze a replica for longer than its leases, and let it go on, again and again."""
        length = max(LEASE, SESSION_LEASE) + 1.0
        for _ in range(max(1, round(seconds / (length + 2.0)))):
            victim = self._random.choice(self._fleet.replicas)
            victim.freeze()
            self._count("freezes")
            await trio.sleep(length)
            victim.go_on()
            self._disturb()
            await trio.sleep(2.0)

    async def restart_one_after_another(self, _: float) -> None:
        """Replace each replica in good order once all have answered, the next one when the new one has."""
        await until(lambda: all(replica.pid in self._load.seen for replica in self._fleet.replicas))
        for replica in self._fleet.replicas:
            old = replica.pid
            await replica.replace()
            await until(lambda replica=replica: replica.pid in self._load.seen)
            self._load.killed[old] = trio.current_time()
            self._count("replacements")

    async def kill_redis(self, seconds: float) -> None:
        """Kill Redis, and start it again a second later with what its file has, again and again."""
        redis = self._redis
        for _ in range(max(1, round(seconds / 8.0))):
            self._disturb()
            redis.kill()
            self._count("kills of Redis")
            await trio.sleep(1.0)
            await trio.to_thread.run_sync(redis.start)
            self._disturb()
            await trio.sleep(5.0)

    async def freeze_redis(self, _: float) -> None:
        """Freeze Redis for five seconds."""
        redis = self._redis
        self._disturb()
        redis.stop()
        self._count("freezes of Redis")
        await trio.sleep(5.0)
        redis.go_on()
        self._disturb()
        await trio.sleep(3.0)

    async def fail_over(self, _: float) -> None:
        """Freeze the primary until the sentinels have made another one, and let it go on then, as a copy."""
        storage = self._storage
        assert isinstance(storage, Sentinels)
        old, frozen_at = storage.primary, trio.current_time()
        self._disturb()
        old.stop()
        await until(lambda: storage.primary is not old)
        self._load.may_lose.append((frozen_at - LAG, trio.current_time() + LAG))
        self._count("failovers")
        await trio.sleep(5.0)
        old.go_on()
        self._disturb()
        await until(lambda: storage.are_ready)
        self._disturb()
        await trio.sleep(3.0)


FAULTS: Final[Sequence[Fault]] = (
    Storm.kill_each_second,
    Storm.freeze_beyond_leases,
    Storm.restart_one_after_another,
    Storm.kill_redis,
    Storm.freeze_redis,
)


async def run_storm(
    folder: Path,
    *,
    seconds: float,
    seed: int,
    faults: Sequence[Fault] = FAULTS,
    proxy: Proxy = HAPROXY,
    callers: int = 4,
    legacy: bool = True,
) -> tuple[Load, Storm]:
    """Run each of ``faults`` under load, for ``seconds`` altogether; the rest takes as long as it takes. Return what
    was seen."""
    # A Redis that isn't killed needs no file, whose writes may take more than the limit of a call on a busy disk.
    redis_options = AOF if Storm.kill_redis in faults else ()
    storage = sentinels(folder) if Storm.fail_over in faults else RedisServer(folder, *redis_options)
    with storage as redis:
        if isinstance(redis, Sentinels):
            await until(lambda: redis.are_ready)
        async with fleet(folder, proxy, redis.url) as replicas:
            load = Load(replicas, seed=seed)
            storm = Storm(replicas, redis, load, seed=seed)
            async with trio.open_nursery() as watching:
                load.watch(watching)
                async with trio.open_nursery() as acting:
                    load.act(acting, callers=callers, legacy=legacy)
                    await trio.sleep(1.0)
                    for fault in faults:
                        await fault(storm, seconds / len(faults))
                    acting.cancel_scope.cancel(reason="the storm is over")
                await load.settle(bound=SETTLED)
                watching.cancel_scope.cancel(reason="all has settled")
            load.check_tasks()
            return load, storm


def report(load: Load, storm: Storm) -> None:
    """Print what was seen."""
    print("faults:", ", ".join(f"{number} {what}" for what, number in storm.counts.items()))
    print("calls:", ", ".join(f"{number} {what}" for what, number in load.outcomes.most_common()))
    print(
        f"tasks: {len(load.accepted)} accepted, {len(load.ended)} ended, {len(load.lost)} lost; "
        f"{load.cancels} cancels arrived; {load.changes} changes told"
    )
    for kind, words in load.errors.items():
        print(f"  {kind}: {words}")
    for each in load.broken[:50]:
        print("BROKEN:", each)
    print("all holds" if not load.broken else f"{len(load.broken)} things are broken")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.replicas.storm", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--proxy", choices=["haproxy", "nginx"], default="haproxy")
    parser.add_argument("--callers", type=int, default=8, help="clients that call, of each era")
    parser.add_argument("--modern", action="store_true", help="no sessions of legacy clients")
    names = [fault.__name__ for fault in (*FAULTS, Storm.fail_over)]
    parser.add_argument("--faults", nargs="*", choices=names, default=names)
    given = parser.parse_args()
    chosen = [fault for fault in FAULTS if fault.__name__ in given.faults]
    parts = [chosen] if chosen else []
    if Storm.fail_over.__name__ in given.faults:  # with servers of its own
        parts.append([Storm.fail_over])
    are_broken = False
    for faults in parts:
        with tempfile.TemporaryDirectory(prefix="storm-") as folder:
            running = partial(
                run_storm,
                Path(folder),
                seconds=given.seconds,
                seed=given.seed,
                faults=faults,
                proxy={"haproxy": HAPROXY, "nginx": NGINX}[given.proxy],
                callers=given.callers,
                legacy=not given.modern,
            )
            load, storm = trio.run(running)
            report(load, storm)
            are_broken = are_broken or bool(load.broken)
    return 1 if are_broken else 0


if __name__ == "__main__":
    sys.exit(main())
