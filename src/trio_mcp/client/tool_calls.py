"""Tool calls. The server may continue a tool call as a task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

import attrs
import trio

from ..classes import define
from ..concurrency.bounded import BoundedDict
from ..jsonrpc.errors import METHOD_NOT_FOUND, PeerError
from ..protocol.fields import JSONObject, as_object
from ..protocol.meta import CANCEL_TOKEN
from ..protocol.methods import next_cursor
from ..protocol.revisions import Revision
from ..protocol.types.lifecycle import ServerCapabilities
from ..protocol.types.tools import TASKS_CAPABILITY, CreatedTask, is_task
from ..runtime.calls import OnProgress
from ..runtime.outbound import Outbound, answering, on_leaving
from ..tasks.remote_task import Ask, CoreRemoteTask, RemoteTask, SendCancel, created_state
from .answers import Answers
from .cache import Change
from .current_call import CallContexts
from .remote_tasks import ExtensionRemoteTask, TaskProgress
from .results import InputRounds, check_result_type, tools_in

_CALL = "tools/call"


class _ToolCall(NamedTuple):
    """A call of a tool. ``task`` contains the parameters of the task that the caller requested; `None` if the caller
    wants the call's result."""

    params: JSONObject
    revision: Revision
    on_progress: OnProgress | None
    task: JSONObject | None = None


@define(eq=False)
class ToolCalls:
    """Calls the server's tools. If the server continues a call as a task, waits until the task has ended."""

    _outbound: Outbound
    _rounds: InputRounds
    _answers: Answers
    _contexts: CallContexts
    may_become_tasks: bool = attrs.field(default=False, init=False)
    """True if the server may continue tool calls as tasks, or has tools that must be called as tasks."""
    supports: TaskSupports | None = attrs.field(default=None, init=False)
    """The task support of each tool, for revisions in which the client decides whether a call is a task."""
    _followed: dict[RemoteTask, None] = attrs.field(factory=dict[RemoteTask, None], init=False)

    def adopt(self, revision: Revision, capabilities: ServerCapabilities) -> None:
        """Enable or disable tool calls as tasks, depending on the protocol revision and the server's
        ``capabilities``."""
        if revision.result_type:
            # In modern revisions, a client that declares tasks in a request must accept a task as the response.
            # Don't check whether a server with a modern revision has declared tasks: it may create tasks anyway.
            self.may_become_tasks = self._answers.capabilities.supports(TASKS_CAPABILITY)
        else:
            self.may_become_tasks = self._answers.settings.tasks and capabilities.supports("tasks.requests.tools.call")
        self.supports = None
        if self.may_become_tasks and revision.tasks == "core":
            self.supports = TaskSupports(partial(self._list, revision), self._answers.settings.max_pages)

    async def _list(self, revision: Revision, params: JSONObject) -> Any:
        return await self._outbound.request("tools/list", params or None, revision)

    def changed(self, change: Change) -> None:
        """Handle a change that the server has reported: if the list of tools has changed, forget which tools support
        tasks."""
        if self.supports is not None and change.kind == "tools":
            self.supports.forget()

    async def call(
        self,
        params: JSONObject,
        revision: Revision,
        on_progress: OnProgress | None,
        on_task: Callable[[str], None] | None = None,
    ) -> Any:
        """Call a tool, and return its result.

        If the server continues the call as a task, wait for the task, and return the task's result. Cancelling this
        method cancels the task.

        ``on_task`` gets the id of the task. Code that forwards, and declares the extension itself, passes it too.
        """
        progress = None if on_progress is None else TaskProgress(on_progress)
        call = _ToolCall(params, revision, None if progress is None else progress.of_call)
        takes_task = on_task is not None
        made = await (self._call(call, takes_task=takes_task) if revision.result_type else self._call_as_listed(call))
        if not isinstance(made, RemoteTask):
            return made
        if on_task is not None:
            try:
                on_task(made.id)
            except BaseException:
                made.abandon()
                raise
        return await self.finish(made, progress or TaskProgress(None), params, cancels=True)

    async def start(self, params: JSONObject, revision: Revision, task: JSONObject) -> Any:
        """Call a tool as a task, and return the task.

        If the server doesn't start a task, return the result. ``task`` has the parameters of the task in 2025-11-25.
        The server doesn't get the caller's deadline, because the task outlives the call.
        """
        call = _ToolCall(params, revision, None, task)
        return await (self._call(call) if revision.result_type else self._call_as_listed(call))

    async def send(self, params: JSONObject, revision: Revision, on_progress: OnProgress | None) -> Any:
        """Call a tool in a modern protocol revision, and return the server's response (a result or a task)
        unchanged."""
        forget = self._forget_for(params, revision)
        return (await self._rounds.request(_CALL, params, revision, on_progress, forget)).result

    async def finish(self, task: RemoteTask, progress: TaskProgress, params: JSONObject, *, cancels: bool) -> Any:
        """Wait for the end of a task, and return its result.

        With ``cancels``, cancelling this method or calling `leave` cancels the task. ``params`` are the parameters of
        the call.
        """
        if cancels:
            self._followed[task] = None
        try:
            with (
                self._outbound.while_connected(),
                answering(params.get("_meta") or {}),
                self._contexts.waiting_for(task.id),
            ):
                return await task.result(progress.report_state, cancels=cancels)
        finally:
            self._followed.pop(task, None)

    def leave(self) -> None:
        """Ask the server to cancel each MCP task whose result a call still waits for, because the connection is about
        to be closed."""
        for task in self._followed:
            task.abandon()

    def known(self, task_id: str, params: JSONObject, revision: Revision) -> RemoteTask:
        """Return an object for the server's task with the id ``task_id``, without sending a request. Later requests
        about the task contain ``params``."""
        ask, forget = self._ask_for(params, revision), self._forget_for(params, revision)
        if revision.result_type:
            return ExtensionRemoteTask(task_id, ask, forget, self._answers, revision)
        return CoreRemoteTask(task_id, ask, forget)

    async def _call(self, call: _ToolCall, *, takes_task: bool = False) -> Any:
        """Call a tool in a modern protocol revision, and return its result or its task."""
        params, revision, on_progress, task = call
        if not (takes_task or self.may_become_tasks):
            return await self._rounds.result(_CALL, params, revision, on_progress)
        forget = self._forget_for(params, revision)
        completed = await self._rounds.request(
            _CALL, params, revision, on_progress, forget, tells_deadline=task is None
        )
        result = completed.result
        if not is_task(result):
            return result
        state = created_state(_CALL, result, CreatedTask, forget)
        return ExtensionRemoteTask(state.id, self._ask_for(params, revision), forget, self._answers, revision, state)

    async def _call_as_listed(self, call: _ToolCall) -> Any:
        """Call a tool in a legacy protocol revision, and return its result or its task.

        The call is a task if the server lists the tool as one that requires tasks, or if the caller wants a task and
        the tool allows it.

        If the server refuses such a call, the client calls again only if the server lists the tool differently now:
        then the refused call has not run (2025-11-25 tasks, Tool-Level Negotiation).
        """
        params, revision, on_progress, task = call
        as_tasks = ("required",) if task is None else _AS_TASKS
        supports = self.supports
        # If the caller has added the parameter "task" itself, return the server's answer unchanged.
        if supports is None or "task" in params:
            return await self._outbound.request(_CALL, params, revision, on_progress)
        listings = supports.listings
        as_task = await supports.of(params["name"]) in as_tasks
        try:
            if as_task:
                return await self._call_as_task(call)
            return await self._outbound.request(_CALL, params, revision, on_progress)
        except PeerError as error:
            if error.code != METHOD_NOT_FOUND or (supports.is_whole and supports.listings > listings):
                raise
            supports.forget()
            if (await supports.of(params["name"]) in as_tasks) is as_task:
                raise
        if as_task:
            return await self._outbound.request(_CALL, params, revision, on_progress)
        return await self._call_as_task(call)

    async def _call_as_task(self, call: _ToolCall) -> Any:
        """Call a tool as a task in 2025-11-25, and return the task."""
        params, revision, on_progress, task = call
        ask, forget = self._ask_for({}, revision), self._forget_for({}, revision)
        params = {**params, "task": task or {}}
        result = await self._outbound.request(
            _CALL, params, revision, on_progress, cancel_task=forget, tells_deadline=task is None
        )
        if isinstance(result, dict) and "content" in result and "task" not in result:
            # A server with the SDK mcp 1.x that creates no task returns a tool result instead.
            return cast("JSONObject", result)
        return CoreRemoteTask.created(_CALL, result, ask, forget)

    # Requests about a task

    def _forget_for(self, params: JSONObject, revision: Revision) -> SendCancel:
        return partial(self._forget, _meta_of(params), revision)

    def _forget(self, meta: JSONObject, revision: Revision, task_id: str) -> None:
        if (noted := on_leaving.get()) is not None:
            noted(self._outbound, None)
        self._outbound.send_ignoring_reply("tasks/cancel", {"taskId": task_id, **meta}, revision)

    def _ask_for(self, params: JSONObject, revision: Revision) -> Ask:
        return partial(self._ask, _meta_of(params), revision)

    async def _ask(self, meta: JSONObject, revision: Revision, method: str, params: JSONObject) -> Any:
        # Don't apply the timeout of a single request to tasks/result, which waits until the task has ended.
        with nullcontext() if method == "tasks/result" else self._answers.timeouts.around_call():
            result = await self._outbound.request(method, {**params, **meta}, revision)
        if revision.result_type:
            check_result_type(method, result)
        return result


def _meta_of(params: JSONObject) -> JSONObject:
    """Return the ``_meta`` of a tool call that the server continues as a task. Later requests about the task contain
    the same ``_meta``, but without `CANCEL_TOKEN`, whose value identifies only the tool call."""
    if "_meta" not in params:
        return {}
    return {"_meta": {name: value for name, value in params["_meta"].items() if name != CANCEL_TOKEN}}


TaskSupport: TypeAlias = Literal["forbidden", "optional", "required"]

_AS_TASKS: Final = ("optional", "required")
_MOST_TOOLS: Final = 10_000
"""The maximum number of tools whose task support is remembered."""


class TaskSupports:
    """Stores for each tool whether it can, must or must not be called as a task (``execution.taskSupport``; 2025-11-25
    tasks, Tool-Level Negotiation).

    If a tool is called that hasn't been listed, all tools are listed once, by ``request``; after `forget` they are
    listed again. A tool that the server doesn't list counts as ``forbidden``: it isn't called as a task.
    """

    def __init__(self, request: Callable[[JSONObject], Awaitable[Any]], max_pages: int) -> None:
        self._request = request
        self._max_pages = max_pages
        self._known = BoundedDict[str, TaskSupport](_MOST_TOOLS)
        self.is_whole = False
        """Whether the server's list of tools was read and, as far as is known, hasn't changed since."""
        self._has_changed = False
        self._listing = trio.Lock()
        self.listings = 0
        """The number of tool lists that were read so far, so that callers know whether reading the list again may
        help."""

    def forget(self) -> None:
        """Drop the task support of all tools, because the tools may have changed."""
        self._known.clear()
        self.is_whole, self._has_changed = False, True

    def add_page(self, page: object) -> None:
        """Record the task support of the tools on one page of ``tools/list``."""
        for tool in tools_in(page):
            name, support = tool.get("name"), as_object(tool.get("execution")).get("taskSupport")
            if isinstance(name, str):
                self._known[name] = support if support in _AS_TASKS else "forbidden"

    async def of(self, name: str) -> TaskSupport:
        """Return whether the tool ``name`` can (``optional``), must (``required``) or must not (``forbidden``) be
        called as a task.

        If this is unknown, first list the tools by calling ``request``, and raise its errors. If the server refuses to
        list its tools, no tool requires tasks.
        """
        if name not in self._known and not self.is_whole:
            async with self._listing:
                if name not in self._known and not self.is_whole:
                    await self._list()
        return self._known.get(name, "forbidden")

    async def _list(self) -> None:
        self.listings += 1
        self._has_changed = False  # `forget` sets this to true if the server's tools change during the listing
        cursor, seen = cast("str | None", None), set[int]()
        with suppress(PeerError):  # if a server refuses to list its tools, no tool is called as a task
            for _ in range(self._max_pages):
                page = await self._request({} if cursor is None else {"cursor": cursor})
                self.add_page(page)
                cursor = next_cursor(page, seen)
                if cursor is None:
                    break
        # Only now: until then, other calls must wait for this list.
        self.is_whole = not self._has_changed
