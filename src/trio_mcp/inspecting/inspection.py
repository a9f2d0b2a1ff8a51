"""Inspection: the connection to the inspected server, which the user can reopen, and the handling of requests from the
inspector's page.

Pages send queries for lists, completions, tasks etc. Each query is a function of the client and of the page's request,
and returns plain data.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator
from typing import Any, Final, Literal, cast

import attrs
import trio

from ..client.client import Client
from ..client.listing import collect
from ..client.options import ChangedList, ClientOptions, UnreadableMessage
from ..concurrency.nurseries import ServiceNursery, open_service_nursery
from ..connecting.stdio import Command
from ..connecting.targets import Target
from ..jsonrpc.codec import encode_value
from ..jsonrpc.errors import MCPError
from ..protocol.converters import unstructure
from ..protocol.fields import JSONObject
from ..protocol.revisions import LATEST_LEGACY
from ..protocol.types.notifications import LogLevel, LogParams
from ..protocol.types.offers import PromptReference, ResourceTemplateReference
from ..protocol.types.skills import SKILLS_EXTENSION
from ..protocol.types.tools import TASKS_EXTENSION, CallToolResult
from ..runtime.calls import OnProgress
from ..tasks.task_state import TaskState
from ..transports.process import TextSink
from .frames import FrameLog, LoggedFrame
from .runs import InvalidPageRequest, Outcome, PageFeed, PageQuestions, Run, Runs, cut, error_text

MOST_LISTED: Final = 5000
"""Maximum number of items, for example tools or resources, that are shown of one list."""
_MOST_TASKS: Final = 200


async def list_offers(client: Client, asked: JSONObject) -> JSONObject:
    """Return the items in one of the server's lists, such as its tools. The number of items is limited.

    Also returns the problem that made the list incomplete, if there was one. If no item has arrived, raise the same
    errors as a call.
    """
    lists: dict[Any, Callable[[], AsyncIterator[Any]]] = {
        "tools": client.list_tools,
        "resources": client.list_resources,
        "templates": client.list_resource_templates,
        "prompts": client.list_prompts,
        "skills": client.list_skills,
    }
    kind = asked.get("kind")
    if not (isinstance(kind, str) and kind in lists):
        raise InvalidPageRequest(f"unknown list: must be one of {', '.join(lists)}")
    found = await collect(lists[kind](), limit=MOST_LISTED)
    if found.error is not None and not found.items:
        raise found.error
    items = [unstructure(item, client.revision) for item in found.items]
    return {"items": items, "more": found.problem is not None, "problem": found.remark}


async def complete(client: Client, asked: JSONObject) -> JSONObject:
    """Return the values that the server suggests for an argument of a prompt or a resource template."""
    refs = {"prompt": PromptReference, "template": ResourceTemplateReference}
    kind, name, argument, value = (asked.get(key) for key in ("kind", "name", "argument", "value"))
    if not all(isinstance(each, str) for each in (kind, name, argument, value)) or kind not in refs:
        raise InvalidPageRequest("a completion request must name a prompt or a template, and one of its arguments")
    found = await client.complete(refs[kind](cast("str", name)), cast("str", argument), cast("str", value))
    return {"values": [cut(each, 1000) for each in found.values[:100]]}


async def log_level(client: Client, asked: JSONObject) -> None:
    """Set the minimum level of the log messages that the inspected server sends."""
    level: Any = asked.get("level")
    await client.set_log_level(LogLevel(level))


async def ping(client: Client, asked: JSONObject) -> JSONObject:
    """Send a ping to the inspected server, and return how many seconds the response took."""
    begun = trio.current_time()
    await client.ping()
    return {"seconds": trio.current_time() - begun}


async def list_tasks(client: Client, asked: JSONObject) -> JSONObject:
    """Return the MCP tasks of the server, and the ids of all tasks that this inspector has seen.

    The tasks are missing if the server can't list tasks.
    """
    listed: list[JSONObject] = []
    declared = client.server_capabilities.tasks
    if client.revision.tasks == "core" and declared is not None and declared.list is not None:
        async for state in client.list_tasks():
            if len(listed) >= _MOST_TASKS:
                break
            listed.append(_plain(state))
    return {"tasks": listed, "seen": asked["seen"]}


async def task(client: Client, asked: JSONObject) -> JSONObject:
    """Request the state of an MCP task from the server, and return it."""
    return _plain(await client.resume_task(_id_of(asked)).get())


async def cancel_task(client: Client, asked: JSONObject) -> None:
    """Send a request to the server to cancel an MCP task."""
    await client.resume_task(_id_of(asked)).cancel()


def _id_of(asked: JSONObject) -> str:
    task: Any = asked.get("task")
    if not (isinstance(task, str) and task):
        raise InvalidPageRequest("the id of the task must be a non-empty string")
    return task


def _plain(state: TaskState) -> JSONObject:
    return {
        "id": state.id,
        "status": state.status,
        "message": None if state.message is None else cut(state.message, 500),
        "updatedAt": state.updated_at,
    }


QUERIES: Final[dict[str, Callable[[Client, JSONObject], Awaitable[Any]]]] = {
    "list": list_offers,
    "complete": complete,
    "logLevel": log_level,
    "ping": ping,
    "tasks": list_tasks,
    "task": task,
    "cancelTask": cancel_task,
}
"""The functions that handle a page's simple requests to the server, by the names that pages use for these requests."""


_MOST_LOGS: Final = 300
_LOG_LEVEL: Final = LogLevel.INFO
"""The lowest level of log messages, until the user chooses another."""
_MOST_FRAMES_SHOWN: Final = 300

Era = Literal["auto", "modern", "legacy"]


class Inspection:
    """The state of the web inspector: the connection to the server ``target``, and the user's requests. All pages show
    this state.

    Pages send requests to `do`, and get events from `feed`.

    Each step of connecting and listing can take ``timeout`` seconds. Calls have no timeout.
    """

    def __init__(self, target: Target, *, era: Era = "auto", timeout: float = 30) -> None:
        self._target = target
        if isinstance(target, Command):
            self._target = attrs.evolve(target, stderr=_StderrSink(self._log, target.stderr))
        self._era: Era = era
        self._timeout = timeout
        self.feed = PageFeed(self._snapshot)
        self._frames = FrameLog(self._framed)
        self._questions = PageQuestions(self.feed)
        self._runs = Runs(self.feed)
        self._logs = deque[JSONObject](maxlen=_MOST_LOGS)
        self._log_number = 0
        self._tasks = dict[str, None]()
        """Ids of the tasks that this inspector has seen, oldest first."""
        self._client: Client | None = None
        self._connections = 0
        self._nursery: ServiceNursery | None = None
        self._leaving = trio.CancelScope()
        self._again = trio.Event()
        self._state: JSONObject = {"what": "server", "state": "connecting"}

    # The connection

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Connect to the server, and reconnect when a page requests it, until cancelled. Reports its start with
        ``task_status`` once it is connected.

        If the connection is lost, waits until a page requests a new one. If the first connection fails, raises the
        errors of the target's ``open``.
        """
        is_first = True
        while True:
            self._again = trio.Event()
            try:
                await self._be_connected(task_status if is_first else trio.TASK_STATUS_IGNORED)
            except (MCPError, trio.TooSlowError) as error:
                if is_first and self._client is None:
                    raise
                self._changed({"state": "lost", "reason": error_text(error)})
            else:
                self._again.set()  # `reconnect` was called, so open the next connection at once
            self._client, self._nursery, is_first = None, None, False
            await self._again.wait()
            self._changed({"state": "connecting"})

    async def _be_connected(self, task_status: trio.TaskStatus[None]) -> None:
        self._questions.revision = LATEST_LEGACY
        with trio.CancelScope() as self._leaving:
            async with self._target.open(**self._options()) as client:
                self._client, self._questions.revision = client, client.revision
                self._connections += 1
                connection = {"connection": self._connections, "pid": self._frames.pid, "since": time.time() * 1000}
                self._changed({**_about(client), **connection})
                async with open_service_nursery("the connection is over") as self._nursery:
                    self._nursery.start_soon(self._request_logs, client)
                    task_status.started()
                    await client.until_lost()

    def _options(self) -> ClientOptions:
        return {
            **self._questions.options(),
            "era": self._era,
            "connect_timeout": self._timeout,
            "on_log": self._logged,
            "on_list_changed": self._list_changed,
            "on_unreadable": self._unreadable,
            "record": self._frames,
            "cache": None,  # without a cache, the user sees the server's current responses
        }

    async def _request_logs(self, client: Client) -> None:
        # Set a log level: without a level, a modern server sends no logs, and a legacy server chooses the level.
        if client.server_capabilities.logging is not None:
            try:
                with trio.fail_after(self._timeout):
                    await client.set_log_level(_LOG_LEVEL)
            except (MCPError, trio.TooSlowError) as error:
                self._log("error", f"could not set the log level: {error_text(error)}", "trio-mcp inspect")

    def _changed(self, state: JSONObject) -> None:
        self._state = {"what": "server", **state}
        self.feed.publish("server", self._state)

    def _snapshot(self) -> Iterator[tuple[Hashable, JSONObject]]:
        yield "server", self._state
        for thing in self._runs.snapshot():
            yield ("run", thing["id"]), thing
        for thing in self._questions.snapshot():
            yield ("question", thing["id"]), thing
        for thing in self._logs:
            yield ("log", thing["n"]), thing
        for frame in self._frames.frames[-_MOST_FRAMES_SHOWN:]:
            yield ("frame", frame.number), frame.summary

    # Events of the connection

    def _framed(self, frame: LoggedFrame) -> None:
        self.feed.publish(("frame", frame.number), frame.summary)

    def _logged(self, log: LogParams) -> None:
        data = log.data if isinstance(log.data, str) else encode_value(log.data).decode()
        self._log(log.level, data, log.logger)

    def _unreadable(self, message: UnreadableMessage) -> None:
        self._log("unreadable", f"{message.reason}: {message.text}")

    def _log(self, level: str, text: str, logger: str | None = None) -> None:
        self._log_number += 1
        line: JSONObject = {"what": "log", "n": self._log_number, "at": time.time() * 1000}
        line |= {"level": cut(level, 20), "text": cut(text), "logger": None if logger is None else cut(logger, 100)}
        self._logs.append(line)
        self.feed.publish(("log", self._log_number), line)

    def _list_changed(self, kind: ChangedList) -> None:
        self.feed.publish(("changed", kind), {"what": "changed", "list": kind})

    # Requests of pages

    async def do(self, asked: JSONObject) -> Any:
        """Handle a request from the inspector's page, and return the response as JSON data.

        Raises `InvalidPageRequest`, `ValueError`, and the errors of a call.
        """
        name: Any = asked.get("do")
        if name == "frame":
            return await self.frame(asked)
        if isinstance(name, str) and name in _AT_ONCE:
            return _AT_ONCE[name](self, asked)
        if not (isinstance(name, str) and name in QUERIES):
            raise InvalidPageRequest("unknown request: 'do' must be the name of a request")
        if name == "tasks":
            asked = {**asked, "seen": list(self._tasks)[::-1]}
        with trio.fail_after(self._timeout):
            return await QUERIES[name](self._connected(), asked)

    def result(self, number: Any) -> bytes:
        """Return the result of a run (a request that the user has started) as JSON. Raises `InvalidPageRequest` if the
        run has no result yet."""
        result = self._run(number).result
        if result is None:
            raise InvalidPageRequest("this request has no result yet")
        return result

    async def picture(self, number: int | None) -> str:
        """Return an SVG timeline of one run (a request that the user has started), or of the latest requests.

        If ``number`` is the number of a run, the timeline shows the time of that run. If it is `None`, the timeline
        shows the latest requests. Raises `InvalidPageRequest` if the run is no longer stored.
        """
        if number is None:
            return await self._frames.picture(-math.inf, math.inf, "The last requests")
        run = self._run(number)
        ended = math.inf if run.ended is None else run.ended
        return await self._frames.picture(run.started_at, ended, f"{run.kind} {run.name}")

    def _connected(self) -> Client:
        if self._client is None or self._nursery is None:
            raise InvalidPageRequest("not connected to the server")
        return self._client

    def _run(self, number: Any) -> Run:
        try:
            return self._runs[number]
        except (KeyError, TypeError):
            raise InvalidPageRequest("this request is no longer stored") from None

    def reconnect(self, asked: JSONObject) -> None:
        """Close the connection to the inspected server, which ends all runs, and open a new one."""
        self._again.set()
        self._leaving.cancel(reason="reconnected from the page")

    def cancel(self, asked: JSONObject) -> None:
        """Cancel a run (a request that the user has started). The page sends the number of the run."""
        self._runs.cancel(self._run(asked.get("run")))

    def answer(self, asked: JSONObject) -> None:
        """Answer the server's input request with the data that the user has entered in the inspector's page."""
        number, answer = asked.get("question"), asked.get("answer")
        if not (isinstance(number, int) and isinstance(answer, dict)):
            raise InvalidPageRequest(
                "'answer' must be an object, and 'question' must be the number of an input request"
            )
        self._questions.answer(number, cast("JSONObject", answer))

    async def frame(self, asked: JSONObject) -> Any:
        """Return a stored message of the connection to the inspected server, with its secrets masked."""
        try:
            return await self._frames.message(cast("int", asked.get("frame")))
        except (KeyError, TypeError):
            raise InvalidPageRequest("this message is no longer stored") from None

    def start(self, asked: JSONObject) -> JSONObject:
        """Start a run (a request for the user): call a tool, read a resource, get a prompt, or wait for an MCP task.
        Returns the number of the run."""
        client, kind, name = self._connected(), asked.get("kind"), asked.get("name")
        assert self._nursery is not None, "there is a connection"
        given: Any = asked.get("arguments")
        if not isinstance(name, str) or not (given is None or isinstance(given, dict)):
            raise InvalidPageRequest("'name' must be a string, and 'arguments' must be an object if they are given")
        arguments = cast("JSONObject | None", given)

        async def work(run: Run, on_progress: OnProgress) -> Outcome:
            match kind:
                case "call":
                    result: Any = await client.call_tool(
                        name, arguments, on_progress=on_progress, on_task=lambda task: self._has_task(run, task)
                    )
                case "task":
                    started = await client.start_task(name, arguments)
                    if started.id is not None:
                        self._has_task(run, started.id)
                        return {"task": started.id}, False
                    result = await started.result()
                case "result":
                    self._has_task(run, name)
                    result = await client.resume_task(name).result(on_progress=on_progress)
                case "read":
                    result = await client.read_resource(name, on_progress=on_progress)
                case _:
                    result = await client.get_prompt(name, arguments, on_progress=on_progress)
            is_error = False
            if isinstance(result, CallToolResult):
                is_error, run.warning = bool(result.is_error), result.schema_error
            return unstructure(result, client.revision), is_error

        if kind not in ("call", "task", "result", "read", "prompt"):
            raise InvalidPageRequest("unknown kind of request: must be call, task, result, read or prompt")
        return {"run": self._runs.start(self._nursery, kind, name, arguments, work).number}

    def _has_task(self, run: Run, task: str) -> None:
        run.task = task
        self._tasks[task] = None
        while len(self._tasks) > _MOST_TASKS:
            del self._tasks[next(iter(self._tasks))]
        self._runs.publish(run)


_AT_ONCE: Final[dict[str, Callable[[Inspection, JSONObject], Any]]] = {
    "start": Inspection.start,
    "cancel": Inspection.cancel,
    "answer": Inspection.answer,
    "reconnect": Inspection.reconnect,
}


class _StderrSink:
    """A sink for the server's standard error. It forwards the text to ``copy``, and calls ``log`` with the level
    ``stderr`` and each line. See `TextSink`."""

    def __init__(self, log: Callable[[str, str], None], copy: TextSink | None) -> None:
        self._log = log
        self._copy = copy

    def write(self, text: str, /) -> None:
        for line in text.splitlines():
            if line.strip():
                self._log("stderr", line)
        if self._copy is not None:
            self._copy.write(text)


def _about(client: Client) -> JSONObject:
    """Return JSON data about the server for the inspector's page, such as its name and capabilities."""
    revision, declared = client.revision, client.server_capabilities
    extensions = declared.extensions or {}
    kinds = {
        "tools": declared.tools is not None,
        "resources": declared.resources is not None,
        "templates": declared.resources is not None,
        "prompts": declared.prompts is not None,
        "skills": SKILLS_EXTENSION in extensions,
        "tasks": declared.tasks is not None or TASKS_EXTENSION in extensions,
    }
    return {
        "state": "connected",
        "info": None if client.server_info is None else unstructure(client.server_info, revision),
        "revision": revision.name,
        "era": "legacy" if revision.handshake else "modern",
        "instructions": None if client.instructions is None else cut(client.instructions, 20_000),
        "capabilities": unstructure(declared, revision),
        # Always list tools, because some servers don't declare the tools capability although they have tools.
        "has": [*(kind for kind, is_there in kinds.items() if is_there), *([] if kinds["tools"] else ["tools"])],
        "logs": declared.logging is not None,
        "completions": declared.completions is not None,
    }
