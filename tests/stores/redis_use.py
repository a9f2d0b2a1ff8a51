"""What tests of the storage in Redis have in common: use of all that is shared, and waiting."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import trio
from tests.patience import PATIENCE
from tests.stores.redis_server import RedisServer

from trio_mcp.stores.shared import Replica
from trio_mcp.stores.task_store import Gap, StoreDown, Uncertain, new_mark
from trio_mcp.testing.store_records import HOUR, create, record

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
    await one.sessions.open("session", b"facts", caller=b"ann", mark=mark, idle=HOUR, most=9)
    assert await two.sessions.change("session", b"other", was=mark, mark=b"new", idle=HOUR)
    await one.sessions.read("session", idle=HOUR)
    for stream in ("one", "two"):
        await one.events.open("session", stream, holder="me", request_id=b"1", keep=HOUR)
        for first in (1, 4):
            await append(one, stream, first, [b"a", b"b", b"c"], most=10)
    await append(one, "one", 7, [b"end"], finish=True)
    await two.events.take("session", "own", holder="me", keep=HOUR)
    assert await two.events.finish_dead("session", "two", dead="me", line=b"dead", most=10, keep=HOUR)
    await two.events.after("session", "one", 0, keep=HOUR)
    await one.changes.note(["tools"])
    await two.changes.since(None)
    async with two.courier.mailbox() as letters:
        for letter in (b"short", bytes(100_000)):
            await one.courier.post(two.id, letter)
            assert await next_of(letters) == letter
    await one.courier.live(lease=HOUR)
    assert await two.courier.dead([one.id, two.id]) == {two.id}
    await one.seen.add(bytes(32), ttl=HOUR)
    assert await one.rates.take(b"caller", most=1, per=HOUR, burst=1) == 0
    assert await two.rates.take(b"caller", most=1, per=HOUR, burst=1) > 0


async def append(replica: Replica, stream: str, first: int, lines: list[bytes], **options: Any) -> bool:
    given: dict[str, Any] = {"holder": "me", "most": 1000, "keep": HOUR} | options
    return await replica.events.append("session", stream, first=first, lines=lines, **given)


async def next_of(hints: AsyncIterator[Any]) -> Any:
    with trio.fail_after(PATIENCE):
        return await anext(hints)


async def until(holds: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE):
        while not holds():  # noqa: ASYNC110 - Redis tells nobody
            await trio.sleep(0.01)


async def until_gap(hints: AsyncIterator[Any]) -> None:
    while not isinstance(await next_of(hints), Gap):
        pass


async def until_done(call: Callable[[], Awaitable[Any]]) -> Any:
    """Make the call until the storage can be used."""
    with trio.fail_after(PATIENCE):
        while True:
            try:
                return await call()
            except (StoreDown, Uncertain):
                await trio.sleep(0.01)
