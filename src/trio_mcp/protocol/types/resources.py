"""Types for resources and resource templates."""

from __future__ import annotations

from ...classes import value
from ..fields import JSONObject, since
from .content import Annotations, ResourceContents, TextResourceContents
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
