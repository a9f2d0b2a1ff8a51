"""Ids and kinds read from lines that aren't valid JSON."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mcp.jsonrpc.codec import decode, skipped
from trio_mcp.jsonrpc.messages import ErrorResponse, Unreadable
from trio_mcp.jsonrpc.salvage import EMPTY_SALVAGE, Salvage, salvage
from trio_mcp.jsonrpc.sizes import MOST_FAR

UNREADABLE = [
    b"1e400",
    b'"\\ud83d"',
    b'"\xff"',
    b"NaN",
    b"9" * 5000,
    b"[" * 5000 + b"]" * 5000,
    b'{"a":' * 5000 + b"1" + b"}" * 5000,
    b'{"id":99,"method":"x","text":"a \\" } ] \\\\","n":-1e999}',
    b"[[],{},[1e400]]",
]


@pytest.mark.parametrize("value", UNREADABLE, ids=lambda value: repr(value[:30]))
@pytest.mark.parametrize("request_id", [0, -7, 10**25, "", "a b", 'q"\\', "é"])
@pytest.mark.parametrize("order", ["first", "last"])
def test_id_of_an_unreadable_reply_is_found_at_its_beginning_or_end(value: bytes, request_id: Any, order: str) -> None:
    named = b'"id": ' + json.dumps(request_id).encode()
    body = b'"result" : {"x":' + value + b"}"
    parts = [b'"jsonrpc":"2.0"', named, body] if order == "first" else [body, b'"jsonrpc":"2.0"', named]
    line = b" { " + b" , ".join(parts) + b" } "
    unreadable = decode(line)
    assert isinstance(unreadable, Unreadable)
    assert (unreadable.reply, unreadable.settles) == (None, request_id)
    assert type(unreadable.settles) is type(request_id)


@pytest.mark.parametrize("value", UNREADABLE, ids=lambda value: repr(value[:30]))
def test_request_with_invalid_json_gets_a_parse_error_with_its_id(value: bytes) -> None:
    unreadable = decode(b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"x":' + value + b"}}")
    assert isinstance(unreadable, Unreadable)
    assert unreadable.reply is not None
    assert (unreadable.reply.code, unreadable.reply.id, unreadable.settles) == (-32700, 5, None)


@pytest.mark.parametrize(
    ("line", "remains"),
    [
        (b"", EMPTY_SALVAGE),
        (b"{bad", EMPTY_SALVAGE),
        (b"[1]", EMPTY_SALVAGE),
        (b'{"id":5', Salvage(5, is_request=False, is_reply=False)),
        (b'{"id":5,"method":"x', Salvage(5, is_request=True, is_reply=False)),
        (b'{"id":5,"error":{"code"', Salvage(5, is_request=False, is_reply=True)),
        (b'{"result":{"id":5', Salvage(None, is_request=False, is_reply=True)),
        (b'{"result":"\\"id\\":5', Salvage(None, is_request=False, is_reply=True)),
        (b'{"result":[]],"id":5}', Salvage(5, is_request=False, is_reply=True)),
        (b'{"result":"say "hi","jsonrpc":"2.0","id":"a\\\\"}', Salvage("a\\", is_request=False, is_reply=True)),
        (b'{"result":{"id":5},"id":', Salvage(None, is_request=False, is_reply=True)),
        (b'{"result":"x,\\"id\\":5}', Salvage(None, is_request=False, is_reply=True)),
        (b'{"result":{},"id":1,"id":2}', Salvage(2, is_request=False, is_reply=True)),
        (b'{"result":{},"method":"x","id":3}', Salvage(3, is_request=True, is_reply=False)),
        *(
            (b'{"result":{},"id":' + no_id + b"}", Salvage(None, is_request=False, is_reply=True))
            for no_id in (b"1.5", b"true", b"null", b"[1]", b"{}", b'"\\ud800"', b"1e5", b"nonsense", b"9" * 9000)
        ),
    ],
)
def test_id_and_kind_of_a_json_rpc_line_are_read_from_the_text_before_its_invalid_json(
    line: bytes, remains: Salvage
) -> None:
    assert salvage(line) == remains


LONG = b'{"id":9,"method":"x","text":",\\"id\\":8,"},' * 10_000


@pytest.mark.parametrize(
    ("head", "tail", "remains"),
    [
        (b'{"result":[', b'],"jsonrpc":"2.0","id":7}', Salvage(7, is_request=False, is_reply=True)),
        (b'{"jsonrpc":"2.0","result":[', b'] , "id" : "7" } ', Salvage("7", is_request=False, is_reply=True)),
        (b'{"result":[', b'],"id":7,"jsonrpc":"2.0","x":null}', Salvage(7, is_request=False, is_reply=True)),
        (b'{"result":"', b'","id":7}', Salvage(7, is_request=False, is_reply=True)),
        (b'{"error":{"code":1,"message":"', b'"},"id":7}', Salvage(7, is_request=False, is_reply=True)),
        (b'{"method":"x","params":[', b'],"jsonrpc":"2.0","id":7}', Salvage(7, is_request=True, is_reply=False)),
        (b'{"params":[', b'],"id":7,"method":"x"}', Salvage(7, is_request=True, is_reply=False)),
        (b'{"id":3,"result":[', b'],"x":7}', Salvage(3, is_request=False, is_reply=True)),
        (b'{"result":[', b'],"x":{"id":7}}', Salvage(None, is_request=False, is_reply=True)),
        (b'{"result":{"x":[', b'],"id":7}}', Salvage(None, is_request=False, is_reply=True)),
        (b'{"result":[', b'],"x":",\\"id\\":7,\\"y\\":\\"z"}', Salvage(None, is_request=False, is_reply=True)),
        (b'{"result":[', b'],"x":"\\\\","id":7}', Salvage(7, is_request=False, is_reply=True)),
        (b'{"result":[', b'],"id":7', Salvage(None, is_request=False, is_reply=True)),
        (b'{"result":[', b'],"id":7} x', Salvage(None, is_request=False, is_reply=True)),
        (b"no JSON [", b'],"id":7,"result":1}', EMPTY_SALVAGE),
    ],
)
def test_id_of_a_long_invalid_json_line_is_read_from_either_end_of_the_line(
    head: bytes, tail: bytes, remains: Salvage
) -> None:
    inside = LONG.replace(b'"', b'\\"') if head.endswith(b'"') else LONG
    line = head + inside + tail
    assert salvage(line[:65536], line[-65536:]) == remains


@given(st.binary(max_size=60))
def test_search_for_the_id_of_an_invalid_line_that_ends_with_any_bytes_raises_no_exception(tail: bytes) -> None:
    salvage(b'{"result":[', tail)
    salvage(b'{"result":[', tail + b',"id":7}')


@pytest.mark.parametrize(
    "flood",
    [
        b"[]," * 700_000,
        b'{"a":' * 400_000,
        b'"a' * 1_000_000,
        b'\\"' * 1_000_000,
        b'"a":1,' * 300_000,
        b" " * 2_000_000,
    ],
    ids=lambda flood: repr(flood[:6]),
)
def test_search_for_the_id_of_an_invalid_line_with_many_repeated_fields_takes_bounded_time(flood: bytes) -> None:
    for begin in (b"{", b'{"result":[', b'{"result":"'):
        used = time.process_time()
        salvage(begin + flood)
        salvage(begin, flood)
        salvage(begin, flood + b',"id":7}')
        assert time.process_time() - used < 2  # some 0.06 s


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_search_for_the_id_of_a_line_of_random_bytes_raises_no_exception(begin: bytes, end: bytes) -> None:
    salvage(begin + b'{"id":1,' + end)
    salvage(b'{"id":1,"result":[' + begin + b'],"x":{"' + end)


def test_json_rpc_batch_with_invalid_json_does_not_fail_any_call() -> None:
    unreadable = decode(b'[{"jsonrpc":"2.0","id":1,"result":1e400}]')
    assert isinstance(unreadable, Unreadable)
    assert unreadable.settles is None
    assert isinstance(unreadable.reply, ErrorResponse)
    assert unreadable.reply.id is None


@pytest.mark.parametrize(
    ("head", "tail", "may_be", "request_id"),
    [
        (b'{"x":"xx', b'xx","id":7,"result":{}}', True, None),
        (b'{"x":"xx', b'xx","result":{},"id":7}', True, 7),
        (b' {"x":"xx', b"", True, None),
        (b'{"x":"xx', b'xx","params":{},"method":"m","id":7}', False, None),
        (b'{"id":7,"result":"xx', b'xx"}', False, 7),
        (b"[[[[", b"", False, None),
        (b"xxxx", b"xxxx", False, None),
    ],
)
def test_too_long_message_is_treated_as_a_possible_reply_if_neither_end_shows_a_request(
    head: bytes, tail: bytes, may_be: bool, request_id: Any
) -> None:
    unreadable = skipped(head, tail, "too long")
    assert (unreadable.may_be_answer, unreadable.settles) == (may_be, request_id)


@pytest.mark.parametrize("body", [b"[" * 600 + b"]" * 600, b"[%b]" % b",".join([b"1e-300"] * 2 * MOST_FAR)])
def test_message_refused_for_its_nesting_or_its_slow_numbers_is_treated_as_a_possible_reply(body: bytes) -> None:
    unknown = b"[%b]" % b",".join([b"[]"] * 100_000)
    unreadable = decode(b'{"x":%b,"y":%b,"result":{},"id":7}' % (unknown, body))
    assert isinstance(unreadable, Unreadable)
    assert (unreadable.is_answer, unreadable.may_be_answer, unreadable.settles) == (False, True, 7)
