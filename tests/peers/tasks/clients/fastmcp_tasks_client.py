"""The client of ``fastmcp`` and its tasks, driving a server, and telling what it saw.

python fastmcp_tasks_client.py stdio COMMAND…
python fastmcp_tasks_client.py http URL
"""

import os
import sys
from functools import partial
from typing import Any

import anyio
from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from fastmcp_tasks.client import call_tool_task
from report import Report

report = Report()
asked: list[dict[str, Any]] = []


def shown(result) -> dict[str, Any]:
    return result.model_dump(by_alias=True, mode="json", exclude_none=True)


async def elicit(message, response_type, params, context):
    asked.append(shown(params))
    return response_type(colour="green")


async def drive(client: Client) -> None:
    handles: dict[str, Any] = {}

    async def call(tool: str, /, **arguments: Any) -> dict[str, Any]:
        """An ordinary call: whether a task was between is not told."""
        return shown(await client.call_tool_mcp(tool, arguments))

    async def start(tool: str, /, **arguments: Any) -> dict[str, Any]:
        handles[tool] = await call_tool_task(client, tool, arguments)
        return shown(handles[tool].create_result)

    async def status(tool: str) -> dict[str, Any]:
        return shown(await handles[tool].status())

    async def wait(tool: str, state: str | None = None) -> dict[str, Any]:
        return shown(await handles[tool].wait(state=state, timeout=15))

    async def result(tool: str) -> Any:
        return (await handles[tool].result()).content[0].text

    async def cancel(tool: str) -> None:
        await handles[tool].cancel()

    async def unknown() -> None:
        handles["work"].create_result.task_id = "no such task"
        await handles["work"].status()

    step = report.step
    await step("tools", lambda: names(client))
    await step("work", partial(call, "work", steps=3))
    await step("ask_user", partial(call, "ask_user"))
    report.tell("asked", saw=asked.copy())
    await step("fail", partial(call, "fail"))
    await step("crash", partial(call, "crash"))
    await step("plain", partial(call, "plain"))
    await step("work started", partial(start, "work", steps=5))
    await step("work under way", status, "work")
    await step("work ended", wait, "work")
    await step("work result", result, "work")
    await step("ask_user started", partial(start, "ask_user"))
    await step("ask_user asks", wait, "ask_user", "input_required")
    await step("ask_user result", result, "ask_user")
    await step("crash started", partial(start, "crash"))
    await step("crash ended", wait, "crash")
    await step("hang", partial(start, "hang"))
    await step("hang cancel", cancel, "hang")
    await step("hang cancelled", wait, "hang")
    await step("hang cancel again", cancel, "hang")
    await step("hang result", result, "hang")
    await step("plain as a task", partial(start, "plain"))
    await step("unknown", unknown)
    await step("still here", partial(call, "plain"))


async def names(client: Client) -> list[str]:
    return [tool.name for tool in await client.list_tools()]


async def main(over: str, *target: str) -> None:
    transport = target[0] if over == "http" else StdioTransport(target[0], list(target[1:]), dict(os.environ))
    async with Client(transport, elicitation_handler=elicit, timeout=20) as client:
        opening = client.initialize_result
        report.tell("opening", saw=opening and shown(opening))
        await drive(client)


anyio.run(main, *sys.argv[1:])
