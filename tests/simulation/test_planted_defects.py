"""Defects that are planted in what replicas do are found by the simulation."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from tests.simulation.chaos import simulate

from trio_mcp.fleet import messenger as letters
from trio_mcp.fleet.change_replicator import ChangeReplicator
from trio_mcp.fleet.retry_forwarder import RetryForwarder
from trio_mcp.fleet.storage.memory import MemoryEventLog, _MemoryCourier
from trio_mcp.stores.memory import MemoryTaskStore
from trio_mcp.stores.shared import ChangeHint

EACH = 20_000
MOST_SEEDS = 60
"""Simulations within which a planted defect is found. Each begins with a seed of its own, by which it is found soon."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Log nothing of a storage that fails at each turn."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def found(first: int) -> str:
    """Simulate with one seed after another, from the ``first`` on, until a fault is found, and return it."""
    for seed in range(first, first + MOST_SEEDS):
        try:
            faults = simulate(seed, EACH).faults
        except Exception as crash:  # a defect may end a replica
            return repr(crash)
        if faults:
            return faults[0]
    raise AssertionError("the defect was not found")


def test_simulation_detects_that_a_replica_handles_a_message_of_another_replica_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(letters, "_KNOWN_MESSAGES_LIMIT", 0)
    assert found(1)


def test_simulation_detects_a_store_that_accepts_writes_of_former_lease_holders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    change = MemoryTaskStore.change

    async def change_for_anybody(
        self: MemoryTaskStore, record: Any, *, expected_mark: bytes, holder: Any, give_up: bool = False
    ) -> bool:
        kept = self._records.get(record.id)
        mark = expected_mark if kept is None else kept.mark
        return await change(self, record, expected_mark=mark, holder=None, give_up=give_up)

    async def renew_for_anybody(*_: Any, **__: Any) -> tuple[str, ...]:
        return ()

    monkeypatch.setattr(MemoryTaskStore, "change", change_for_anybody)
    monkeypatch.setattr(MemoryTaskStore, "renew", renew_for_anybody)
    assert " was written by " in found(21)


def test_simulation_detects_a_cancel_that_is_not_forwarded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def keep_silent(*_: Any) -> None: ...

    monkeypatch.setattr(RetryForwarder, "_cancel", keep_silent)
    monkeypatch.setattr(RetryForwarder, "_check_with", keep_silent)
    assert "was left, and runs on" in found(1)


def test_simulation_detects_a_replica_that_ignores_the_death_of_another_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nobody(*_: Any) -> frozenset[str]:
        return frozenset()

    monkeypatch.setattr(_MemoryCourier, "find_dead", nobody)
    assert "did not end" in found(11)


def test_simulation_detects_that_a_replica_never_reads_changes_whose_notification_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hinted = ChangeReplicator._on_hint

    def believe(self: ChangeReplicator, hint: ChangeHint | None) -> None:
        if hint is not None:
            hinted(self, ChangeHint(self.cursor, hint.cursor, hint.changed))

    async def look_never(_: ChangeReplicator) -> None: ...

    monkeypatch.setattr(ChangeReplicator, "_on_hint", believe)
    monkeypatch.setattr(ChangeReplicator, "_poll", look_never)
    assert "was not told of a change" in found(8)


def test_simulation_detects_an_event_log_that_loses_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    append, turns = MemoryEventLog.append, iter(range(10**9))

    async def lose(self: MemoryEventLog, *args: Any, lines: Any, first: int, **options: Any) -> bool:
        if next(turns) % 40 == 39 and len(lines) == 1:
            return True
        return await append(self, *args, lines=lines, first=first, **options)

    monkeypatch.setattr(MemoryEventLog, "append", lose)
    assert found(3)
