"""``trio-mcp tasks``: arguments, options and help."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from .errand_options import errand_options
from .shell_completion import TARGET
from .target_options import TargetCommand

if TYPE_CHECKING:
    from ..errands.task_errands import CancellingTask, ListingTasks, LookingAtTask, WaitingForTask

_ANY_ID: Final = {"ignore_unknown_options": True, "help_option_names": ["--help"]}
"""Settings for commands with an ID, since ids of some servers begin with a hyphen."""

_target = click.argument("target", type=TARGET)
_task = click.argument("task", metavar="ID")
_as_json = click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")


@click.group()
def tasks() -> None:
    """Look after tasks: calls that go on in a server without their caller.

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
@errand_options
def get(task: str, as_json: bool) -> LookingAtTask:
    """Show how a task is: its status, its last message and its times."""
    from ..errands.task_errands import LookingAtTask

    return LookingAtTask(task=task, as_json=as_json)


@tasks.command(cls=TargetCommand, context_settings=_ANY_ID)
@_target
@_task
@click.option("--raw", is_flag=True, help="Print the whole result as JSON.")
@errand_options
def result(task: str, raw: bool) -> WaitingForTask:
    """Wait for the end of a task and print its result.

    Messages of the task and its questions go to standard error, and you answer them, as in `trio-mcp call`. Ctrl-C
    leaves the task as it is, and so does the end of the time of --timeout.
    """
    from ..errands.task_errands import WaitingForTask

    return WaitingForTask(task=task, raw=raw)


@tasks.command(cls=TargetCommand, context_settings=_ANY_ID)
@_target
@_task
@errand_options
def cancel(task: str) -> CancellingTask:
    """Cancel a task. A task that has ended stays as it is."""
    from ..errands.task_errands import CancellingTask

    return CancellingTask(task=task)


@tasks.command("list", cls=TargetCommand)
@_target
@_as_json
@errand_options
def list_(as_json: bool) -> ListingTasks:
    """List your tasks, one a line: id, status, time of the last change, message.

    Only servers that speak revision 2025-11-25 can tell, so that --era is legacy unless given, and only
    servers that can tell callers apart. Elsewhere keep the ids that `trio-mcp call --task` prints.
    """
    from ..errands.task_errands import ListingTasks

    return ListingTasks(as_json=as_json)
