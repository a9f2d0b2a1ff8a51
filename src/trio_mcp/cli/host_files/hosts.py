"""Hosts: programs that start servers, and the configuration files of these programs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import attrs

from ...protocol.fields import JSONObject


@attrs.frozen(kw_only=True)
class Host:
    """A host. ``~`` in ``path`` is the user's home; a relative path belongs to the project in the current directory."""

    title: str
    path: str
    section: str = "mcpServers"
    """The name of the object in the file that holds the servers by name."""
    says_type: bool = False
    """True where entries need ``"type": "stdio"``."""
    source: str
    """The page that documents the path and the shape."""

    @property
    def file(self) -> Path:
        """The absolute path of the file."""
        return Path(self.path).expanduser().absolute()

    def entry(self, command: list[str], env: dict[str, str]) -> JSONObject:
        """Return the host's entry for a command."""
        entry: JSONObject = {"type": "stdio"} if self.says_type else {}
        entry |= {"command": command[0], "args": command[1:]}
        return entry | ({"env": env} if env else {})


def _claude_desktop() -> str:
    if sys.platform == "darwin":
        return "~/Library/Application Support/Claude/claude_desktop_config.json"
    return f"{os.environ.get('XDG_CONFIG_HOME') or '~/.config'}/Claude/claude_desktop_config.json"


HOSTS: Final[dict[str, Host]] = {
    "claude-desktop": Host(
        title="Claude Desktop",
        path=_claude_desktop(),
        # The page names the path on macOS; the one on Linux is that of the official package, mcp.cli.claude.
        source="https://modelcontextprotocol.io/quickstart/user",
    ),
    "claude-code": Host(
        title="Claude Code, in this project",
        path=".mcp.json",
        source="https://code.claude.com/docs/en/mcp",
    ),
    "cursor": Host(
        title="Cursor",
        path="~/.cursor/mcp.json",
        source="https://cursor.com/docs/mcp",
    ),
    "vscode": Host(
        title="VS Code, in this project",
        path=".vscode/mcp.json",
        section="servers",
        says_type=True,
        source="https://code.visualstudio.com/docs/copilot/reference/mcp-configuration",
    ),
    "windsurf": Host(
        title="Windsurf",
        path="~/.codeium/windsurf/mcp_config.json",
        source="https://docs.windsurf.com/windsurf/cascade/mcp",
    ),
    "gemini-cli": Host(
        title="Gemini CLI",
        path="~/.gemini/settings.json",
        source="https://github.com/google-gemini/gemini-cli/blob/main/docs/tools/mcp-server.md",
    ),
}


def well_known_files() -> list[Path]:
    """Return the hosts' files that exist."""
    return [file for host in HOSTS.values() if (file := host.file).is_file()]
