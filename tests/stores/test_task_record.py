"""Computed properties of a task record."""

from __future__ import annotations

import pytest

from trio_mcp.stores.task_store import Outcome, TaskPhase
from trio_mcp.testing.stores.task_store_records import record


def test_task_record_size_is_the_sum_of_the_lengths_of_its_json_fields():
    empty = record("one", params=b"", capabilities=b"")
    assert empty.size == 0
    whole = record(
        "one",
        params=b"1",
        capabilities=b"22",
        questions={"a": b"4444", "b": b""},
        answers={"c": b"88888888"},
        outcome=Outcome(b"x" * 16),
        checkpoint=b"x" * 32,
    )
    assert whole.size == 63


def test_task_ttl_is_counted_from_the_creation_of_the_task():
    assert record("one", created_at=7, expires_at=12).ttl_ms == 5
    assert record("one", expires_at=None).ttl_ms is None


@pytest.mark.parametrize("phase", TaskPhase)
def test_only_the_task_phases_ended_and_cancelled_are_final(phase: TaskPhase):
    assert phase.is_final == (phase in (TaskPhase.ENDED, TaskPhase.CANCELLED))
