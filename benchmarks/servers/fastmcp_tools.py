"""The tools, written with ``fastmcp``."""

import time
import warnings

import anyio
from fastmcp import Context, FastMCP
from marking import answer, began, ended, question, row
from mcp_types import SamplingMessage, TextContent

warnings.simplefilter("ignore")  # it calls logging and sampling deprecated: each call would cost a warning
server = FastMCP("measured")


@server.tool(output_schema=None)
async def echo(text: str) -> str:
    return text


@server.tool(output_schema=None)
async def notify(count: int, ctx: Context) -> str:
    for number in range(count):
        await ctx.info(row(number))
    return f"{count} rows"


@server.tool(output_schema=None)
async def progress(count: int, ctx: Context) -> str:
    began = time.perf_counter()
    for number in range(1, count + 1):
        await ctx.report_progress(number, count)
    return repr(time.perf_counter() - began)


@server.tool(output_schema=None)
async def ask(count: int, ctx: Context) -> str:
    right = 0
    for number in range(count):
        message = SamplingMessage(role="user", content=TextContent(type="text", text=question(number)))
        reply = await ctx.session.create_message([message], max_tokens=10, related_request_id=ctx.request_id)
        assert isinstance(reply.content, TextContent)
        right += reply.content.text == answer(number)
    return f"{right} answers"


@server.tool(output_schema=None)
async def hang(number: int) -> None:
    began(number)
    try:
        await anyio.sleep_forever()
    finally:
        ended(number)


@server.tool(output_schema=None)
async def flood(number: int, ctx: Context) -> str:
    began(number)
    rows = 0
    try:
        while True:
            await ctx.info(row(rows))
            rows += 1
    finally:
        ended(number)
