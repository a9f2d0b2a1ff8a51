"""A server written with the official ``mcp`` package."""

from dataclasses import dataclass

import anyio
from journal import note, wait_for
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import Completion, ResourceTemplateReference, SamplingMessage, TextContent
from pydantic import BaseModel
from serving import serve

server = MCPServer("peer", version="7.0", instructions="Ask nicely.")


@dataclass
class Weather:
    city: str
    celsius: float


class Choice(BaseModel):
    colour: str


@server.tool()
def echo(text: str) -> str:
    """Say it again."""
    return text


@server.tool()
def add(a: int, b: int) -> int:
    return a + b


@server.tool()
def weather(city: str) -> Weather:
    return Weather(city, 21.5)


@server.tool()
def fail() -> str:
    raise ToolError("no luck today")


@server.tool()
async def count(to: int, ctx: Context) -> int:
    for number in range(1, to + 1):
        await ctx.report_progress(number, to, f"step {number}")
    return to


@server.tool()
async def chatter(ctx: Context) -> str:
    await ctx.log("debug", "whispered")
    await ctx.log("info", "aloud", logger_name="mouth")
    await ctx.log("error", "shouted")
    return "said it all"


@server.tool()
async def hang(ctx: Context) -> str:
    note("hang began")
    await ctx.report_progress(1)
    try:
        await anyio.sleep_forever()
    finally:
        note("hang ended")


@server.tool()
def block(until: str) -> str:
    """Runs in a thread, which nobody can interrupt."""
    note("block began")
    wait_for(until)
    note("block ended")
    return "too late"


@server.tool()
async def come_back(ctx: Context) -> str:
    """Over HTTP, in the legacy era, the client has to come back for the answer."""
    await ctx.report_progress(1)
    await ctx.close_sse_stream()
    await ctx.report_progress(2)
    return "welcome back"


@server.tool()
async def hush(ctx: Context) -> str:
    """Over HTTP, in the legacy era, the client has to come back for the change."""
    await ctx.close_standalone_sse_stream()
    await ctx.session.send_tool_list_changed()
    return "changed"


@server.tool()
async def ask_model(question: str, ctx: Context) -> str:
    message = SamplingMessage(role="user", content=TextContent(type="text", text=question))
    note("ask_model began")
    try:
        answer = await ctx.session.create_message(
            [message], max_tokens=10, system_prompt="Be brief.", related_request_id=ctx.request_id
        )
    finally:
        note("ask_model ended")
    return f"{answer.model}: {answer.content.text}"


@server.tool()
async def ask_user(message: str, ctx: Context) -> str:
    answer = await ctx.elicit(message, Choice)
    return f"{answer.action} {answer.data.colour}" if answer.action == "accept" else answer.action


@server.tool()
async def show_roots(ctx: Context) -> list[str]:
    return [str(root.uri) for root in (await ctx.session.list_roots()).roots]


@server.tool()
async def change(ctx: Context) -> str:
    await ctx.session.send_tool_list_changed()
    await ctx.session.send_resource_updated("note://motto")
    return "changed"


@server.tool()
async def publish(ctx: Context) -> str:
    await ctx.notify_tools_changed()
    await ctx.notify_resource_updated("note://motto")
    return "published"


@server.resource("note://motto", mime_type="text/plain")
def motto() -> str:
    return "never late, never lost"


@server.resource("note://dot", mime_type="image/png")
def dot() -> bytes:
    return b"\x89PNG\x00"


@server.resource("note://by/{author}/{title}")
def note_by(author: str, title: str) -> str:
    return f"{title}, by {author}"


@server.prompt()
def greet(name: str, tone: str = "warm") -> str:
    """Words of welcome."""
    return f"Greet {name} in a {tone} tone."


@server.completion()
async def complete(ref, argument, context):
    if isinstance(ref, ResourceTemplateReference):
        author = (context.arguments or {}).get("author", "nobody") if context else "nobody"
        return Completion(values=[f"{argument.value} of {author}"])
    names = ["Ada", "Adele", "Bob"]
    return Completion(values=[name for name in names if name.startswith(argument.value)], total=2, has_more=False)


serve(server.run, server.streamable_http_app)
