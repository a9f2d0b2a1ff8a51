"""What many sessions and waiting tasks hold in Redis and in the replicas, and what these do while nothing comes."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from trio_mcp.stores.redis.commands import digest
from trio_mcp.stores.redis.task_scripts import RENEW

from ..driver.checks import check
from ..driver.http import Connection
from ..driver.http_session import HttpSession
from ..tasks import messages
from .fleet import replicas
from .redis import redis

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


def tasks(count: int, seconds: float) -> dict[str, float]:
    """Let ``count`` tasks wait at one replica. ``seconds``: how long the replica is watched, without them and with
    them; at least as long as it takes from one renewal to the next, but in tests."""
    with redis() as store, replicas(store.url) as clients:
        (client,) = clients
        idle, _ = _watched(client, store.cpu, seconds)
        _each(clients, _WARMING, _start)
        kept, held = store.memory(), client.child.memory()
        took = _each(clients, count, _start)
        kept, held = store.memory() - kept, client.child.memory() - held
        busy, of_redis = _watched(client, store.cpu, seconds)
        figures = {
            "started, /s": count / took,
            "bytes in Redis, each": kept / count,
            "memory of the replica, each, KiB": held / count / 1024,
            "processor time of the idle replica, %": idle,
            "processor time of the replica with the tasks, %": busy,
            "processor time of Redis, %": of_redis,
        }
        renewals = store.times_of(digest(RENEW.text), seconds)
        if seconds > _RENEWED_EVERY:
            check(bool(renewals), True, "that leases are renewed")
            figures |= _longest(renewals)
        return figures


def _watched(client: HttpSession, cpu_of_redis: Callable[[], float], seconds: float) -> tuple[float, float]:
    """Percents of a core that a replica and Redis use while nothing comes."""
    time.sleep(min(1.0, seconds))
    began, cpu, of_redis = time.perf_counter(), client.child.cpu(), cpu_of_redis()
    time.sleep(seconds)
    wall = time.perf_counter() - began
    return 100 * (client.child.cpu() - cpu) / wall, 100 * (cpu_of_redis() - of_redis) / wall


def _longest(times: list[float]) -> dict[str, float]:
    """Of scripts that renew leases: those of the longest renewal of all tasks."""
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
