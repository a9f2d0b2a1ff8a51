"""Types for prompts, and for the completion of prompt and resource template arguments."""

from __future__ import annotations

from typing import Literal

from ...classes import value
from ..fields import JSONObject, since
from .content import ContentBlock, Role, text_in
from .lifecycle import CacheScope, Icon


@value
class PromptArgument:
    """An argument of a prompt. Its values are sent as strings."""

    name: str
    """Name of the argument, for programs."""
    title: str | None = since("2025-06-18")
    """Display name, for people; `None` to show ``name``."""
    description: str | None = None
    """What the argument means, in words for people."""
    required: bool | None = None
    """True if the argument must be given; `None` means false."""


@value
class Prompt:
    """A prompt, as a server lists it in ``prompts/list``."""

    name: str
    """Unique name of the prompt, for programs."""
    title: str | None = since("2025-06-18")
    """Display name, for people; `None` to show ``name``."""
    description: str | None = None
    """What the prompt is for."""
    arguments: list[PromptArgument] | None = None
    """Arguments with which clients fill in the prompt; `None` for no arguments."""
    icons: list[Icon] | None = since("2025-11-25")
    """Icons that a client can show to the user."""
    meta: JSONObject | None = since("2025-06-18")
    """The ``_meta`` object, for metadata."""


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
    """A message of a prompt, with its role and content."""

    role: Role
    """The author of the message: ``user`` or ``assistant``."""
    content: ContentBlock
    """Content of the message: one content block."""


@value
class GetPromptResult:
    """Result of ``prompts/get``: the messages of a prompt, with the arguments inserted."""

    messages: list[PromptMessage]
    """The messages of the prompt, in the order of the conversation."""
    description: str | None = None
    """What the prompt is for."""
    meta: JSONObject | None = None
    """The ``_meta`` object, for metadata."""

    @property
    def text(self) -> str:
        """The texts of the text blocks in ``messages``, joined with newlines. Empty if there are no text blocks."""
        return text_in(message.content for message in self.messages)


MAX_COMPLETION_VALUES = 100
"""Maximum number of suggestions per response (2025-11-25 completion, Completion Results)."""


@value
class PromptReference:
    """Names the prompt for which a client requests completion of an argument."""

    name: str
    """Name of the prompt."""
    type: Literal["ref/prompt"] = "ref/prompt"
    """Always ``ref/prompt``."""
    title: str | None = since("2025-06-18")
    """Display name of the prompt, for people."""


@value
class ResourceTemplateReference:
    """Names the resource template for which a client requests completion of an argument."""

    uri: str
    """URI template of the resources, or the URI of one resource."""
    type: Literal["ref/resource"] = "ref/resource"
    """Always ``ref/resource``."""


@value
class CompletionArgument:
    """The argument to complete: its name, and the text that the user has typed so far."""

    name: str
    value: str


@value
class CompletionContext:
    """The values of other arguments of the same prompt or resource template, if they are already known."""

    arguments: dict[str, str] | None = None


@value
class CompleteParams:
    """Parameters of ``completion/complete``, which name the argument to complete."""

    ref: PromptReference | ResourceTemplateReference
    argument: CompletionArgument
    context: CompletionContext | None = since("2025-06-18")


@value
class Completion:
    """Suggestions for the value of an argument, best first.

    A completion has at most 100 suggestions, and ``total`` may be higher.
    """

    values: list[str]
    """The suggestions, best first, at most 100."""
    total: int | None = None
    """Number of all matching values, which can exceed the number sent; `None` if unknown."""
    has_more: bool | None = None
    """True if there are more matching values than ``values`` contains; `None` if not specified."""


@value
class CompleteResult:
    """Result of ``completion/complete``: suggestions for the value of an argument."""

    completion: Completion
    meta: JSONObject | None = None
