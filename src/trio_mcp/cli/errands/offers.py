"""ask_for_offers: read a server's description of itself and all its offers, once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, TypeVar

import attrs

from ...client.client import Client
from ...jsonrpc.errors import METHOD_NOT_FOUND, PeerError
from ...protocol.converters import unstructure
from ...protocol.fields import JSONObject
from ...protocol.revisions import Revision
from ...protocol.types.lifecycle import Implementation, ServerCapabilities
from ...protocol.types.prompts import Prompt
from ...protocol.types.resources import Resource, ResourceTemplate
from ...protocol.types.tools import Tool

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class Offers:
    """All offers of a server. A list is `None` where the server declares nothing of the kind."""

    info: Implementation | None
    revision: Revision
    capabilities: ServerCapabilities
    instructions: str | None
    tools: list[Tool] | None
    resources: list[Resource] | None
    templates: list[ResourceTemplate] | None
    prompts: list[Prompt] | None

    @property
    def era(self) -> str:
        """The era of the revision: ``legacy`` or ``modern``."""
        return "legacy" if self.revision.handshake else "modern"

    def as_json(self) -> JSONObject:
        """Return the offers as plain data, each part in the terms of the server's revision."""

        def plain(value: Any) -> Any:
            if isinstance(value, list):
                return [plain(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
            return None if value is None else unstructure(value, self.revision)

        return {
            "server": plain(self.info),
            "revision": self.revision.name,
            "era": self.era,
            "instructions": self.instructions,
            "capabilities": plain(self.capabilities),
            "tools": plain(self.tools),
            "resources": plain(self.resources),
            "resourceTemplates": plain(self.templates),
            "prompts": plain(self.prompts),
        }


async def ask_for_offers(client: Client) -> Offers:
    """List everything that the server declares. Raises as the calls do."""
    declared = client.server_capabilities
    has_resources = declared.resources is not None
    return Offers(
        info=client.server_info,
        revision=client.revision,
        capabilities=declared,
        instructions=client.instructions,
        tools=await listed(client.list_tools(), declared.tools is not None),
        resources=await listed(client.list_resources(), has_resources),
        templates=await listed(client.list_resource_templates(), has_resources),
        prompts=await listed(client.list_prompts(), declared.prompts is not None),
    )


async def listed(items: AsyncIterator[T], declared: bool) -> list[T] | None:
    """Return all of ``items``; `None` when the server has no such list, or, without asking, unless it is
    ``declared``."""
    if not declared:
        return None
    try:
        return [item async for item in items]
    except PeerError as error:
        # One capability stands for resources and for templates; some servers know only one of the methods.
        if error.code != METHOD_NOT_FOUND:
            raise
        return None
