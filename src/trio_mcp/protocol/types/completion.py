"""Completion of prompt and resource-template arguments."""

from __future__ import annotations

from typing import Literal

from ...classes import value
from ..fields import JSONObject, since

MAX_COMPLETION_VALUES = 100
"""2025-11-25 completion, Completion Results: maximum 100 items per response."""


@value
class PromptReference:
    """The prompt with the argument."""

    name: str
    type: Literal["ref/prompt"] = "ref/prompt"
    title: str | None = since("2025-06-18")


@value
class ResourceTemplateReference:
    """The resource template with the argument."""

    uri: str
    type: Literal["ref/resource"] = "ref/resource"


@value
class CompletionArgument:
    """The argument's name and what the user typed so far."""

    name: str
    value: str


@value
class CompletionContext:
    """Arguments that are already settled."""

    arguments: dict[str, str] | None = None


@value
class CompleteParams:
    """Parameters of ``completion/complete``: the argument to complete."""

    ref: PromptReference | ResourceTemplateReference
    argument: CompletionArgument
    context: CompletionContext | None = since("2025-06-18")


@value
class Completion:
    """Suggestions, best first, at most 100; ``total`` may be higher."""

    values: list[str]
    total: int | None = None
    has_more: bool | None = None


@value
class CompleteResult:
    """The result of ``completion/complete``."""

    completion: Completion
    meta: JSONObject | None = None
