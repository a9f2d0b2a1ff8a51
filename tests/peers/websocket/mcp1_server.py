"""A server written with ``mcp`` 1.30 and its `websocket_server`; it says its port on standard output."""

import socket
import sys
from dataclasses import dataclass

import anyio
import uvicorn
from journal import note
from mcp.server.fastmcp import Context, FastMCP
from mcp.server.websocket import websocket_server
from mcp.types import SamplingMessage, TextContent
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute

server = FastMCP("peer", instructions="Ask nicely.", log_level="ERROR")


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
    raise ValueError("no luck today")


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
    try:
        await ctx.report_progress(1)
        await anyio.sleep_forever()
    finally:
        note("hang ended")


@server.tool()
async def ask_model(question: str, ctx: Context) -> str:
    message = SamplingMessage(role="user", content=TextContent(type="text", text=question))
    answer = await ctx.session.create_message([message], max_tokens=10, system_prompt="Be brief.")
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


@server.resource("note://motto", mime_type="text/plain")
def motto() -> str:
    return "never late, never lost"


async def endpoint(websocket) -> None:
    async def receive():
        """With a note of the code with which the client closed, which the package keeps to itself."""
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            note(f"closed with {message['code']}")
        return message

    async with websocket_server(websocket.scope, receive, websocket.send) as (incoming, outgoing):
        mcp = server._mcp_server  # the only way to another transport
        await mcp.run(incoming, outgoing, mcp.create_initialization_options())


class Announced(uvicorn.Server):
    """Says its port when it accepts connections."""

    async def startup(self, sockets=None) -> None:
        await super().startup(sockets)
        print(sockets[0].getsockname()[1], flush=True)


with socket.create_server(("127.0.0.1", 0)) as listener:
    server.settings.sse_path = "/mcp"
    apps = {
        "sse": server.sse_app,
        "http": server.streamable_http_app,
        "websocket": lambda: Starlette(routes=[WebSocketRoute("/mcp", endpoint)]),
    }
    app = apps[sys.argv[1]]()
    Announced(uvicorn.Config(app, log_level="error")).run([listener])
