"""The tools, written with trio-mcp."""

import time

import trio
from marking import answer, began, ended, question, row

from trio_mcp import Limits, RequestContext, Server
from trio_mcp.types import TextContent

_LIMITS = Limits(max_in_flight=20_000, max_connections=10_000, max_subscriptions=10_000)
server = Server("measured", limits=_LIMITS)


@server.tool
async def echo(text: str) -> str:
    return text


@server.tool
async def notify(count: int, ctx: RequestContext) -> str:
    log = ctx.log
    for number in range(count):
        await log.info(row(number))
    return f"{count} rows"


@server.tool
async def progress(count: int, ctx: RequestContext) -> str:
    began = time.perf_counter()
    for number in range(1, count + 1):
        ctx.progress(number, count)
    return repr(time.perf_counter() - began)


@server.tool
async def ask(count: int, ctx: RequestContext) -> str:
    right = 0
    for number in range(count):
        reply = await ctx.sample(question(number), max_tokens=10)
        assert isinstance(reply.content, TextContent)
        right += reply.content.text == answer(number)
    return f"{right} answers"


@server.tool
async def hang(number: int) -> None:
    began(number)
    try:
        await trio.sleep_forever()
    finally:
        ended(number)


@server.tool
async def flood(number: int, ctx: RequestContext) -> None:
    log = ctx.log
    began(number)
    rows = 0
    try:
        while True:
            await log.info(row(rows))
            rows += 1
    finally:
        ended(number)


@server.tool
async def change() -> str:
    server.resource_updated("note://one")
    return "changed"


@server.resource("note://one")
def note() -> str:
    return "one"
