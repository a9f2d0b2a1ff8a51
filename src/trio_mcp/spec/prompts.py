"""Prompts: listing and getting them."""

from __future__ import annotations

import attrs

from .content import ContentBlock, Role
from .fields import JSONObject, since
from .lifecycle import CacheScope, Icon

__all__ = [
    "GetPromptParams",
    "GetPromptResult",
    "ListPromptsResult",
    "Prompt",
    "PromptArgument",
    "PromptMessage",
]


@attrs.frozen
class PromptArgument:
    """An argument of a prompt. Its values are strings on the wire."""

    name: str
    title: str | None = since("2025-06-18")
    description: str | None = None
    required: bool | None = None


@attrs.frozen
class Prompt:
    """A prompt as clients see it."""

    name: str
    title: str | None = since("2025-06-18")
    description: str | None = None
    arguments: list[PromptArgument] | None = None
    icons: list[Icon] | None = since("2025-11-25")
    meta: JSONObject | None = since("2025-06-18")


@attrs.frozen
class ListPromptsResult:
    """One page of prompts."""

    prompts: list[Prompt]
    next_cursor: str | None = None
    ttl_ms: int = since("2026-07-28", default=0)
    cache_scope: CacheScope = since("2026-07-28", default="private")
    meta: JSONObject | None = None


@attrs.frozen
class GetPromptParams:
    """Which prompt, with what."""

    name: str
    arguments: dict[str, str] | None = None
    input_responses: JSONObject | None = since("2026-07-28")
    request_state: str | None = since("2026-07-28")


@attrs.frozen
class PromptMessage:
    """One message of a prompt."""

    role: Role
    content: ContentBlock


@attrs.frozen
class GetPromptResult:
    """The messages of a prompt with its arguments filled in."""

    messages: list[PromptMessage]
    description: str | None = None
    meta: JSONObject | None = None
