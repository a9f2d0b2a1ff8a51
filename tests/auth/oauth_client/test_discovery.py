"""Discovery: which URLs are asked, in which order, and whom the answers are believed."""

from __future__ import annotations

from codecs import BOM_UTF8
from typing import Any

import attrs
import pytest
from tests.auth.oauth_client.scripted_web import (
    ISSUER,
    SERVER,
    ScriptedWeb,
    answer,
    context,
    resource_metadata,
    server_metadata,
    settings,
    usual_web,
)
from tests.long_names import LONGEST, ODD, given_to_codecs

from trio_mcp.auth.credentials import AuthorizationError, Challenge
from trio_mcp.auth.fetching import Fetched, FetchFailed
from trio_mcp.auth.oauth_client.authorization_code import sign_in
from trio_mcp.auth.oauth_client.discovery import discover
from trio_mcp.auth.storage.records import IssuerRecord, RegisteredClient, StoredAuthorization

AT_PATH = "https://mcp.example/.well-known/oauth-protected-resource/mcp"
AT_ROOT = "https://mcp.example/.well-known/oauth-protected-resource"
NAMED = "https://elsewhere.example/custom/metadata.json"
AS_METADATA = "https://as.example/.well-known/oauth-authorization-server"
TENANT = "https://as.example/tenant1"
UMLAUTS = "\u00fc" * 4000

LOCATIONS = {
    ISSUER: [AS_METADATA, "https://as.example/.well-known/openid-configuration"],
    f"{ISSUER}/": [AS_METADATA, "https://as.example/.well-known/openid-configuration"],
    TENANT: [
        "https://as.example/.well-known/oauth-authorization-server/tenant1",
        "https://as.example/.well-known/openid-configuration/tenant1",
        "https://as.example/tenant1/.well-known/openid-configuration",
    ],
    f"{TENANT}/": [
        "https://as.example/.well-known/oauth-authorization-server/tenant1",
        "https://as.example/.well-known/openid-configuration/tenant1",
        "https://as.example/tenant1/.well-known/openid-configuration",
    ],
}


def named(url: str = NAMED) -> Challenge:
    return Challenge("bearer", {"resource_metadata": url})


def with_resource(*at: str, **changes: object) -> ScriptedWeb:
    web = ScriptedWeb(dict.fromkeys(at, answer(resource_metadata(**changes))))
    web.answers[AS_METADATA] = answer(server_metadata())
    return web


@pytest.mark.parametrize(
    ("challenge", "where", "asked"),
    [
        (named(), NAMED, [NAMED]),
        (None, AT_PATH, [AT_PATH]),
        (None, AT_ROOT, [AT_PATH, AT_ROOT]),
        (named(), AT_PATH, [NAMED, AT_PATH]),
        (named(), AT_ROOT, [NAMED, AT_PATH, AT_ROOT]),
        (Challenge("bearer", {"scope": "read"}), AT_PATH, [AT_PATH]),
    ],
)
def test_client_tries_resource_metadata_urls_in_order_until_one_is_found(
    challenge: Challenge | None, where: str, asked: list[str]
) -> None:
    web = with_resource(where)
    web.run(discover(context(challenge=challenge)))
    assert web.asked == [*asked, AS_METADATA]


@pytest.mark.parametrize("server_url", ["https://mcp.example", "https://mcp.example/", "https://mcp.example/?tenant=1"])
def test_client_tries_only_one_metadata_url_for_a_server_at_the_root_path(server_url: str) -> None:
    web = with_resource(AT_ROOT, resource="https://mcp.example")
    web.run(discover(context(server_url=server_url)))
    assert web.asked == [AT_ROOT, AS_METADATA]


@pytest.mark.parametrize(("issuer", "locations"), LOCATIONS.items(), ids=LOCATIONS)
@pytest.mark.parametrize("found", [0, 1, 2])
def test_client_tries_authorization_server_metadata_urls_in_order_until_one_is_found(
    issuer: str, locations: list[str], found: int
) -> None:
    if found >= len(locations):
        return
    web = with_resource(AT_PATH, authorization_servers=[issuer])
    web.answers.pop(AS_METADATA)
    web.answers[locations[found]] = answer(server_metadata(issuer))
    assert web.run(discover(context())).issuer == issuer
    assert web.asked == [AT_PATH, *locations[: found + 1]]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 410])
def test_client_tries_the_next_metadata_url_after_an_unauthorized_response(status: int) -> None:
    web = with_resource(AT_ROOT)
    web.answers[AT_PATH] = answer({"resource": SERVER}, status)
    web.run(discover(context()))
    assert web.asked == [AT_PATH, AT_ROOT, AS_METADATA]


def test_client_does_not_accept_an_html_page_as_metadata() -> None:
    web = with_resource(AT_ROOT)
    web.answers[AT_PATH] = answer(b"<!doctype html><title>Welcome</title>")
    web.run(discover(context()))
    assert web.asked == [AT_PATH, AT_ROOT, AS_METADATA]


@pytest.mark.parametrize(
    "broken",
    [
        answer(b"{", 200),
        answer({"authorization_servers": [ISSUER]}),
        answer({"resource": SERVER, "authorization_servers": 7}),
        answer(b"", 301, {"location": AT_ROOT}),
        answer(b"", 500),
        answer(b"", 429),
        FetchFailed("nobody listens there"),
    ],
    ids=["no JSON", "no resource", "wrong type", "redirect", "error", "too often", "no answer"],
)
def test_client_does_not_use_authorization_metadata_of_the_server_after_invalid_resource_metadata(
    broken: object,
) -> None:
    web = ScriptedWeb({AT_PATH: broken, "https://mcp.example/.well-known/oauth-authorization-server": answer({})})  # type: ignore[dict-item]
    with pytest.raises(AuthorizationError, match="cannot find the authorization server: "):
        web.run(discover(context()))
    assert web.asked == [AT_PATH, AT_ROOT]


@pytest.mark.parametrize(
    "odd",
    [
        {"scopes_supported": "read write"},
        {"scopes_supported": 7},
        {"authorization_servers": ISSUER},
        {"authorization_servers": [ISSUER, None]},
        {"dpop_bound_access_tokens_required": "no", "resource_name": ["Notes"]},
    ],
)
def test_invalid_optional_field_in_resource_metadata_is_ignored(odd: dict[str, Any]) -> None:
    assert with_resource(AT_PATH, **odd).run(discover(context())).issuer == ISSUER


def test_oauth_discovery_error_names_the_first_metadata_url_that_failed() -> None:
    web = ScriptedWeb({AT_PATH: answer(b"", 503), AT_ROOT: FetchFailed("nobody listens there")})
    with pytest.raises(AuthorizationError, match=r"oauth-protected-resource/mcp': status 503\Z"):
        web.run(discover(context()))


def test_missing_metadata_at_the_url_in_the_challenge_raises_authorization_error() -> None:
    web = ScriptedWeb({})
    with pytest.raises(AuthorizationError, match="at the URL in the server's challenge"):
        web.run(discover(context(challenge=named())))
    assert web.asked == [NAMED, AT_PATH, AT_ROOT]


@pytest.mark.parametrize(
    ("server_url", "resource"),
    [
        (SERVER, SERVER),
        (SERVER, "https://mcp.example/mcp/"),
        (SERVER, "https://mcp.example/"),
        (SERVER, "https://mcp.example"),
        (SERVER, "https://MCP.example:443/mcp"),
        ("https://mcp.example/a/b/c", "https://mcp.example/a/b"),
        ("https://mcp.example/mcp?tenant=1", "https://mcp.example/mcp?tenant=1"),
        ("https://mcp.example/mcp?tenant=1", "https://mcp.example/mcp"),
    ],
)
def test_resource_in_the_metadata_can_be_the_server_url_or_a_prefix_of_the_server_url(
    server_url: str, resource: str
) -> None:
    web = with_resource(AT_PATH, AT_ROOT, resource=resource)
    web.run(discover(context(server_url=server_url, challenge=named(AT_ROOT))))
    assert web.asked == [AT_ROOT, AS_METADATA]


@pytest.mark.parametrize(
    "resource",
    [
        "https://evil.example/mcp",
        "http://mcp.example/mcp",
        "https://mcp.example:8443/mcp",
        "https://mcp.example.evil.example/mcp",
        "https://mcp.example@evil.example/mcp",
        "https://mcp.example/mc",
        "https://mcp.example/mcp2",
        "https://mcp.example/mcp/more",
        "https://mcp.example/MCP",
        "https://mcp.example/mcp?tenant=2",
        "https://mcp.example/mcp#x",
        "https://mcp.example/other/../mcp",
        "mcp.example/mcp",
        "",
    ],
)
def test_resource_metadata_of_another_resource_raises_authorization_error(resource: str) -> None:
    web = with_resource(AT_PATH, resource=resource)
    with pytest.raises(AuthorizationError, match="belong to another server"):
        web.run(discover(context()))
    assert web.asked == [AT_PATH]


@pytest.mark.parametrize("resource", [f"https://{ODD * 1300}/mcp", f"//{ODD * 1300}/mcp", f"https://{UMLAUTS}/"])
def test_error_truncates_long_names_from_oauth_metadata(resource: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = given_to_codecs(monkeypatch)
    web = with_resource(AT_PATH, resource=resource)
    with pytest.raises(AuthorizationError, match="belong to another server"):
        web.run(discover(context()))
    assert max(lengths, default=0) <= LONGEST


@pytest.mark.parametrize("servers", [None, []])
def test_resource_metadata_without_an_authorization_server_raises_authorization_error(servers: object) -> None:
    web = with_resource(AT_PATH, authorization_servers=servers)
    with pytest.raises(AuthorizationError, match="name no authorization server"):
        web.run(discover(context()))


@pytest.mark.parametrize(
    "issuer",
    [
        "https://as.example//",
        "https://as.example/.",
        "https://as.example./",
        "https://AS.example",
        "https://as.example:443",
        "http://as.example",
        "https://attacker.example",
        "https://as.example/tenant1",
        " https://as.example",
        "",
    ],
)
def test_authorization_server_metadata_of_another_issuer_raises_authorization_error(issuer: str) -> None:
    web = with_resource(AT_PATH)
    web.answers[AS_METADATA] = answer(server_metadata(issuer))
    with pytest.raises(AuthorizationError, match="the metadata contains the wrong issuer"):
        web.run(discover(context()))
    assert web.asked == [AT_PATH, *LOCATIONS[ISSUER]]


SLASHED = [(ISSUER, f"{ISSUER}/"), (f"{ISSUER}/", ISSUER), (TENANT, f"{TENANT}/"), (f"{TENANT}/", TENANT)]
"""The issuer as a resource names it, and as it names itself: JumpCloud, Google, and the same with a path."""


@pytest.mark.parametrize(("named", "issuer"), SLASHED)
@pytest.mark.parametrize("only", [None, 0, 1])
def test_issuers_that_differ_only_by_a_trailing_slash_are_treated_as_equal(
    named: str, issuer: str, only: int | None
) -> None:
    web = with_resource(AT_PATH, authorization_servers=["https://else.example", named] if only == 1 else [named])
    web.answers[LOCATIONS[named][0]] = answer(server_metadata(issuer))
    configured = None if only is None else (named, issuer)[only]
    assert web.run(discover(context(), configured)).issuer == issuer


def test_oauth_metadata_with_a_byte_order_mark_is_accepted() -> None:
    web = usual_web()
    for url, found in web.answers.items():
        assert isinstance(found, Fetched)
        web.answers[url] = attrs.evolve(found, body=BOM_UTF8 + found.body)
    assert web.run(sign_in(settings(), context())).record.tokens is not None


@pytest.mark.parametrize(
    "issuer",
    ["as.example", "https://", "https://as.example/?x=1", "https://as.example#x", "https://a@as.example", "file:///x"],
)
def test_client_sends_no_request_to_an_authorization_server_with_an_invalid_url(issuer: str) -> None:
    web = with_resource(AT_PATH, authorization_servers=[issuer])
    with pytest.raises(AuthorizationError, match="URL of the authorization server"):
        web.run(discover(context()))
    assert web.asked == [AT_PATH]


def test_authorization_server_without_metadata_raises_authorization_error() -> None:
    web = with_resource(AT_PATH)
    web.answers.pop(AS_METADATA)
    with pytest.raises(AuthorizationError, match="publishes no metadata"):
        web.run(discover(context()))


# Which of several authorization servers

OTHER = "https://other.example"


def both() -> ScriptedWeb:
    web = with_resource(AT_PATH, authorization_servers=[ISSUER, OTHER])
    web.answers[f"{OTHER}/.well-known/oauth-authorization-server"] = answer(server_metadata(OTHER))
    return web


def test_client_uses_the_first_authorization_server_in_the_resource_metadata_by_default() -> None:
    assert both().run(discover(context())).issuer == ISSUER


def test_client_prefers_the_authorization_server_where_it_is_registered() -> None:
    stored = StoredAuthorization(issuers={OTHER: IssuerRecord(client=RegisteredClient(client_id="c"))})
    assert both().run(discover(context(stored))).issuer == OTHER


def test_client_prefers_the_last_used_authorization_server() -> None:
    registered = IssuerRecord(client=RegisteredClient(client_id="c"))
    stored = StoredAuthorization(issuers={ISSUER: registered, OTHER: registered}, current=OTHER)
    assert both().run(discover(context(stored))).issuer == OTHER


@pytest.mark.parametrize("used", [OTHER, f"{OTHER}/"])
def test_configured_authorization_server_url_matches_a_listed_url_that_differs_by_a_trailing_slash(used: str) -> None:
    stored = StoredAuthorization(issuers={used: IssuerRecord(client=RegisteredClient(client_id="c"))}, current=used)
    assert both().run(discover(context(stored))).issuer == OTHER


def test_configured_issuer_of_the_credentials_selects_the_authorization_server() -> None:
    assert both().run(discover(context(), OTHER)).issuer == OTHER


def test_client_does_not_use_a_stored_authorization_server_that_the_metadata_no_longer_lists() -> None:
    stored = StoredAuthorization(
        issuers={"https://old.example": IssuerRecord(client=RegisteredClient(client_id="c"))}, current="x"
    )
    assert both().run(discover(context(stored))).issuer == ISSUER


# Servers of 2025-03-26, which are authorization servers themselves

OLD = "https://mcp.example"
OLD_ASKED = [
    AT_PATH,
    AT_ROOT,
    "https://mcp.example/.well-known/oauth-authorization-server",
    "https://mcp.example/.well-known/openid-configuration",
]


@pytest.mark.parametrize("issuer", [OLD, f"{OLD}/"])
def test_client_reads_authorization_metadata_at_the_origin_of_a_server_without_resource_metadata(issuer: str) -> None:
    web = ScriptedWeb({OLD_ASKED[2]: answer(server_metadata(issuer, token_endpoint=f"{OLD}/oauth/token"))})
    found = web.run(discover(context()))
    assert (found.issuer, found.metadata.token_endpoint) == (issuer, f"{OLD}/oauth/token")
    assert web.asked == OLD_ASKED[:3]


def test_client_uses_default_endpoint_paths_for_a_server_without_any_metadata() -> None:
    web = ScriptedWeb({})
    found = web.run(discover(context()))
    assert web.asked == OLD_ASKED
    assert found.issuer == OLD
    assert found.metadata.authorization_endpoint == f"{OLD}/authorize"
    assert found.metadata.token_endpoint == f"{OLD}/token"
    assert found.metadata.registration_endpoint == f"{OLD}/register"


def test_client_uses_no_default_endpoint_paths_if_the_metadata_names_another_issuer() -> None:
    web = ScriptedWeb({OLD_ASKED[2]: answer(server_metadata("https://evil.example"))})
    with pytest.raises(AuthorizationError, match="the metadata contains the wrong issuer"):
        web.run(discover(context()))


def test_client_sends_no_credentials_of_another_issuer_to_a_server_without_metadata() -> None:
    with pytest.raises(AuthorizationError, match="credentials of this client belong to"):
        ScriptedWeb({}).run(discover(context(), ISSUER))


def test_oauth_discovery_requests_contain_no_secrets() -> None:
    web = usual_web()
    web.run(discover(context()))
    assert [step.secrets_of for step in web.steps if hasattr(step, "secrets_of")] == [None, None]
