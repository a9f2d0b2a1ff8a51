"""Apps: the extension for tools with views, for servers and for hosts (SEP-1865)."""

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
    """The settings that a host declares."""

    mime_types: list[str]
    """MIME types of the views that the host shows."""


@define(eq=False)
class Apps(Extension[dict[str, Any], AppsSettings]):
    """The extension for tools with views, ``io.modelcontextprotocol/ui``.

        apps = Apps()
        server = Server("weather", extensions=[apps])

    A server with the extension may give its tools views: ``@server.tool(ui=UI("ui://weather/dashboard"))``, and
    ``@server.resource("ui://weather/dashboard", app=AppPolicy())`` for the view itself.
    ``ctx.client_extension(apps)`` is `None` for a client that shows no views. A host that shows views says so:
    ``open_group(members, extensions=[Apps()])``. ``server`` and ``since`` are those of `Extension`.
    """

    name: str = attrs.field(default=APPS_EXTENSION, init=False)
    client: AppsSettings = attrs.field(factory=lambda: AppsSettings([APP_TYPE]), init=False)

    def _register(self, server: Any) -> None:
        """Let ``server`` have tools with views."""
        server._tools.has_apps = server._resources.has_apps = True

    def _check(self, server: Any) -> None:
        """Raise `RuntimeError` for a tool with a view that is no resource of ``server``, or one of another type."""
        for tool in server._tools.registry.including_disabled():
            view = UI.of(tool.listed).view
            if view is None:
                continue
            # SEP-1865, Behavior: the resource MUST exist on the server.
            types = {each.listed.mime_type for each in _entries_of(view, server._resources)}
            if APP_TYPE not in types:
                lacks = "there is no such resource" if not types else f"that resource is no {APP_TYPE}"
                raise RuntimeError(
                    f"the view of the tool {tool.listed.name} is {view}, and {lacks}:\n"
                    f'    right:  @server.resource("{view}", app=AppPolicy())'
                )


def _entries_of(uri: str, resources: Resources) -> Iterator[RegisteredResource]:
    """Yield the resource ``uri``, and the templates that ``uri`` fits."""
    if (resource := resources.registry.known(resources.name_of(uri))) is not None:
        yield resource
    for template in resources.templates.including_disabled():
        if cast("Any", template.pattern).match(uri) is not None:
            yield template
