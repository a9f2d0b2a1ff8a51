"""Encoding: each message is one line of valid JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import pytest
from tests.instructions import instructions_of

from trio_mcp.jsonrpc.codec import (
    canonical_value,
    decode,
    decode_members,
    encode,
    encode_value,
    frame_error,
    frame_notification,
    frame_request,
    frame_result,
)
from trio_mcp.jsonrpc.errors import NotSerializable
from trio_mcp.jsonrpc.messages import ErrorResponse, Notification, Request, Response, Unreadable
from trio_mcp.jsonrpc.sizes import MOST_LEVELS

IDS = [0, -1, 1, "1", "", 2**53 + 1, 10**25, "x" * 4096, "🦑", "\u2028"]


def test_absent_params_of_a_message_are_omitted() -> None:
    assert json.loads(encode(Request(1, "ping"))) == {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    assert json.loads(encode(Notification("x"))) == {"jsonrpc": "2.0", "method": "x"}


def test_empty_params_of_a_request_are_encoded_as_an_empty_object() -> None:
    assert json.loads(encode(Request(1, "ping", {})))["params"] == {}


def test_json_rpc_response_with_a_null_result_is_encoded_with_result_null() -> None:
    assert json.loads(encode(Response(1, None))) == {"jsonrpc": "2.0", "id": 1, "result": None}


def test_error_without_data_is_encoded_without_data_and_with_null_for_an_unknown_id() -> None:
    assert json.loads(encode(ErrorResponse(None, -32700, "Parse error"))) == {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": -32700, "message": "Parse error"},
    }


def test_error_data_that_is_falsy_is_written() -> None:
    assert json.loads(encode(ErrorResponse(1, -1, "no", 0)))["error"]["data"] == 0


@pytest.mark.parametrize("request_id", IDS)
def test_every_encoded_message_keeps_type_and_value_of_the_id(request_id: int | str) -> None:
    for frame in (
        frame_request(request_id, "x", None),
        frame_result(request_id, {}),
        frame_error(request_id, 1, "no"),
    ):
        written = json.loads(frame)["id"]
        assert (type(written), written) == (type(request_id), request_id)


@pytest.mark.parametrize("length", [0, 400, 10_000])
def test_message_encoded_with_the_newline_option_ends_with_a_newline(length: int) -> None:
    value = {"text": "x" * length + "\udce9", "none": None}
    assert frame_result("1", value, newline=True) == frame_result("1", value) + b"\n"
    value["text"] = "x" * length
    assert frame_request(1, "x", value, newline=True) == frame_request(1, "x", value) + b"\n"
    assert frame_request(1, "x", None, newline=True) == b'{"jsonrpc":"2.0","id":1,"method":"x"}\n'


@pytest.mark.parametrize("text", ["a\nb", "a\r\nb", "\u2028\u2029\u0085", "\x00\x1f", '"\\', "🦑", "\x7f", "e\u0301"])
def test_text_is_encoded_on_one_line_and_decodes_to_the_same_text(text: str) -> None:
    line = frame_notification("x", {"text": text})
    assert b"\n" not in line
    assert b"\r" not in line
    assert decode(line) == Notification("x", {"text": text})


def test_integers_stay_integers_and_floats_stay_floats() -> None:
    assert encode_value([1, 1.0, 10**25, -0.5]) == b"[1,1.0,10000000000000000000000000,-0.5]"


def _deep(innermost: Any, levels: int) -> Any:
    for _ in range(levels):
        innermost = [innermost]
    return innermost


def _cycle() -> list[Any]:
    ring: list[Any] = []
    ring.append(ring)
    return ring


REFUSED = {
    "nan": math.nan,
    "infinity": math.inf,
    "negative infinity": -math.inf,
    "nan in a list": [1, math.nan],
    "nan in a tuple": (math.nan,),
    "nan beside a null": {"a": None, "b": {"c": [math.nan]}},
    "nan beside a string": {"a": "null", "b": ["null", math.nan], "null": "is null"},
    "nan deep inside": _deep(math.nan, 200),
    "a lone surrogate": "\ud800",
    "a lone surrogate as a key": {"\ud800": 1},
    "a lone surrogate deep inside": {"a": ["\udfff"]},
    "a foreign object": object(),
    "a foreign object inside": {"a": [object()]},
    "a class": int,
    "a function": len,
    "a range": range(3),
    "a key that is no text": {None: 1},
    "a cycle": _cycle(),
    "too deep": _deep(None, 100_000),
}


class OwnFloat(float):
    """As ``numpy.float64``."""


class OwnInt(int):
    pass


class OwnText(str):
    """As ``numpy.str_``."""

    def __str__(self) -> str:
        return "shown otherwise"


@Integral.register
class Registered:
    """As ``numpy.int64``, which is no subclass of int."""

    def __int__(self) -> int:
        return 7


@Real.register
class Measured:
    """As ``numpy.float32``."""

    def __init__(self, number: float) -> None:
        self.number = number

    def __float__(self) -> float:
        return self.number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (OwnFloat(1.5), b"1.5"),
        (OwnInt(3), b"3"),
        (OwnText("a"), b'"a"'),
        (Registered(), b"7"),
        (Measured(2.5), b"2.5"),
        ({"a": [Registered(), None, Measured(0.5)]}, b'{"a":[7,null,0.5]}'),
    ],
)
def test_subclasses_of_numbers_and_str_are_encoded_as_plain_values(value: Any, text: bytes) -> None:
    assert encode_value(value) == canonical_value(value) == text


@pytest.mark.parametrize("value", [OwnFloat("nan"), Measured(math.inf), [Measured(math.nan)], OwnText("\ud800")])
def test_nan_or_an_invalid_string_in_a_subclass_of_float_or_str_is_refused(value: Any) -> None:
    with pytest.raises(NotSerializable):
        encode_value(value)


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED.keys())
def test_encoding_a_value_that_json_cannot_represent_raises_not_serializable(value: Any) -> None:
    with pytest.raises(NotSerializable, match="not serializable as JSON"):
        encode_value(value)


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED.keys())
def test_value_that_json_cannot_represent_raises_even_if_the_message_also_has_a_long_text(value: Any) -> None:
    with pytest.raises(NotSerializable, match="not serializable as JSON"):
        encode_value({"long": "x" * 10_000, "value": value})


@pytest.mark.parametrize("levels", [150, MOST_LEVELS, MOST_LEVELS + 1])
def test_nesting_limit_of_encoded_values_applies_even_if_they_contain_a_long_text(levels: int) -> None:
    value = [_deep(1, levels - 1), "x" * 10_000]
    if levels > MOST_LEVELS:
        with pytest.raises(NotSerializable, match="more than 256 levels"):
            encode_value(value)
    else:
        assert json.loads(encode_value(value)) == value


FRAMES: dict[str, Callable[[Any], bytes]] = {
    "request": lambda value: frame_request(1, "x", value),
    "id of a request": lambda value: frame_request("\ud800" if value else "", "x", None),
    "notification": lambda value: frame_notification("x", value),
    "result": lambda value: frame_result(1, value),
    "error data": lambda value: frame_error(1, -1, "no", value),
    "error message": lambda value: frame_error(1, -1, "\ud800" if value else "", None),
}


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES.keys())
def test_every_json_rpc_message_refuses_values_that_json_cannot_represent(frame: Callable[[Any], bytes]) -> None:
    with pytest.raises(NotSerializable):
        frame({"n": math.nan})


@pytest.mark.parametrize("value", [None, [None], {"a": None}, "null", {"null": 1.5}, (None, 2.5)])
def test_null_values_are_encoded_although_nan_is_refused(value: Any) -> None:
    assert json.loads(encode_value(value)) == (list(value) if isinstance(value, tuple) else value)


def test_encoder_accepts_null_at_the_maximum_nesting() -> None:
    assert encode_value(_deep(None, MOST_LEVELS)) == b"[" * MOST_LEVELS + b"null" + b"]" * MOST_LEVELS


@pytest.mark.parametrize("innermost", [None, 1], ids=["null", "number"])
def test_encoding_a_value_nested_one_level_too_deeply_raises_not_serializable(innermost: Any) -> None:
    with pytest.raises(NotSerializable, match="more than 256 levels"):
        encode_value(_deep(innermost, MOST_LEVELS + 1))


@pytest.mark.parametrize(
    ("frame", "around"),
    [
        (lambda value: frame_request(1, "x", value), 1),
        (lambda value: frame_notification("x", value), 1),
        (lambda value: frame_result(1, value), 1),
        (lambda value: frame_request(1, "x", value, newline=True), 1),
        (lambda value: frame_result(1, value, newline=True), 1),
        (lambda value: frame_error(1, -1, "x", value), 2),
    ],
)
def test_encoded_message_is_never_nested_too_deeply_to_be_decoded(frame: Callable[[Any], bytes], around: int) -> None:
    value: Any = {}
    for _ in range(MOST_LEVELS - around - 1):
        value = {"": value}
    assert not isinstance(decode(frame(value)), Unreadable)
    with pytest.raises(NotSerializable, match="more than 256 levels of nesting"):
        frame({"": value})


@pytest.mark.parametrize("value", [{}, {"a": None, "b": [1.5, {"c": "null"}]}, {"long": ["x" * 200, None]}])
def test_values_that_are_already_json_text_are_written_unchanged(value: dict[str, Any]) -> None:
    members = decode_members(encode_value(value))
    assert json.loads(encode_value({"value": members, "none": None})) == {"value": value, "none": None}
    with pytest.raises(NotSerializable):
        encode_value({"value": members, "none": None, "number": math.nan})


def test_strings_that_contain_the_word_null_do_not_slow_down_encoding() -> None:
    schemas: list[Any] = [{"type": ["string", "null"]}] * 1000
    searched = instructions_of(lambda: encode_value([*schemas, None]))
    assert instructions_of(lambda: encode_value(schemas)) < searched / 2
