"""open_group: connect to many servers at once. The servers are isolated, so that none can harm another or the group's
users.

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
from ..protocol.types.offers import GetPromptResult, ReadResourceResult
from ..protocol.types.tools import CallToolResult
from ..runtime.calls import OnProgress
from ..tasks.task_state import TaskState
from .catalogue import Catalogue, CatalogueEntry, ChangeFeed, ListName, Watch, catalogue_uri, may_name, parse_uri
from .descriptions import HeldTool, MemberDescription, MemberState, MemberStatus, MemberUnavailable, NotInCatalogue
from .member import Member, options_for_member

if TYPE_CHECKING:
    from ..protocol.types.skills import Skill
    from ..skills.loading import LoadedSkill
    from .pins import PinSource, ToolPins

logger = logging.getLogger("trio_mcp")


@frozen
class GroupSkill:
    """A skill that one server of a group offers.

    Identify it by its member and its URI, never by its name, since several skills may have the same name (SEP-2640,
    Names).
    """

    member: str
    """The name of the member that has the skill."""
    skill: Skill
    """The skill as its server described it."""
    shares_name: bool = attrs.field(kw_only=True)
    """True if another skill of the group has the same name. Then show your users which member each skill is from, and
    don't prefer one."""

    @property
    def uri(self) -> str:
        """The group's URI for the skill's file ``SKILL.md``. Pass it to `Group.read_resource`."""
        return catalogue_uri(self.member, self.skill.uri)


class Group:
    """Connections to many servers, the members of the group. Each server has a name.

    The group is open until the end of the ``open_group`` block.

    You may call methods from any task, in any order; methods that aren't async, from any thread. A task of the group
    connects, supervises and closes each member: if a member fails, the calls to it raise an error, and nothing else is
    cancelled. An interrupted call is never repeated. Calls wait for a member that is starting or restarting; limit the
    wait with trio's cancel scopes.

    Raises:
        MemberUnavailable: The member has failed, was removed or never existed; nothing is sent.
        MCPError: The errors of a `Client`.
    """

    def __init__(
        self,
        nursery: ServiceNursery,
        options: ClientOptions,
        max_name_length: int | None = None,
        pins: ToolPins | None = None,
    ) -> None:
        self.pins = pins
        """The approved tools; `None` if the group was opened without ``pin=``."""
        self.catalogue = Catalogue(max_name_length, pins)
        """The tools, prompts and resources of the members."""
        self._nursery = nursery
        self._options = options
        self._members: dict[str, Member] = {}
        self._feed: ChangeFeed[MemberStatus] = ChangeFeed()
        self._closed = False
        self._run = current_run()
        # The connections to servers run in the group's contextvars context, not in the context of `add`'s caller.
        self._context = contextvars.copy_context()

    # Members

    def add(self, name: str, description: MemberDescription) -> None:
        """Add another server to the group, and start to connect to it. Returns at once.

        Calls to the server wait until it is ready.

        You may call this from any thread; `Server` describes the wait there and its `RuntimeError`. A name can be
        reused as soon as `remove` was called.

        Raises:
            ValueError: The name is taken or empty, the description is disabled, or an option is invalid.
            trio.ClosedResourceError: The group is closed.
        """
        try:
            self._run.call(partial(self._add, name, description))
        except trio.RunFinishedError:
            raise trio.ClosedResourceError("the group was closed") from None

    def _add(self, name: str, description: MemberDescription) -> None:
        if self._closed:
            raise trio.ClosedResourceError("the group was closed")
        if not name or name in self._members:
            raise ValueError(
                f"the group already has a member {name!r}" if name else "a member's name must not be empty"
            )
        if description.disabled:
            raise ValueError(
                f"the server {name!r} can't be added, because its description is disabled: leave out disabled=True"
            )
        member = Member(name, description, self._options, self.catalogue, self._on_status)
        self._members[name] = member
        self.catalogue._add(name, description.tools)
        self._feed.publish(name, member.status)
        self._context.copy().run(self._nursery.start_soon, member.run)

    async def remove(self, name: str) -> None:
        """Remove a server from the group, and wait until its connection is closed and its child process has ended.

        All other callers stop seeing the member at once, and calls in flight raise `ConnectionLost`. If this is
        cancelled, only the wait ends; the member is closed all the same. Raises `MemberUnavailable` if there is no such
        member.
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
            raise MemberUnavailable(name, "is not a server of this group")
        return member

    async def client(self, name: str) -> Client:
        """Wait until the server ``name`` is ready, and return the `Client` that is connected to this server.

        You can use all methods of the client.

        The client belongs to the current connection; a restart creates a new one. Raises `MemberUnavailable`.
        """
        self._run.check("a group")
        return await self._member(name).client()

    def _present(self, name: str) -> Client | None:
        """Return the client of the server ``name``. Return `None` if the server isn't connected now."""
        member = self._members.get(name)
        return None if member is None else member.present

    def _reconnect_as_legacy(self, name: str) -> None:
        """Reconnect to the server ``name`` in a legacy protocol revision.

        This server can send requests to the client only in a legacy revision.

        Calls in flight raise `ConnectionLost`.

        Does nothing for a member that isn't connected, or whose description sets the era or the revision. May be called
        from any thread: see `add`.
        """
        if name in self._members:
            self._run.call(self._members[name].reconnect_as_legacy)

    @property
    def statuses(self) -> dict[str, MemberStatus]:
        """The status of each server in the group, keyed by name, in the order in which the servers were added."""
        return {name: member.status for name, member in tuple(self._members.items())}

    def watch(self) -> Watch[MemberStatus]:
        """Return an async iterator that yields the current status of each server first, then each change.

        Use it as ``async for status in group.watch()``.
        """
        return self._feed.watch()

    async def settled(self) -> None:
        """Wait until each server of the group is ready or has failed at least once.

        The tools, prompts and resources of the ready servers are then in the catalogue.
        """
        self._run.check("a group")
        for member in tuple(self._members.values()):
            await member.settled()

    async def approve_tools(self, tools: Iterable[HeldTool]) -> None:
        """Approve ``tools`` with their current descriptions, so that this group of servers offers them.
        `Catalogue.held` contains the tools that wait for an approval.

        The approvals are written to the file of approved tools (pins). The tools are offered when this returns, unless
        their server has changed them again.

        Raises `ConfigError` if the file can't be read or written, and `ValueError` in a group without ``pin=``.
        """
        self._run.check("a group")
        if self.pins is None:
            raise ValueError('this group was opened without pins: write open_group(members, pin="pins.json")')
        await self.pins.approve(tools)
        self.catalogue._check_pins()

    def _on_status(self, status: MemberStatus) -> None:
        if status.state in (MemberState.READY, MemberState.FAILED):
            self.catalogue._show(status.name, status.state is MemberState.READY)
        self._feed.publish(status.name, status, last=status.state is MemberState.CLOSED)

    def _close(self) -> None:
        """Close the connections to all servers. `open_group` calls this in trio's thread."""
        self._closed = True
        for member in self._members.values():
            member.close()
        self._members.clear()
        self._feed.close()
        self.catalogue._feed.close()

    # The following methods take the names under which the group lists tools, prompts and resources.

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
        """Call a tool by its name in the group's catalogue, and return its result. See `Client.call_tool`.

        Raises `NotInCatalogue` if no server of the group has the tool.

        If the name isn't in the catalogue yet, the call waits until the member that may offer the tool has been listed.
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
        """Call a tool of the server ``member`` for an MCP app that this server provides. See `call_tool`.

        ``name`` is the server's own name for the tool, not the tool's name in the catalogue.

        Raises `NotInCatalogue` for a tool of another member, and for a tool that views must not call (SEP-1865,
        Visibility); nothing is sent.
        """
        check_keywords(Group.call_from_app, handlers)
        entry, client = await self._offered("tools", self.catalogue._tool_name(member, name))
        if entry.item.name != name:  # the user has given the name ``name`` to another tool
            raise NotInCatalogue(f"the server {member!r} has no tool {name!r}")
        if not entry.for_app:
            raise NotInCatalogue(f"an MCP app must not call the tool {name!r} of {member!r}")
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
        """Call a tool by its name in the group's catalogue, as a task that runs in the background.

        Returns as soon as the server has accepted the task; the task continues afterwards. See `call_tool` and
        `Client.start_task`.
        """
        check_keywords(Group.start_task, handlers)
        entry, client = await self._offered("tools", name)
        own = options_for_member(entry.member, handlers)
        sent = entry.arguments(arguments)
        task = await client.start_task(entry.item.name, sent, ttl=ttl, meta=meta, value=value, **own)
        return GroupTask(entry.member, task.id, self.client, (client, task))

    def resume_task(self, task_id: str) -> GroupTask:
        """Return the `GroupTask` with the id ``task_id``: see `GroupTask.id`.

        Another group or process may have started the task. Sends no request. Raises `NotInCatalogue` if ``task_id``
        isn't the id of a group's task.
        """
        parsed = parse_uri(task_id)
        if parsed is None:
            raise NotInCatalogue(f"the id of a group's task must be like member://SERVER/ID, not {task_id!r}")
        return GroupTask(*parsed, self.client)

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        on_progress: OnProgress | None = None,
        meta: JSONObject | None = None,
    ) -> GetPromptResult:
        """Get a prompt by its name in the group's catalogue, and return it. See `Client.get_prompt`.

        Raises the same errors as `call_tool`.
        """
        entry, client = await self._offered("prompts", name)
        return await client.get_prompt(entry.item.name, arguments, on_progress=on_progress, meta=meta)

    async def read_resource(
        self, uri: str, *, on_progress: OnProgress | None = None, meta: JSONObject | None = None
    ) -> ReadResourceResult:
        """Read a resource by its URI in the group's catalogue, and return its contents. See `Client.read_resource`.

        The URI can also be made from a template in the catalogue.

        The returned contents have the server's own URI. Raises `NotInCatalogue` for any other URI.
        """
        parsed = parse_uri(uri)
        if parsed is None:
            raise NotInCatalogue(f"the URI of a group's resource must be like member://files/note://motto, not {uri!r}")
        member, own = parsed
        client = await self.client(member)
        return await client.read_resource(own, on_progress=on_progress, meta=meta)

    # Skills

    async def skills(self, *, refresh: bool = False) -> list[GroupSkill]:
        """Return the skills of all servers that are ready, one server after another: see `Client.list_skills`.

        A member whose skills can't be listed is left out and logged. ``refresh``: see `Client.request`.
        """
        found: dict[str, list[Skill]] = {name: [] for name in self._members}

        async def listed(member: str, client: Client) -> None:
            try:
                found[member] = [skill async for skill in client.list_skills(refresh=refresh)]
            except MethodUnavailable:
                pass  # this server has no skills
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
        """Load ``skill`` from its server, and verify it. `skills` returns the skills to load. See `Client.load_skill`.

        Waits for a member that is starting or restarting. The loaded skill belongs to the member's connection at that
        time.
        """
        client = await self.client(skill.member)
        return await client.load_skill(skill.skill)

    async def _offered(self, kind: ListName, name: str) -> tuple[CatalogueEntry[Any], Client]:
        """Return the catalogue entry called ``name``, and the client that is connected to the entry's server.

        First wait until the entry is in the catalogue, and until its server is connected.
        """
        self._run.check("a group")
        entry = self.catalogue._find(kind, name)
        if entry is None and kind == "tools" and (held := self.catalogue.held.get(name)) is not None:
            raise NotInCatalogue(str(held))
        if entry is None:
            for member_name, member in tuple(self._members.items()):
                if may_name(member_name, name, self.catalogue._max_name_length):
                    await member.listed()
            entry = self.catalogue._find(kind, name)
        if entry is None:
            raise NotInCatalogue(f"no server of this group offers {name!r}")
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
    """Connect to many servers at once, and use their tools, prompts and resources through one catalogue.

    All connections are closed at the end of the block.

        async with open_group({"files": MemberDescription(["python", "files.py"])}) as group:
            await group.settled()
            result = await group.call_tool("files__search", {"text": "trio"})

    The block is entered at once, while the members are starting. Exceptions of the body propagate unchanged.

    Args:
        members: The members, by name; disabled ones are skipped.
        max_name_length: Limits the names of tools and prompts in the catalogue, from 32 to 128 characters of
            ``[a-zA-Z0-9_-]``; most model providers accept 64. Longer names, and names with other characters, are cut
            and get a digest, and stay the same after restarts. Without it, names have up to 128 characters of
            ``[a-zA-Z0-9_.-]``.
        pin: A file such as ``"pins.json"``, or a `ToolPins`, which belongs to one group. A tool is offered only after
            its name, descriptions and schemas were approved by `Group.approve_tools` or ``trio-mcp pins approve``, and
            again after each change. Until then it is in `Catalogue.held`, and calls raise `NotInCatalogue`.
        options: The options of all members' clients (see `ClientSettings`), unless their descriptions set them.

    Raises:
        ConfigError: The file of the pins can't be read.
    """
    check_opened_under_trio("open_group")
    async with open_service_nursery("the group was closed") as nursery:
        if (record := options.get("record")) is not None:  # all servers share one recorder, which numbers the files
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
    from .pins import ToolPins  # lazy import: few groups check tools against a file of approved tools

    pins = pin if isinstance(pin, ToolPins) else ToolPins(pin)
    await trio.to_thread.run_sync(pins.load)
    return pins


@define(eq=False)
class GroupTask:
    """A task that runs on a server of a group. `Group.start_task` and `Group.resume_task` return it.

    It is like a `RunningTask`, but remains valid when its server is restarted.

    Each method uses the member's current connection, and waits for a member that is starting or restarting. If the
    member ends during a wait, that raises `ConnectionLost`; only the server knows whether the task continues. Call the
    method again to check when the member is back.
    """

    member: str
    """The name of the member that runs the task."""
    _own_id: str | None
    _client: Callable[[str], Awaitable[Client]]
    _last: tuple[Client, RunningTask] | None = None

    @property
    def id(self) -> str | None:
        """The id of the task, to pass to `Group.resume_task`. It begins with ``member://`` and the server's name.

        `None` if the server responded at once, without a task.
        """
        return None if self._own_id is None else catalogue_uri(self.member, self._own_id)

    async def get(self) -> TaskState:
        """Request the current state of the task, and return it. See `RunningTask.get`.

        Raises `MemberUnavailable` if the server can't be called.
        """
        state = await (await self._present()).get()
        return attrs.evolve(state, id=self.id)

    async def result(self, *, on_progress: OnProgress | None = None) -> CallToolResult:
        """Wait for the end of the task, and return its result. See `RunningTask.result`.

        Raises `MemberUnavailable` if the server can't be called.
        """
        return await (await self._present()).result(on_progress=on_progress)

    async def cancel(self) -> None:
        """Cancel the task. Raises `MemberUnavailable` if the task's server can't be called. See
        `RunningTask.cancel`."""
        await (await self._present()).cancel()

    async def _present(self) -> RunningTask:
        """Return the `RunningTask` for this task on the current connection to its server."""
        if self._own_id is None:
            assert self._last is not None, "a call has an answer or a task"
            return self._last[1]
        client = await self._client(self.member)
        if self._last is None or self._last[0] is not client:
            self._last = (client, client.resume_task(self._own_id))
        return self._last[1]
