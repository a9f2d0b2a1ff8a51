"""Opening a connection: ``initialize``, ``server/discover``, and the software on both sides."""

from __future__ import annotations

from typing import Literal

from ...jsonrpc.values import value
from ..fields import JSONObject, since
from .capabilities import ClientCapabilities, ServerCapabilities

CacheScope = Literal["public", "private"]


@value
class Icon:
    """An image to show beside a name. ``src`` is an https or data URI; the theme is ``light`` or ``dark``."""

    src: str
    mime_type: str | None = None
    sizes: list[str] | None = None
    theme: Literal["light", "dark"] | None = None


@value
class Implementation:
    """Name and version of a piece of software. Self-reported: for display, never for decisions."""

    name: str
    version: str
    title: str | None = since("2025-06-18")
    description: str | None = since("2025-11-25")
    icons: list[Icon] | None = since("2025-11-25")
    website_url: str | None = since("2025-11-25")


@value
class EmptyParams:
    """A request without parameters of its own."""


@value
class EmptyResult:
    """The result of a request that only had to succeed."""

    meta: JSONObject | None = None


@value
class InitializeParams:
    """The opening of a legacy connection (2025-11-25 lifecycle, Initialization)."""

    protocol_version: str
    capabilities: ClientCapabilities
    client_info: Implementation


@value
class InitializeResult:
    """The server's side of the legacy handshake."""

    protocol_version: str
    capabilities: ServerCapabilities
    server_info: Implementation
    instructions: str | None = None
    meta: JSONObject | None = None


@value
class DiscoverResult:
    """The revisions and capabilities of a modern server (2026-07-28 server/discover)."""

    supported_versions: list[str]
    capabilities: ServerCapabilities
    instructions: str | None = None
    ttl_ms: int = 0
    cache_scope: CacheScope = "private"
    meta: JSONObject | None = None
