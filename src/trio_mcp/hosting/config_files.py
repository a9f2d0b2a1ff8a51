"""read_config: read the servers in a configuration file of the kind that hosts keep.

Such files are JSON with comments, as VS Code and others write; `auth_of` reads the authorization in an entry.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import attrs

from ..auth.credentials import ClientAuth
from ..classes import frozen
from ..client.options import ClientOptions
from ..connecting.credentials import can_sign_in
from ..connecting.stdio import Command
from ..connecting.targets import Address, Target
from ..jsonrpc.errors import MCPError
from .descriptions import MemberDescription, RestartPolicy

if TYPE_CHECKING:
    from ..auth.oauth_client.authorization_code import OAuth

_SECTIONS: Final = ("mcpServers", "servers")
_KNOWN: Final = frozenset({"command", "args", "env", "cwd", "url", "headers", "oauth", "auth", "type", "disabled"})
_FOR_COMMANDS: Final = frozenset({"args", "env", "cwd"})
_TYPES: Final = {
    "stdio": "command",
    **dict.fromkeys(("http", "streamable-http", "streamableHttp", "ws", "websocket", "tcp", "unix"), "url"),
}
"""Types of entries, with the key that each goes with. Hosts spell Streamable HTTP in three ways."""
_VARIABLE: Final = re.compile(r"(?:(\w+):(?!-))?(\w[^:]*)(?::-(.*))?", re.DOTALL)
"""The inside of a placeholder: the kind, if given; the name; the default."""
_MOST_CHARACTERS: Final = 16 * 1024 * 1024
"""Maximum characters of a file. A configuration file may come from a cloned repository."""


class ConfigError(MCPError, ValueError):
    """The file cannot be read, or does not hold such a configuration."""


@frozen
class Config:
    """The members, problems and ignored keys of a configuration file."""

    members: dict[str, MemberDescription]
    """Members by name, disabled ones included."""
    problems: dict[str, str]
    """Reasons why entries are not among the members, by name: entries without sense, or with something unsupported."""
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
    """Read the ``mcpServers`` (or ``servers``) of a JSON file, with ``restart`` and ``options`` for all.

    The file may have comments and trailing commas, which some hosts allow. An entry has ``command`` with ``args``,
    ``env`` and ``cwd``, or ``url`` with ``headers`` and ``oauth``; and may have ``type`` and ``disabled``. With
    ``variables``, `os.environ` for example, ``${NAME}``, ``${NAME:-default}`` and ``${env:NAME}`` stand for their
    values in all strings; any other placeholder of a host (``${input:…}``) is a problem of its entry. A bad entry does
    not affect the others: see `Config`. Raises `ConfigError`.

    ``auth`` has the user sign in to the servers over HTTP and WebSocket, but for servers with an ``Authorization``
    among the headers. The object ``oauth`` of an entry is about this server alone, each member optional: ``clientId``,
    ``clientSecret``, ``issuer``, ``clientMetadataUrl``, ``scopes`` (a text, or a list of texts), ``callbackPort`` or
    ``redirectUri``, ``assumePkce``, and ``grantType``: ``"client_credentials"`` for a client without a user. Without
    ``auth``, entries with ``oauth`` have the user sign in as `OAuth` does by default; with ``"oauth": false`` nobody is
    asked. The ``auth`` of Cursor, ``{"CLIENT_ID": …, "CLIENT_SECRET": …, "scopes": […]}``, means the same.
    """
    config = Config({}, {}, {})
    for name, entry in _entries(Path(path)).items():
        try:
            if not isinstance(entry, dict):
                raise ValueError("it is no JSON object")  # noqa: TRY004, TRY301 - a value of the file, not a type of ours
            fields = cast("dict[str, Any]", entry if variables is None else _expanded(entry, variables))
            disabled = _of(fields, "disabled", bool, False)
            config.members[name] = MemberDescription(
                _target(fields, auth), restart=restart, options=options or {}, disabled=disabled
            )
        except ValueError as error:
            config.problems[name] = str(error)
        except RecursionError:
            config.problems[name] = "it is nested too deeply"
        else:
            unknown = fields.keys() - _KNOWN
            for key, known in _KNOWN_OF_OAUTH.items():
                if isinstance(section := fields.get(key), dict):
                    unknown |= {f"{key}.{member}" for member in cast("dict[str, Any]", section).keys() - known}
            if unknown:
                config.ignored[name] = tuple(sorted(unknown))
    return config


def _entries(path: Path) -> dict[str, Any]:
    try:
        data = _data(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is no JSON: {error}") from error
    except RecursionError:
        raise ConfigError(f"{path} is no JSON: it is nested too deeply") from None
    for section in _SECTIONS if isinstance(data, dict) else ():
        entries = cast("dict[str, Any]", data).get(section)
        if isinstance(entries, dict):
            return cast("dict[str, Any]", entries)
    raise ConfigError(f"{path} has no object named mcpServers")


def _data(path: Path) -> Any:
    with path.open(encoding="utf-8-sig") as file:
        text = file.read(_MOST_CHARACTERS + 1)
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"it has more than {_MOST_CHARACTERS:,} characters")
    return json.loads(without_trailing_commas(without_comments(text)))


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
    if isinstance(value, str):
        return _expanded_text(value, variables)
    if isinstance(value, list):
        return [_expanded(member, variables) for member in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: _expanded(member, variables) for key, member in cast("dict[str, Any]", value).items()}
    return value


def _expanded_text(text: str, variables: Mapping[str, str]) -> str:
    """Return ``text`` with its variables replaced by their values. Takes linear time."""
    parts: list[str] = []
    at = 0
    while (start := text.find("${", at)) >= 0 and (end := text.find("}", start)) >= 0:
        found = _VARIABLE.fullmatch(text, start + 2, end)
        if found is None:  # a brace of something else, which may contain placeholders
            start = text.rfind("${", start, end)
            found = _VARIABLE.fullmatch(text, start + 2, end)
        end += 1
        parts += text[at:start], text[start:end] if found is None else _value_of(found, text[start:end], variables)
        at = end
    return "".join((*parts, text[at:]))


def _value_of(found: re.Match[str], placeholder: str, variables: Mapping[str, str]) -> str:
    kind, name, default = cast("tuple[str | None, str, str | None]", found.groups())
    if kind not in (None, "env"):
        raise ValueError(f"only its host knows what {placeholder} stands for")
    value = variables.get(name, default)
    if value is None:
        raise ValueError(f"there is no variable {name}")
    return value


_OAUTH_FIELDS: Final = {
    "clientId": "client_id",
    "clientSecret": "client_secret",
    "issuer": "issuer",
    "clientMetadataUrl": "client_metadata_url",
    "redirectUri": "redirect_uri",
    "scopes": "scopes",
}
"""Keys of ``oauth`` with the parameters of `OAuth`, as Claude Code, VS Code and Gemini CLI have such keys."""
_OF_CURSOR: Final = {"CLIENT_ID": "client_id", "CLIENT_SECRET": "client_secret", "scopes": "scopes"}
"""Keys of ``auth`` with the parameters of `OAuth`, in the spelling of Cursor."""
_KNOWN_OF_OAUTH: Final = {
    "oauth": {*_OAUTH_FIELDS, "callbackPort", "assumePkce", "grantType", "enabled"},
    "auth": {*_OF_CURSOR},
}
_FOR_MACHINES: Final = frozenset(("client_id", "client_secret", "issuer", "scopes"))
_LARGEST_PORT: Final = 65535


def auth_of(fields: dict[str, Any], address: Address, general: OAuth | None) -> ClientAuth | None:
    """Return the authorization for ``address``, the server of an entry with such ``fields``: the ``general`` one, with
    all that the entry says. Raises `ValueError` for an entry that makes no sense; no value is told."""
    given = [key for key in _KNOWN_OF_OAUTH if key in fields]
    if len(given) == 2:
        raise ValueError("oauth, auth: one of the two")
    has_header = any(name.lower() == "authorization" for name in address.headers)
    if not given:
        return general if can_sign_in(address.url) and not has_header else None
    key = given[0]
    section = fields[key]
    if section is False and key == "oauth":
        return None
    if section == "oauth" and key == "auth":  # as FastMCP writes it
        section = {}
    if not isinstance(section, dict):
        raise ValueError(f"{key}: must be an object")  # noqa: TRY004 - a value of the file, not a type of ours
    section = cast("dict[str, Any]", section)
    if (enabled := section.get("enabled")) is False:
        return None
    if not isinstance(enabled, bool | None):
        raise ValueError("oauth.enabled: must be true or false")  # noqa: TRY004 - as above
    if has_header:
        raise ValueError(f"{key}, headers: both authorize the requests; one of the two")
    if not can_sign_in(address.url):
        raise ValueError(f"{key}: no token is sent there; the server needs https or wss")
    parameters = _parameters(key, section)
    if section.get("grantType", "authorization_code") == "client_credentials" and key == "oauth":
        return _for_a_machine(parameters, general)
    from ..auth.oauth_client.authorization_code import OAuth

    return attrs.evolve(general or OAuth(), **parameters)


def _parameters(key: str, section: dict[str, Any]) -> dict[str, Any]:
    names = _OAUTH_FIELDS if key == "oauth" else _OF_CURSOR
    parameters: dict[str, Any] = {}
    for name, parameter in names.items():
        if name in section:
            value = section[name]
            parameters[parameter] = _scopes(key, value) if name == "scopes" else _text(f"{key}.{name}", value)
    if "client_secret" in parameters and "client_id" not in parameters:
        raise ValueError(f"{key}: a client secret goes with a client id")
    if key == "oauth":
        if section.get("grantType", "authorization_code") not in ("authorization_code", "client_credentials"):
            raise ValueError('oauth.grantType: must be "authorization_code" or "client_credentials"')
        if "assumePkce" in section:
            if not isinstance(section["assumePkce"], bool):
                raise ValueError("oauth.assumePkce: must be true or false")
            parameters["assume_pkce"] = section["assumePkce"]
        if "callbackPort" in section:
            if "redirect_uri" in parameters:
                raise ValueError("oauth.callbackPort, oauth.redirectUri: one of the two")
            port = section["callbackPort"]
            if not isinstance(port, int) or isinstance(port, bool) or not 0 < port <= _LARGEST_PORT:
                raise ValueError(f"oauth.callbackPort: must be a number from 1 to {_LARGEST_PORT}")
            parameters["redirect_uri"] = f"http://localhost:{port}/callback"
    return parameters


def _for_a_machine(parameters: dict[str, Any], general: OAuth | None) -> ClientAuth:
    from ..auth.oauth_client.machine_clients import ClientCredentials

    if not {"client_id", "client_secret"} <= parameters.keys():
        raise ValueError("oauth: client_credentials need clientId and clientSecret")
    if parameters.keys() - _FOR_MACHINES:
        raise ValueError("oauth: client_credentials need neither a browser nor a metadata document")
    if general is not None:
        parameters |= {"storage": general.storage, "dpop": general.dpop, "ssl_context": general.ssl_context}
        parameters |= {"public_addresses_only": general.public_addresses_only, "proxy": general.proxy}
    return ClientCredentials(**parameters)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name}: must be a text")
    return value


def _scopes(key: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(value.split())
    if not isinstance(value, list) or not all(isinstance(scope, str) for scope in cast("list[Any]", value)):
        raise ValueError(f"{key}.scopes: must be a text, or a list of texts")
    return tuple(cast("list[str]", value))


# Each pattern also matches an unterminated string or comment, up to the end of the line or text. Otherwise the search
# would read the rest again from each of its parts.
_STRING: Final = r'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"?'
_COMMENT: Final = re.compile(rf"{_STRING}|//[^\r\n]*|/\*(?:.*?(?P<end>\*/)|.*)", re.DOTALL)
_TRAILING: Final = re.compile(rf"{_STRING}|,(?=[ \t\r\n]*[}}\]])")
_VISIBLE: Final = re.compile(r"[^\r\n]")


def without_comments(text: str) -> str:
    """Return ``text`` with ``//`` and ``/* */`` comments replaced by spaces, so that lines and columns stay the same.
    An unterminated comment stays."""

    def blank(found: re.Match[str]) -> str:
        is_comment = found[0].startswith("//") or found["end"] is not None
        return _VISIBLE.sub(" ", found[0]) if is_comment else found[0]

    return _COMMENT.sub(blank, text)


def without_trailing_commas(text: str) -> str:
    """Return ``text``, which has no comments, with spaces in place of commas after the last member of an object or
    array."""
    return _TRAILING.sub(lambda found: found[0] if found[0][0] == '"' else " ", text)
