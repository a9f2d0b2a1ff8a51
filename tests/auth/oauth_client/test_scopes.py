"""Scopes: what is asked for, by the challenge, the resource, the settings, and what was asked for before."""

from __future__ import annotations

import pytest
from tests.auth.oauth_client.scripted_web import ISSUER, SERVER, context, settings, usual_web

from trio_mcp.auth.credentials import AuthorizationError, Challenge
from trio_mcp.auth.oauth_client.authorization_code import sign_in
from trio_mcp.auth.oauth_client.discovery import AuthorizationServer, scopes_at, scopes_in
from trio_mcp.auth.storage.records import IssuerRecord, StoredAuthorization
from trio_mcp.protocol.authorization import ServerMetadata

STEP_UP = {"error": "insufficient_scope", "scope": "write"}

# challenge, scopes_supported, configured, requested before: what is asked for
TABLE = [
    (None, None, None, (), ()),
    (None, (), None, (), ()),
    (None, ("a", "b"), None, (), ("a", "b")),
    ({"scope": "read"}, ("a", "b"), None, (), ("read",)),
    ({"scope": ""}, ("a", "b"), None, (), ("a", "b")),
    ({"error": "invalid_token"}, ("a",), None, (), ("a",)),
    ({"scope": "read"}, ("a",), ("mine",), (), ("mine",)),
    ({"scope": "read"}, ("a",), (), (), ()),
    (None, ("a",), ("mine",), (), ("mine",)),
    ({"scope": "read"}, None, None, ("old",), ("old", "read")),
    (None, ("a",), None, ("old", "a"), ("old", "a")),
    (STEP_UP, ("a",), None, (), ("write",)),
    (STEP_UP, ("a",), None, ("read",), ("read", "write")),
    (STEP_UP, ("a",), None, ("read", "write"), ("read", "write")),
    (STEP_UP, ("a",), ("mine",), ("mine", "read"), ("mine", "read", "write")),
    ({"error": "insufficient_scope"}, ("a",), None, ("read",), ("read", "a")),
]


@pytest.mark.parametrize(("challenge", "supported", "configured", "requested", "wanted"), TABLE)
def test_client_requests_scopes_by_the_scope_selection_rules_of_the_specification(
    challenge: dict[str, str] | None,
    supported: tuple[str, ...] | None,
    configured: tuple[str, ...] | None,
    requested: tuple[str, ...],
    wanted: tuple[str, ...],
) -> None:
    found = AuthorizationServer(metadata=ServerMetadata(issuer=ISSUER), resource=SERVER, resource_scopes=supported)
    stored = StoredAuthorization(issuers={ISSUER: IssuerRecord(requested_scopes=requested)})
    sent = None if challenge is None else Challenge("bearer", challenge)
    assert scopes_at(found, configured, context(stored, challenge=sent)) == wanted


def test_stored_scopes_of_another_authorization_server_are_not_requested() -> None:
    found = AuthorizationServer(metadata=ServerMetadata(issuer=ISSUER), resource=SERVER)
    stored = StoredAuthorization(issuers={"https://old.example": IssuerRecord(requested_scopes=("old",))})
    assert scopes_at(found, None, context(stored)) == ()


@pytest.mark.parametrize(
    ("text", "scopes"),
    [
        ("", ()),
        ("a  b", ("a", "b")),
        ("a\tb\n", ("a", "b")),
        ("b a b", ("b", "a")),
        ('files:read https://x.example/y "quoted" back\\slash é', ("files:read", "https://x.example/y")),
    ],
)
def test_invalid_scope_names_in_a_scope_string_are_ignored(text: str, scopes: tuple[str, ...]) -> None:
    assert scopes_in(text) == scopes


def test_scope_list_beyond_the_length_limit_raises_authorization_error() -> None:
    web = usual_web()
    with pytest.raises(AuthorizationError, match="the server requires too many scopes"):
        web.run(sign_in(settings(), context(challenge=Challenge("bearer", {"scope": "s" * 4097}))))


@pytest.mark.parametrize(
    ("listed", "refreshable", "challenge", "scope"),
    [
        (["read", "offline_access"], True, {"scope": "read"}, "read offline_access"),
        (["read", "offline_access"], False, {"scope": "read"}, "read"),
        (["read"], True, {"scope": "read"}, "read"),
        (None, True, {"scope": "read"}, "read"),
        (["offline_access"], True, {}, None),
        (["offline_access"], True, {"scope": "offline_access read"}, "offline_access read"),
    ],
)
def test_client_requests_the_offline_access_scope_if_the_server_lists_it_and_refresh_is_enabled(
    listed: list[str] | None, refreshable: bool, challenge: dict[str, str], scope: str | None
) -> None:
    web = usual_web(scopes_supported=listed)
    web.run(sign_in(settings(refresh=refreshable), context(challenge=Challenge("bearer", challenge))))
    assert web.visited.get("scope") == scope
