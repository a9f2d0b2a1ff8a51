"""Server groups: connect to many servers at once, supervise each, and use their tools, prompts and resources through
one catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ..connecting.cards import DiscoveryFailed, FoundServer, discover, read_card
    from .catalogue import Catalogue, CatalogueEntry, ListName, Watch
    from .config_files import Config, ConfigError, read_config
    from .descriptions import (
        HeldTool,
        MemberDescription,
        MemberState,
        MemberStatus,
        MemberUnavailable,
        NotInCatalogue,
        RestartPolicy,
        ToolTransform,
    )
    from .group import Group, GroupSkill, GroupTask, open_group
    from .member import current_member
    from .pins import PinPolicy, ToolPins, tool_hash

# fmt: off
_NAMES: Final = {
    "..connecting.cards": "DiscoveryFailed FoundServer discover read_card",
    ".catalogue": "Catalogue CatalogueEntry ListName Watch", ".config_files": "Config ConfigError read_config",
    ".descriptions": (
        "HeldTool MemberDescription MemberState MemberStatus MemberUnavailable NotInCatalogue RestartPolicy "
        "ToolTransform"
    ),
    ".group": "Group GroupSkill GroupTask open_group", ".member": "current_member",
    ".pins": "PinPolicy ToolPins tool_hash",
}
__all__ = [
    "Catalogue", "CatalogueEntry", "Config", "ConfigError", "DiscoveryFailed", "FoundServer", "Group", "GroupSkill",
    "GroupTask", "HeldTool", "ListName", "MemberDescription", "MemberState", "MemberStatus", "MemberUnavailable",
    "NotInCatalogue", "PinPolicy", "RestartPolicy", "ToolPins", "ToolTransform", "Watch", "current_member", "discover",
    "open_group", "read_card", "read_config", "tool_hash",
]
# fmt: on

if not TYPE_CHECKING:  # type checkers use the imports above, and report unknown names
    from ..lazy import lazy_names

    __getattr__, __dir__ = lazy_names(globals(), _NAMES)
