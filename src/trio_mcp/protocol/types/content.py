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
    """Whom the content is for: ``user``, ``assistant`` or both; `None` if not specified."""
    priority: float | None = None
    """Importance from 0 (optional) to 1 (required); `None` if not specified."""
    last_modified: str | None = since("2025-06-18")
    """Time of the last modification in ISO 8601, such as ``2025-01-12T15:00:58Z``."""


@value
class TextContent:
    """A content block with text."""

    text: str
    """The text itself."""
    type: Literal["text"] = "text"
    """Always ``text``."""
    annotations: Annotations | None = None
    """Hints for the client about how to use or display the content; `None` for no hints."""
    meta: JSONObject | None = since("2025-06-18")
    """The ``_meta`` object, for metadata."""


@value
class ImageContent:
    """A content block with an image: ``data`` is in base64."""

    data: str
    """The bytes of the image, encoded in base64."""
    mime_type: str
    """MIME type of the image, such as ``image/png``."""
    type: Literal["image"] = "image"
    """Always ``image``."""
    annotations: Annotations | None = None
    """Hints for the client about how to use or display the content; `None` for no hints."""
    meta: JSONObject | None = since("2025-06-18")
    """The ``_meta`` object, for metadata."""


@value
class AudioContent:
    """A content block with audio: ``data`` is in base64. Revision 2024-11-05 doesn't have it."""

    _SINCE: ClassVar = "2025-03-26"

    data: str
    """The bytes of the audio, encoded in base64."""
    mime_type: str
    """MIME type of the audio, such as ``audio/wav``."""
    type: Literal["audio"] = "audio"
    """Always ``audio``."""
    annotations: Annotations | None = None
    """Hints for the client about how to use or display the content; `None` for no hints."""
    meta: JSONObject | None = since("2025-06-18")
    """The ``_meta`` object, for metadata."""


@value
class ResourceLink:
    """A content block with a link to a resource. Revisions before 2025-06-18 get the URI as a text block instead."""

    name: str
    """Name of the resource, for programs."""
    uri: str
    """URI of the resource, which a client can read with ``resources/read``."""
    type: Literal["resource_link"] = "resource_link"
    """Always ``resource_link``."""
    title: str | None = None
    """Display name, for people; `None` to show ``name``."""
    description: str | None = None
    """What the resource contains, as a hint for the model."""
    mime_type: str | None = None
    """MIME type of the resource; `None` if unknown."""
    annotations: Annotations | None = None
    """Hints for the client about how to use or display the resource; `None` for no hints."""
    size: int | None = None
    """Size of the raw contents in bytes, before base64 encoding; `None` if unknown."""
    icons: list[Icon] | None = since("2025-11-25")
    """Icons that a client can show to the user."""
    meta: JSONObject | None = None
    """The ``_meta`` object, for metadata."""


@value
class TextResourceContents:
    """The contents of a resource, or a part of them, as text."""

    uri: str
    """URI of the resource or of this part of it."""
    text: str
    """The contents as text."""
    mime_type: str | None = None
    """MIME type of the contents; `None` if unknown."""
    meta: JSONObject | None = since("2025-06-18")
    """The ``_meta`` object, for metadata."""


@value
class BlobResourceContents:
    """The contents of a resource, or a part of them, in base64."""

    uri: str
    """URI of the resource or of this part of it."""
    blob: str
    """The bytes of the contents, encoded in base64."""
    mime_type: str | None = None
    """MIME type of the contents; `None` if unknown."""
    meta: JSONObject | None = since("2025-06-18")
    """The ``_meta`` object, for metadata."""


ResourceContents: TypeAlias = TextResourceContents | BlobResourceContents
"""A resource, or part of it, as text or in base64."""


@value
class EmbeddedResource:
    """A content block that contains a resource."""

    resource: ResourceContents
    """The contents of the resource, as text or in base64."""
    type: Literal["resource"] = "resource"
    """Always ``resource``."""
    annotations: Annotations | None = None
    """Hints for the client about how to use or display the content; `None` for no hints."""
    meta: JSONObject | None = since("2025-06-18")
    """The ``_meta`` object, for metadata."""


@value
class UnknownContent:
    """A content block that can't be parsed, because its type is unknown or a required member is missing.

    ``raw`` is the block as received. Clients keep such blocks, so that the other blocks of the result can be used.
    Servers and proxies send ``raw``.
    """

    raw: Any
    """The content block as received, as JSON data."""

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
    """Unique id of the tool call, which the `ToolResultContent` repeats."""
    name: str
    """Name of the tool to call."""
    input: JSONObject
    """Arguments of the call, which must match the tool's input schema."""
    type: Literal["tool_use"] = "tool_use"
    """Always ``tool_use``."""
    meta: JSONObject | None = None
    """The ``_meta`` object, which clients should keep in later sampling requests."""


@value
class ToolResultContent:
    """A content block with the result of a tool call, for the model. ``tool_use_id`` identifies the call.

    Only for sampling.
    """

    _SINCE: ClassVar = "2025-11-25"

    tool_use_id: str
    """The ``id`` of the `ToolUseContent` that requested the call."""
    content: list[ContentBlock] = attrs.field(factory=list[ContentBlock])
    """Output of the tool as content blocks."""
    type: Literal["tool_result"] = "tool_result"
    """Always ``tool_result``."""
    structured_content: Any = None
    """Output of the tool as JSON data; `None` if there is no structured output."""
    is_error: bool | None = None
    """True if the tool failed; `None` means false."""
    meta: JSONObject | None = None
    """The ``_meta`` object, which clients should keep in later sampling requests."""
