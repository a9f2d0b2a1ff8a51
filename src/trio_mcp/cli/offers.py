"""The offers of a server, as far as its lists can be had, with what is wrong with each list."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from typing import Any

import attrs

from ..auth.credentials import AuthorizationError
from ..classes import frozen
from ..client.client import Client
from ..client.collecting import SILENT, Collected, collect_each
from ..protocol.converters import unstructure
from ..protocol.fields import JSONObject
from ..protocol.revisions import Revision
from ..protocol.types.lifecycle import Implementation, ServerCapabilities
from ..protocol.types.prompts import Prompt
from ..protocol.types.resources import Resource, ResourceTemplate
from ..protocol.types.skills import SKILLS_EXTENSION, Skill
from ..protocol.types.tools import Tool
from ..runtime.transport import ConnectionLost, HTTPError


@frozen(kw_only=True)
class ServerOffers:
    """The offers of a server. A list is `None` where the server declares nothing of the kind."""

    info: Implementation | None
    revision: Revision
    capabilities: ServerCapabilities
    instructions: str | None
    tools: list[Tool] | None
    resources: list[Resource] | None
    templates: list[ResourceTemplate] | None
    prompts: list[Prompt] | None
    skills: list[Skill] | None
    problems: Mapping[str, str] = attrs.field(factory=dict[str, str])
    """What is wrong with the lists, by their names in JSON."""

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
            "skills": plain(self.skills),
            "problems": dict(self.problems),
        }


class OfferLists:
    """The lists of the server behind ``client``, by their names in JSON."""

    def __init__(self, client: Client) -> None:
        self._client = client
        declared = client.server_capabilities
        has_resources = declared.resources is not None
        self._declared = {
            "tools": declared.tools is not None,
            "resources": has_resources,
            "resourceTemplates": has_resources,
            "prompts": declared.prompts is not None,
            "skills": SKILLS_EXTENSION in (declared.extensions or {}),
        }
        self._found = dict[str, Collected[Any]]()
        self._problems: dict[str, str] = {}

    async def collect(self) -> None:
        """List all that the server declares, and tools in any case. Raises the exception of a connection that is lost
        or refused before anything was listed."""
        client, declared = self._client, self._declared
        lists: dict[str, AsyncIterator[Any]] = {
            "tools": client.list_tools(),
            "resources": client.list_resources(),
            "resourceTemplates": client.list_resource_templates(),
            "prompts": client.list_prompts(),
            "skills": client.list_skills(),
        }
        wanted = {name: pages for name, pages in lists.items() if declared[name]}
        wanted.setdefault("tools", lists["tools"])
        self._found = dict.fromkeys(wanted, SILENT)
        optional = ("resourceTemplates", *(() if declared["tools"] else ("tools",)))
        await collect_each(wanted, optional, math.inf, self._found.__setitem__)
        errors = [each.error for each in self._found.values() if each.error and not each.items]
        if len(errors) == len(wanted) and isinstance(errors[0], ConnectionLost | HTTPError | AuthorizationError):
            raise errors[0]

    def offers(self) -> ServerOffers:
        """Return what is listed so far. A list that isn't has a problem."""
        client = self._client
        return ServerOffers(
            info=client.server_info,
            revision=client.revision,
            capabilities=client.server_capabilities,
            instructions=client.instructions,
            tools=self._items("tools"),
            resources=self._items("resources"),
            templates=self._items("resourceTemplates"),
            prompts=self._items("prompts"),
            skills=self._items("skills"),
            problems=self._problems,
        )

    def _items(self, name: str) -> list[Any] | None:
        is_declared, found = self._declared[name], self._found.get(name)
        if found is None:
            return None
        problem = found.problem
        if found.items and not is_declared and problem is None:
            problem = "the server lists them without declaring the capability"
        if problem is not None:
            self._problems[name] = problem
        return found.items if found.items or (is_declared and found.error is None) else None


async def ask_for_offers(client: Client) -> ServerOffers:
    """Return what the server offers: see `OfferLists.collect`."""
    lists = OfferLists(client)
    await lists.collect()
    return lists.offers()
