"""Keyword arguments of tools, resources, prompts and sampling requests: documented as typed dicts, and validated.

`CacheHints` limit how long, and for which users, a modern client may cache an answer. For names of other SDKs, the
errors say what to write instead.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    NoReturn,
    TypeAlias,
    TypedDict,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

import attrs

from ..classes import frozen, show_fields
from ..lazy import lazy_pattern
from ..protocol.fields import JSONObject
from ..protocol.methods import ROWS
from ..protocol.types.content import Annotations
from ..protocol.types.lifecycle import CacheScope, Icon
from ..protocol.types.sampling import ModelPreferences, ToolChoice
from ..protocol.types.tools import Tool, ToolAnnotations
from ..runtime.peer import Auth

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault  # type checkers provide it

    from ..protocol.types.apps import UI, AppPolicy
    from ..stores.task_store import OnRestart

    L_co = TypeVarWithDefault("L_co", covariant=True, default=Any)
else:
    # Only type checkers read the default of this TypeVar. At run time, defaults exist from Python 3.13 on.
    L_co = TypeVar("L_co", covariant=True)

logger = logging.getLogger("trio_mcp")

Visible: TypeAlias = Callable[[Auth | None], Any]
"""Predicate that decides whether a tool, resource or prompt exists for a caller. It takes an `Auth`, or `None` if the
caller is unauthenticated."""


@show_fields
class PromptOptions(TypedDict, total=False):
    """Keyword arguments of `Server.prompt`. Resources and tools accept these arguments with the same meaning."""

    name: str | None
    """Unique name, for programs. Defaults to the function's name."""
    title: str | None
    """Display name, for people."""
    description: str | None
    """Description for the model. Defaults to the function's docstring."""
    icons: Sequence[Icon] | None
    """Icons shown to people."""
    meta: JSONObject | None
    """The ``_meta`` of the entry in lists. Raises `ValueError` if a key is invalid."""
    scopes: Sequence[str]
    """OAuth scopes, all of which the caller's token must have. Without them, the request is refused before the handler
    runs, with status 403 over HTTP. Scopes are checked only if the server is protected (``auth=`` of `serve_http`).
    Lists omit the entry for callers without the scopes, unless ``visible`` shows it."""
    visible: Visible | None
    """Predicate on the caller: ``visible=lambda auth: auth is not None and auth.client_id == "ours"``. If it returns
    false, lists omit the entry, and requests for the entry are answered as for an unknown name. If it returns true,
    even callers without ``scopes`` see the entry in lists. It runs in trio's thread for each list and each request, so
    it must be fast and free of side effects. An exception hides the entry, and is logged once. Without a predicate,
    scopes decide."""

    tags: Sequence[str]
    """Tags for `Server.disable` and `Server.enable`. Clients don't see tags."""
    asyncio: bool
    """If true, the async function runs on asyncio, for libraries that need asyncio. It runs as a task of one event loop
    in a thread of the server. A cancelled request cancels the task, and ends when the task has ended. A task that
    ignores the cancellation is abandoned after `Limits.cleanup_grace`. ``ctx`` works as on trio. Defaults to
    ``Server(asyncio=...)``."""


@show_fields
class ResourceOptions(PromptOptions, total=False):
    """Keyword arguments of `Server.resource`, for one resource or for all resources of a template."""

    mime_type: str | None
    """MIME type of the contents. Defaults to ``text/plain`` for text, ``application/octet-stream`` for bytes, and
    ``application/json`` for data."""
    annotations: Annotations | None
    """Annotations of the resource, which are hints for clients."""
    size: int | None
    """Size of the contents in bytes."""
    ttl_ms: int | None
    """Milliseconds for which modern clients may cache the contents. See `CacheHints`. With `None`, the server's default
    applies."""
    cache_scope: CacheScope | None
    """The users whom a cache may send the contents to: only the user who requested them, or all users. With `None`, the
    server's default applies. Contents that need ``scopes`` are always private."""
    app: AppPolicy | None
    """The policy that makes the resource the view of an app. The resource must be an HTML document with a ``ui://``
    URI, and may load only what the policy allows. The server needs the `Apps` extension."""


@show_fields
class ToolOptions(PromptOptions, total=False):
    """Keyword arguments of `Server.tool`."""

    annotations: ToolAnnotations | None
    """Annotations of the tool, which are hints for clients."""
    input_schema: JSONObject | None
    """Replaces the input schema generated from the parameters, and is sent unchanged. Arguments are validated against
    this schema. Arguments that are too large to validate are refused like invalid arguments (see
    docs/guarantees/limits.md). With such a schema, a function whose only parameter is called ``arguments`` gets all
    arguments in this parameter."""
    output_schema: JSONObject | None
    """Replaces the output schema generated from the return annotation, and is sent unchanged."""
    lenient: bool
    """If true, string arguments are parsed as the type in the input schema: number, boolean, null, or JSON lists and
    objects. Null or blank text for an optional argument counts as omitted. The schema itself doesn't change. By
    default, strings are never converted to other JSON types."""
    check_output: bool
    """If true, a result that doesn't fit the output schema, or is too large to check, is an error (-32603)."""
    timeout: float | None
    """Seconds after which the handler is cancelled, and the model gets an error. Time spent waiting for the user
    (`RequestContext.elicit`) doesn't count, in legacy and modern revisions. With ``replay``, each run has the full
    time."""
    max_concurrency: int | None
    """Maximum number of concurrent calls. Further calls wait."""
    requires: Sequence[str]
    """Capabilities that the client must have declared, for example ``"sampling.tools"``. Otherwise the call is refused
    with error -32021, or -32600 in legacy revisions."""
    replay: bool
    """If true, the handler must be safe to run again. See `Server.tool`."""
    task: Literal["optional", "required", False]
    """Whether calls run as tasks, which outlive their request. ``"optional"``: only if the client supports tasks.
    ``"required"``: always, and calls of other clients are refused (-32021, or -32601 in legacy revisions). `False`:
    never. See `Server.tool`."""
    on_restart: OnRestart
    """What happens to a task if its process ends before the task. ``fail``: the task fails. ``again``: the handler runs
    from the top. ``resume``: like ``again``, with `TaskContext.restored`. Choose ``again`` or ``resume`` only if
    running the handler again is harmless."""
    ui: UI | None
    """The view that shows the tool's results, and who may call the tool: the model, views, or both. Results must also
    have content, for hosts without views. The server needs the `Apps` extension."""


@show_fields
class SamplingOptions(TypedDict, total=False):
    """Keyword arguments of a sampling request to the client's model (2025-11-25 sampling). If an argument is `None`,
    the client chooses the value."""

    system_prompt: str | None
    """System prompt. The client may change or omit it."""
    model_preferences: ModelPreferences | None
    """Preferences for the model that the client chooses."""
    temperature: float | None
    """Temperature, as defined by the model's provider."""
    stop_sequences: list[str] | None
    """Strings at which the model stops generating."""
    include_context: Literal["none", "thisServer", "allServers"] | None
    """The servers whose context the model gets. All values except ``"none"`` need the capability
    ``sampling.context``."""
    metadata: JSONObject | None
    """Data for the model's provider, passed on unchanged."""
    tools: list[Tool] | None
    """Tools that the model may call. Your handler must run them. Needs the capability ``sampling.tools``."""
    tool_choice: ToolChoice | None
    """Whether the model must call a tool. Needs the capability ``sampling.tools``."""
    meta: JSONObject | None
    """The ``_meta`` of the request. Raises `ValueError` if a key is invalid."""


_LONGEST: Final = 2**53 - 1  # the largest integer that every JSON parser reads exactly
_CACHEABLE: Final = (*(row.name for row in ROWS if row.cacheable), "skills/list", "skills/get")


def _is_ttl(_: Any, __: Any, ttl_ms: int) -> None:
    # By MCP 2026-07-28 (caching page), the TTL must be 0 or more.
    # Check the exact type, because `True` is an int in Python, but isn't a valid TTL.
    if type(ttl_ms) is not int or not 0 <= ttl_ms <= _LONGEST:
        raise ValueError(f"ttl_ms must be an integer from 0 to {_LONGEST}, not {ttl_ms!r}")


def _is_scope(_: Any, __: Any, scope: str) -> None:
    if scope not in ("public", "private"):
        raise ValueError(f"a cache scope must be 'public' or 'private', not {scope!r}")


@frozen
class CacheHints:
    """Says how long, and for whom, clients may cache a response (2026-07-28 caching). Raises `ValueError` for values
    out of range."""

    ttl_ms: int = attrs.field(default=0, validator=_is_ttl)
    """Milliseconds for which a client may use the response from its cache. With 0, the client must send a request each
    time."""
    scope: CacheScope = attrs.field(default="private", validator=_is_scope)
    """``public``: the response contains no user's data, and caches may send it to all users. ``private``: caches may
    send it only to the user who requested it. This is a hint to caches, not access control."""

    def _replace(self, ttl_ms: int | None, scope: CacheScope | None) -> CacheHints:
        """Return a copy of these cache hints in which each argument other than `None` replaces the current value."""
        return CacheHints(self.ttl_ms if ttl_ms is None else ttl_ms, self.scope if scope is None else scope)


NOT_CACHED: Final = CacheHints()


def hints_by_method(default: CacheHints, special: Mapping[str, CacheHints]) -> Mapping[str, CacheHints]:
    """Return a dict with the cache hints of each method whose responses can be cached. Raises `ValueError` if
    ``special`` contains another method."""
    if unknown := sorted(set(special) - set(_CACHEABLE)):
        raise ValueError(f"{', '.join(unknown)} cannot be cached. Methods with cache hints: {', '.join(_CACHEABLE)}")
    return {method: special.get(method, default) for method in _CACHEABLE}


class ContextNames(Generic[L_co]):
    """Base class of `RequestContext` and `WorkerContext`, the contexts that handlers get.

    If a handler reads an attribute that only another SDK's context has, the error says what to write instead. Generic
    in the value that the lifespan yields: `RequestContext[Database]`.
    """

    __slots__ = ()

    if not TYPE_CHECKING:  # hide this method from type checkers, so that they report unknown attributes

        def __getattr__(self, name: str) -> NoReturn:
            from ..mistakes import CONTEXT_NAMES, raise_no_attribute

            raise_no_attribute(self, name, CONTEXT_NAMES)


def is_context(hint: Any) -> bool:
    """Return whether an annotation is a context class: `RequestContext` or `WorkerContext`."""
    if get_origin(hint) in (Union, UnionType):
        return any(is_context(member) for member in get_args(hint))
    kind = get_origin(hint) or hint  # RequestContext[Database]
    return isinstance(kind, type) and issubclass(kind, ContextNames)


_KINDS: Final[dict[str, tuple[type | tuple[type, ...], str]]] = {
    **dict.fromkeys(("name", "title", "description", "mime_type"), (str, '"text"')),
    **dict.fromkeys(("icons", "requires"), ((list, tuple, set, frozenset), 'a list, ["text"]')),
    "meta": (dict, "a dict"),
    "timeout": ((int, float), "seconds, a number greater than 0"),
    "max_concurrency": (int, "a number of calls, at least 1"),
    **dict.fromkeys(("input_schema", "output_schema"), (dict, "a JSON Schema as a dict, Model.model_json_schema()")),
}
"""The expected type of each option, and the words that describe this type in error messages."""


def check_apps(option: str, has_apps: bool) -> None:
    """Raise `ValueError` if the server lacks the `Apps` extension, because ``option`` has an effect only with this
    extension."""
    if not has_apps:
        raise ValueError(f"{option} needs the Apps extension: Server(name, extensions=[Apps()])")


def check_options(decorator: str, options: Mapping[str, Any], documented: type) -> None:
    """Raise `TypeError` for an option that isn't in the TypedDict ``documented``, or for a value of the wrong type."""
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
                f"{decorator}(annotations=...) takes an object of the specification's class, not a dict:\n"
                '    wrong:  annotations={"readOnlyHint": True}\n'
                "    right:  annotations=ToolAnnotations(read_only_hint=True)"
            )


_SCOPE: Final = lazy_pattern(r"[!#-\[\]-~]+")
"""The characters that an OAuth scope may have (RFC 6749 section 3.3)."""


def checked_access(name: str, options: PromptOptions) -> tuple[frozenset[str], Visible | None, frozenset[str]]:
    """Validate the options ``scopes``, ``visible`` and ``tags`` of the tool, resource or prompt ``name``.

    Return the scopes and the tags as sets, and a predicate that never raises. Raises `TypeError` if an option has the
    wrong type, and `ValueError` for a scope that cannot occur in a token.
    """
    scopes, visible, tags = options.get("scopes", ()), options.get("visible"), options.get("tags", ())
    if isinstance(scopes, str):
        raise TypeError(
            f"{name}: scopes must be a list:\n    wrong:  scopes={scopes!r}\n    right:  scopes=[{scopes!r}]"
        )
    for scope in scopes:
        if not _SCOPE.fullmatch(scope):
            raise ValueError(
                f"{name}: {scope[:200]!r} is not a valid scope: use ASCII without spaces, quotes and backslashes"
            )
    if isinstance(tags, str) or not all(isinstance(tag, str) for tag in tags):  # pyright: ignore[reportUnnecessaryIsInstance] - for untyped code
        raise TypeError(
            f'{name}: tags must be a list of strings:\n    wrong:  tags={tags!r}\n    right:  tags=["beta"]'
        )
    return frozenset(scopes), None if visible is None else _checked_visible(name, visible), frozenset(tags)


def _checked_visible(name: str, visible: Visible) -> Visible:
    """Return a function that calls ``visible`` and never raises. ``visible`` decides which callers can see the tool,
    resource or prompt ``name``.

    Raises `TypeError` unless ``visible`` is a plain function that takes the caller.
    """
    if not can_be_called(visible, 1) or inspect.iscoroutinefunction(visible):
        raise TypeError(
            f"{name}: visible must be a plain function that takes the caller, an Auth or None:\n"
            '    right:  visible=lambda auth: auth is not None and "admin" in auth.scopes'
        )
    is_told = False

    def is_visible(auth: Auth | None) -> bool:
        nonlocal is_told
        try:
            return _truth(visible(auth))
        except Exception:
            if not is_told:
                is_told = True
                logger.exception("%s is hidden: its visible=... raised an exception, which is logged only once", name)
            return False

    return is_visible


def can_be_called(function: Callable[..., Any], arguments: int) -> bool:
    """Return whether ``function`` can be called with this number of positional arguments."""
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError:
        return False
    return True


def _truth(answer: Any) -> bool:
    """Return ``answer``, the result of a predicate, as a `bool`. Raises `TypeError` for an awaitable, because every
    awaitable counts as true."""
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise TypeError("visible=... returned an awaitable: it must be a plain function")
    return bool(answer)
