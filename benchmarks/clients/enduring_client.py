"""``enduring_client.py CALLS SERVER...`` makes calls for `benchmarks.endurance`, and writes their number as it goes.

Of 1,000 calls, eight bring logs, eight a sampling request, and eight are cancelled.
"""

import sys
from collections import Counter

import trio

from trio_mcp import open_stdio
from trio_mcp.types import CreateMessageResult, TextContent

PERIOD = 125
KINDS = {41: "notify", 82: "ask", 123: "hang"}
"""What is called in place of an echo, by the remainder of the number of the call."""
WIDTH = 64
LOT = 10_000


def check(found, expected):
    if found != expected:
        raise SystemExit(f"found {found!r}, not {expected!r}")


async def main():
    calls, (_, count, *server) = Counter(), sys.argv
    rows, hanging = 0, {}

    def logged(params):
        nonlocal rows
        number, _, words = params.data.partition(" ")
        if words == "began":
            hanging.pop(int(number)).cancel(reason="it has begun")
        else:
            rows += 1

    async def sample(params):
        return CreateMessageResult(role="assistant", content=TextContent("answer"), model="driver")

    async def text_of(tool, **arguments):
        return (await client.call_tool(tool, arguments)).text

    async def make(number):
        kind = KINDS.get(number % PERIOD, "echo")
        calls[kind] += 1
        match kind:
            case "echo":
                words = f"{number:08} is echoed, and so is this text, to its end"
                check(await text_of("echo", text=words), words)
            case "notify":
                check(await text_of("notify", count=5), "5 rows")
            case "ask":
                check(await text_of("ask"), "answer")
            case "hang":
                with trio.CancelScope() as hanging[number]:
                    await text_of("hang", number=number)
                check(number in hanging, False)

    async def caller(numbers):
        for number in numbers:
            await make(number)

    async with open_stdio(server, era="legacy", on_log=logged, sampling=sample) as client:
        for first in range(0, int(count), LOT):
            numbers = iter(range(first, first + LOT))
            async with trio.open_nursery() as nursery:
                for _ in range(WIDTH):
                    nursery.start_soon(caller, numbers)
            print(first + LOT, flush=True)
        check(await text_of("cancels"), f"{calls['hang']} cancels, 0 open")
    check(rows, 5 * calls["notify"])


trio.run(main)
