"""What tests of the storage in Redis have in common: use of all that is shared, and waiting."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import trio
from tests.fleet.redis_server import RedisServer
from tests.patience import PATIENCE

from trio_mcp.stores.shared import Replica
from trio_mcp.stores.task_store import HintsLost, StoreDown, Uncertain, new_mark
from trio_mcp.testing.stores.task_store_records import HOUR, create, record

__all__ = ["PREFIX", "append", "keys", "next_of", "until", "until_done", "until_gap", "use_all"]

PREFIX: Final = b"trio-mcp:tested:1"


def keys(server: RedisServer) -> set[bytes]:
    """The names of all keys, without what they begin with."""
    names = server.ask("KEYS", "*")
    bare = {name.replace(b"{", b"").replace(b"}", b"") for name in names}
    assert all(name.startswith(PREFIX + b":") for name in bare)
    return {name.removeprefix(PREFIX + b":") for name in bare}


async def use_all(one: Replica, two: Replica) -> None:
    """Use each thing that replicas share."""
    mark = new_mark()
    await create(one.tasks, record("task"))
    await one.sessions.open("session", b"facts", caller=b"ann", mark=mark, idle_ms=HOUR, limit=9)
    assert await two.sessions.change("session", b"other", expected_mark=mark, mark=b"new", idle_ms=HOUR)
    await one.sessions.read("session", idle_ms=HOUR)
    for stream in ("one", "two"):
        await one.events.open("session", stream, holder="me", request_id=b"1", retention_ms=HOUR)
        for first in (1, 4):
            await append(one, stream, first, [b"a", b"b", b"c"], limit=10)
    await append(one, "one", 7, [b"end"], finish=True)
    await two.events.take_over("session", "own", holder="me", retention_ms=HOUR)
    assert await two.events.finish_dead("session", "two", dead_holder="me", line=b"dead", limit=10, retention_ms=HOUR)
    await two.events.read_after("session", "one", 0, retention_ms=HOUR)
    await one.changes.record(["tools"])
    await two.changes.read_since(None)
    async with two.courier.mailbox() as letters:
        for letter in (b"short", bytes(100_000)):
            await one.courier.send(two.id, letter)
            assert await next_of(letters) == letter
    await one.courier.heartbeat(lease_ms=HOUR)
    assert await two.courier.find_dead([one.id, two.id]) == {two.id}
    assert one.state is not None
    await one.state.open("caller", b"state", caller=b"ann", mark=mark, idle_ms=HOUR, limit=9)
    await one.replay_guard.add(bytes(32), ttl_ms=HOUR)
    assert await one.rate_limits.acquire(b"caller", limit=1, period_ms=HOUR, burst=1) == 0
    assert await two.rate_limits.acquire(b"caller", limit=1, period_ms=HOUR, burst=1) > 0


async def append(replica: Replica, stream: str, first: int, lines: list[bytes], **options: Any) -> bool:
    given: dict[str, Any] = {"holder": "me", "limit": 1000, "retention_ms": HOUR} | options
    return await replica.events.append("session", stream, first=first, lines=lines, **given)


async def next_of(hints: AsyncIterator[Any]) -> Any:
    with trio.fail_after(PATIENCE):
        return await anext(hints)


async def until(holds: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE):
        while not holds():  # noqa: ASYNC110 - Redis tells nobody
            await trio.sleep(0.01)


async def until_gap(hints: AsyncIterator[Any]) -> None:
    while not isinstance(await next_of(hints), HintsLost):
        pass


async def until_done(call: Callable[[], Awaitable[Any]]) -> Any:
    """Make the call until the storage can be used."""
    with trio.fail_after(PATIENCE):
        while True:
            try:
                return await call()
            except (StoreDown, Uncertain):
                await trio.sleep(0.01)
