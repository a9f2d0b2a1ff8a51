"""A process that claims tasks, a few at a time, until none are left, and prints which.

Arguments: the file, and the name of the process. Each line on standard output is the id and the epoch of a task.
"""

import sys

import trio

from trio_mcp.stores.sqlite_store import SQLiteTaskStore
from trio_mcp.testing.stores.task_store_records import claim


async def main(path: str, name: str) -> None:
    async with SQLiteTaskStore(path) as store:
        while claimed := await claim(store, name, limit=3):
            for task in claimed.values():
                print(task.id, task.epoch, flush=True)


trio.run(main, *sys.argv[1:])
