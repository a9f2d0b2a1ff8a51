"""The figures of replicas can be taken."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from shutil import which

import pytest
from benchmarks.replicas.crossing import crossings
from benchmarks.replicas.echoing import costs, throughputs
from benchmarks.replicas.holding import sessions, tasks
from benchmarks.replicas.redis import redis

pytestmark = pytest.mark.skipif(which("redis-server") is None, reason="redis-server is not installed")


def test_benchmark_measures_the_cost_of_shared_storage_for_each_storage_type() -> None:
    (figures,) = costs(1, 32)
    assert [row for row in figures if row.startswith("modern, 16")] == [
        f"modern, 16 connections: {storage}" for storage in ("alone", "Redis", "SQLite")
    ]
    assert all(row["/s"] > 0 and row["cpu"] >= 0 for row in figures.values())


def test_benchmark_measures_throughput_for_each_number_of_replicas() -> None:
    (figures,) = throughputs(1, 32)
    assert {row.split(":")[0] for row in figures} == {"1", "2", "4"}
    assert all(row["/s"] > 0 for row in figures.values())


def test_benchmark_compares_calls_forwarded_between_replicas_with_calls_in_one_process() -> None:
    (figures,) = crossings(1, 2)
    assert len(figures) == 5 * 5
    assert all(row["p99"] >= row["p50"] > 0 for row in figures.values())


def test_benchmark_measures_the_storage_size_of_sessions_and_tasks() -> None:
    found = sessions(40)
    assert found["bytes in Redis, each"] > 0
    assert found["keys in Redis, each"] >= 1
    held = tasks(40, 0.1)
    assert held["Redis"]["kept each, bytes"] > 0
    assert held.keys() == {"alone", "Redis", "SQLite"}


def test_benchmark_counts_the_commands_that_redis_receives() -> None:
    with redis() as store, ThreadPoolExecutor(1) as pool:
        seen, sent = pool.submit(store.times_of, "seen", 0.5), 0
        while not seen.done():
            store.ask("SET", "seen", "1")
            sent += 1
            time.sleep(0.01)
        assert 0 < len(seen.result()) <= sent
        assert store.commands() >= sent
