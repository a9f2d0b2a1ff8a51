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
def test_different_principals_have_different_identities_as_pairs_and_as_text(one: Principal, other: Principal) -> None:
    assert one.id != other.id
    assert one.id.to_json() != other.id.to_json()


def test_the_client_of_a_user_and_all_else_that_a_token_says_do_not_count() -> None:
    one = Principal(issuer=ISSUER, subject="anna", client_id="app", scopes="read", expires_at=1.0)
    assert one.id == Principal(issuer=ISSUER, subject="anna").id == (ISSUER, "anna", False)


def test_a_client_that_speaks_for_itself_is_no_user_however_its_issuer_writes_that() -> None:
    named, silent = Principal(issuer=ISSUER, subject="app", client_id="app"), Principal(issuer=ISSUER, client_id="app")
    assert named.id == silent.id == (ISSUER, "app", True)
    assert named.id != Principal(issuer=ISSUER, subject="app", client_id="web").id


@pytest.mark.parametrize("principal", DIFFERENT)
def test_an_identity_is_read_as_it_was_written(principal: Principal) -> None:
    assert PrincipalId.from_json(principal.id.to_json()) == principal.id


@pytest.mark.parametrize("text", ["", "anna", "[]", '["a"]', '[1,"a",false]', '{"issuer":"a"}'])
def test_other_text_is_no_identity(text: str) -> None:
    with pytest.raises(ValueError, match="not the identity of a principal"):
        PrincipalId.from_json(text)


def test_a_principal_has_a_name() -> None:
    with pytest.raises(ValueError, match="a subject or a client_id"):
        Principal(issuer=ISSUER)
