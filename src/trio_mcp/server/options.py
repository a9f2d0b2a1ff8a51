"""The keywords of `Server.tool`, `Server.resource`, `Server.prompt` and `RequestContext.sample`, each said once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

from ..spec.content import Annotations
from ..spec.fields import JSONObject
from ..spec.lifecycle import CacheScope, Icon
from ..spec.sampling import ModelPreferences, ToolChoice
from ..spec.tools import Tool, ToolAnnotations

__all__ = ["PromptOptions", "ResourceOptions", "SamplingOptions", "ToolOptions"]


class PromptOptions(TypedDict, total=False):
    """Of a prompt, and in the same sense of a resource and of a tool."""

    name: str | None
    """For programs, and unique; the function's own by default."""
    title: str | None
    """For people."""
    description: str | None
    """For the model; the function's docstring by default."""
    icons: Sequence[Icon] | None
    """For people."""
    meta: JSONObject | None
    """``_meta`` of what is listed. Its keys are checked: `ValueError`."""


class ResourceOptions(PromptOptions, total=False):
    """Of a resource, or of all of a template."""

    mime_type: str | None
    """Of the contents; by default ``text/plain``, ``application/octet-stream`` or ``application/json``, as they are."""
    annotations: Annotations | None
    """Hints for clients."""
    size: int | None
    """In bytes."""
    ttl_ms: int | None
    """How many milliseconds modern clients may keep it, see `CacheHints`; `None` is as the server says."""
    cache_scope: CacheScope | None
    """Who may share what they keep; `None` is as the server says."""


class ToolOptions(PromptOptions, total=False):
    """Of a tool."""

    annotations: ToolAnnotations | None
    """Hints for clients."""
    input_schema: JSONObject | None
    """Replaces the one made from the parameters, and is kept verbatim. A function that takes the one parameter
    ``arguments`` gets them whole then. Arguments are checked against it; those that are too large for that are refused
    as those that do not fit (see the README: Revisions)."""
    output_schema: JSONObject | None
    """Replaces the one made from the return annotation, and is kept verbatim."""
    validate_output: bool
    """A result that does not fit the output schema, or is too large to be checked, is an error (-32603)."""
    timeout: float | None
    """Seconds after which the handler is cancelled and the model is told. They count from when it begins, but for the
    time in which the user is asked (`RequestContext.elicit`), in either era; with ``replay``, each run counts anew."""
    max_concurrency: int | None
    """How many calls run at the same time; further ones wait."""
    requires: Sequence[str]
    """Capabilities that a client must have declared, ``"sampling.tools"`` for example, else the call is refused:
    -32021, in legacy revisions -32600."""
    replay: bool
    """The handler is safe to run again: see `Server.tool`."""


class SamplingOptions(TypedDict, total=False):
    """Of a question to the client's model (2025-11-25 sampling). `None` leaves it to the client."""

    system_prompt: str | None
    """The client may change it or leave it out."""
    model_preferences: ModelPreferences | None
    """Which model would be best: advice."""
    temperature: float | None
    """As the model's provider defines it."""
    stop_sequences: list[str] | None
    """What ends the answer when the model says it."""
    include_context: Literal["none", "thisServer", "allServers"] | None
    """What else of the conversation the model is shown; all but ``"none"`` needs ``sampling.context``."""
    metadata: JSONObject | None
    """For the model's provider, handed on as it is."""
    tools: list[Tool] | None
    """What the model may use; needs ``sampling.tools``. Running them is up to the handler that asks."""
    tool_choice: ToolChoice | None
    """Whether it must use one; needs ``sampling.tools``."""
    meta: JSONObject | None
    """Goes along as ``_meta``. Its keys are checked: `ValueError`."""
