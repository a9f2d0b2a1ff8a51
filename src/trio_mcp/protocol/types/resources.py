"""Types for resources and resource templates."""

from __future__ import annotations

from ...classes import value
from ..fields import JSONObject, since
from .content import Annotations, ResourceContents, TextResourceContents
from .lifecycle import CacheScope, Icon


@value
class Resource:
    """A resource, as a server lists it in ``resources/list``.

    ``size`` is in bytes, before any encoding.
    """

    uri: str
    name: str
    title: str | None = since("2025-06-18")
    description: str | None = None
    mime_type: str | None = None
    annotations: Annotations | None = None
    size: int | None = None
    icons: list[Icon] | None = since("2025-11-25")
    meta: JSONObject | None = since("2025-06-18")


@value
class ResourceTemplate:
    """A family of resources, with an RFC 6570 template for their URIs."""

    uri_template: str
    name: str
    title: str | None = since("2025-06-18")
    description: str | None = None
    mime_type: str | None = None
    annotations: Annotations | None = None
    icons: list[Icon] | None = since("2025-11-25")
    meta: JSONObject | None = since("2025-06-18")


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
    ttl_ms: int | None = since("2026-07-28")
    cache_scope: CacheScope | None = since("2026-07-28")
    meta: JSONObject | None = None

    @property
    def text(self) -> str:
        """The texts of all parts, joined with newlines. Empty if there are no text parts."""
        return "\n".join(part.text for part in self.contents if isinstance(part, TextResourceContents))


@value
class SubscribeParams:
    """Parameters of ``resources/subscribe`` and ``resources/unsubscribe``: the URI of the resource."""

    uri: str
