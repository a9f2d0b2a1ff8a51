"""Tool calls as tasks: decide which calls become tasks, and run them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from ...jsonrpc.errors import INTERNAL_ERROR, METHOD_NOT_FOUND, CodedError
from ...protocol.errors import CapabilityMissing
from ...protocol.types.input_required import InputRequiredResult
from ...protocol.types.tools import TASKS_CAPABILITY, CallToolParams, CallToolResult, ToolError
from ...runtime.requests.scope import RequestScope
from ..context.request_context import GetTaskHost
from .results import error_result

if TYPE_CHECKING:
    from ...stores.task_store import OnRestart
    from ...tasks.request_task import RequestTask
    from ...tasks.task_state import TaskState

TaskSupport: TypeAlias = Literal["optional", "required"]


def check_declaration(name: str, task: object, on_restart: object) -> None:
    """Raise `ValueError` if the tool option ``task`` or ``on_restart`` is invalid, or if ``on_restart`` has no
    effect."""
    if (task is None or task is False) and on_restart == "fail":
        return
    from ...stores.task_store import OnRestart  # lazy import: a server without MCP tasks starts faster

    if not (task is None or task is False or task in get_args(TaskSupport)):
        raise ValueError(f'tool {name!r}: task must be "optional", "required" or False, not {task!r}')
    if on_restart not in get_args(OnRestart):
        raise ValueError(f'tool {name!r}: on_restart must be "fail", "again" or "resume", not {on_restart!r}')
    if on_restart != "fail" and not task:
        raise ValueError(
            f'tool {name!r}: on_restart="{on_restart}" has an effect only on tasks: add'
            ' task="optional" or task="required", or leave on_restart out'
        )


def missing_task_hint(error: AttributeError, scope: RequestScope) -> str | None:
    """Return advice if a handler failed with ``error`` because it used ``ctx.task`` in a call that isn't a task. Return
    `None` for other errors."""
    from ..context.tasks import TaskContext  # lazy import, see `check_declaration`

    if error.obj is not None or scope.task is not None or not hasattr(TaskContext, error.name or ""):
        return None
    return (
        "ctx.task is None in this call, which is not a task: check `if ctx.task is not None` before "
        f'ctx.task.{error.name}, or declare the tool with task="required"'
    )


def task_of_call(
    support: TaskSupport | None, on_restart: OnRestart, params: CallToolParams, scope: RequestScope, tasks: GetTaskHost
) -> RequestTask | None:
    """Return the MCP task of a tool call, if the call is a task or may become one.

    Return `None` for a call that can't be a task. ``tasks`` returns the host that runs tasks; ``tasks`` is `None` if
    the server has no tasks.

    Raises `CodedError` if the tool requires a task and the client has none, or the reverse: -32601 in 2025-11-25 and
    before, -32021 in later revisions.
    """
    if scope.task is not None:  # the task exists already, and its handler runs again
        return scope.task
    request, form = scope.request, scope.request.revision.tasks
    asks = form == "core" and params.task is not None
    if support is None or tasks is None:
        if asks and tasks is not None:
            # By MCP 2025-11-25 (tasks page), the server SHOULD refuse task requests for a tool without task support.
            raise CodedError(
                METHOD_NOT_FOUND, f"{params.name} cannot run as a task: call it without the parameter task"
            )
        if support == "required":
            raise CodedError(
                INTERNAL_ERROR,
                f"{params.name} runs only as a task, but this server cannot run tasks: a stateless server needs "
                "tasks=TaskSettings(store=...)",
            )
        return None
    must_be = support == "required"
    can_be = not request.missing((TASKS_CAPABILITY,)) if form == "extension" else asks
    if not can_be:
        if must_be:
            raise _task_needed(params.name, scope)
        return None
    from ...tasks.request_task import RequestTask  # lazy import, see `check_declaration`
    from ...tasks.task_methods import asked_ttl, milliseconds

    host = tasks()
    ttl_ms = asked_ttl(scope, host.settings) if asks else milliseconds(host.settings.ttl)
    return RequestTask(host, scope, ttl_ms=ttl_ms, on_restart=on_restart, must_be=must_be or asks)


def _task_needed(name: str, scope: RequestScope) -> CodedError:
    """Return the error for a call that must be an MCP task, but whose client requested no task or doesn't support
    tasks."""
    revision = scope.request.revision
    if revision.tasks == "extension":
        # By the tasks extension, if a call needs a task but the client doesn't support tasks, the code MUST be -32021.
        # The error for a client without task support must name the tasks extension.
        return CapabilityMissing(TASKS_CAPABILITY, revision)
    # By MCP 2025-11-25 (tasks page), the server MUST refuse an ordinary call of a tool that runs only as a task.
    return CodedError(METHOD_NOT_FOUND, f"{name} runs only as a task: call it with the parameter task")


def hand_over_task(state: TaskState, scope: RequestScope, name: str) -> CallToolResult:
    """Let an MCP task continue after its handler has ended.

    The handler returned the task's ``state``, because other code completes the task. Return a placeholder result that
    isn't sent to the client.
    """
    task = scope.task
    if task is None:
        raise _task_needed(name, scope)
    if not (task.is_delegated and task.id == state.id):
        raise RuntimeError(
            f"{name} returned the TaskState of another task: return the state of the first task that this call "
            "created with ctx.caller_tasks.create_task()"
        )
    task.detach()
    return CallToolResult([])


async def run_task(
    task: RequestTask, scope: RequestScope, call: Callable[[], Awaitable[CallToolResult | InputRequiredResult]]
) -> CallToolResult | InputRequiredResult:
    """Run a tool by calling ``call``, and return the result. The tool call is an MCP task, or may become one."""
    from ...tasks.request_task import NotStarted  # lazy import, see `check_declaration`

    scope.task = task
    try:
        if scope.request.revision.tasks == "core":
            await task.start()  # the client requested a task, so it waits for the task id
        elif not task.has_started:
            task.start_later()
        running = call()
        del call  # free the call's memory, because thousands of tasks may be waiting
        result = await running
    except (CapabilityMissing, NotStarted):
        raise
    except Exception:
        if task.must_be:
            await task.start()
        raise
    finally:
        if not task.has_started:
            task.stop_alarm()
    if isinstance(result, InputRequiredResult):
        task.decline()
    elif task.must_be:
        await task.start()
    return result


async def run_within(task: RequestTask, scope: RequestScope, run: Callable[[], Awaitable[Any]]) -> Any:
    """Run a tool call that is an MCP task, or may become one, and return its result. ``run`` calls the tool through the
    middleware.

    If middleware refuses the call with an error, no task remains. If middleware answers it without calling the tool, a
    task is created only if the requestor waits for a task id.
    """
    scope.task = task
    is_core = scope.request.revision.tasks == "core"
    if not (is_core or task.has_started):
        task.start_later()
    try:
        result = await run()
    except ToolError as error:
        result = error_result(str(error))
    finally:
        if not task.has_started:
            task.stop_alarm()
    if is_core:
        await task.start()
    return result
