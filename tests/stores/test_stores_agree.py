"""The in-memory store and the SQLite store behave the same under random operations."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from trio_mcp.stores.memory import MemoryTaskStore
from trio_mcp.stores.sqlite_store import SQLiteTaskStore
from trio_mcp.stores.task_store import Outcome, StoreFull, TaskPhase, TaskStore
from trio_mcp.testing.stores.task_store_records import record

Operation = Callable[[TaskStore], Awaitable[Any]]

NOW = 1_800_000_000_000
FINAL = (TaskPhase.ENDED, TaskPhase.CANCELLED)

ids = st.sampled_from("abcdef")
scopes = st.sampled_from(["ann", "bob", ""])
holders = st.sampled_from(["me", "you"])
marks = st.sampled_from([b"1", b"2", b"3"])
lengths = st.integers(0, 5)


class Clock:
    """The time that both stores have."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> int:
        return self.now


@st.composite
def changes(draw: st.DrawFn) -> dict[str, Any]:
    """Fields of a record, as they go together."""
    phase = draw(st.sampled_from([*TaskPhase, *[TaskPhase.WORKING] * 4]))
    return {
        "phase": phase,
        "outcome": Outcome(b"{}") if phase is TaskPhase.ENDED else None,
        "message": draw(st.text(max_size=3)),
        "answers": draw(st.dictionaries(st.text(max_size=2), st.binary(max_size=3), max_size=2)),
        "mark": draw(marks),
    }


@st.composite
def operations(draw: st.DrawFn) -> Operation | int:
    kinds = [
        "create",
        "create",
        "change",
        "change",
        "change",
        "claim",
        "renew",
        "expire",
        "page",
        "void",
        "wait",
        "marks",
    ]
    match draw(st.sampled_from(kinds)):
        case "wait":
            return draw(st.integers(-1, 3))
        case "create":
            new = record(
                draw(ids),
                scope=draw(scopes),
                name=draw(st.sampled_from(["x", "y"])),
                holder=draw(st.none() | holders),
                **draw(changes()),
            )
            if new.phase in FINAL or draw(st.integers(0, 3)) == 0:
                new = attrs.evolve(new, is_external=new.phase not in FINAL, holder=None)
            lease, ttl, keep = draw(lengths), draw(st.none() | lengths), draw(lengths)
            return lambda store: store.create(
                new, lease_ms=lease, ttl_ms=ttl, retention_ms=keep, limit=5, scope_limit=3
            )
        case "change":
            task_id, fields, was, further = draw(ids), draw(changes()), draw(marks), draw(st.none() | lengths)
            holder, give_up = draw(st.none() | holders), draw(st.booleans())
            return lambda store: change(store, task_id, was, holder, give_up, fields, further)
        case "claim":
            holder, lease, most = draw(holders), draw(lengths), draw(st.sampled_from([0, 9]))
            names = draw(st.sampled_from([("x",), ("x", "y", "z"), ()]))
            return lambda store: claimed(store.claim(holder, lease_ms=lease, limit=most, names=names))
        case "renew":
            held, lease = draw(st.dictionaries(ids, holders)), draw(lengths)
            return lambda store: lost(store.renew(held, lease_ms=lease))
        case "expire":
            most = draw(st.sampled_from([0, 99]))
            return lambda store: store.expire(limit=most)
        case "void":
            task_id, keep = draw(ids), draw(lengths)
            return lambda store: store.discard(task_id, retention_ms=keep)
        case "marks":
            task_ids = draw(st.lists(ids))
            return lambda store: told(store.marks(task_ids))
        case _:
            scope, most = draw(scopes), draw(st.integers(0, 3))
            after = draw(st.none() | st.tuples(st.integers(NOW * 1000 - 2, NOW * 1000 + 9000), ids))
            return lambda store: listed(store.page(scope, after, most))


async def change(
    store: TaskStore,
    task_id: str,
    was: bytes,
    holder: str | None,
    give_up: bool,
    fields: dict[str, Any],
    further: int | None,
) -> bool:
    kept = await store.read(None, task_id)
    if kept is None:
        return await store.change(record(task_id, **fields), expected_mark=was, holder=holder, give_up=give_up)
    before = kept.record
    if not before.is_open:  # an end is for ever, and so is what others do
        fields = fields | {"phase": before.phase, "outcome": before.outcome}
    if further is not None:
        fields = fields | {"kept_until": kept.now + further}
    new = attrs.evolve(before, version=before.version + 1, holder=None, leased_until=7, epoch=9, **fields)
    return await store.change(new, expected_mark=was, holder=holder, give_up=give_up)


async def claimed(claim: Awaitable[Any]) -> list[Any]:
    return sorted(await claim, key=lambda each: each.id)


async def lost(renewal: Awaitable[Any]) -> set[str]:
    return set(await renewal)


async def told(marks: Awaitable[Any]) -> dict[str, bytes]:
    return dict(await marks)


async def listed(page: Awaitable[Any]) -> list[Any]:
    return list(await page)


async def outcome(operation: Operation, store: TaskStore) -> Any:
    """What it returns or raises, and all records afterwards."""
    try:
        result = await operation(store)
    except (StoreFull, ValueError) as error:
        result = type(error)
    return result, [await store.read(None, task_id) for task_id in "abcdef"]


@settings(max_examples=examples(200))
@given(st.lists(operations(), max_size=30), st.sampled_from([(), (bytes(32),)]))
def test_memory_and_sqlite_task_stores_behave_the_same(life: list[Operation | int], secrets: tuple[bytes, ...]):
    async def main(folder: str) -> None:
        memory, clock = MemoryTaskStore(), Clock()
        async with SQLiteTaskStore(Path(folder) / "tasks.db", secrets=secrets) as file:
            memory._now = file._now = clock  # type: ignore[assignment]
            for operation in life:
                if isinstance(operation, int):
                    clock.now += operation
                else:
                    assert await outcome(operation, file) == await outcome(operation, memory)

    with tempfile.TemporaryDirectory() as folder:
        trio.run(main, folder)
