"""Group, GroupTask and Catalogue for threads that wait, and `open_group`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import wraps
from typing import Unpack, cast

import attrs

from ..bridging.calls import run_at_once
from ..bridging.thread import TrioThread
from ..bridging.views import Same, View
from ..client.options import ClientOptions
from ..concurrency.misuse import check_keywords
from ..hosting import catalogue as of_catalogue
from ..hosting import group as of_group
from ..hosting.catalogue import Entry
from ..hosting.descriptions import MemberDescription, MemberStatus
from ..protocol.types.prompts import Prompt
from ..protocol.types.resources import Resource, ResourceTemplate
from ..protocol.types.tools import Tool
from .client import Client, LoadedSkill
from .members import blocked, iterated, viewed
from .waiting import Opened, in_threads


class Catalogue(View):
    """`trio_mcp.Catalogue` for threads that wait."""

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
    """`trio_mcp.GroupTask` for threads that wait."""

    member = Same[str]()
    """Name of the member."""
    id = Same[str | None]()
    """The id for `Group.resume_task`; `None` where there is no task."""
    get = blocked(of_group.GroupTask.get)
    result = blocked(of_group.GroupTask.result)
    cancel = blocked(of_group.GroupTask.cancel)


class Group(View):
    """`trio_mcp.Group` for threads that wait, any number at a time."""

    remove = blocked(of_group.Group.remove)
    client = viewed(of_group.Group.client, Client)
    watch = iterated(of_group.Group.watch)
    settled = blocked(of_group.Group.settled)
    call_tool = blocked(of_group.Group.call_tool)
    call_from_app = blocked(of_group.Group.call_from_app)
    start_task = viewed(of_group.Group.start_task, GroupTask)
    get_prompt = blocked(of_group.Group.get_prompt)
    read_resource = blocked(of_group.Group.read_resource)
    skills = blocked(of_group.Group.skills)
    load_skill = viewed(of_group.Group.load_skill, LoadedSkill)

    @wraps(of_group.Group.add)
    def add(self, name: str, description: MemberDescription) -> None:
        described = _described(description)
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


@wraps(of_group.open_group)
def open_group(
    members: Mapping[str, MemberDescription] | None = None,
    /,
    *,
    max_name_length: int | None = None,
    **options: Unpack[ClientOptions],
) -> AbstractContextManager[Group]:
    check_keywords(of_group.open_group, options)
    described = {name: _described(description) for name, description in (members or {}).items()}
    return Opened(
        lambda: of_group.open_group(described, max_name_length=max_name_length, **_adapted(options)),
        Group,
        TrioThread.begin,
    )


def _described(description: MemberDescription) -> MemberDescription:
    return attrs.evolve(description, options=_adapted(description.options))


def _adapted(options: ClientOptions) -> ClientOptions:
    return cast("ClientOptions", in_threads({**options}))
