"""The offers of a server, as far as its lists can be had, with what is wrong with each list."""

from __future__ import annotations

import math
from typing import Any

from ..auth.credentials import AuthorizationError
from ..client.client import Client
from ..client.listing import SILENT, collect_each
from ..protocol.converters import unstructure
from ..protocol.fields import JSONObject
from ..protocol.types.skills import SKILLS_EXTENSION
from ..runtime.transport import ConnectionLost, HTTPError


class ServerOffers:
    """The offers of the server behind ``client``, which may be closed once they are collected."""

    def __init__(self, client: Client) -> None:
        self.client = client
        declared = client.server_capabilities
        skills = (declared.extensions or {}).get(SKILLS_EXTENSION)
        self._lists = {
            "tools": client.list_tools(),
            "resources": None if declared.resources is None else client.list_resources(),
            "resourceTemplates": None if declared.resources is None else client.list_resource_templates(),
            "prompts": None if declared.prompts is None else client.list_prompts(),
            "skills": None if skills is None else client.list_skills(),
        }
        self._found = dict.fromkeys((name for name, pages in self._lists.items() if pages is not None), SILENT)

    async def collect(self) -> None:
        """List all that the server declares, and tools in any case. Raises the exception of a connection that is lost
        or refused before anything was listed."""
        wanted = {name: pages for name, pages in self._lists.items() if pages is not None}
        await collect_each(wanted, math.inf, self._found.__setitem__)
        errors = [each.error for each in self._found.values() if each.error and not each.items]
        if len(errors) == len(wanted) and isinstance(errors[0], ConnectionLost | HTTPError | AuthorizationError):
            raise errors[0]

    def items(self, name: str) -> list[Any] | None:
        """Return a list by its name in JSON; `None` if it failed, or if the server declares nothing of the kind."""
        found = self._found.get(name, SILENT)
        return found.items or (None if found.error is not None or found.is_undeclared else [])

    @property
    def problems(self) -> dict[str, str]:
        """What is wrong with the lists, by their names in JSON."""
        return {name: remark for name, each in self._found.items() if (remark := each.remark) is not None}

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
            **{name: plain(self.items(name)) for name in self._lists},
            "problems": self.problems,
        }
