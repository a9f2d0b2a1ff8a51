"""Finds the server that the user has typed as TARGET, and authorizes requests to the server.

TARGET may be a name from the configuration file of a host, which is a program that starts MCP servers.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import attrs

from ..auth.credentials import AuthorizationError, Bearer
from ..classes import frozen
from ..connecting.bad_target import BadTarget
from ..connecting.credentials import can_sign_in, is_confidential
from ..connecting.stdio import Command
from ..connecting.targets import Address, Target
from ..hosting.config_files import Config, ConfigError, NoServers, read_config
from ..protocol.fields import JSONObject
from ..transports.http_client.origins import split_url
from ..transports.process import TextSink
from .printable import CommandError, say

if TYPE_CHECKING:
    from ..auth.oauth_client.authorization_code import OAuth
    from ..auth.storage.records import TokenStorage


class NoTarget(CommandError):
    """The typed TARGET names no known server, or a token is missing. The message is one line for the user."""


def configured_target(
    name: str, file: Path | None, stderr: TextSink | None = None, auth: OAuth | None = None, *, warns: bool = False
) -> Target | None:
    """Return the server with the given name in ``file``. Without a file, search the well-known configuration files of
    MCP hosts.

    Returns `None` if no file has the name.

    In an entry, ``${NAME}`` is replaced with our environment variable. ``auth``: see `read_config`. With ``warns``,
    problems of an entry that can still be used are printed. Raises `NoTarget`, also if well-known files disagree.
    """
    found: dict[Path, Target] = {}
    for path, config in _configs(file, auth).items():
        problem = f"{name!r} in {path}: {config.problems[name]}" if name in config.problems else None
        if name in config.members:
            found[path] = config.members[name].target
            if problem is not None and warns:
                say(problem)
        elif problem is not None:
            raise NoTarget(problem)
        elif file is not None:
            raise NoTarget(f"{path} has no server {name!r}; its servers are: {', '.join(config.members) or 'none'}")
    if any(target != other for target, other in pairwise(found.values())):
        raise NoTarget(
            f"the name {name!r} means a different server in {' and '.join(map(str, found))}; choose with --config"
        )
    for target in found.values():
        return attrs.evolve(target, stderr=stderr) if isinstance(target, Command) else target
    return None


def configured_names(file: Path | None) -> list[str]:
    """Return the names of all servers in ``file``. Without a file, return the names of all servers in the well-known
    configuration files of MCP hosts.

    Raises `NoTarget` if ``file`` can't be read.
    """
    return sorted({name for config in _configs(file).values() for name in config.members})


def _configs(file: Path | None, auth: OAuth | None = None, unreadable: list[str] | None = None) -> dict[Path, Config]:
    """Return the configurations in ``file``, keyed by path. Without a file, return those in the well-known files.

    Errors in well-known files are appended to ``unreadable``.
    """
    configs: dict[Path, Config] = {}
    for path in [file] if file is not None else well_known_files():
        try:
            configs[path] = read_config(path, variables=os.environ, auth=auth)
        except ConfigError as error:
            if file is not None:
                raise NoTarget(str(error)) from None
            if unreadable is not None and not isinstance(error, NoServers):
                unreadable.append(str(error))
    return configs


@frozen(kw_only=True)
class Host:
    """An MCP host, which is a program that starts MCP servers, and its configuration file.

    ``~`` in ``path`` is the user's home directory. A relative path belongs to the project in the current directory.
    """

    title: str
    path: str
    section: str = "mcpServers"
    """Name of the object in the configuration file that contains the servers, keyed by name."""
    says_type: bool = False
    """Whether the entries of servers in this file need ``"type": "stdio"``."""
    source: str
    """URL of the web page that documents the path and format."""

    @property
    def file(self) -> Path:
        """The absolute path of the MCP host's configuration file."""
        return Path(self.path).expanduser().absolute()

    def entry(self, command: list[str], env: dict[str, str]) -> JSONObject:
        """Return the entry for a server in the host's configuration file. The entry makes the host start the server
        with ``command``."""
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
        # Only the path on macOS is documented at this URL. The path on Linux is from Claude Desktop's official package.
        source="https://modelcontextprotocol.io/quickstart/user",
    ),
    "claude-code": Host(
        title="Claude Code, in this project", path=".mcp.json", source="https://code.claude.com/docs/en/mcp"
    ),
    "cursor": Host(title="Cursor", path="~/.cursor/mcp.json", source="https://cursor.com/docs/mcp"),
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
    """Return the paths of the existing configuration files of MCP hosts, including broken links."""
    return [file for host in HOSTS.values() if os.path.lexists(file := host.file)]


def target_typed(
    typed: str | Sequence[str],
    config: Path | None = None,
    stderr: TextSink | None = None,
    sign_in: SignIn | None = None,
) -> Target:
    """Return the server that the user has typed as TARGET. ``typed`` is one string, or a sequence of words that are a
    command.

    With ``config``, a string is a name in that file. Otherwise a string is a URL, a Python file (``FILE.py`` or
    ``FILE.py:NAME``), a name in a well-known file of a host, or a command that is split as in a shell. A typed command
    gets our whole environment, as in a shell. A configured one gets the variables of its entry. ``stderr`` gets a copy
    of a command's standard error. ``sign_in`` authorizes requests over HTTP or WebSocket; with `None`, requests have no
    token. Raises `NoTarget`.
    """
    with NoTarget.instead_of(BadTarget):
        target = _found(typed, config, stderr, sign_in)
        bearer = None if sign_in is None else sign_in.bearer()
        if bearer is None:
            return target
        if isinstance(target, Address) and is_confidential(target.url, bearer.trusted_http_hosts):
            return attrs.evolve(target, auth=bearer)
    raise NoTarget(
        "refusing to send a token to this URL: use https or wss. On this machine, http, http+unix and ws are allowed "
        "as well. For http to another host, add the host with --trust-http"
    )


def with_extras(target: Target, headers: Sequence[str], env: Sequence[str], revision: str | None = None) -> Target:
    """Return the server ``target`` with more settings. Raises `NoTarget` if a setting is invalid or doesn't apply to
    ``target``.

    The settings are ``headers`` like ``Name: value`` (for HTTP and WebSocket), environment variables ``env`` like
    ``NAME=value`` (for a command), and the protocol ``revision``.
    """
    with NoTarget.instead_of(ValueError):  # BadTarget is one
        if revision is not None:
            target = attrs.evolve(target, revision=revision)
        if headers:
            if not isinstance(target, Address):
                raise NoTarget("--header needs a URL as the target")
            target = attrs.evolve(target, headers={**target.headers, **dict(map(_header, headers))})
        if env:
            if not isinstance(target, Command):
                raise NoTarget("--env needs a command or a file as the target")
            target = attrs.evolve(target, env={**(target.env or {}), **dict(map(_variable, env))})
    return target


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not (colon and name.strip()):
        raise NoTarget("--header must be like 'Name: value'")  # don't quote the header, which may be a secret
    return name.strip(), value.strip()


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (equals and name):
        raise NoTarget("--env must be like NAME=value")
    return name, value


def _found(typed: str | Sequence[str], config: Path | None, stderr: TextSink | None, sign_in: SignIn | None) -> Target:
    if not isinstance(typed, str):
        return Command(typed, inherit_env=True, stderr=stderr)
    if config is None and _is_address(typed):
        address = Address(typed)
        if sign_in is None or not can_sign_in(typed, sign_in.trust_http):
            return address
        return attrs.evolve(address, auth=sign_in.oauth())
    if config is None and is_file(typed):
        return Command(command_of_file(typed), inherit_env=True, stderr=stderr)
    oauth = None if sign_in is None else sign_in.oauth
    return _named(typed, config, stderr, oauth) or Command(_words(typed), inherit_env=True, stderr=stderr)


def _named(name: str, config: Path | None, stderr: TextSink | None, oauth: Callable[[], OAuth] | None) -> Target | None:
    target = configured_target(name, config, stderr, warns=oauth is not None)
    if oauth is None or not isinstance(target, Address):
        return target  # most servers are started as commands, and importing the sign-in code takes a tenth of a second
    return configured_target(name, config, auth=oauth())


def _is_address(typed: str) -> bool:
    """Return whether ``typed`` is meant to be a URL."""
    return "://" in typed.split(" ", 1)[0] or typed.startswith("unix:")


def is_file(typed: str) -> bool:
    """Return whether ``typed`` names an existing Python file, as FILE or FILE:NAME."""
    file, colon, name = typed.rpartition(":")
    paths = [Path(typed)] + ([Path(file)] if colon and name.isidentifier() else [])
    return any(path.suffix == ".py" and path.is_file() for path in paths)


def command_of_file(typed: str) -> list[str]:
    """Return the command that serves a Python file on standard input and output, from any current directory."""
    file, name = (typed, "") if Path(typed).is_file() else typed.rsplit(":", 1)
    where = os.path.abspath(file)
    # abspath is wrong, for example, if the path has ".." after a symbolic link
    if not (os.path.exists(where) and os.path.samefile(where, file)):
        where = os.path.realpath(file)
    # Pass -P, so that Python doesn't import modules from the current directory.
    return [sys.executable, "-P", "-m", "trio_mcp.cli", "run", f"{where}:{name}" if name else where]


def _words(typed: str) -> list[str]:
    with NoTarget.instead_of(ValueError, prefix=f"{typed!r} cannot be split into words: "):
        words = shlex.split(typed)
    if not words:
        raise NoTarget("the target must not be an empty string")
    if shutil.which(words[0]) is None:
        unreadable: list[str] = []
        _configs(None, unreadable=unreadable)
        raise NoTarget(
            f"{typed!r} is not a URL, a Python file or a configured server, and there is no command {words[0]!r}"
            + "".join(f"; {error}" for error in unreadable)
        )
    return words


@frozen(kw_only=True)
class SignIn:
    """The token options that the user has typed (--sign-in, --bearer-env, --tokens). The methods import the OAuth
    modules only when needed."""

    asks: bool | None = None
    """Whether the user may be asked to sign in. `None` means that the user may be asked if standard error is a
    terminal."""
    bearer_env: str | None = None
    """Name of the environment variable that holds a token, or `None` if the user signs in."""
    tokens: Literal["file", "keyring", "memory"] = "file"
    """The kind of storage for tokens."""
    trust_http: tuple[str, ...] = ()
    """Host names to which tokens may be sent over plain HTTP."""

    def bearer(self) -> Bearer | None:
        """Return the authorization with the token in the environment variable of --bearer-env. Returns `None` if the
        option wasn't typed.

        Raises `NoTarget` if the variable has no token.
        """
        if self.bearer_env is None:
            return None
        token = os.environ.get(self.bearer_env, "").strip()
        if not token:
            raise NoTarget(f"the environment variable {self.bearer_env} is missing or empty")
        try:
            return Bearer(token, trusted_http_hosts=self.trust_http)
        except ValueError:
            raise NoTarget(f"the environment variable {self.bearer_env} does not contain a bearer token") from None

    def oauth(self) -> OAuth:
        """Return the OAuth authorization that signs the user in with the browser."""
        from ..auth.oauth_client.authorization_code import OAuth

        asks = sys.stderr.isatty() if self.asks is None else self.asks
        return OAuth(
            storage=storage_in(self.tokens), on_visit=_visit, asks_user=asks, trusted_http_hosts=self.trust_http
        )


def storage_in(tokens: Literal["file", "keyring", "memory"]) -> TokenStorage:
    """Return the token storage that the option --tokens specifies."""
    if tokens == "keyring":
        from ..auth.storage.persistent import KeyringTokenStorage

        return KeyringTokenStorage()
    if tokens == "file":
        from ..auth.storage.persistent import FileTokenStorage
        from ..auth.storage.records import TokenStorageFailed

        try:
            return FileTokenStorage()
        except TokenStorageFailed:  # without a home directory, the user must sign in each time
            pass
    from ..auth.storage.records import MemoryTokenStorage

    return MemoryTokenStorage()


async def _visit(url: str) -> str | None:
    """Let the user sign in: print ``url`` and open it in the browser. If no browser can be opened here, ask the user to
    paste the redirect URL, and return this URL."""
    from ..auth.oauth_client.browser import open_in_browser
    from .terminal import Terminal

    terminal = Terminal(None)
    where = split_url(url)[0].authority
    terminal.say(f"the server requires you to sign in, in your browser, at {where}:", "bold")
    terminal.say(f"  {url}")
    if "xn--" in where:
        terminal.say("  Warning: this host name has letters that look like others.", "red")
    try:
        await open_in_browser(url)
    except AuthorizationError:
        terminal.say("  No browser could be opened here: open the address in yours.")
        if terminal.can_ask:
            # A browser on another machine is redirected to its own machine, where this command doesn't listen.
            async with terminal.asking():
                return await terminal.read("  if you end up on a page that can't be reached, paste its address")
    return None
