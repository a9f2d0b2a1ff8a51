"""Challenges of ``WWW-Authenticate``: what is read of what servers send, and what is written."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from trio_mcp.auth.credentials import Challenge, parse_challenges
from trio_mcp.auth.resource_server.refusals import challenge_text

METADATA = "https://mcp.example.com/.well-known/oauth-protected-resource/mcp"


def read(value: str) -> list[tuple[str, dict[str, str], str | None]]:
    return [(each.scheme, dict(each.params), each.token68) for each in parse_challenges(value)]


# What is read


def test_www_authenticate_challenge_is_parsed_into_a_scheme_and_parameters() -> None:
    value = f'Bearer resource_metadata="{METADATA}", scope="files:read files:write", error=invalid_token'
    assert parse_challenges(value) == [
        Challenge(
            "bearer", {"resource_metadata": METADATA, "scope": "files:read files:write", "error": "invalid_token"}
        )
    ]


@pytest.mark.parametrize("value", ["", ",", " , \t,", "=", '"', "\\", "@", ",,,="])
def test_www_authenticate_header_without_a_challenge_is_parsed_as_empty(value: str) -> None:
    assert read(value) == []


def test_one_www_authenticate_header_can_contain_several_challenges() -> None:
    # The example of RFC 9110 section 11.6.1
    value = 'Basic realm="simple", Newauth realm="apps", type=1, title="Login to \\"apps\\""'
    assert read(value) == [
        ("basic", {"realm": "simple"}, None),
        ("newauth", {"realm": "apps", "type": "1", "title": 'Login to "apps"'}, None),
    ]


def test_parsed_challenge_has_lower_case_names_and_unchanged_values() -> None:
    assert read('BEARER Scope="Files:Read"') == [("bearer", {"scope": "Files:Read"}, None)]


def test_comma_or_scheme_name_within_quotes_is_part_of_the_challenge_value() -> None:
    assert read('Bearer error_description="no, DPoP x=\\"y\\", and \\\\", scope=a, DPoP algs="ES256 PS256"') == [
        ("bearer", {"error_description": 'no, DPoP x="y", and \\', "scope": "a"}, None),
        ("dpop", {"algs": "ES256 PS256"}, None),
    ]


@pytest.mark.parametrize("text", ["abc", "YWJj==", "a/b+c._~-", "x="])
def test_challenge_scheme_can_have_a_token68_value_instead_of_parameters(text: str) -> None:
    assert read(f"Negotiate {text}, Bearer scope=a") == [("negotiate", {}, text), ("bearer", {"scope": "a"}, None)]


def test_challenge_scheme_can_have_no_parameters() -> None:
    assert read("Negotiate, NTLM,Bearer") == [("negotiate", {}, None), ("ntlm", {}, None), ("bearer", {}, None)]


@pytest.mark.parametrize("value", ["Bearer  a = b ,\tc= d", ", ,Bearer a=b,,, c=d,", "Bearer , a=b, c=d"])
def test_challenge_list_can_have_whitespace_and_empty_elements(value: str) -> None:
    assert read(value) == [("bearer", {"a": "b", "c": "d"}, None)]


def test_first_value_of_a_duplicate_challenge_parameter_is_used() -> None:
    assert read('Bearer resource_metadata="first", Resource_Metadata="second"') == [
        ("bearer", {"resource_metadata": "first"}, None)
    ]


@pytest.mark.parametrize(
    "value", ['Bearer a="b" c=d', 'Bearer a=b c="d"', 'Bearer a = "b"\tc = "d" ', "Bearer a=b  c=d,"]
)
def test_missing_comma_before_a_challenge_parameter_is_tolerated(value: str) -> None:
    assert read(value) == [("bearer", {"a": "b", "c": "d"}, None)]


def test_second_challenge_without_a_comma_before_it_keeps_only_parameters_after_the_next_comma() -> None:
    assert read('Bearer a="b" DPoP c="d", e=f') == [("bearer", {"e": "f"}, None)]


# What cannot be read


@pytest.mark.parametrize(
    "broken", ["error=", "error=@", "error=two words", 'error="a"b', 'error="a" b', 'error = "a";', "error==="]
)
def test_malformed_challenge_parameter_is_skipped(broken: str) -> None:
    assert read(f"Bearer scope=a, {broken}, realm=b, DPoP") == [
        ("bearer", {"scope": "a", "realm": "b"}, None),
        ("dpop", {}, None),
    ]


@pytest.mark.parametrize("broken", ["@", '"x"', "a@b c=d", "Sche/me", "(x)", "é"])
def test_challenge_parameters_after_a_malformed_scheme_are_ignored(broken: str) -> None:
    assert read(f"Bearer scope=a, {broken}, error=b, DPoP algs=ES256") == [
        ("bearer", {"scope": "a"}, None),
        ("dpop", {"algs": "ES256"}, None),
    ]


def test_challenge_parameter_before_any_scheme_is_ignored() -> None:
    assert read('realm="x", Bearer scope=a') == [("bearer", {"scope": "a"}, None)]


@pytest.mark.parametrize("open_quote", ['"b', '"b\\', '"b\\"', '"b\x00"', '"b\n"', '"b\x7f", DPoP'])
def test_challenge_parser_ignores_text_after_an_unclosed_quote(open_quote: str) -> None:
    assert read(f"Bearer scope=a, error={open_quote}, DPoP") == [("bearer", {"scope": "a"}, None)]


# Bounds


def test_parser_limits_the_number_of_challenges_and_parameters() -> None:
    assert len(parse_challenges(",".join(f"S{number}" for number in range(100)))) == 16
    [one] = parse_challenges("Bearer " + ",".join(f"p{number}=x" for number in range(100)))
    assert len(one.params) == 32


def test_too_long_challenge_header_is_ignored() -> None:
    assert len(parse_challenges("Bearer".ljust(32 * 1024))) == 1
    assert parse_challenges("Bearer".ljust(32 * 1024 + 1)) == []


@pytest.mark.parametrize(
    "part",
    [
        '"',
        '\\"',
        '"\\',
        "a",
        "a=",
        "=",
        "a=a,",
        'a="',
        'a="b"',
        "a ",
        " ",
        ",",
        "\t",
        "a b",
        "@",
        "a/",
        'a="b\\"',
        "\0",
    ],
)
def test_challenges_are_parsed_in_linear_time(part: str) -> None:
    def cost(value: str) -> float:
        started = time.thread_time()
        for _ in range(5):
            parse_challenges(value)
        return time.thread_time() - started

    for begin in ("", "Bearer ", 'Bearer a="', "Bearer a=b, "):
        short = min(cost(begin + part * (2000 // len(part))) for _ in range(3))
        long = min(cost(begin + part * (32000 // len(part))) for _ in range(3))
        assert long < 16 * 6 * max(short, 0.0002), "quadratic would be 256 times as much"


SEEDS = (
    f'Bearer resource_metadata="{METADATA}", scope="a b", error="insufficient_scope", error_description="no, \\"x\\""',
    'Basic realm="simple", Newauth realm="apps", type=1, title="Login to \\"apps\\"", DPoP algs="ES256", NTLM YQ==',
)


def test_mutated_challenges_are_parsed_without_an_exception() -> None:
    chance = random.Random(13)
    letters = ' ,="\\\t@a/Bé\x00\n'
    for _ in range(examples(100_000)):
        text = list(chance.choice(SEEDS))
        for _ in range(chance.randrange(1, 8)):
            at = chance.randrange(len(text))
            text[at : at + chance.choice((0, 1, 1, 5))] = chance.choice((*letters, "Bearer ", '", ', ""))
        for challenge in parse_challenges("".join(text)):
            assert challenge.scheme == challenge.scheme.lower()
            assert not any("\n" in value or "\0" in value for value in challenge.params.values())


@given(st.text())
def test_any_text_is_parsed_as_challenges_without_an_exception(value: str) -> None:
    parse_challenges(value)


# What is written

tokens = st.text("!#$%&'*+-.^_`|~09azAZ", min_size=1, max_size=20)
texts = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=100)
challenges = st.tuples(tokens, st.dictionaries(tokens.map(str.lower), texts, max_size=8))


@given(st.lists(challenges, max_size=8))
def test_challenge_that_is_written_and_parsed_again_is_unchanged(written: list[tuple[str, dict[str, str]]]) -> None:
    value = ", ".join(challenge_text(scheme, params) for scheme, params in written)
    assert read(value) == [(scheme.lower(), params, None) for scheme, params in written]


def test_written_challenge_has_quoted_and_escaped_parameter_values() -> None:
    assert challenge_text("Bearer", {"scope": "a b", "error_description": 'a "b" \\'}) == (
        r'Bearer scope="a b", error_description="a \"b\" \\"'
    )


@pytest.mark.parametrize("bad", ["\n", "a\r\nSet-Cookie: x", "\0", "\x7f", "é", "\t"])
def test_writing_a_challenge_with_a_value_of_unprintable_characters_raises_an_error(bad: str) -> None:
    with pytest.raises(ValueError, match="the parameter scope of WWW-Authenticate must have printable") as caught:
        challenge_text("Bearer", {"scope": bad})
    assert bad not in str(caught.value)


@pytest.mark.parametrize("bad", ["", "a b", 'a"', "é", "a=", "a\n"])
def test_writing_a_challenge_with_an_invalid_scheme_or_parameter_name_raises_value_error(bad: str) -> None:
    with pytest.raises(ValueError, match="invalid name of a scheme or parameter"):
        challenge_text(bad, {})
    with pytest.raises(ValueError, match="invalid name of a scheme or parameter"):
        challenge_text("Bearer", {bad: "x"})
