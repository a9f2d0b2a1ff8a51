"""Types for resources, resource templates and prompts, and for the completion of their arguments.

For tools, see `tools.py`.
"""

from __future__ import annotations

from typing import Literal

from ...classes import value
from ..fields import JSONObject, since
from .content import Annotations, ContentBlock, ResourceContents, Role, TextResourceContents, text_in
from .lifecycle import CacheScope, Icon


@value
class Resource:
    """A resource, as a server lists it in ``resources/list``."""

    uri: str
    """URI that identifies the resource."""
    name: str
    """Name of the resource, for programs."""
    title: str | None = since("2025-06-18")
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
    meta: JSONObject | None = since("2025-06-18")
    """The ``_meta`` object, for metadata."""


@value
class ResourceTemplate:
    """A family of resources, with an RFC 6570 template for their URIs."""

    uri_template: str
    """Template for the URIs of the resources, such as ``file:///{path}`` (RFC 6570)."""
    name: str
    """Name of the template, for programs."""
    title: str | None = since("2025-06-18")
    """Display name, for people; `None` to show ``name``."""
    description: str | None = None
    """What the resources contain, as a hint for the model."""
    mime_type: str | None = None
    """MIME type of all these resources; `None` if unknown or if their types differ."""
    annotations: Annotations | None = None
    """Hints for the client about how to use or display the resources; `None` for no hints."""
    icons: list[Icon] | None = since("2025-11-25")
    """Icons that a client can show to the user."""
    meta: JSONObject | None = since("2025-06-18")
    """The ``_meta`` object, for metadata."""


@value
class PageParams:
    """Parameters of a list request: the cursor from the previous page.

    Without a cursor, the first page is requested.
    """

    cursor: str | None = None


@value
class ListResourcesResult:
    """Result of ``resources/list``: a page of resources."""

    resources: list[Resource]
    next_cursor: str | None = None
    ttl_ms: int = since("2026-07-28", default=0)
    cache_scope: CacheScope = since("2026-07-28", default="private")
    meta: JSONObject | None = None


@value
class ListResourceTemplatesResult:
    """Result of ``resources/templates/list``: a page of resource templates."""

    resource_templates: list[ResourceTemplate]
    next_cursor: str | None = None
    ttl_ms: int = since("2026-07-28", default=0)
    cache_scope: CacheScope = since("2026-07-28", default="private")
    meta: JSONObject | None = None


@value
class ReadResourceParams:
    """Parameters of ``resources/read``: the URI of the resource to read."""

    uri: str
    input_responses: JSONObject | None = since("2026-07-28")
    request_state: str | None = since("2026-07-28")


@value
class ReadResourceResult:
    """Result of ``resources/read``: the contents of a resource, in one or more parts.

    Cache hints are `None` if absent. In modern revisions, the server adds them if the handler doesn't.
    """

    contents: list[ResourceContents]
    """The parts of the contents, each with its URI, as text or in base64."""
    ttl_ms: int | None = since("2026-07-28")
    """Milliseconds for which clients may cache the result; `None` if not specified."""
    cache_scope: CacheScope | None = since("2026-07-28")
    """``public`` if caches may share the result between users, else ``private``; `None` if not specified."""
    meta: JSONObject | None = None
    """The ``_meta`` object, for metadata."""

    @property
    def text(self) -> str:
        """The texts of all parts, joined with newlines. Empty if there are no text parts."""
        return "\n".join(part.text for part in self.contents if isinstance(part, TextResourceContents))


@value
class SubscribeParams:
    """Parameters of ``resources/subscribe`` and ``resources/unsubscribe``: the URI of the resource."""

    uri: str


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
