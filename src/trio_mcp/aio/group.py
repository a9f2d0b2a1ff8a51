"""Group, GroupTask and Catalogue for tasks of asyncio, and `open_group`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from functools import wraps
from typing import Any, Unpack, cast

import attrs

from ..bridging.calls import run_at_once
from ..bridging.thread import TrioThread
from ..bridging.views import Same, View
from ..client.options import ClientOptions
from ..concurrency.misuse import entered
from ..hosting import catalogue as of_catalogue
from ..hosting import group as of_group
from ..hosting.catalogue import Entry
from ..hosting.descriptions import MemberDescription, MemberStatus
from ..protocol.types.prompts import Prompt
from ..protocol.types.resources import Resource, ResourceTemplate
from ..protocol.types.tools import Tool
from .client import Client, LoadedSkill
from .loop import Loop, Opened, running_loop
from .members import awaited, iterated, viewed


class Catalogue(View):
    """`trio_mcp.Catalogue` for tasks of asyncio."""

    tools = Same[Mapping[str, Entry[Tool]]]()
    """The tools by name, as they are now. The mapping never changes: a later state is another mapping."""
    prompts = Same[Mapping[str, Entry[Prompt]]]()
    """The prompts by name."""
    resources = Same[Mapping[str, Entry[Resource]]]()
    """The resources by URI."""
    resource_templates = Same[Mapping[str, Entry[ResourceTemplate]]]()
    """The resource templates by template."""
    watch = iterated(of_catalogue.Catalogue.watch)


class GroupTask(View):
    """`trio_mcp.GroupTask` for tasks of asyncio."""

    member = Same[str]()
    """Name of the member."""
    id = Same[str | None]()
    """The id for `Group.resume_task`; `None` where there is no task."""
    get = awaited(of_group.GroupTask.get)
    result = awaited(of_group.GroupTask.result)
    cancel = awaited(of_group.GroupTask.cancel)


class Group(View):
    """`trio_mcp.Group` for tasks of asyncio, any number at a time."""

    remove = awaited(of_group.Group.remove)
    client = viewed(of_group.Group.client, Client)
    watch = iterated(of_group.Group.watch)
    settled = awaited(of_group.Group.settled)
    call_tool = awaited(of_group.Group.call_tool)
    call_from_app = awaited(of_group.Group.call_from_app)
    start_task = viewed(of_group.Group.start_task, GroupTask)
    get_prompt = awaited(of_group.Group.get_prompt)
    read_resource = awaited(of_group.Group.read_resource)
    skills = awaited(of_group.Group.skills)
    load_skill = viewed(of_group.Group.load_skill, LoadedSkill)

    @wraps(of_group.Group.add)
    def add(self, name: str, description: MemberDescription) -> None:
        described = _described(Loop(running_loop()), description)
        run_at_once(self._begin, lambda: self._original.add(name, described))

    @wraps(of_group.Group.resume_task)
    def resume_task(self, task_id: str) -> GroupTask:
        return GroupTask(self._original.resume_task(task_id), self._begin)

    @property
    def statuses(self) -> dict[str, MemberStatus]:
        """The status of each member, in order of addition."""
        return run_at_once(self._begin, lambda: self._original.statuses)

    @property
    def catalogue(self) -> Catalogue:
        """The tools, prompts and resources of the members."""
        return Catalogue(self._original.catalogue, self._begin)


@entered("group")
@wraps(of_group.open_group)
def open_group(
    members: Mapping[str, MemberDescription] | None = None,
    /,
    *,
    max_name_length: int | None = None,
    **options: Unpack[ClientOptions],
) -> AbstractAsyncContextManager[Group]:
    def manager(loop: Loop) -> AbstractAsyncContextManager[Any]:
        described = {name: _described(loop, description) for name, description in (members or {}).items()}
        return of_group.open_group(described, max_name_length=max_name_length, **_adapted(loop, options))

    return Opened(manager, Group, TrioThread.begin)


def _described(loop: Loop, description: MemberDescription) -> MemberDescription:
    return attrs.evolve(description, options=_adapted(loop, description.options))


def _adapted(loop: Loop, options: ClientOptions) -> ClientOptions:
    return cast("ClientOptions", loop.adapt({**options}))
