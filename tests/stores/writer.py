"""A process that creates, changes and ends tasks as fast as it can, and says what was accepted, until it is killed.

Arguments: the file, and the name of the process, which its tasks begin with. Each line on standard output is the id and
the version of a record that the store has accepted.
"""

import os
import sys

import trio

from trio_mcp.stores.sqlite_store import SQLiteTaskStore
from trio_mcp.testing.stores.task_store_records import create, finished, next_of, record


async def main(path: str, name: str) -> None:
    store, number = SQLiteTaskStore(path), 0
    while True:
        number += 1
        task = await create(store, record(f"{name}-{number}", params=b"x" * (number % 7 * 1000), holder=name))
        os.write(1, b"%s %d\n" % (task.id.encode(), task.version))
        for _ in range(3):
            before = task
            if number % 2 and task.version == 2:
                task = finished(task)
            else:
                task = next_of(task, answers={"a": bytes(number % 5 * 1000)})
            assert await store.change(task, expected_mark=before.mark, holder=None)
            os.write(1, b"%s %d\n" % (task.id.encode(), task.version))


trio.run(main, *sys.argv[1:])
