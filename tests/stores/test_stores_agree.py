"""Whatever is done to them, the store in memory and the store in a file say the same."""

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
from trio_mcp.stores.sqlite.store import SqliteTaskStore
from trio_mcp.stores.task_record import Outcome, TaskPhase, TaskRecord
from trio_mcp.stores.task_store import StoreFull, TaskStore
from trio_mcp.testing.task_stores.storage import NOW, claim_of, record

Operation = Callable[[TaskStore], Awaitable[Any]]

ids = st.sampled_from("abcdef")
scopes = st.sampled_from(["ann", "bob", ""])
owners = st.sampled_from(["me", "you"])
times = st.integers(NOW - 3, NOW + 3)


@st.composite
def changes(draw: st.DrawFn) -> dict[str, Any]:
    """Fields of a record, as they go together."""
    phase, owner = draw(st.sampled_from([*TaskPhase, *[TaskPhase.WORKING] * 4])), draw(st.none() | owners)
    return {
        "phase": phase,
        "outcome": Outcome(b"{}") if phase is TaskPhase.ENDED else None,
        "owner": owner,
        "leased_until": 0 if owner is None else draw(times),
        "kept_until": draw(st.none() | times),
        "message": draw(st.text(max_size=3)),
        "answers": draw(st.dictionaries(st.text(max_size=2), st.binary(max_size=3), max_size=2)),
    }


@st.composite
def operations(draw: st.DrawFn) -> Operation:
    match draw(st.sampled_from(["create", "create", "change", "change", "change", "claim", "renew", "expire", "page"])):
        case "create":
            new = record(draw(ids), scope=draw(scopes), created_at=draw(times), **draw(changes()))
            if draw(st.booleans()):
                new = attrs.evolve(new, is_external=True, owner=None, leased_until=0)
            return lambda store: store.create(new, most=5, most_of_scope=3)
        case "change":
            task_id, fields = draw(ids), draw(changes())
            steps, epochs = draw(st.sampled_from([1, 1, 1, 0, 2])), draw(st.sampled_from([0, 0, 0, 1]))
            return lambda store: change(store, task_id, steps, epochs, fields)
        case "claim":
            claim = claim_of(
                draw(owners), now=draw(times), lease=draw(st.integers(1, 5)), most=draw(st.sampled_from([0, 9]))
            )
            return lambda store: claimed(store.claim(claim))
        case "renew":
            owner, task_ids, lease = draw(owners), draw(st.sets(ids)), draw(times)
            return lambda store: store.renew(owner, task_ids, lease)
        case "expire":
            now = draw(times)
            return lambda store: store.expire(now)
        case _:
            scope, after, most = draw(scopes), draw(st.none() | ids), draw(st.integers(0, 3))
            return lambda store: listed(store.page(scope, after, most))


async def change(store: TaskStore, task_id: str, steps: int, epochs: int, fields: dict[str, Any]) -> bool:
    now = await store.read(None, task_id) or record(task_id)
    if now.is_external:  # nobody owns such a task
        fields = fields | {"owner": None, "leased_until": 0}
    return await store.change(attrs.evolve(now, version=now.version + steps, epoch=now.epoch + epochs, **fields))


async def claimed(claim: Awaitable[Any]) -> list[TaskRecord]:
    return sorted(await claim, key=lambda each: each.id)


async def listed(page: Awaitable[Any]) -> list[TaskRecord]:
    return list(await page)


async def outcome(operation: Operation, store: TaskStore) -> Any:
    """What it returns or raises, and all records afterwards."""
    try:
        result = await operation(store)
    except (KeyError, StoreFull, ValueError) as error:
        result = type(error)
    return result, [list(await store.page(scope, None, 99)) for scope in ("ann", "bob", "")]


@settings(max_examples=examples(200))
@given(st.lists(operations(), max_size=30), st.sampled_from([(), (bytes(32),)]))
def test_both_stores_do_the_same(life: list[Operation], secrets: tuple[bytes, ...]):
    async def main(folder: str) -> None:
        memory = MemoryTaskStore()
        async with SqliteTaskStore(Path(folder) / "tasks.db", secrets=secrets) as file:
            for operation in life:
                assert await outcome(operation, file) == await outcome(operation, memory)

    with tempfile.TemporaryDirectory() as folder:
        trio.run(main, folder)
