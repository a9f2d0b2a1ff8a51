"""Names in the catalogue are valid, and two things never share one."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trio_mcp.hosting.catalogue import Catalogue, catalogue_name, catalogue_uri, may_name, parse_uri

LIMITS = st.sampled_from([None, 32, 33, 64, 100, 128])
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
def test_group_joins_plain_server_and_tool_names_with_two_underscores(member: str, name: str, expected: str) -> None:
    assert catalogue_name(member, name) == expected


@pytest.mark.parametrize(
    ("member", "name"),
    [("a__b", "c"), ("a_", "b"), ("my files", "search"), ("a", "sag's"), ("a", ""), ("é", "b"), ("a", "x" * 126)],
)
def test_group_tool_name_with_unusual_characters_ends_with_a_digest(member: str, name: str) -> None:
    made = catalogue_name(member, name)
    assert re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", made)
    assert "__" not in made
    assert re.search(r"_[0-9a-f]{16}$", made)


def test_group_tool_name_is_the_same_in_every_run() -> None:
    assert catalogue_name("my files", "search") == "my_files_search_39be5dbb91865d4c"
    assert catalogue_name("my files", "search", 64) == "my_files_search_39be5dbb91865d4c"
    assert catalogue_name("a" * 40, "b" * 40, 64) == "aaaaaaaaaaaaaaaa_bbbbbbbbbbbbbbbbbbbbbbbbbbbbbb_15c480cf82327d94"


@pytest.mark.parametrize(
    ("member", "name", "expected"),
    [
        ("files", "search", "files__search"),
        ("a", "b" * 61, "a__" + "b" * 61),
        ("a", "b" * 62, "a_bbbbbbbbbbbbbbbbbbbbbbbbbbbbbb_X"),
        ("my.files", "search", "my_files_search_X"),
        ("files", "search.all", "files_search_all_X"),
        ("ü.ö", "suche/alle", "_suche_alle_X"),
    ],
)
def test_group_with_a_name_length_limit_changes_only_tool_names_that_model_providers_reject(
    member: str, name: str, expected: str
) -> None:
    assert re.sub(r"_[0-9a-f]{16}$", "_X", catalogue_name(member, name, 64)) == expected


@given(AWKWARD, AWKWARD, LIMITS)
@example("", "", 32)
@example("\ud800", "\udfff", 64)
@example("a" * 300, "b" * 300, None)
@example("a.b" * 300, "b." * 300, 32)
def test_group_tool_name_made_from_any_text_is_valid(member: str, name: str, limit: int | None) -> None:
    made = catalogue_name(member, name, limit)
    assert re.fullmatch(r"[A-Za-z0-9_.-]{1,128}" if limit is None else rf"[A-Za-z0-9_-]{{1,{limit}}}", made)
    assert may_name(member, made, limit)


@given(AWKWARD, AWKWARD, AWKWARD, AWKWARD, LIMITS)
@example("a", "b__c", "a__b", "c", None)
@example("a", "_b", "a_", "b", 64)
@example("a!", "b", "a?", "b", None)
@example("a", "b" * 200, "a", "b" * 201, 64)
@example("a.b", "c", "a_b", "c", 64)
@example("a", "b.c", "a", "b_c", 64)
def test_group_gives_different_names_to_different_pairs_of_server_and_tool(
    member: str, name: str, other: str, other_name: str, limit: int | None
) -> None:
    if (member, name) != (other, other_name):
        assert catalogue_name(member, name, limit) != catalogue_name(other, other_name, limit)


@given(AWKWARD, AWKWARD, AWKWARD, LIMITS)
def test_tool_name_of_a_server_cannot_imitate_a_tool_of_another_server_in_the_group(
    hostile: str, member: str, name: str, limit: int | None
) -> None:
    victim = catalogue_name(member, name, limit)
    if hostile != member:
        assert catalogue_name(hostile, victim.removeprefix(hostile).lstrip("_"), limit) != victim
        assert catalogue_name(hostile, victim.removeprefix(f"{hostile}__"), limit) != victim


@pytest.mark.parametrize("limit", [-1, 0, 31, 129])
def test_max_name_length_out_of_range_raises_value_error(limit: int) -> None:
    with pytest.raises(ValueError, match=f"max_name_length must be from 32 to 128, not {limit}"):
        Catalogue(limit)


@given(st.text(min_size=1), st.text())
@example("\ud800/é", "note://a?b#c")
def test_group_uri_created_from_any_server_name_and_uri_can_be_parsed(member: str, uri: str) -> None:
    assert parse_uri(catalogue_uri(member, uri)) == (member, uri)


@pytest.mark.parametrize("uri", ["", "note://motto", "member:", "member://", "member://files", "member://%ff/x"])
def test_parsing_a_uri_that_no_group_created_returns_none(uri: str) -> None:
    assert parse_uri(uri) is None


@given(st.sampled_from(["member://", "ui://", "skill://", "member:/"]), st.binary(max_size=6), st.text(max_size=5))
@example("ui://", b"\xff", "/x")
@example("skill://", b"\xed\xa0\x80", "/x")
def test_parsing_any_text_as_a_group_uri_returns_a_server_name_and_uri_or_none(
    scheme: str, member: bytes, rest: str
) -> None:
    uri = scheme + "".join(f"%{byte:02x}" for byte in member) + rest
    parsed = parse_uri(uri)
    assert parsed is None or len(parsed) == 2
