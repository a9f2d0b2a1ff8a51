"""The offers of a server, as far as its lists can be had, with what is wrong with each list."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any, Final

from ..auth.credentials import AuthorizationError
from ..client.client import Client
from ..client.collecting import SILENT, Collected, collect_each
from ..protocol.converters import unstructure
from ..protocol.fields import JSONObject
from ..protocol.types.skills import SKILLS_EXTENSION
from ..runtime.transport import ConnectionLost, HTTPError

_LISTS: Final = ("tools", "resources", "resourceTemplates", "prompts", "skills")


class ServerOffers:
    """The offers of the server behind ``client``, which may be closed once they are collected."""

    def __init__(self, client: Client) -> None:
        self.client = client
        declared = client.server_capabilities
        kinds = {"tools": declared.tools, "resources": declared.resources, "prompts": declared.prompts}
        kinds |= {"resourceTemplates": declared.resources, "skills": (declared.extensions or {}).get(SKILLS_EXTENSION)}
        self._declared = {name for name, declaration in kinds.items() if declaration is not None}
        self._found = dict[str, Collected[Any]]()

    async def collect(self) -> None:
        """List all that the server declares, and tools in any case. Raises the exception of a connection that is lost
        or refused before anything was listed."""
        client = self.client
        lists: dict[str, AsyncIterator[Any]] = {
            "tools": client.list_tools(),
            "resources": client.list_resources(),
            "resourceTemplates": client.list_resource_templates(),
            "prompts": client.list_prompts(),
            "skills": client.list_skills(),
        }
        wanted = {name: pages for name, pages in lists.items() if name in self._declared}
        wanted.setdefault("tools", lists["tools"])
        self._found = dict.fromkeys(wanted, SILENT)
        optional = {"resourceTemplates"} | ({"tools"} - self._declared)
        await collect_each(wanted, optional, math.inf, self._found.__setitem__)
        errors = [each.error for each in self._found.values() if each.error and not each.items]
        if len(errors) == len(wanted) and isinstance(errors[0], ConnectionLost | HTTPError | AuthorizationError):
            raise errors[0]

    def items(self, name: str) -> list[Any] | None:
        """Return a list by its name in JSON; `None` if it failed, or if the server declares nothing of the kind."""
        found = self._found.get(name)
        is_there = found is not None and (found.items or (name in self._declared and found.error is None))
        return found.items if found is not None and is_there else None

    @property
    def problems(self) -> dict[str, str]:
        """What is wrong with the lists, by their names in JSON."""
        undeclared = "the server lists them without declaring the capability"
        found = {
            name: each.problem or (undeclared if each.items and name not in self._declared else None)
            for name, each in self._found.items()
        }
        return {name: problem for name, problem in found.items() if problem is not None}

    @property
    def era(self) -> str:
        """The era of the revision: ``legacy`` or ``modern``."""
        return "legacy" if self.client.revision.handshake else "modern"

    def as_json(self) -> JSONObject:
        """Return the offers as plain data, each part in the terms of the server's revision."""
        client = self.client

        def plain(value: Any) -> Any:
            if isinstance(value, list):
                return [plain(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
            return None if value is None else unstructure(value, client.revision)

        return {
            "server": plain(client.server_info),
            "revision": client.revision.name,
            "era": self.era,
            "instructions": client.instructions,
            "capabilities": plain(client.server_capabilities),
            **{name: plain(self.items(name)) for name in _LISTS},
            "problems": self.problems,
        }
