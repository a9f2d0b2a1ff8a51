"""Client, RunningTask, LoadedSkill and Changes for tasks of asyncio, and the functions that open a client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from functools import wraps
from typing import Any

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
from .loop import AsyncBridgedIterator, async_method, context_method, iterator_method, open_function, wrapped_method


class RunningTask(Wrapper):
    """`trio_mcp.types.RunningTask` for tasks of asyncio."""

    id = PassThrough[str | None]()
    """The id of the task; `None` where there is none. See `trio_mcp.types.RunningTask.id`."""
    get = async_method(of_tasks.RunningTask.get)
    result = async_method(of_tasks.RunningTask.result)
    cancel = async_method(of_tasks.RunningTask.cancel)


class Changes(Wrapper, AsyncIterator[Change]):
    """`trio_mcp.types.Changes` for tasks of asyncio."""

    acknowledged = PassThrough[SubscriptionFilter]()
    """Changes that the server agreed to tell of. See `trio_mcp.types.Changes`."""
    dropped = PassThrough[int]()
    """Number of changes that had no room."""
    take_all = sync_method(of_streams.Changes.take_all)

    def __init__(self, original: of_streams.Changes, begin: StartWork) -> None:
        super().__init__(original, begin)
        self._iterator = AsyncBridgedIterator(begin, lambda: original)

    def __anext__(self) -> Coroutine[Any, Any, Change]:
        return anext(self._iterator)


class LoadedSkill(Wrapper):
    """`trio_mcp.types.LoadedSkill` for tasks of asyncio."""

    entry = PassThrough[Skill]()
    """The entry that all files are compared with."""
    text = PassThrough[str]()
    """The ``SKILL.md``, with its front matter."""
    read = async_method(of_skills.LoadedSkill.read)


class Client(Wrapper):
    """`trio_mcp.Client` for tasks of asyncio, any number at a time."""

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
    call_tool = async_method(of_client.Client.call_tool)
    start_task = wrapped_method(of_client.Client.start_task, RunningTask)
    list_tasks = iterator_method(of_client.Client.list_tasks)
    read_resource = async_method(of_client.Client.read_resource)
    get_prompt = async_method(of_client.Client.get_prompt)
    complete = async_method(of_client.Client.complete)
    list_tools = iterator_method(of_client.Client.list_tools)
    list_resources = iterator_method(of_client.Client.list_resources)
    list_resource_templates = iterator_method(of_client.Client.list_resource_templates)
    list_prompts = iterator_method(of_client.Client.list_prompts)
    list_skills = iterator_method(of_client.Client.list_skills)
    get_skill = async_method(of_client.Client.get_skill)
    load_skill = wrapped_method(of_client.Client.load_skill, LoadedSkill)
    list_directory = iterator_method(of_client.Client.list_directory)
    listen = context_method(of_client.Client.listen, Changes)
    subscribe = async_method(of_client.Client.subscribe)
    unsubscribe = async_method(of_client.Client.unsubscribe)
    set_log_level = async_method(of_client.Client.set_log_level)
    ping = async_method(of_client.Client.ping)
    until_lost = async_method(of_client.Client.until_lost)
    roots_changed = async_method(of_client.Client.roots_changed)
    request = async_method(of_client.Client.request)
    send_notification = async_method(of_client.Client.send_notification)

    @wraps(of_client.Client.resume_task)
    def resume_task(self, task_id: str) -> RunningTask:
        return RunningTask(self._original.resume_task(task_id), self._begin)


open_stdio = open_function(stdio.open_stdio, Client, "client")
open_http = open_function(http.open_http, Client, "client")
open_websocket = open_function(websocket.open_websocket, Client, "client")
open_tcp = open_function(lines.open_tcp, Client, "client")
open_unix = open_function(lines.open_unix, Client, "client")
open_memory = open_function(memory.open_memory, Client, "client")
