"""Properties of the codec: any bytes give one message or one error, and encoding can be reversed."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from trio_mcp.jsonrpc.codec import decode, encode
from trio_mcp.jsonrpc.errors import INVALID_REQUEST, PARSE_ERROR
from trio_mcp.jsonrpc.messages import (
    Batch,
    ErrorResponse,
    Message,
    Notification,
    Request,
    Response,
    Unreadable,
    is_request_id,
)

quick = settings(max_examples=examples(150))

texts = st.text(st.characters(exclude_categories=["Cs"]))
integers = st.integers() | st.sampled_from([2**53 + 1, 2**63, 2**64, 10**25, -(10**25)])
values = st.recursive(
    st.none() | st.booleans() | integers | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
ids = integers | texts
params = st.none() | st.dictionaries(texts, values, max_size=4)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(Request, ids, texts, params),
    st.builds(Notification, texts, params),
    st.builds(Response, ids, values),
    st.builds(ErrorResponse, st.none() | ids, integers, texts, values),
)

# Objects that look like messages, most of them broken in one place or another.
members = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.sampled_from(["2.0", "1.0", 2.0, None]),
        "id": values | ids,
        "method": texts | values,
        "params": values,
        "result": values,
        "error": values | st.fixed_dictionaries({"code": values, "message": values}),
    },
)


def check(data: bytes) -> None:
    outcome = decode(data)
    if isinstance(outcome, Batch):
        assert outcome.members
        for member in outcome.members:
            check_member(member)
    else:
        check_member(outcome)


def check_member(outcome: Message | Unreadable) -> None:
    match outcome:
        case Unreadable(reply=None):
            assert outcome.reason
        case Unreadable(reply=ErrorResponse() as owed):
            assert owed.code in (PARSE_ERROR, INVALID_REQUEST)
            assert owed.id is None or is_request_id(owed.id)
            assert decode(encode(owed)) == owed
        case Request():
            assert is_request_id(outcome.id)
            assert decode(encode(outcome)) == outcome
        case _:
            assert decode(encode(outcome)) == outcome


@quick
@given(st.binary(max_size=200))
@example(b"")
@example(b"[]")
@example(b"\xef\xbb\xbf{}")
def test_any_bytes_are_decoded_to_a_message_or_an_error_without_an_exception(data: bytes) -> None:
    check(data)


@quick
@given(values | members | st.lists(members, max_size=4))
def test_any_json_is_decoded_to_a_message_or_an_error_without_an_exception(data: Any) -> None:
    check(json.dumps(data).encode())
    check(json.dumps(data, ensure_ascii=False).encode())


@quick
@given(messages, st.integers(0, 400), st.integers(0, 3), st.binary(max_size=3))
def test_damaged_message_is_decoded_to_a_message_or_an_error_without_an_exception(
    message: Message, place: int, length: int, instead: bytes
) -> None:
    data = encode(message)
    check(data[:place] + instead + data[place + length :])


@quick
@given(messages)
def test_encoded_message_is_one_line_and_decodes_to_the_same_message(message: Message) -> None:
    data = encode(message)
    assert b"\n" not in data
    assert decode(data) == message


@quick
@given(st.lists(messages, min_size=1, max_size=4))
def test_decoding_a_batch_gives_the_messages_it_contains(several: list[Message]) -> None:
    assert decode(b"[" + b",".join(map(encode, several)) + b"]") == Batch(tuple(several))


@quick
@given(members)
@example({"jsonrpc": "2.0", "id": None, "method": "x", "params": None})
@example({"jsonrpc": "2.0", "id": 1, "method": "x", "error": None})
def test_unknown_field_does_not_change_the_decoded_message(message: dict[str, Any]) -> None:
    assert decode(json.dumps({**message, "another": 1}).encode()) == decode(json.dumps(message).encode())


@quick
@given(members, st.sampled_from(["jsonrpc", "method", "id"]), values)
def test_decoder_uses_the_last_of_duplicate_fields_of_a_json_rpc_message(
    message: dict[str, Any], name: str, first: Any
) -> None:
    data = json.dumps({**message, name: message.get(name, "2.0")})
    twice = json.dumps({name: first})[:-1] + ", " + data[1:]
    assert decode(twice.encode()) == decode(data.encode())
