"""RedisTaskStore: a task store in Redis, for any number of replicas."""

from __future__ import annotations

import errno
import secrets as randomness
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Generator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs
import trio

from ....concurrency.contexts import asynccontextmanager, contextmanager
from ....stores.record_codec import RecordCodec, StoredRecord, decode_readable, decode_stored, decoded, encoded
from ....stores.task_store import (
    HINTS_LOST,
    Hint,
    HintQueue,
    HintQueues,
    StoreDown,
    StoredTask,
    StoreFull,
    TaskCursor,
    TaskRecord,
    Uncertain,
    created_record,
)
from .client import load_scripts
from .link import Link, Script, Value

# Redis runs nothing else while a Lua script runs, so these limits keep each script to one to four milliseconds.
_BATCH: Final = 100
"""Maximum records that one script returns or deletes."""
_CLAIMS: Final = 25
"""Maximum tasks that one script claims."""
_NAMES: Final = 200
"""Maximum ids that are passed to one script."""
_LIMIT: Final = 10.0
"""Seconds after which a call of several scripts fails. Until then, the call continues even if it is cancelled."""
_ECHO_LIMIT: Final = 1.0
"""Seconds for which a new watcher waits for its own check message."""

_MAX_TIME: Final = 2**52
"""The latest time that Redis and Lua count exactly. Later times are never reached."""
_MAX_POSITION: Final = 2**53
"""A position that no record reaches. Peers may send greater ones."""

_SCRIPTS: Final = load_scripts("tasks")
_RunScript: TypeAlias = Callable[[Script, Sequence[Value]], Awaitable[Any]]


class RedisTaskStore:
    """Stores the records of MCP tasks in Redis 7 or Valkey. All keys begin with ``prefix`` and share one cluster slot.
    See `TaskStore`.

    The clock is that of Redis. A change is as safe as Redis is configured to keep it. If a restart or a failover loses
    the latest changes, no write succeeds that was based on a lost write, and no holder can write whose claim was lost.
    A record that can't be read raises `UnreadableRecord`, an `OSError`. `claim` skips records with other secrets or
    versions, which another process may be able to read.

    Args:
        bus: The channel on which each change is published, as ``t`` and the task id. The owner of the store subscribes.
        watchers: The owner passes the ids from the bus, and `HINTS_LOST`, to these queues, for `watch`.
        secrets: If there are any, records are sealed as `RecordCodec` says. To rotate, first add a new secret after the
            old one in every process, then put it first. A record moves to the first secret with its next change. If a
            record was never changed, anyone who can write to Redis can move its times.
        leases: A link to use for renewing leases.
    """

    def __init__(
        self,
        link: Link,
        prefix: bytes,
        bus: bytes,
        watchers: HintQueues[str],
        secrets: Sequence[bytes] = (),
        *,
        leases: Link | None = None,
    ) -> None:
        self._link = link
        self._leases = leases or link
        self._base = b"{%b:t}:" % prefix
        self._bus = bus
        self._hint_queues = watchers
        self._codec = RecordCodec(secrets)

    async def create(
        self, new: TaskRecord, *, lease_ms: int, ttl_ms: int | None, retention_ms: int, limit: int, scope_limit: int
    ) -> TaskRecord:
        """Store a new task record. See `TaskStore.create`."""
        # This process must encrypt the record before it sends it to Redis.
        # Only Redis knows the record's creation time, so the times in the encrypted record are relative to it.
        row = self._codec.encode(created_record(new, 0, 0, lease_ms=lease_ms, ttl_ms=ttl_ms, retention_ms=retention_ms))
        args = [row.id, limit, scope_limit, _time(row.kept_until, b""), lease_ms, _queue_of(row)]
        args += [*_optional(new.holder), row.epoch, row.version, row.mark, row.form, row.body]
        args += self._codec.scope_keys(new.scope)
        reply = await self._run(_SCRIPTS["task_create"], args)
        match reply:
            case b"full":
                raise StoreFull
            case b"void":
                raise ValueError("cannot create this task record: discard() was called with its id before")
            case b"taken":
                raise ValueError("a task record with this id already exists")
            case (now, place):
                return created_record(new, now, place - 1, lease_ms=lease_ms, ttl_ms=ttl_ms, retention_ms=retention_ms)
            case _:
                raise AssertionError(reply)

    async def discard(self, task_id: str, *, retention_ms: int) -> bool:
        """Delete a task record or, if it doesn't exist yet, prevent its creation. See `TaskStore.discard`."""
        return bool(await self._run(_SCRIPTS["task_void"], [encoded(task_id), retention_ms]))

    async def read(self, scope: str | None, task_id: str) -> StoredTask | None:
        """Return the record of a task. Return `None` if it doesn't exist. See `TaskStore.read`."""
        now, fields = await self._run(_SCRIPTS["task_read"], [encoded(task_id)])
        if fields is None:
            return None
        record = self._decode(fields)
        return StoredTask(record, now) if scope in (None, record.scope) else None

    async def marks(self, task_ids: Collection[str]) -> Mapping[str, bytes]:
        """Return a mark for each task record. A record's mark changes whenever the record changes. See
        `TaskStore.marks`."""
        found = dict[str, bytes]()
        for names in _batches(list(task_ids)):
            marks = await self._run(_SCRIPTS["task_marks"], [encoded(each) for each in names])
            found.update((name, mark) for name, mark in zip(names, marks, strict=True) if mark is not None)
        return found

    async def change(
        self, record: TaskRecord, *, expected_mark: bytes, holder: str | None, give_up: bool = False
    ) -> bool:
        """Replace a task record with its next version. See `TaskStore.change`."""
        row = self._codec.encode(record)
        args = [row.id, expected_mark, *_optional(holder), int(give_up), _time(row.kept_until, b"+inf"), _queue_of(row)]
        args += [row.scope, row.version, row.mark, row.form, row.body]
        return bool(await self._run(_SCRIPTS["task_change"], args))

    async def page(self, scope: str, cursor: TaskCursor | None, limit: int) -> Sequence[TaskRecord]:
        """Return one page of the task records that have the scope ``scope``. See `TaskStore.page`."""
        scopes, page = self._codec.scope_keys(scope), list[TaskRecord]()
        place, name = (-1, b"") if cursor is None else (max(-1, min(cursor[0], _MAX_POSITION)), encoded(cursor[1]))
        while (left := min(limit - len(page), _BATCH)) > 0:
            rows, *position = await self._run(_SCRIPTS["task_page"], [place, name, left, *scopes])
            page += map(self._decode, rows)
            if not position:
                break
            place, name = position
        return page

    async def claim(self, holder: str, *, lease_ms: int, limit: int, names: Collection[str]) -> Sequence[TaskRecord]:
        """Claim tasks that no running process has claimed, and return their records. See `TaskStore.claim`."""
        queues = [
            _queue(form, key)
            for name in names
            for form, key in zip(self._codec.forms, self._codec.name_keys(name), strict=True)
        ]
        claimed, looked, has_more = list[TaskRecord](), 0, bool(queues)
        with self._script_session() as step:
            while has_more and (left := min(limit - looked, _CLAIMS)) > 0:
                rows, has_more = await step(_SCRIPTS["task_claim"], [encoded(holder), lease_ms, left, *queues])
                looked += max(len(rows), 1)
                claimed += decode_readable(self._decode, rows)
        return claimed

    async def renew(self, held: Mapping[str, str], *, lease_ms: int) -> Collection[str]:
        """Extend the leases of tasks that this process runs. See `TaskStore.renew`."""
        lost = list[str]()
        with self._script_session(self._leases) as step:
            for batch in _batches(list(held.items())):
                pairs = [encoded(text) for pair in batch for text in pair]
                lost += map(decoded, await step(_SCRIPTS["task_renew"], [lease_ms, *pairs]))
        return lost

    async def expire(self, *, limit: int) -> int:
        """Delete expired task records. See `TaskStore.expire`."""
        deleted = 0
        with self._script_session() as step:
            while (asked := min(limit - deleted, _BATCH)) > 0:
                looked, gone = await step(_SCRIPTS["task_expire"], [asked])
                deleted += gone
                if looked < asked:
                    break
        return deleted

    @asynccontextmanager
    async def watch(self) -> AsyncGenerator[AsyncIterator[Hint]]:
        """Open a stream of notifications about changed tasks. See `TaskStore.watch`.

        The stream begins when a check message of its own has arrived, which other watchers get as a notification about
        an unknown task. If none arrives within a second, the stream begins with `HINTS_LOST`.
        """
        with self._hint_queues.watch() as hints:
            if not await self._echoed(hints):
                hints.put(HINTS_LOST)
            yield hints

    async def _echoed(self, hints: HintQueue[str]) -> bool:
        """Wait until all notifications that were published before have arrived, and skip them. Return false if this
        fails.

        To find out, publish a unique message and wait until it arrives.
        """
        echo = f"\0{randomness.token_urlsafe(8)}"
        with trio.move_on_after(_ECHO_LIMIT):
            try:
                await self._link.pipeline([("PUBLISH", self._bus, b"t" + encoded(echo))])
            except OSError:  # don't report that Redis failed: other calls of the store do
                return False
            while await anext(hints) != echo:
                pass
            return True
        return False

    def _run(self, script: Script, args: Sequence[Value], link: Link | None = None) -> Awaitable[Any]:
        return (link or self._link).script(script, [self._base], [self._bus, *args])

    @contextmanager
    def _script_session(self, link: Link | None = None) -> Generator[_RunScript]:
        """While the ``with`` block runs, yield a function that runs Lua scripts in Redis.

        All scripts inside the block count as one call, with a common time limit.

        Once the first script has run, the call continues to its end even if cancelled. If a later script fails, a part
        of the call was carried out.
        """
        has_begun = False

        async def step(script: Script, args: Sequence[Value]) -> Any:
            nonlocal has_begun
            scope.shield = has_begun
            reply = await self._run(script, args, link)
            has_begun = True
            return reply

        with trio.move_on_after(_LIMIT) as scope:
            try:
                yield step
            except StoreDown as error:
                if has_begun:
                    raise Uncertain(errno.EIO, "Redis failed after a part of the change was carried out") from error
                raise
        if scope.cancelled_caught:
            raise Uncertain(
                errno.ETIMEDOUT, f"the change was not finished within {_LIMIT:g} s; a part of it may be stored"
            )

    def _decode(self, fields: Sequence[Any]) -> TaskRecord:
        return decode_stored("a record", self._record, fields)

    def _record(self, fields: Sequence[Any]) -> TaskRecord:
        scope, place, holder, epoch, version, mark, form, body, since, _, leased_until, name = fields
        record = self._codec.decode(
            StoredRecord(
                id=name,
                scope=scope,
                name="",
                place=int(place),
                kept_until=None,
                is_open=holder is not None,
                holder=None if holder is None else decoded(holder),
                leased_until=0 if holder is None else int(leased_until),
                epoch=int(epoch),
                version=int(version),
                mark=mark,
                form=form,
                body=body,
            )
        )
        return record if since is None else _with_absolute_times(record, int(since))


def _with_absolute_times(record: TaskRecord, since: int) -> TaskRecord:
    """Return a copy of a task record with times since the epoch. The stored record has times since its creation."""
    return attrs.evolve(
        record,
        created_at=record.created_at + since,
        updated_at=record.updated_at + since,
        expires_at=None if record.expires_at is None else record.expires_at + since,
        kept_until=None if record.kept_until is None else record.kept_until + since,
    )


def _queue(form: bytes, name: str) -> bytes:
    return f"{form.hex()}:{name}".encode()


def _queue_of(row: StoredRecord) -> bytes:
    return _queue(row.form, row.name) if row.is_open else b""


def _optional(holder: str | None) -> tuple[Value, Value]:
    """Encode ``holder`` as two arguments for a Lua script: whether ``holder`` is given, and the name of the holder.

    ``holder`` may be `None`.
    """
    return (0, b"") if holder is None else (1, encoded(holder))


def _time(until: int | None, never: bytes) -> Value:
    return never if until is None or until > _MAX_TIME else until


def _batches(items: Sequence[Any]) -> Sequence[Sequence[Any]]:
    return [items[start : start + _NAMES] for start in range(0, len(items), _NAMES)]
