"""Catalogue: the tools, prompts and resources of all servers in a group, under valid and unique names.

ChangeFeed and Watch: the latest value for each key, for any number of readers, which may be slow.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from functools import partial
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, TypeVar
from urllib.parse import quote, unquote
from weakref import WeakSet

import attrs
import trio

from ..classes import frozen
from ..concurrency.threads import TrioRun, current_run
from ..jsonrpc.errors import clean
from ..protocol.types.apps import UI, with_view_renamed
from ..protocol.types.offers import Prompt, Resource, ResourceTemplate
from ..protocol.types.tools import Tool
from .descriptions import HeldTool, ToolTransform

if TYPE_CHECKING:
    from .pins import ToolPins

_SEPARATOR: Final = "__"
_LONGEST_NAME: Final = 128
_SHORTEST_LIMIT: Final = 32
_DIGEST: Final = 16
_STEM: Final = 24
_SCHEME: Final = "member://"
_SCHEMES: Final = ("ui://", "skill://")
"""URI schemes that are the same in the catalogue as at the member."""
_URI: Final = re.compile(r"(member://|ui://|skill://)([^/]*+)/(.*)", re.DOTALL)
# 2025-11-25 tools, Tool Names: a name has 1 to 128 letters, digits, underscores, hyphens and dots.
_VALID: Final = re.compile(r"[A-Za-z0-9_.-]+")
_RUNS: Final = re.compile(r"[^A-Za-z0-9.-]+")  # underscores, too


def catalogue_name(member: str, name: str, max_length: int | None = None) -> str:
    """Return the name ``member__name`` under which a group offers a tool or prompt.

    The server ``member`` itself calls it ``name``.

    If ``member__name`` is invalid or ambiguous, the returned name contains only its valid characters, and a digest.
    With ``max_length``, longer names and names with a dot are invalid as well.

    The name depends only on the arguments, so other members never change it. In the usual form the first ``__`` ends
    the member, because a member there neither contains ``__`` nor ends in ``_``. The other form contains no ``__`` at
    all. So the two forms never collide, whatever names a server chooses, and within the second form the digest makes
    the difference.
    """
    longest = max_length or _LONGEST_NAME
    plain = f"{member}{_SEPARATOR}{name}"
    is_valid = _VALID.fullmatch(plain) and len(plain) <= longest and not (max_length and "." in plain)
    if name and is_valid and member and _SEPARATOR not in member and member[-1] != "_":
        return plain
    digest = sha256(f"{len(member)}:{member}{name}".encode(errors="surrogatepass")).hexdigest()[:_DIGEST]
    stem = _stem(name, max_length)[: longest - min(_STEM, longest // 4) - _DIGEST - 2]
    return _RUNS.sub("_", f"{_beginning(member, max_length)}_{stem}_{digest}")


def _stem(name: str, max_length: int | None) -> str:
    return _RUNS.sub("_", name.replace(".", "_") if max_length else name)


def _beginning(member: str, max_length: int | None) -> str:
    return _stem(member, max_length)[: min(_STEM, (max_length or _LONGEST_NAME) // 4)]


def may_name(member: str, name: str, max_length: int | None = None) -> bool:
    """Return whether ``name`` begins with the prefix that a group gives to the tools of the server ``member``."""
    return name.startswith(_beginning(member, max_length))


def catalogue_uri(member: str, uri: str) -> str:
    """Return the URI ``member://MEMBER/URI`` under which a group offers a resource of the server ``member``.

    ``uri`` is the server's own URI or URI template.

    A view keeps its scheme, since hosts recognize views by it (SEP-1865, Content Requirements): ``ui://REST`` becomes
    ``ui://MEMBER/REST``. A file of a skill becomes ``skill://MEMBER/REST``.
    """
    part = quote(member, safe="", errors="surrogatepass")
    scheme = next((each for each in _SCHEMES if uri.startswith(each)), "")
    return f"{scheme or _SCHEME}{part}/{uri.removeprefix(scheme)}"


def parse_uri(uri: str) -> tuple[str, str] | None:
    """Split the URI of a group's resource into the server's name and the server's own URI.

    Return `None` if ``uri`` isn't a URI of a group.
    """
    if (found := _URI.fullmatch(uri)) is None:
        return None
    try:
        member = unquote(found[2], errors="surrogatepass")
    except UnicodeDecodeError:  # the URI comes from a caller, so it may contain any bytes
        return None
    return member, found[3] if found[1] == _SCHEME else found[1] + found[3]


T = TypeVar("T", Tool, Prompt, Resource, ResourceTemplate)

ListName: TypeAlias = Literal["tools", "prompts", "resources", "resource_templates"]
"""The names of the lists that a group reads from each server."""
LISTS: Final[tuple[ListName, ...]] = ("tools", "prompts", "resources", "resource_templates")

logger = logging.getLogger("trio_mcp")


@frozen
class CatalogueEntry(Generic[T]):
    """One tool, prompt, resource or resource template in a group's catalogue, with the name of its server."""

    name: str
    """The name of a tool or prompt in the catalogue, the URI of a resource in the catalogue, or the URI template of a
    resource template."""
    member: str
    """The name of the member that the entry belongs to."""
    item: T
    """The tool, prompt, resource or resource template as its server described it."""
    transform: ToolTransform | None = None
    """The transform with which the group presents a tool: see `MemberDescription.tools`."""

    def arguments(self, sent: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Convert the arguments ``sent``, with which the group's tool is called, to the arguments for the server's
        tool.

        The tool's transform may add or remove arguments.
        """
        return sent if self.transform is None else self.transform.arguments(sent)

    @property
    def renamed(self) -> T:
        """A copy of the tool, prompt, resource or template with the name or URI under which the group offers it.

        A tool includes the changes of its transform, and names its view by the view's URI in the catalogue. Show
        the copy to a model only if `for_model` is true.
        """
        kind = "name"
        if isinstance(self.item, Resource | ResourceTemplate):
            kind = "uri" if isinstance(self.item, Resource) else "uri_template"
        item = self.item
        if isinstance(item, Tool):
            item = item if self.transform is None else self.transform.apply(item)
            item = with_view_renamed(item, partial(catalogue_uri, self.member))
        return attrs.evolve(item, **{kind: self.name})

    @property
    def for_model(self) -> bool:
        """True if a model may see the tool. False for a tool that only views (MCP apps) may call (SEP-1865,
        Visibility)."""
        return not isinstance(self.item, Tool) or "model" in UI.of(self.item).visible_to

    @property
    def for_app(self) -> bool:
        """True if views (MCP apps) may call the tool. `Group.call_from_app` enforces this."""
        return not isinstance(self.item, Tool) or "app" in UI.of(self.item).visible_to

    @property
    def view(self) -> str | None:
        """The group's URI for the view (MCP app) that shows the tool's results. `None` if the tool has no view.

        Read the view with `Group.read_resource`.
        """
        view = UI.of(self.item).view if isinstance(self.item, Tool) else None
        return None if view is None else catalogue_uri(self.member, view)


_OWN: Final = {"tools": "name", "prompts": "name", "resources": "uri", "resource_templates": "uri_template"}
"""The attribute of an item that contains the item's own name or URI at its server."""


class Catalogue:
    """The tools, prompts, resources and resource templates of all servers in a group.

    Servers are in the order in which they were added, and items in the order of their server.

    A tool is named ``member__tool``, a prompt ``member__prompt``; if such a name is invalid or ambiguous, it contains a
    digest. A resource has the URI ``member://MEMBER/URI``, the view ``ui://REST`` of a tool ``ui://MEMBER/REST``, and a
    file ``skill://REST`` of a skill ``skill://MEMBER/REST``. The names of a member's items don't depend on other
    members or on restarts. Items stay while their member is restarted, and are removed once the member has failed.
    ``max_name_length`` limits the names of tools and prompts: see `open_group`.
    """

    def __init__(self, max_name_length: int | None = None, pins: ToolPins | None = None) -> None:
        if max_name_length is not None and not _SHORTEST_LIMIT <= max_name_length <= _LONGEST_NAME:
            raise ValueError(
                f"max_name_length must be from {_SHORTEST_LIMIT} to {_LONGEST_NAME}, not {max_name_length}"
            )
        self._max_name_length = max_name_length
        self._offers: dict[str, dict[ListName, dict[str, CatalogueEntry[Any]]]] = {}
        self._hidden: set[str] = set()
        self._transforms: dict[str, Mapping[str, ToolTransform]] = {}
        """The tool transforms, by the name of the member."""
        self._pins = pins
        self._listed_tools: dict[str, tuple[Tool, ...]] = {}
        """The tools as the members list them, including tools that aren't approved. Only used if the group has pins."""
        self._held: dict[str, dict[str, HeldTool]] = {}
        self._all_held: Mapping[str, HeldTool] = MappingProxyType({})
        self._merged: dict[ListName, Mapping[str, CatalogueEntry[Any]]] = dict.fromkeys(LISTS, MappingProxyType({}))
        self._feed: ChangeFeed[ListName] = ChangeFeed()

    @property
    def tools(self) -> Mapping[str, CatalogueEntry[Tool]]:
        """All tools that the group offers now, keyed by the group's names for them (usually ``member__tool``).

        A returned mapping never changes: after a change of the tools, this property returns a new mapping. The same is
        true for the other three lists.
        """
        return self._merged["tools"]

    @property
    def prompts(self) -> Mapping[str, CatalogueEntry[Prompt]]:
        """All prompts that the group offers now, keyed by the group's names for them (usually ``member__prompt``)."""
        return self._merged["prompts"]

    @property
    def resources(self) -> Mapping[str, CatalogueEntry[Resource]]:
        """All resources that the group offers now, keyed by the group's URIs for them."""
        return self._merged["resources"]

    @property
    def resource_templates(self) -> Mapping[str, CatalogueEntry[ResourceTemplate]]:
        """All resource templates that the group offers now, keyed by the group's URI templates for them."""
        return self._merged["resource_templates"]

    @property
    def held(self) -> Mapping[str, HeldTool]:
        """The tools that the group offers only after `Group.approve_tools` has approved them, keyed by the names that
        they will have.

        See ``pin`` of `open_group`.
        """
        return self._all_held

    def watch(self) -> Watch[ListName]:
        """Return an async iterator that yields the name of each list, such as "tools", when the list changes.

        Use it as ``async for name in group.catalogue.watch()``.
        """
        return self._feed.watch()

    def _name_of(self, member: str, name: str) -> str:
        """Return the name under which the group offers a tool or prompt that the server ``member`` calls ``name``."""
        return catalogue_name(member, name, self._max_name_length)

    def _tool_name(self, member: str, name: str) -> str:
        """Return the name under which the group offers a tool that the server ``member`` calls ``name``.

        The tool's transform may rename the tool.
        """
        transform = self._transforms.get(member, {}).get(name)
        return self._name_of(member, name if transform is None else transform.name or name)

    def _known(self, name: ListName, *, hidden: Collection[str] = ()) -> dict[str, CatalogueEntry[Any]]:
        """Return all entries of the list ``name`` (such as "tools"), except those of the servers in ``hidden``.

        For a server that has failed, this includes its last known entries.
        """
        entries: dict[str, CatalogueEntry[Any]] = {}
        for member, offers in self._offers.items():
            for key, entry in offers.get(name, {}).items() if member not in hidden else ():
                entries.setdefault(key, entry)
        return entries

    def _find(self, name: ListName, key: str) -> CatalogueEntry[Any] | None:
        """Return the catalogue entry with the name or URI ``key``, even if its server has failed. Return `None` if
        there is none."""
        return next((offers[name][key] for offers in self._offers.values() if key in offers.get(name, ())), None)

    def _has_any(self, member: str, name: ListName) -> bool:
        """Return whether the server ``member`` has items in the list ``name``, such as "tools"."""
        return bool(self._offers.get(member, {}).get(name))

    def _replace(self, member: str, name: ListName, items: Iterable[Any]) -> None:
        """Replace one list of the server ``member`` in the catalogue with ``items``, and notify the iterators of
        `watch`."""
        is_news = False
        if name == "tools" and self._pins is not None:
            held, items = self._held.get(member, {}), self._approved(self._pins, member, tuple(items))
            is_news = self._held[member] != held
        own = _OWN[name]
        in_catalogue = self._name_of if own == "name" else catalogue_uri
        transforms = self._transforms.get(member) if name == "tools" else None
        entries: dict[str, CatalogueEntry[Any]] = {}
        for item in items:
            key: str = getattr(item, own)
            if transforms is None:
                entry = CatalogueEntry[Any](in_catalogue(member, key), member, item)
            elif (found := self._transformed(member, item, transforms)) is None:
                continue
            else:
                entry = found
            if entries.setdefault(entry.name, entry) is not entry:
                logger.warning("member %s offers %s twice; the first one counts", member, clean(key[:200]))
        offers = self._offers.setdefault(member, {})
        if offers.get(name, {}) != entries or is_news:
            offers[name] = entries
            self._merge(name)

    def _transformed(
        self, member: str, tool: Tool, transforms: Mapping[str, ToolTransform]
    ) -> CatalogueEntry[Any] | None:
        """Return the catalogue entry of a tool, after applying the tool's transform.

        Return `None` if the transform hides the tool, or can't be applied.
        """
        transform = transforms.get(tool.name) or transforms.get("*")
        if transform is not None and transform.hidden:
            return None
        other = next((own for own, each in transforms.items() if each.name == tool.name != own), None)
        fault = None if transform is None else transform.fault_in(tool)
        if other is not None and (transform is None or transform.name is None):
            fault = f"its name is that of the renamed {other!r}"  # the user's own name for a tool takes precedence
        if fault is not None:
            logger.error("the tool %s of member %s is not offered: %s", clean(tool.name[:200]), member, fault)
            return None
        return CatalogueEntry[Any](self._tool_name(member, tool.name), member, tool, transform)

    def _approved(self, pins: ToolPins, member: str, tools: tuple[Tool, ...]) -> list[Tool]:
        """Return the approved tools in ``tools``. Store all other tools in `held` until they are approved."""
        held = pins.held_of(member, tools, partial(self._tool_name, member))
        self._listed_tools[member] = tools
        self._set_held(member, {each.name: each for each in held})
        left_out = {id(each.item) for each in held}
        return [each for each in tools if id(each) not in left_out]

    def _set_held(self, member: str, held: dict[str, HeldTool]) -> None:
        self._held[member] = held
        self._all_held = MappingProxyType({name: each for held in self._held.values() for name, each in held.items()})

    def _check_pins(self) -> None:
        """Check again which tools of all servers are approved, because the approvals have changed."""
        for member, tools in tuple(self._listed_tools.items()):
            self._replace(member, "tools", tools)

    def _add(self, member: str, tools: Mapping[str, ToolTransform] | None = None) -> None:
        """Add the server ``member`` at the end of the catalogue.

        ``tools`` contains the transforms of the server's tools.
        """
        self._offers[member] = {}
        if tools:
            self._transforms[member] = tools

    def _show(self, member: str, shown: bool) -> None:
        """Show or hide the items of the server ``member`` in the catalogue."""
        if shown == (member in self._hidden):
            (self._hidden.discard if shown else self._hidden.add)(member)
            self._changed(self._offers[member])

    def _remove(self, member: str) -> None:
        """Remove the server ``member`` and its items from the catalogue."""
        self._hidden.discard(member)
        self._transforms.pop(member, None)
        if self._listed_tools.pop(member, None) is not None:
            self._set_held(member, {})
            del self._held[member]
        self._changed(self._offers.pop(member))

    def _changed(self, offers: dict[ListName, dict[str, CatalogueEntry[Any]]]) -> None:
        for name, entries in offers.items():
            if entries:
                self._merge(name)

    def _merge(self, name: ListName) -> None:
        self._merged[name] = MappingProxyType(self._known(name, hidden=self._hidden))
        self._feed.publish(name, name)


N = TypeVar("N")


class Watch(AsyncIterator[N], Generic[N]):
    """An async iterator over the changes of values, each of which has a key (for example a server's name and its
    status).

    Each step yields the changes since the last step, in order. If a key has changed several times, only its latest
    value is yielded.

    A slow reader misses replaced values, but never the latest one, and stores only one value for each key. The
    iteration begins with all current values, and ends with the group. This isn't an async generator: you may drop it at
    any time, and a cancelled step loses nothing. Only one task may iterate at a time.
    """

    def __init__(self, standing: dict[str, N], run: TrioRun | None = None) -> None:
        self._run = run
        """The trio run that publishes values, and in which the reader must run."""
        self._pending = {key: (value, False) for key, value in standing.items()}
        self._known: set[str] = set()
        """The keys of which the reader has read a value, except keys whose last value it has read."""
        self._over = False
        self._arrived = trio.lowlevel.ParkingLot()

    def _put(self, key: str, value: N, *, last: bool) -> None:
        """Store ``value``, the new value of ``key``, so that the iterator yields it. ``last`` is true if the key gets
        no more values, for example because a server was removed."""
        self._pending.pop(key, None)
        if last and key not in self._known:
            return  # this key's value was never yielded, so its removal isn't yielded either
        self._pending[key] = value, last
        self._arrived.unpark()

    def _close(self) -> None:
        """End the iteration once the values that are already stored were yielded."""
        self._over = True
        self._arrived.unpark_all()

    async def __anext__(self) -> N:
        if self._run is not None:
            self._run.check("a watch")
        await trio.lowlevel.checkpoint()
        while not self._pending:
            if self._over:
                raise StopAsyncIteration
            await self._arrived.park()
        key = next(iter(self._pending))
        value, last = self._pending.pop(key)
        (self._known.discard if last else self._known.add)(key)
        return value


class ChangeFeed(Generic[N]):
    """Publishes the changes of values, each of which has a key, to any number of `Watch` iterators.

    You may call `watch` in any thread.
    """

    def __init__(self) -> None:
        self._opening = threading.Lock()
        self._run = current_run() if trio.lowlevel.in_trio_run() else None
        self.standing: dict[str, N] = {}
        """The current value of each key that hasn't ended."""
        self._watches: WeakSet[Watch[N]] = WeakSet()
        self._over = False

    def publish(self, key: str, value: N, *, last: bool = False) -> None:
        """Publish ``value`` as the new value of ``key`` to all iterators.

        If ``last`` is true, this is the last value of the key.
        """
        with self._opening:
            if last:
                self.standing.pop(key, None)
            else:
                self.standing[key] = value
            watches = tuple(self._watches)
        for watch in watches:
            watch._put(key, value, last=last)

    def watch(self) -> Watch[N]:
        """Return a new `Watch`, an async iterator that yields the current values first, and then each change."""
        with self._opening:
            watch = Watch(self.standing, self._run)
            if self._over:
                watch._close()
            else:
                self._watches.add(watch)
        return watch

    def close(self) -> None:
        """End all iterators of this feed, after they have yielded the values that are stored for them."""
        with self._opening:
            self._over = True
            watches = tuple(self._watches)
        for watch in watches:
            watch._close()
