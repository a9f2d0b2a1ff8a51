"""A server that does all that a call can meet: it reports, asks, fails, hangs and dies."""

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import trio

from trio_mcp import CodedError, RequestContext, Server, ToolError
from trio_mcp.types import CallToolResult, Completion, ImageContent, TextContent

server = Server("desk", "1.0")


@server.tool
async def pack(files: int, ctx: RequestContext) -> str:
    await ctx.log.debug("found the \x07box")
    await ctx.log.warning({"box": "is \x1b[31mold"})
    for done in range(1, files + 1):
        ctx.progress(done, total=files, message=f"file [{done}]")
    return f"packed {files}"


@server.tool
async def fail() -> str:
    raise ToolError("no luck today")


@server.tool
async def crash() -> str:
    return {}["no \x1b[31msuch key"]


@server.tool
async def picture() -> CallToolResult:
    return CallToolResult([TextContent("a dot\x07"), ImageContent("AAAA", "image/png")])


@server.tool
async def locked() -> str:
    page = {"mode": "url", "url": "https://b\u00fccher.example/in", "message": "Sign \x1bin.", "elicitationId": "1"}
    raise CodedError(-32042, "Sign in first", {"elicitations": [page]})


@server.tool
async def die() -> str:
    print("oh \x1b[1mno", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


@dataclass
class Order:
    dish: Annotated[str, msgspec.Meta(min_length=3, description="Dish")]
    size: Literal["small", "large"]
    plates: Annotated[int, msgspec.Meta(ge=1, le=9)] = 2
    spicy: bool = False


@server.tool
async def order(ctx: RequestContext) -> str:
    ctx.progress(1, total=2)
    answer = await ctx.elicit("What will it be?", Order)
    return f"{answer.action} {answer.as_(Order)}"


@dataclass
class Word:
    word: str


@server.tool
async def both(ctx: RequestContext) -> str:
    """Ask two questions at the same time."""
    words: dict[str, str] = {}

    async def ask(question: str) -> None:
        answer = (await ctx.elicit(question, Word)).as_(Word)
        words[question] = answer.word if answer else "nothing"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, "first?")
        nursery.start_soon(ask, "second?")
    return f"first: {words['first?']}, second: {words['second?']}"


@server.tool
async def visit(url: str, ctx: RequestContext) -> str:
    return (await ctx.elicit_url("Sign in, please.", url, "sign-in-1")).action


@server.tool
async def think(ctx: RequestContext) -> str:
    answer = await ctx.sample("How many legs has a spider?", max_tokens=10, system_prompt="Be brief.")
    return f"{answer.model}: {answer.content.text}"


@server.tool
async def hang(note: str, ctx: RequestContext) -> None:
    """Say in a file which process this is, and then how it ended."""
    written = Path(note)
    written.write_text(str(os.getpid()))  # noqa: ASYNC240 - it is quick
    ctx.progress(1, total=3, message="hanging")
    try:
        await trio.sleep_forever()
    finally:
        written.write_text(ctx.cancellation.reason or "" if ctx.cancellation else "no cancel")  # noqa: ASYNC240


@server.resource("desk://note")
async def note(ctx: RequestContext) -> str:
    ctx.progress(1, total=1)
    return "soup\u2028\x07 of the day"


@server.resource("desk://dot", mime_type="image/png")
async def dot() -> bytes:
    return b"\x89PNG"


@server.resource("desk://broken")
async def broken() -> str:
    raise LookupError("the drawer is stuck")


@server.resource("desk://menu/{day}/{dish}")
async def menu(day: str, dish: str) -> str:
    return f"{dish} on {day}"


@server.prompt
async def praise(dish: str, tone: str = "warm") -> str:
    return f"Praise the {dish}, be {tone}.\x07"


@server.completion(resource="desk://menu/{day}/{dish}", argument="dish")
async def dishes(value: str) -> list[str]:
    return [dish for dish in ("soup", "sorbet", "stew") if dish.startswith(value)]


@server.completion(prompt="praise", argument="tone")
async def tones(value: str, arguments: dict[str, str]) -> Completion:
    return Completion([f"{value}rm", f"{value}ry of {arguments.get('dish')}"], total=7, has_more=True)
