"""The capabilities that clients and servers declare."""

from __future__ import annotations

from functools import cache
from typing import cast

import attrs

from ...jsonrpc.values import value
from ..fields import JSONObject, since, wire_name


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
class ClientTasks:
    """Tasks the client can run for the server (2025-11-25 only)."""

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
    tasks: ClientTasks | None = since("2025-11-25", until="2025-11-25")
    extensions: JSONObject | None = since("2026-07-28")

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
class ServerTasks:
    """Tasks the server can run for the client (2025-11-25 only)."""

    list: JSONObject | None = None
    cancel: JSONObject | None = None
    requests: JSONObject | None = None


@value
class ServerCapabilities:
    """The capabilities that a server declares, in the results of ``initialize`` and ``server/discover``."""

    experimental: JSONObject | None = None
    logging: JSONObject | None = None
    completions: JSONObject | None = since("2025-03-26")
    prompts: PromptsCapability | None = None
    resources: ResourcesCapability | None = None
    tools: ToolsCapability | None = None
    tasks: ServerTasks | None = since("2025-11-25", until="2025-11-25")
    extensions: JSONObject | None = since("2026-07-28")

    def supports(self, path: str) -> bool:
        """Return whether ``path`` was declared, as in ``"tools.listChanged"``, ``"tasks.requests.tools.call"``."""
        return _declares(self, path)
