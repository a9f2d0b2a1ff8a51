"""What a measured client is told to do, on its standard input, and how it says that it is done.

``calls COUNT WIDTH``: COUNT calls, WIDTH at once; ``calls COUNT WIDTH SIZE``: of so many bytes each.
``notifications COUNT``: one call that brings COUNT notifications.
"""

import sys


def done(right):
    """It is done; ``right`` is how many replies or notifications were as they had to be, and in their order."""
    print(right, flush=True)


class Rows:
    """Counts the notifications that come in order."""

    def __init__(self):
        self.right = 0

    def got(self, data):
        self.right += data == f"row {self.right} was read, checked and written"


async def obey(call, rows, run_in_thread, open_group):
    """Do what is ordered, until nothing more is. ``call`` takes the name of a tool and its arguments and gives the
    text of its result; the other two are of trio or anyio."""
    done(0)
    while order := (await run_in_thread(sys.stdin.readline)).split():
        match order:
            case ["calls", count, width, *size]:
                done(await _calls(call, int(count), int(width), int(*size), open_group))
            case ["notifications", count]:
                rows.right = 0
                await call("notify", {"count": int(count)})
                done(rows.right)


async def _calls(call, count, width, size, open_group):
    numbers, right = iter(range(count)), 0

    async def caller():
        nonlocal right
        for number in numbers:
            text = f"{number:08} is echoed, and so is this text, to its end".ljust(size, "x")
            reply = await call("echo", {"text": text})
            right += reply == text

    async with open_group() as group:
        for _ in range(width):
            group.start_soon(caller)
    return right
