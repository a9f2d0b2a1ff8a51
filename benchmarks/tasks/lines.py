"""A server with tasks in this process, and the lines to and from it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count as numbers
from typing import Any

import trio

from trio_mcp.connecting.memory import open_server
from trio_mcp.transports.lines import LineTransport

from ..budget.scripted import ScriptedStream
from . import messages
from .messages import Form
from .offering import offering

__all__ = ["TaskLines", "open_lines"]


class TaskLines:
    """One connection, on which requests have this form."""

    def __init__(self, stream: ScriptedStream, form: Form) -> None:
        self._stream = stream
        self._form: Form = form
        self._ids = numbers(1)

    async def ask(self, request: Callable[[int], bytes], count: int = 1) -> dict[str, Any]:
        """Make ``count`` requests, one after another, and return the last reply. ``request`` is given the id."""
        reply: dict[str, Any] = {}
        for _ in range(count):
            request_id = next(self._ids)
            self._stream.give(request(request_id))
            received = await self._stream.reply(request_id)  # what the server tells and asks meanwhile, too
            reply = next(each for each in received if each.get("id") == request_id and "result" in each)
        return reply

    async def start(self, tool: str) -> str:
        """Start a task, and return its id."""
        return messages.task_id(
            await self.ask(lambda number: messages.call(self._form, number, tool, {"text": f"text {number}"}))
        )


@asynccontextmanager
async def open_lines(form: Form) -> AsyncIterator[TaskLines]:
    """A new server, and a connection to it. At the end nobody waits for its tasks."""
    stream = ScriptedStream()
    with trio.CancelScope() as scope:
        async with open_server(offering(), LineTransport(stream, 1 << 20)):
            if form == "core":
                stream.give(messages.initialize())
                await stream.reply(0)
            yield TaskLines(stream, form)
            scope.cancel()
