"""The authorization in entries of configuration files, as hosts write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest

from trio_mcp import Address
from trio_mcp.auth import ClientCredentials, MemoryTokenStorage, OAuth
from trio_mcp.auth.credentials import ClientAuth
from trio_mcp.hosting import read_config

URL = "https://mcp.example.com/mcp"


def read(tmp_path: Path, fields: dict[str, Any], auth: OAuth | None = None, **variables: str) -> Any:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"mcpServers": {"it": fields}}))
    return read_config(path, variables=variables, auth=auth)


def auth_of(tmp_path: Path, fields: dict[str, Any], auth: OAuth | None = None, **variables: str) -> ClientAuth | None:
    config = read(tmp_path, {"url": URL, **fields}, auth, **variables)
    assert config.problems == {}
    target = config.members["it"].target
    assert isinstance(target, Address)
    return target.auth


def signs_in(auth: ClientAuth | None) -> dict[str, Any]:
    """What the entry has said."""
    assert isinstance(auth, OAuth)
    usual = OAuth()
    same = ("storage", "on_visit")
    return {
        field.alias: getattr(auth, field.name)
        for field in attrs.fields(OAuth)
        if field.name not in same and getattr(auth, field.name) != getattr(usual, field.name)
    }


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"oauth": {}}, {}),
        ({"auth": "oauth"}, {}),
        ({"oauth": {"clientId": "c", "callbackPort": 8080, "scopes": "a b"}}, {
            "client_id": "c", "redirect_uri": "http://localhost:8080/callback", "scopes": ("a", "b")
        }),
        ({"type": "http", "oauth": {"clientId": "c"}}, {"client_id": "c"}),
        ({"oauth": {"enabled": True, "clientId": "c", "clientSecret": "s", "scopes": ["a", "b"]}}, {
            "client_id": "c", "client_secret": "s", "scopes": ("a", "b")
        }),
        ({"oauth": {"redirectUri": "http://localhost:7777/oauth/callback"}}, {
            "redirect_uri": "http://localhost:7777/oauth/callback"
        }),
        ({"oauth": {"clientMetadataUrl": "https://a.example/c", "issuer": "https://as.example"}}, {
            "client_metadata_url": "https://a.example/c", "issuer": "https://as.example"
        }),
        ({"oauth": {"clientId": "c", "assumePkce": True}}, {"client_id": "c", "assume_pkce": True}),
        ({"auth": {"CLIENT_ID": "c", "CLIENT_SECRET": "s", "scopes": ["a"]}}, {
            "client_id": "c", "client_secret": "s", "scopes": ("a",)
        }),
    ],
    ids=["alone", "fastmcp", "claude-code", "vscode", "gemini-cli", "redirect", "ours", "entra", "cursor"],
)  # fmt: skip
def test_oauth_settings_are_read_in_the_format_of_each_mcp_host(
    tmp_path: Path, fields: dict[str, Any], said: dict[str, Any]
) -> None:
    assert signs_in(auth_of(tmp_path, fields)) == said


def test_oauth_settings_of_a_config_entry_override_the_settings_for_all_entries(tmp_path: Path) -> None:
    general = OAuth(storage=MemoryTokenStorage(), client_name="host")
    assert auth_of(tmp_path, {}, general) == general
    assert auth_of(tmp_path, {"oauth": {"clientId": "c"}}, general) == attrs.evolve(general, client_id="c")


def test_config_entry_without_oauth_settings_has_no_authorization(tmp_path: Path) -> None:
    assert auth_of(tmp_path, {}) is None


@pytest.mark.parametrize("fields", [{"oauth": False}, {"oauth": {"enabled": False}}])
def test_config_entry_can_disable_oauth_that_is_enabled_for_all_entries(tmp_path: Path, fields: dict[str, Any]) -> None:
    assert auth_of(tmp_path, fields, OAuth()) is None


@pytest.mark.parametrize("name", ["Authorization", "authorization"])
def test_config_entry_with_an_authorization_header_uses_no_oauth(tmp_path: Path, name: str) -> None:
    assert auth_of(tmp_path, {"headers": {name: "Bearer x"}}, OAuth()) is None


@pytest.mark.parametrize(
    "url",
    [
        "http://mcp.example.com/mcp",
        "ws://mcp.example.com/mcp",
        "tcp://localhost:1",
        "http+unix://%2Frun%2Fmcp.sock/mcp",
    ],
)
def test_oauth_is_disabled_for_config_entries_with_urls_to_which_tokens_cannot_be_sent(
    tmp_path: Path, url: str
) -> None:
    assert auth_of(tmp_path, {"url": url}, OAuth()) is None


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/mcp", "ws://localhost:1/mcp", "wss://mcp.example.com/mcp"])
def test_oauth_is_enabled_for_config_entries_with_tls_or_loopback_urls(tmp_path: Path, url: str) -> None:
    general = OAuth()
    assert auth_of(tmp_path, {"url": url}, general) == general


def test_client_secret_in_a_config_entry_can_be_a_placeholder_for_a_variable(tmp_path: Path) -> None:
    fields = {"oauth": {"clientId": "c", "clientSecret": "${SECRET}"}}
    assert signs_in(auth_of(tmp_path, fields, SECRET="s3cret")) == {"client_id": "c", "client_secret": "s3cret"}


def test_client_credentials_grant_is_read_from_a_config_entry(tmp_path: Path) -> None:
    general = OAuth(storage=MemoryTokenStorage(), public_addresses_only=True)
    fields = {"grantType": "client_credentials", "clientId": "c", "clientSecret": "s", "scopes": "a"}
    assert auth_of(tmp_path, {"oauth": fields}, general) == ClientCredentials(
        "c", client_secret="s", scopes=["a"], storage=general.storage, public_addresses_only=True
    )


def test_unknown_oauth_keys_in_a_config_entry_are_reported_as_ignored(tmp_path: Path) -> None:
    fields = {"url": URL, "oauth": {"clientId": "c", "authServerMetadataUrl": "https://x"}, "timeout": 5}
    assert read(tmp_path, fields).ignored == {"it": ("oauth.authServerMetadataUrl", "timeout")}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"oauth": "s3cret"}, "oauth: must be an object"),
        ({"auth": False}, "auth: must be an object"),
        ({"auth": "s3cret"}, "auth: must be an object"),
        ({"oauth": {"clientId": 7}}, "oauth.clientId: must be a string"),
        ({"oauth": {"clientId": ""}}, "oauth.clientId: must be a string"),
        ({"oauth": {"clientSecret": "s3cret"}}, "a client secret needs a client id"),
        ({"oauth": {"scopes": 7}}, "oauth.scopes: must be a string, or a list of strings"),
        ({"oauth": {"scopes": ["a", 7]}}, "oauth.scopes: must be a string, or a list of strings"),
        ({"oauth": {"callbackPort": "8080"}}, "oauth.callbackPort: must be a number from 1 to 65535"),
        ({"oauth": {"callbackPort": True}}, "oauth.callbackPort: must be a number from 1 to 65535"),
        ({"oauth": {"callbackPort": 0}}, "oauth.callbackPort: must be a number from 1 to 65535"),
        ({"oauth": {"callbackPort": 1, "redirectUri": "http://localhost:1/"}}, "use only one of the two"),
        ({"oauth": {"redirectUri": "https://elsewhere.example/"}}, "can't receive the browser's redirect"),
        ({"oauth": {"enabled": 1}}, "oauth.enabled: must be true or false"),
        ({"oauth": {"grantType": "password"}}, "oauth.grantType: must be"),
        ({"oauth": {"grantType": []}}, "oauth.grantType: must be"),
        ({"oauth": {"grantType": "client_credentials", "clientId": "c"}}, "needs clientId and clientSecret"),
        (
            {
                "oauth": {
                    "grantType": "client_credentials",
                    "clientId": "c",
                    "clientSecret": "s3cret",
                    "callbackPort": 1,
                }
            },
            "must not be combined with keys for a browser",
        ),
        ({"oauth": {}, "auth": {}}, "oauth, auth: use only one of the two"),
        ({"oauth": {}, "headers": {"Authorization": "Bearer s3cret"}}, "oauth, headers: both authorize"),
        ({"oauth": {}, "url": "http://mcp.example.com/"}, "refusing to send a token to this server"),
        ({"auth": {}, "url": "unix:///run/mcp.sock"}, "refusing to send a token to this server"),
        ({"oauth": {}, "url": "http+unix://%2Frun%2Fmcp.sock/mcp"}, "refusing to send a token to this server"),
        ({"oauth": {}, "url": None, "command": "a"}, "oauth: allowed only for servers with a URL"),
    ],
)
def test_invalid_oauth_settings_are_reported_as_a_problem_of_the_config_entry_without_the_secret(
    tmp_path: Path, fields: dict[str, Any], told: str
) -> None:
    fields = {name: value for name, value in {"url": URL, **fields}.items() if value is not None}
    config = read(tmp_path, fields)
    assert config.members == {}
    assert told in config.problems["it"]
    assert "s3cret" not in config.problems["it"]
