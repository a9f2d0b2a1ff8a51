"""Types for prompts, and for the completion of arguments of prompts and resource templates."""

from __future__ import annotations

from typing import Literal

from ...classes import value
from ..fields import JSONObject, since
from .content import ContentBlock, Role, text_in
from .lifecycle import CacheScope, Icon


@value
class PromptArgument:
    """An argument of a prompt. Its values are strings on the wire."""

    name: str
    title: str | None = since("2025-06-18")
    description: str | None = None
    required: bool | None = None


@value
class Prompt:
    """A prompt as clients see it in ``prompts/list``."""

    name: str
    title: str | None = since("2025-06-18")
    description: str | None = None
    arguments: list[PromptArgument] | None = None
    icons: list[Icon] | None = since("2025-11-25")
    meta: JSONObject | None = since("2025-06-18")


@value
class ListPromptsResult:
    """Result of ``prompts/list``: a page of prompts."""

    prompts: list[Prompt]
    next_cursor: str | None = None
    ttl_ms: int = since("2026-07-28", default=0)
    cache_scope: CacheScope = since("2026-07-28", default="private")
    meta: JSONObject | None = None


@value
class GetPromptParams:
    """Parameters of ``prompts/get``: the prompt to get, and its arguments."""

    name: str
    arguments: dict[str, str] | None = None
    input_responses: JSONObject | None = since("2026-07-28")
    request_state: str | None = since("2026-07-28")


@value
class PromptMessage:
    """A message of a prompt."""

    role: Role
    content: ContentBlock


@value
class GetPromptResult:
    """Result of ``prompts/get``: the messages of a prompt with its arguments filled in."""

    messages: list[PromptMessage]
    description: str | None = None
    meta: JSONObject | None = None

    @property
    def text(self) -> str:
        """The text blocks of ``messages``, joined with newlines. Empty if there are no text blocks."""
        return text_in(message.content for message in self.messages)


MAX_COMPLETION_VALUES = 100
"""Maximum number of suggestions per response (2025-11-25 completion, Completion Results)."""


@value
class PromptReference:
    """The prompt whose argument is completed."""

    name: str
    type: Literal["ref/prompt"] = "ref/prompt"
    title: str | None = since("2025-06-18")


@value
class ResourceTemplateReference:
    """The resource template whose argument is completed."""

    uri: str
    type: Literal["ref/resource"] = "ref/resource"


@value
class CompletionArgument:
    """The argument to complete: its name, and what the user has typed so far."""

    name: str
    value: str


@value
class CompletionContext:
    """Other arguments of the completion, whose values are already known."""

    arguments: dict[str, str] | None = None


@value
class CompleteParams:
    """Parameters of ``completion/complete``: the argument to complete."""

    ref: PromptReference | ResourceTemplateReference
    argument: CompletionArgument
    context: CompletionContext | None = since("2025-06-18")


@value
class Completion:
    """Suggestions for an argument, best first, at most 100. ``total`` may be higher."""

    values: list[str]
    total: int | None = None
    has_more: bool | None = None


@value
class CompleteResult:
    """The result of ``completion/complete``."""

    completion: Completion
    meta: JSONObject | None = None
