"""`Client`, `Group` and related classes for blocking code, and the functions that open clients and groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Unpack, cast

import attrs

from ..bridging.calls import PassThrough, StartWork, Wrapper, run_sync, sync_method, wrapping
from ..bridging.portal import TrioPortal
from ..client import client as of_client
from ..client import remote_tasks as of_tasks
from ..client import subscriptions as of_streams
from ..client.cache import Change
from ..client.options import ClientOptions, ClientSettings
from ..concurrency.misuse import check_keywords
from ..connecting import lines, memory, stdio, websocket
from ..connecting.http import opening as http
from ..hosting import catalogue as of_catalogue
from ..hosting import group as of_group
from ..hosting.catalogue import CatalogueEntry
from ..hosting.descriptions import HeldTool, MemberDescription, MemberStatus
from ..protocol.fields import JSONObject
from ..protocol.revisions import Revision
from ..protocol.types.lifecycle import ClientCapabilities, Implementation, ServerCapabilities
from ..protocol.types.notifications import SubscriptionFilter
from ..protocol.types.prompts import Prompt
from ..protocol.types.resources import Resource, ResourceTemplate
from ..protocol.types.skills import Skill
from ..protocol.types.tools import Tool
from ..runtime.transport import ConnectionLost
from ..skills import loading as of_skills
from .waiting import (
    BridgedContext,
    BridgedIterator,
    blocking_method,
    context_method,
    iterator_method,
    open_function,
    with_threaded_handlers,
    wrapped_method,
)

if TYPE_CHECKING:
    from ..hosting.pins import PinSource, ToolPins


class RunningTask(Wrapper):
    """An MCP task that runs on a server. This is the blocking version of `trio_mcp.types.RunningTask`."""

    id = PassThrough[str | None]()
    """The id of the task; `None` if the server answered without a task. See `trio_mcp.types.RunningTask.id`."""
    get = blocking_method(of_tasks.RunningTask.get)
    result = blocking_method(of_tasks.RunningTask.result)
    cancel = blocking_method(of_tasks.RunningTask.cancel)


class Changes(Wrapper, Iterator[Change]):
    """A blocking iterator over the changes that a server reports. The trio version is `trio_mcp.types.Changes`."""

    acknowledged = PassThrough[SubscriptionFilter]()
    """The changes that the server agreed to report. See `trio_mcp.types.Changes`."""
    dropped = PassThrough[int]()
    """How many changes were dropped because too many were waiting."""
    take_all = sync_method(of_streams.Changes.take_all)

    def __init__(self, original: of_streams.Changes, begin: StartWork) -> None:
        super().__init__(original, begin)
        self._iterator = BridgedIterator(begin, lambda: original)

    def __next__(self) -> Change:
        return next(self._iterator)


class LoadedSkill(Wrapper):
    """A skill that a client has loaded from a server. This is the blocking version of `trio_mcp.types.LoadedSkill`."""

    entry = PassThrough[Skill]()
    """The skill's entry in the server's list, which all files are verified against."""
    text = PassThrough[str]()
    """The text of the skill's ``SKILL.md``, including its front matter."""
    read = blocking_method(of_skills.LoadedSkill.read)


class Client(Wrapper):
    """A connection to one server, for blocking code. Any number of threads may use it.

    See `trio_mcp.Client`.
    """

    server_info = PassThrough[Implementation | None]()
    """The name and version that the server reports about itself. Use them for display, never for decisions."""
    server_capabilities = PassThrough[ServerCapabilities]()
    """The capabilities that the server has declared."""
    instructions = PassThrough[str | None]()
    """The server's instructions for the model."""
    discovery = PassThrough[JSONObject | None]()
    """The server's response to ``server/discover``, for ``prior=`` of a later client. See
    `trio_mcp.Client.discovery`."""
    revision = PassThrough[Revision]()
    """The protocol revision of the connection."""
    settings = PassThrough[ClientSettings]()
    """The settings that the client was opened with."""
    capabilities = PassThrough[ClientCapabilities]()
    """The capabilities that this client declares to the server."""
    lost = PassThrough[ConnectionLost | None]()
    """The error that ended the connection; `None` while the connection seems to be open."""
    unreadable_messages = PassThrough[int]()
    """The number of lines, so far, in the server's output that weren't messages."""

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

    @wrapping(of_client.Client.resume_task)
    def resume_task(self, task_id: str) -> RunningTask:
        return RunningTask(self._original.resume_task(task_id), self._begin)


open_stdio = open_function(stdio.open_stdio, Client)
open_http = open_function(http.open_http, Client)
open_websocket = open_function(websocket.open_websocket, Client)
open_tcp = open_function(lines.open_tcp, Client)
open_unix = open_function(lines.open_unix, Client)
open_memory = open_function(memory.open_memory, Client)


class Catalogue(Wrapper):
    """The tools, prompts and resources of a group's servers. This is the blocking version of
    `trio_mcp.hosting.Catalogue`."""

    tools = PassThrough[Mapping[str, CatalogueEntry[Tool]]]()
    """The group's current tools, by name. The mapping never changes; after a change, this returns a new mapping."""
    prompts = PassThrough[Mapping[str, CatalogueEntry[Prompt]]]()
    """The group's current prompts, by name."""
    resources = PassThrough[Mapping[str, CatalogueEntry[Resource]]]()
    """The group's current resources, by URI."""
    resource_templates = PassThrough[Mapping[str, CatalogueEntry[ResourceTemplate]]]()
    """The group's current resource templates, by their URI templates."""
    held = PassThrough[Mapping[str, HeldTool]]()
    """The tools that aren't offered until `Group.approve_tools` approves them, by name."""
    watch = iterator_method(of_catalogue.Catalogue.watch)


class GroupTask(Wrapper):
    """An MCP task on a member server of a group. This is the blocking version of `trio_mcp.hosting.GroupTask`."""

    member = PassThrough[str]()
    """The name of the member that runs the task."""
    id = PassThrough[str | None]()
    """The id for `Group.resume_task`; `None` if the server answered without a task."""
    get = blocking_method(of_group.GroupTask.get)
    result = blocking_method(of_group.GroupTask.result)
    cancel = blocking_method(of_group.GroupTask.cancel)


class Group(Wrapper):
    """A client for many servers at once, for blocking code. Any number of threads may use it.

    See `trio_mcp.hosting.Group`.
    """

    remove = blocking_method(of_group.Group.remove)
    client = wrapped_method(of_group.Group.client, Client)
    watch = iterator_method(of_group.Group.watch)
    settled = blocking_method(of_group.Group.settled)
    approve_tools = blocking_method(of_group.Group.approve_tools)
    call_tool = blocking_method(of_group.Group.call_tool)
    call_from_app = blocking_method(of_group.Group.call_from_app)
    start_task = wrapped_method(of_group.Group.start_task, GroupTask)
    get_prompt = blocking_method(of_group.Group.get_prompt)
    read_resource = blocking_method(of_group.Group.read_resource)
    skills = blocking_method(of_group.Group.skills)
    load_skill = wrapped_method(of_group.Group.load_skill, LoadedSkill)

    @wrapping(of_group.Group.add)
    def add(self, name: str, description: MemberDescription) -> None:
        described = _described(description)
        run_sync(self._begin, lambda: self._original.add(name, described))

    @wrapping(of_group.Group.resume_task)
    def resume_task(self, task_id: str) -> GroupTask:
        return GroupTask(self._original.resume_task(task_id), self._begin)

    @property
    def statuses(self) -> dict[str, MemberStatus]:
        """The status of each member server of the group, in the order in which the servers were added."""
        return run_sync(self._begin, lambda: self._original.statuses)

    @property
    def catalogue(self) -> Catalogue:
        """The tools, prompts and resources of all member servers of the group."""
        return Catalogue(self._original.catalogue, self._begin)


@wrapping(of_group.open_group)
def open_group(
    members: Mapping[str, MemberDescription] | None = None,
    /,
    *,
    max_name_length: int | None = None,
    pin: ToolPins | PinSource | None = None,
    **options: Unpack[ClientOptions],
) -> AbstractContextManager[Group]:
    check_keywords(of_group.open_group, options)
    described = {name: _described(description) for name, description in (members or {}).items()}
    return BridgedContext(
        lambda: of_group.open_group(described, max_name_length=max_name_length, pin=pin, **_adapted(options)),
        Group,
        TrioPortal.start,
    )


def _described(description: MemberDescription) -> MemberDescription:
    return attrs.evolve(description, options=_adapted(description.options))


def _adapted(options: ClientOptions) -> ClientOptions:
    return cast("ClientOptions", with_threaded_handlers({**options}))
