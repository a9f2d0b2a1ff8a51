"""Nesting depth and size of values."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import pytest

from trio_mcp.jsonrpc.codec import decode
from trio_mcp.jsonrpc.messages import Request, Unreadable
from trio_mcp.jsonrpc.sizes import (
    HEAVIEST,
    LONG,
    MOST_FAR,
    MOST_LEVELS,
    few_parts,
    has_many_far,
    is_checkable,
    is_small,
    is_too_deep,
    weight_of,
)


def nested(levels: int, *, objects: bool = False) -> Any:
    """``levels`` containers inside each other, the innermost empty."""
    value: Any = {} if objects else []
    for _ in range(levels - 1):
        value = {"a": value} if objects else [value]
    return value


@pytest.mark.parametrize("objects", [False, True], ids=["arrays", "objects"])
def test_nesting_limit_for_values_is_exact_to_the_level(objects: bool) -> None:
    assert not is_too_deep(nested(MOST_LEVELS, objects=objects))
    assert is_too_deep(nested(MOST_LEVELS + 1, objects=objects))
    assert is_too_deep(nested(100_000, objects=objects))


def test_tuples_count_as_arrays_towards_the_nesting_limit() -> None:
    value: Any = ()
    for _ in range(MOST_LEVELS):
        value = (value,)
    assert is_too_deep(value)


def test_long_string_does_not_count_as_nested_too_deeply() -> None:
    assert not is_too_deep("x" * 1000)


@pytest.mark.parametrize(
    ("value", "small"),
    [
        (["a"] * 10, True),
        (["a"] * 11, False),
        (["a" * 20], True),
        (["a" * 21], False),
        ({"a" * 21: 1}, False),
        ([[[]]], True),
        ([[[[]]]], False),
        ("a" * 21, False),
        (3, True),
    ],
)
def test_is_small_function_returns_true_only_for_few_parts_characters_and_nesting_levels(
    value: Any, small: bool
) -> None:
    assert is_small(value, parts=10, characters=20, levels=3) is small


UNITS = [
    "[0]",
    "[]",
    "{}",
    '{"":0}',
    '{"a":1}',
    '"a"',
    '"ab"',
    "300",
    "1.5",
    "1",
    '"é"',
    '"😀"',
    "[1,1]",
    '""',
    "null",
    "[[]]",
]
UNITS += [
    "[{}]",
    '{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6}',
    '"' + "a" * 500 + '"',
    '"' + "a" * 500 + '\\ud83d\\ude00"',
    "1e300",
]


@pytest.mark.parametrize("unit", UNITS)
def test_memory_estimate_of_a_json_line_is_at_least_its_decoded_size(unit: str) -> None:
    line = ("[" + ",".join([unit] * (200_000 // len(unit))) + "]").encode()
    tracemalloc.start()
    try:
        value = msgspec.json.decode(line)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert value
    assert 0.95 * taken <= weight_of(line) <= max(16 * taken, 8 * len(line))


def test_memory_estimate_of_a_json_line_with_unique_names_is_at_least_its_decoded_size() -> None:
    line = ("{" + ",".join(f'"{number}":{number}' for number in range(20_000)) + "}").encode()
    tracemalloc.start()
    try:
        value = msgspec.json.decode(line)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert value
    assert 0.95 * taken <= weight_of(line)


@pytest.mark.parametrize("mark", [b"[", b"{", b":", b",", b'"', b'"\xc3\xa9', "😀".encode(), b"\\u0041", b"x"])
def test_memory_estimate_of_a_json_line_has_a_maximum_per_byte(mark: bytes) -> None:
    assert weight_of(mark * 10_000) <= HEAVIEST * len(mark) * 10_000


def test_memory_estimate_of_a_short_json_line_equals_the_length_of_the_line() -> None:
    assert weight_of(b"[" * 512) == 512
    assert weight_of(b"[" * 513) > 513


@pytest.mark.parametrize(
    ("value", "count"),
    [("x" * 100_000, 1), ([], 1), ({"a": [1, 2], "b": ()}, 7), ([0] * 199, 200), (nested(100, objects=True), 199)],
    ids=["text", "empty", "members", "items", "levels"],
)
def test_json_value_with_at_most_200_parts_is_flattened_into_a_list_of_parts(value: Any, count: int) -> None:
    parts = few_parts(value)
    assert parts is not None
    assert len(parts) == count


@pytest.mark.parametrize(
    "value",
    [[0] * 200, dict.fromkeys(range(100)), [[0] * 100, [0] * 100], nested(201), nested(100_000), ["x" * 100_000] * 200],
    ids=["items", "members", "together", "levels", "deep", "texts"],
)
def test_json_value_with_more_than_200_parts_is_not_flattened(value: Any) -> None:
    assert few_parts(value) is None


def test_value_that_contains_itself_is_not_flattened() -> None:
    value: list[Any] = []
    value.append(value)
    assert few_parts(value) is None


TEXTS = ["x" * 200_000, "é" * 200_000, "€" * 200_000, "😀" * 200_000, "x" * 200_000 + "😀"]


@pytest.mark.parametrize("text", TEXTS, ids=["ascii", "latin", "wide", "widest", "one wide"])
def test_recorded_size_of_a_request_with_a_long_text_matches_the_memory_in_use(text: str) -> None:
    line = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": "x", "params": {"text": text}})
    decode(line)  # once before, for what is made once
    tracemalloc.start()
    try:
        request = decode(line)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert isinstance(request, Request)
    assert taken <= request.size <= max(taken, len(line)) + 2000
    assert weight_of(line) >= 0.95 * request.size


def test_recorded_size_of_a_request_with_many_parts_is_the_memory_estimate() -> None:
    for items in (b"0," * 300_000 + b"0", b"[]," * 100_000 + b"[]", b'"' + b"x" * 100_000 + b'"' + b",0" * 200):
        line = b'{"jsonrpc":"2.0","id":1,"method":"x","params":[%b]}' % items
        request = decode(line)
        assert isinstance(request, Request)
        assert request.size == weight_of(line)


def test_recorded_size_of_a_request_with_many_blanks_is_at_least_its_length_in_bytes() -> None:
    line = b'{"jsonrpc":"2.0","id":1,"method":"x"%b}' % (b" " * 100_000)
    request = decode(line)
    assert isinstance(request, Request)
    assert request.size == len(line)


@pytest.mark.parametrize("padding", [0, LONG, 100_000])
@pytest.mark.parametrize("levels", [100, MOST_LEVELS - 2, MOST_LEVELS - 1, 100_000])
def test_nesting_limit_of_decoded_messages_applies_even_if_they_contain_a_long_text(levels: int, padding: int) -> None:
    items = b"[" * levels + b"]" * levels + b',"' + b"x" * padding + b'"'
    message = decode(b'{"jsonrpc":"2.0","id":1,"method":"x","params":[%b]}' % items)
    assert isinstance(message, Request if levels <= MOST_LEVELS - 2 else Unreadable)


@pytest.mark.parametrize("number", [b"1e300", b"-1.5E+0300", b"1e-310", b"9E999"])
def test_message_with_too_many_numbers_that_json_parses_slowly_is_refused_unparsed(number: bytes) -> None:
    line = (
        b'{"jsonrpc": "2.0", "id": 7, "method": "m", "params": {"a": [' + b", ".join([number] * (MOST_FAR + 1)) + b"]}}"
    )
    assert has_many_far(line)
    unreadable = decode(line)
    assert isinstance(unreadable, Unreadable)
    assert not has_many_far(line.replace(number, b"1.5e10", 1) + b" " * 100_000)


def test_common_numbers_and_strings_do_not_count_as_numbers_that_parse_slowly() -> None:
    for other in (b"1.5e10", b"12345678901234", b"0.00000000000001", b'"e123"', b'"1e2345"', b'{"e":1}'):
        assert not has_many_far(b"[" + b",".join([other] * (MOST_FAR + 1)) + b"]"), other
    assert not has_many_far(b"1e300," * 1000)


def test_numbers_inside_a_string_do_not_count_as_numbers_that_parse_slowly() -> None:
    assert not has_many_far(b'["' + b"1e300 " * (MOST_FAR + 1) + b'"]')


@pytest.mark.parametrize(
    ("item", "parts"),
    [
        (2**64 - 1, 1),
        (1 - 2**64, 1),
        (2**64, 1 + 1000 + 4 * 65),
        (-(2**64), 1 + 1000 + 4 * 65),
        (2.0**63, 1),
        (0.0, 1),
        (2.0**64, 1 + 50),
        (-(2.0**64), 1 + 50),
        (2.0**-64, 1 + 50),
        ("x" * 1000, 1),
        ([1, 2], 3),
        ({"a": 1, "b": [2]}, 4),
    ],
)
def test_numbers_that_compare_slowly_count_as_several_parts_in_the_schema_check_limit(item: Any, parts: int) -> None:
    assert is_checkable([item], parts)
    assert not is_checkable([item], parts - 1)
