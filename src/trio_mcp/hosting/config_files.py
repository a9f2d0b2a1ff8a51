"""read_config: read the servers in a configuration file of the kind that hosts keep.

Files are JSON with comments and trailing commas; an object may have a name several times. `expanded_text` replaces
placeholders, as ``${NAME}``, by values of variables, as shells do. `auth_of` reads the authorization in an entry.
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
from .descriptions import MemberDescription, RestartPolicy

if TYPE_CHECKING:
    from ..auth.oauth_client.authorization_code import OAuth
    from .transforms import ToolTransform


_MAX_CHARACTERS: Final = 16 * 1024 * 1024
"""Maximum characters of a file. A configuration file may come from a cloned repository."""


def read_json(path: Path) -> Any:
    """Return the value in a file of JSON with comments, as VS Code and others write; of a blank file, an empty object.
    Raises `OSError`, `ValueError` and `RecursionError`."""
    with path.open(encoding="utf-8-sig") as file:
        text = file.read(_MAX_CHARACTERS + 1)
    if len(text) > _MAX_CHARACTERS:
        raise ValueError(f"it has more than {_MAX_CHARACTERS:,} characters")
    if not text.strip():  # as some hosts leave it before the first server
        return {}
    return json.loads(without_trailing_commas(without_comments(text)), object_pairs_hook=_object)


class _Repeating(dict[str, Any]):
    """A JSON object that has some names several times. The last value counts, as for hosts."""

    twice: dict[str, int]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        values = _Repeating(values)
        values.twice = {name: times for name, times in Counter(name for name, _ in pairs).items() if times > 1}
    return values


def names_given_twice(value: Any) -> dict[str, int]:
    """Return the names that a value of `read_json`, if it is an object, has several times, with the numbers."""
    return value.twice if isinstance(value, _Repeating) else {}


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


_HEAD: Final = r"\$\{(?:(\w++):(?![-+?=]))?+(\w[^:${}+?=\0-]*+)(\}|:?[-+?=])"
"""The beginning of a placeholder: the kind, if given; the name; the operator, or a closing brace."""
_INNERMOST: Final = re.compile(rf"{_HEAD}(?:(?<=\}})|((?:(?!{_HEAD})[^}}])*+)\}})")
"""A placeholder with no other one in its default."""
_MARK: Final = re.compile(r"\0([0-9]+)\0")
"""The number of a value, in the place of its placeholder."""
_DEEPEST: Final = 20
"""Levels of placeholders in defaults of others."""


def expanded_text(text: str, variables: Mapping[str, str]) -> str:
    """Return ``text`` with ``${NAME}`` and ``${env:NAME}`` replaced by values, and with the operators ``-``, ``=``,
    ``+`` and ``?`` of shells, each with ``:`` before it or without. Takes linear time.

    Raises `ValueError` for a variable that isn't set, and for a placeholder of another kind.
    """
    if "\0" in text:
        raise ValueError("it must not have a NUL")
    values: list[tuple[str, str | None]] = []

    def filled(text: str) -> tuple[str, str | None]:
        """Return ``text`` with its values, and the reason why it has none."""
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
        raise ValueError("its placeholders are nested too deeply")
    expanded, reason = filled(text)
    if reason is not None:
        raise ValueError(reason)
    return expanded


_SECTIONS: Final = ("mcpServers", "servers")
_OFF: Final = {"disabled": True, "enabled": False, "isActive": False}
"""Keys by which hosts switch an entry off, with the value that does so."""
_URLS: Final = ("httpUrl", "serverUrl", "url")
"""Keys of a URL. The first of them counts, as in Gemini CLI."""
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
"""Types of entries, with the key that each goes with. Hosts also write Streamable HTTP with other separators."""
_SAME_TYPES: Final = {kind.replace("-", ""): key for kind, key in _TYPES.items()}


class ConfigError(MCPError, ValueError):
    """The file cannot be read, or does not hold such a configuration."""


class NoServers(ConfigError):
    """The file holds other settings, but no servers."""


@frozen
class Config:
    """The members, problems and ignored keys of a configuration file."""

    members: dict[str, MemberDescription]
    """Members by name, disabled ones included."""
    problems: dict[str, str]
    """What is wrong, by name of the entry. The entry isn't among the members if it is invalid or has something
    unsupported; it is if a part of it is lost, because a name occurs twice in the file."""
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
    ``env`` and ``cwd``, or ``url`` with ``headers`` and ``oauth``; and may have ``type``, ``disabled`` and
    ``protocolVersion``, the only revision to speak, and ``tools``, an object of `ToolTransform` by name. The
    spellings of other hosts are read as well: ``serverUrl``, ``httpUrl``, ``transport``, ``"enabled": false`` and
    ``"isActive": false``. Null and empty values count as absent.

    With ``variables``, `os.environ` for example, ``${NAME}``, ``${NAME:-default}`` and ``${env:NAME}`` stand for their
    values in all strings, as in a shell; any other placeholder of a host (``${input:…}``) is a problem of its entry. A
    bad entry does not affect the others: see `Config`. Raises `ConfigError`.

    ``auth`` has the user sign in to the servers over HTTP and WebSocket, but for servers with an ``Authorization``
    among the headers. The object ``oauth`` of an entry is about this server alone, each member optional: ``clientId``,
    ``clientSecret``, ``issuer``, ``clientMetadataUrl``, ``scopes`` (a text, or a list of texts), ``callbackPort`` or
    ``redirectUri``, ``assumePkce``, and ``grantType``: ``"client_credentials"`` for a client without a user. Without
    ``auth``, entries with ``oauth`` have the user sign in as `OAuth` does by default; with ``"oauth": false`` nobody is
    asked. The ``auth`` of Cursor, ``{"CLIENT_ID": …, "CLIENT_SECRET": …, "scopes": […]}``, means the same.
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
            problems.append("it is nested too deeply")
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
    """Return the members of an entry that say something, with ``variables`` in place. Raises `ValueError`."""
    if not name.strip():
        raise ValueError("the name of an entry must not be empty")
    if not isinstance(entry, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - a value of the file, not a type of ours
    fields = cast("dict[str, Any]", entry if variables is None else _expanded(entry, variables))
    return {key: value for key, value in fields.items() if not _is_absent(key, value)}


def _unknown_in(entry: dict[str, Any], fields: dict[str, Any]) -> set[str]:
    """Return the names of members that mean nothing here, those of the sections about OAuth included."""
    known = {_server_key(fields), "tools"} if isinstance(fields.get("tools"), dict) else {_server_key(fields)}
    unknown = entry.keys() - _KNOWN - known
    for key, known in _KNOWN_OF_OAUTH.items():
        unknown |= {f"{key}.{member}" for member in as_object(fields.get(key)).keys() - known}
    return unknown


def _entries(path: Path, problems: dict[str, str]) -> dict[str, Any]:
    try:
        data = read_json(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is no JSON: {error}") from error
    except RecursionError:
        raise ConfigError(f"{path} is no JSON: it is nested too deeply") from None
    for section in _SECTIONS if isinstance(data, dict) else ():
        entries = cast("dict[str, Any]", data).get(section)
        if isinstance(entries, dict):
            if section in names_given_twice(data):
                problems[section] = "the file has several objects of this name, and the last one counts"
            return cast("dict[str, Any]", entries)
    other = isinstance(data, dict) and all(cast("dict[str, Any]", data).get(section) is None for section in _SECTIONS)
    raise (NoServers if other else ConfigError)(f"{path} has no object named mcpServers")


def _is_absent(key: str, value: Any) -> bool:
    """Return whether ``value`` counts as absent. An empty ``oauth`` has the user sign in."""
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
            raise ValueError(f"{name}: {declared!r} is not spoken here, but {', '.join(_TYPES)}")
        if wanted != kind:
            raise ValueError(f"{name}: {declared!r} goes with {wanted}, not with {key}")
    stray = sorted(fields.keys() & (_FOR_COMMANDS if kind == "url" else _FOR_URLS))
    if stray:
        words = "commands, not for URLs" if kind == "url" else "URLs, not for commands"
        raise ValueError(f"{', '.join(stray)}: for {words}")
    if kind == "url":
        address = Address(_typed_field(fields, key, str), headers=_texts(fields, "headers", _text))
        return attrs.evolve(address, auth=auth_of(fields, address, auth))
    env = {name: value for each in _ENVS for name, value in _texts(fields, each, _scalar).items()}
    return Command(
        [*_program(fields), *_words(fields, "args")], env=env, cwd=_typed_field(fields, "cwd", str | None, None)
    )


def _program(fields: dict[str, Any]) -> list[str]:
    """Return the program, and the arguments beside it where a host writes both as one list."""
    if isinstance(fields["command"], list):
        return _words(fields, "command")
    command = _typed_field(fields, "command", str)
    program, *args = command.split() or [command]
    if args and "/" not in program:  # a path may have spaces in it, but no name of a program has
        raise ValueError(
            f"command: {command[:100]!r} is no program; write the arguments as a list: "
            f'"command": {json.dumps(program[:100])}, "args": {json.dumps(args)[:300]}'
        )
    return [command]


def _words(fields: dict[str, Any], key: str) -> list[str]:
    return [
        _scalar(f"{key}[{at}]", word) for at, word in enumerate(_typed_field(fields, key, list, cast("list[Any]", [])))
    ]


def _scalar(name: str, value: Any) -> str:
    """Return a text as it is, and a number or boolean as JSON writes it."""
    return json.dumps(value) if isinstance(value, bool | int | float) else _text(name, value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name}: must be a text")  # noqa: TRY004 - a value of the file, not a type of ours
    return value


def _server_key(fields: dict[str, Any]) -> str:
    """Return the key that says where the server is."""
    urls = [key for key in _URLS if key in fields]
    if ("command" in fields) == bool(urls):
        raise ValueError("either command or url is required")
    return urls[0] if urls else "command"


def _typed_field(fields: dict[str, Any], key: str, kind: Any, *default: Any, where: str = "") -> Any:
    value = fields.get(key, *default)
    if not isinstance(value, kind):
        named = {list: "a list", bool: "true or false", bool | None: "true or false", dict: "an object"}
        raise ValueError(f"{where}{key}: must be {named.get(kind, 'a text')}")  # noqa: TRY004 - a value of the file, not a type of ours
    return value


_OF_TOOLS: Final = {
    "name": str | None,
    "title": str | None,
    "description": str | None,
    "hidden": bool,
    "presets": dict,
    "hiddenArguments": list,
}
"""Keys of a tool in ``tools``, with their types."""


def _transforms(fields: dict[str, Any]) -> dict[str, ToolTransform]:
    """Return how the tools of an entry are shown. A list of names, as other hosts have it, says nothing here."""
    tools = fields.get("tools")
    if not isinstance(tools, dict):
        return {}
    from .transforms import ToolTransform  # late: few files have any

    transforms = dict[str, ToolTransform]()
    for name, tool in cast("dict[str, Any]", tools).items():
        where = f"tools.{name}."
        given = cast("dict[str, Any]", _typed_field({name: tool}, name, dict, where="tools."))
        if unknown := given.keys() - _OF_TOOLS.keys():
            raise ValueError(f"{where}{min(unknown)}: is unknown; known are {', '.join(_OF_TOOLS)}")
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
        trusted = trusted_http_hosts(general)
        return general if can_sign_in(address.url, trusted) and not has_header else None
    key = given[0]
    section = fields[key]
    if section is False and key == "oauth":
        return None
    if section == "oauth" and key == "auth":  # as FastMCP writes it
        section = {}
    section = cast("dict[str, Any]", _typed_field({key: section}, key, dict))
    if _typed_field(section, "enabled", bool | None, None, where="oauth.") is False:
        return None
    if has_header:
        raise ValueError(f"{key}, headers: both authorize the requests; one of the two")
    if not can_sign_in(address.url, trusted_http_hosts(general)):
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
            # An empty text is a mistake here: a file whose variable is empty, for example.
            parameters[parameter] = _scopes(key, value) if name == "scopes" else _text(f"{key}.{name}", value or None)
    if "client_secret" in parameters and "client_id" not in parameters:
        raise ValueError(f"{key}: a client secret goes with a client id")
    if key == "oauth":
        if section.get("grantType", "authorization_code") not in ("authorization_code", "client_credentials"):
            raise ValueError('oauth.grantType: must be "authorization_code" or "client_credentials"')
        if "assumePkce" in section:
            parameters["assume_pkce"] = _typed_field(section, "assumePkce", bool, where="oauth.")
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
        parameters |= {"public_addresses_only": general.public_addresses_only, "http_proxy": general.http_proxy}
        parameters |= {"trusted_http_hosts": general.trusted_http_hosts}
    return ClientCredentials(**parameters)


def _scopes(key: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(value.split())
    if not isinstance(value, list) or not all(isinstance(scope, str) for scope in cast("list[Any]", value)):
        raise ValueError(f"{key}.scopes: must be a text, or a list of texts")
    return tuple(cast("list[str]", value))
