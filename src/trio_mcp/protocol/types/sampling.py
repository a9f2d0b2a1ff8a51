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
    content: SamplingContent | list[SamplingContent]
    meta: JSONObject | None = since("2025-11-25")

    @property
    def text(self) -> str:
        """The texts of the text blocks in ``content``, joined with newlines. Empty if there are no text blocks."""
        return text_in(self.content if isinstance(self.content, list) else [self.content])


@value
class ModelHint:
    """A model name, or a part of one, that a sampling request prefers."""

    name: str | None = None


def _priority(_: Any, attribute: attrs.Attribute[float | None], value: float | None) -> None:
    if value is not None and not 0 <= value <= 1:
        raise ValueError(f"{attribute.name} must be from 0 to 1, not {value}")


@value
class ModelPreferences:
    """Preferences for the model that answers a sampling request, with priorities from 0 to 1."""

    hints: list[ModelHint] | None = None
    cost_priority: float | None = attrs.field(default=None, validator=_priority)
    speed_priority: float | None = attrs.field(default=None, validator=_priority)
    intelligence_priority: float | None = attrs.field(default=None, validator=_priority)


@value
class ToolChoice:
    """Whether the model that answers a sampling request may, must or must not use tools."""

    mode: Literal["auto", "required", "none"] | None = None


@value
class CreateMessageParams:
    """Parameters of ``sampling/createMessage``, which requests an answer of the client's model.

    ``max_tokens`` limits the length of the answer.
    """

    messages: list[SamplingMessage]
    max_tokens: int
    model_preferences: ModelPreferences | None = None
    system_prompt: str | None = None
    include_context: Literal["none", "thisServer", "allServers"] | None = None
    temperature: float | None = None
    stop_sequences: list[str] | None = None
    metadata: JSONObject | None = None
    tools: list[Tool] | None = since("2025-11-25")
    tool_choice: ToolChoice | None = since("2025-11-25")
    task: TaskMetadata | None = since("2025-11-25", until="2025-11-25")
    meta: JSONObject | None = since("2024-11-05", until="2025-11-25")


def _nothing() -> JSONObject:
    return {}  # don't write dict[str, Any](), which takes seven times as long


@value
class CreateMessageResult:
    """Result of ``sampling/createMessage``: the model's answer.

    ``stop_reason`` can also have values that this version doesn't know. ``extra`` contains unknown members.
    """

    role: Role
    content: SamplingContent | list[SamplingContent]
    model: str
    stop_reason: str | None = None
    meta: JSONObject | None = None
    extra: JSONObject = attrs.field(factory=_nothing)

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
    name: str | None = None
    meta: JSONObject | None = since("2025-06-18")


@value
class ListRootsResult:
    """Result of ``roots/list``: the directories and files that the client shares."""

    roots: list[Root]
    meta: JSONObject | None = since("2024-11-05", until="2025-11-25")
