"""Hosts are programs that start servers; commands find servers by their names in the hosts' configuration files."""

from __future__ import annotations

import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from ..classes import frozen
from ..connecting.stdio import Command
from ..connecting.targets import Target
from ..hosting.config_files import Config, ConfigError, read_config
from ..protocol.fields import JSONObject
from ..transports.process import TextSink

if TYPE_CHECKING:
    from ..auth.oauth_client.oauth import OAuth


class BadConfiguration(ValueError):
    """The files do not say which server is meant. The message is one line for the user."""


def configured_target(
    name: str, file: Path | None, stderr: TextSink | None = None, auth: OAuth | None = None
) -> Target | None:
    """Return the server of this name in ``file``, or in the well-known files of hosts; `None` when no file has the
    name.

    ``${NAME}`` in an entry stands for the variable of our environment. ``auth`` is that of `read_config`. Raises
    `BadConfiguration`, also when well-known files disagree.
    """
    found: dict[Path, Target] = {}
    for path, config in _configs(file, auth).items():
        if name in config.problems:
            raise BadConfiguration(f"{name!r} in {path}: {config.problems[name]}")
        if name in config.members:
            found[path] = config.members[name].target
        elif file is not None:
            raise BadConfiguration(f"{path} has no server {name!r}; it has {', '.join(config.members) or 'none'}")
    if any(target != other for target, other in pairwise(found.values())):
        raise BadConfiguration(f"{name!r} is another server in {' and '.join(map(str, found))}; choose with --config")
    for target in found.values():
        return attrs.evolve(target, stderr=stderr) if isinstance(target, Command) else target
    return None


def configured_names(file: Path | None) -> list[str]:
    """Return the names of all servers in ``file`` or the well-known files. Raises `BadConfiguration`."""
    return sorted({name for config in _configs(file).values() for name in config.members})


def _configs(file: Path | None, auth: OAuth | None = None) -> dict[Path, Config]:
    configs: dict[Path, Config] = {}
    for path in [file] if file is not None else well_known_files():
        try:
            configs[path] = read_config(path, variables=os.environ, auth=auth)
        except ConfigError as error:
            if file is not None:
                raise BadConfiguration(str(error)) from None
            # A host's file that the user did not name; it may hold other settings.
    return configs


@frozen(kw_only=True)
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
