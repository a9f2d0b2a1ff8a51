"""Decoding: every line is a message, a batch, or one error."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest

from trio_mcp.jsonrpc.codec import check_levels, decode
from trio_mcp.jsonrpc.errors import INVALID_REQUEST, PARSE_ERROR
from trio_mcp.jsonrpc.messages import Batch, ErrorResponse, Notification, Request, Response, Unreadable
from trio_mcp.jsonrpc.sizes import MOST_LEVELS

IDS = [0, -1, 1, "1", "", 2**53 + 1, 2**64, 10**25, -(10**25), "x" * 4096, "🦑", "\u2028"]
NO_IDS = [None, True, False, 1.5, 1.0, [], {}, [1], {"id": 1}]


def line(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **members}, ensure_ascii=False).encode()


def owed(data: bytes) -> ErrorResponse:
    """The error that ``data`` earns."""
    unreadable = decode(data)
    assert isinstance(unreadable, Unreadable)
    assert unreadable.reply is not None
    return unreadable.reply


def reported(data: bytes) -> str:
    """Why ``data`` is reported and not answered."""
    unreadable = decode(data)
    assert isinstance(unreadable, Unreadable)
    assert unreadable.reply is None
    return unreadable.reason


# The four messages


@pytest.mark.parametrize("request_id", IDS)
def test_decoded_request_keeps_type_and_value_of_its_id(request_id: int | str) -> None:
    message = decode(line(id=request_id, method="ping"))
    assert message == Request(request_id, "ping")
    assert isinstance(message, Request)
    assert type(message.id) is type(request_id)


@pytest.mark.parametrize("request_id", IDS)
def test_decoded_result_keeps_type_and_value_of_its_id(request_id: int | str) -> None:
    message = decode(line(id=request_id, result={}))
    assert message == Response(request_id, {})


def test_message_with_a_method_and_no_id_is_decoded_as_a_notification() -> None:
    assert decode(line(method="notifications/initialized")) == Notification("notifications/initialized")


@pytest.mark.parametrize("params", [{}, {"a": [1, None]}, [], [1], None, 3, "x", False])
def test_decoded_request_keeps_params_of_any_type(params: Any) -> None:
    assert decode(line(id=1, method="x", params=params)) == Request(1, "x", params)


@pytest.mark.parametrize("result", [{}, None, False, 0, "", [1]])
def test_decoded_response_keeps_a_result_of_any_type(result: Any) -> None:
    assert decode(line(id=1, result=result)) == Response(1, result)


def test_decoded_error_keeps_code_message_and_data() -> None:
    message = decode(line(id="a", error={"code": -1, "message": "no", "data": [1], "more": 2}))
    assert message == ErrorResponse("a", -1, "no", [1])


@pytest.mark.parametrize("members", [{"id": None}, {}])
def test_json_rpc_error_response_without_id_or_with_null_id_is_accepted(members: dict[str, Any]) -> None:
    assert decode(line(error={"code": -32700, "message": "?"}, **members)) == ErrorResponse(None, -32700, "?")


def test_unknown_fields_of_a_message_are_ignored() -> None:
    assert decode(line(id=1, method="ping", extra=True)) == Request(1, "ping")


def test_decoded_request_contains_its_size_in_bytes() -> None:
    data = line(id=1, method="ping", params={"text": "ü"})
    message = decode(data)
    assert isinstance(message, Request)
    assert message.size == len(data)


def test_bytearray_is_decoded_in_the_same_way_as_bytes() -> None:
    assert decode(bytearray(line(id=1, method="ping"))) == Request(1, "ping")


def test_unicode_line_separators_do_not_end_a_message() -> None:
    text = "a\u2028b\u2029c\u0085d"
    assert decode(line(method="x", params={"text": text})) == Notification("x", {"text": text})


# Nesting


def nested(levels: int) -> bytes:
    """A call whose ``levels`` levels of nesting begin with itself."""
    inner = b"[" * (levels - 2) + b"]" * (levels - 2)
    return b'{"jsonrpc":"2.0","id":7,"method":"x","params":{"a":' + inner + b"}}"


def test_message_may_be_nested_up_to_the_limit() -> None:
    assert isinstance(decode(nested(MOST_LEVELS)), Request)


@pytest.mark.parametrize("levels", [MOST_LEVELS + 1, 900, 5000, 100_000])
def test_request_nested_too_deeply_gets_an_error_with_its_id(levels: int) -> None:
    reply = owed(nested(levels))
    assert (reply.code, reply.id) == (PARSE_ERROR, 7)
    assert reply.message == "Parse error: the message has more than 256 levels of nesting"


def test_result_nested_too_deeply_fails_its_call() -> None:
    unreadable = decode(b'{"jsonrpc":"2.0","id":7,"result":{"a":' + b"[" * 300 + b"]" * 300 + b"}}")
    assert isinstance(unreadable, Unreadable)
    assert (unreadable.reply, unreadable.settles) == (None, 7)


def test_brackets_in_strings_do_not_count_as_nesting_levels() -> None:
    assert isinstance(decode(line(method="x", params={"text": "[{" * 1000})), Notification)


# Other members


@pytest.mark.parametrize(
    "known",
    [
        {"method": "x", "params": {"a": 1}},
        {"id": 1, "method": "x"},
        {"id": 1, "result": None},
        {"id": None, "error": {"code": 1, "message": "m"}},
        {"id": 1, "method": "x", "result": 1},
        {"method": 1},
        {},
    ],
)
def test_unknown_fields_do_not_change_decoded_messages_and_batches(known: dict[str, Any]) -> None:
    more = {"other": [{"method": "y", "id": 2}], "Method": "z"}
    assert decode(line(**known, **more)) == decode(line(**known))
    assert decode(b"[" + line(**known, **more) + b"]") == decode(b"[" + line(**known) + b"]")


# The collector


def test_decoding_a_large_message_rarely_runs_the_garbage_collector() -> None:
    data = line(method="x", params={"a": [[number] for number in range(50_000)]})
    begun = 0

    def count(phase: str, _: dict[str, int]) -> None:
        nonlocal begun
        begun += phase == "start"

    assert gc.isenabled()
    gc.callbacks.append(count)
    try:
        message = decode(data)
    finally:
        gc.callbacks.remove(count)
    assert isinstance(message, Notification)
    assert begun <= 2
    assert gc.isenabled()


def test_decoding_does_not_enable_a_disabled_garbage_collector() -> None:
    gc.disable()
    try:
        decode(line(method="x", params={"a": "x" * 100_000}))
        assert not gc.isenabled()
    finally:
        gc.enable()


# Not JSON


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"{bad",
        b'{"jsonrpc":"2.0","id":NaN,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":' + b"9" * 5000 + b',"method":"x"}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"params":' * 100_000,
    ],
    ids=lambda data: repr(data[:40]),
)
def test_line_with_invalid_json_or_utf8_gets_a_parse_error_with_null_id(data: bytes) -> None:
    reply = owed(data)
    assert (reply.code, reply.id) == (PARSE_ERROR, None)


@pytest.mark.parametrize(
    "data",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"ping"',
        b'{"jsonrpc":"2.0","id":1,"method":"ping"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"n":1e999}}',
        b'{"jsonrpc":"2.0","id":1,"method":"\xff"}',
        b'{"jsonrpc":"2.0","id":1,"method":"\xed\xa0\x80"}',
        b'{"jsonrpc":"2.0","id":1,"method":"\\ud800"}',
    ],
)
def test_request_with_invalid_json_gets_an_error_with_its_id_if_the_id_is_readable(data: bytes) -> None:
    reply = owed(data)
    assert (reply.code, reply.id) == (PARSE_ERROR, 1)


def test_json_rpc_line_with_a_byte_order_mark_gets_a_parse_error() -> None:
    assert owed(b"\xef\xbb\xbf" + line(id=1, method="ping")).code == PARSE_ERROR


# JSON, but no message


@pytest.mark.parametrize("data", [b"42", b'"x"', b"null", b"true", b"1.5", b"[]", b"{}"])
def test_json_that_is_not_a_message_gets_error_invalid_request_with_null_id(data: bytes) -> None:
    reply = owed(data)
    assert (reply.code, reply.id) == (INVALID_REQUEST, None)


@pytest.mark.parametrize("request_id", NO_IDS)
def test_request_with_an_invalid_id_gets_an_error_with_null_id(request_id: Any) -> None:
    reply = owed(line(id=request_id, method="tools/call"))
    assert (reply.code, reply.id) == (INVALID_REQUEST, None)


@pytest.mark.parametrize("version", ["1.0", "2", 2.0, 2, None, ""])
def test_request_with_a_wrong_json_rpc_version_gets_an_error_with_its_id(version: Any) -> None:
    reply = owed(json.dumps({"jsonrpc": version, "id": 7, "method": "ping"}).encode())
    assert (reply.code, reply.id) == (INVALID_REQUEST, 7)


def test_request_without_the_jsonrpc_field_gets_an_error_with_its_id() -> None:
    assert owed(b'{"id":"a","method":"ping"}').id == "a"


@pytest.mark.parametrize("method", [None, 3, {}, []])
def test_request_with_a_method_that_is_not_a_string_gets_an_error_with_its_id(method: Any) -> None:
    reply = owed(line(id=7, method=method))
    assert (reply.code, reply.id) == (INVALID_REQUEST, 7)


@pytest.mark.parametrize("member", ["result", "error"])
def test_message_that_is_both_a_request_and_a_reply_is_refused(member: str) -> None:
    assert owed(line(id=7, method="ping", **{member: {}})).code == INVALID_REQUEST


def test_message_without_method_result_and_error_gets_an_error_with_null_id() -> None:
    # Under its id the refusal could settle one of the peer's own calls.
    assert owed(line(id=7)).id is None


# Replies that make no sense: reported, never answered


@pytest.mark.parametrize(
    "members",
    [
        {"id": 1, "result": {}, "error": {"code": 1, "message": ""}},
        {"id": None, "result": {}},
        {"result": {}},
        {"id": True, "result": {}},
        {"id": 1.5, "result": {}},
        {"id": True, "error": {"code": 1, "message": ""}},
        {"id": [], "error": {"code": 1, "message": ""}},
        {"id": 1, "error": None},
        {"id": 1, "error": ""},
        {"id": 1, "error": []},
        {"id": 1, "error": {}},
        {"id": 1, "error": {"code": "1", "message": ""}},
        {"id": 1, "error": {"code": True, "message": ""}},
        {"id": 1, "error": {"code": 1.5, "message": ""}},
    ],
)
def test_malformed_json_rpc_reply_is_reported_and_not_answered_with_an_error(members: dict[str, Any]) -> None:
    assert reported(line(**members))


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        ("no luck", -32603, "no luck"),
        ({"message": "no luck"}, -32603, "no luck"),
        ({"code": None, "message": "no luck"}, -32603, "no luck"),
        ({"code": "-32001", "message": "no luck"}, -32001, "no luck"),
        ({"code": -32001.0, "message": "no luck"}, -32001, "no luck"),
        ({"code": 1.5, "message": "no luck"}, -32603, "no luck"),
        ({"code": "ENOENT", "message": "no luck"}, -32603, "ENOENT: no luck"),
        *(({"code": each, "message": "m"}, -32603, f"{each}: m") for each in ("nan", "inf", "9" * 400, "1e300")),
        ({"code": 1e300, "message": "m"}, -32603, "m"),
        ({"code": [], "message": "m"}, -32603, "m"),
        ({"detail": "no luck"}, -32603, '{"detail":"no luck"}'),
        ({"code": 7}, 7, '{"code":7}'),
        ({"code": 7, "message": ["no", "luck"]}, 7, '{"code":7,"message":["no","luck"]}'),
        (["no luck"], -32603, '["no luck"]'),
        (True, -32603, "true"),
        ("x" * 501, -32603, "x" * 499 + "…"),
    ],
)
def test_error_object_with_a_nonstandard_form_is_decoded_with_its_text_as_message(
    error: object, code: int, message: str
) -> None:
    data = error.get("data") if isinstance(error, dict) else None
    assert decode(line(id=1, error=error)) == ErrorResponse(1, code, message, data)


def test_error_for_a_malformed_error_reply_quotes_the_error_message_of_the_peer() -> None:
    assert reported(b'{"id":1,"error":{"code":1,"message":"no luck"}}').endswith(": no luck")
    assert reported(line(id=1, result={}, error="no luck")).endswith(": no luck")


@pytest.mark.parametrize("member", [{"result": {}}, {"error": {"code": 1, "message": ""}}])
def test_reply_with_a_wrong_json_rpc_version_gets_no_error_response(member: dict[str, Any]) -> None:
    assert "jsonrpc" in reported(json.dumps({"jsonrpc": "1.0", "id": 1, **member}).encode())


@pytest.mark.parametrize("result", [{}, {"content": []}, None])
def test_reply_with_a_result_and_a_null_error_is_decoded_as_a_result(result: Any) -> None:
    assert decode(line(id=1, result=result, error=None)) == Response(1, result)


def test_reply_with_an_error_and_a_null_result_is_decoded_as_an_error() -> None:
    assert decode(line(id=1, result=None, error={"code": -1, "message": "no"})) == ErrorResponse(1, -1, "no")


def test_json_rpc_replies_in_a_batch_may_have_an_additional_null_error_or_result() -> None:
    batch = decode(b"[" + line(id=1, result={}, error=None) + b"," + line(id=2, result={}, error={}) + b"]")
    both = "a reply with both a result and an error"
    assert batch == Batch((Response(1, {}), Unreadable(both, None, 2, is_answer=True)))


@pytest.mark.parametrize("member", ["result", "error"])
def test_request_with_a_null_result_or_error_field_is_refused(member: str) -> None:
    assert owed(line(id=7, method="ping", **{member: None})).code == INVALID_REQUEST


@pytest.mark.parametrize(
    "members",
    [
        {"result": {}, "error": {"code": 1, "message": ""}},
        {"result": 0, "error": {"code": 1, "message": ""}},
        {"error": None},
        {"error": ""},
        {"error": {}},
        {"result": {}, "jsonrpc": "1.0"},
        {"error": {"code": 1, "message": ""}, "jsonrpc": None},
    ],
)
@pytest.mark.parametrize("request_id", [1, "a"])
def test_malformed_reply_fails_the_call_that_has_the_id_in_the_reply(
    request_id: int | str, members: dict[str, Any]
) -> None:
    unreadable = decode(line(**{"id": request_id, **members}))
    assert isinstance(unreadable, Unreadable)
    assert (unreadable.settles, unreadable.is_answer, unreadable.reply) == (request_id, True, None)


@pytest.mark.parametrize(
    ("data", "settles", "is_answer"),
    [
        (b'{"id":"a","result":{}}', "a", True),
        (b'{"jsonrpc":"2.0","id":7,"error":{"code":"ENOENT","message":""}}', 7, True),
        (b'{"jsonrpc":"2.0","id":7.0,"result":{}}', None, True),
        (b'{"jsonrpc":"2.0","id":[],"error":{}}', None, True),
        (b'{"jsonrpc":"2.0","id":null,"error":{}}', None, False),
        (b'{"result":{}}', None, False),
    ],
)
def test_unreadable_reply_fails_the_call_that_has_the_id_in_the_reply(
    data: bytes, settles: object, is_answer: bool
) -> None:
    unreadable = decode(data)
    assert isinstance(unreadable, Unreadable)
    assert (unreadable.settles, unreadable.is_answer) == (settles, is_answer)


# Batches


def test_decoded_batch_keeps_its_messages_in_order() -> None:
    batch = decode(b"[" + line(id=1, method="ping") + b"," + line(method="x") + b"," + line(id=2, result=0) + b"]")
    assert batch == Batch((Request(1, "ping"), Notification("x"), Response(2, 0)))


def test_invalid_message_in_a_batch_is_decoded_as_a_separate_error() -> None:
    batch = decode(b"[1," + line(id=1, method="ping") + b",[],{}]")
    assert isinstance(batch, Batch)
    assert [type(member) for member in batch.members] == [Unreadable, Request, Unreadable, Unreadable]


def test_batch_longer_than_the_limit_is_refused() -> None:
    two = b"[" + line(method="x") + b"," + line(method="x") + b"]"
    assert isinstance(decode(two, max_batch=2), Batch)
    unreadable = decode(two, max_batch=1)
    assert isinstance(unreadable, Unreadable)
    assert unreadable.reply is not None
    assert (unreadable.reply.code, unreadable.reply.id) == (INVALID_REQUEST, None)


def test_bytes_of_a_small_batch_are_counted_equally_for_each_message_in_the_batch() -> None:
    data = b"[" + line(id=1, method="a") + b"," + line(id=2, method="b") + b"]"
    batch = decode(data)
    assert isinstance(batch, Batch)
    sizes = [member.size for member in batch.members if isinstance(member, Request)]
    assert sizes == [len(data) // 2, len(data) // 2]


def test_size_of_each_message_decoded_from_a_long_batch_is_counted_separately() -> None:
    """Its small members may be done long before the large one."""
    large = line(id=1, method="a", params={"items": [[0]] * 10_000})
    alone = decode(large)
    batch = decode(b"[" + large + (b"," + line(id=2, method="b")) * 99 + b"]")
    assert isinstance(alone, Request)
    assert isinstance(batch, Batch)
    sizes = [member.size for member in batch.members if isinstance(member, Request)]
    assert sizes[0] == pytest.approx(alone.size, rel=0.01)
    assert set(sizes[1:]) == {len(line(id=2, method="b").replace(b" ", b""))}


@pytest.mark.parametrize("wrapped", [b"[%s]", b'{"a": %s}'])
def test_check_levels_function_raises_recursion_error_beyond_the_nesting_limit(wrapped: bytes) -> None:
    def nested(levels: int) -> bytes:
        text = b"[]"
        for _ in range(levels - 1):
            text = wrapped % text
        return text

    many = b"[" + b"[]," * 1000 + b"[]]"
    for text in (nested(MOST_LEVELS), nested(MOST_LEVELS).decode(), many, b'"' + b"[" * 1000 + b'"'):
        check_levels(text)
    for text in (nested(MOST_LEVELS + 1), nested(MOST_LEVELS + 1).decode(), nested(2000)):
        with pytest.raises(RecursionError):
            check_levels(text)
