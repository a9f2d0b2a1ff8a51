"""Keywords of `Server.tool`, `Server.resource`, `Server.prompt` and `RequestContext.sample`, each explained once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

from ..protocol.fields import JSONObject
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
