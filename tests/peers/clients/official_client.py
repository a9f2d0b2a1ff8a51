"""The client of the official ``mcp`` package, driving the server ``command``, and telling what it saw.

python official_client.py legacy|modern|pinned JOURNAL COMMAND...
python official_client.py legacy|modern|pinned JOURNAL http://...
"""

import sys
from functools import partial
from typing import Any

import anyio
from mcp import Client, StdioServerParameters
from mcp_types import (
    CreateMessageResult,
    ElicitResult,
    ListRootsResult,
    PromptReference,
    ResourceTemplateReference,
    Root,
    TextContent,
)
from report import Report

MODES = {"legacy": "legacy", "modern": "auto", "pinned": "2026-07-28"}
report = Report()
logs: list[Any] = []
notified: list[str] = []
news = [anyio.Event()]
asked: dict[str, Any] = {}
never_asked, never_cancelled = anyio.Event(), anyio.Event()


async def sample(context, params):
    (message,) = params.messages
    asked["sampling"] = [message.role, message.content.text, params.max_tokens, params.system_prompt]
    if message.content.text == "never":
        never_asked.set()
        try:
            await anyio.sleep_forever()
        finally:
            never_cancelled.set()
    content = TextContent(type="text", text="forty-two")
    return CreateMessageResult(role="assistant", content=content, model="deep-thought")


async def elicit(context, params):
    asked["elicitation"] = params.model_dump(by_alias=True, exclude_none=True)
    return ElicitResult(action="accept", content={"colour": "green"} if params.mode == "form" else None)


async def roots(context):
    return ListRootsResult(roots=[Root(uri="file:///home/pilot", name="home")])


async def log(params):
    logs.append([params.level, params.data, params.logger])


async def notice(message):
    notified.append(getattr(message, "method", repr(message)))
    news.pop().set()
    news.append(anyio.Event())


async def noticed(count: int) -> None:
    """Wait for notifications, which over HTTP come on a stream of their own."""
    with anyio.fail_after(10):
        while len(notified) < count:
            await news[0].wait()


async def pages(fetch, name: str) -> list[Any]:
    items, cursor = [], None
    while True:
        page = await fetch(cursor=cursor)
        items += getattr(page, name)
        cursor = page.next_cursor
        if cursor is None:
            return items


def shown(result) -> dict[str, Any]:
    return result.model_dump(by_alias=True, mode="json", exclude_none=True, exclude={"meta"})


async def drive(client: Client, era: str) -> None:
    async def call(tool: str, /, **arguments: Any) -> dict[str, Any]:
        return shown(await client.call_tool(tool, arguments))

    async def tools() -> dict[str, Any]:
        return {tool.name: shown(tool) for tool in await pages(client.list_tools, "tools")}

    async def lists() -> dict[str, Any]:
        return {
            "resources": [shown(item) for item in await pages(client.list_resources, "resources")],
            "templates": [shown(item) for item in await pages(client.list_resource_templates, "resource_templates")],
            "prompts": [shown(item) for item in await pages(client.list_prompts, "prompts")],
        }

    async def read(uri: str) -> Any:
        return [shown(contents) for contents in (await client.read_resource(uri)).contents]

    async def prompt(name: str, /, **arguments: str) -> Any:
        return [[message.role, message.content.text] for message in (await client.get_prompt(name, arguments)).messages]

    async def complete(ref, name: str, value: str, /, **settled: str) -> Any:
        result = await client.complete(ref, {"name": name, "value": value}, settled or None)
        return result.completion.values

    async def many() -> list[str]:
        answers = {}

        async def one(number: int) -> None:
            answers[number] = (await client.call_tool("echo", {"text": str(number)})).content[0].text

        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(one, number)
        return [answers[number] for number in range(50)]

    async def progress() -> list[Any]:
        seen = []

        async def show(*progress) -> None:
            seen.append(progress)

        await client.call_tool("count", {"to": 6}, progress_callback=show)
        return seen

    async def chatter() -> list[Any]:
        logs.clear()
        await client.call_tool("chatter")
        await client.call_tool("echo", {"text": ""})  # their callbacks run beside the call, not before its end
        return list(logs)

    async def leave(tool: str, **arguments: Any) -> list[Any]:
        """Leave a call at its first sign of life, then ask how it ended over there."""
        notified.clear()
        with anyio.CancelScope() as scope:

            async def give_up(*_) -> None:
                scope.cancel()

            await client.call_tool(tool, arguments, progress_callback=give_up)
        return [scope.cancelled_caught, (await client.call_tool("ending_of", {"tool": tool})).content[0].text]

    async def leave_stubborn() -> list[Any]:
        before = len(report.late.messages)
        how = await leave("stubborn")
        await client.call_tool("echo", {"text": ""})
        return [*how, list(notified), report.late.messages[before:]]

    async def time_out() -> None:
        await client.call_tool("hang", read_timeout_seconds=1.0)

    async def ping() -> None:
        await client.send_ping()

    async def set_level(level: str) -> None:
        await client.set_logging_level(level)

    async def leave_asking() -> str:
        async with anyio.create_task_group() as group:
            group.start_soon(partial(client.call_tool, "ask_model", {"question": "never"}))
            await never_asked.wait()
            group.cancel_scope.cancel()
        with anyio.fail_after(10):
            await never_cancelled.wait()
        return (await client.call_tool("ending_of", {"tool": "ask_model"})).content[0].text

    async def change() -> list[str]:
        await client.subscribe_resource("note://motto")
        notified.clear()
        await client.call_tool("touch")
        await client.call_tool("grow")
        await noticed(2)
        names = [tool.name for tool in await pages(partial(client.list_tools, cache_mode="refresh"), "tools")]
        return [*notified, names[-1]]

    async def listen() -> list[Any]:
        uris = ["note://motto", "note://nowhere"]
        async with client.listen(tools_list_changed=True, resource_subscriptions=uris) as changes:
            await client.call_tool("touch")
            await client.call_tool("grow")
            came = [await anext(changes), await anext(changes)]
        kinds = [[type(change).__name__, getattr(change, "uri", None)] for change in came]
        return [changes.honored.model_dump(by_alias=True, exclude_none=True), kinds]

    async def opening() -> dict[str, Any]:
        return {
            "revision": client.protocol_version,
            "server": shown(client.server_info) if client.server_info else None,
            "instructions": client.instructions,
            "capabilities": sorted(shown(client.server_capabilities)),
        }

    step = report.step
    by = ResourceTemplateReference(type="ref/resource", uri="note://by/{author}/{title}")
    await step("opening", opening)
    await step("tools", tools)
    await step("lists", lists)
    for text in ("", "naïve ☕ 𝄞", "line\nbreak\u2028and\x00more", "x" * 300_000):
        await step(f"echo {len(text)}", partial(call, "echo", text=text))
    await step("weather", partial(call, "weather", city="Oslo"))
    await step("add", partial(call, "add", a=2, b=3))
    await step("exhibits", partial(call, "exhibits"))
    await step("fail", partial(call, "fail"))
    await step("crash", partial(call, "crash"))
    await step("unknown tool", partial(call, "nowhere"))
    await step("bad arguments", partial(call, "add", a="two"))
    await step("many", many)
    await step("text resource", read, "note://motto")
    await step("bytes resource", read, "note://dot")
    await step("template resource", read, "note://by/Ada/Engines")
    await step("unknown resource", read, "note://nowhere")
    await step("prompt", partial(prompt, "greet", name="Bo", tone="dry"))
    await step("unknown prompt", prompt, "nowhere")
    await step("prompt completion", complete, PromptReference(type="ref/prompt", name="greet"), "name", "Ad")
    await step("template completion", partial(complete, by, "title", "Eng", author="Ada"))
    await step("progress", progress)
    await step("logs", chatter)
    await step("hang", leave, "hang")
    await step("family", leave, "family")
    await step("in_thread", leave, "in_thread")
    await step("stubborn", leave_stubborn)
    await step("timeout", time_out)
    await step("timeout ending", partial(call, "ending_of", tool="hang"))
    await step("sampling", partial(call, "ask_model", question="What is it?"))
    await step("sampling ending", partial(call, "ending_of", tool="ask_model"))
    await step("elicitation", partial(call, "ask_user", message="Which colour?"))
    await step("roots", partial(call, "show_roots"))
    report.tell("asked", saw=asked.copy())
    await step("url elicitation", partial(call, "send_user", url="https://example.com/sign-in"))
    report.tell("url asked", saw=asked.get("elicitation"))
    if era == "legacy":
        await step("leave asking", leave_asking)
        await step("ping", ping)
        await step("set level", set_level, "emergency")
        await step("logs above level", chatter)
        await step("change", change)
    else:
        await step("listen", listen)
    await step("still here", partial(call, "echo", text="still here"))
    report.tell("late", saw=report.late.messages)


async def main(era: str, journal: str, *command: str) -> None:
    server: Any = command[0]
    if not server.startswith("http://"):
        server = StdioServerParameters(command=command[0], args=list(command[1:]), env={"JOURNAL": journal})
    async with Client(
        server,
        mode=MODES[era],
        sampling_callback=sample,
        elicitation_callback=elicit,
        list_roots_callback=roots,
        logging_callback=log,
        log_level="info",
        message_handler=notice,
        read_timeout_seconds=20,
    ) as client:
        await drive(client, era)
    report.tell("closed", saw=True)


anyio.run(main, *sys.argv[1:])
