"""The storage in memory keeps no more than what lasts, and goes on from run to run."""

from __future__ import annotations

from typing import Any

import trio
from trio.testing import MockClock

from trio_mcp.fleet.storage.memory import MemoryStorage
from trio_mcp.stores.memory import Expiring, TrioClock
from trio_mcp.stores.shared import StoredSession
from trio_mcp.stores.task_store import new_mark
from trio_mcp.testing.stores.event_log_limits import open_stream
from trio_mcp.testing.stores.task_store_records import HOUR


async def test_expiring_map_drops_expired_entries(autojump_clock: MockClock):
    kept = Expiring[str, int](TrioClock())
    kept.put("short", 1, 1000)
    kept.put("long", 2, 3000)
    kept.put("longer and longer", 3, 1000)
    await trio.sleep(0.9)
    assert (kept.get("short"), kept.get("long"), len(kept)) == (1, 2, 3)
    kept.put("longer and longer", 4, 5000)
    await trio.sleep(0.2)
    assert (kept.get("short"), kept.get("long"), kept.get("longer and longer"), len(kept)) == (None, 2, 4, 2)
    assert (kept.pop("long"), kept.pop("long"), kept.pop("short"), len(kept)) == (2, None, None, 1)
    await trio.sleep(5)
    assert len(kept) == 0


async def test_expiring_map_entry_with_a_shortened_ttl_expires_earlier(autojump_clock: MockClock):
    kept = Expiring[bytes, int](TrioClock())
    kept.put(b"one", 1, HOUR)
    kept.put(b"one", 2, 1000)
    await trio.sleep(1.1)
    assert kept.get(b"one") is None


async def test_expiring_map_uses_no_more_memory_if_an_entry_is_updated_repeatedly(autojump_clock: MockClock):
    kept = Expiring[str, int](TrioClock())
    for number in range(10_000):
        kept.put("one", number, HOUR)
        kept.put(f"gone {number}", number, HOUR)
        kept.pop(f"gone {number}")
    assert len(kept._ends) < 100


def test_repr_of_a_stored_session_hides_its_data():
    assert "secret" not in repr(StoredSession(b"secret", b"mark"))


async def test_memory_storage_is_empty_after_all_its_entries_have_expired(autojump_clock: MockClock):
    storage = MemoryStorage()
    async with storage.join("server") as one:
        for number in range(100):
            await one.sessions.open(f"session {number}", b"", caller=b"ann", mark=new_mark(), idle_ms=1000, limit=200)
            log = await open_stream(one.events, "stream", f"session {number}", retention_ms=1000)
            assert await log.append(1, [b"a"], retention_ms=1000)
            await one.replay_guard.add(number.to_bytes(32), ttl_ms=1000)
            assert await one.rate_limits.acquire(b"%d" % number, limit=1, period_ms=500, burst=2) == 0
        await one.courier.heartbeat(lease_ms=1000)
        async with one.courier.mailbox():
            pass
        await trio.sleep(2)
        server: Any = storage._servers["server"]
        assert len(server.sessions._sessions) == len(server.sessions._sessions.held) == 0
        kept = [
            server.sessions._sessions,
            server.events._logs,
            server.replay_guard._digests,
            server.rate_limits._full_at,
        ]
        assert [len(each) for each in [*kept, server.mailboxes.alive, server.mailboxes.mailboxes]] == [0] * 6
        assert [len(each._entries) + len(each._ends) for each in kept] == [0] * 4


async def test_memory_storage_keeps_no_data_of_deleted_event_streams(autojump_clock: MockClock):
    async with MemoryStorage().join("server") as one:
        for number in range(50):
            log = await open_stream(one.events, f"stream {number}")
            assert await log.append(1, [b"12345"] * 3, finish=True, retention_ms=1000)
            await open_stream(one.events, "open")
            await trio.sleep(0.5)
        kept: Any = one.events
        kept = kept._logs.get("session")
        assert len(kept._streams) <= 4
        assert len(kept._order) <= 9
        assert kept._size <= 45


async def test_change_log_reports_that_everything_may_have_changed_if_a_cursor_is_ahead_of_the_log(
    autojump_clock: MockClock,
):
    async with MemoryStorage().join("server") as one:
        await one.changes.record(["tools"])
        here = (await one.changes.read_since(None)).cursor
        log, _, number = here.partition(".")
        assert not (await one.changes.read_since(f"{log}.{int(number) - 1}")).everything
        for ahead in (int(number) + 1, 10 * int(number), 10**30):
            assert (await one.changes.read_since(f"{log}.{ahead}")).everything


def test_memory_storage_keeps_its_data_across_trio_runs():
    storage, taken = MemoryStorage(), list[bool]()

    async def main() -> None:
        async with storage.join("server") as one:
            taken.append(await one.replay_guard.add(bytes(32), ttl_ms=HOUR))
            await trio.sleep(HOUR / 1000 / 3 + 1)
            assert await one.sessions.read("unknown", idle_ms=1) is None

    for _ in range(4):
        trio.run(main, clock=MockClock(autojump_threshold=0))
    assert taken == [True, False, False, True]
