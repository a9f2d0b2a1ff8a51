"""Client, RunningTask, LoadedSkill and Changes for threads that wait, and the functions that open a client."""

from __future__ import annotations

from collections.abc import Iterator
from functools import wraps

from ..bridging.calls import Begin
from ..bridging.views import Same, View, at_once
from ..client import client as of_client
from ..client import remote_tasks as of_tasks
from ..client import subscriptions as of_streams
from ..client.cache import Change
from ..client.options import ClientSettings
from ..connecting import lines, memory, stdio, websocket
from ..connecting.http import opening as http
from ..protocol.revisions import Revision
from ..protocol.types.lifecycle import ClientCapabilities, Implementation, ServerCapabilities
from ..protocol.types.notifications import SubscriptionFilter
from ..protocol.types.skills import Skill
from ..runtime.transport import ConnectionLost
from ..skills import loading as of_skills
from .members import blocked, iterated, opened_by, opening, viewed
from .waiting import Steps


class RunningTask(View):
    """`trio_mcp.RunningTask` for threads that wait."""

    id = Same[str | None]()
    """The id of the task; `None` where there is none. See `trio_mcp.RunningTask.id`."""
    get = blocked(of_tasks.RunningTask.get)
    result = blocked(of_tasks.RunningTask.result)
    cancel = blocked(of_tasks.RunningTask.cancel)


class Changes(View, Iterator[Change]):
    """`trio_mcp.Changes` for threads that wait."""

    acknowledged = Same[SubscriptionFilter]()
    """Changes that the server agreed to tell of. See `trio_mcp.Changes`."""
    dropped = Same[int]()
    """Number of changes that had no room."""
    take_all = at_once(of_streams.Changes.take_all)

    def __init__(self, original: of_streams.Changes, begin: Begin) -> None:
        super().__init__(original, begin)
        self._steps = Steps(begin, lambda: original)

    def __next__(self) -> Change:
        return next(self._steps)


class LoadedSkill(View):
    """`trio_mcp.LoadedSkill` for threads that wait."""

    entry = Same[Skill]()
    """The entry that all files are compared with."""
    text = Same[str]()
    """The ``SKILL.md``, with its front matter."""
    read = blocked(of_skills.LoadedSkill.read)


class Client(View):
    """`trio_mcp.Client` for threads that wait, any number at a time."""

    server_info = Same[Implementation | None]()
    """The server's name and version. Self-reported: for display, never for decisions."""
    server_capabilities = Same[ServerCapabilities]()
    """The capabilities of the server."""
    instructions = Same[str | None]()
    """The server's advice to the model."""
    revision = Same[Revision]()
    """The protocol revision of the connection."""
    settings = Same[ClientSettings]()
    """The settings that the client was opened with."""
    capabilities = Same[ClientCapabilities]()
    """The capabilities that the client declares to servers."""
    lost = Same[ConnectionLost | None]()
    """The reason why the connection is gone; `None` while the connection is open, as far as known."""
    unreadable_messages = Same[int]()
    """The number of lines of the server that were no messages so far."""

    server_extension = at_once(of_client.Client.server_extension)
    call_tool = blocked(of_client.Client.call_tool)
    start_task = viewed(of_client.Client.start_task, RunningTask)
    list_tasks = iterated(of_client.Client.list_tasks)
    read_resource = blocked(of_client.Client.read_resource)
    get_prompt = blocked(of_client.Client.get_prompt)
    complete = blocked(of_client.Client.complete)
    list_tools = iterated(of_client.Client.list_tools)
    list_resources = iterated(of_client.Client.list_resources)
    list_resource_templates = iterated(of_client.Client.list_resource_templates)
    list_prompts = iterated(of_client.Client.list_prompts)
    list_skills = iterated(of_client.Client.list_skills)
    get_skill = blocked(of_client.Client.get_skill)
    load_skill = viewed(of_client.Client.load_skill, LoadedSkill)
    list_directory = iterated(of_client.Client.list_directory)
    listen = opened_by(of_client.Client.listen, Changes)
    subscribe = blocked(of_client.Client.subscribe)
    unsubscribe = blocked(of_client.Client.unsubscribe)
    set_log_level = blocked(of_client.Client.set_log_level)
    ping = blocked(of_client.Client.ping)
    until_lost = blocked(of_client.Client.until_lost)
    roots_changed = blocked(of_client.Client.roots_changed)
    request = blocked(of_client.Client.request)
    send_notification = blocked(of_client.Client.send_notification)

    @wraps(of_client.Client.resume_task)
    def resume_task(self, task_id: str) -> RunningTask:
        return RunningTask(self._original.resume_task(task_id), self._begin)


open_stdio = opening(stdio.open_stdio, Client)
open_http = opening(http.open_http, Client)
open_websocket = opening(websocket.open_websocket, Client)
open_tcp = opening(lines.open_tcp, Client)
open_unix = opening(lines.open_unix, Client)
open_memory = opening(memory.open_memory, Client)
