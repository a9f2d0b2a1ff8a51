"""The methods of the extension for skills, and its settings (SEP-2640)."""

from __future__ import annotations

from typing import Final

from ..protocol.extensions import Extension
from ..protocol.fields import JSONObject
from ..protocol.methods import Method
from ..protocol.types.lifecycle import ServerCapabilities
from ..protocol.types.resources import PageParams
from ..protocol.types.skills import (
    SKILLS_EXTENSION,
    GetSkillParams,
    GetSkillResult,
    ListSkillsResult,
    ReadDirectoryParams,
    ReadDirectoryResult,
)

_DIRECTORY_READ: Final = "directoryRead"


class SkillsExtension(Extension[JSONObject, JSONObject]):
    """The extension for skills, ``io.modelcontextprotocol/skills``, without skills. ``directory_read``: folders can be
    listed. SEP-2640 knows no settings of clients, so none has to declare the extension."""

    def __init__(self, *, directory_read: bool = True) -> None:
        super().__init__(SKILLS_EXTENSION, server={_DIRECTORY_READ: True} if directory_read else {})
        self.listing = self.method("skills/list", PageParams, ListSkillsResult, cacheable=True, requires_client=False)
        """The request for a page of skills."""
        self.getting = self.method("skills/get", GetSkillParams, GetSkillResult, cacheable=True, requires_client=False)
        """The request for one skill."""
        self.reading = (
            self.method("resources/directory/read", ReadDirectoryParams, ReadDirectoryResult, requires_client=False)
            if directory_read
            else None
        )
        """The request for what is in a folder; `None`: it cannot be listed."""

    def row_of(self, method: str) -> Method:
        """Return the row of one of these methods."""
        return next(row for row in self.rows if row.name == method)

    def serves(self, row: Method, capabilities: ServerCapabilities) -> bool:
        """Return whether a server that has declared the extension has this method, too (SEP-2640, Capability
        Negotiation: clients MUST NOT call ``resources/directory/read`` without ``directoryRead``)."""
        settings = (capabilities.extensions or {}).get(SKILLS_EXTENSION)
        return row is not self.reading or (isinstance(settings, dict) and settings.get(_DIRECTORY_READ) is True)  # pyright: ignore[reportUnknownMemberType]


SKILLS: Final = SkillsExtension()
"""The methods, for sides that have no skills of their own."""
