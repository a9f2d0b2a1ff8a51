"""The client of ``mcp`` 1.30 with its `websocket_client`, driving the server at ``url``, and telling what it saw.

python mcp1_client.py all|farewell URL
"""

import sys
from datetime import timedelta
from functools import partial
from typing import Any

import anyio
from mcp import ClientSession
from mcp.client import websocket
from mcp.types import (
    CancelledNotification,
    CancelledNotificationParams,
    ClientNotification,
    CreateMessageResult,
    ElicitResult,
    Implementation,
    ListRootsResult,
    PaginatedRequestParams,
    Root,
    TextContent,
)
from report import Report

report = Report()
logs: list[Any] = []
notified: list[str] = []
late: list[str] = []
asked: dict[str, Any] = {}
sockets: list[Any] = []
take_back: list[int] = []
taken_back = anyio.Event()


class Connect(websocket.ws_connect):
    """Keeps the connection, for the code it is closed with, which the package keeps to itself."""

    async def __aenter__(self):
        sockets.append(await super().__aenter__())
        return sockets[-1]


websocket.ws_connect = Connect


async def cancel(session: ClientSession, id: int) -> None:
    """Say that nobody waits any more, which this client never does by itself."""
    params = CancelledNotificationParams(requestId=id, reason="caller cancelled")
    await session.send_notification(ClientNotification(CancelledNotification(params=params)))


async def sample(context, params):
    (message,) = params.messages
    asked["sampling"] = [message.role, message.content.text, params.maxTokens, params.systemPrompt]
    if message.content.text == "never":
        # Nothing is read while this runs; so the answer goes out although the server has taken its question back.
        await cancel(context.session, take_back.pop())
        taken_back.set()
    content = TextContent(type="text", text="forty-two")
    return CreateMessageResult(role="assistant", content=content, model="deep-thought")


async def elicit(context, params):
    asked["elicitation"] = params.model_dump(by_alias=True, exclude_none=True)
    return ElicitResult(action="accept", content={"colour": "green"} if params.mode == "form" else None)


async def roots(context):
    return ListRootsResult(roots=[Root(uri="file:///home/pilot", name="home")])


async def log(params):
    logs.append([params.level, params.data, params.logger])


async def heard(message):
    """Notifications, and as errors the answers that nobody waited for."""
    if isinstance(message, Exception):
        late.append(str(message))
    else:
        notified.append(getattr(getattr(message, "root", None), "method", type(message).__name__))


def shown(result) -> dict[str, Any]:
    return result.model_dump(by_alias=True, mode="json", exclude_none=True, exclude={"meta"})


async def tools(session: ClientSession) -> dict[str, Any]:
    """All pages of them. The client then knows the schemas, and need not ask before it returns a result."""
    found, cursor = {}, None
    while True:
        page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
        found.update({tool.name: shown(tool) for tool in page.tools})
        cursor = page.nextCursor
        if cursor is None:
            return found


async def drive(session: ClientSession) -> None:
    async def call(tool: str, /, **arguments: Any) -> dict[str, Any]:
        return shown(await session.call_tool(tool, arguments))

    async def read(uri: str) -> Any:
        return [shown(contents) for contents in (await session.read_resource(uri)).contents]

    async def prompt(name: str, /, **arguments: str) -> Any:
        return [
            [message.role, message.content.text] for message in (await session.get_prompt(name, arguments)).messages
        ]

    async def many() -> list[str]:
        answers = {}

        async def one(number: int) -> None:
            answers[number] = (await session.call_tool("echo", {"text": str(number)})).content[0].text

        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(one, number)
        return [answers[number] for number in range(50)]

    async def progress() -> list[Any]:
        seen = []

        async def show(*progress) -> None:
            seen.append(progress)

        await session.call_tool("count", {"to": 6}, progress_callback=show)
        return seen

    async def chatter() -> list[Any]:
        logs.clear()
        await session.call_tool("chatter")
        return list(logs)

    async def ending_of(tool: str) -> str:
        return (await session.call_tool("ending_of", {"tool": tool})).content[0].text

    async def leave(tool: str, **arguments: Any) -> list[Any]:
        """Leave a call at its first sign of life, then ask how it ended over there."""
        notified.clear()
        id = session._request_id  # the next one
        with anyio.CancelScope() as scope:

            async def give_up(*_) -> None:
                await cancel(session, id)
                scope.cancel()

            await session.call_tool(tool, arguments, progress_callback=give_up)
        return [scope.cancelled_caught, await ending_of(tool)]

    async def leave_stubborn() -> list[Any]:
        how = await leave("stubborn")
        await session.call_tool("echo", {"text": ""})
        return [*how, list(notified)]

    async def time_out() -> None:
        id = session._request_id
        try:
            await session.call_tool("hang", read_timeout_seconds=timedelta(seconds=1.5))
        finally:
            await cancel(session, id)

    async def leave_asking() -> list[Any]:
        take_back.append(session._request_id)
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(session.call_tool, "ask_model", {"question": "never"})
                await taken_back.wait()
                ended = await ending_of("ask_model")
                scope.cancel()
        return [scope.cancelled_caught, ended]

    async def ping() -> None:
        await session.send_ping()

    async def set_level(level: str) -> None:
        await session.set_logging_level(level)

    async def change() -> list[str]:
        await session.subscribe_resource("note://motto")
        notified.clear()
        await session.call_tool("touch")
        await session.call_tool("grow")
        return [*notified, list(await tools(session))[-1]]

    step = report.step
    await step("tools", tools, session)
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
    await step("resource", read, "note://motto")
    await step("unknown resource", read, "note://nowhere")
    await step("prompt", partial(prompt, "greet", name="Bo", tone="dry"))
    await step("progress", progress)
    await step("logs", chatter)
    for tool in ("hang", "family", "in_thread"):
        await step(tool, leave, tool)
    await step("stubborn", leave_stubborn)
    await step("timeout", time_out)
    await step("timeout ending", ending_of, "hang")
    await step("sampling", partial(call, "ask_model", question="What is it?"))
    await step("sampling ending", ending_of, "ask_model")
    await step("elicitation", partial(call, "ask_user", message="Which colour?"))
    await step("roots", partial(call, "show_roots"))
    report.tell("asked", saw=asked.copy())
    await step("url elicitation", partial(call, "send_user", url="https://example.com/sign-in"))
    report.tell("url asked", saw=asked["elicitation"])
    await step("leave asking", leave_asking)
    await step("ping", ping)
    await step("set level", set_level, "emergency")
    await step("logs above level", chatter)
    await step("change", change)
    await step("still here", partial(call, "echo", text="still here"))
    report.tell("late", saw=late)


async def leave_hanging(session: ClientSession) -> None:
    """Leave with a call in flight, of which the server is not told."""
    async with anyio.create_task_group() as group:

        async def leave(*_) -> None:
            group.cancel_scope.cancel()

        await session.call_tool("hang", progress_callback=leave)


async def stay(session: ClientSession) -> None:
    """Tell of a call that is under way, and go on until the server has closed."""

    async def tell(progress, *_) -> None:
        if progress == 1:
            report.tell("under way", saw=True)

    async def count() -> dict[str, Any]:
        return shown(await session.call_tool("count", {"to": 6}, progress_callback=tell))

    await tools(session)
    await report.step("count", count)
    await sockets[0].wait_closed()
    report.tell("closed by the server", saw=[sockets[0].close_code, sockets[0].close_reason])


async def main(what: str, url: str) -> None:
    async with (
        websocket.websocket_client(url) as streams,
        ClientSession(
            *streams,
            sampling_callback=sample,
            elicitation_callback=elicit,
            list_roots_callback=roots,
            logging_callback=log,
            message_handler=heard,
            read_timeout_seconds=timedelta(seconds=20),
            client_info=Implementation(name="mcp1", version="1.30.0"),
        ) as session,
    ):
        opening = await session.initialize()
        report.tell("opening", saw=shown(opening))
        if what == "all":
            await drive(session)
            await leave_hanging(session)
        else:
            await stay(session)
    report.tell("closed", saw=[sockets[0].close_code, sockets[0].close_reason])


anyio.run(main, *sys.argv[1:])
