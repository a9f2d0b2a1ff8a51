"""TaskStore is the interface of a store of tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import attrs

from .task_record import TaskRecord

__all__ = ["Claim", "StoreFull", "TaskStore"]


class StoreFull(Exception):
    """The store, or the scope, is full: see `TaskStore.create`."""


@attrs.frozen
class Claim:
    """A takeover of tasks by an owner, until a time: see `TaskStore.claim`."""

    owner: str
    now: int
    """The present, in milliseconds since the epoch."""
    leased_until: int
    most: int
    """Number of tasks that the owner has room for."""


class TaskStore(Protocol):
    """Keeps records of tasks. Several running servers, in one process or in many, may use one store at the same time.

    Every method is atomic, under cancellation too: either the method raises and nothing has changed, or returns and all
    of the change is kept, as safely as the store can. Methods that change wait for nothing but the store. Times are
    milliseconds since the epoch, given by the caller: a store has no clock. Any method may raise `OSError` when the
    storage fails.
    """

    async def create(self, record: TaskRecord, *, most: int, most_of_scope: int) -> None:
        """Keep a new record. Raises `StoreFull`, and keeps nothing, where the store has ``most`` records already, or
        ``most_of_scope`` of the record's scope; `ValueError` where a record has the same id."""
        ...

    async def read(self, scope: str | None, task_id: str) -> TaskRecord | None:
        """Return the record; `None` where there is none of the scope, for any text. ``scope`` `None`: of any scope, for
        the server itself."""
        ...

    async def change(self, record: TaskRecord) -> bool:
        """Keep ``record`` in place of the record before, the version of which is one less.

        Return false, with nothing changed, where the kept record has another version or another epoch, or is gone:
        somebody was first. The kept ``leased_until`` stays, since `renew` alone changes it, except where ``record`` has
        no owner, which gives up the lease.
        """
        ...

    async def page(self, scope: str, after: str | None, most: int) -> Sequence[TaskRecord]:
        """Return up to ``most`` records of ``scope`` that were created after the task with the id ``after``, oldest
        first; tasks of the same moment in the order of their ids. `None`: from the first. Raises `KeyError` where
        ``after`` is no task of the scope (any more)."""
        ...

    async def claim(self, claim: Claim) -> Sequence[TaskRecord]:
        """Give tasks that have not ended, and have no owner or one with a lease that is over, to ``claim.owner``.
        External tasks have no owner, and are left alone.

        Return the records as kept now: with that owner, its lease, and the next epoch and version. No task is given to
        two owners."""
        ...

    async def renew(self, owner: str, task_ids: Collection[str], leased_until: int) -> set[str]:
        """Set the end of the lease of each task that ``owner`` still has, and return the ids of the others: tasks of a
        successor, released, ended or gone. Versions stay."""
        ...

    async def expire(self, now: int) -> int:
        """Delete the records with a ``kept_until`` before ``now``, ended or not, and return their number."""
        ...

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[str]]:
        """Open a stream of the ids of tasks that are created, changed, claimed or deleted from then on, in any process.

        The ids are hints: one may come late, twice or not at all, so who waits for a change also looks from time to
        time. A reader that is slow loses hints, and holds up nobody. The stream has no end, and raises nothing: a
        failure of the storage loses hints.
        """
        ...
