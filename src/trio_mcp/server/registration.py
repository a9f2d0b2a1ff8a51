"""Registration: the keywords with which authors offer a thing, each explained once, and the `Registry` of what is
offered.

A listing is in the order of registration, in pages with opaque cursors. `CacheHints` say for how long, and for whom, a
modern client may cache an answer; an offer may have scopes that its caller needs. Authors who come from other SDKs are
told what to write instead of the names that they look for.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, KeysView, Mapping, Sequence
from itertools import islice
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NoReturn, TypedDict, TypeVar, cast

import attrs

from ..classes import frozen, show_fields
from ..jsonrpc.base64url import decode_base64url
from ..jsonrpc.errors import INVALID_PARAMS, CodedError
from ..protocol.fields import JSONObject
from ..protocol.methods import ROWS
from ..protocol.types.content import Annotations
from ..protocol.types.lifecycle import CacheScope, Icon
from ..protocol.types.sampling import ModelPreferences, ToolChoice
from ..protocol.types.tools import Tool, ToolAnnotations
from ..runtime.peer import Auth, Peer
from ..stores.task_store import OnRestart
from .visibility import Offer, Visible, depends_on_caller

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault  # type checkers bring it along

    from ..protocol.listings import ListedTexts, Listing
    from ..protocol.types.apps import UI, AppPolicy

    L_co = TypeVarWithDefault("L_co", covariant=True, default=Any)
else:
    L_co = TypeVar("L_co", covariant=True)  # a default is there from Python 3.13 on, and nothing reads it


@show_fields
class PromptOptions(TypedDict, total=False):
    """Keywords of a prompt, and in the same sense of a resource and of a tool."""

    name: str | None
    """Unique name, for programs; the function's own by default."""
    title: str | None
    """Name for people."""
    description: str | None
    """Description for the model; the function's docstring by default."""
    icons: Sequence[Icon] | None
    """Icons for people."""
    meta: JSONObject | None
    """``_meta`` of the listed thing. Raises `ValueError` for an invalid key."""
    scopes: Sequence[str]
    """Scopes that the token of a caller must have, all of them, else the request is refused, and nothing of it runs:
    over HTTP with 403. Checked where the server is protected (the argument ``auth`` of `serve_http`), and nowhere else.
    Listings leave the thing out for others, unless ``visible`` shows it."""
    visible: Visible | None
    """Function of the caller, ``visible=lambda auth: auth is not None and auth.client_id == "ours"``, called for each
    listing and each request, in trio's thread: quick, without side effects. Where the function is false, the thing is
    in no listing, and requests are answered as for an unknown name; where true, listings show the thing even to a
    caller who lacks ``scopes``. An exception hides the thing, and is logged once. Without a function, scopes decide."""

    tags: Sequence[str]
    """Tags, by which `Server.disable` and `Server.enable` know the thing. Clients do not see tags."""


@show_fields
class ResourceOptions(PromptOptions, total=False):
    """Keywords of a resource, or of all resources of a template."""

    mime_type: str | None
    """MIME type of the contents; by default ``text/plain`` for text, ``application/octet-stream`` for bytes, and
    ``application/json`` for data."""
    annotations: Annotations | None
    """Hints for clients."""
    size: int | None
    """Size in bytes."""
    ttl_ms: int | None
    """Milliseconds for which modern clients may keep the contents, see `CacheHints`; `None`: the server's default."""
    cache_scope: CacheScope | None
    """Users to whom caches may show the contents; `None`: the server's default. Contents that need ``scopes`` are
    private."""
    app: AppPolicy | None
    """Makes the resource the view of tools: an HTML document, under a URI that begins with ``ui://``, which may load
    as much as the policy allows. Needs `Apps` among the extensions of the server."""


@show_fields
class ToolOptions(PromptOptions, total=False):
    """Keywords of a tool."""

    annotations: ToolAnnotations | None
    """Hints for clients."""
    input_schema: JSONObject | None
    """Replaces the schema made from the parameters, and is kept verbatim. With such a schema, a function whose one
    parameter is ``arguments`` gets all arguments there. Arguments are checked against the schema; arguments too large
    for the check are refused like arguments that do not fit (see docs/limits.md)."""
    output_schema: JSONObject | None
    """Replaces the schema made from the return annotation, and is kept verbatim."""
    lenient: bool
    """True: text is read as the type in the input schema: numbers, booleans, null, and lists and objects as JSON. Null
    or blank text for an optional argument counts as left out. The schema stays as it is. By default, JSON types are
    never converted."""
    check_output: bool
    """True: a result that does not fit the output schema, or is too large to be checked, is an error (-32603)."""
    timeout: float | None
    """Seconds after which the handler is cancelled and the model is told. The time counts from the start of the
    handler, without the time in which the user is asked (`RequestContext.elicit`), in either era; with ``replay``, each
    run counts anew."""
    max_concurrency: int | None
    """Calls that may run at the same time; further calls wait."""
    requires: Sequence[str]
    """Capabilities that a client must have declared, ``"sampling.tools"`` for example, else the call is refused:
    -32021, in legacy revisions -32600."""
    replay: bool
    """True: the handler is safe to run again. See `Server.tool`."""
    task: Literal["optional", "required", False]
    """Calls run as tasks, which outlive their request: where the client can, or always, so that other clients are
    refused (-32021, in legacy revisions -32601), or never. See `Server.tool`."""
    on_restart: OnRestart
    """Fate of a task whose process ends before the task: ``fail``, run ``again`` from the top, or ``resume``, which
    is ``again`` with `TaskContext.restored`. The author of a tool that is run again promises that this does no harm."""
    ui: UI | None
    """The view that shows the results, and who may call the tool: the model, views, or both. The content of results is
    not empty, for hosts that show no views. Needs `Apps` among the extensions of the server."""


@show_fields
class SamplingOptions(TypedDict, total=False):
    """Keywords of a question to the client's model (2025-11-25 sampling). `None` leaves the choice to the client."""

    system_prompt: str | None
    """System prompt, which the client may change or leave out."""
    model_preferences: ModelPreferences | None
    """Advice on which model would be best."""
    temperature: float | None
    """Temperature, as defined by the model's provider."""
    stop_sequences: list[str] | None
    """Texts that end the model's answer."""
    include_context: Literal["none", "thisServer", "allServers"] | None
    """Further context for the model; all but ``"none"`` needs ``sampling.context``."""
    metadata: JSONObject | None
    """Data for the model's provider, handed on unchanged."""
    tools: list[Tool] | None
    """Tools that the model may use; needs ``sampling.tools``. Running the tools is up to the handler that asks."""
    tool_choice: ToolChoice | None
    """Rule for whether the model must use a tool; needs ``sampling.tools``."""
    meta: JSONObject | None
    """``_meta`` of the question. Raises `ValueError` for an invalid key."""


_LONGEST: Final = 2**53 - 1  # the largest integer that all readers of JSON agree on
_CACHEABLE: Final = (*(row.name for row in ROWS if row.cacheable), "skills/list", "skills/get")


def _is_ttl(_: Any, __: Any, ttl_ms: int) -> None:
    # 2026-07-28 caching, TTL field: servers MUST provide a value of 0 or more. `True` is an int to Python only.
    if type(ttl_ms) is not int or not 0 <= ttl_ms <= _LONGEST:
        raise ValueError(f"ttl_ms is an integer from 0 to {_LONGEST}, not {ttl_ms!r}")


def _is_scope(_: Any, __: Any, scope: str) -> None:
    if scope not in ("public", "private"):
        raise ValueError(f"a cache scope is public or private, not {scope!r}")


@frozen
class CacheHints:
    """Hints on how clients may cache an answer (2026-07-28 caching). Raises `ValueError` for values out of range."""

    ttl_ms: int = attrs.field(default=0, validator=_is_ttl)
    """Milliseconds for which a client may take the answer for fresh. 0: the client asks each time."""
    scope: CacheScope = attrs.field(default="private", validator=_is_scope)
    """``public``: the answer holds nothing of any user, and caches may show the answer to all users. ``private``:
    caches may show the answer only to the user who asked. The scope is advice to caches and protects nothing by
    itself."""

    def but(self, ttl_ms: int | None, scope: CacheScope | None) -> CacheHints:
        """Return the same hints, each argument that is not `None` replacing the present value."""
        return CacheHints(self.ttl_ms if ttl_ms is None else ttl_ms, self.scope if scope is None else scope)


NOT_CACHED: Final = CacheHints()


def hints_by_method(default: CacheHints, special: Mapping[str, CacheHints]) -> Mapping[str, CacheHints]:
    """Return the hints for each method that has any. Raises `ValueError` for a method in ``special`` without hints."""
    if unknown := sorted(set(special) - set(_CACHEABLE)):
        raise ValueError(f"no cache hints go with {', '.join(unknown)}; they do with {', '.join(_CACHEABLE)}")
    return {method: special.get(method, default) for method in _CACHEABLE}


T = TypeVar("T", bound=Offer)
_LISTED: Final = attrgetter("listed")
"""Returns what clients see of an offer."""


class Registry(Generic[T]):
    """Named things of one ``kind`` in a stable order. A cursor stays good while things come and go: a cursor holds the
    serial number of the last thing seen, so a listing repeats nothing and skips nothing."""

    def __init__(self, kind: str, page_size: int | None) -> None:
        self.kind = kind
        self._page_size = page_size
        self._items: dict[str, T] = {}
        self._serials: dict[str, int] = {}
        self._last_serial = 0
        self._mirrors: list[Mirror[T]] = []
        self._disabled: dict[str, tuple[T, int]] = {}
        """Things that exist for nobody at present, with their serial numbers."""
        self._disabled_tags = frozenset[str]()
        self.tags = frozenset[str]()
        """Tags of all things that were ever added."""
        self._texts: ListedTexts | None = None
        self._for_all: dict[str, T] = {}
        self._depending: set[str] = set()
        self.get: Callable[[str], T | None] = self._items.get
        """Function that returns the thing called so, for all callers or for some, or `None`."""
        self.get_for_all: Callable[[str], T | None] = self._for_all.get
        """Function that returns the thing called so that exists for every caller: `get_for` without a look at the
        caller."""
        self.names: Callable[[], KeysView[str]] = self._items.keys
        """Function that returns the present names."""

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._items.values()))

    @property
    def is_used(self) -> bool:
        """True where there is something, disabled or not."""
        return bool(self._items or self._disabled)

    def including_disabled(self) -> Iterator[T]:
        """Iterate over all things, those that are disabled at the end."""
        return iter([*self._items.values(), *(item for item, _ in self._disabled.values())])

    def add(self, name: str, item: T) -> None:
        """Add ``item``. Raises `ValueError` when the name is taken."""
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
            self._depending.add(name)
        for mirror in self._mirrors:
            mirror.add(name, item)
        if self._texts is not None:
            self._texts.add(_LISTED(item))

    def check_free(self, name: str) -> None:
        """Raise `ValueError` when the name is taken, here or in a mirror."""
        if name in self._items or name in self._disabled:
            raise ValueError(f"there is a {self.kind} named {name!r} already; remove it first")
        for mirror in self._mirrors:
            mirror.check_free(name)

    def mirror_in(self, mirror: Mirror[T]) -> None:
        """Have ``mirror`` show all that is here now, and all that comes and goes from now on."""
        self._mirrors.append(mirror)
        for name, item in self._items.items():
            mirror.add(name, item)

    def remove(self, name: str) -> None:
        """Remove the thing called ``name``. Raises `KeyError` when there is none."""
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
        self._depending.discard(name)
        for mirror in self._mirrors:
            mirror.remove(name)

    def disable(self, tags: frozenset[str]) -> bool:
        """Withdraw all that has one of ``tags``, until `enable`. Return whether there was any."""
        self._disabled_tags |= tags
        hidden = [name for name, item in self._items.items() if not item.tags.isdisjoint(tags)]
        for name in hidden:
            self._disabled[name] = self._items[name], self._serials[name]
            self._hide(name)
        return bool(hidden)

    def enable(self, tags: frozenset[str]) -> bool:
        """Offer again, in its old place, all that was disabled for ``tags`` alone. Return whether there was any. Raises
        `ValueError`, with nothing changed, for a name that was taken in a mirror in the meantime."""
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
            kept.clear()  # not replaced: `get` and `names` are methods of these
            kept.update(cast("dict[str, Any]", found))

    def known(self, name: str) -> T | None:
        """Return the thing called so, disabled or not, or `None`."""
        disabled = self._disabled.get(name)
        return self._items.get(name) if disabled is None else disabled[0]

    @property
    def depends_on_caller(self) -> bool:
        """True when listings for two callers may differ."""
        return bool(self._depending)

    def get_for(self, auth: Auth | None, name: str, *, disabled: bool = False) -> T | None:
        """Return the thing called so, or `None` where there is none for this caller. ``disabled``: what is disabled
        counts, too, for a request that was begun before."""
        item = self.known(name) if disabled else self._items.get(name)
        return item if item is None or item.visible is None or item.visible(auth) else None

    def listed_for(self, peer: Peer, after: int = 0) -> Iterator[str]:
        """Iterate over the names of all that listings show this caller, behind the serial number ``after``."""
        shown: dict[frozenset[str], bool] = {}  # to ask about the scopes of a thousand tools is work
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
        """Return the things after ``cursor`` that this caller is shown, and the cursor of the next page, `None` on the
        last.

        Raises `CodedError` -32602 for a cursor not given by this registry (2025-11-25 pagination, Error Handling).
        """
        after = 0 if cursor is None else self._read_cursor(cursor)
        most = self._page_size
        if not after and not self._depending and (most is None or len(self) <= most):
            return list(self._items.values()), None
        rest = list(islice(self.listed_for(peer, after), None if most is None else most + 1))
        if most is None or len(rest) <= most:
            return [self._items[name] for name in rest], None
        page = rest[:most]
        return [self._items[name] for name in page], base64.urlsafe_b64encode(
            f"{self.kind}:{self._serials[page[-1]]}".encode()
        ).decode()

    def listing(self, cursor: str | None, peer: Peer) -> tuple[Listing, str | None]:
        """Return a page of what clients see of these things, tools for example: see `page`. Its texts are kept."""
        from ..protocol.listings import ListedTexts, Listing  # late: a server starts faster without

        if self._texts is None:
            self._texts = ListedTexts()
            for item in self:
                self._texts.add(_LISTED(item))
        page, following = self.page(cursor, peer)
        return Listing(map(_LISTED, page), self._texts), following

    def _read_cursor(self, cursor: str) -> int:
        try:
            kind, _, serial = decode_base64url(cursor).decode().rpartition(":")
            if kind == self.kind and serial.isascii() and serial.isdigit():
                return int(serial)
        except ValueError:
            pass
        raise CodedError(INVALID_PARAMS, "Invalid params: the cursor is not one of this list")


def switch(registries: Mapping[str, Sequence[Registry[Any]]], tags: frozenset[str], *, enabled: bool) -> list[str]:
    """Enable or disable what has ``tags`` in the ``registries`` of each kind. Return the kinds with a change. Raises
    `ValueError` for a tag that nothing has had."""
    known = frozenset[str]().union(*(each.tags for of_kind in registries.values() for each in of_kind))
    if not tags or not known.issuperset(tags):
        words = ", ".join(sorted(map(repr, tags))) or "no tag"
        raise ValueError(f"nothing has {words}; tags are {', '.join(sorted(known)) or 'given by tags=[...]'}")
    changed: list[str] = []
    for kind, of_kind in registries.items():
        changes = [each.enable(tags) if enabled else each.disable(tags) for each in of_kind]
        changed += [kind] if any(changes) else []
    return changed


class Mirror(Generic[T]):
    """The things of one registry, shown in another one, ``shown_in``, each under the name that ``renamed`` gives, and
    as ``changed`` gives it. ``renamed`` raises `ValueError` for a name that cannot be shown."""

    def __init__(self, shown_in: Registry[T], renamed: Callable[[str], str], changed: Callable[[T], T]) -> None:
        self._shown_in = shown_in
        self._renamed = renamed
        self._changed = changed
        self._shown: dict[str, T] = {}

    def check_free(self, name: str) -> None:
        """Raise `ValueError` when the thing called ``name`` cannot be shown."""
        self._shown_in.check_free(self._renamed(name))

    def add(self, name: str, item: T) -> None:
        """Show ``item``, which is called ``name``. Raises as `check_free`."""
        shown = self._changed(item)
        self._shown_in.add(self._renamed(name), shown)
        self._shown[name] = shown

    def remove(self, name: str) -> None:
        """Show the thing called ``name`` no longer. What has its name there in the meantime stays."""
        shown, there = self._shown.pop(name), self._renamed(name)
        if self._shown_in.known(there) is shown:
            self._shown_in.remove(there)


class ContextNames(Generic[L_co]):
    """A context, which tells authors who come from other SDKs what to write instead of what the context lacks. Generic
    in the value that the lifespan yields: `RequestContext[Database]`."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers know what there is

        def __getattr__(self, name: str) -> NoReturn:
            from ..mistakes import CONTEXT_NAMES, raise_no_attribute

            raise_no_attribute(self, name, CONTEXT_NAMES)


_KINDS: Final[dict[str, tuple[type | tuple[type, ...], str]]] = {
    **dict.fromkeys(("name", "title", "description", "mime_type"), (str, '"text"')),
    **dict.fromkeys(("icons", "requires"), ((list, tuple, set, frozenset), '["text"], several in a list')),
    "meta": (dict, "a dict"),
    "timeout": ((int, float), "seconds, a number greater than 0"),
    "max_concurrency": (int, "a number of calls, at least 1"),
    **dict.fromkeys(("input_schema", "output_schema"), (dict, "a JSON Schema as a dict, Model.model_json_schema()")),
}
"""The types of options, and words for what to write."""


def check_apps(option: str, has_apps: bool) -> None:
    """Raise `ValueError` for an ``option`` of the extension for apps, where the server lacks the extension."""
    if not has_apps:
        raise ValueError(f"{option} needs the extension for apps: Server(name, extensions=[Apps()])")


def check_options(decorator: str, options: Mapping[str, Any], documented: type) -> None:
    """Raise `TypeError` for an option that the TypedDict ``documented`` does not have, and for a value of another type
    than the option's."""
    known: frozenset[str] = vars(documented)["__optional_keys__"]
    for name, value in options.items():
        if name not in known:
            from ..mistakes import OPTIONS, raise_no_option

            raise_no_option(decorator, name, OPTIONS, sorted(known))
        kind, words = _KINDS.get(name, (object, ""))
        if value is not None and not isinstance(value, kind):
            raise TypeError(f"{decorator}({name}=...) takes {words}, not {repr(value)[:100]}")
        if name in ("timeout", "max_concurrency") and value is not None and not value > 0:
            raise ValueError(f"{decorator}({name}=...) takes {words}, not {value!r}")
        if name == "annotations" and isinstance(value, dict):
            raise TypeError(
                f"{decorator}(annotations=...) takes an object, as all classes of the specification are:\n"
                '    wrong:  annotations={"readOnlyHint": True}\n'
                "    right:  annotations=ToolAnnotations(read_only_hint=True)"
            )
