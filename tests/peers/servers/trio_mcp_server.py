"""A server written with trio-mcp, for the clients of others, over stdio.

With the argument ``websocket`` or ``http`` it listens, and says its port on standard output.
"""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

import trio
from journal import note

from trio_mcp import Limits, RequestContext, Server, ToolError, WorkerContext, serve_http, serve_stdio, serve_websocket
from trio_mcp.types import (
    AudioContent,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)


@asynccontextmanager
async def lifespan(_: Server) -> AsyncIterator[trio.lowlevel.TrioToken]:
    note("lifespan entered")
    yield trio.lowlevel.current_trio_token()
    note("lifespan left")


# Small pages, so that every client has to ask for more than one.
server = Server(
    "ours",
    "1.2.3",
    title="Our server",
    instructions="Ask away.",
    lifespan=lifespan,
    limits=Limits(drain_timeout=60),  # longer than any client waits before its signal, which some send after 2 s
    page_size=4,
)

ENDED = {tool: trio.open_memory_channel[str](10) for tool in ("hang", "stubborn", "family", "in_thread", "ask_model")}


def ended(tool: str, ctx: RequestContext | WorkerContext) -> None:
    """Note how a call of ``tool`` ended, from whatever thread."""
    cancellation = ctx.cancellation
    how = "not cancelled" if cancellation is None else f"{cancellation.cause.value}: {cancellation.reason}"
    ctx.lifespan.run_sync_soon(ENDED[tool][0].send_nowait, how)


@server.tool
async def ending_of(tool: Literal["hang", "stubborn", "family", "in_thread", "ask_model"]) -> str:
    """Wait until a call of ``tool`` has run its cleanup; tell how it ended."""
    return await ENDED[tool][1].receive()


@dataclass
class Weather:
    city: str
    celsius: float


@dataclass
class Choice:
    colour: str


@server.tool
async def echo(text: str) -> str:
    """Say it again."""
    return text


@server.tool
async def add(a: int, b: int) -> int:
    return a + b


@server.tool
async def weather(city: str) -> Weather:
    return Weather(city, 21.5)


@server.tool
async def exhibits() -> list[ContentBlock]:
    return [
        TextContent("text"),
        ImageContent("iVBORwA=", "image/png"),
        AudioContent("UklGRg==", "audio/wav"),
        ResourceLink(name="motto", uri="note://motto"),
        EmbeddedResource(TextResourceContents("note://motto", "never late", "text/plain")),
    ]


@server.tool
async def fail() -> str:
    raise ToolError("no luck today")


@server.tool
async def crash() -> str:
    raise RuntimeError("a secret")


@server.tool
async def count(to: int, ctx: RequestContext) -> int:
    for number in range(1, to + 1):
        ctx.progress(number, to, f"step {number}")
        await trio.sleep(0.06)  # so that the interval lets some of them through
    return to


@server.tool
async def chatter(ctx: RequestContext) -> str:
    await ctx.log.debug("whispered")
    await ctx.log.info({"said": "aloud"}, logger="mouth")
    await ctx.log.emergency("shouted")
    return "said it all"


@server.tool
async def hang(ctx: RequestContext) -> str:
    ctx.progress(1)
    try:
        await trio.sleep_forever()
    finally:
        ended("hang", ctx)


@server.tool
async def stubborn(ctx: RequestContext) -> str:
    """Swallow the cancel and go on as if nothing had happened."""
    ctx.progress(1)
    with trio.CancelScope() as scope:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            scope.shield = True
            await trio.sleep(0.12)  # longer than the interval, so that nothing but the cancel holds progress back
            ctx.progress(2)
            await ctx.log.emergency("too late")
            ended("stubborn", ctx)
    return "too late"


@server.tool
async def family(ctx: RequestContext) -> str:
    """Leave the work to a child task."""

    async def child() -> None:
        ctx.progress(1)
        try:
            await trio.sleep_forever()
        finally:
            ended("family", ctx)

    ctx.nursery.start_soon(child)
    return "the child is still busy"


@server.tool
def in_thread(ctx: WorkerContext) -> str:
    ctx.progress(1)
    try:
        ctx.cancelled.wait(30)
        ctx.check_cancelled()
    finally:
        ended("in_thread", ctx)
    return "nobody cared"


@server.tool
async def ask_model(question: str, ctx: RequestContext) -> str:
    try:
        answer = await ctx.sample(question, max_tokens=10, system_prompt="Be brief.")
    finally:
        ended("ask_model", ctx)
    return f"{answer.model}: {answer.content.text}"


@server.tool
async def ask_user(message: str, ctx: RequestContext) -> str:
    answer = await ctx.elicit(message, Choice)
    choice = answer.as_(Choice)
    return answer.action if choice is None else f"{answer.action} {choice.colour}"


@server.tool
async def send_user(url: str, ctx: RequestContext) -> str:
    return (await ctx.elicit_url("Sign in, please.", url, "sign-in-1")).action


@server.tool
async def show_roots(ctx: RequestContext) -> list[str]:
    return [f"{root.name}: {root.uri}" for root in await ctx.list_roots()]


@server.tool
async def grow() -> str:
    async def grown() -> str:
        return "new here"

    server.tool(name="grown")(grown)
    return "grown"


@server.tool
async def touch() -> str:
    server.resource_updated("note://motto")
    return "touched"


@server.resource("note://motto", mime_type="text/plain")
async def motto() -> str:
    return "never late, never lost"


@server.resource("note://dot", mime_type="image/png")
async def dot() -> bytes:
    return b"\x89PNG\x00"


@server.resource("note://by/{author}/{title}")
async def note_by(author: str, title: str) -> str:
    return f"{title}, by {author}"


@server.prompt
async def greet(name: str, tone: str = "warm") -> str:
    """Words of welcome."""
    return f"Greet {name} in a {tone} tone."


@server.completion(prompt="greet", argument="name")
async def complete_name(value: str) -> list[str]:
    return [name for name in ("Ada", "Adele", "Bob") if name.startswith(value)]


@server.completion(resource="note://by/{author}/{title}", argument="title")
async def complete_title(value: str, arguments: dict[str, str]) -> list[str]:
    return [f"{value} of {arguments.get('author', 'nobody')}"]


async def listen(serve: Callable[..., Awaitable[None]]) -> None:
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(serve, server, port=0))
        print(listeners[0].socket.getsockname()[1], flush=True)


if sys.argv[1:] == ["websocket"]:
    trio.run(listen, serve_websocket)
elif sys.argv[1:] == ["http"]:
    trio.run(listen, serve_http)
else:
    trio.run(serve_stdio, server)
note("server ended")
