"""TestedStorage opens the store under test; the rest of the module is used by all groups of tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeVar

import attrs
import trio

from ...stores.task_record import Outcome, TaskPhase, TaskRecord
from ...stores.task_store import Claim, TaskStore

__all__ = ["NOW", "TestedStorage", "claim_of", "create", "ended", "expect_error", "interrupt", "next_of", "record"]

NOW: Final = 1_800_000_000_000
"""Milliseconds since the epoch."""

T = TypeVar("T")


class TestedStorage:
    """The storage under test: empty when a test begins."""

    def open_store(self) -> AbstractAsyncContextManager[TaskStore]:
        """Open a store; each store that one test opens keeps its records in the same storage."""
        raise NotImplementedError("the test class that inherits the suite defines open_store()")


def record(task_id: str, **changes: Any) -> TaskRecord:
    """Return a record that is as usual but for ``changes``."""
    usual = TaskRecord(
        id=task_id,
        scope="ann",
        method="tools/call",
        name="report",
        params=b'{"name":"report"}',
        revision="2025-11-25",
        capabilities=b"{}",
        created_at=NOW,
        updated_at=NOW,
        expires_at=NOW + 60_000,
        kept_until=NOW + 120_000,
        poll_ms=1000,
    )
    return attrs.evolve(usual, **changes)


def next_of(record: TaskRecord, **changes: Any) -> TaskRecord:
    """Return the next version of ``record``."""
    return attrs.evolve(record, version=record.version + 1, **changes)


def ended(record: TaskRecord) -> TaskRecord:
    """Return the next version, in which the task has ended."""
    return next_of(record, phase=TaskPhase.ENDED, outcome=Outcome(b"{}"), owner=None, leased_until=0)


def claim_of(owner: str, *, now: int = NOW, lease: int = 1000, most: int = 1000) -> Claim:
    """Return the claim of ``owner``, with a lease of ``lease`` milliseconds from ``now``."""
    return Claim(owner=owner, now=now, leased_until=now + lease, most=most)


async def create(store: TaskStore, *records: TaskRecord) -> None:
    """Create records, without a bound that matters."""
    for each in records:
        await store.create(each, most=1_000_000, most_of_scope=1_000_000)


async def expect_error(error: type[Exception], call: Awaitable[object]) -> None:
    """Fail unless ``call`` raises ``error``."""
    try:
        result = await call
    except error:
        return
    raise AssertionError(f"{error.__name__} was expected, and {result!r} came")


async def interrupt(step: int, call: Callable[..., Awaitable[T]], *args: Any) -> tuple[bool, list[T]]:
    """Await ``call`` with ``args``, and cancel when the task waits for the ``step``-th time. Return whether the task
    waited that often, and the result, if there was one."""

    class Cancelling(trio.abc.Instrument):
        left = step

        def after_task_step(self, task: trio.lowlevel.Task) -> None:
            self.left -= task is caller
            if self.left == 0:
                scope.cancel(reason="the test")

    caller, cancelling, results = trio.lowlevel.current_task(), Cancelling(), list[T]()
    with trio.CancelScope() as scope:
        trio.lowlevel.add_instrument(cancelling)
        try:
            results.append(await call(*args))
        finally:
            trio.lowlevel.remove_instrument(cancelling)
    return scope.cancel_called, results
