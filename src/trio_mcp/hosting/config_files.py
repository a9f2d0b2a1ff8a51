"""read_config: read the servers in a configuration file of the kind that hosts keep."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import attrs

from ..client.options import ClientOptions
from ..connecting.stdio import Command
from ..connecting.targets import Address, Target
from ..jsonrpc.errors import MCPError
from .descriptions import MemberDescription
from .json_comments import without_comments, without_trailing_commas
from .oauth_entries import auth_of, unknown_in
from .restarting import RestartPolicy

if TYPE_CHECKING:
    from ..auth.oauth_client.oauth import OAuth

_SECTIONS: Final = ("mcpServers", "servers")
_KNOWN: Final = frozenset({"command", "args", "env", "cwd", "url", "headers", "oauth", "auth", "type", "disabled"})
_FOR_COMMANDS: Final = frozenset({"args", "env", "cwd"})
_TYPES: Final = {
    "stdio": "command",
    **dict.fromkeys(("http", "streamable-http", "streamableHttp", "ws", "websocket", "tcp", "unix"), "url"),
}
"""Types of entries, with the key that each goes with. Hosts spell Streamable HTTP in three ways."""
_VARIABLE: Final = re.compile(r"\$\{(?:(\w+):(?!-))?(\w[^:}]*)(?::-([^}]*))?\}")
"""A variable: the kind, if given; the name; the default."""


class ConfigError(MCPError, ValueError):
    """The file cannot be read, or does not hold such a configuration."""


@attrs.frozen
class Config:
    """The members, problems and ignored keys of a configuration file."""

    members: dict[str, MemberDescription]
    """Members by name, disabled ones included."""
    problems: dict[str, str]
    """Reasons why entries are not among the members, by name: they make no sense, or name something unsupported."""
    ignored: dict[str, tuple[str, ...]]
    """Keys that have no meaning here, by entry."""


def read_config(
    path: str | os.PathLike[str],
    *,
    restart: RestartPolicy | None = None,
    options: ClientOptions | None = None,
    variables: Mapping[str, str] | None = None,
    auth: OAuth | None = None,
) -> Config:
    """Read the ``mcpServers`` (or ``servers``) of a JSON file, with ``restart`` and ``options`` for all of them.

    The file may have comments and trailing commas, which some hosts allow. An entry has ``command`` with ``args``,
    ``env`` and ``cwd``, or ``url`` with ``headers`` and ``oauth``; and may have ``type`` and ``disabled``. With
    ``variables``, `os.environ` for example, ``${NAME}``, ``${NAME:-default}`` and ``${env:NAME}`` stand for their
    values in all strings; any other placeholder of a host (``${input:…}``) is a problem of its entry. A bad entry does
    not affect the others: see `Config`. Raises `ConfigError`.

    ``auth`` has the user sign in to the servers over HTTP and WebSocket, but for those with an ``Authorization`` in
    their headers. The object ``oauth`` of an entry is about this server alone, and all of it is optional: ``clientId``,
    ``clientSecret``, ``issuer``, ``clientMetadataUrl``, ``scopes`` (a text, or a list of texts), ``callbackPort`` or
    ``redirectUri``, and ``grantType``: ``"client_credentials"`` for a client without a user. Without ``auth``, entries
    with ``oauth`` have the user sign in as `OAuth` does by default; with ``"oauth": false`` nobody is asked. The
    ``auth`` of Cursor, ``{"CLIENT_ID": …, "CLIENT_SECRET": …, "scopes": […]}``, means the same.
    """
    config = Config({}, {}, {})
    for name, entry in _entries(Path(path)).items():
        try:
            fields = _fields(entry, variables)
            disabled = _of(fields, "disabled", bool, False)
            config.members[name] = MemberDescription(
                _target(fields, auth), restart=restart, options=options or {}, disabled=disabled
            )
        except ValueError as error:
            config.problems[name] = str(error)
        else:
            if unknown := {*(fields.keys() - _KNOWN), *unknown_in(fields)}:
                config.ignored[name] = tuple(sorted(unknown))
    return config


def _fields(entry: Any, variables: Mapping[str, str] | None) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - a value of the file, not a type of ours
    return cast("dict[str, Any]", entry if variables is None else _expanded(entry, variables))


def _entries(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        data = json.loads(without_trailing_commas(without_comments(text)))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no JSON: {error}") from error
    for section in _SECTIONS if isinstance(data, dict) else ():
        entries = cast("dict[str, Any]", data).get(section)
        if isinstance(entries, dict):
            return cast("dict[str, Any]", entries)
    raise ConfigError(f"{path} has no object named mcpServers")


def _target(fields: dict[str, Any], auth: OAuth | None) -> Target:
    kind = _kind(fields)
    if kind == "url":
        if stray := sorted(fields.keys() & _FOR_COMMANDS):
            raise ValueError(f"{', '.join(stray)}: for commands, not for URLs")
        address = Address(_of(fields, "url", str), headers=_texts(fields, "headers"))
        return attrs.evolve(address, auth=auth_of(fields, address, auth))
    if stray := sorted(fields.keys() & {"headers", "oauth", "auth"}):
        raise ValueError(f"{', '.join(stray)}: for URLs, not for commands")
    args = _of(fields, "args", list, cast("list[Any]", []))
    if not all(isinstance(arg, str) for arg in args):
        raise ValueError("args: must be a list of texts")
    command = _of(fields, "command", str)
    if not command:
        raise ValueError("command: must not be empty")
    return Command([command, *args], env=_texts(fields, "env"), cwd=_of(fields, "cwd", str | None, None))


def _kind(fields: dict[str, Any]) -> str:
    given = [key for key in ("command", "url") if key in fields]
    if len(given) != 1:
        raise ValueError("either command or url is required")
    declared = _of(fields, "type", str, "stdio" if given == ["command"] else "ws")
    if declared not in _TYPES:
        raise ValueError(f"type: {declared!r} is not spoken here, but {', '.join(_TYPES)}")
    if _TYPES[declared] != given[0]:
        raise ValueError(f"type: {declared!r} goes with {_TYPES[declared]}, not with {given[0]}")
    return given[0]


def _of(fields: dict[str, Any], key: str, kind: Any, *default: Any) -> Any:
    value = fields.get(key, *default)
    if not isinstance(value, kind):
        named = {str: "a text", list: "a list", bool: "true or false", dict: "an object"}.get(kind, "a text")
        raise ValueError(f"{key}: must be {named}")  # noqa: TRY004 - a value of the file, not a type of ours
    return value


def _texts(fields: dict[str, Any], key: str) -> dict[str, str]:
    values = cast("dict[str, Any]", _of(fields, key, dict, {}))
    if not all(isinstance(value, str) for value in values.values()):
        raise ValueError(f"{key}: its values must be texts")
    return cast("dict[str, str]", values)


def _expanded(value: Any, variables: Mapping[str, str]) -> Any:
    def stand_in(found: re.Match[str]) -> str:
        kind, name, default = cast("tuple[str | None, str, str | None]", found.groups())
        if kind not in (None, "env"):
            raise ValueError(f"only its host knows what {found[0]} stands for")
        value = variables.get(name, default)
        if value is None:
            raise ValueError(f"there is no variable {name}")
        return value

    if isinstance(value, str):
        return _VARIABLE.sub(stand_in, value)
    if isinstance(value, list):
        return [_expanded(member, variables) for member in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: _expanded(member, variables) for key, member in cast("dict[str, Any]", value).items()}
    return value
