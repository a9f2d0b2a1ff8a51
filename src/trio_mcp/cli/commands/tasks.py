"""``trio-mcp tasks`` looks at, waits for or cancels one task, or lists all tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Generic, TypeVar

import click

from ...classes import define
from ...client.client import Client
from ...jsonrpc.errors import PeerError
from ...protocol.fields import JSONObject
from ...protocol.revisions import Revision
from ...protocol.types.tools import TASKS_EXTENSION, CallToolResult
from ...runtime.calls import OnProgress
from ...runtime.transport import HTTPError
from ...tasks.task_state import TaskState
from .. import ENDED_WELL, TOOL_FAILED
from ..printable import name_shown, on_one_line, say
from ..request import CommandRequest, NotOffered, show_result
from .options import TARGET, TargetCommand, request_options

_ANY_ID: Final = {"ignore_unknown_options": True, "help_option_names": ["--help"]}
"""Settings for commands with an ID, since ids of some servers begin with a hyphen."""

_target = click.argument("target", type=TARGET)
_task = click.argument("task", metavar="ID")
_as_json = click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")


@click.group()
def tasks() -> None:
    """List, wait for and cancel the tasks of a server.

    ID is the line that `trio-mcp call --task` prints. TARGET is as for `trio-mcp inspect`; the words of a command come
    last, after --.

    \b
        id=$(trio-mcp call https://mcp.example.com/mcp roast kilos=20 --task)
        trio-mcp tasks get https://mcp.example.com/mcp $id
        trio-mcp tasks result https://mcp.example.com/mcp $id

    Exit status: as for `trio-mcp call`. A task that is unknown, that of somebody else, or kept no longer is an error of
    the server: 4.
    """


@tasks.command(cls=TargetCommand, context_settings=_ANY_ID)
@_target
@_task
@_as_json
@request_options
def get(task: str, as_json: bool) -> GetTask:
    """Show how a task is: its status, its last message and its times."""

    return GetTask(task=task, as_json=as_json)


@tasks.command(cls=TargetCommand, context_settings=_ANY_ID)
@_target
@_task
@click.option("--raw", is_flag=True, help="Print the whole result as JSON.")
@request_options
def result(task: str, raw: bool) -> GetTaskResult:
    """Wait for the end of a task and print its result.

    Messages of the task and its questions go to standard error, and you answer them, as in `trio-mcp call`. Ctrl-C
    leaves the task as it is, and so does the end of the time of --timeout.
    """

    return GetTaskResult(task=task, as_json=raw)


@tasks.command(cls=TargetCommand, context_settings=_ANY_ID)
@_target
@_task
@request_options
def cancel(task: str) -> CancelTask:
    """Cancel a task. A task that has ended stays as it is."""

    return CancelTask(task=task)


@tasks.command("list", cls=TargetCommand)
@_target
@_as_json
@request_options
def list_(as_json: bool) -> ListTasks:
    """List your tasks, one a line: id, status, time of the last change, message.

    Only servers that speak revision 2025-11-25 can tell, so that --era is legacy unless given, and only
    servers that can tell callers apart. Elsewhere keep the ids that `trio-mcp call --task` prints.
    """

    return ListTasks(as_json=as_json)


R = TypeVar("R")

_LONGEST_ID: Final = 2000
_INSTEAD: Final = (
    "keep the ids that `trio-mcp call --task` prints, and look at each with `trio-mcp tasks get TARGET ID`"
)


@define(kw_only=True)
class _TaskRequest(CommandRequest[R], Generic[R]):
    answers_tasks = False

    async def prepare(self, client: Client) -> None:
        """Check that the server has tasks. Raises `NotOffered`."""
        declared = client.server_capabilities
        if declared.tasks is None and TASKS_EXTENSION not in (declared.extensions or {}):
            raise NotOffered("the server has no tasks")


@define(kw_only=True)
class GetTask(_TaskRequest[TaskState]):
    """The request that asks how a task is."""

    task: str

    async def send(self, client: Client, on_progress: OnProgress) -> TaskState:
        """Ask the server."""
        return await client.resume_task(self.task).get()

    def plain(self, result: TaskState, revision: Revision) -> JSONObject:
        """Return the state of the task as plain data."""
        return _plain(result)

    def lines(self, result: TaskState) -> Iterable[str]:
        """Return the state of the task, a fact a line."""
        return (f"{label:<9}{on_one_line(words)}" for label, words in _facts(result))


@define(kw_only=True)
class GetTaskResult(_TaskRequest[CallToolResult]):
    """The request that waits for the result of a task, and answers its questions."""

    task: str
    cancels = False
    answers_tasks = True

    async def send(self, client: Client, on_progress: OnProgress) -> CallToolResult:
        """Wait for the result."""
        return await client.resume_task(self.task).result(on_progress=on_progress)

    def show(self, result: CallToolResult, revision: Revision) -> int:
        """Print the result: see `CommandRequest.show`."""
        show_result(result, revision, raw=self.as_json)
        if not result.is_error:
            return ENDED_WELL
        say("the tool failed")
        return TOOL_FAILED


@define(kw_only=True)
class CancelTask(_TaskRequest[str]):
    """The request that cancels a task."""

    task: str

    async def send(self, client: Client, on_progress: OnProgress) -> str:
        """Tell the server. Return the id."""
        await client.resume_task(self.task).cancel()
        return self.task

    def show(self, result: str, revision: Revision) -> int:
        """Say that the server knows."""
        say("the server was told to cancel the task")
        return ENDED_WELL


@define(kw_only=True)
class ListTasks(_TaskRequest["list[TaskState]"]):
    """The request that lists the tasks of the caller, which only legacy servers do."""

    era = "legacy"

    async def prepare(self, client: Client) -> None:
        """Check that the server lists tasks. Raises `NotOffered`."""
        await super().prepare(client)
        declared = client.server_capabilities.tasks
        if client.revision.tasks != "core":
            raise NotOffered(f"servers of revision {client.revision} list no tasks: {_INSTEAD}")
        if declared is None or declared.list is None:
            raise NotOffered(f"the server lists no tasks: {_INSTEAD}")

    def advice(self, error: Exception) -> str | None:
        """Return how to go on without a list, where the server has none."""
        return f"not every server lists tasks: {_INSTEAD}" if isinstance(error, PeerError | HTTPError) else None

    async def send(self, client: Client, on_progress: OnProgress) -> list[TaskState]:
        """Ask for all pages."""
        return [state async for state in client.list_tasks()]

    def show(self, result: list[TaskState], revision: Revision) -> int:
        """Print the tasks. Say why there may be none."""
        if not result:
            say(f"no tasks are listed; without a token, these are the tasks of this one connection: {_INSTEAD}")
        return super().show(result, revision)

    def plain(self, result: list[TaskState], revision: Revision) -> list[JSONObject]:
        """Return the tasks as plain data."""
        return [_plain(state) for state in result]

    def lines(self, result: list[TaskState]) -> Iterable[str]:
        """Return the tasks, one a line: id, status, time of the last change, and message."""
        for state in result:
            words = (state.status, state.updated_at, state.message or "")
            yield "  ".join((name_shown(state.id, _LONGEST_ID), *map(on_one_line, words))).rstrip()


def _facts(state: TaskState) -> Iterable[tuple[str, str]]:
    yield "status", state.status
    if state.message:
        yield "message", state.message
    yield "created", state.created_at
    yield "updated", state.updated_at
    yield "kept", "for ever" if state.ttl is None else f"{state.ttl:g} s from its creation"


def _plain(state: TaskState) -> JSONObject:
    return {
        "id": state.id,
        "status": state.status,
        "message": state.message,
        "createdAt": state.created_at,
        "updatedAt": state.updated_at,
        "ttlSeconds": state.ttl,
        "pollIntervalSeconds": state.poll_interval,
    }
