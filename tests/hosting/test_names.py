"""Names in the catalogue are valid, and two things never share one."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trio_mcp.hosting.catalogue import catalogue_name, catalogue_uri, may_name, parse_uri

AWKWARD = st.text(alphabet="ab_-.!é ", max_size=8) | st.text(max_size=200) | st.text(alphabet="ab_", max_size=140)


@pytest.mark.parametrize(
    ("member", "name", "expected"),
    [
        ("files", "search", "files__search"),
        ("my-files.v2", "Search_All", "my-files.v2__Search_All"),
        ("a", "b__c", "a__b__c"),
        ("a", "_b", "a___b"),
    ],
)
def test_usual_names_are_joined(member: str, name: str, expected: str) -> None:
    assert catalogue_name(member, name) == expected


@pytest.mark.parametrize(
    ("member", "name"),
    [("a__b", "c"), ("a_", "b"), ("my files", "search"), ("a", "sag's"), ("a", ""), ("é", "b"), ("a", "x" * 126)],
)
def test_other_names_keep_what_can_be_read_and_get_a_digest(member: str, name: str) -> None:
    made = catalogue_name(member, name)
    assert re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", made)
    assert "__" not in made
    assert re.search(r"_[0-9a-f]{16}$", made)


def test_a_name_is_the_same_tomorrow() -> None:
    assert catalogue_name("my files", "search") == "my_files_search_39be5dbb91865d4c"


@given(AWKWARD, AWKWARD)
@example("", "")
@example("\ud800", "\udfff")
@example("a" * 300, "b" * 300)
def test_every_name_is_valid_and_may_be_its_members(member: str, name: str) -> None:
    made = catalogue_name(member, name)
    assert re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", made)
    assert may_name(member, made)


@given(AWKWARD, AWKWARD, AWKWARD, AWKWARD)
@example("a", "b__c", "a__b", "c")
@example("a", "_b", "a_", "b")
@example("a!", "b", "a?", "b")
@example("a", "b" * 200, "a", "b" * 201)
def test_two_things_never_share_a_name(member: str, name: str, other: str, other_name: str) -> None:
    if (member, name) != (other, other_name):
        assert catalogue_name(member, name) != catalogue_name(other, other_name)


@given(AWKWARD, AWKWARD, AWKWARD)
def test_a_server_cannot_take_the_name_of_another_members_tool(hostile: str, member: str, name: str) -> None:
    victim = catalogue_name(member, name)
    if hostile != member:
        assert catalogue_name(hostile, victim.removeprefix(hostile).lstrip("_")) != victim
        assert catalogue_name(hostile, victim.removeprefix(f"{hostile}__")) != victim


@given(st.text(min_size=1), st.text())
@example("\ud800/é", "note://a?b#c")
def test_the_uri_of_a_resource_leads_back_to_member_and_uri(member: str, uri: str) -> None:
    assert parse_uri(catalogue_uri(member, uri)) == (member, uri)


@pytest.mark.parametrize("uri", ["", "note://motto", "member:", "member://", "member://files", "member://%ff/x"])
def test_what_is_not_from_the_catalogue_is_known_to_be_not(uri: str) -> None:
    assert parse_uri(uri) is None


@given(st.sampled_from(["member://", "ui://", "skill://", "member:/"]), st.binary(max_size=6), st.text(max_size=5))
@example("ui://", b"\xff", "/x")
@example("skill://", b"\xed\xa0\x80", "/x")
def test_any_text_is_parsed_or_refused_as_a_uri_of_the_catalogue(scheme: str, member: bytes, rest: str) -> None:
    uri = scheme + "".join(f"%{byte:02x}" for byte in member) + rest
    parsed = parse_uri(uri)
    assert parsed is None or len(parsed) == 2
