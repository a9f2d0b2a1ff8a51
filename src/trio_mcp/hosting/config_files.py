"""read_config: read the servers in a configuration file that MCP hosts use, such as ``claude_desktop_config.json``.

Files are JSON with comments and trailing commas; an object may repeat a key. `expanded_text` replaces placeholders such
as ``${NAME}`` with the values of variables, as shells do. `auth_of` reads the authorization in an entry.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import attrs

from ..auth.credentials import ClientAuth
from ..classes import frozen
from ..client.options import ClientOptions
from ..connecting.credentials import can_sign_in, trusted_http_hosts
from ..connecting.stdio import Command
from ..connecting.targets import Address, Target
from ..jsonrpc.errors import MCPError
from ..protocol.fields import as_object
from .descriptions import MemberDescription, RestartPolicy, ToolTransform

if TYPE_CHECKING:
    from ..auth.oauth_client.authorization_code import OAuth

_MAX_CHARACTERS: Final = 16 * 1024 * 1024
"""The maximum length of a configuration file, in characters. The file may come from a cloned repository."""


def read_json(path: Path) -> Any:
    """Return the value in a JSON file. Comments are allowed, as in the files of VS Code and other hosts.

    A blank file counts as an empty object. Raises `OSError` if the file can't be read, and `ValueError` or
    `RecursionError` if it isn't valid.
    """
    with path.open(encoding="utf-8-sig") as file:
        text = file.read(_MAX_CHARACTERS + 1)
    if len(text) > _MAX_CHARACTERS:
        raise ValueError(f"the file has more than {_MAX_CHARACTERS:,} characters")
    if not text.strip():  # some hosts create an empty file before the first server is added
        return {}
    return json.loads(without_trailing_commas(without_comments(text)), object_pairs_hook=_object)


class _Repeating(dict[str, Any]):
    """A JSON object from a file in which some keys are repeated.

    The last value of a repeated key is used, as in MCP hosts.
    """

    twice: dict[str, int]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        values = _Repeating(values)
        values.twice = {name: times for name, times in Counter(name for name, _ in pairs).items() if times > 1}
    return values


def names_given_twice(value: Any) -> dict[str, int]:
    """Return the keys that occur more than once in an object from `read_json`, each with the number of its occurrences.

    Returns an empty mapping if ``value`` isn't an object.
    """
    return value.twice if isinstance(value, _Repeating) else {}


# Also match unterminated strings and comments, because searching would otherwise take quadratic time.
_STRING: Final = r'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"?'
_COMMENT: Final = re.compile(rf"{_STRING}|//[^\r\n]*|/\*(?:.*?(?P<end>\*/)|.*)", re.DOTALL)
_TRAILING: Final = re.compile(rf"{_STRING}|,(?=[ \t\r\n]*[}}\]])")
_VISIBLE: Final = re.compile(r"[^\r\n]")


def without_comments(text: str) -> str:
    """Replace the ``//`` and ``/* */`` comments in the JSON ``text`` with spaces, and return the result.

    Line and column numbers stay the same.

    An unterminated comment isn't replaced.
    """

    def blank(found: re.Match[str]) -> str:
        is_comment = found[0].startswith("//") or found["end"] is not None
        return _VISIBLE.sub(" ", found[0]) if is_comment else found[0]

    return _COMMENT.sub(blank, text)


def without_trailing_commas(text: str) -> str:
    """Replace trailing commas in objects and arrays of the JSON ``text`` with spaces, and return the result.

    The text must have no comments.
    """
    return _TRAILING.sub(lambda found: found[0] if found[0][0] == '"' else " ", text)


_HEAD: Final = r"\$\{(?:(\w++):(?![-+?=]))?+(\w[^:${}+?=\0-]*+)(\}|:?[-+?=])"
"""Matches the beginning of a placeholder: its kind, if any; its name; and the operator or a closing brace."""
_INNERMOST: Final = re.compile(rf"{_HEAD}(?:(?<=\}})|((?:(?!{_HEAD})[^}}])*+)\}})")
"""Matches a placeholder whose default contains no other placeholder."""
_MARK: Final = re.compile(r"\0([0-9]+)\0")
"""A mark that replaces a placeholder in the text, with the number of the placeholder's value."""
_DEEPEST: Final = 20
"""The maximum depth of placeholders that are nested in the defaults of others."""


def expanded_text(text: str, variables: Mapping[str, str]) -> str:
    """Return ``text`` with the placeholders ``${NAME}`` and ``${env:NAME}`` replaced by the value of ``NAME`` in
    ``variables``.

    The operators ``-``, ``=``, ``+`` and ``?`` work as in shells, each with or without ``:`` before it. Takes linear
    time.

    Raises `ValueError` for a variable that isn't set, and for another kind of placeholder.
    """
    if "\0" in text:
        raise ValueError("the text must not contain a NUL character")
    values: list[tuple[str, str | None]] = []

    def filled(text: str) -> tuple[str, str | None]:
        """Return ``text`` with its placeholders replaced by values. If a placeholder has no value, also return an error
        text.

        Without such a placeholder, the second item is `None`.
        """
        reasons = [values[int(number)][1] for number in _MARK.findall(text)]
        return _MARK.sub(lambda mark: values[int(mark[1])][0], text), next(filter(None, reasons), None)

    def value_of(found: re.Match[str]) -> tuple[str, str | None]:
        kind, name, operator, word = found.groups("")[:4]
        value = variables.get(name)
        is_set = value is not None and (value != "" or operator[0] != ":")
        if kind not in ("", "env"):
            return "", f"only its host knows what {filled(found[0])[0]} stands for"
        if operator[-1] in ("+" if is_set else "-="):
            return filled(word)
        if is_set or operator[-1] == "+":
            return "" if operator[-1] == "+" else value or "", None
        return "", f"there is no variable {name}" if value is None else f"the variable {name} is empty"

    def marked(found: re.Match[str]) -> str:
        values.append(value_of(found))
        return f"\0{len(values) - 1}\0"

    for _ in range(_DEEPEST + 2):
        text, count = _INNERMOST.subn(marked, text)
        if not count:
            break
    else:
        raise ValueError("the placeholders are nested too deeply")
    expanded, reason = filled(text)
    if reason is not None:
        raise ValueError(reason)
    return expanded


_SECTIONS: Final = ("mcpServers", "servers")
_OFF: Final = {"disabled": True, "enabled": False, "isActive": False}
"""The keys with which hosts disable a server's entry, and the value of each key that does so."""
_URLS: Final = ("httpUrl", "serverUrl", "url")
"""The keys for the URL of a server. As in Gemini CLI, the first key that an entry contains is used."""
_KINDS: Final = ("type", "transport", "transportType")
_ENVS: Final = ("environment", "env")
_FOR_COMMANDS: Final = frozenset({"args", "cwd", *_ENVS})
_FOR_URLS: Final = frozenset({"headers", "oauth", "auth"})
_KNOWN: Final = frozenset({"command", *_FOR_COMMANDS, *_FOR_URLS, *_OFF, *_KINDS, "protocolVersion"})
_TYPES: Final = {
    **dict.fromkeys(("stdio", "local"), "command"),
    **dict.fromkeys(
        ("http", "streamable-http", "http-stream", "sse", "ws", "websocket", "tcp", "unix", "remote"), "url"
    ),
}
"""The values of the key for an entry's type, and the key (command or URL) that each requires. Hosts also write
Streamable HTTP with other separators."""
_SAME_TYPES: Final = {kind.replace("-", ""): key for kind, key in _TYPES.items()}


class ConfigError(MCPError, ValueError):
    """Raised if the configuration file can't be read, or isn't valid."""


class NoServers(ConfigError):
    """Raised if the configuration file contains other settings, but no servers."""


@frozen
class Config:
    """The content of a configuration file: its servers (as members for `open_group`), its problems, and its ignored
    keys."""

    members: dict[str, MemberDescription]
    """The members by name, including disabled ones."""
    problems: dict[str, str]
    """The problems of the file, by the name of the entry. If an entry is invalid, or uses something unsupported, it
    isn't among the members. If only a part of an entry is lost, because the file repeats a key, the entry is among the
    members."""
    ignored: dict[str, tuple[str, ...]]
    """The keys that trio-mcp ignores, by the name of the entry."""


def read_config(
    path: str | os.PathLike[str],
    *,
    restart: RestartPolicy | None = None,
    options: ClientOptions | None = None,
    variables: Mapping[str, str] | None = None,
    auth: OAuth | None = None,
) -> Config:
    """Read the servers in a JSON file that has the key ``mcpServers`` or ``servers``.

    Returns the servers as members for `open_group`, together with the problems of the file.

    The file may have comments and trailing commas, which some hosts allow. An invalid entry doesn't affect the others:
    see `Config`. An entry has

    - ``command`` with ``args``, ``env`` and ``cwd``, or ``url`` with ``headers`` and ``oauth``
    - optionally ``type``, ``disabled``, ``protocolVersion`` (the only revision to speak), and ``tools`` (an object of
      `ToolTransform` by tool name)

    The spellings of other hosts are accepted as well: ``serverUrl``, ``httpUrl``, ``transport``, ``"enabled": false``
    and ``"isActive": false``. Null and empty values count as absent.

    The object ``oauth`` of an entry applies to its server alone. All its keys are optional: ``clientId``,
    ``clientSecret``, ``issuer``, ``clientMetadataUrl``, ``scopes`` (a string, or a list of strings), ``callbackPort``
    or ``redirectUri``, ``assumePkce``, and ``grantType``: ``"client_credentials"`` for a client without a user.
    Cursor's ``auth``, ``{"CLIENT_ID": …, "CLIENT_SECRET": …, "scopes": […]}``, has the same meaning.

    Args:
        path: The file.
        restart: The restart policy of all members.
        options: The options of all members' clients.
        variables: Values for placeholders, `os.environ` for example: ``${NAME}``, ``${NAME:-default}`` and
            ``${env:NAME}`` are replaced in all strings, as in a shell. Any other placeholder (``${input:…}``) is a
            problem of its entry.
        auth: Signs the user in to servers over HTTP and WebSocket, except those with an ``Authorization`` header.
            Without it, entries with ``oauth`` use the defaults of `OAuth`; with ``"oauth": false`` the user isn't
            asked.

    Raises:
        ConfigError: The file can't be read, or isn't a valid configuration.
    """
    config = Config({}, {}, {})
    entries = _entries(Path(path), config.problems)
    for name, entry in entries.items():
        problems = ["the file has several entries of this name, and the last one counts"] * (
            name in names_given_twice(entries)
        )
        try:
            fields = _fields_of(name, entry, variables)
            disabled = any(_flag(fields, key, not off) is off for key, off in _OFF.items())
            revision = _typed_field(fields, "protocolVersion", str | None, None)
            config.members[name] = MemberDescription(
                attrs.evolve(_target(fields, auth), revision=revision),
                restart=restart,
                options=options or {},
                disabled=disabled,
                tools=_transforms(fields),
            )
        except ValueError as error:
            problems.append(str(error))
        except RecursionError:
            problems.append("the entry is nested too deeply")
        else:
            twice = [
                *names_given_twice(entry),
                *(f"{key}.{each}" for key, value in entry.items() for each in names_given_twice(value)),
            ]
            if twice:
                problems.append(f"{', '.join(twice[:10])}: given several times, and the last value counts")
            if unknown := _unknown_in(entry, fields):
                config.ignored[name] = tuple(sorted(unknown))
        if problems:
            config.problems[name] = "; ".join(problems)
    return config


def _fields_of(name: str, entry: Any, variables: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the keys and values of a configuration entry. Keys with an empty value are left out.

    Placeholders are replaced by ``variables``. Raises `ValueError` if a value is invalid.
    """
    if not name.strip():
        raise ValueError("the name of an entry must not be empty")
    if not isinstance(entry, dict):
        raise ValueError("the entry must be a JSON object")  # noqa: TRY004 - a value of the file, not a type of ours
    fields = cast("dict[str, Any]", entry if variables is None else _expanded(entry, variables))
    return {key: value for key, value in fields.items() if not _is_absent(key, value)}


def _unknown_in(entry: dict[str, Any], fields: dict[str, Any]) -> set[str]:
    """Return the unknown keys of a configuration entry, which are ignored.

    This includes unknown keys in the OAuth sections of the entry.
    """
    known = {_server_key(fields), "tools"} if isinstance(fields.get("tools"), dict) else {_server_key(fields)}
    unknown = entry.keys() - _KNOWN - known
    for key, known in _KNOWN_OF_OAUTH.items():
        unknown |= {f"{key}.{member}" for member in as_object(fields.get(key)).keys() - known}
    return unknown


def _entries(path: Path, problems: dict[str, str]) -> dict[str, Any]:
    try:
        data = read_json(path)
    except (OSError, ValueError, RecursionError) as error:
        raise unreadable(path, error) from error
    for section in _SECTIONS if isinstance(data, dict) else ():
        entries = cast("dict[str, Any]", data).get(section)
        if isinstance(entries, dict):
            if section in names_given_twice(data):
                problems[section] = "the file has several objects of this name, and the last one counts"
            return cast("dict[str, Any]", entries)
    other = isinstance(data, dict) and all(cast("dict[str, Any]", data).get(section) is None for section in _SECTIONS)
    raise (NoServers if other else ConfigError)(f"{path} has no object named mcpServers")


def unreadable(path: Path, error: Exception) -> ConfigError:
    """Return the error to raise for a file that `read_json` couldn't read, because it raised ``error``."""
    if isinstance(error, OSError):
        return ConfigError(f"{path} cannot be read: {error.strerror}")
    words = "the file is nested too deeply" if isinstance(error, RecursionError) else error
    return ConfigError(f"{path} is not JSON: {words}")


def _is_absent(key: str, value: Any) -> bool:
    """Return whether ``value`` is treated like a missing value: null, an empty string, an empty list or an empty
    object.

    An empty object ``oauth`` isn't absent, because it means that the user signs in.
    """
    return value is None or value in ("", []) or (value == {} and key not in _KNOWN_OF_OAUTH)


def _flag(fields: dict[str, Any], key: str, default: bool) -> bool:
    value = fields.get(key, default)
    return _typed_field({key: {"true": True, "false": False}.get(str(value).lower(), value)}, key, bool)


def _target(fields: dict[str, Any], auth: OAuth | None) -> Target:
    key = _server_key(fields)
    kind = "command" if key == "command" else "url"
    for name in _KINDS:
        declared = _typed_field(fields, name, str, "stdio" if kind == "command" else "http")
        wanted = _SAME_TYPES.get(re.sub("[-_ ]", "", declared.lower()))
        if wanted is None:
            raise ValueError(f"{name}: must be one of {', '.join(_TYPES)}, not {declared!r}")
        if wanted != kind:
            raise ValueError(f"{name}: the type {declared!r} needs the key {wanted}, not {key}")
    stray = sorted(fields.keys() & (_FOR_COMMANDS if kind == "url" else _FOR_URLS))
    if stray:
        words = "servers with a command" if kind == "url" else "servers with a URL"
        raise ValueError(f"{', '.join(stray)}: allowed only for {words}")
    if kind == "url":
        address = Address(_typed_field(fields, key, str), headers=_texts(fields, "headers", _text))
        return attrs.evolve(address, auth=auth_of(fields, address, auth))
    env = {name: value for each in _ENVS for name, value in _texts(fields, each, _scalar).items()}
    return Command(
        [*_program(fields), *_words(fields, "args")], env=env, cwd=_typed_field(fields, "cwd", str | None, None)
    )


def _program(fields: dict[str, Any]) -> list[str]:
    """Return the program of a configuration entry, with its arguments if the entry has both in one list (as some hosts
    write it)."""
    if isinstance(fields["command"], list):
        return _words(fields, "command")
    command = _typed_field(fields, "command", str)
    program, *args = command.split() or [command]
    if args and "/" not in program:  # a path may contain spaces, but the name of a program must not
        raise ValueError(
            f"command: must be a program, not {command[:100]!r}; write the arguments as a list: "
            f'"command": {json.dumps(program[:100])}, "args": {json.dumps(args)[:300]}'
        )
    return [command]


def _words(fields: dict[str, Any], key: str) -> list[str]:
    return [
        _scalar(f"{key}[{at}]", word) for at, word in enumerate(_typed_field(fields, key, list, cast("list[Any]", [])))
    ]


def _scalar(name: str, value: Any) -> str:
    """Return the string ``value`` unchanged, or a number or boolean as JSON text."""
    return json.dumps(value) if isinstance(value, bool | int | float) else _text(name, value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name}: must be a string")  # noqa: TRY004 - a value of the file, not a type of ours
    return value


def _server_key(fields: dict[str, Any]) -> str:
    """Return the key of a configuration entry that determines how to reach the server, such as ``command`` or
    ``url``."""
    urls = [key for key in _URLS if key in fields]
    if ("command" in fields) == bool(urls):
        raise ValueError("either command or url is required")
    return urls[0] if urls else "command"


def _typed_field(fields: dict[str, Any], key: str, kind: Any, *default: Any, where: str = "") -> Any:
    value = fields.get(key, *default)
    if not isinstance(value, kind):
        named = {list: "a list", bool: "true or false", bool | None: "true or false", dict: "an object"}
        raise ValueError(f"{where}{key}: must be {named.get(kind, 'a string')}")  # noqa: TRY004 - a value of the file, not a type of ours
    return value


_OF_TOOLS: Final = {
    "name": str | None,
    "title": str | None,
    "description": str | None,
    "hidden": bool,
    "presets": dict,
    "hiddenArguments": list,
}
"""The keys for each tool in the section ``tools``, with the types of their values."""


def _transforms(fields: dict[str, Any]) -> dict[str, ToolTransform]:
    """Return the tool transforms in a configuration entry.

    If ``tools`` is a list of names, as in files of some other hosts, it is ignored.
    """
    tools = fields.get("tools")
    if not isinstance(tools, dict):
        return {}
    transforms = dict[str, ToolTransform]()
    for name, tool in cast("dict[str, Any]", tools).items():
        where = f"tools.{name}."
        given = cast("dict[str, Any]", _typed_field({name: tool}, name, dict, where="tools."))
        if unknown := given.keys() - _OF_TOOLS.keys():
            raise ValueError(f"{where}{min(unknown)}: unknown key; the known keys are {', '.join(_OF_TOOLS)}")
        values = {key: _typed_field(given, key, _OF_TOOLS[key], where=where) for key in given}
        if "hiddenArguments" in values:
            del values["hiddenArguments"]
            hidden = enumerate(given["hiddenArguments"])
            values["hidden_arguments"] = [_text(f"{where}hiddenArguments.{at}", each) for at, each in hidden]
        transforms[name] = ToolTransform(**values)
    return transforms


def _texts(fields: dict[str, Any], key: str, read: Callable[[str, Any], str]) -> dict[str, str]:
    given = _typed_field(fields, key, dict, {}).items()
    return {name: read(f"{key}.{name}", value) for name, value in given if value is not None}


def _expanded(value: Any, variables: Mapping[str, str], where: str = "") -> Any:
    if isinstance(value, str):
        try:
            return expanded_text(value, variables)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
    if isinstance(value, list):
        return [_expanded(member, variables, f"{where}[{at}]") for at, member in enumerate(cast("list[Any]", value))]
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value).items()
        return {key: _expanded(member, variables, f"{where}.{key}".lstrip(".")) for key, member in members}
    return value


_OAUTH_FIELDS: Final = {
    "clientId": "client_id",
    "clientSecret": "client_secret",
    "issuer": "issuer",
    "clientMetadataUrl": "client_metadata_url",
    "redirectUri": "redirect_uri",
    "scopes": "scopes",
}
"""The keys of the section ``oauth``, as in Claude Code, VS Code and Gemini CLI, with the parameters of `OAuth` that
they set."""
_OF_CURSOR: Final = {"CLIENT_ID": "client_id", "CLIENT_SECRET": "client_secret", "scopes": "scopes"}
"""The keys of the section ``auth``, as in Cursor, with the parameters of `OAuth` that they set."""
_KNOWN_OF_OAUTH: Final = {
    "oauth": {*_OAUTH_FIELDS, "callbackPort", "assumePkce", "grantType", "enabled"},
    "auth": {*_OF_CURSOR},
}
_FOR_MACHINES: Final = frozenset(("client_id", "client_secret", "issuer", "scopes"))
_LARGEST_PORT: Final = 65535


def auth_of(fields: dict[str, Any], address: Address, general: OAuth | None) -> ClientAuth | None:
    """Return the authorization that a client uses for the server at ``address``.

    ``general`` is the authorization for all servers. ``fields``, the server's entry in the configuration file, may
    change it.

    Raises `ValueError` if the entry is invalid; the message contains no values.
    """
    given = [key for key in _KNOWN_OF_OAUTH if key in fields]
    if len(given) == 2:
        raise ValueError("oauth, auth: use only one of the two")
    has_header = any(name.lower() == "authorization" for name in address.headers)
    if not given:
        trusted = trusted_http_hosts(general)
        return general if can_sign_in(address.url, trusted) and not has_header else None
    key = given[0]
    section = fields[key]
    if section is False and key == "oauth":
        return None
    if section == "oauth" and key == "auth":  # FastMCP writes "auth": "oauth"
        section = {}
    section = cast("dict[str, Any]", _typed_field({key: section}, key, dict))
    if _typed_field(section, "enabled", bool | None, None, where="oauth.") is False:
        return None
    if has_header:
        raise ValueError(f"{key}, headers: both authorize the requests; use only one of the two")
    if not can_sign_in(address.url, trusted_http_hosts(general)):
        raise ValueError(f"{key}: refusing to send a token to this server; its URL must use https or wss")
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
            # Refuse an empty string: a variable in the file may be empty by mistake.
            parameters[parameter] = _scopes(key, value) if name == "scopes" else _text(f"{key}.{name}", value or None)
    if "client_secret" in parameters and "client_id" not in parameters:
        raise ValueError(f"{key}: a client secret needs a client id")
    if key == "oauth":
        if section.get("grantType", "authorization_code") not in ("authorization_code", "client_credentials"):
            raise ValueError('oauth.grantType: must be "authorization_code" or "client_credentials"')
        if "assumePkce" in section:
            parameters["assume_pkce"] = _typed_field(section, "assumePkce", bool, where="oauth.")
        if "callbackPort" in section:
            if "redirect_uri" in parameters:
                raise ValueError("oauth.callbackPort, oauth.redirectUri: use only one of the two")
            port = section["callbackPort"]
            if not isinstance(port, int) or isinstance(port, bool) or not 0 < port <= _LARGEST_PORT:
                raise ValueError(f"oauth.callbackPort: must be a number from 1 to {_LARGEST_PORT}")
            parameters["redirect_uri"] = f"http://localhost:{port}/callback"
    return parameters


def _for_a_machine(parameters: dict[str, Any], general: OAuth | None) -> ClientAuth:
    from ..auth.oauth_client.machine_clients import ClientCredentials

    if not {"client_id", "client_secret"} <= parameters.keys():
        raise ValueError("oauth: client_credentials needs clientId and clientSecret")
    if parameters.keys() - _FOR_MACHINES:
        raise ValueError(
            "oauth: client_credentials must not be combined with keys for a browser or a metadata document"
        )
    if general is not None:
        parameters |= {"storage": general.storage, "dpop": general.dpop, "ssl_context": general.ssl_context}
        parameters |= {"public_addresses_only": general.public_addresses_only, "http_proxy": general.http_proxy}
        parameters |= {"trusted_http_hosts": general.trusted_http_hosts}
    return ClientCredentials(**parameters)


def _scopes(key: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(value.split())
    if not isinstance(value, list) or not all(isinstance(scope, str) for scope in cast("list[Any]", value)):
        raise ValueError(f"{key}.scopes: must be a string, or a list of strings")
    return tuple(cast("list[str]", value))
