"""gateway: combines the servers of a group (its members) into one server.

A `Gateway` is a `Server` with the lists of the group's catalogue, whose handlers forward to the members.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import attrs
import trio

from ..client.cache import Change
from ..client.client import Client
from ..concurrency.contexts import asynccontextmanager
from ..concurrency.nurseries import ServiceNursery, open_service_nursery
from ..hosting.catalogue import LISTS, CatalogueEntry, ListName, catalogue_uri
from ..hosting.descriptions import MemberState, MemberUnavailable, problems_in
from ..hosting.group import Group
from ..jsonrpc.errors import INVALID_PARAMS, CodedError, PeerError, ProtocolViolation, clean
from ..protocol.revisions import Revision
from ..protocol.types.apps import APPS_EXTENSION
from ..protocol.types.lifecycle import PromptsCapability, ResourcesCapability, ServerCapabilities, ToolsCapability
from ..protocol.types.skills import SKILLS_EXTENSION
from ..runtime.limits import Limits
from ..runtime.requests.host import RequestHost
from ..runtime.transport import ConnectionLost, HTTPError
from ..server.offers.prompts import Completions
from ..server.offers.registration import Registry
from ..server.server import Server
from .extensions import CANCELS
from .member_offers import GatewaySkills, MemberCompletions, MemberOffers, MemberResources
from .members import Forwarder, MemberUpstream

if TYPE_CHECKING:
    from ..server.middleware import Next, ServerRequest

logger = logging.getLogger("trio_mcp")

_MAX_INSTRUCTIONS: Final = 2000
"""The maximum number of characters of a member's instructions that the gateway quotes in its own instructions."""
_FAILURES: Final = (PeerError, ProtocolViolation, HTTPError, trio.TooSlowError)


def gateway(
    group: Group,
    *,
    name: str = "gateway",
    instructions: str | None = None,
    patience: float = 5.0,
    limits: Limits | None = None,
    page_size: int | None = None,
) -> Gateway:
    """Return a server that offers all tools, resources and prompts of the group's member servers. The names come from
    the group's catalogue.

        async with open_group(members, forwards=ALL_QUESTIONS) as group:
            await serve_http(gateway(group), port=8000)

    Serve it like any other server: it is a `Server`, and may have tools of its own.

    Calls use the connections of the group, with the members' own authorization; clients' tokens are never forwarded.
    Cancels, progress, logs, changes, subscriptions and completions are forwarded. Every tool supports tasks of the
    gateway: if a member runs a call as a task, the gateway waits for it.

    Members' requests (sampling, elicitation, roots) go to the client whose call it is, if the group was opened with
    ``forwards=ALL_QUESTIONS``; otherwise the handlers of the group answer them. A legacy member doesn't name the call
    for which it sends a request. Its request is refused if several clients have calls in flight at the member, or if
    another client has cancelled a call there, unless the request comes in the response to a POST.

    While a member is unavailable, its last known tools, prompts and resources are still listed. The instructions name
    each member with its state. They quote the problems of its lists and its own instructions: each quoted line begins
    with ``>``.

    Args:
        group: The open group.
        name: The name of the server: see `Server`.
        instructions: Your own instructions for the model, before those of the members.
        patience: For how many seconds calls wait for a member that is starting or restarting, before they fail with
            -31001. Calls to a member that has failed do so at once.
        limits: See `Server`.
        page_size: See `Server`.
    """
    return Gateway(group, name, instructions, patience, limits, page_size)


class Gateway(Server):
    """A server that combines the member servers of a group. Create it with `gateway`."""

    def __init__(
        self,
        group: Group,
        name: str,
        instructions: str | None,
        patience: float,
        limits: Limits | None,
        page_size: int | None,
    ) -> None:
        forwarder = Forwarder(group, patience)
        self._skills = GatewaySkills(forwarder)
        super().__init__(
            name,
            version("trio-mcp"),
            instructions=instructions,
            limits=limits,
            page_size=page_size,
            extensions=[self._skills, CANCELS],
        )
        self._group = group
        """The group, whose statuses are reported in the instructions."""
        self._own_instructions = instructions
        offers = MemberOffers(forwarder)
        self._members = MemberResources(page_size, self._cache_hints["resources/read"], offers)
        self._resources = self._members
        self._completions = Completions(self._prompts, self._resources)
        self._completions.mounted.append(MemberCompletions(self._prompts, self._resources, forwarder))
        self._tools.record_task_support("optional")
        self._lists: dict[ListName, tuple[Registry[Any], Any, str]] = {
            "tools": (self._tools.registry, offers.tool, "tools"),
            "prompts": (self._prompts.registry, offers.prompt, "prompts"),
            "resources": (self._resources.registry, offers.resource, "resources"),
            "resource_templates": (self._resources.templates, offers.resource, "resources"),
        }
        self._shown: dict[ListName, dict[str, tuple[CatalogueEntry[Any], Any]]] = {each: {} for each in LISTS}
        self._seen_members: set[str] = set()
        """The members that were connected at least once."""
        self._is_settled = False
        """True once each of the first members has been listed or has failed."""
        self._news = trio.lowlevel.ParkingLot()
        if group.pins is not None:
            self.middleware("tools/call")(self._refuse_held)

    async def _refuse_held(self, request: ServerRequest, next: Next) -> Any:
        """Middleware for tool calls that refuses tools that aren't approved yet. The error text says so, instead of
        "unknown tool"."""
        self._check_held(request)
        try:
            return await next(request)
        except CodedError:
            self._check_held(request)  # check again: the tool may have been listed while other middleware ran
            raise

    def _check_held(self, request: ServerRequest) -> None:
        """Raise `CodedError` if the request calls a tool of a member server that isn't approved yet."""
        name, catalogue = request.params.name, self._group.catalogue
        is_own = request.offer is not None and name not in self._shown["tools"]
        if not is_own and catalogue._find("tools", name) is None and (held := catalogue.held.get(name)) is not None:
            raise CodedError(INVALID_PARAMS, str(held))

    def _capabilities_in(self, revision: Revision) -> ServerCapabilities:
        """Return the gateway's capabilities.

        All kinds of lists are always included, since members come and go. Apps and skills are included only while a
        connected member has them.
        """
        own = super()._capabilities_in(revision)
        members = [client for name in self._group.statuses if (client := self._group._present(name)) is not None]
        extensions = {name: each for name, each in (own.extensions or {}).items() if name != SKILLS_EXTENSION}
        if any(APPS_EXTENSION in (client.server_capabilities.extensions or {}) for client in members):
            extensions[APPS_EXTENSION] = {}
        if (skills := self._skills.declared()) is not None:
            extensions[SKILLS_EXTENSION] = skills
        return attrs.evolve(
            own,
            extensions=extensions or None,
            tools=ToolsCapability(list_changed=True),
            prompts=PromptsCapability(list_changed=True),
            resources=ResourcesCapability(subscribe=True, list_changed=True),
        )

    @asynccontextmanager
    async def _open_lifespan(self, host: RequestHost) -> AsyncGenerator[None]:
        """Follow the changes of the group's member servers while the gateway runs: see `Server._open_lifespan`."""
        async with super()._open_lifespan(host), open_service_nursery("the gateway has ended") as nursery:
            for name in LISTS:
                self._update_list(name)
            self._update_instructions()
            nursery.start_soon(self._settle)
            nursery.start_soon(self._follow_lists)
            nursery.start_soon(self._follow_members, nursery)
            yield

    async def _wait_listed(self, name: str | None = None) -> None:
        """Wait until a member server offers something with the name ``name``: a tool, a prompt or a resource.

        Stops waiting when each of the first members is ready or has failed once.

        There is no checkpoint after the wait: when this method returns, ``name`` is still listed.
        """
        while not (self._is_settled or any(name in shown for shown in self._shown.values())):
            await self._news.park()

    async def _settle(self) -> None:
        await self._group.settled()
        for name in LISTS:
            self._update_list(name)
        self._is_settled = True
        self._news.unpark_all()

    async def _follow_lists(self) -> None:
        async for name in self._group.catalogue.watch():
            self._update_list(name)
            self._news.unpark_all()

    def _update_list(self, name: ListName) -> None:
        """Update one list of the gateway, such as its tools, from the group's catalogue. Notify clients if the list has
        changed.

        The lists are those of tools, prompts, resources and templates.
        """
        registry, made, kind = self._lists[name]
        shown, known = self._shown[name], self._group.catalogue._known(name)
        gone = {key: None for key, (entry, _) in shown.items() if known.get(key) != entry}
        new = [entry for key, entry in known.items() if key not in shown or key in gone]
        for key in gone:
            if registry.get(key) is shown.pop(key)[1]:
                registry.remove(key)
        for entry in new:
            offer = made(entry)
            try:
                registry.add(entry.name, offer)
            except ValueError as error:
                logger.warning("%s of member %s is not offered: %s", entry.name, entry.member, error)
            shown[entry.name] = entry, offer
        if gone or new:
            self._observers.list_changed(f"notifications/{kind}/list_changed")

    async def _follow_members(self, nursery: ServiceNursery) -> None:
        followed: WeakSet[Client] = WeakSet()
        async for status in self._group.watch():
            self._update_instructions()
            if status.state is MemberState.READY:
                nursery.start_soon(self._sync_member, status.name, followed)

    def _update_instructions(self) -> None:
        """Rewrite the gateway's instructions for the model, which contain the current states of the member servers."""
        parts = [] if self._own_instructions is None else [self._own_instructions]
        for name, status in self._group.statuses.items():
            words = f"Server {name!r} is {status.state}."
            if status.state is not MemberState.READY:
                words += " Its last known tools, prompts and resources are listed; calls fail until it is ready again."
            if status.problems:
                words += "\n".join((" Its lists are incomplete:", *(f"> {each}" for each in problems_in(status))))
            client = self._group._present(name)
            if client is not None and client.instructions:
                # Quote each line of a member server's instructions, so that it can't imitate the gateway's own lines.
                quoted = (f"> {clean(line)}" for line in client.instructions[:_MAX_INSTRUCTIONS].splitlines())
                words += "\n".join((("\n" if status.problems else " ") + "Its instructions:", *quoted))
            parts.append(words)
        self.instructions = "\n\n".join(parts) or None

    async def _sync_member(self, member: str, followed: WeakSet[Client]) -> None:
        """Subscribe to those resources of the member server ``member`` that the gateway's clients watch, and notify the
        clients of changes.

        This ends when the member's connection is lost.
        """
        with suppress(ConnectionLost, MemberUnavailable):
            client = await self._group.client(member)
            # If this method already runs for `client`, the member's status was only reported again.
            # A member's status is reported again when one of its lists becomes unreadable, or readable again.
            if client in followed:
                return
            followed.add(client)
            self._update_instructions()
            upstream, heard = MemberUpstream.shared_through(client), partial(self._on_change, member)
            client._callbacks.watchers.append(heard)
            try:
                with client._connection.outbound.while_connected():
                    await self._sync_subscriptions(member, upstream)
            finally:
                client._callbacks.watchers.remove(heard)

    async def _sync_subscriptions(self, member: str, upstream: MemberUpstream) -> None:
        is_back, subscribed = member in self._seen_members, dict[str, bool]()
        self._seen_members.add(member)
        try:
            while True:
                wanted = self._members.watched_of(member)
                for uri in [each for each in subscribed if each not in wanted]:
                    if subscribed.pop(uri):
                        with suppress(*_FAILURES):
                            await upstream.unsubscribe(uri)
                for uri in [each for each in wanted if each not in subscribed]:
                    subscribed[uri] = False
                    with suppress(*_FAILURES):
                        await upstream.subscribe(uri)
                        subscribed[uri] = True
                    if is_back:  # while the member server was disconnected, changes may have been missed
                        self.resource_updated(catalogue_uri(member, uri))
                is_back = False
                if self._members.watched_of(member) == wanted:
                    await self._members.news.park()
        finally:
            await upstream.unsubscribe_all([uri for uri, is_subscribed in subscribed.items() if is_subscribed])

    def _on_change(self, member: str, change: Change) -> None:
        if change.kind != "resource" or change.uri is None:
            return
        for uri in self._members.watched_of(member):
            if change.uri.startswith(uri):  # the changed URI begins with a URI that a client watches
                self.resource_updated(catalogue_uri(member, uri))
