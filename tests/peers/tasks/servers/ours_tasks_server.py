"""A server with tasks, written with trio-mcp, over stdio or, with the argument ``http``, over HTTP."""

import sys

import trio
from journal import note

from trio_mcp import CodedError, RequestContext, Server, TaskSettings, ToolError, serve_http, serve_stdio

server = Server("ours", "1.2.3", tasks=TaskSettings(poll_interval=0.1))

FORM = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}


async def start(ctx: RequestContext) -> None:
    """Be a task before anything is asked, where the call can be one."""
    if ctx.task is not None:
        await ctx.task.start()


@server.tool(task="optional")
async def work(steps: int, ctx: RequestContext) -> str:
    await start(ctx)
    for step in range(1, steps + 1):
        ctx.progress(step, steps, f"step {step}")
        await trio.sleep(0.15)  # so that the interval lets all of them through
    return f"{steps} steps"


@server.tool(task="optional")
async def ask_user(ctx: RequestContext) -> str:
    await start(ctx)
    answer = await ctx.elicit("Which colour?", FORM)
    return f"{answer.action} {answer.content['colour']}"


@server.tool(task="optional")
async def ask_model(ctx: RequestContext) -> str:
    await start(ctx)
    answer = await ctx.sample("What is it?", max_tokens=10)
    return f"{answer.model}: {answer.content.text}"


@server.tool(task="optional")
async def fail(ctx: RequestContext) -> str:
    await start(ctx)
    raise ToolError("no luck today")


@server.tool(task="optional")
async def crash(ctx: RequestContext) -> str:
    await start(ctx)
    raise CodedError(-32099, "broken", {"part": "spring"})


@server.tool(task="required")
async def hang(ctx: RequestContext) -> str:
    await start(ctx)
    note("hang began")
    try:
        await trio.sleep_forever()
    finally:
        note(f"hang ended: {ctx.cancellation.cause.value}")


@server.tool
async def plain() -> str:
    return "plain"


@server.tool
async def elicit_as_task(ctx: RequestContext) -> str:
    answer = await ctx.elicit("Which colour?", FORM, task_ttl=60)
    return f"{answer.action} {answer.content['colour']}"


@server.tool
async def sample_as_task(ctx: RequestContext) -> str:
    answer = await ctx.sample("What is it?", max_tokens=10, task_ttl=60)
    return f"{answer.model}: {answer.content.text}"


async def over_http() -> None:
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(serve_http, server, "127.0.0.1", 0)
        print(listeners[0].socket.getsockname()[1], flush=True)


if sys.argv[1:] == ["http"]:
    trio.run(over_http)
else:
    trio.run(serve_stdio, server)
note("server ended")
