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
    """Annotations of content for the client: its audience, its importance (0 to 1), and when it was modified.

    The time is in ISO 8601.
    """

    audience: list[Role] | None = None
    priority: float | None = None
    last_modified: str | None = since("2025-06-18")


@value
class TextContent:
    """A content block with text."""

    text: str
    type: Literal["text"] = "text"
    annotations: Annotations | None = None
    meta: JSONObject | None = since("2025-06-18")


@value
class ImageContent:
    """A content block with an image: ``data`` is in base64."""

    data: str
    mime_type: str
    type: Literal["image"] = "image"
    annotations: Annotations | None = None
    meta: JSONObject | None = since("2025-06-18")


@value
class AudioContent:
    """A content block with audio: ``data`` is in base64. Revision 2024-11-05 doesn't have it."""

    _SINCE: ClassVar = "2025-03-26"

    data: str
    mime_type: str
    type: Literal["audio"] = "audio"
    annotations: Annotations | None = None
    meta: JSONObject | None = since("2025-06-18")


@value
class ResourceLink:
    """A content block with a link to a resource. Revisions before 2025-06-18 get the URI as a text block instead."""

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
    """The contents of a resource, or a part of them, as text."""

    uri: str
    text: str
    mime_type: str | None = None
    meta: JSONObject | None = since("2025-06-18")


@value
class BlobResourceContents:
    """The contents of a resource, or a part of them, in base64."""

    uri: str
    blob: str
    mime_type: str | None = None
    meta: JSONObject | None = since("2025-06-18")


ResourceContents: TypeAlias = TextResourceContents | BlobResourceContents
"""A resource, or part of it, as text or in base64."""


@value
class EmbeddedResource:
    """A content block that contains a resource."""

    resource: ResourceContents
    type: Literal["resource"] = "resource"
    annotations: Annotations | None = None
    meta: JSONObject | None = since("2025-06-18")


@value
class UnknownContent:
    """A content block that can't be parsed, because its type is unknown or a required member is missing.

    ``raw`` is the block as received. Clients keep such blocks, so that the other blocks of the result can be used.
    Servers and proxies send ``raw``.
    """

    raw: Any

    @property
    def type(self) -> str:
        """The type of the content block, as received. Empty if the block has no type."""
        name = as_object(self.raw).get("type")  # pyright: ignore[reportUnknownMemberType]
        return name if isinstance(name, str) else ""


ContentBlock: TypeAlias = TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource | UnknownContent
"""A content block of a result or a prompt."""


def text_in(blocks: Iterable[object]) -> str:
    """Return the texts of the text blocks in ``blocks``, joined with newlines."""
    return "\n".join([block.text for block in blocks if isinstance(block, TextContent)])


@value
class ToolUseContent:
    """A content block in which the model requests a call of the tool ``name`` with the arguments ``input``.

    Only for sampling.
    """

    _SINCE: ClassVar = "2025-11-25"

    id: str
    name: str
    input: JSONObject
    type: Literal["tool_use"] = "tool_use"
    meta: JSONObject | None = None


@value
class ToolResultContent:
    """A content block with the result of a tool call, for the model. ``tool_use_id`` identifies the call.

    Only for sampling.
    """

    _SINCE: ClassVar = "2025-11-25"

    tool_use_id: str
    content: list[ContentBlock] = attrs.field(factory=list[ContentBlock])
    type: Literal["tool_result"] = "tool_result"
    structured_content: Any = None
    is_error: bool | None = None
    meta: JSONObject | None = None
