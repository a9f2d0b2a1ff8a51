"""Callers of servers with tasks, who see the plain results of the wire."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import attrs
import trio

from trio_mcp import Client, Server, open_memory
from trio_mcp.concurrency.contexts import asynccontextmanager
from trio_mcp.stores.task_store import TaskStore
from trio_mcp.tasks.records import TaskSettings
from trio_mcp.types import ElicitResult

__all__ = ["LEASE", "Caller", "calling", "settings"]

LEASE = 30.0
"""Seconds of `TaskSettings.lease` in these tests, all of which have a virtual clock."""


def settings(store: TaskStore | None = None, **others: Any) -> TaskSettings:
    """Settings for a server on the clock of trio, whose tasks start when they say so."""
    return TaskSettings(**{"store": store, "grace": 1000.0, "ttl": 1000.0, "lease": LEASE, **others})


@attrs.frozen
class Caller:
    """A client that declares the extension, and answers nothing by itself."""

    client: Client

    async def ask(self, method: str, /, meta: dict[str, Any] | None = None, **params: Any) -> dict[str, Any]:
        """The result of one request."""
        capabilities = {"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}
        ours = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": capabilities,
            **(meta or {}),
        }
        request = self.client._connection.outbound.request
        return await request(method, {**params, "_meta": ours}, self.client.revision)

    async def call(self, name: str, meta: dict[str, Any] | None = None, **arguments: Any) -> dict[str, Any]:
        """The answer to a call of a tool: its result, or a task."""
        return await self.ask("tools/call", meta, name=name, arguments=arguments)

    async def start(self, name: str, **arguments: Any) -> str:
        """The id of a call that has become a task."""
        answer = await self.call(name, **arguments)
        assert answer["resultType"] == "task", answer
        return answer["taskId"]

    async def get(self, task_id: str) -> dict[str, Any]:
        """The task as it is."""
        return await self.ask("tasks/get", taskId=task_id)

    async def cancel(self, task_id: str) -> None:
        """Cancel a task."""
        await self.ask("tasks/cancel", taskId=task_id)

    async def answer(self, task_id: str, content: dict[str, Any]) -> None:
        """Answer all questions of a task with the same content."""
        keys = (await self.get(task_id))["inputRequests"]
        responses = {key: {"action": "accept", "content": content} for key in keys}
        await self.ask("tasks/update", taskId=task_id, inputResponses=responses)

    async def text(self, task_id: str) -> str:
        """The text of the result of a task that has ended."""
        task = await self.get(task_id)
        assert task["status"] == "completed", task
        return task["result"]["content"][0]["text"]

    async def final(self, task_id: str) -> dict[str, Any]:
        """The task when it is over."""
        while (task := await self.get(task_id))["status"] in ("working", "input_required"):  # noqa: ASYNC110, a poll
            await trio.sleep(0.25)
        return task


@asynccontextmanager
async def calling(server: Server) -> AsyncGenerator[Caller]:
    """Serve ``server`` while inside, and call it."""
    options: Any = {"era": "modern", "elicitation": lambda _: ElicitResult("cancel")}
    async with open_memory(server, **options) as client:
        yield Caller(client)
