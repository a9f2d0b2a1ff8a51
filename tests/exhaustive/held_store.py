"""A `MemoryTaskStore` whose calls wait until the explorer delivers them, with an answer, a failure, or the loss of the
acknowledgement; and the checker's own account of who may write."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from types import coroutine
from typing import Any, Final, cast

import attrs
from tests.exhaustive.explorer import Fault

from trio_mcp.stores.memory import MemoryTaskStore
from trio_mcp.stores.task_store import StoreDown, StoredTask, TaskRecord, Uncertain

__all__ = ["LEASE", "Called", "HeldStore", "at_once"]

LEASE: Final = 1000
"""Milliseconds of a lease."""


@attrs.frozen
class Called:
    """A call that waits for its delivery: a read, or the write of ``record``."""

    record: TaskRecord | None = None
    expected_mark: bytes = b""
    holder: str | None = None
    give_up: bool = False


@coroutine
def _delivered(call: Called) -> Generator[Called, str, str]:
    return (yield call)


def at_once(call: Any) -> Any:
    """Return the result of a coroutine that waits for nothing."""
    try:
        call.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("the call waits")


class HeldStore:
    """The store. Its methods wait; ``inner`` is used directly by events that are one step."""

    def __init__(self) -> None:
        self.inner = MemoryTaskStore()
        self.now = 1
        self.inner._now = cast("Any", lambda: self.now)
        self.owner: str | None = None
        """Holder that the last claim or creation gave the task, until the task is given up or ends."""
        self.leased_until = 0
        self.mark = b""
        """Mark of the last write that was kept."""
        self.end: tuple[Any, ...] | None = None
        """How the task has ended."""
        self.late: tuple[Called, ...] = ()
        """Writes that may still happen."""
        self.started: frozenset[int] = frozenset()
        """Attempts that have begun, without those that were given up in good order."""

    @property
    def record(self) -> TaskRecord | None:
        kept = at_once(self.inner.read(None, "task"))
        return None if kept is None else kept.record

    async def read(self, scope: str | None, task_id: str) -> StoredTask | None:
        if await _delivered(Called()) != "answers":
            raise StoreDown("the store is down")
        return await self.inner.read(scope, task_id)

    async def change(
        self, record: TaskRecord, *, expected_mark: bytes, holder: str | None, give_up: bool = False
    ) -> bool:
        call = Called(record, expected_mark, holder, give_up)
        match await _delivered(call):
            case "answers":
                return self.write(call)
            case "fails":
                raise StoreDown("the store is down")
            case "loses the answer":
                self.write(call)
            case "is late":
                self.late = (*self.late, call)
            case _:
                pass  # the write is lost
        raise Uncertain("the store gave no answer")

    def write(self, call: Called) -> bool:
        """Carry out a write, and check whether it may be kept."""
        before = self.record
        assert call.record is not None
        done = at_once(
            self.inner.change(call.record, expected_mark=call.expected_mark, holder=call.holder, give_up=call.give_up)
        )
        after = self.record
        if not done:
            if before != after:
                raise Fault("a refused write changes the record")
            return False
        assert after is not None
        assert before is not None
        if self.end is not None:
            raise Fault("the task ends twice, or changes after its end")
        if call.holder is not None and call.holder != self.owner:
            raise Fault("the task is written by a holder that lost it")
        if call.expected_mark != self.mark:
            raise Fault("a write replaces a record that its writer has not seen")
        self.mark = after.mark
        if after.phase.is_final:
            self.end = (after.phase, after.outcome, after.cancel_reason)
        if after.phase.is_final or call.give_up:
            self.owner, self.leased_until = None, 0
        if call.give_up and after.attempt < before.attempt:
            self.started -= {before.attempt}
        if after.holder != self.owner:
            raise Fault(f"the holder is {after.holder}, and should be {self.owner}")
        return True

    def claim(self, holder: str, names: tuple[str, ...]) -> TaskRecord | None:
        """Claim the task, where that is possible."""
        claimed = at_once(self.inner.claim(holder, lease_ms=LEASE, limit=10, names=names))
        if not claimed:
            return None
        if self.owner is not None and self.leased_until >= self.now:
            raise Fault("a task is claimed while its holder has the lease")
        if self.end is not None:
            raise Fault("a task that has ended is claimed")
        self.own(holder)
        self.mark = claimed[0].mark
        return claimed[0]

    def renew(self, held: Mapping[str, str]) -> bool:
        """Renew a lease, and return whether it is still that of the holder."""
        kept = not at_once(self.inner.renew(held, lease_ms=LEASE))
        if kept != (held["task"] == self.owner):
            raise Fault("a lease is renewed for a holder that lost it, or refused to its holder")
        if kept:
            self.leased_until = self.now + LEASE
        return kept

    def own(self, holder: str) -> None:
        self.owner, self.leased_until = holder, self.now + LEASE
