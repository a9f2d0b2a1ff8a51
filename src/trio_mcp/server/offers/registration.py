"""`Registry`: a server's tools, or its resources, templates or prompts. `Mirror` keeps two registries in sync.

Listings are in the order of registration, in pages with opaque cursors. An offer may need OAuth scopes.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, KeysView, Mapping, Sequence
from itertools import islice
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from ...jsonrpc.codec import decode_base64url
from ...jsonrpc.errors import INVALID_PARAMS, CodedError
from ...runtime.peer import Auth, Peer
from ..options import Visible

if TYPE_CHECKING:
    from ...protocol.listings import CachedPage, ListedTexts


class Offer:
    """A tool, resource, template, prompt or skill that a server offers to all callers, or only to some of them."""

    __slots__ = ()

    scopes: frozenset[str]
    """OAuth scopes that a caller needs to use the tool, resource or prompt."""
    visible: Visible | None
    """Function that is called with the caller and returns whether the caller can see the tool, resource or prompt.

    The function never raises. `None` if all callers can see it.
    """
    tags: frozenset[str]
    """Tags by which the author can disable and enable tools, resources and prompts."""


def depends_on_caller(offer: Offer) -> bool:
    """Return whether only some callers can see the tool, resource or prompt ``offer``."""
    return bool(offer.scopes) or offer.visible is not None


T = TypeVar("T", bound=Offer)
_LISTED: Final = attrgetter("listed")
"""Function that converts a registered tool, resource, template or prompt to the form that clients see."""


class Registry(Generic[T]):
    """All registered entries of one ``kind``, such as all tools. Entries are found by name, and keep their order.

    A cursor holds the serial number of the last offer seen. So it stays valid while offers are added and removed, and a
    listing repeats nothing and skips nothing.
    """

    def __init__(self, kind: str, page_size: int | None) -> None:
        self.kind = kind
        self._page_size = page_size
        self._items: dict[str, T] = {}
        self._serials: dict[str, int] = {}
        self._last_serial = 0
        self._mirrors: list[Mirror[T]] = []
        self._disabled: dict[str, tuple[T, int]] = {}
        """Entries that are disabled for all callers, with their serial numbers."""
        self._disabled_tags = frozenset[str]()
        self.tags = frozenset[str]()
        """Tags of all entries that were ever added. Removed entries count too."""
        self._texts: ListedTexts | None = None
        self._for_all: dict[str, T] = {}
        self._caller_dependent: set[str] = set()
        self.get: Callable[[str], T | None] = self._items.get
        """Function that returns the entry called ``name``, or `None`. It doesn't check whether the caller can see the
        entry."""
        self.get_for_all: Callable[[str], T | None] = self._for_all.get
        """Function that returns the entry called ``name`` if every caller can see it, or `None`. It is faster than
        `get_for`, because it doesn't check the caller."""
        self.names: Callable[[], KeysView[str]] = self._items.keys
        """Function that returns the current names of the entries."""

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._items.values()))

    @property
    def is_used(self) -> bool:
        """True if the registry has any entries, including disabled ones."""
        return bool(self._items or self._disabled)

    def including_disabled(self) -> Iterator[T]:
        """Iterate over all entries of the registry, disabled ones last."""
        return iter([*self._items.values(), *(item for item, _ in self._disabled.values())])

    def add(self, name: str, item: T) -> None:
        """Add the entry ``item`` to the registry. Raises `ValueError` if the name of ``item`` is taken."""
        self.check_free(name)
        self._last_serial += 1
        self.tags |= item.tags
        if item.tags.isdisjoint(self._disabled_tags):
            self._show(name, item, self._last_serial)
        else:
            self._disabled[name] = item, self._last_serial

    def _show(self, name: str, item: T, serial: int) -> None:
        self._items[name], self._serials[name] = item, serial
        if item.visible is None:
            self._for_all[name] = item
        if depends_on_caller(item):
            self._caller_dependent.add(name)
        for mirror in self._mirrors:
            mirror.add(name, item)
        if self._texts is not None:
            self._texts.add(_LISTED(item))

    def check_free(self, name: str) -> None:
        """Raise `ValueError` if ``name`` is taken in this registry, or can't be used in a mirror, which shows the
        entries of this registry elsewhere."""
        if name in self._items or name in self._disabled:
            raise ValueError(f"there is already a {self.kind} named {name!r}; remove it first")
        for mirror in self._mirrors:
            mirror.check_free(name)

    def mirror_in(self, mirror: Mirror[T]) -> None:
        """Show all current and future entries of this registry in ``mirror``. An entry that is removed from this
        registry disappears from ``mirror``."""
        self._mirrors.append(mirror)
        for name, item in self._items.items():
            mirror.add(name, item)

    def remove(self, name: str) -> None:
        """Remove the entry (such as a tool) called ``name`` from the registry. Raises `KeyError` if there is no such
        entry."""
        if name in self._disabled:
            del self._disabled[name]
        elif name in self._items:
            self._hide(name)
        else:
            raise KeyError(f"there is no {self.kind} named {name!r}")

    def _hide(self, name: str) -> None:
        if self._texts is not None:
            self._texts.drop(_LISTED(self._items[name]))
        del self._items[name], self._serials[name]
        self._for_all.pop(name, None)
        self._caller_dependent.discard(name)
        for mirror in self._mirrors:
            mirror.remove(name)

    def disable(self, tags: frozenset[str]) -> bool:
        """Hide all entries (such as tools) that have one of ``tags``, until `enable` is called. Return whether any
        entry was hidden."""
        self._disabled_tags |= tags
        hidden = [name for name, item in self._items.items() if not item.tags.isdisjoint(tags)]
        for name in hidden:
            self._disabled[name] = self._items[name], self._serials[name]
            self._hide(name)
        return bool(hidden)

    def enable(self, tags: frozenset[str]) -> bool:
        """Undo `disable` for ``tags``: show entries again in their old positions, except entries with another disabled
        tag.

        Return whether any entry is shown again. If a name was taken in a mirror meanwhile, raise `ValueError` and
        change nothing.
        """
        left = self._disabled_tags - tags
        shown = {name: entry for name, entry in self._disabled.items() if entry[0].tags.isdisjoint(left)}
        for name in shown:
            for mirror in self._mirrors:
                mirror.check_free(name)
        self._disabled_tags = left
        for name, entry in shown.items():
            del self._disabled[name]
            self._show(name, *entry)
        if shown:
            self._sort()
        return bool(shown)

    def _sort(self) -> None:
        serials = sorted(self._serials.items(), key=itemgetter(1))
        items = {name: self._items[name] for name, _ in serials}
        for kept, found in ((self._serials, dict(serials)), (self._items, items)):
            kept.clear()  # don't replace the dict: `get` and `names` are bound methods of the dict
            kept.update(cast("dict[str, Any]", found))

    def known(self, name: str) -> T | None:
        """Return the entry (such as a tool) called ``name``, even if it is disabled. Return `None` if there is no such
        entry."""
        disabled = self._disabled.get(name)
        return self._items.get(name) if disabled is None else disabled[0]

    @property
    def depends_on_caller(self) -> bool:
        """True if different callers may see different entries, such as tools."""
        return bool(self._caller_dependent)

    def get_for(self, auth: Auth | None, name: str, *, disabled: bool = False) -> T | None:
        """Return the entry (such as a tool) called ``name``. Return `None` if this caller can't see such an entry.

        ``disabled`` includes disabled entries, for a request that began before an entry was disabled.
        """
        item = self.known(name) if disabled else self._items.get(name)
        return item if item is None or item.visible is None or item.visible(auth) else None

    def listed_for(self, peer: Peer, after: int = 0) -> Iterator[str]:
        """Yield the names of the entries (such as tools) that this caller can see, in the order of their serial
        numbers. Entries up to the serial number ``after`` are skipped."""
        # Cache the result, because checking the scopes of a thousand tools is slow.
        shown: dict[frozenset[str], bool] = {}
        for name, serial in list(self._serials.items()):
            if serial <= after:
                continue
            item = self._items[name]
            if item.visible is not None:
                is_shown = item.visible(peer.auth)
            elif (is_shown := shown.get(item.scopes)) is None:
                is_shown = shown[item.scopes] = peer.has_scopes(item.scopes)
            if is_shown:
                yield name

    def page(self, cursor: str | None, peer: Peer) -> tuple[list[T], str | None]:
        """Return one page of the entries (such as tools) that this caller can see, and the cursor of the next page. The
        page begins after ``cursor``.

        The cursor is `None` on the last page.

        Raises `CodedError` (-32602) for a cursor that this registry didn't issue (2025-11-25 pagination, Error
        Handling).
        """
        after = 0 if cursor is None else self._read_cursor(cursor)
        most = self._page_size
        if not after and not self._caller_dependent and (most is None or len(self) <= most):
            return list(self._items.values()), None
        rest = list(islice(self.listed_for(peer, after), None if most is None else most + 1))
        if most is None or len(rest) <= most:
            return [self._items[name] for name in rest], None
        page = rest[:most]
        return [self._items[name] for name in page], base64.urlsafe_b64encode(
            f"{self.kind}:{self._serials[page[-1]]}".encode()
        ).decode()

    def listing(self, cursor: str | None, peer: Peer) -> tuple[CachedPage, str | None]:
        """Return one page of this caller's list in the form that clients see, and the cursor of the next page. The
        page's JSON is cached."""
        from ...protocol.listings import CachedPage, ListedTexts  # lazy import, so that servers start faster

        if self._texts is None:
            self._texts = ListedTexts()
            for item in self:
                self._texts.add(_LISTED(item))
        page, following = self.page(cursor, peer)
        return CachedPage(map(_LISTED, page), self._texts), following

    def _read_cursor(self, cursor: str) -> int:
        try:
            kind, _, serial = decode_base64url(cursor).decode().rpartition(":")
            if kind == self.kind and serial.isascii() and serial.isdigit():
                return int(serial)
        except ValueError:
            pass
        raise CodedError(INVALID_PARAMS, "Invalid params: the cursor was not issued for this list")


def set_enabled(registries: Mapping[str, Sequence[Registry[Any]]], tags: frozenset[str], *, enabled: bool) -> list[str]:
    """Enable or disable all tools, resources and prompts in ``registries`` that have one of ``tags``.

    Return the kinds of entries that changed, such as tools. Raises `ValueError` for a tag that was never used.
    """
    known = frozenset[str]().union(*(each.tags for of_kind in registries.values() for each in of_kind))
    if not tags or not known.issuperset(tags):
        asked = ", ".join(sorted(map(repr, tags)))
        words = f"no tool, resource or prompt has the tag {asked}" if tags else "no tag was given"
        raise ValueError(f"{words}; known tags are {', '.join(sorted(known)) or 'given by tags=[...]'}")
    changed: list[str] = []
    for kind, of_kind in registries.items():
        changes = [each.enable(tags) if enabled else each.disable(tags) for each in of_kind]
        changed += [kind] if any(changes) else []
    return changed


class Mirror(Generic[T]):
    """Shows the entries of one registry, for example of a mounted server, in another registry: ``shown_in``.

    ``renamed`` returns an entry's name in the other registry, and raises `ValueError` for an invalid name. ``changed``
    returns the entry in its form for the other registry.
    """

    def __init__(self, shown_in: Registry[T], renamed: Callable[[str], str], changed: Callable[[T], T]) -> None:
        self._shown_in = shown_in
        self._renamed = renamed
        self._changed = changed
        self._shown: dict[str, T] = {}

    def check_free(self, name: str) -> None:
        """Raise `ValueError` if the entry called ``name`` cannot be shown in the registry ``shown_in``."""
        self._shown_in.check_free(self._renamed(name))

    def add(self, name: str, item: T) -> None:
        """Show the mirrored registry's entry ``item`` in the registry ``shown_in`` as well. ``name`` is the entry's
        name in the mirrored registry.

        Raises the errors of `check_free`.
        """
        shown = self._changed(item)
        self._shown_in.add(self._renamed(name), shown)
        self._shown[name] = shown

    def remove(self, name: str) -> None:
        """Remove the entry called ``name`` from the registry ``shown_in``. If another entry has replaced it there, keep
        that other entry."""
        shown, there = self._shown.pop(name), self._renamed(name)
        if self._shown_in.known(there) is shown:
            self._shown_in.remove(there)
