"""TestedStorage opens the store under test; the rest of the module is used by all groups of tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeVar

import attrs
import trio

from ...stores.task_store import Kept, Outcome, TaskPhase, TaskRecord, TaskStore, new_mark

HOUR: Final = 3_600_000
"""Milliseconds that do not pass in a test."""

T = TypeVar("T")


class TestedStorage:
    """The storage under test: empty when a test begins."""

    def open_store(self) -> AbstractAsyncContextManager[TaskStore]:
        """Open a store; each store that one test opens keeps its records in the same storage."""
        raise NotImplementedError("the test class that inherits the suite defines open_store()")


def record(task_id: str, **changes: Any) -> TaskRecord:
    """Return a new record, as a caller of `TaskStore.create` makes it, that is as usual but for ``changes``."""
    usual = TaskRecord(
        id=task_id,
        scope="ann",
        method="tools/call",
        name="report",
        params=b'{"name":"report"}',
        revision="2025-11-25",
        capabilities=b"{}",
        poll_ms=1000,
        mark=new_mark(),
    )
    return attrs.evolve(usual, **changes)


async def create(
    store: TaskStore,
    new: TaskRecord,
    *,
    lease: int = HOUR,
    ttl: int | None = HOUR,
    keep: int = HOUR,
    most: int = 1_000_000,
    most_of_scope: int = 1_000_000,
) -> TaskRecord:
    """Create a record, by default without a bound that matters."""
    return await store.create(new, lease=lease, ttl=ttl, keep=keep, most=most, most_of_scope=most_of_scope)


def next_of(record: TaskRecord, **changes: Any) -> TaskRecord:
    """Return the next version of ``record``, under another mark."""
    return attrs.evolve(record, version=record.version + 1, mark=new_mark(), **changes)


def ended(record: TaskRecord) -> TaskRecord:
    """Return the next version, in which the task has ended."""
    return next_of(record, phase=TaskPhase.ENDED, outcome=Outcome(b"{}"), holder=None, leased_until=0)


async def change(
    store: TaskStore, record: TaskRecord, *, holder: str | None = None, give_up: bool = False, **changes: Any
) -> TaskRecord | None:
    """Change ``record`` as it is kept, by ``holder`` or by anybody. Return the next one; `None` where the store
    refuses."""
    following = next_of(record, **changes)
    is_kept = await store.change(following, was=record.mark, holder=holder, give_up=give_up)
    return following if is_kept else None


async def claim(
    store: TaskStore, holder: str, *, lease: int = HOUR, most: int = 1000, names: Collection[str] = ("report",)
) -> dict[str, TaskRecord]:
    """Claim tasks for ``holder``, and return their records by the ids."""
    return {each.id: each for each in await store.claim(holder, lease=lease, most=most, names=names)}


async def found(store: TaskStore, task_id: str) -> Kept:
    """Return the record as it is kept, and the store's present."""
    found = await store.read(None, task_id)
    assert found is not None, f"{task_id} is not kept"
    return found


async def kept(store: TaskStore, task_id: str) -> TaskRecord:
    """Return the record as it is kept."""
    return (await found(store, task_id)).record


async def over(store: TaskStore, record: TaskRecord, moment: int) -> None:
    """Wait until a ``moment`` is over, by the clock of the store, which keeps ``record``."""
    while (await found(store, record.id)).now <= moment:  # noqa: ASYNC110 - the clock is of the store
        await trio.sleep(0.001)


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
