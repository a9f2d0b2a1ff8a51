"""What many sessions and waiting tasks hold in Redis and in the replicas, and what these do while nothing comes."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

from trio_mcp.fleet.storage.redis.client import digest, load_scripts

from ..driver.http import Connection
from ..driver.http_session import HttpSession
from ..tasks import messages
from . import ALONE
from .echoing import Figures, storages
from .fleet import replicas
from .redis import RedisProcess, redis

__all__ = ["sessions", "tasks"]

_AT_ONCE = 8
_WARMING = 40
"""So many before the first look at memory, so that only what each further one adds is counted."""
_RENEWED_EVERY = 10.0
"""Seconds: a third of a lease."""


def _each(clients: list[HttpSession], count: int, make: Callable[[HttpSession, Connection], object]) -> float:
    """Make ``count`` things from some connections at once, at all clients alike; the seconds that it took."""

    def some(number: int) -> None:
        client = clients[number % len(clients)]
        with client.connect() as connection:
            for _ in range(count // _AT_ONCE):
                make(client, connection)

    began = time.perf_counter()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(some, range(_AT_ONCE)))
    return time.perf_counter() - began


def sessions(count: int) -> dict[str, float]:
    """Open ``count`` legacy sessions at two replicas."""
    with redis() as store, replicas(store.url, store.url) as clients:
        _each(clients, _WARMING, HttpSession.new_session)
        kept, keys, held = store.memory(), store.ask("DBSIZE"), [each.child.memory() for each in clients]
        seconds = _each(clients, count, HttpSession.new_session)
        grown = sum(each.child.memory() - before for each, before in zip(clients, held, strict=True))
        return {
            "opened, /s": count / seconds,
            "bytes in Redis, each": (store.memory() - kept) / count,
            "keys in Redis, each": (store.ask("DBSIZE") - keys) / count,
            "memory of a replica for each of its sessions, KiB": grown / count / 1024,
        }


def _start(client: HttpSession, connection: Connection) -> None:
    number = next(client.ids)
    body = messages.call("extension", number, "sleep", {"text": f"text {number}"})
    messages.task_id(connection.ask(messages.post(client, body, "tools/call", "sleep")).messages()[-1])


def tasks(count: int, seconds: float) -> Figures:
    """Let ``count`` tasks wait at one replica, for each storage. ``seconds``: how long the replica is watched, without
    them and with them; longer than it takes from one renewal to the next, but in tests."""
    with storages() as (named, store):
        return {title: _waiting(storage, store, count, seconds) for title, storage in named.items()}


def _waiting(storage: str, store: RedisProcess, count: int, seconds: float) -> dict[str, float]:
    with replicas(storage) as clients:
        (client,) = clients
        idle, _ = _watched(client, store, seconds)
        _each(clients, _WARMING, _start)
        kept, held = _kept(storage, store), client.child.memory()
        took = _each(clients, count, _start)
        kept, held = _kept(storage, store) - kept, client.child.memory() - held
        busy, of_redis = _watched(client, store, seconds)
        figures = {
            "started, /s": count / took,
            "kept each, bytes": kept / count,
            "memory of the replica each, KiB": held / count / 1024,
            "processor before them, %": idle,
            "processor with them, %": busy,
        }
        if storage == store.url:
            figures |= {
                "Redis, %": of_redis,
                **_longest(store.times_of(digest(load_scripts("tasks")["task_renew"].text), seconds)),
            }
        return figures


def _kept(storage: str, store: RedisProcess) -> int:
    """Bytes that a storage holds."""
    if storage == store.url:
        return store.memory()
    return 0 if storage == ALONE else sum(file.stat().st_size for file in Path(storage).parent.iterdir())


def _watched(client: HttpSession, store: RedisProcess, seconds: float) -> tuple[float, float]:
    """Percents of a core that a replica and Redis use while nothing comes."""
    time.sleep(min(1.0, seconds))
    began, cpu, of_redis = time.perf_counter(), client.child.cpu(), store.cpu()
    time.sleep(seconds)
    wall = time.perf_counter() - began
    return 100 * (client.child.cpu() - cpu) / wall, 100 * (store.cpu() - of_redis) / wall


def _longest(times: list[float]) -> dict[str, float]:
    """Of scripts that renew leases: those of the longest renewal of all tasks."""
    if not times:
        return {}
    groups: list[list[float]] = [[times[0]]]
    for before, after in pairwise(times):
        if after - before > _RENEWED_EVERY / 4:
            groups.append([])
        groups[-1].append(after)
    longest = max(groups, key=len)
    return {
        "scripts of a renewal": len(longest),
        "a renewal, first to last script, ms": 1e3 * (longest[-1] - longest[0]),
    }
