"""Types for opening a connection: ``initialize``, ``server/discover``, the descriptions of client and server programs,
and capabilities.

This module also has the hints of cacheable results, because ``server/discover`` is the first of them (2026-07-28
caching).
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
    """The client capability ``roots``, with which a server can ask for the client's directories and files."""

    list_changed: bool | None = since("2024-11-05", until="2025-11-25")
    """True if the client notifies the server when its roots change (legacy revisions only)."""


@value
class Sampling:
    """The client capability ``sampling``, with which a server can request answers of the client's model."""

    context: JSONObject | None = since("2025-11-25")
    """Empty object if the client supports ``include_context`` in sampling requests; `None` if it doesn't."""
    tools: JSONObject | None = since("2025-11-25")
    """Empty object if the client supports tools in sampling requests; `None` if it doesn't."""


@value
class Elicitation:
    """The client capability ``elicitation``, with which a server can ask the client's user for input.

    An empty object declares only ``form`` (2025-11-25 elicitation, Capabilities).
    """

    form: JSONObject | None = since("2025-11-25")
    """Empty object if the client can show forms; this is implied if ``url`` is `None` too."""
    url: JSONObject | None = since("2025-11-25")
    """Empty object if the client can send the user to a URL; `None` if it can't."""


@value
class TasksCapability:
    """The capability ``tasks`` of a client or server (2025-11-25 only).

    It says that requests of the other side can run as background tasks.
    """

    list: JSONObject | None = None
    """Empty object if ``tasks/list`` is supported; `None` if it isn't."""
    cancel: JSONObject | None = None
    """Empty object if ``tasks/cancel`` is supported; `None` if it isn't."""
    requests: JSONObject | None = None
    """The requests that can run as tasks, such as ``{"tools": {"call": {}}}``."""


@value
class ClientCapabilities:
    """The capabilities that a client declares, in ``initialize`` (legacy protocol revisions) or in each request (modern
    revisions)."""

    experimental: JSONObject | None = None
    """Settings of non-standard capabilities, keyed by their names."""
    roots: Roots | None = None
    """Present if the client shares directories or files with servers."""
    sampling: Sampling | None = None
    """Present if the client answers sampling requests with its model."""
    elicitation: Elicitation | None = since("2025-06-18")
    """Present if the client can ask its user for input."""
    tasks: TasksCapability | None = since("2025-11-25", until="2025-11-25")
    """Present if requests to the client can run as background tasks (2025-11-25 only)."""
    extensions: JSONObject | None = None
    """The settings of each extension, keyed by its identifier. The schemas of legacy revisions lack this member, but
    SEP-2133 uses it in ``initialize``."""

    def supports(self, path: str) -> bool:
        """Return true if the client declared the capability ``path``, such as ``"sampling"``, ``"sampling.tools"`` or
        ``"elicitation.url"``.

        ``path`` may contain JSON names or attribute names. An empty ``elicitation`` object declares only
        ``elicitation.form``.
        """
        return _declares(self, path)


@cache
def _attributes(kind: type) -> dict[str, str]:
    """Return a dict that maps the attribute names and JSON names of a capability class to its attribute names."""
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
        if path in members:  # check the whole path first, because an extension name contains dots
            name, rest = path, ""
        member = members.get(name)
    if member is None or member is False:
        return False
    return not rest or _declares(member, rest)


@value
class PromptsCapability:
    """The server capability ``prompts``, which a server declares if it has prompts."""

    list_changed: bool | None = None
    """True if the server notifies clients when its list of prompts changes."""


@value
class ResourcesCapability:
    """The server capability ``resources``, which a server declares if it has resources."""

    subscribe: bool | None = None
    """True if clients can subscribe to changes of a resource's contents."""
    list_changed: bool | None = None
    """True if the server notifies clients when its list of resources changes."""


@value
class ToolsCapability:
    """The server capability ``tools``, which a server declares if it has tools."""

    list_changed: bool | None = None
    """True if the server notifies clients when its list of tools changes."""


@value
class ServerCapabilities:
    """The capabilities that a server declares, in the results of ``initialize`` and ``server/discover``."""

    experimental: JSONObject | None = None
    """Settings of non-standard capabilities, keyed by their names."""
    logging: JSONObject | None = None
    """Empty object if the server sends log messages; `None` if it doesn't."""
    completions: JSONObject | None = since("2025-03-26")
    """Empty object if the server suggests values for arguments; `None` if it doesn't."""
    prompts: PromptsCapability | None = None
    """Present if the server has prompts."""
    resources: ResourcesCapability | None = None
    """Present if the server has resources."""
    tools: ToolsCapability | None = None
    """Present if the server has tools."""
    tasks: TasksCapability | None = since("2025-11-25", until="2025-11-25")
    """Present if requests to the server can run as background tasks (2025-11-25 only)."""
    extensions: JSONObject | None = None
    """The settings of each extension, keyed by its identifier. See `ClientCapabilities`."""

    def supports(self, path: str) -> bool:
        """Return true if the server declared the capability ``path``, such as ``"tools.listChanged"`` or
        ``"tasks.requests.tools.call"``."""
        return _declares(self, path)


CacheScope: TypeAlias = Literal["public", "private"]
"""Who may see a cached result: everyone, or only the user who requested it."""


@value
class Icon:
    """An icon to show beside a name."""

    src: str
    """URI of the image: an http, https or ``data:`` URI."""
    mime_type: str | None = None
    """MIME type of the image, such as ``image/png``; `None` for the type that ``src`` has."""
    sizes: list[str] | None = None
    """Sizes such as ``48x48``, or ``any`` for scalable images; `None` for all sizes."""
    theme: Literal["light", "dark"] | None = None
    """The background that suits the icon, ``light`` or ``dark``; `None` for both."""


@value
class Implementation:
    """The name and version of a client or server program, as the program itself reports them.

    Display them, but don't base decisions on them.
    """

    name: str
    """Name of the program, such as ``weather-server``."""
    version: str
    """Version of the program."""
    title: str | None = since("2025-06-18")
    """Display name, for people; `None` to show ``name``."""
    description: str | None = since("2025-11-25")
    """What the program does, in words for people."""
    icons: list[Icon] | None = since("2025-11-25")
    """Icons that a client can show to the user."""
    website_url: str | None = since("2025-11-25")
    """URL of the program's website."""


@value
class EmptyParams:
    """Empty parameters, for requests that need no parameters."""


@value
class EmptyResult:
    """An empty result, for requests that return no data."""

    meta: JSONObject | None = None


@value
class InitializeParams:
    """Parameters of ``initialize``, the first request in legacy protocol revisions (2025-11-25 lifecycle,
    Initialization)."""

    protocol_version: str
    capabilities: ClientCapabilities
    client_info: Implementation


@value
class InitializeResult:
    """Result of ``initialize`` (legacy protocol revisions): the server's protocol revision, capabilities and name."""

    protocol_version: str
    capabilities: ServerCapabilities
    server_info: Implementation
    instructions: str | None = None
    meta: JSONObject | None = None


def with_version(result: Any, offered: Any) -> Any:
    """Return a copy of the ``initialize`` result ``result`` with the protocol version ``offered``, if its version is
    missing.

    If the server sent its capabilities or name without a protocol version, the ``offered`` version is added.
    """
    members = as_object(result)
    is_described = "capabilities" in members or "serverInfo" in members
    is_named = not is_described or members.get("protocolVersion") is not None
    return result if is_named else {**members, "protocolVersion": offered}


@value
class DiscoverResult:
    """Result of ``server/discover`` (modern protocol revisions): the server's protocol revisions and capabilities."""

    supported_versions: list[str]
    capabilities: ServerCapabilities
    instructions: str | None = None
    ttl_ms: int = 0
    cache_scope: CacheScope = "private"
    meta: JSONObject | None = None


def ttl_ms_in(result: JSONObject) -> int:
    """Return for how many milliseconds a client may cache ``result``.

    Return 0 for a missing or invalid value. TTL field: absent and negative SHOULD be 0. The schema has a number there,
    so fractions are valid.
    """
    ttl: Any = result.get("ttlMs")
    if type(ttl) is float and math.isfinite(ttl):
        ttl = int(ttl)
    return ttl if type(ttl) is int and ttl > 0 else 0


def scope_in(result: JSONObject) -> CacheScope:
    """Return the cache scope of ``result``: ``public`` if other users may see the cached result, otherwise ``private``.

    For a missing or invalid value, return ``private``, the safe scope.
    """
    return "public" if result.get("cacheScope") == "public" else "private"


def with_good_hints(result: JSONObject) -> JSONObject:
    """Return ``result`` with its invalid cache hints (lifetime and scope) replaced by the safest values.

    An invalid lifetime becomes 0, and an invalid scope ``private``.
    """
    good: JSONObject = {}
    if "ttlMs" in result:
        good["ttlMs"] = ttl_ms_in(result)
    if "cacheScope" in result:
        good["cacheScope"] = scope_in(result)
    return {**result, **good} if good else result
