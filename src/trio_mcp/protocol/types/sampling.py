"""Sampling and roots: a server requests a message from the client's model, or the directories that the client
shares."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import attrs

from ...classes import value
from ..fields import JSONObject, since
from .content import AudioContent, ImageContent, Role, TextContent, ToolResultContent, ToolUseContent, text_in
from .tools import TaskMetadata, Tool

SamplingContent: TypeAlias = TextContent | ImageContent | AudioContent | ToolUseContent | ToolResultContent


@value
class SamplingMessage:
    """A message of the conversation in a sampling request.

    Several content blocks are allowed since 2025-11-25.
    """

    role: Role
    """The author of the message: ``user`` or ``assistant``."""
    content: SamplingContent | list[SamplingContent]
    """Content of the message: one content block or a list of them."""
    meta: JSONObject | None = since("2025-11-25")
    """The ``_meta`` object, for metadata."""

    @property
    def text(self) -> str:
        """The texts of the text blocks in ``content``, joined with newlines. Empty if there are no text blocks."""
        return text_in(self.content if isinstance(self.content, list) else [self.content])


@value
class ModelHint:
    """A model name, or a part of one, that a sampling request prefers."""

    name: str | None = None
    """Part of a model name, such as ``sonnet``; the client may choose a similar model."""


def _priority(_: Any, attribute: attrs.Attribute[float | None], value: float | None) -> None:
    if value is not None and not 0 <= value <= 1:
        raise ValueError(f"{attribute.name} must be from 0 to 1, not {value}")


@value
class ModelPreferences:
    """Preferences for the model that answers a sampling request, with priorities from 0 to 1."""

    hints: list[ModelHint] | None = None
    """Preferred models, best first; the client should try them before it weighs the priorities."""
    cost_priority: float | None = attrs.field(default=None, validator=_priority)
    """Importance of low cost, from 0 (not important) to 1; `None` if not specified."""
    speed_priority: float | None = attrs.field(default=None, validator=_priority)
    """Importance of fast answers, from 0 (not important) to 1; `None` if not specified."""
    intelligence_priority: float | None = attrs.field(default=None, validator=_priority)
    """Importance of advanced abilities, from 0 (not important) to 1; `None` if not specified."""


@value
class ToolChoice:
    """Whether the model that answers a sampling request may, must or must not use tools."""

    mode: Literal["auto", "required", "none"] | None = None
    """Whether the model decides (``auto``), must (``required``) or must not (``none``) use tools; `None` means
    ``auto``."""


@value
class CreateMessageParams:
    """Parameters of ``sampling/createMessage``, which requests an answer of the client's model."""

    messages: list[SamplingMessage]
    """The conversation that the model continues."""
    max_tokens: int
    """Maximum number of tokens that the model generates."""
    model_preferences: ModelPreferences | None = None
    """Preferences for the model, which the client may ignore; `None` for no preferences."""
    system_prompt: str | None = None
    """System prompt, which the client may change or omit."""
    include_context: Literal["none", "thisServer", "allServers"] | None = None
    """The servers whose context the client adds to the prompt; `None` means ``none``."""
    temperature: float | None = None
    """Temperature, as defined by the model's provider; `None` lets the client choose."""
    stop_sequences: list[str] | None = None
    """Strings at which the model stops generating."""
    metadata: JSONObject | None = None
    """Data for the model's provider, passed on unchanged."""
    tools: list[Tool] | None = since("2025-11-25")
    """Tools that the model may use; the server runs them."""
    tool_choice: ToolChoice | None = since("2025-11-25")
    """Whether the model may, must or must not use the tools; `None` lets it decide."""
    task: TaskMetadata | None = since("2025-11-25", until="2025-11-25")
    """Runs the request as a background task (2025-11-25 only); `None` for a normal request."""
    meta: JSONObject | None = since("2024-11-05", until="2025-11-25")
    """The ``_meta`` object, for metadata (legacy revisions only)."""


def _nothing() -> JSONObject:
    return {}  # don't write dict[str, Any](), which takes seven times as long


@value
class CreateMessageResult:
    """Result of ``sampling/createMessage``: the model's answer.

    ``stop_reason`` can also have values that this version doesn't know. ``extra`` contains unknown members.
    """

    role: Role
    """The author of the answer, normally ``assistant``."""
    content: SamplingContent | list[SamplingContent]
    """Content of the answer: one content block or a list of them."""
    model: str
    """Name of the model that generated the answer."""
    stop_reason: str | None = None
    """Why the model stopped: ``endTurn``, ``stopSequence``, ``maxTokens``, ``toolUse`` or another reason."""
    meta: JSONObject | None = None
    """The ``_meta`` object, for metadata."""
    extra: JSONObject = attrs.field(factory=_nothing)
    """Members of the result that the specification doesn't define, by their JSON names."""

    @property
    def text(self) -> str:
        """The texts of the text blocks in ``content``, joined with newlines. Empty if there are no text blocks."""
        return text_in(self.content if isinstance(self.content, list) else [self.content])


@value
class Root:
    """A directory or file that a client shares with a server.

    It has a ``file://`` URI, and a name to show for it.
    """

    uri: str
    """URI of the directory or file, which begins with ``file://``."""
    name: str | None = None
    """Name to show for the root; `None` if it has no name."""
    meta: JSONObject | None = since("2025-06-18")
    """The ``_meta`` object, for metadata."""


@value
class ListRootsResult:
    """Result of ``roots/list``: the directories and files that the client shares."""

    roots: list[Root]
    meta: JSONObject | None = since("2024-11-05", until="2025-11-25")
