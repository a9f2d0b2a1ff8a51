"""Who two tokens speak for: the same principal, or two."""

from __future__ import annotations

from itertools import combinations

import pytest

from trio_mcp.auth import Principal
from trio_mcp.runtime.peer import PrincipalId

ISSUER = "https://login.example.com"

DIFFERENT = [
    Principal(issuer=ISSUER, subject="anna"),
    Principal(issuer=ISSUER, client_id="anna"),
    Principal(issuer=f"{ISSUER}|x", subject="y"),
    Principal(issuer=ISSUER, subject="x|y"),
    Principal(issuer=None, subject="anna"),
    Principal(issuer="", subject="anna"),
    Principal(issuer=None, subject="null"),
    Principal(issuer=None, subject=f'{ISSUER}","anna'),
]


@pytest.mark.parametrize(("one", "other"), list(combinations(DIFFERENT, 2)))
def test_different_principals_have_different_ids_before_and_after_json_encoding(
    one: Principal, other: Principal
) -> None:
    assert one.id != other.id
    assert one.id.to_json() != other.id.to_json()


def test_principal_id_of_a_user_depends_only_on_the_issuer_and_the_subject() -> None:
    one = Principal(issuer=ISSUER, subject="anna", client_id="app", scopes="read", expires_at=1.0)
    assert one.id == Principal(issuer=ISSUER, subject="anna").id == (ISSUER, "anna", False)


def test_principal_of_a_client_without_a_user_never_equals_the_principal_of_a_user() -> None:
    named, silent = Principal(issuer=ISSUER, subject="app", client_id="app"), Principal(issuer=ISSUER, client_id="app")
    assert named.id == silent.id == (ISSUER, "app", True)
    assert named.id != Principal(issuer=ISSUER, subject="app", client_id="web").id


@pytest.mark.parametrize("principal", DIFFERENT)
def test_principal_id_is_unchanged_after_json_encoding_and_decoding(principal: Principal) -> None:
    assert PrincipalId.from_json(principal.id.to_json()) == principal.id


@pytest.mark.parametrize("text", ["", "anna", "[]", '["a"]', '[1,"a",false]', '{"issuer":"a"}'])
def test_text_that_does_not_encode_a_principal_id_raises_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="invalid JSON of a principal's identity"):
        PrincipalId.from_json(text)


def test_principal_without_subject_and_client_id_raises_value_error() -> None:
    with pytest.raises(ValueError, match="a subject or a client_id"):
        Principal(issuer=ISSUER)
