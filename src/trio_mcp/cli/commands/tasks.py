"""``trio-mcp tasks``: shows, waits for or cancels a task, or lists all tasks."""

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
"""Settings for commands with a task id, because the ids of some servers begin with a hyphen."""

_target = click.argument("target", type=TARGET)
_task = click.argument("task", metavar="ID")
_as_json = click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")


@click.group()
def tasks() -> None:
    """List, wait for and cancel the tasks of a server.

    ID is the line that `trio-mcp call --task` prints. TARGET is the same as for `trio-mcp inspect`. If it is a command,
    its words come last, after --.

    \b
        id=$(trio-mcp call https://mcp.example.com/mcp roast kilos=20 --task)
        trio-mcp tasks get https://mcp.example.com/mcp $id
        trio-mcp tasks result https://mcp.example.com/mcp $id

    Exit status: as for `trio-mcp call`. If a task is unknown, has expired or belongs to another user, the server
    responds with an error: 4.
    """


@tasks.command(cls=TargetCommand, context_settings=_ANY_ID)
@_target
@_task
@_as_json
@request_options
def get(task: str, as_json: bool) -> GetTask:
    """Show the status, last message and times of a task."""

    return GetTask(task=task, as_json=as_json)


@tasks.command(cls=TargetCommand, context_settings=_ANY_ID)
@_target
@_task
@_as_json
@request_options
def result(task: str, as_json: bool) -> GetTaskResult:
    """Wait until a task has ended, and print its result.

    Messages and questions of the task are printed to standard error, and you answer the questions, as in `trio-mcp
    call`. Ctrl-C or the end of --timeout ends the command, but not the task.
    """

    return GetTaskResult(task=task, as_json=as_json)


@tasks.command(cls=TargetCommand, context_settings=_ANY_ID)
@_target
@_task
@request_options
def cancel(task: str) -> CancelTask:
    """Cancel a task. This has no effect on a task that has ended."""

    return CancelTask(task=task)


@tasks.command("list", cls=TargetCommand)
@_target
@_as_json
@request_options
def list_(as_json: bool) -> ListTasks:
    """List your tasks, one per line: id, status, time of the last change, message.

    Only servers of revision 2025-11-25 can list tasks, so --era is legacy by default, and only those that can tell
    callers apart. For other servers, keep the ids that `trio-mcp call --task` prints.
    """

    return ListTasks(as_json=as_json)


R = TypeVar("R")

_LONGEST_ID: Final = 2000
_INSTEAD: Final = "keep the ids that `trio-mcp call --task` prints, and use `trio-mcp tasks get TARGET ID`"


@define(kw_only=True)
class _TaskRequest(CommandRequest[R], Generic[R]):
    answers_tasks = False

    async def prepare(self, client: Client) -> None:
        """Raise `NotOffered` if the server doesn't support tasks."""
        declared = client.server_capabilities
        if declared.tasks is None and TASKS_EXTENSION not in (declared.extensions or {}):
            raise NotOffered("the server does not support tasks")


@define(kw_only=True)
class GetTask(_TaskRequest[TaskState]):
    """The `CommandRequest` of ``trio-mcp tasks get``, which gets the state of a task."""

    task: str

    async def send(self, client: Client, on_progress: OnProgress) -> TaskState:
        """Request the state of the task from the server."""
        return await client.resume_task(self.task).get()

    def plain(self, result: TaskState, revision: Revision) -> JSONObject:
        """Return the state of the task as plain data for JSON output."""
        return _plain(result)

    def lines(self, result: TaskState) -> Iterable[str]:
        """Return the state of the task as lines, with one field per line."""
        return (f"{label:<9}{on_one_line(words)}" for label, words in _facts(result))


@define(kw_only=True)
class GetTaskResult(_TaskRequest[CallToolResult]):
    """The `CommandRequest` of ``trio-mcp tasks result``, which waits for the result of a task. Meanwhile the user can
    answer the task's input requests."""

    task: str
    cancels = False
    answers_tasks = True

    async def send(self, client: Client, on_progress: OnProgress) -> CallToolResult:
        """Wait until the task has ended, and return its result."""
        return await client.resume_task(self.task).result(on_progress=on_progress)

    def show(self, result: CallToolResult, revision: Revision) -> int:
        """Print the task's result: see `CommandRequest.show`."""
        show_result(result, revision, as_json=self.as_json)
        if not result.is_error:
            return ENDED_WELL
        say("the tool failed")
        return TOOL_FAILED


@define(kw_only=True)
class CancelTask(_TaskRequest[str]):
    """The `CommandRequest` of ``trio-mcp tasks cancel``, which cancels a task."""

    task: str

    async def send(self, client: Client, on_progress: OnProgress) -> str:
        """Send the cancellation of the task to the server, and return the task's id."""
        await client.resume_task(self.task).cancel()
        return self.task

    def show(self, result: str, revision: Revision) -> int:
        """Print that the server has received the cancellation of the task."""
        say("the server was asked to cancel the task")
        return ENDED_WELL


@define(kw_only=True)
class ListTasks(_TaskRequest["list[TaskState]"]):
    """The `CommandRequest` of ``trio-mcp tasks list``, which lists the user's tasks. Only servers of the protocol
    revision 2025-11-25 can list tasks."""

    era = "legacy"

    async def prepare(self, client: Client) -> None:
        """Raise `NotOffered` if the server can't list tasks."""
        await super().prepare(client)
        declared = client.server_capabilities.tasks
        if client.revision.tasks != "core":
            raise NotOffered(f"servers of revision {client.revision} cannot list tasks: {_INSTEAD}")
        if declared is None or declared.list is None:
            raise NotOffered(f"the server cannot list tasks: {_INSTEAD}")

    def advice(self, error: Exception) -> str | None:
        """Return advice for the user if an error may mean that the server can't list tasks."""
        return f"some servers cannot list tasks: {_INSTEAD}" if isinstance(error, PeerError | HTTPError) else None

    async def send(self, client: Client, on_progress: OnProgress) -> list[TaskState]:
        """Request the list of tasks, all pages of it."""
        return [state async for state in client.list_tasks()]

    def show(self, result: list[TaskState], revision: Revision) -> int:
        """Print the tasks, or a possible reason why there are none."""
        if not result:
            say(f"no tasks; without a token, only tasks of this connection are listed: {_INSTEAD}")
        return super().show(result, revision)

    def plain(self, result: list[TaskState], revision: Revision) -> list[JSONObject]:
        """Return the tasks as plain data for JSON output."""
        return [_plain(state) for state in result]

    def lines(self, result: list[TaskState]) -> Iterable[str]:
        """Return the tasks, one per line: id, status, time of the last change, and message."""
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
