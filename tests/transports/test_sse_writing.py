"""JSON lines become events that every parser cuts in the same places."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mcp.transports.sse import (
    KEEP_ALIVE,
    STREAM_HEADERS,
    Event,
    EventReader,
    events,
    identified_events,
    numbered_events,
    priming_event,
    retry_line,
)

TEXTS = st.text(alphabet=st.sampled_from("aä\u2028\u2029\x85€😀\u2027\u0080 \\n")) | st.text()
LINES = st.lists(TEXTS.map(lambda text: json.dumps(text, ensure_ascii=False).encode()), min_size=1, max_size=5)


def read(stream: bytes) -> list[Event]:
    return EventReader(100_000).feed(stream)


def test_each_json_line_becomes_an_sse_event() -> None:
    assert events(b'{"a":1}\n{"b":2}\n') == (
        b'event: message\ndata: {"a":1}\n\nevent: message\ndata: {"b":2}\n\n'  # as the WHATWG text writes events
    )


def test_one_json_line_becomes_one_sse_event() -> None:
    assert events(b'{"a":1}\n') == events(bytearray(b'{"a":1}\n')) == b'event: message\ndata: {"a":1}\n\n'


def test_sse_writer_accepts_a_bytearray() -> None:
    assert events(bytearray(b'"\xe2\x80\xa8"\n')) == rb"event: message" b"\ndata: " rb'"\u2028"' b"\n\n"


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85"])
def test_unicode_line_separators_are_escaped_in_sse_data(character: str) -> None:
    line = json.dumps(character, ensure_ascii=False).encode() + b"\n"
    assert line.rstrip() not in events(line)
    assert len(events(line).decode().splitlines()) == len(events(b"1\n").splitlines())
    assert json.loads(read(identified_events([("1", line)]))[0].data) == character


def test_line_separator_after_a_backslash_is_also_escaped_in_sse_data() -> None:
    line = json.dumps("\\\u2028", ensure_ascii=False).encode() + b"\n"
    assert json.loads(read(events(line))[0].data) == "\\\u2028"


@given(LINES)
def test_written_sse_events_are_read_back_unchanged(lines: list[bytes]) -> None:
    found = read(events(b"".join(line + b"\n" for line in lines)))
    assert [(event.name, json.loads(event.data)) for event in found] == [
        ("message", json.loads(line)) for line in lines
    ]


@given(LINES)
def test_written_sse_event_ids_are_read_back_unchanged(lines: list[bytes]) -> None:
    found = read(identified_events((f"a-{at}", line + b"\n") for at, line in enumerate(lines)))
    assert [(event.id, json.loads(event.data)) for event in found] == [
        (f"a-{at}", json.loads(line)) for at, line in enumerate(lines)
    ]


@given(LINES)
def test_numbered_sse_events_have_successive_event_ids(lines: list[bytes]) -> None:
    each = [line + b"\n" for line in lines]
    expected = identified_events((f"a-{number}", line) for number, line in enumerate(each, 7))
    assert numbered_events("a", 7, each) == expected


def test_sse_priming_event_has_an_id_and_empty_data() -> None:
    reader = EventReader(100)
    assert reader.feed(retry_line(500) + priming_event("a-0")) == [Event("message", b"", "a-0")]
    assert (reader.last_event_id, reader.retry) == ("a-0", 500)


def test_sse_keep_alive_comment_is_not_an_event_and_keeps_the_last_event_id() -> None:
    reader = EventReader(100)
    reader.feed(priming_event("a-0"))
    assert reader.feed(KEEP_ALIVE + KEEP_ALIVE) == []
    assert reader.last_event_id == "a-0"


def test_sse_response_headers_disable_caching_transformation_and_buffering() -> None:
    headers = dict(line.split(": ") for line in STREAM_HEADERS.decode().split("\r\n")[:-1])
    assert headers == {
        "Content-Type": "text/event-stream",
        "Cache-Control": "no-cache, no-transform",
        "X-Accel-Buffering": "no",
    }
