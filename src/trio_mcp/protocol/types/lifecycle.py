"""Opening a connection: ``initialize``, ``server/discover``, the software on both sides, and the
capabilities that clients and servers declare.

Besides, the hints of cacheable results, among which ``server/discover`` is the first (2026-07-28 caching).
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, Literal, TypeAlias, cast

import attrs

from ...classes import value
from ..fields import JSONObject, as_object, since, wire_name


@value
class Roots:
    """The client can list its roots; ``list_changed``: the client announces changes of the roots (legacy revisions)."""

    list_changed: bool | None = since("2024-11-05", until="2025-11-25")


@value
class Sampling:
    """The client can sample; ``context`` and ``tools`` are sub-capabilities (an empty object: yes)."""

    context: JSONObject | None = since("2025-11-25")
    tools: JSONObject | None = since("2025-11-25")


@value
class Elicitation:
    """The client can ask its user. Empty means ``form`` only (2025-11-25 elicitation, Capabilities)."""

    form: JSONObject | None = since("2025-11-25")
    url: JSONObject | None = since("2025-11-25")


@value
class TasksCapability:
    """Tasks that the declaring side can run for the other (2025-11-25 only)."""

    list: JSONObject | None = None
    cancel: JSONObject | None = None
    requests: JSONObject | None = None


@value
class ClientCapabilities:
    """The capabilities that a client declares, in ``initialize`` or on every modern request."""

    experimental: JSONObject | None = None
    roots: Roots | None = None
    sampling: Sampling | None = None
    elicitation: Elicitation | None = since("2025-06-18")
    tasks: TasksCapability | None = since("2025-11-25", until="2025-11-25")
    extensions: JSONObject | None = None
    """The settings of each extension, by its identifier. The schemas of legacy revisions lack this member, but SEP-2133
    shows it in ``initialize``."""

    def supports(self, path: str) -> bool:
        """Return whether ``path`` was declared, as in ``"sampling"``, ``"sampling.tools"``, ``"elicitation.url"``.

        Names are those of the wire or of the attributes. A bare ``elicitation`` object supports only
        ``elicitation.form``.
        """
        return _declares(self, path)


@cache
def _attributes(kind: type) -> dict[str, str]:
    """Return the attributes of a capability class, by their own names and by those of the wire."""
    names = [field.name for field in attrs.fields(kind)] if attrs.has(kind) else []
    return {spelling: name for name in names for spelling in (name, wire_name(name))}


def _declares(owner: object, path: str) -> bool:
    name, _, rest = path.partition(".")
    member: object = None
    if (attribute := _attributes(type(owner)).get(name)) is not None:
        member = getattr(owner, attribute)
        if member is None and name == "form" and isinstance(owner, Elicitation) and owner.url is None:
            member = {}
    elif isinstance(owner, dict):
        members = cast("JSONObject", owner)
        if path in members:  # the names of extensions hold dots themselves
            name, rest = path, ""
        member = members.get(name)
    if member is None or member is False:
        return False
    return not rest or _declares(member, rest)


@value
class PromptsCapability:
    """The server has prompts; ``list_changed``: the server announces changes of the list."""

    list_changed: bool | None = None


@value
class ResourcesCapability:
    """The server has resources; ``subscribe``: the server announces changes of one resource."""

    subscribe: bool | None = None
    list_changed: bool | None = None


@value
class ToolsCapability:
    """The server has tools; ``list_changed``: the server announces changes of the list."""

    list_changed: bool | None = None


@value
class ServerCapabilities:
    """The capabilities that a server declares, in the results of ``initialize`` and ``server/discover``."""

    experimental: JSONObject | None = None
    logging: JSONObject | None = None
    completions: JSONObject | None = since("2025-03-26")
    prompts: PromptsCapability | None = None
    resources: ResourcesCapability | None = None
    tools: ToolsCapability | None = None
    tasks: TasksCapability | None = since("2025-11-25", until="2025-11-25")
    extensions: JSONObject | None = None
    """The settings of each extension, by its identifier. See `ClientCapabilities`."""

    def supports(self, path: str) -> bool:
        """Return whether ``path`` was declared, as in ``"tools.listChanged"``, ``"tasks.requests.tools.call"``."""
        return _declares(self, path)


CacheScope: TypeAlias = Literal["public", "private"]
"""Whom a cached answer may be shown to: everybody, or only the user who asked."""


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


def with_version(result: Any, offered: Any) -> Any:
    """Return a result of ``initialize``. If a server describes itself and names no version, it has taken the version
    ``offered``, as far as anything is known."""
    members = as_object(result)
    is_described = "capabilities" in members or "serverInfo" in members
    is_named = not is_described or members.get("protocolVersion") is not None
    return result if is_named else {**members, "protocolVersion": offered}


@value
class DiscoverResult:
    """The revisions and capabilities of a modern server (2026-07-28 server/discover)."""

    supported_versions: list[str]
    capabilities: ServerCapabilities
    instructions: str | None = None
    ttl_ms: int = 0
    cache_scope: CacheScope = "private"
    meta: JSONObject | None = None


def ttl_ms_in(result: JSONObject) -> int:
    """Return the milliseconds for which a result is fresh; 0 for a missing or senseless value.

    TTL field: absent and negative SHOULD be 0. The schema has a number there, so fractions are no fault.
    """
    ttl: Any = result.get("ttlMs")
    if type(ttl) is float and math.isfinite(ttl):
        ttl = int(ttl)
    return ttl if type(ttl) is int and ttl > 0 else 0


def scope_in(result: JSONObject) -> CacheScope:
    """Return who may see a result; ``private``, the safe scope, for a missing or senseless value."""
    return "public" if result.get("cacheScope") == "public" else "private"


def with_good_hints(result: JSONObject) -> JSONObject:
    """Return ``result`` with each hint replaced by the value it counts as: a bad hint does not spoil the result."""
    good: JSONObject = {}
    if "ttlMs" in result:
        good["ttlMs"] = ttl_ms_in(result)
    if "cacheScope" in result:
        good["cacheScope"] = scope_in(result)
    return {**result, **good} if good else result
