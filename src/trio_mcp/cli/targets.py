"""The typed name of a server becomes the target that opens the server, with the authorization of the command's user.

Hosts are programs that start servers; a name may be that of a server in their configuration files.
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
from .terminal import Terminal

if TYPE_CHECKING:
    from ..auth.credentials import Bearer
    from ..auth.oauth_client.authorization_code import OAuth
    from ..auth.storage.records import TokenStorage


class NoTarget(CommandError):
    """The text, or the files of hosts, do not say which server is meant, or there is no token where the user says there
    is. The message is one line for the user."""


def configured_target(
    name: str, file: Path | None, stderr: TextSink | None = None, auth: OAuth | None = None, *, warns: bool = False
) -> Target | None:
    """Return the server of this name in ``file``, or in the well-known files of hosts; `None` when no file has the
    name.

    ``${NAME}`` in an entry stands for the variable of our environment. ``auth`` is that of `read_config`. ``warns``
    prints what is wrong with an entry that can be used. Raises `NoTarget`, also when well-known files disagree.
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
            raise NoTarget(f"{path} has no server {name!r}; it has {', '.join(config.members) or 'none'}")
    if any(target != other for target, other in pairwise(found.values())):
        raise NoTarget(f"{name!r} is another server in {' and '.join(map(str, found))}; choose with --config")
    for target in found.values():
        return attrs.evolve(target, stderr=stderr) if isinstance(target, Command) else target
    return None


def configured_names(file: Path | None) -> list[str]:
    """Return the names of all servers in ``file`` or the well-known files. Raises `NoTarget`."""
    return sorted({name for config in _configs(file).values() for name in config.members})


def _configs(file: Path | None, auth: OAuth | None = None, unreadable: list[str] | None = None) -> dict[Path, Config]:
    """Return the servers of ``file`` or the well-known files. ``unreadable`` gets the errors of well-known files."""
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
    """Return the hosts' files that exist, broken links included."""
    return [file for host in HOSTS.values() if os.path.lexists(file := host.file)]


def target_typed(
    typed: str | Sequence[str],
    config: Path | None = None,
    stderr: TextSink | None = None,
    sign_in: SignIn | None = None,
) -> Target:
    """Return the server that ``typed`` names: the words of a command, or one string.

    With ``config``, a string is a name in that file. Otherwise a string is a URL, a Python file (``FILE.py`` or
    ``FILE.py:NAME``), a name in a well-known file of a host, or a command as a shell splits it. Typed commands get our
    whole environment, as in a shell; configured ones get the variables of their entry. ``stderr`` gets a copy of a
    command's standard error. ``sign_in`` authorizes the requests to what is reached over HTTP or WebSocket; `None`:
    nobody does, and no token is looked at. Raises `NoTarget`.
    """
    try:
        target = _found(typed, config, stderr, sign_in)
        bearer = None if sign_in is None else sign_in.bearer()
        if bearer is None:
            return target
        if isinstance(target, Address) and is_confidential(target.url, bearer.trusted_http_hosts):
            return attrs.evolve(target, auth=bearer)
    except BadTarget as error:
        raise NoTarget(str(error)) from None
    raise NoTarget(
        "a token is sent over https or wss alone, or to this machine over http, http+unix or ws, or over http to a "
        "host in --trust-http"
    )


def with_extras(target: Target, headers: Sequence[str], env: Sequence[str], revision: str | None = None) -> Target:
    """Return ``target`` with ``headers``, each like ``Name: value``, for a server over HTTP or WebSocket, and the
    variables ``env``, each like ``NAME=value``, for a command; and spoken to in ``revision``. Raises `NoTarget`."""
    try:
        if revision is not None:
            target = attrs.evolve(target, revision=revision)
        if headers:
            if not isinstance(target, Address):
                raise NoTarget("--header is for a URL")
            target = attrs.evolve(target, headers={**target.headers, **dict(map(_header, headers))})
        if env:
            if not isinstance(target, Command):
                raise NoTarget("--env is for a command, or a file")
            target = attrs.evolve(target, env={**(target.env or {}), **dict(map(_variable, env))})
    except ValueError as error:  # BadTarget is one
        raise NoTarget(str(error)) from None
    return target


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not (colon and name.strip()):
        raise NoTarget("a header is like 'Name: value'")  # the text may be a secret
    return name.strip(), value.strip()


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (equals and name):
        raise NoTarget("a variable is like NAME=value")
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
        return target  # most servers are commands, and signing in takes a tenth of a second to import
    return configured_target(name, config, auth=oauth())


def _is_address(typed: str) -> bool:
    """Return whether ``typed`` is meant to be a URL."""
    return "://" in typed.split(" ", 1)[0] or typed.startswith("unix:")


def is_file(typed: str) -> bool:
    """Return whether ``typed`` is an existing Python file, or FILE:NAME with such a file."""
    file, colon, name = typed.rpartition(":")
    paths = [Path(typed)] + ([Path(file)] if colon and name.isidentifier() else [])
    return any(path.suffix == ".py" and path.is_file() for path in paths)


def command_of_file(typed: str) -> list[str]:
    """Return the command that serves a Python file on standard input and output, whatever the current directory."""
    file, name = (typed, "") if Path(typed).is_file() else typed.rsplit(":", 1)
    where = os.path.abspath(file)
    if not (os.path.exists(where) and os.path.samefile(where, file)):  # ".." behind a link
        where = os.path.realpath(file)
    # -P: what lies in the current directory is none of the server's business.
    return [sys.executable, "-P", "-m", "trio_mcp.cli", "run", f"{where}:{name}" if name else where]


def _words(typed: str) -> list[str]:
    try:
        words = shlex.split(typed)
    except ValueError as error:
        raise NoTarget(f"{typed!r} cannot be split into words: {error}") from None
    if not words:
        raise NoTarget("an empty string is no server")
    if shutil.which(words[0]) is None:
        unreadable: list[str] = []
        _configs(None, unreadable=unreadable)
        raise NoTarget(
            f"{typed!r} is no URL, no Python file and no configured server, and there is no command {words[0]!r}"
            + "".join(f"; {error}" for error in unreadable)
        )
    return words


@frozen(kw_only=True)
class SignIn:
    """The options about tokens, as typed. Nothing of the machinery of OAuth is imported without need."""

    asks: bool | None = None
    """True where the user may be asked to sign in; `None`: where standard error is a terminal."""
    bearer_env: str | None = None
    """The variable that holds a token; `None` for a user who signs in."""
    tokens: Literal["file", "keyring", "memory"] = "file"
    """Place of the tokens."""
    trust_http: tuple[str, ...] = ()
    """Hosts to which tokens may go over plain HTTP."""

    def bearer(self) -> Bearer | None:
        """Return the authorization by a token that the user has; `None` for a user who signs in. Raises `NoTarget`."""
        from ..auth.credentials import Bearer

        if self.bearer_env is None:
            return None
        token = os.environ.get(self.bearer_env, "").strip()
        if not token:
            raise NoTarget(f"there is no variable {self.bearer_env}, or it is empty")
        try:
            return Bearer(token, trusted_http_hosts=self.trust_http)
        except ValueError:
            raise NoTarget(f"the variable {self.bearer_env} holds no bearer token") from None

    def oauth(self) -> OAuth:
        """Return the authorization of a user who signs in with the browser."""
        from ..auth.oauth_client.authorization_code import OAuth

        asks = sys.stderr.isatty() if self.asks is None else self.asks
        return OAuth(
            storage=storage_in(self.tokens), on_visit=_visit, asks_user=asks, trusted_http_hosts=self.trust_http
        )


def storage_in(tokens: Literal["file", "keyring", "memory"]) -> TokenStorage:
    """Return the place of the tokens."""
    if tokens == "keyring":
        from ..auth.storage.keyrings import KeyringTokenStorage

        return KeyringTokenStorage()
    if tokens == "file":
        from ..auth.storage.files import FileTokenStorage
        from ..auth.storage.records import TokenStorageFailed

        try:
            return FileTokenStorage()
        except TokenStorageFailed:  # a user without a home folder signs in anew each time
            pass
    from ..auth.storage.records import MemoryTokenStorage

    return MemoryTokenStorage()


async def _visit(url: str) -> str | None:
    """Open ``url`` in the browser, and show it to users whose browser is elsewhere; return the address that such a user
    pastes: an `OnVisit`."""
    from ..auth.credentials import AuthorizationError
    from ..auth.oauth_client.browser import open_in_browser

    terminal = Terminal(None)
    where = split_url(url)[0].authority
    terminal.say(f"the server wants you to sign in, in your browser, at {where}:", "bold")
    terminal.say(f"  {url}")
    if "xn--" in where:
        terminal.say("  The name of this host has letters that can be mistaken for others.", "red")
    try:
        await open_in_browser(url)
    except AuthorizationError:
        terminal.say("  No browser can be opened here: open the address in yours.")
        if terminal.can_ask:
            # The browser of another machine ends at an address of that machine, where nobody listens.
            async with terminal.asking():
                return await terminal.read("  if it ends at a page that cannot be reached, paste the page's address")
    return None
