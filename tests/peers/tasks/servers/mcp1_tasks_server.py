"""A server with tasks, written with ``mcp`` 1.30: the last line of the package that has the tasks of 2025-11-25.

Serve one session by a process: with two, the tasks of one end with the other.
"""

from contextlib import asynccontextmanager

import anyio
from journal import note
from mcp.server.fastmcp.server import StreamableHTTPASGIApp
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.types import CallToolResult, SamplingMessage, TextContent, Tool, ToolExecution
from serving import serve
from starlette.applications import Starlette
from starlette.routing import Route

server = Server("peer", "1.30.0")
server.experimental.enable_tasks()

FORM = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}
SUPPORT = {
    "work": "optional",
    "ask_user": "optional",
    "ask_model": "optional",
    "fail": "optional",
    "crash": "optional",
    "hang": "required",
    "plain": None,
    "elicit_as_task": None,
    "sample_as_task": None,
}


def say(text, **more):
    return CallToolResult(content=[TextContent(type="text", text=text)], **more)


def question(text):
    return [SamplingMessage(role="user", content=TextContent(type="text", text=text))]


@server.list_tools()
async def list_tools():
    return [
        Tool(
            name=name,
            inputSchema={"type": "object"},
            execution=ToolExecution(taskSupport=support) if support else None,
        )
        for name, support in SUPPORT.items()
    ]


async def work(ctx, arguments, task):
    for step in range(1, arguments["steps"] + 1):
        if task is not None:
            await task.update_status(f"step {step}")
        if ctx.meta is not None and ctx.meta.progressToken is not None:
            await ctx.session.send_progress_notification(ctx.meta.progressToken, step, arguments["steps"])
        await anyio.sleep(0.1)
    return say(f"{arguments['steps']} steps")


async def ask_user(ctx, arguments, task):
    answer = await (task or ctx.session).elicit("Which colour?", FORM)
    return say(f"{answer.action} {answer.content['colour']}")


async def ask_model(ctx, arguments, task):
    answer = await (task or ctx.session).create_message(question("What is it?"), max_tokens=10)
    return say(f"{answer.model}: {answer.content.text}")


async def fail(ctx, arguments, task):
    return say("no luck today", isError=True)


async def crash(ctx, arguments, task):
    raise RuntimeError("broken")


async def hang(ctx, arguments, task):
    note("hang began")
    try:
        await anyio.sleep_forever()
    finally:
        note("hang ended")


async def plain(ctx, arguments, task):
    return say("plain")


async def elicit_as_task(ctx, arguments, task):
    answer = await ctx.session.experimental.elicit_as_task("Which colour?", FORM)
    return say(f"{answer.action} {answer.content['colour']}")


async def sample_as_task(ctx, arguments, task):
    answer = await ctx.session.experimental.create_message_as_task(question("What is it?"), max_tokens=10)
    return say(f"{answer.model}: {answer.content.text}")


TOOLS = {
    tool.__name__: tool
    for tool in (work, ask_user, ask_model, fail, crash, hang, plain, elicit_as_task, sample_as_task)
}


@server.call_tool()
async def call_tool(name, arguments):
    ctx = server.request_context
    ctx.experimental.validate_task_mode(SUPPORT[name] or "forbidden")
    if ctx.experimental.is_task:
        return await ctx.experimental.run_task(lambda task: TOOLS[name](ctx, arguments, task))
    return await TOOLS[name](ctx, arguments, None)


async def over_stdio():
    async with stdio_server() as streams:
        await server.run(*streams, server.create_initialization_options())


def over_http(event_store, retry_interval):
    sessions = StreamableHTTPSessionManager(server, event_store, retry_interval=retry_interval)

    @asynccontextmanager
    async def lifespan(app):
        async with sessions.run():
            yield

    return Starlette(routes=[Route("/mcp", StreamableHTTPASGIApp(sessions))], lifespan=lifespan)


serve(lambda: anyio.run(over_stdio), over_http)
