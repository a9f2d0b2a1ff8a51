"""MCP Apps: the extension for tools with a user interface, for servers and hosts (SEP-1865)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import attrs

from ...classes import define, frozen
from ...protocol.extensions import Extension
from ...protocol.types.apps import APP_TYPE, APPS_EXTENSION, UI

if TYPE_CHECKING:
    from .resources import RegisteredResource, Resources


@frozen
class AppsSettings:
    """The settings with which a host (client) declares the MCP Apps extension."""

    mime_types: list[str]
    """MIME types of the app views that the host can display."""


@define(eq=False)
class Apps(Extension[dict[str, Any], AppsSettings]):
    """The MCP Apps extension, ``io.modelcontextprotocol/ui``: hosts show the views (user interfaces) of tools to the
    user.

        apps = Apps()
        server = Server("weather", extensions=[apps])

        @server.tool(ui=UI("ui://weather/dashboard"))
        async def weather(city: str) -> str: ...

        @server.resource("ui://weather/dashboard", app=AppPolicy())
        async def dashboard() -> str: ...

    ``ctx.client_extension(apps)`` is `None` for a client that shows no views. A host that shows views declares it:
    ``open_group(members, extensions=[Apps()])``. ``server`` and ``since`` have the same meaning as in `Extension`.
    """

    name: str = attrs.field(default=APPS_EXTENSION, init=False)
    """Always ``io.modelcontextprotocol/ui``."""
    client: AppsSettings = attrs.field(factory=lambda: AppsSettings([APP_TYPE]), init=False)
    """Settings that hosts declare: the MIME type of views."""

    def _register(self, server: Any) -> None:
        """Allow the tools of ``server`` to have views, because the server has the Apps extension."""
        server._tools.has_apps = server._resources.has_apps = True

    def _check(self, server: Any) -> None:
        """Raise `RuntimeError` if a tool's view isn't a resource of ``server``, or has the wrong MIME type."""
        for tool in server._tools.registry.including_disabled():
            view = UI.of(tool.listed).view
            if view is None:
                continue
            # By SEP-1865, the view of a tool MUST be a resource of the server.
            types = {each.listed.mime_type for each in _entries_of(view, server._resources)}
            if APP_TYPE not in types:
                lacks = "there is no such resource" if not types else f"that resource is not {APP_TYPE}"
                raise RuntimeError(
                    f"the view of the tool {tool.listed.name} is {view}, but {lacks}:\n"
                    f'    right:  @server.resource("{view}", app=AppPolicy())'
                )


def _entries_of(uri: str, resources: Resources) -> Iterator[RegisteredResource]:
    """Yield the resource registered under ``uri``, and the resource templates that match ``uri``."""
    if (resource := resources.registry.known(resources.name_of(uri))) is not None:
        yield resource
    for template in resources.templates.including_disabled():
        if cast("Any", template.pattern).match(uri) is not None:
            yield template
