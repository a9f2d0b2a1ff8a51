"""auth_of: read the authorization in an entry of a configuration file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import attrs

from ..auth.credentials import ClientAuth
from ..connecting.credentials import is_confidential
from ..connecting.targets import Address

if TYPE_CHECKING:
    from ..auth.oauth_client.oauth import OAuth

_FIELDS: Final = {
    "clientId": "client_id",
    "clientSecret": "client_secret",
    "issuer": "issuer",
    "clientMetadataUrl": "client_metadata_url",
    "redirectUri": "redirect_uri",
    "scopes": "scopes",
}
"""Keys of ``oauth`` with the parameters of `OAuth`, as Claude Code, VS Code and Gemini CLI write them, or would."""
_OF_CURSOR: Final = {"CLIENT_ID": "client_id", "CLIENT_SECRET": "client_secret", "scopes": "scopes"}
"""Keys of ``auth`` with the parameters of `OAuth`, as Cursor writes them."""
_KNOWN: Final = {"oauth": {*_FIELDS, "callbackPort", "grantType", "enabled"}, "auth": {*_OF_CURSOR}}
_FOR_MACHINES: Final = frozenset(("client_id", "client_secret", "issuer", "scopes"))
_LARGEST_PORT: Final = 65535


def auth_of(fields: dict[str, Any], address: Address, general: OAuth | None) -> ClientAuth | None:
    """Return the authorization for ``address``, the server of an entry with these ``fields``: the ``general`` one, with
    all that the entry says. Raises `ValueError` for an entry that makes no sense; no value is told."""
    given = [key for key in _KNOWN if key in fields]
    if len(given) == 2:
        raise ValueError("oauth, auth: one of the two")
    has_header = any(name.lower() == "authorization" for name in address.headers)
    if not given:
        return general if is_confidential(address.url) and not has_header else None
    key = given[0]
    section = fields[key]
    if section is False and key == "oauth":
        return None
    if section == "oauth" and key == "auth":  # as FastMCP writes it
        section = {}
    if not isinstance(section, dict):
        raise ValueError(f"{key}: must be an object")  # noqa: TRY004 - a value of the file, not a type of ours
    section = cast("dict[str, Any]", section)
    if _bool(section, "oauth", "enabled") is False:
        return None
    if has_header:
        raise ValueError(f"{key}, headers: both authorize the requests; one of the two")
    if not is_confidential(address.url):
        raise ValueError(f"{key}: no token is sent there; the server needs https or wss")
    parameters = _parameters(key, section)
    if section.get("grantType", "authorization_code") == "client_credentials" and key == "oauth":
        return _for_a_machine(parameters, general)
    return _for_a_user(parameters, general)


def unknown_in(fields: dict[str, Any]) -> list[str]:
    """Return the keys that have no meaning in the authorization of a good entry, like ``oauth.authorizationUrl``."""
    sections = {key: fields[key] for key in _KNOWN if isinstance(fields.get(key), dict)}
    return [f"{key}.{name}" for key, section in sections.items() for name in section.keys() - _KNOWN[key]]


def _parameters(key: str, section: dict[str, Any]) -> dict[str, Any]:
    names = _FIELDS if key == "oauth" else _OF_CURSOR
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
        if "callbackPort" in section:
            if "redirect_uri" in parameters:
                raise ValueError("oauth.callbackPort, oauth.redirectUri: one of the two")
            parameters["redirect_uri"] = f"http://localhost:{_port(section['callbackPort'])}/callback"
    return parameters


def _for_a_user(parameters: dict[str, Any], general: OAuth | None) -> OAuth:
    from ..auth.oauth_client.oauth import OAuth

    return attrs.evolve(general or OAuth(), **parameters)


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


def _port(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _LARGEST_PORT:
        raise ValueError(f"oauth.callbackPort: must be a number from 1 to {_LARGEST_PORT}")
    return value


def _bool(section: dict[str, Any], key: str, name: str) -> bool | None:
    value = section.get(name)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{key}.{name}: must be true or false")
    return value
