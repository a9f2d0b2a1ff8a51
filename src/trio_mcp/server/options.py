"""Keywords of `Server.tool`, `Server.resource`, `Server.prompt` and `RequestContext.sample`, each explained once.

`CacheHints` say for how long, and for whom, a modern client may cache an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypedDict

import attrs

from ..classes import frozen
from ..protocol.fields import JSONObject
from ..protocol.methods import ROWS
from ..protocol.types.content import Annotations
from ..protocol.types.lifecycle import CacheScope, Icon
from ..protocol.types.sampling import ModelPreferences, ToolChoice
from ..protocol.types.tools import Tool, ToolAnnotations
from ..stores.task_store import OnRestart


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
    Listings show the thing to everybody."""


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


class ToolOptions(PromptOptions, total=False):
    """Keywords of a tool."""

    annotations: ToolAnnotations | None
    """Hints for clients."""
    input_schema: JSONObject | None
    """Replaces the schema made from the parameters, and is kept verbatim. With such a schema, a function whose one
    parameter is ``arguments`` gets all arguments there. Arguments are checked against the schema; arguments too large
    for the check are refused like arguments that do not fit (see the README: Revisions)."""
    output_schema: JSONObject | None
    """Replaces the schema made from the return annotation, and is kept verbatim."""
    validate_output: bool
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
_CACHEABLE: Final = tuple(row.name for row in ROWS if row.cacheable)


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
