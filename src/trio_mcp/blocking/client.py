"""Client, RunningTask, LoadedSkill and Changes for threads that wait, and the functions that open a client."""

from __future__ import annotations

from collections.abc import Iterator
from functools import wraps

from ..bridging.calls import PassThrough, StartWork, Wrapper, sync_method
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
from .waiting import BridgedIterator, blocking_method, context_method, iterator_method, open_function, wrapped_method


class RunningTask(Wrapper):
    """`trio_mcp.types.RunningTask` for threads that wait."""

    id = PassThrough[str | None]()
    """The id of the task; `None` where there is none. See `trio_mcp.types.RunningTask.id`."""
    get = blocking_method(of_tasks.RunningTask.get)
    result = blocking_method(of_tasks.RunningTask.result)
    cancel = blocking_method(of_tasks.RunningTask.cancel)


class Changes(Wrapper, Iterator[Change]):
    """`trio_mcp.types.Changes` for threads that wait."""

    acknowledged = PassThrough[SubscriptionFilter]()
    """Changes that the server agreed to tell of. See `trio_mcp.types.Changes`."""
    dropped = PassThrough[int]()
    """Number of changes that had no room."""
    take_all = sync_method(of_streams.Changes.take_all)

    def __init__(self, original: of_streams.Changes, begin: StartWork) -> None:
        super().__init__(original, begin)
        self._iterator = BridgedIterator(begin, lambda: original)

    def __next__(self) -> Change:
        return next(self._iterator)


class LoadedSkill(Wrapper):
    """`trio_mcp.types.LoadedSkill` for threads that wait."""

    entry = PassThrough[Skill]()
    """The entry that all files are compared with."""
    text = PassThrough[str]()
    """The ``SKILL.md``, with its front matter."""
    read = blocking_method(of_skills.LoadedSkill.read)


class Client(Wrapper):
    """`trio_mcp.Client` for threads that wait, any number at a time."""

    server_info = PassThrough[Implementation | None]()
    """The server's name and version. Self-reported: for display, never for decisions."""
    server_capabilities = PassThrough[ServerCapabilities]()
    """The capabilities of the server."""
    instructions = PassThrough[str | None]()
    """The server's advice to the model."""
    revision = PassThrough[Revision]()
    """The protocol revision of the connection."""
    settings = PassThrough[ClientSettings]()
    """The settings that the client was opened with."""
    capabilities = PassThrough[ClientCapabilities]()
    """The capabilities that the client declares to servers."""
    lost = PassThrough[ConnectionLost | None]()
    """The reason why the connection is gone; `None` while the connection is open, as far as known."""
    unreadable_messages = PassThrough[int]()
    """The number of lines of the server that were no messages so far."""

    server_extension = sync_method(of_client.Client.server_extension)
    call_tool = blocking_method(of_client.Client.call_tool)
    start_task = wrapped_method(of_client.Client.start_task, RunningTask)
    list_tasks = iterator_method(of_client.Client.list_tasks)
    read_resource = blocking_method(of_client.Client.read_resource)
    get_prompt = blocking_method(of_client.Client.get_prompt)
    complete = blocking_method(of_client.Client.complete)
    list_tools = iterator_method(of_client.Client.list_tools)
    list_resources = iterator_method(of_client.Client.list_resources)
    list_resource_templates = iterator_method(of_client.Client.list_resource_templates)
    list_prompts = iterator_method(of_client.Client.list_prompts)
    list_skills = iterator_method(of_client.Client.list_skills)
    get_skill = blocking_method(of_client.Client.get_skill)
    load_skill = wrapped_method(of_client.Client.load_skill, LoadedSkill)
    list_directory = iterator_method(of_client.Client.list_directory)
    listen = context_method(of_client.Client.listen, Changes)
    subscribe = blocking_method(of_client.Client.subscribe)
    unsubscribe = blocking_method(of_client.Client.unsubscribe)
    set_log_level = blocking_method(of_client.Client.set_log_level)
    ping = blocking_method(of_client.Client.ping)
    until_lost = blocking_method(of_client.Client.until_lost)
    roots_changed = blocking_method(of_client.Client.roots_changed)
    request = blocking_method(of_client.Client.request)
    send_notification = blocking_method(of_client.Client.send_notification)

    @wraps(of_client.Client.resume_task)
    def resume_task(self, task_id: str) -> RunningTask:
        return RunningTask(self._original.resume_task(task_id), self._begin)


open_stdio = open_function(stdio.open_stdio, Client)
open_http = open_function(http.open_http, Client)
open_websocket = open_function(websocket.open_websocket, Client)
open_tcp = open_function(lines.open_tcp, Client)
open_unix = open_function(lines.open_unix, Client)
open_memory = open_function(memory.open_memory, Client)
