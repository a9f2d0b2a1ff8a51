"""`TaskStore`: the interface of a task store. `TaskRecord`: everything that a store knows about a task.

With the record, another process can report the end of the task, or run it again. `HintQueues` notify readers in this
process of changed tasks, within a limit.
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
"""What happens to a task after its process has died: it fails, it runs again from the beginning, or it runs again and
gets its last checkpoint."""

_NOTHING: Final[Mapping[str, bytes]] = MappingProxyType({})
_NO_QUESTIONS: Final[Mapping[str, Sequence[str]]] = MappingProxyType({})


class TaskPhase(StrEnum):
    """The phases of a background task.

    A combination of phase and outcome has other names in MCP 2025-11-25 and in the tasks extension.
    """

    WORKING = "working"
    """The task is running, and has no unanswered input request."""
    INPUT_REQUIRED = "input_required"
    """The task has an unanswered input request. Its handler may continue working in the meantime."""
    ENDED = "ended"
    """The task has an outcome: a result, with or without `isError`, or an error."""
    CANCELLED = "cancelled"
    """The task was cancelled. This is final: when its handler ends later, nothing changes."""

    @property
    def is_final(self) -> bool:
        """True if the task has ended or was cancelled, so that its phase can't change any more."""
        return self is TaskPhase.ENDED or self is TaskPhase.CANCELLED


@frozen
class Outcome:
    """The outcome of a task, as JSON text: the result of its request, or a JSON-RPC error object."""

    json: bytes
    """The JSON text of the result, or of the error object."""
    is_error: bool = False
    """True if the outcome is a JSON-RPC error."""
    tells_failure: bool = False
    """True if the outcome is a tool result with ``isError``."""


@frozen(kw_only=True, weakref_slot=False)
class TaskRecord:
    """The stored state of one background task.

    JSON text in it was validated when it arrived. Times are in milliseconds since the epoch, on the store's clock.

    Records are immutable: `attrs.evolve` creates the next one, with the next ``version`` and a new ``mark``.
    """

    id: str
    """The task's id. It cannot be guessed, because without authentication the id alone gives access (2025-11-25 tasks,
    Task Isolation)."""
    scope: str
    """The principal that the task belongs to, as JSON text of issuer and subject. Empty without authentication."""
    method: str
    """Method of the request that became the task."""
    name: str
    """Name of the tool that the task runs."""
    params: bytes
    """Parameters of the request, including ``_meta``. Like ``capabilities`` and ``answers``, they are deleted when the
    task ends."""
    revision: str
    """Protocol revision of the request, which determines the form of the result."""
    capabilities: bytes
    """Capabilities that the client declared for the request."""
    on_restart: OnRestart = "fail"
    """What happens to the task after its process has died."""
    is_external: bool = False
    """True if other code than the task's handler does the work and stores the outcome. No process runs or claims such a
    task."""
    created_at: int = 0
    """Time of creation. The store sets this time and the times that follow."""
    position: int = 0
    """Position in the list of the scope's tasks, set by the store. Tasks created later have greater positions."""
    updated_at: int = 0
    """Time of the last change of the task's phase or message."""
    expires_at: int | None = None
    """Time at which the task fails unless it has ended. `None` for no limit."""
    kept_until: int | None = None
    """Time after which the record may be deleted. `None` for no limit."""
    poll_ms: int
    """Recommended milliseconds between two polls by a client."""
    phase: TaskPhase = TaskPhase.WORKING
    """Phase of the task."""
    message: str | None = None
    """Text for users that describes the current phase."""
    questions: Mapping[str, bytes] = _NOTHING
    """The unanswered input requests, by key, in the order in which the handler made them."""
    answers: Mapping[str, bytes] = _NOTHING
    """The client's answers so far, by the keys of the input requests. Keys are never reused."""
    outcome: Outcome | None = None
    """The outcome of the task. `None` except in the phase `TaskPhase.ENDED`."""
    checkpoint: bytes | None = None
    """Last value that the handler passed to `checkpoint`."""
    cancel_reason: str | None = None
    """The reason that was given for the cancellation."""
    attempt: int = 1
    """Number of runs so far, not counting runs that a graceful shutdown ended."""
    holder: str | None = None
    """Token of the claim under which a process runs the task, ``<process>:<random>``, unique to the claim. `None` if no
    process runs the task, so that any process may claim it."""
    epoch: int = 0
    """Number of claims so far, for people and logs. No code depends on it."""
    leased_until: int = 0
    """Time after which the holder is considered dead. 0 if the task has no holder."""
    version: int = 0
    """Number of changes so far. No code depends on it, because after a loss of data, records with equal numbers may
    have different contents."""
    mark: bytes = b""
    """Random bytes that each write sets. Records with equal marks are equal."""
    asked: Mapping[str, Sequence[str]] = _NO_QUESTIONS
    """The input requests that another run may make again, in order: all input requests since the start or, for a task
    that resumes, since the checkpoint. Maps the key of each input request to the keys of earlier input requests that
    were open at the same time. An input request that is in neither ``questions`` nor ``answers`` was cancelled."""
    continuation: bytes | None = None
    """For a handler that returns its input requests: an array of the answers and the state that the client sent before
    the task began."""

    @property
    def size(self) -> int:
        """The size of all JSON text in the record, in bytes."""
        texts = (self.params, self.capabilities, self.checkpoint or b"", self.continuation or b"")
        outcome = self.outcome.json if self.outcome else b""
        return sum(map(len, (*texts, *self.questions.values(), *self.answers.values(), outcome)))

    @property
    def is_open(self) -> bool:
        """True if a process must run the task's handler: the task hasn't ended, and its work isn't done by code outside
        of a handler."""
        return not (self.phase.is_final or self.is_external)

    @property
    def ttl_ms(self) -> int | None:
        """How many milliseconds after its creation the task expires; `None` for no limit."""
        return None if self.expires_at is None else self.expires_at - self.created_at


_MARK_BYTES: Final = 8

TaskCursor: TypeAlias = tuple[int, str]
"""Position in a list of tasks: the `TaskRecord.position` and id of a record, which may have been deleted."""


class StoreFull(Exception):
    """The store is full, or one caller has reached its limit. See `TaskStore.create`."""


class StoreDown(OSError):
    """The store is unavailable. The call has changed nothing, and will change nothing."""


class Uncertain(OSError):
    """The store didn't respond in time, so that a change may or may not have been stored.

    The requested change may have been stored, wholly or in part, or may be stored later.
    """


class UnreadableRecord(OSError):
    """A stored record can't be decoded.

    Another version has written it, it is encrypted with an unknown secret, or it was modified.
    """


class UnknownForm(UnreadableRecord):
    """This process can't decode a stored record, because another version of trio-mcp or another secret was used to
    write it.

    Other processes may be able to decode it.
    """


@frozen
class StoredTask:
    """A task record from the store, and the store's time when the record was read."""

    record: TaskRecord
    """The task record as stored."""
    now: int
    """The store's current time, in milliseconds since the epoch."""


class HintsLost:
    """The type of `HINTS_LOST`, a marker in a stream of notifications: some notifications may have been lost.

    A reader that gets it must read everything again.
    """

    def __repr__(self) -> str:
        return "HINTS_LOST"


HINTS_LOST: Final = HintsLost()
"""In a stream of change notifications: some notifications may have been lost."""

Hint: TypeAlias = "str | HintsLost"
"""An item in a stream of change notifications: the id of a task that may have changed, or `HINTS_LOST`."""


def new_mark() -> bytes:
    """Return a new mark, a random value that identifies the next version of a task record. See `TaskRecord.mark`."""
    return secrets.token_bytes(_MARK_BYTES)


class TaskStore(Protocol):
    """Interface of a store for task records.

    Several running servers, in one process or in many, may use the same store.

    A call ends in one of three ways:

    - It **returns**: the whole change is stored, as durably as the store can.
    - It raises `StoreDown`, an `OSError`: nothing has changed, or will change.
    - It raises `Uncertain`, an `OSError`: the change may have happened, or may happen later.

    `StoreFull`, `ValueError` and any other `OSError` mean that nothing has changed. If a call is cancelled before it is
    sent, nothing happens; a call that was sent is completed first. Methods that change something wait only for the
    store.

    The store has one clock. Callers pass durations in milliseconds, never times of day. The store sets
    `TaskRecord.created_at`, ``position``, ``updated_at``, ``expires_at``, ``kept_until`` and ``leased_until``.

    A *holder* is a token for one claim, or for the tasks that one process creates. It is never reused. A *mark* comes
    from `new_mark`, and each write sets a new one. The caller creates both, so that a read after `Uncertain` shows
    whether the write has happened.
    """

    async def create(
        self, new: TaskRecord, *, lease_ms: int, ttl_ms: int | None, retention_ms: int, limit: int, scope_limit: int
    ) -> TaskRecord:
        """Store a new task record, and return it with the times that the store has set.

        The task expires after ``ttl_ms``, and its record may be deleted ``retention_ms`` later; `None` means no limit.
        With a ``holder``, the lease ends after ``lease_ms``. The position is greater than all others in the scope.

        Raises:
            StoreFull: With nothing stored, if there are already ``limit`` records in the store, or ``scope_limit`` in
                the record's scope.
            ValueError: If a record with this id exists, or its creation was blocked by `discard`.
        """
        ...

    async def discard(self, task_id: str, *, retention_ms: int) -> bool:
        """Delete a task record, and return true. If no such record exists, block its creation for a while, and return
        false.

        The creation is prevented for ``retention_ms``, because a call of `create` that ended with `Uncertain` may still
        be in progress.
        """
        ...

    async def read(self, scope: str | None, task_id: str) -> StoredTask | None:
        """Return a task record and the store's current time. Return `None` if the record doesn't exist in ``scope``,
        the owner's scope.

        If ``scope`` is `None`, find records of all scopes: only the server itself does this. ``task_id`` may be any
        string.
        """
        ...

    async def marks(self, task_ids: Collection[str]) -> Mapping[str, bytes]:
        """Return the mark of each existing task record, by task id. A mark is random bytes that change with each write.

        This is a single request, whose cost doesn't depend on the size of the records.
        """
        ...

    async def change(
        self, record: TaskRecord, *, expected_mark: bytes, holder: str | None, give_up: bool = False
    ) -> bool:
        """Replace a stored task record with ``record``, unless the stored record has changed meanwhile.

        The stored record must still have the mark ``expected_mark``. The new one has a new mark.

        Return false, with nothing changed, if the stored record has another mark or is gone. If a ``holder`` is given,
        also return false if the task has another holder or none. Pass `None` for changes that don't come from the
        holder: a client's answer, a cancellation, or an outcome from other code.

        The stored holder, epoch and lease stay, whatever ``record`` contains. There are two exceptions: with
        ``give_up``, the lease is released; and a task that ends or becomes external has no holder.
        """
        ...

    async def page(self, scope: str, cursor: TaskCursor | None, limit: int) -> Sequence[TaskRecord]:
        """Return up to ``limit`` task records of ``scope`` (the owner's scope), in order of creation.

        Begin after ``cursor``, or with the first record if it is `None`. Records whose deletion is due are omitted. A
        cursor stays valid if its record is deleted.
        """
        ...

    async def claim(self, holder: str, *, lease_ms: int, limit: int, names: Collection[str]) -> Sequence[TaskRecord]:
        """Claim at most ``limit`` unfinished tasks that no process runs, and return their records. Tasks that have
        waited longest come first.

        ``holder`` becomes their holder, with a lease of ``lease_ms`` milliseconds.

        A task can be claimed if it hasn't ended, has no holder or one whose lease has expired, and has a
        `TaskRecord.name` in ``names``. External tasks have no holder, but cannot be claimed.

        Return the records as stored now: with the holder, the lease, the next epoch and version, and the bytes of the
        holder as the mark. A task is never given to two holders. If the call ends with `Uncertain`, the tasks may stay
        claimed for ``lease_ms``.
        """
        ...

    async def renew(self, held: Mapping[str, str], *, lease_ms: int) -> Collection[str]:
        """Extend the leases of the tasks in ``held``, so that they end ``lease_ms`` milliseconds from now.

        ``held`` maps the ids of the tasks to their holders.

        Only tasks that still have this holder are renewed. Return the ids of all others: they were claimed by another
        process, released, ended or deleted. Marks and versions don't change. If a lease has expired, but the task was
        not claimed, the lease is renewed too. All tasks are renewed in one request, whose cost doesn't depend on the
        size of the records.
        """
        ...

    async def expire(self, *, limit: int) -> int:
        """Delete up to ``limit`` task records whose deletion time has passed, and return how many were deleted.

        Records of tasks that haven't ended are deleted as well.
        """
        ...

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[Hint]]:
        """Open a stream of the ids of tasks that are created, changed, claimed or deleted from now on, in any process.

        Notifications are best effort: one may arrive late, twice or not at all, so a reader that waits for a change
        must also poll. A slow reader loses notifications, and never blocks the store. If the store knows that some were
        lost, the reader gets `HINTS_LOST`. The stream never ends and never raises: if the storage fails, notifications
        are lost.
        """
        ...


_HINTS_LIMIT: Final = 1000


class HintQueue(AsyncIterator[T | HintsLost]):
    """A stream of change notifications for one reader. While the stream's buffer is full, further notifications are
    lost.

    In their place, the reader gets `HINTS_LOST`.
    """

    def __init__(self) -> None:
        self._queue = deque[T | HintsLost]()
        self._sleeper = Sleeper()

    def put(self, hint: T | HintsLost) -> None:
        """Add a change notification. Never waits."""
        if len(self._queue) < _HINTS_LIMIT:
            self._queue.append(hint)
        elif self._queue[-1] is not HINTS_LOST:
            self._queue.append(HINTS_LOST)
        self._sleeper.wake()

    def get_nowait(self) -> T | HintsLost | None:
        """Return the next change notification; `None` if there is none yet."""
        return self._queue.popleft() if self._queue else None

    async def __anext__(self) -> T | HintsLost:
        if self._queue:
            await trio.lowlevel.checkpoint()
        while not self._queue:
            await self._sleeper.sleep()
        return self._queue.popleft()


class HintQueues(Generic[T]):
    """All open streams of change notifications that a store has in this process, one for each reader."""

    def __init__(self) -> None:
        self._queues: dict[HintQueue[T], TrioRun | None] = {}
        """The trio run of each stream. `None` if the stream was opened outside of trio."""

    @contextmanager
    def watch(self) -> Generator[HintQueue[T]]:
        """Open a stream that receives everything passed to `notify` from now on."""
        hints = HintQueue[T]()
        self._queues[hints] = current_run() if trio.lowlevel.in_trio_run() else None
        try:
            yield hints
        finally:
            del self._queues[hints]

    def notify(self, changed: Iterable[T | HintsLost]) -> None:
        """Add ``changed`` to all open streams of change notifications. Never waits. May be called in any thread."""
        for hint in changed:
            for hints, run in tuple(self._queues.items()):
                if run is None:
                    hints.put(hint)
                else:
                    run.call_soon(hints.put, hint)


_FAILURE_MEMORY: Final = 30.0
"""Seconds after which the outage of a failed method is no longer tracked if the method isn't called again."""


def created_record(
    new: TaskRecord, now: int, last_position: int, *, lease_ms: int, ttl_ms: int | None, retention_ms: int
) -> TaskRecord:
    """Return a copy of the new task record ``new`` in which the task store's clock and position are filled in.

    ``now`` is the time on the store's clock. The position orders the records of a scope, and is after
    ``last_position``, the last position in the record's scope.
    """
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
    """Wrap ``method``, a method of `TaskStore`, for `LoggedStore`, so that outages are logged.

    ``kind`` says in the log what can't be done during an outage.
    """
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
    """A `TaskStore` that wraps ``store`` and logs its outages: one line when an outage begins, and one when it ends.

    All errors are raised. Methods are tracked separately, since a full disk can still be read. A method that isn't
    called for a while is dropped.
    """

    def __init__(self, store: TaskStore) -> None:
        self.store = store
        self.failing_methods: dict[str, float] = {}
        """The methods whose last call failed, with the time of the failure."""

    def log_failure(self, method: str, kind: str, error: Exception) -> None:
        """Record that ``method`` has failed with ``error``. If an outage begins with this error, log the error."""
        if not self.failing_methods:
            words = "the task store cannot be %s; waiting calls are retried"
            # The text of a `StoreDown` or `Uncertain` error describes the outage, so omit the traceback.
            if isinstance(error, (StoreDown, Uncertain)):
                logger.error(f"{words}: %s", kind, error.strerror or error)
            else:
                logger.error(words, kind, exc_info=error)
        self.failing_methods[method] = trio.current_time()

    def log_success(self, method: str) -> None:
        """Record that ``method`` has succeeded. When no method of the store is failing any more, log the end of the
        outage."""
        self.failing_methods.pop(method, None)
        long_ago = trio.current_time() - _FAILURE_MEMORY
        self.failing_methods = {each: when for each, when in self.failing_methods.items() if when > long_ago}
        if not self.failing_methods:
            logger.warning("the task store works again")

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
        """Open a stream of the ids of tasks that change from now on. See `TaskStore.watch`."""
        return self.store.watch()
