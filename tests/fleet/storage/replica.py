"""A process that takes part as a replica of the server "weather", until it is killed.

Arguments: the file. The first line on standard output is the id of the replica and the secret. It answers each letter,
which begins with the id of the sender and a space, with the letter in capitals. What it does meanwhile, as fast as it
can, is said when the file has accepted it: the number of a session, which has a log of as many events.
"""

import os
import sys

import trio

from trio_mcp.fleet.storage.sqlite.storage import SQLiteStorage
from trio_mcp.stores.shared import Replica

MANY = 2**30
HOUR = 3_600_000


async def answer(replica: Replica, task_status: trio.TaskStatus[None]) -> None:
    async with replica.courier.mailbox() as letters:
        task_status.started()
        async for letter in letters:
            assert isinstance(letter, bytes)
            await replica.courier.send(letter.partition(b" ")[0].decode(), letter.upper())


async def work(replica: Replica) -> None:
    number = 0
    while True:
        number += 1
        name = f"{replica.id} {number}"
        await replica.sessions.open(name, b"facts", caller=b"ann", mark=b"first", idle_ms=HOUR, limit=MANY)
        assert await replica.sessions.change(name, b"new facts", expected_mark=b"first", mark=b"second", idle_ms=HOUR)
        await replica.events.open(name, "calls", holder=replica.id, request_id=b"1", retention_ms=HOUR)
        lines = [b"x" * 100] * (number % 10)
        assert await replica.events.append(
            name, "calls", holder=replica.id, first=1, lines=lines, limit=500, retention_ms=HOUR
        )
        await replica.changes.record([f"resource:{number % 100}"])
        os.write(1, b"%d\n" % number)


async def main(path: str) -> None:
    async with SQLiteStorage(path).join("weather") as replica, trio.open_nursery() as nursery:
        await nursery.start(answer, replica)
        await replica.courier.heartbeat(lease_ms=HOUR)
        os.write(1, f"{replica.id} {replica.secret.hex()}\n".encode())
        nursery.start_soon(work, replica)


trio.run(main, *sys.argv[1:])
