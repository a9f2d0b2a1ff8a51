"""open_group: use many servers at once, where no server can harm another, or the group's users.

A `Group` has its members by name; a `GroupTask` is a task that a member runs.
"""

from __future__ import annotations

import contextvars
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import attrs
import trio

from ..classes import define, frozen
from ..client.client import Client
from ..client.current_call import CallHandlers
from ..client.options import ClientOptions, ClientSettings
from ..client.remote_tasks import RunningTask
from ..concurrency.contexts import asynccontextmanager
from ..concurrency.misuse import async_with_only, check_keywords, check_opened_under_trio
from ..concurrency.nurseries import ServiceNursery, open_service_nursery
from ..concurrency.threads import current_run
from ..jsonrpc.errors import MCPError, clean
from ..protocol.errors import MethodUnavailable
from ..protocol.fields import JSONObject
from ..protocol.types.prompts import GetPromptResult
from ..protocol.types.resources import ReadResourceResult
from ..protocol.types.tools import CallToolResult
from ..runtime.calls import OnProgress
from ..tasks.task_state import TaskState
from .catalogue import Catalogue, CatalogueEntry, ChangeFeed, ListName, Watch, catalogue_uri, parse_uri
from .descriptions import HeldTool, MemberDescription, MemberState, MemberStatus, MemberUnavailable, NotInCatalogue
from .member import Member, options_for_member

if TYPE_CHECKING:
    from ..protocol.types.skills import Skill
    from ..skills.loading import LoadedSkill
    from .pins import PinSource, ToolPins

logger = logging.getLogger("trio_mcp")


@frozen
class GroupSkill:
    """A skill of a member. A skill is known by its member and its URI, never by its name, which any other may have
    (SEP-2640, Names)."""

    member: str
    """Name of the member."""
    skill: Skill
    """The skill as its server described it."""
    shares_name: bool = attrs.field(kw_only=True)
    """True where another skill of the group has the same name: hosts show where each is from, and prefer none."""

    @property
    def uri(self) -> str:
        """The URI of its ``SKILL.md`` in the catalogue, for `Group.read_resource`."""
        return catalogue_uri(self.member, self.skill.uri)


class Group:
    """The members of a group, by name, open until the ``open_group`` block is left.

    Methods may be called from any task, in any order, and those that are not async from any thread. Each member is
    connected, kept and closed by a task of the group's own: a failure of the member fails the calls to the member, and
    cancels nobody. An interrupted call is reported, never repeated. Calls raise the exceptions of a `Client`, and
    `MemberUnavailable`, with nothing sent, for a member that has failed, was removed or never existed. Calls wait for a
    member that is starting or restarting; the caller limits the wait with trio's own scopes.
    """

    def __init__(
        self,
        nursery: ServiceNursery,
        options: ClientOptions,
        max_name_length: int | None = None,
        pins: ToolPins | None = None,
    ) -> None:
        self.pins = pins
        """The approved tools; `None` without ``pin=``."""
        self.catalogue = Catalogue(max_name_length, pins)
        """The tools, prompts and resources of the members."""
        self._nursery = nursery
        self._options = options
        self._members: dict[str, Member] = {}
        self._feed: ChangeFeed[MemberStatus] = ChangeFeed()
        self._closed = False
        self._run = current_run()
        # Members belong to the group, not to the task that happens to add them.
        self._context = contextvars.copy_context()

    # Members

    def add(self, name: str, description: MemberDescription) -> None:
        """Start another member. Returns at once; calls to the member wait until it is ready.

        A name is free again as soon as `remove` was called. Raises `ValueError` for a name that is taken or empty, for
        a disabled description and for invalid options, and `trio.ClosedResourceError` if the group is closed. May be
        called from any thread; `Server` describes the wait there and its `RuntimeError`.
        """
        try:
            self._run.call(partial(self._add, name, description))
        except trio.RunFinishedError:
            raise trio.ClosedResourceError("the group was closed") from None

    def _add(self, name: str, description: MemberDescription) -> None:
        if self._closed:
            raise trio.ClosedResourceError("the group was closed")
        if not name or name in self._members:
            raise ValueError(f"there is a member {name!r} already" if name else "a member's name is not empty")
        if description.disabled:
            raise ValueError(f"the description of {name!r} is disabled")
        member = Member(name, description, self._options, self.catalogue, self._on_status)
        self._members[name] = member
        self.catalogue._add(name, description.tools)
        self._feed.publish(name, member.status)
        self._context.copy().run(self._nursery.start_soon, member.run)

    async def remove(self, name: str) -> None:
        """Close a member and wait until nothing of the member is left, its child process for example.

        The member is gone for all other callers at once, and calls in flight get `ConnectionLost`. A cancel ends the
        wait, and the member is closed all the same. Raises `MemberUnavailable` when there is no member of this name.
        """
        member = self._member(name)
        self._run.check("a group")
        del self._members[name]
        member.close()
        self.catalogue._remove(name)
        await member.ended.wait()

    def _member(self, name: str) -> Member:
        member = self._members.get(name)
        if member is None:
            raise MemberUnavailable(name, "is no member of this group")
        return member

    async def client(self, name: str) -> Client:
        """Return the client of a member, as soon as the member is ready: for everything that a `Client` can do.

        The client belongs to the present connection; a restart makes a new one. Raises `MemberUnavailable`.
        """
        self._run.check("a group")
        return await self._member(name).client()

    def _present(self, name: str) -> Client | None:
        """Return the client of a member that is connected now; `None` where there is none."""
        member = self._members.get(name)
        return None if member is None else member.present

    def _reconnect_as_legacy(self, name: str) -> None:
        """Connect a member anew in a legacy revision, in which its server may send requests. Calls in flight get
        `ConnectionLost`. Does nothing for a member that isn't connected, or whose description names the era or the
        revision. May be called from any thread: see `add`."""
        if name in self._members:
            self._run.call(self._members[name].reconnect_as_legacy)

    @property
    def statuses(self) -> dict[str, MemberStatus]:
        """The status of each member, in order of addition."""
        return {name: member.status for name, member in tuple(self._members.items())}

    def watch(self) -> Watch[MemberStatus]:
        """Watch the statuses of all members, now and as they change: ``async for status in group.watch()``."""
        return self._feed.watch()

    async def settled(self) -> None:
        """Wait until every member is ready and in the catalogue, or has failed at least once."""
        self._run.check("a group")
        for member in tuple(self._members.values()):
            await member.settled()

    async def approve_tools(self, tools: Iterable[HeldTool]) -> None:
        """Approve ``tools`` of `Catalogue.held`, in the words in which they are held, and write them to the file of the
        pins. They are offered when this returns, unless their server has changed them again.

        Raises `ConfigError` where the file can't be read or written, and `ValueError` in a group without ``pin=``.
        """
        self._run.check("a group")
        if self.pins is None:
            raise ValueError('this group has no pins. Write: open_group(members, pin="pins.json")')
        await self.pins.approve(tools)
        self.catalogue._check_pins()

    def _on_status(self, status: MemberStatus) -> None:
        if status.state in (MemberState.READY, MemberState.FAILED):
            self.catalogue._show(status.name, status.state is MemberState.READY)
        self._feed.publish(status.name, status, last=status.state is MemberState.CLOSED)

    def _close(self) -> None:
        """Close all members. For `open_group`, in trio's thread."""
        self._closed = True
        for member in self._members.values():
            member.close()
        self._members.clear()
        self._feed.close()
        self.catalogue._close()

    # Calls, by the names in the catalogue

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        on_progress: OnProgress | None = None,
        meta: JSONObject | None = None,
        value: Any = None,
        **handlers: Unpack[CallHandlers],
    ) -> CallToolResult:
        """Call a tool by its name in the catalogue. See `Client.call_tool`; raises `NotInCatalogue` too.

        For a name that is not in the catalogue yet, the call waits while a member that may offer the tool has not been
        listed.
        """
        check_keywords(Group.call_tool, handlers)
        entry, client = await self._offered("tools", name)
        own = options_for_member(entry.member, handlers)
        return await client.call_tool(
            entry.item.name, entry.arguments(arguments), on_progress=on_progress, meta=meta, value=value, **own
        )

    async def call_from_app(
        self,
        member: str,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        on_progress: OnProgress | None = None,
        meta: JSONObject | None = None,
        value: Any = None,
        **handlers: Unpack[CallHandlers],
    ) -> CallToolResult:
        """Call a tool for a view of ``member``, which names the tool as its server does. See `call_tool`.

        Raises `NotInCatalogue`, with nothing sent, for a tool of another member, and for one that views may not call
        (SEP-1865, Visibility).
        """
        check_keywords(Group.call_from_app, handlers)
        entry, client = await self._offered("tools", self.catalogue._tool_name(member, name))
        if entry.item.name != name:  # another tool, which the user has given this name
            raise NotInCatalogue(f"{member!r} offers no tool {name!r}")
        if not entry.for_app:
            raise NotInCatalogue(f"no view may call {name!r} of {member!r}")
        own = options_for_member(member, handlers)
        sent = entry.arguments(arguments)
        return await client.call_tool(entry.item.name, sent, on_progress=on_progress, meta=meta, value=value, **own)

    async def start_task(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        ttl: float | None = None,
        meta: JSONObject | None = None,
        value: Any = None,
        **handlers: Unpack[CallHandlers],
    ) -> GroupTask:
        """Call a tool by its name in the catalogue, as `call_tool`, and return as soon as the member has answered with
        a task, which goes on by itself. See `Client.start_task`."""
        check_keywords(Group.start_task, handlers)
        entry, client = await self._offered("tools", name)
        own = options_for_member(entry.member, handlers)
        sent = entry.arguments(arguments)
        task = await client.start_task(entry.item.name, sent, ttl=ttl, meta=meta, value=value, **own)
        return GroupTask(entry.member, task.id, self.client, (client, task))

    def resume_task(self, task_id: str) -> GroupTask:
        """Return the task with the id of a `GroupTask`, which may be older than this group and this process. Nothing is
        sent. Raises `NotInCatalogue` for an id of another form."""
        parsed = parse_uri(task_id)
        if parsed is None:
            raise NotInCatalogue(f"the id of a task in a group is like member://files/ID, not {task_id!r}")
        return GroupTask(*parsed, self.client)

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        on_progress: OnProgress | None = None,
        meta: JSONObject | None = None,
    ) -> GetPromptResult:
        """Get a prompt by its name in the catalogue, as `call_tool`. See `Client.get_prompt`."""
        entry, client = await self._offered("prompts", name)
        return await client.get_prompt(entry.item.name, arguments, on_progress=on_progress, meta=meta)

    async def read_resource(
        self, uri: str, *, on_progress: OnProgress | None = None, meta: JSONObject | None = None
    ) -> ReadResourceResult:
        """Read a resource by its URI in the catalogue, or by a URI made from a template there; the contents name the
        server's own URI. See `Client.read_resource`; raises `NotInCatalogue` for a URI of another form."""
        parsed = parse_uri(uri)
        if parsed is None:
            raise NotInCatalogue(f"a URI of the catalogue is like member://files/note://motto, not {uri!r}")
        member, own = parsed
        client = await self.client(member)
        return await client.read_resource(own, on_progress=on_progress, meta=meta)

    # Skills

    async def skills(self, *, refresh: bool = False) -> list[GroupSkill]:
        """Return the skills that the members which are ready now list, in the order of the members: see
        `Client.list_skills`. A member whose list cannot be got is left out, and that is logged. ``refresh``: see
        `Client.request`."""
        found: dict[str, list[Skill]] = {name: [] for name in self._members}

        async def listed(member: str, client: Client) -> None:
            try:
                found[member] = [skill async for skill in client.list_skills(refresh=refresh)]
            except MethodUnavailable:
                pass  # it has no skills
            except (MCPError, trio.TooSlowError) as error:
                logger.warning("the skills of member %s cannot be listed: %s", member, clean(str(error)[:200]))

        async with trio.open_nursery() as nursery:
            for name in found:
                if (client := self._present(name)) is not None:
                    nursery.start_soon(listed, name, client)
        names = Counter(skill.name for skills in found.values() for skill in skills)
        return [
            GroupSkill(member, skill, shares_name=names[skill.name] > 1)
            for member, skills in found.items()
            for skill in skills
        ]

    async def load_skill(self, skill: GroupSkill) -> LoadedSkill:
        """Load a skill of `skills` from its member: see `Client.load_skill`. Waits for a member that is starting or
        restarting; the loaded skill belongs to the connection that the member has then."""
        client = await self.client(skill.member)
        return await client.load_skill(skill.skill)

    async def _offered(self, kind: ListName, name: str) -> tuple[CatalogueEntry[Any], Client]:
        """Return the entry of ``name``, and the client of its member, as soon as there is one."""
        self._run.check("a group")
        entry = self.catalogue._find(kind, name)
        if entry is None and kind == "tools" and (held := self.catalogue.held.get(name)) is not None:
            raise NotInCatalogue(str(held))
        if entry is None:
            for member_name, member in tuple(self._members.items()):
                if self.catalogue._may_name(member_name, name):
                    await member.listed()
            entry = self.catalogue._find(kind, name)
        if entry is None:
            raise NotInCatalogue(f"no member offers {name!r}")
        return entry, await self.client(entry.member)


@async_with_only("group")
@asynccontextmanager
async def open_group(
    members: Mapping[str, MemberDescription] | None = None,
    /,
    *,
    max_name_length: int | None = None,
    pin: ToolPins | PinSource | None = None,
    **options: Unpack[ClientOptions],
) -> AsyncGenerator[Group]:
    """Open a group of ``members``, by name; disabled ones are skipped. All are closed with the block, at once.

        async with open_group({"files": MemberDescription(["python", "files.py"])}) as group:
            await group.settled()
            result = await group.call_tool("files__search", {"text": "trio"})

    ``max_name_length=64`` limits the names of tools and prompts in the catalogue to 64 characters of
    ``[a-zA-Z0-9_-]``, which most model providers accept. Longer names, and names with other characters, are cut and
    get a digest; they stay the same after restarts. The limit can be from 32 to 128. Without it, names have up to 128
    characters of ``[a-zA-Z0-9_.-]``.

    ``pin="pins.json"`` offers a tool only once its name, descriptions and schemas are approved, and again
    after each change, by `Group.approve_tools` or ``trio-mcp pins approve``. Until then the tool is in
    `Catalogue.held`, and calls raise `NotInCatalogue`. For other policies, see `ToolPins`, which belongs to one group.
    Raises `ConfigError` for a file that can't be read.

    ``options`` are those of `ClientSettings`, for all members whose descriptions do not say otherwise. The block
    is entered at once; exceptions of the body leave as they are.
    """
    check_opened_under_trio("open_group")
    async with open_service_nursery("the group was closed") as nursery:
        if (record := options.get("record")) is not None:  # one recorder, which numbers the files of all members
            options["record"] = ClientSettings(record=record).record
        pins = None if pin is None else await _loaded(pin)
        group = Group(nursery, options, max_name_length, pins)
        if pins is not None:
            nursery.start_soon(pins.follow, group.catalogue._check_pins)
        try:
            for name, description in (members or {}).items():
                if not description.disabled:
                    group.add(name, description)
            yield group
        finally:
            group._close()


async def _loaded(pin: ToolPins | PinSource) -> ToolPins:
    from .pins import ToolPins  # late: few groups have pins

    pins = pin if isinstance(pin, ToolPins) else ToolPins(pin)
    await trio.to_thread.run_sync(pins.load)
    return pins


@define(eq=False)
class GroupTask:
    """A task of a member, made by `Group.start_task` or `Group.resume_task`; a `RunningTask` whose member may be
    restarted meanwhile.

    Each method is for the connection that the member has at the time, and waits for a member that is starting or
    restarting. A wait that the member's end interrupts raises `ConnectionLost`; whether the task goes on is known to
    the server alone, and another call of the method asks the server when the member is back.
    """

    member: str
    """Name of the member."""
    _own_id: str | None
    _client: Callable[[str], Awaitable[Client]]
    _last: tuple[Client, RunningTask] | None = None

    @property
    def id(self) -> str | None:
        """The id for `Group.resume_task`, which begins with ``member://`` and the name of the member. `None`: there is
        no task, since the server answered at once."""
        return None if self._own_id is None else catalogue_uri(self.member, self._own_id)

    async def get(self) -> TaskState:
        """Ask the member how the task is, as `RunningTask.get`. Raises `MemberUnavailable`, too."""
        state = await (await self._present()).get()
        return attrs.evolve(state, id=self.id)

    async def result(self, *, on_progress: OnProgress | None = None) -> CallToolResult:
        """Wait for the result, as `RunningTask.result`. Raises `MemberUnavailable`, too."""
        return await (await self._present()).result(on_progress=on_progress)

    async def cancel(self) -> None:
        """Cancel the task, as `RunningTask.cancel`. Raises `MemberUnavailable`, too."""
        await (await self._present()).cancel()

    async def _present(self) -> RunningTask:
        """Return the task on the present connection of the member."""
        if self._own_id is None:
            assert self._last is not None, "a call has an answer or a task"
            return self._last[1]
        client = await self._client(self.member)
        if self._last is None or self._last[0] is not client:
            self._last = (client, client.resume_task(self._own_id))
        return self._last[1]
