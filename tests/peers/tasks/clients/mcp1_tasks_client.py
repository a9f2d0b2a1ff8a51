"""The client of ``mcp`` 1.30 and its tasks, driving a server, and telling what it saw.

python mcp1_tasks_client.py stdio COMMAND…
python mcp1_tasks_client.py http URL
"""

import os
import sys
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import anyio
from mcp import ClientSession, StdioServerParameters, stdio_client
from mcp.client.experimental.task_handlers import ExperimentalTaskHandlers
from mcp.client.streamable_http import streamablehttp_client
from mcp.shared.exceptions import McpError
from mcp.shared.experimental.tasks.helpers import cancel_task
from mcp.shared.experimental.tasks.in_memory_task_store import InMemoryTaskStore
from mcp.types import (
    CallToolResult,
    CancelTaskResult,
    ClientRequest,
    CreateMessageResult,
    CreateTaskResult,
    ElicitResult,
    GetTaskPayloadRequest,
    GetTaskPayloadRequestParams,
    GetTaskPayloadResult,
    GetTaskResult,
    Implementation,
    ListTasksResult,
    TextContent,
)
from report import Report

McpError.code = property(lambda error: error.error.code)  # which is where a report looks

report = Report()
notified: list[dict[str, Any]] = []
asked: list[dict[str, Any]] = []
store = InMemoryTaskStore()


def shown(result) -> dict[str, Any]:
    return result.model_dump(by_alias=True, mode="json", exclude_none=True)


async def elicit(context, params):
    asked.append(shown(params))
    return ElicitResult(action="accept", content={"colour": "green"})


async def sample(context, params):
    asked.append(shown(params))
    content = TextContent(type="text", text="forty-two")
    return CreateMessageResult(role="assistant", content=content, model="deep-thought")


async def heard(message):
    if not isinstance(message, Exception) and hasattr(message, "root"):
        notified.append(shown(message.root))


class OwnTasks:
    """The tasks that this client runs for the server."""

    def __init__(self, group):
        self.group = group

    def handlers(self):
        return ExperimentalTaskHandlers(
            get_task=self.get,
            get_task_result=self.result,
            list_tasks=self.list,
            cancel_task=self.cancel,
            augmented_sampling=partial(self.create, sample),
            augmented_elicitation=partial(self.create, elicit),
        )

    async def create(self, answer, context, params, metadata):
        task = await store.create_task(metadata)

        async def run():
            await anyio.sleep(0.1)
            await store.store_result(task.taskId, await answer(context, params))
            await store.update_task(task.taskId, status="completed")

        self.group.start_soon(run)
        return CreateTaskResult(task=task)

    async def get(self, context, params):
        return GetTaskResult(**shown(await store.get_task(params.taskId)))

    async def result(self, context, params):
        return GetTaskPayloadResult(**shown(await store.get_result(params.taskId)))

    async def list(self, context, params):
        tasks, cursor = await store.list_tasks(params.cursor if params else None)
        return ListTasksResult(tasks=tasks, nextCursor=cursor)

    async def cancel(self, context, params):
        return CancelTaskResult(**shown(await cancel_task(store, params.taskId)))


async def drive(session: ClientSession) -> None:
    tasks = session.experimental
    ids: dict[str, str] = {}

    async def create(tool: str, ttl: int = 60_000, /, **arguments: Any) -> dict[str, Any]:
        created = await tasks.call_tool_as_task(tool, arguments, ttl=ttl)
        ids[tool] = created.task.taskId
        return shown(created)

    async def poll(tool: str) -> list[list[Any]]:
        """The statuses and their messages until the end, each once."""
        seen: list[list[Any]] = []
        waits = False
        async with anyio.create_task_group() as group:
            async for task in tasks.poll_task(ids[tool]):
                if [task.status, task.statusMessage] not in seen:
                    seen.append([task.status, task.statusMessage])
                if task.status == "input_required" and not waits:
                    waits = True  # whoever sees this fetches the result, which brings the question
                    group.start_soon(tasks.get_task_result, ids[tool], CallToolResult)
        return seen

    async def whole(tool: str, /, **arguments: Any) -> dict[str, Any]:
        """A task from its creation to its result."""
        return {
            "created": await create(tool, **arguments),
            "seen": await poll(tool),
            "result": await result(tool),
        }

    async def result(tool: str) -> dict[str, Any]:
        request = GetTaskPayloadRequest(params=GetTaskPayloadRequestParams(taskId=ids[tool]))
        return shown(await session.send_request(ClientRequest(request), GetTaskPayloadResult))

    async def get(tool: str) -> dict[str, Any]:
        return shown(await tasks.get_task(ids[tool]))

    async def cancel(tool: str) -> dict[str, Any]:
        return shown(await tasks.cancel_task(ids[tool]))

    async def progress() -> dict[str, Any]:
        """The token of a request that was answered with a task remains good, of which only the wire knows."""
        notified.clear()
        created = await tasks.call_tool_as_task("work", {"steps": 3}, meta={"progressToken": "a task"})
        ids["work"] = created.task.taskId
        await result("work")
        return {"task": ids["work"], "heard": [one for one in notified if one["method"] == "notifications/progress"]}

    async def statuses() -> list[dict[str, Any]]:
        """What was told of the last task of ``work`` without being asked: the end comes when it comes."""
        for _ in range(50):
            told = [one["params"] for one in notified if one["method"] == "notifications/tasks/status"]
            told = [one for one in told if one["taskId"] == ids["work"]]
            if told and told[-1]["status"] == "completed":
                break
            await anyio.sleep(0.1)
        return told

    async def listed() -> list[str]:
        found, cursor = [], None
        while True:
            page = await tasks.list_tasks(cursor)
            found += [task.taskId for task in page.tasks]
            cursor = page.nextCursor
            if cursor is None:
                return [name for name, id in ids.items() if id in found]

    async def call(tool: str, /, **arguments: Any) -> dict[str, Any]:
        return shown(await session.call_tool(tool, arguments))

    async def expired() -> dict[str, Any]:
        """A task that lives as long as it asked to, and what becomes of it then."""
        created = await create("hang", 300)
        await anyio.sleep(created["task"]["ttl"] / 1000 + 0.2 if created["task"]["ttl"] < 5000 else 0)
        return await get("hang")

    step = report.step
    await step("tools", lambda: supports(session))
    await step("work", partial(whole, "work", steps=3))
    await step("progress", progress)
    await step("statuses", statuses)
    for tool in ("ask_user", "ask_model"):
        await step(tool, partial(whole, tool))
        report.tell(f"{tool} asked", saw=[asked.copy(), ids.get(tool)])
        asked.clear()
    await step("fail", partial(whole, "fail"))
    await step("crash created", partial(create, "crash"))
    await step("crash seen", partial(poll, "crash"))
    await step("crash", partial(result, "crash"))
    await step("hang", partial(create, "hang"))
    await step("hang working", partial(get, "hang"))
    await step("hang cancelled", partial(cancel, "hang"))
    await step("hang after", partial(get, "hang"))
    await step("hang result", partial(result, "hang"))
    await step("cancel again", partial(cancel, "hang"))
    await step("cancel completed", partial(cancel, "work"))
    await step("listed", listed)
    ids["unknown"] = "no such task"
    await step("get unknown", partial(get, "unknown"))
    await step("result unknown", partial(result, "unknown"))
    await step("cancel unknown", partial(cancel, "unknown"))
    await step("work without a task", partial(call, "work", steps=1))
    await step("ask_user without a task", partial(call, "ask_user"))
    await step("hang without a task", partial(call, "hang"))
    await step("plain as a task", partial(create, "plain"))
    await step("expired", expired)
    for tool in ("elicit_as_task", "sample_as_task"):
        asked.clear()
        await step(tool, partial(call, tool))
        report.tell(f"{tool} asked", saw=asked.copy())
    await step("still here", partial(call, "plain"))


async def supports(session: ClientSession) -> dict[str, Any]:
    tools = (await session.list_tools()).tools
    return {tool.name: tool.execution and tool.execution.taskSupport for tool in tools}


@asynccontextmanager
async def reach(over, target):
    if over == "http":
        async with streamablehttp_client(*target) as (incoming, outgoing, _):
            yield incoming, outgoing
    else:
        command, *args = target
        async with stdio_client(StdioServerParameters(command=command, args=args, env=dict(os.environ))) as streams:
            yield streams


async def main(over: str, *target: str) -> None:
    async with reach(over, target) as streams, anyio.create_task_group() as group:
        async with ClientSession(
            *streams,
            sampling_callback=sample,
            elicitation_callback=elicit,
            message_handler=heard,
            read_timeout_seconds=timedelta(seconds=20),
            client_info=Implementation(name="mcp1", version="1.30.0"),
            experimental_task_handlers=OwnTasks(group).handlers(),
        ) as session:
            opening = await session.initialize()
            report.tell("opening", saw=shown(opening))
            await drive(session)
        group.cancel_scope.cancel()


anyio.run(main, *sys.argv[1:])
