"""Two versions of a server that share their tasks: today's, and one that writes records with one more field, or in a
form of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest
import trio
from tests.fleet.redis_server import redis_of_process, redis_server, redis_url  # noqa: F401
from tests.patience import PATIENCE
from tests.tasks.callers import calling, settings

from trio_mcp import PeerError, RedisStorage, RequestContext, Server, SQLiteStorage
from trio_mcp.server.sharing import SharedStorage
from trio_mcp.stores.record_codec import RecordCodec, StoredRecord
from trio_mcp.stores.task_store import TaskRecord, TaskStore

LEASE = 3.0


class LongerCodec(RecordCodec):
    """Writes one more field at the end."""

    def encode(self, record: TaskRecord) -> StoredRecord:
        row = super().encode(record)
        return attrs.evolve(row, body=msgspec.msgpack.encode([*msgspec.msgpack.decode(row.body), "more"]))


class NextCodec(RecordCodec):
    """Writes the form 2, and reads both."""

    @cached_property
    def _forms(self) -> dict[bytes, Any]:
        return {b"\x02": None, b"\x01": None}


class Work:
    def __init__(self) -> None:
        self.may_go_on = trio.Event()
        self.ran_at = list[str]()

    def server(self, name: str, store: TaskStore) -> Server:
        server = Server("upgrading", tasks=settings(store, lease=LEASE, look_interval=0.2))

        @server.tool(task="required", on_restart="again")
        async def work(ctx: RequestContext) -> str:
            assert ctx.task is not None
            await ctx.task.start()
            self.ran_at.append(name)
            await self.may_go_on.wait()
            return f"done by {name}"

        return server


@pytest.fixture(params=["sqlite", "redis"])
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[list[Any]]:
    """Today's store, and the one of the next version, of the same tasks."""
    if request.param == "redis":
        pytest.importorskip("coredis", reason="the extra redis is not installed")
        place: SharedStorage = RedisStorage(request.getfixturevalue("redis_url"))
    else:
        place = SQLiteStorage(tmp_path / "shared.db")
    async with place.join("upgrading") as one, place.join("upgrading") as two:
        yield [one.tasks, two.tasks]


async def test_task_record_with_an_unknown_field_can_be_read_changed_and_ended(stores: list[Any]) -> None:
    old, new = stores
    new._codec = LongerCodec()
    work = Work()
    async with calling(work.server("new", new)) as first, calling(work.server("old", old)) as second:
        task_id = await first.start("work")
        assert (await second.get(task_id))["status"] == "working"
        await second.cancel(task_id)
        with trio.fail_after(PATIENCE):
            assert (await first.final(task_id))["status"] == "cancelled"
        assert (await second.get(task_id))["status"] == "cancelled"


async def test_task_record_in_a_newer_format_is_left_to_processes_of_the_newer_version(stores: list[Any]) -> None:
    old, new = stores
    new._codec = NextCodec()
    work = Work()
    async with calling(work.server("old", old)) as today:
        async with calling(work.server("new", new)) as first:
            task_id = await first.start("work")
        # Its process has ended in good order, and has given the task up.
        for ask in (today.get, today.cancel):
            with pytest.raises(PeerError, match="Another version of this server has the task") as caught:
                await ask(task_id)
            assert caught.value.code == -31000
        await trio.sleep(1)
        assert work.ran_at == ["new"]
        work.may_go_on.set()
        async with calling(work.server("newer", new)) as other:
            with trio.fail_after(PATIENCE):
                await other.final(task_id)
            assert await other.text(task_id) == "done by newer"
        ours = await today.start("work")
        with trio.fail_after(PATIENCE):
            await today.final(ours)
        assert await today.text(ours) == "done by old"


async def test_process_of_the_next_version_continues_a_task_record_written_by_the_current_version(
    stores: list[Any],
) -> None:
    old, new = stores
    new._codec = NextCodec()
    work = Work()
    async with calling(work.server("new", new)) as other:
        async with calling(work.server("old", old)) as today:
            task_id = await today.start("work")
        work.may_go_on.set()
        with trio.fail_after(PATIENCE):
            await other.final(task_id)
        assert await other.text(task_id) == "done by new"
