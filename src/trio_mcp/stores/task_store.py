"""TaskStore is the interface of a store of tasks, and TaskRecord is all that a store keeps of a task.

By the record, another process can tell the end of the task, or run the task again. `HintQueues` tell readers in this
process which tasks have changed, as far as there is room for the hints.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from functools import wraps
from types import MappingProxyType
from typing import Any, Concatenate, Final, Generic, Literal, ParamSpec, Protocol, TypeAlias, TypeVar

import attrs
import trio

from ..classes import frozen
from ..concurrency.contexts import contextmanager
from ..concurrency.threads import TrioRun, current_run
from ..concurrency.wakeups import Sleeper

logger = logging.getLogger("trio_mcp")

P = ParamSpec("P")
T = TypeVar("T")

OnRestart: TypeAlias = Literal["fail", "again", "resume"]
"""Fate of a task after the death of its process: the task fails, runs again from the top, or runs again and is
given its last checkpoint."""

_NOTHING: Final[Mapping[str, bytes]] = MappingProxyType({})
_NO_QUESTIONS: Final[Mapping[str, Sequence[str]]] = MappingProxyType({})


class TaskPhase(StrEnum):
    """The phases in the life of a task. Each protocol has its own words for the phase and the outcome together."""

    WORKING = "working"
    INPUT_REQUIRED = "input_required"
    """At least one question has no answer yet. The handler may work on meanwhile."""
    ENDED = "ended"
    """The task has an outcome: a result, `isError` or not, or an error."""
    CANCELLED = "cancelled"
    """The task was cancelled, and stays so; the end of its handler changes nothing."""

    @property
    def is_final(self) -> bool:
        """True when no other phase follows."""
        return self is TaskPhase.ENDED or self is TaskPhase.CANCELLED


@frozen
class Outcome:
    """The end of the request that a task runs, as JSON text: a result, or the error object of JSON-RPC."""

    json: bytes
    """The result, or the error object."""
    is_error: bool = False
    """True for an error of JSON-RPC."""
    tells_failure: bool = False
    """True for the result of a tool with ``isError``."""


@frozen(kw_only=True, weakref_slot=False)
class TaskRecord:
    """The state of one task. Values are JSON text that was checked on arrival; times are milliseconds since the
    epoch, by the clock of the store.

    A record is never changed: `attrs.evolve` makes the next one, with the next ``version`` and another ``mark``.
    """

    id: str
    """Unguessable, since without a principal the id alone gives access (2025-11-25 tasks, Task Isolation)."""
    scope: str
    """Principal that the task belongs to, as JSON text of issuer and subject; empty where the transport knows no
    principal."""
    method: str
    """Method of the request that the task runs."""
    name: str
    """Name of the tool."""
    params: bytes
    """Parameters of the request, ``_meta`` included. Empty at the end, as are ``capabilities`` and ``answers``."""
    revision: str
    """Protocol revision of the request; its result is in the terms of that revision."""
    capabilities: bytes
    """Capabilities that the client declared for the request."""
    on_restart: OnRestart = "fail"
    """Fate of the task after the death of its process."""
    is_external: bool = False
    """True where the work is done elsewhere, and its outcome is stored from outside: nobody runs or claims the task."""
    created_at: int = 0
    """Time of the creation, as the store has filled in, like the times that follow."""
    position: int = 0
    """Place in the lists of the scope, which the store fills in: the later a task was created, the greater."""
    updated_at: int = 0
    """Time of the last change of the phase or the message."""
    expires_at: int | None = None
    """Time at which a task that has not ended fails; `None`: never."""
    kept_until: int | None = None
    """Time after which the record may be deleted; `None`: never."""
    poll_ms: int
    """Milliseconds that a client is advised to wait between two looks."""
    phase: TaskPhase = TaskPhase.WORKING
    """Phase of the task."""
    message: str | None = None
    """Text for people on the present phase."""
    questions: Mapping[str, bytes] = _NOTHING
    """Questions without an answer, by their keys, in the order of asking."""
    answers: Mapping[str, bytes] = _NOTHING
    """Answers so far, by the keys of their questions. No key is used twice."""
    outcome: Outcome | None = None
    """The outcome; `None` in all phases but `TaskPhase.ENDED`."""
    checkpoint: bytes | None = None
    """Last value that the handler gave to `checkpoint`."""
    cancel_reason: str | None = None
    """Reason that the cancelling party gave."""
    attempt: int = 1
    """Number of runs so far, without the runs that were given up in good order."""
    holder: str | None = None
    """Token of the claim by which a process runs the task, ``<process>:<random>``, which no other claim ever has;
    `None`: no process runs the task, and any may claim the task."""
    epoch: int = 0
    """Number of the claims so far, for people and for logs. The number decides nothing."""
    leased_until: int = 0
    """Time after which the holder is taken for dead; 0 without a holder."""
    version: int = 0
    """Number of the changes so far. The number decides nothing: after a loss, equal numbers may stand for different
    contents."""
    mark: bytes = b""
    """Random bytes that each write puts on the record: equal marks stand for equal records."""
    asked: Mapping[str, Sequence[str]] = _NO_QUESTIONS
    """The questions that a further run may come to, in the order of asking: all that were asked since the start or,
    for a task that resumes, since the checkpoint. By the key of each, the keys of the earlier ones that were asked
    beside; a question that is neither in ``questions`` nor in ``answers`` was given up."""
    continuation: bytes | None = None
    """Answers and state with which the client came back before the task began, for a handler that returns its
    questions: an array of the two."""

    @property
    def size(self) -> int:
        """Number of bytes of all JSON text in the record."""
        texts = (self.params, self.capabilities, self.checkpoint or b"", self.continuation or b"")
        outcome = self.outcome.json if self.outcome else b""
        return sum(map(len, (*texts, *self.questions.values(), *self.answers.values(), outcome)))

    @property
    def is_open(self) -> bool:
        """True for a task that some process has to run to its end."""
        return not (self.phase.is_final or self.is_external)

    @property
    def ttl_ms(self) -> int | None:
        """Milliseconds from the creation until the task expires; `None`: never."""
        return None if self.expires_at is None else self.expires_at - self.created_at


_MARK_BYTES: Final = 8

TaskCursor: TypeAlias = tuple[int, str]
"""Place in a list of tasks: the `TaskRecord.position` and the id of a record, which may be gone."""


class StoreFull(Exception):
    """The store, or the scope, is full: see `TaskStore.create`."""


class StoreDown(OSError):
    """The store cannot be used now. The call has changed nothing, and will change nothing."""


class Uncertain(OSError):
    """The store gave no answer. The change that was asked for may have happened, or may happen later."""


class UnreadableRecord(OSError):
    """The record is there and cannot be read: another version wrote the record, or sealed by a secret that is not among
    the secrets, or somebody has changed the bytes since."""


class UnknownForm(UnreadableRecord):
    """The record has a form that this process does not know, and other processes may read it: that of another version,
    or of another secret."""


@frozen
class StoredTask:
    """A record from the store."""

    record: TaskRecord
    """The record as kept."""
    now: int
    """The present of the store, in milliseconds since the epoch."""


class HintsLost:
    """The notice in a stream of hints that hints may have been lost: readers look again."""

    def __repr__(self) -> str:
        return "GAP"


HINTS_LOST: Final = HintsLost()
"""The notice in a stream of hints that hints may have been lost."""

Hint: TypeAlias = "str | HintsLost"
"""The id of a task that may have changed, or `HINTS_LOST`."""


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
    `TaskRecord.created_at`, ``position``, ``updated_at``, ``expires_at``, ``kept_until`` and ``leased_until``.

    A *holder* is a token for one claim, or for the tasks that one process creates, and is never used again. A *mark* is
    made by `new_mark`: each write puts another one on the record. The caller makes both, so that a read after
    `Uncertain` shows whether the write has happened.
    """

    async def create(
        self, new: TaskRecord, *, lease_ms: int, ttl_ms: int | None, retention_ms: int, limit: int, scope_limit: int
    ) -> TaskRecord:
        """Keep a new record, and return the record with its times. The task expires after ``ttl_ms``, and its record
        may be deleted ``retention_ms`` later; `None`: never. With a ``holder``, the lease is over after ``lease_ms``.
        The place is greater than all places of the scope.

        Raises `StoreFull`, and keeps nothing, where the store has ``limit`` records already, or ``scope_limit`` of the
        record's scope; `ValueError` where a record has the same id, or the id is void."""
        ...

    async def discard(self, task_id: str, *, retention_ms: int) -> bool:
        """Delete a record that is not wanted, and return true; where there is none, refuse its creation for
        ``retention_ms``, and return false: a `create` that ended with `Uncertain` may be under way still."""
        ...

    async def read(self, scope: str | None, task_id: str) -> StoredTask | None:
        """Return the record, and the store's present; `None` where there is none of the scope, for any text. ``scope``
        `None`: of any scope, for the server itself."""
        ...

    async def marks(self, task_ids: Collection[str]) -> Mapping[str, bytes]:
        """Return the marks of the records that are kept, by their ids, in one step: who waits for changes of many
        compares. A cost that does not depend on the size of the records."""
        ...

    async def change(
        self, record: TaskRecord, *, expected_mark: bytes, holder: str | None, give_up: bool = False
    ) -> bool:
        """Keep ``record`` in place of the record before, which has the mark ``expected_mark``. ``record`` has a new
        mark.

        Return false, with nothing changed, where the kept record has another mark or is gone, and, where a ``holder``
        is given, where the task has another holder or none: somebody was first. `None` is for writes of anybody: an
        answer, a cancel, an end from outside.

        The kept holder, epoch and lease stay, and ``record`` has no say in them; except that ``give_up`` gives up the
        lease, and that a task which ends, or becomes external, has no holder."""
        ...

    async def page(self, scope: str, cursor: TaskCursor | None, limit: int) -> Sequence[TaskRecord]:
        """Return up to ``limit`` records of ``scope`` with a place behind ``cursor``, in the order of their creation;
        `None`: from the first. Records that may be deleted are left out. A position stays good when its
        record is gone."""
        ...

    async def claim(self, holder: str, *, lease_ms: int, limit: int, names: Collection[str]) -> Sequence[TaskRecord]:
        """Give tasks that have not ended, and have no holder or one with a lease that is over, to ``holder``, for
        ``lease_ms``; at most ``limit``, the longest waiting first. Only tasks with a `TaskRecord.name` in ``names`` are
        given, and no external ones, which have no holder.

        Return the records as kept now: with the holder, the lease, the next epoch and version, and the bytes of the
        holder as the mark. No task is given to two holders. After `Uncertain`, the tasks are left alone for
        ``lease_ms``."""
        ...

    async def renew(self, held: Mapping[str, str], *, lease_ms: int) -> Collection[str]:
        """Let the leases of tasks last for ``lease_ms`` from now, where the kept holder is still the one that ``held``
        says, by the id. Return the ids of the others: tasks of a successor, given up, ended or gone. Marks and versions
        stay. A lease that is over, and was not claimed, is renewed, too. One step for all, with a cost that does not
        depend on the size of the records."""
        ...

    async def expire(self, *, limit: int) -> int:
        """Delete up to ``limit`` of the records with a ``kept_until`` that has passed, ended or not, and return their
        number."""
        ...

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[Hint]]:
        """Open a stream of the ids of tasks that are created, changed, claimed or deleted from then on, in any process.

        The ids are hints: one may come late, twice or not at all, so who waits for a change also looks from time to
        time. A reader that is slow loses hints, and holds up nobody; where the store knows that hints were lost, the
        reader gets `HINTS_LOST` instead. The stream has no end, and raises nothing: a failure of the storage loses
        hints.
        """
        ...


_HINTS_LIMIT: Final = 1000


class HintQueue(AsyncIterator[T | HintsLost]):
    """A stream of hints for one reader. Hints for which there is no room are lost, and a gap is told in their place."""

    def __init__(self) -> None:
        self._queue = deque[T | HintsLost]()
        self._sleeper = Sleeper()

    def put(self, hint: T | HintsLost) -> None:
        """Add a hint. Never waits."""
        if len(self._queue) < _HINTS_LIMIT:
            self._queue.append(hint)
        elif self._queue[-1] is not HINTS_LOST:
            self._queue.append(HINTS_LOST)
        self._sleeper.wake()

    def get_nowait(self) -> T | HintsLost | None:
        """Return the next hint; `None` where there is none."""
        return self._queue.popleft() if self._queue else None

    async def __anext__(self) -> T | HintsLost:
        if self._queue:
            await trio.lowlevel.checkpoint()
        while not self._queue:
            await self._sleeper.sleep()
        return self._queue.popleft()


class HintQueues(Generic[T]):
    """The streams of hints in this process, each to one who watches the store."""

    def __init__(self) -> None:
        self._queues: dict[HintQueue[T], TrioRun | None] = {}
        """The trio run of each stream; `None` if it was opened outside of trio."""

    @contextmanager
    def watch(self) -> Generator[HintQueue[T]]:
        """Open a stream of the hints of `notify`, from now on."""
        hints = HintQueue[T]()
        self._queues[hints] = current_run() if trio.lowlevel.in_trio_run() else None
        try:
            yield hints
        finally:
            del self._queues[hints]

    def notify(self, changed: Iterable[T | HintsLost]) -> None:
        """Notify all watchers of changes. Never waits. May be called from any thread."""
        for hint in changed:
            for hints, run in tuple(self._queues.items()):
                if run is None:
                    hints.put(hint)
                else:
                    run.call_soon(hints.put, hint)


_FAILURE_MEMORY: Final = 30.0
"""Seconds after which a failed method is forgotten that is not called again."""


def created_record(
    new: TaskRecord, now: int, last_position: int, *, lease_ms: int, ttl_ms: int | None, retention_ms: int
) -> TaskRecord:
    """Return ``new`` as a store keeps the record from ``now`` on, behind the ``last_position`` place of its scope."""
    expires = None if ttl_ms is None else now + ttl_ms
    return attrs.evolve(
        new,
        created_at=now,
        position=max(now * 1000, last_position + 1),
        updated_at=now,
        expires_at=expires,
        kept_until=None if expires is None else expires + retention_ms,
        leased_until=0 if new.holder is None else now + lease_ms,
    )


def _logged(
    method: Callable[Concatenate[Any, P], Awaitable[T]], kind: str
) -> Callable[Concatenate[LoggedStore, P], Awaitable[T]]:
    """Return the ``method`` of `TaskStore` as `LoggedStore` has it; ``kind``: the work that a failure stops."""
    name = method.__name__

    @wraps(method)
    async def call(self: LoggedStore, *args: P.args, **options: P.kwargs) -> T:
        try:
            result = await getattr(self.store, name)(*args, **options)
        except (StoreFull, ValueError, UnreadableRecord):
            raise  # about one record
        except Exception as error:
            self.log_failure(name, kind, error)
            raise
        if self.failing_methods:
            self.log_success(name)
        return result

    return call


class LoggedStore:
    """The ``store``, as one process sees the store. All errors are raised; an outage is one line in the log, for any
    number of calls, and its end is another one. Each method counts by itself, since a full disk can be read; a method
    that has not been called for a while is forgotten."""

    def __init__(self, store: TaskStore) -> None:
        self.store = store
        self.failing_methods: dict[str, float] = {}
        """The methods that have failed last, and when."""

    def log_failure(self, method: str, kind: str, error: Exception) -> None:
        """Note that ``method`` has failed just now."""
        if not self.failing_methods:
            words = "the store of tasks cannot be %s; what waits for it is tried again"
            if isinstance(error, (StoreDown, Uncertain)):  # an outage, in words of the store
                logger.error(f"{words}: %s", kind, error.strerror or error)
            else:
                logger.error(words, kind, exc_info=error)
        self.failing_methods[method] = trio.current_time()

    def log_success(self, method: str) -> None:
        """Note that ``method`` works again."""
        self.failing_methods.pop(method, None)
        long_ago = trio.current_time() - _FAILURE_MEMORY
        self.failing_methods = {each: when for each, when in self.failing_methods.items() if when > long_ago}
        if not self.failing_methods:
            logger.warning("the store of tasks works again")

    create = _logged(TaskStore.create, "written")
    discard = _logged(TaskStore.discard, "written")
    read = _logged(TaskStore.read, "read")
    marks = _logged(TaskStore.marks, "read")
    change = _logged(TaskStore.change, "written")
    page = _logged(TaskStore.page, "read")
    claim = _logged(TaskStore.claim, "written")
    renew = _logged(TaskStore.renew, "written")
    expire = _logged(TaskStore.expire, "written")

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[Hint]]:
        """See `TaskStore.watch`."""
        return self.store.watch()
