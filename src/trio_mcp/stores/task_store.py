"""TaskStore is the interface of a store of tasks."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol, TypeAlias

import attrs

from .task_record import TaskRecord

_MARK_BYTES: Final = 8

Position: TypeAlias = tuple[int, str]
"""Place in a list of tasks: the `TaskRecord.place` and the id of a record, which may be gone."""


class StoreFull(Exception):
    """The store, or the scope, is full: see `TaskStore.create`."""


class StoreDown(OSError):
    """The store cannot be used now. The call has changed nothing, and will change nothing."""


class Uncertain(OSError):
    """The store gave no answer. The change that was asked for may have happened, or may happen later."""


@attrs.frozen
class Kept:
    """A record from the store."""

    record: TaskRecord
    now: int
    """The present of the store, in milliseconds since the epoch."""


class Gap:
    """The notice in a stream of hints that hints may have been lost: readers look again."""

    def __repr__(self) -> str:
        return "GAP"


GAP: Final = Gap()

Hint: TypeAlias = "str | Gap"
"""The id of a task that may have changed, or `GAP`."""


def new_mark() -> bytes:
    """Return the mark of the next write: see `TaskRecord.mark`."""
    return secrets.token_bytes(_MARK_BYTES)


class TaskStore(Protocol):
    """Keeps records of tasks. Several running servers, in one process or in many, may use one store at the same time.

    A call ends in one of three ways. The call **returns**, and all of the change is kept, as safely as the store can.
    Or `StoreDown`, an `OSError`, is raised: nothing has changed, and nothing will. Or `Uncertain`, another `OSError`,
    is raised: the change may have happened, or may happen later. `StoreFull`, `ValueError` and any other `OSError` mean
    that nothing has changed. A cancel before the call is sent leaves everything alone; a call that was sent is waited
    for, and the cancel goes on then. Methods that change wait for nothing but the store.

    The store has one clock. Callers give lengths of time in milliseconds, and no times of day: the store fills in
    `TaskRecord.created_at`, ``place``, ``updated_at``, ``expires_at``, ``kept_until`` and ``leased_until``.

    A *holder* is a token for one claim, or for the tasks that one process creates, and is never used again. A *mark* is
    made by `new_mark`: each write puts another one on the record. The caller makes both, so that a read after
    `Uncertain` shows whether the write has happened.
    """

    async def create(
        self, new: TaskRecord, *, lease: int, ttl: int | None, keep: int, most: int, most_of_scope: int
    ) -> TaskRecord:
        """Keep a new record, and return the record with its times. The task expires after ``ttl``, and its record may
        be deleted ``keep`` later; `None`: never. With a ``holder``, the lease is over after ``lease``. The place is
        greater than all places of the scope.

        Raises `StoreFull`, and keeps nothing, where the store has ``most`` records already, or ``most_of_scope`` of the
        record's scope; `ValueError` where a record has the same id, or the id is void."""
        ...

    async def void(self, task_id: str, *, keep: int) -> bool:
        """Delete a record that is not wanted, and return true; where there is none, refuse its creation for
        ``keep``, and return false: a `create` that ended with `Uncertain` may be under way still."""
        ...

    async def read(self, scope: str | None, task_id: str) -> Kept | None:
        """Return the record, and the store's present; `None` where there is none of the scope, for any text. ``scope``
        `None`: of any scope, for the server itself."""
        ...

    async def marks(self, task_ids: Collection[str]) -> Mapping[str, bytes]:
        """Return the marks of the records that are kept, by their ids, in one step: who waits for changes of many
        compares. A cost that does not depend on the size of the records."""
        ...

    async def change(self, record: TaskRecord, *, was: bytes, holder: str | None, give_up: bool = False) -> bool:
        """Keep ``record`` in place of the record before, which has the mark ``was``. ``record`` has a new mark.

        Return false, with nothing changed, where the kept record has another mark or is gone, and, where a ``holder``
        is given, where the task has another holder or none: somebody was first. `None` is for writes of anybody: an
        answer, a cancel, an end from outside.

        The kept holder, epoch and lease stay, and ``record`` has no say in them; except that ``give_up`` gives up the
        lease, and that a task which ends, or becomes external, has no holder."""
        ...

    async def page(self, scope: str, after: Position | None, most: int) -> Sequence[TaskRecord]:
        """Return up to ``most`` records of ``scope`` with a place behind ``after``, in the order of their creation;
        `None`: from the first. Records that may be deleted are left out. A position stays good when its
        record is gone."""
        ...

    async def claim(self, holder: str, *, lease: int, most: int, names: Collection[str]) -> Sequence[TaskRecord]:
        """Give tasks that have not ended, and have no holder or one with a lease that is over, to ``holder``, for
        ``lease``; at most ``most``, the longest waiting first. Only tasks with a `TaskRecord.name` in ``names`` are
        given, and no external ones, which have no holder.

        Return the records as kept now: with the holder, the lease, the next epoch and version, and the bytes of the
        holder as the mark. No task is given to two holders. After `Uncertain`, the tasks are left alone for
        ``lease``."""
        ...

    async def renew(self, held: Mapping[str, str], *, lease: int) -> Collection[str]:
        """Let the leases of tasks last for ``lease`` from now, where the kept holder is still the one that ``held``
        says, by the id. Return the ids of the others: tasks of a successor, given up, ended or gone. Marks and versions
        stay. A lease that is over, and was not claimed, is renewed, too. One step for all, with a cost that does not
        depend on the size of the records."""
        ...

    async def expire(self, *, most: int) -> int:
        """Delete up to ``most`` of the records with a ``kept_until`` that has passed, ended or not, and return their
        number."""
        ...

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[Hint]]:
        """Open a stream of the ids of tasks that are created, changed, claimed or deleted from then on, in any process.

        The ids are hints: one may come late, twice or not at all, so who waits for a change also looks from time to
        time. A reader that is slow loses hints, and holds up nobody; where the store knows that hints were lost, the
        reader gets `GAP` instead. The stream has no end, and raises nothing: a failure of the storage loses hints.
        """
        ...
