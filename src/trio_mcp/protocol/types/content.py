"""Content blocks: the parts of tool results, prompts and messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Literal, TypeAlias

import attrs

from ...classes import value
from ..fields import JSONObject, as_object, since
from .lifecycle import Icon

Role: TypeAlias = Literal["user", "assistant"]
"""The sender or the recipient of a message in a conversation."""


@value
class Annotations:
    """Hints for the reader: whom the content is for, how much it matters (0 to 1), when it changed (ISO 8601)."""

    audience: list[Role] | None = None
    priority: float | None = None
    last_modified: str | None = since("2025-06-18")


@value
class TextContent:
    """Text."""

    text: str
    type: Literal["text"] = "text"
    annotations: Annotations | None = None
    meta: JSONObject | None = since("2025-06-18")


@value
class ImageContent:
    """An image: ``data`` in base64."""

    data: str
    mime_type: str
    type: Literal["image"] = "image"
    annotations: Annotations | None = None
    meta: JSONObject | None = since("2025-06-18")


@value
class AudioContent:
    """Sound: ``data`` in base64. 2024-11-05 cannot carry it."""

    _SINCE: ClassVar = "2025-03-26"

    data: str
    mime_type: str
    type: Literal["audio"] = "audio"
    annotations: Annotations | None = None
    meta: JSONObject | None = since("2025-06-18")


@value
class ResourceLink:
    """A pointer to a resource. Revisions before 2025-06-18 get the URI as text instead."""

    name: str
    uri: str
    type: Literal["resource_link"] = "resource_link"
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    annotations: Annotations | None = None
    size: int | None = None
    icons: list[Icon] | None = since("2025-11-25")
    meta: JSONObject | None = None


@value
class TextResourceContents:
    """A resource, or part of it, as text."""

    uri: str
    text: str
    mime_type: str | None = None
    meta: JSONObject | None = since("2025-06-18")


@value
class BlobResourceContents:
    """A resource, or part of it, in base64."""

    uri: str
    blob: str
    mime_type: str | None = None
    meta: JSONObject | None = since("2025-06-18")


ResourceContents: TypeAlias = TextResourceContents | BlobResourceContents
"""A resource, or part of it, in either form."""


@value
class EmbeddedResource:
    """A resource carried inside the message."""

    resource: ResourceContents
    type: Literal["resource"] = "resource"
    annotations: Annotations | None = None
    meta: JSONObject | None = since("2025-06-18")


@value
class UnknownContent:
    """A block of a kind that this version doesn't know, or that lacks something: ``raw`` is the block as it came.

    Clients keep such blocks, so that the other blocks of the result can be used. Servers and proxies send ``raw``.
    """

    raw: Any

    @property
    def type(self) -> str:
        """The kind of the block, as the peer names it; empty if it names none."""
        name = as_object(self.raw).get("type")  # pyright: ignore[reportUnknownMemberType]
        return name if isinstance(name, str) else ""


ContentBlock: TypeAlias = TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource | UnknownContent
"""A block of the content of a result or a prompt."""


def text_in(blocks: Iterable[object]) -> str:
    """Join the text blocks among ``blocks`` by newlines."""
    return "\n".join([block.text for block in blocks if isinstance(block, TextContent)])


@value
class ToolUseContent:
    """A call of ``name`` with ``input`` that the model wants (sampling only)."""

    _SINCE: ClassVar = "2025-11-25"

    id: str
    name: str
    input: JSONObject
    type: Literal["tool_use"] = "tool_use"
    meta: JSONObject | None = None


@value
class ToolResultContent:
    """The result of the call ``tool_use_id`` (sampling only)."""

    _SINCE: ClassVar = "2025-11-25"

    tool_use_id: str
    content: list[ContentBlock] = attrs.field(factory=list[ContentBlock])
    type: Literal["tool_result"] = "tool_result"
    structured_content: Any = None
    is_error: bool | None = None
    meta: JSONObject | None = None
