"""Which arguments are mirrored in headers, what such a header says, and when both agree (SEP-2243)."""

from __future__ import annotations

import json
import tracemalloc
from datetime import date
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mcp.protocol.param_headers import (
    ParamHeader,
    check,
    decoded,
    encoded_name,
    header_value,
    headers_for,
    param_headers,
)

REGION = {"type": "string", "x-mcp-header": "Region"}
MOST = 2**53 - 1


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


# What a schema asks for


def test_each_annotated_property_of_a_tool_schema_has_an_http_header_in_schema_order() -> None:
    asked = schema(
        region=REGION, query={"type": "string"}, count={"type": "integer", "x-mcp-header": "count"}, loud=True
    )
    assert param_headers(asked) == (
        ParamHeader(("region",), "Mcp-Param-Region"),
        ParamHeader(("count",), "Mcp-Param-count"),
    )


@pytest.mark.parametrize("kind", ["string", "integer", "boolean"])
def test_header_annotation_is_found_in_nested_properties(kind: str) -> None:
    inner = {"type": kind, "x-mcp-header": "X"}
    assert param_headers(schema(a=schema(b={"properties": {"c": inner}}))) == (
        ParamHeader(("a", "b", "c"), "Mcp-Param-X"),
    )


@pytest.mark.parametrize(
    "name", ["", " ", "My Region", "Region:Primary", "Région", "Region\t1", "a\r\nb", "a\n", "x" + "\0"]
)
def test_header_annotation_with_invalid_characters_in_the_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="can't be part of a header name"):
        param_headers(schema(a={"type": "string", "x-mcp-header": name}))


@pytest.mark.parametrize("name", [None, 1, True, ["Region"], {"name": "Region"}])
def test_header_annotation_whose_name_is_not_a_string_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="a value of type"):
        param_headers(schema(a={"type": "string", "x-mcp-header": name}))


@pytest.mark.parametrize(
    "kind", ["number", "object", "array", "null", "String", "", None, ["string"], ["string", "null"], {}]
)
def test_header_annotation_requires_type_string_integer_or_boolean(kind: Any) -> None:
    with pytest.raises(ValueError, match="string, integer or boolean"):
        param_headers(schema(a={"type": kind, "x-mcp-header": "X"}))


def test_header_annotation_without_a_type_is_refused() -> None:
    with pytest.raises(ValueError, match="but has none"):
        param_headers(schema(a={"enum": ["x"], "x-mcp-header": "X"}))


@pytest.mark.parametrize("other", ["Region", "region", "REGION"])
def test_tool_with_header_names_that_differ_only_in_case_is_refused(other: str) -> None:
    with pytest.raises(ValueError, match=r"already the header of 'a'"):
        param_headers(schema(a=REGION, b=schema(c={"type": "integer", "x-mcp-header": other})))


@pytest.mark.parametrize(
    "around",
    [
        lambda inner: inner,
        lambda inner: schema(a={"type": "array", "items": inner}),
        lambda inner: schema(a={"type": "array", "items": [inner]}),
        lambda inner: schema(a={"type": "array", "prefixItems": [True, inner]}),
        lambda inner: schema(a={"anyOf": [{"type": "null"}, inner]}),
        lambda inner: schema() | {"allOf": [schema(a=inner)]},
        lambda inner: schema() | {"oneOf": [{"not": inner}]},
        lambda inner: schema() | {"if": schema(a=inner)},
        lambda inner: schema() | {"then": schema(a=inner)},
        lambda inner: schema() | {"else": schema(a=inner)},
        lambda inner: schema(a={"$ref": "#/$defs/a"}) | {"$defs": {"a": inner}},
        lambda inner: schema(a={"$ref": "#/definitions/a"}) | {"definitions": {"a": schema(b=inner)}},
        lambda inner: schema() | {"additionalProperties": inner},
        lambda inner: schema() | {"patternProperties": {"^a": inner}},
        lambda inner: schema() | {"propertyNames": inner},
        lambda inner: schema() | {"dependentSchemas": {"a": schema(b=inner)}},
        lambda inner: schema() | {"dependencies": {"a": schema(b=inner), "b": ["a"]}},
        lambda inner: schema() | {"unevaluatedProperties": inner},
        lambda inner: schema(a={"contains": inner}),
        lambda inner: schema(a={"additionalItems": inner}),
        lambda inner: schema(a={"unevaluatedItems": inner}),
        lambda inner: schema(a={"contentSchema": schema(b=inner)}),
    ],
)
def test_header_annotation_outside_properties_is_refused(around: Any) -> None:
    assert param_headers(around({"type": "string"})) == ()
    with pytest.raises(ValueError, match='only through "properties"'):
        param_headers(around(REGION))


@pytest.mark.parametrize("keyword", ["default", "const", "examples", "enum", "description", "x-note", "required"])
@pytest.mark.parametrize("data", [REGION, [REGION], schema(a=REGION), [schema(a={"anyOf": [REGION]})]])
def test_header_annotations_inside_data_of_a_schema_are_ignored(keyword: str, data: Any) -> None:
    assert param_headers(schema(a={"type": "string", keyword: data}) | {keyword: data}) == ()


def test_property_named_like_a_schema_keyword_can_have_a_header() -> None:
    named = ["x-mcp-header", "default", "items", "anyOf", "properties", "$ref", "const"]
    properties = {name: {"type": "string", "x-mcp-header": f"H{at}"} for at, name in enumerate(named)}
    assert [header.path for header in param_headers({"properties": properties})] == [(name,) for name in named]


@pytest.mark.parametrize(
    "odd", [{}, {"properties": []}, {"properties": {"a": 1}}, {"anyOf": {"a": REGION}}, {"items": 1}]
)
def test_malformed_tool_schema_requires_no_http_headers(odd: Any) -> None:
    assert param_headers(odd) == ()


def test_header_annotation_in_a_very_deep_schema_is_found() -> None:
    deep: dict[str, Any] = dict(REGION)
    for _ in range(10_000):
        deep = schema(a=deep)
    assert param_headers(deep)[0].path == ("a",) * 10_000


def test_search_for_header_annotations_in_a_wide_and_deep_schema_uses_little_memory() -> None:
    wide: dict[str, Any] = {"properties": {f"a{at}": {"type": "string"} for at in range(20_000)}}
    for _ in range(500):
        wide = schema(a=wide)
    tracemalloc.start()
    try:
        assert param_headers(wide) == ()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 20_000 * 500


def test_tool_with_more_than_a_hundred_headers_is_refused() -> None:
    many = {f"a{at}": {"type": "string", "x-mcp-header": f"A{at}"} for at in range(101)}
    with pytest.raises(ValueError, match="at most 100 arguments"):
        param_headers(schema(**many))
    del many["a0"]
    assert len(param_headers(schema(**many))) == 100


def test_error_for_an_invalid_tool_schema_of_a_server_is_short() -> None:
    with pytest.raises(ValueError, match="can't be part of") as caught:
        param_headers(schema(**{"a" * 10_000: {"x-mcp-header": "é" * 10_000}}))
    assert len(str(caught.value)) < 500


# How values are written and read


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("us-west1", "us-west1"),
        ("us west 1", "us west 1"),
        ("", ""),
        ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
        (" padded ", "=?base64?IHBhZGRlZCA=?="),
        (" us-west1", "=?base64?IHVzLXdlc3Qx?="),
        ("us-west1 ", "=?base64?dXMtd2VzdDEg?="),
        ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
        ("a\tb", "=?base64?YQli?="),
        ("a\x7f", "=?base64?YX8=?="),
        ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        ("=?base64?=", "=?base64?PT9iYXNlNjQ/PQ==?="),
        ("=?base64?SGVsbG8=", "=?base64?SGVsbG8="),
        ("SGVsbG8=?=", "SGVsbG8=?="),
        ("=?BASE64?SGVsbG8=?=", "=?BASE64?SGVsbG8=?="),
        ("file:///a%20b", "file:///a%20b"),
    ],
)
def test_argument_text_is_sent_in_a_header_unchanged_or_in_base64(text: str, written: str) -> None:
    assert header_value(text) == encoded_name(text) == written
    assert decoded(written) == text


@pytest.mark.parametrize(
    ("argument", "written"),
    [
        (True, "true"),
        (False, "false"),
        (0, "0"),
        (-7, "-7"),
        (42.0, "42"),
        (-0.0, "0"),
        (MOST, str(MOST)),
        (-MOST, str(-MOST)),
        (None, None),
        (4.5, None),
        (float("nan"), None),
        (float("inf"), None),
        ([], None),
        ({}, None),
        (Enum("Color", {"RED": "red"}).RED, "red"),  # type: ignore[attr-defined]
        (Enum("Text", {"RED": "red"}, type=str).RED, "red"),  # type: ignore[attr-defined]
        (date(2026, 7, 28), "2026-07-28"),
        (object(), None),
    ],
)
def test_argument_is_written_in_a_header_in_the_same_way_as_in_the_json_body(
    argument: object, written: str | None
) -> None:
    assert header_value(argument) == written


@pytest.mark.parametrize("number", [MOST + 1, -MOST - 1, 10**4000, 1e300])
def test_number_beyond_the_safe_integer_range_is_not_sent_in_a_header(number: float) -> None:
    with pytest.raises(ValueError, match=f"must be within ±{MOST}"):
        header_value(number)


@pytest.mark.parametrize(
    "text",
    [
        "=?base64?SGVsbG8?=",
        "=?base64?SGVs!!!bG8=?=",
        "=?base64?SGVsbG9=?=",
        "=?base64?SGVs bG8=?=",
        "=?base64?SGVsbG8==?=",
        "=?base64?====?=",
        "=?base64?_w==?=",
        "=?base64?/w==?=",
        "=?base64?7aCA?=",
        "é",
        "a\x00",
        "a\x7f",
        "a\nb",
    ],
)
def test_invalid_encoded_header_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"contains characters|must be UTF-8 text in base64"):
        decoded(text)


@given(st.text())
def test_every_text_is_unchanged_after_encoding_and_decoding_in_a_header(text: str) -> None:
    written = encoded_name(text)
    assert written.isascii()
    assert written.isprintable() or not written
    assert decoded(written.strip(" \t")) == text  # a parser of HTTP strips blanks


@given(st.text(alphabet=st.characters(max_codepoint=255)), st.text(alphabet=st.characters(max_codepoint=255)))
def test_different_encoded_header_texts_never_decode_to_the_same_text(one: str, other: str) -> None:
    found = set[str]()
    for text in (f"=?base64?{one}?=", f"=?base64?{other}?="):
        try:
            found.add(decoded(text))
        except ValueError:
            found.add(text)
    assert len(found) == len({one, other})


# Whether headers and arguments agree

TABLE = param_headers(
    schema(
        region=REGION,
        count={"type": "integer", "x-mcp-header": "Count"},
        loud={"type": "boolean", "x-mcp-header": "Loud"},
        inner=schema(deep={"type": "string", "x-mcp-header": "Deep"}),
    )
)


def lower(headers: list[tuple[str, str]]) -> dict[str, str]:
    return {name.lower(): text for name, text in headers}


def test_tool_call_has_an_http_header_for_each_annotated_argument_that_is_present() -> None:
    arguments = {"region": "é", "count": 0, "loud": False, "inner": {"deep": ""}, "other": "x"}
    assert headers_for(TABLE, arguments) == [
        ("Mcp-Param-Region", "=?base64?w6k=?="),
        ("Mcp-Param-Count", "0"),
        ("Mcp-Param-Loud", "false"),
        ("Mcp-Param-Deep", ""),
    ]


@pytest.mark.parametrize(
    "arguments", [{}, {"region": None, "count": None}, {"inner": None}, {"inner": "deep"}, {"inner": {"deep": None}}]
)
def test_absent_or_null_tool_argument_has_no_http_header(arguments: dict[str, Any]) -> None:
    assert headers_for(TABLE, arguments) == []
    assert check({}, arguments, TABLE) is None


def test_error_for_an_argument_that_an_http_header_cannot_contain_names_the_argument() -> None:
    with pytest.raises(ValueError, match="argument 'count': a number in a header"):
        headers_for(TABLE, {"count": 2**60})


@pytest.mark.parametrize("text", ["42", "42.0", "42.000", "042", "=?base64?NDI=?="])
@pytest.mark.parametrize("argument", [42, 42.0])
def test_numbers_in_headers_are_compared_with_arguments_as_numbers(text: str, argument: float) -> None:
    assert check({"mcp-param-count": text}, {"count": argument}, TABLE) is None


@pytest.mark.parametrize(
    "text", ["43", "42.5", "4.2e1", "+42", " 42", "0x2a", "4_2", "", "٤٢", "42.", "-42", "=?base64?NDM=?="]
)
def test_different_or_malformed_number_in_a_header_causes_a_header_mismatch(text: str) -> None:
    assert check({"mcp-param-count": text}, {"count": 42}, TABLE)


def test_large_numbers_in_headers_are_compared_exactly() -> None:
    assert check({"mcp-param-count": str(2**60)}, {"count": 2**60}, TABLE) is None
    assert check({"mcp-param-count": str(2**60 + 1)}, {"count": 2**60}, TABLE)
    assert check({"mcp-param-count": "9" * 9000}, {"count": 10**5000}, TABLE)


@pytest.mark.parametrize(
    ("headers", "arguments", "words"),
    [
        ({}, {"region": "eu"}, "Mcp-Param-Region is missing, but the argument 'region' is present"),
        ({}, {"region": ""}, "Mcp-Param-Region is missing"),
        ({}, {"loud": False}, "Mcp-Param-Loud is missing"),
        ({}, {"inner": {"deep": "x"}}, "Mcp-Param-Deep is missing, but the argument 'inner.deep' is present"),
        ({"mcp-param-region": "eu"}, {}, "Mcp-Param-Region is present, but the argument 'region' is missing"),
        ({"mcp-param-region": ""}, {"region": None}, "Mcp-Param-Region is present"),
        ({"mcp-param-region": "x"}, {"region": ["x"]}, "Mcp-Param-Region is present"),
        ({"mcp-param-deep": "x"}, {"inner": "x"}, "Mcp-Param-Deep is present"),
        ({"mcp-param-region": "eu"}, {"region": "us"}, "have different values"),
        ({"mcp-param-region": "EU"}, {"region": "eu"}, "have different values"),
        ({"mcp-param-loud": "True"}, {"loud": True}, "have different values"),
        ({"mcp-param-loud": "1"}, {"loud": True}, "have different values"),
        ({"mcp-param-count": "true"}, {"count": 1}, "have different values"),
        (
            {"mcp-param-region": "=?base64?SGVsbG8?="},
            {"region": "Hello"},
            "Mcp-Param-Region: invalid header value: it must be UTF-8 text in base64",
        ),
        ({"mcp-param-region": "é"}, {"region": "é"}, "Mcp-Param-Region: the value contains characters"),
    ],
)
def test_error_for_a_header_that_differs_from_its_argument_describes_the_mismatch(
    headers: dict[str, str], arguments: dict[str, Any], words: str
) -> None:
    assert words in (check(headers, arguments, TABLE) or "they agree")


def test_argument_header_that_occurs_twice_causes_a_header_mismatch() -> None:
    arguments = {"region": "eu, eu"}
    assert check({"mcp-param-region": "eu, eu"}, arguments, TABLE) is None
    assert check({"mcp-param-region": "eu, eu"}, arguments, TABLE, {"mcp-param-region"})


def test_headers_that_the_tool_schema_does_not_name_are_ignored() -> None:
    assert check({"mcp-param-other": "x", "mcp-param-regio": "\xff"}, {}, TABLE, {"mcp-param-other"}) is None


VALUES = st.none() | st.text() | st.booleans() | st.integers(-MOST, MOST) | st.floats(-MOST, MOST) | st.lists(st.text())


@given(VALUES, VALUES, VALUES)
def test_headers_written_by_a_client_match_the_arguments_read_by_a_server(region: Any, count: Any, deep: Any) -> None:
    arguments = {"region": region, "count": count, "inner": {"deep": deep}}
    headers = lower(headers_for(TABLE, arguments))
    assert check(headers, json.loads(json.dumps(arguments)), TABLE) is None


@given(VALUES, VALUES)
def test_headers_of_one_call_match_another_call_only_if_the_argument_values_are_equal(mine: Any, other: Any) -> None:
    headers = lower(headers_for(TABLE, {"count": other, "region": other}))
    sent = {"count": mine, "region": mine}
    same = header_value(mine) == header_value(other)
    if type(mine) is type(other) or not isinstance(mine, int | float):
        assert (check(headers, sent, TABLE) is None) == same
