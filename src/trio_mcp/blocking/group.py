"""Group, GroupTask and Catalogue for threads that wait, and `open_group`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import wraps
from typing import Unpack, cast

import attrs

from ..bridging.calls import PassThrough, Wrapper, run_sync
from ..bridging.portal import TrioPortal
from ..client.options import ClientOptions
from ..concurrency.misuse import check_keywords
from ..hosting import catalogue as of_catalogue
from ..hosting import group as of_group
from ..hosting.catalogue import CatalogueEntry
from ..hosting.descriptions import MemberDescription, MemberStatus
from ..protocol.types.prompts import Prompt
from ..protocol.types.resources import Resource, ResourceTemplate
from ..protocol.types.tools import Tool
from .client import Client, LoadedSkill
from .waiting import BridgedContext, blocking_method, iterator_method, with_threaded_handlers, wrapped_method


class Catalogue(Wrapper):
    """`trio_mcp.hosting.Catalogue` for threads that wait."""

    tools = PassThrough[Mapping[str, CatalogueEntry[Tool]]]()
    """The tools by name, as they are now. The mapping never changes: a later state is another mapping."""
    prompts = PassThrough[Mapping[str, CatalogueEntry[Prompt]]]()
    """The prompts by name."""
    resources = PassThrough[Mapping[str, CatalogueEntry[Resource]]]()
    """The resources by URI."""
    resource_templates = PassThrough[Mapping[str, CatalogueEntry[ResourceTemplate]]]()
    """The resource templates by template."""
    watch = iterator_method(of_catalogue.Catalogue.watch)


class GroupTask(Wrapper):
    """`trio_mcp.hosting.GroupTask` for threads that wait."""

    member = PassThrough[str]()
    """Name of the member."""
    id = PassThrough[str | None]()
    """The id for `Group.resume_task`; `None` where there is no task."""
    get = blocking_method(of_group.GroupTask.get)
    result = blocking_method(of_group.GroupTask.result)
    cancel = blocking_method(of_group.GroupTask.cancel)


class Group(Wrapper):
    """`trio_mcp.hosting.Group` for threads that wait, any number at a time."""

    remove = blocking_method(of_group.Group.remove)
    client = wrapped_method(of_group.Group.client, Client)
    watch = iterator_method(of_group.Group.watch)
    settled = blocking_method(of_group.Group.settled)
    call_tool = blocking_method(of_group.Group.call_tool)
    call_from_app = blocking_method(of_group.Group.call_from_app)
    start_task = wrapped_method(of_group.Group.start_task, GroupTask)
    get_prompt = blocking_method(of_group.Group.get_prompt)
    read_resource = blocking_method(of_group.Group.read_resource)
    skills = blocking_method(of_group.Group.skills)
    load_skill = wrapped_method(of_group.Group.load_skill, LoadedSkill)

    @wraps(of_group.Group.add)
    def add(self, name: str, description: MemberDescription) -> None:
        described = _described(description)
        run_sync(self._begin, lambda: self._original.add(name, described))

    @wraps(of_group.Group.resume_task)
    def resume_task(self, task_id: str) -> GroupTask:
        return GroupTask(self._original.resume_task(task_id), self._begin)

    @property
    def statuses(self) -> dict[str, MemberStatus]:
        """The status of each member, in order of addition."""
        return run_sync(self._begin, lambda: self._original.statuses)

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
    return BridgedContext(
        lambda: of_group.open_group(described, max_name_length=max_name_length, **_adapted(options)),
        Group,
        TrioPortal.start,
    )


def _described(description: MemberDescription) -> MemberDescription:
    return attrs.evolve(description, options=_adapted(description.options))


def _adapted(options: ClientOptions) -> ClientOptions:
    return cast("ClientOptions", with_threaded_handlers({**options}))
