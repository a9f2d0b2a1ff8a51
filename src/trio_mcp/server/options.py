"""Options of offers, each explained once: the keywords of tools, resources, prompts and questions.

`CacheHints` say for how long, and for whom, a modern client may cache an answer. Authors who come from other SDKs are
told what to write instead of the names that they look for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    NoReturn,
    TypedDict,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

import attrs

from ..classes import frozen, show_fields
from ..protocol.fields import JSONObject
from ..protocol.methods import ROWS
from ..protocol.types.content import Annotations
from ..protocol.types.lifecycle import CacheScope, Icon
from ..protocol.types.sampling import ModelPreferences, ToolChoice
from ..protocol.types.tools import Tool, ToolAnnotations
from .visibility import Visible

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault  # type checkers bring it along

    from ..protocol.types.apps import UI, AppPolicy
    from ..stores.task_store import OnRestart

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
    asyncio: bool
    """True: the async function runs on asyncio, as a task of one event loop in a thread of the server's, for libraries
    that need asyncio. A cancel of the request cancels the task, and the request ends when the task has ended; a task
    that ignores the cancel is abandoned after `Limits.cleanup_grace`. ``ctx`` works there as on trio. By default what
    ``Server(asyncio=...)`` says."""


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

    def _replace(self, ttl_ms: int | None, scope: CacheScope | None) -> CacheHints:
        """Return the same hints, each argument that is not `None` replacing the present value."""
        return CacheHints(self.ttl_ms if ttl_ms is None else ttl_ms, self.scope if scope is None else scope)


NOT_CACHED: Final = CacheHints()


def hints_by_method(default: CacheHints, special: Mapping[str, CacheHints]) -> Mapping[str, CacheHints]:
    """Return the hints for each method that has any. Raises `ValueError` for a method in ``special`` without hints."""
    if unknown := sorted(set(special) - set(_CACHEABLE)):
        raise ValueError(f"no cache hints go with {', '.join(unknown)}; they do with {', '.join(_CACHEABLE)}")
    return {method: special.get(method, default) for method in _CACHEABLE}


class ContextNames(Generic[L_co]):
    """A context, which tells authors who come from other SDKs what to write instead of what the context lacks. Generic
    in the value that the lifespan yields: `RequestContext[Database]`."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers know what there is

        def __getattr__(self, name: str) -> NoReturn:
            from ..mistakes import CONTEXT_NAMES, raise_no_attribute

            raise_no_attribute(self, name, CONTEXT_NAMES)


def is_context(hint: Any) -> bool:
    """Return whether an annotation is that of a context, `RequestContext` or `WorkerContext`."""
    if get_origin(hint) in (Union, UnionType):
        return any(is_context(member) for member in get_args(hint))
    kind = get_origin(hint) or hint  # RequestContext[Database]
    return isinstance(kind, type) and issubclass(kind, ContextNames)


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
