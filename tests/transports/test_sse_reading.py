"""EventReader reads what the WHATWG text says, however the bytes are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mcp.transports.sse import Event, EventReader, EventTooLong


def read(*chunks: bytes, limit: int = 1000) -> list[Event | str]:
    """The events, and at last ``too long`` where that was raised."""
    reader, found = EventReader(limit), list[Event | str]()
    try:
        for chunk in (*chunks, b""):
            found += reader.feed(chunk)
    except EventTooLong:
        found.append("too long")
    return found


def data(*chunks: bytes) -> list[bytes]:
    return [event.data for event in read(*chunks) if isinstance(event, Event)]


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_sse_line_is_read_even_if_it_arrives_in_pieces(size: int, end: bytes) -> None:
    stream = b"id: 1" + end[: len(end) // 2] + b"data:  " + b"x" * 3000 + b":y" + end + b"data" + end
    reader, found = EventReader(10_000), list[Event]()
    for start in range(0, len(stream), size):
        piece = stream[start : start + size]
        found += reader.feed(bytearray(piece) if start % 2 else piece)
    assert found == [Event("message", b" " + b"x" * 3000 + b":y", "1"), Event("message", b"", "1")]
    assert all(type(event.data) is bytes for event in found)


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_sse_line_ends_with_lf_cr_or_both(end: bytes) -> None:
    stream = end.join([b"data: a", b"data: b", b"", b"data: c", b"", b""])
    assert data(stream) == [b"a\nb", b"c"]


def test_sse_cr_and_lf_in_separate_reads_count_as_one_line_end() -> None:
    assert data(b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n") == [b"a\nb"]


def test_sse_cr_at_the_end_of_a_read_ends_the_line_immediately() -> None:
    assert data(b"data: a\r", b"\r") == [b"a"]


def test_sse_line_is_not_ended_by_other_unicode_line_separators() -> None:
    text = "data: a\x0bb\x0cc\x1cd\x1ee\x85f\u2028g\u2029h\n\n".encode()
    assert data(text) == [text[6:-2]]


@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_sse_byte_order_mark_at_the_start_is_skipped(cut: int) -> None:
    stream = b"\xef\xbb\xbfdata: a\n\n"
    assert data(stream[:cut], stream[cut:]) == [b"a"]


def test_sse_byte_order_mark_not_at_the_start_is_part_of_the_field_name() -> None:
    assert data(b"\n\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n") == []
    assert data(b"\n", b"\xef\xbb\xbfdata: a\n\n") == []


def test_sse_data_lines_are_joined_with_newlines() -> None:
    assert data(b"data: a\ndata\ndata:\ndata:  b\n\n") == [b"a\n\n\n b"]


def test_sse_field_value_drops_one_space_after_the_colon() -> None:
    assert data(b"data:  a \n\ndata:b\n\ndata:\tc\n\n") == [b" a ", b"b", b"\tc"]


def test_sse_comments_and_unknown_fields_are_ignored() -> None:
    assert data(b": a comment\ndata: a\n:\nother: x\nDATA: b\n data: c\n\n") == [b"a"]


def test_sse_block_without_data_lines_produces_no_event() -> None:
    assert read(b"event: x\nid: 1\n\n: only this\n\n\n\n") == []


def test_sse_block_with_empty_data_produces_an_event() -> None:
    assert read(b"id: 7\ndata:\n\n") == [Event("message", b"", "7")]


def test_sse_event_has_the_type_of_its_last_event_field_or_message_by_default() -> None:
    stream = b"event: x\nevent: y\ndata\n\ndata\n\nevent:\ndata\n\nevent: z\n\ndata\n\n"
    assert [event.name for event in EventReader(99).feed(stream)] == ["y", "message", "message", "message"]


def test_sse_id_applies_to_following_events() -> None:
    stream = b"data\n\nid: 1\ndata\n\ndata\n\nid: 2\n\ndata\n\nid\ndata\n\n"
    assert [event.id for event in EventReader(99).feed(stream)] == ["", "1", "1", "2", ""]


def test_sse_id_with_a_nul_character_is_ignored() -> None:
    assert [event.id for event in EventReader(99).feed(b"id: 1\nid: 2\0\ndata\n\n")] == ["1"]


def test_sse_last_event_id_changes_only_after_its_event_is_complete() -> None:
    reader = EventReader(99)
    reader.feed(b"id: 1\ndata: a\n\nid: 2\ndata: b\n")
    assert reader.last_event_id == "1"
    reader.feed(b"\n")
    assert reader.last_event_id == "2"


@pytest.mark.parametrize(
    ("line", "retry"),
    [
        (b"retry: 500", 500),
        (b"retry:0", 0),
        (b"retry: 0007", 7),
        (b"retry: +5", None),
        (b"retry: -5", None),
        (b"retry: 5 ", None),
        (b"retry: 5.0", None),
        (b"retry: 1_0", None),
        (b"retry: \xd9\xa3", None),
        (b"retry:", None),
        (b"retry", None),
    ],
)
def test_sse_retry_field_accepts_only_digits(line: bytes, retry: int | None) -> None:
    reader = EventReader(99)
    assert reader.feed(line + b"\n") == []
    assert reader.retry == retry


def test_sse_retry_with_thousands_of_digits_is_capped() -> None:
    reader = EventReader(10_000)
    reader.feed(b"retry: " + b"9" * 9000 + b"\n")
    assert reader.retry == 9_999_999_999


def test_sse_event_cut_off_by_the_end_of_the_connection_is_dropped() -> None:
    reader = EventReader(99)
    assert reader.feed(b"id: 1\ndata: a\n\nid: 2\nevent: x\ndata: b\nda") == [Event("message", b"a", "1")]
    reader.drop_unfinished()
    assert reader.feed(b"\ndata: c\n\n") == [Event("message", b"c", "1")]


def test_sse_reader_keeps_last_event_id_and_retry_for_a_new_connection() -> None:
    reader = EventReader(99)
    reader.feed(b"retry: 5\nid: 1\ndata\n\n:\r")
    reader.drop_unfinished()
    assert (reader.last_event_id, reader.retry) == ("1", 5)
    assert reader.feed(b"\xef\xbb\xbfdata: a\n\n") == [Event("message", b"a", "1")]


def test_sse_reader_replaces_invalid_utf_8_in_event_and_id_fields_but_not_in_data() -> None:
    assert read(b"event: \xff\nid: \xe2\x82\ndata: \xff\n\n") == [Event("\ufffd", b"\xff", "\ufffd")]


def test_sse_event_of_the_maximum_size_is_accepted_but_a_larger_event_raises() -> None:
    assert read(b"data: 5678\nid: 5\n\n", limit=15) == [Event("message", b"5678", "5")]
    assert read(b"data: 5678\nid: 56\n\n", limit=15) == ["too long"]


def test_sse_size_limit_applies_to_each_event_separately() -> None:
    assert len(read(b"data: 5678\nid: 5\n\n" * 3, limit=15)) == 3


def test_sse_reader_raises_at_every_read_after_a_too_long_event() -> None:
    reader = EventReader(10)
    for chunk in (b"data: 0123456789", b"\n\ndata: a\n\n", b""):
        with pytest.raises(EventTooLong):
            reader.feed(chunk)


def test_sse_endless_line_raises_at_the_first_byte_beyond_the_limit() -> None:
    reader = EventReader(100)
    assert reader.feed(b"data: ") == reader.feed(b"x" * 94) == []
    with pytest.raises(EventTooLong, match="longer than 100 bytes"):
        reader.feed(b"x")


def test_sse_comment_beyond_the_size_limit_is_reported_as_too_long() -> None:
    assert read(*[b":" * 10] * 11, limit=100) == ["too long"]


def test_sse_comments_inside_an_event_do_not_count_towards_its_size() -> None:
    assert read(b"data: a\n" + b": keep alive\n" * 100 + b"data: b\n\n", limit=20) == [Event("message", b"a\nb", "")]


def test_sse_events_before_a_too_long_event_are_returned_before_the_error() -> None:
    assert read(b"data: a\n\ndata: 0123456789\n\ndata: b\n\n", limit=10) == [Event("message", b"a", ""), "too long"]


LINES = st.sampled_from(
    [
        *(b"data", b"data: a", b"data:\xc3\xa4", b"data: \xe2\x80\xa8", b"id: 1", b"id", b"id: \0", b"event: e"),
        *(b"retry: 5", b":", b": c", b"\xef\xbb\xbfdata", b" ", b"x"),
    ]
)
ENDS = st.sampled_from([b"\n\n", b"\n", b"\r", b"\r\n", b"\r\n\r\n", b"\r\r", b""])
STREAMS = st.lists(st.tuples(LINES, ENDS).map(b"".join), min_size=1, max_size=12).map(b"".join)


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_sse_stream_is_read_even_if_it_arrives_byte_by_byte(end: bytes) -> None:
    lines = [
        b"\xef\xbb\xbfid: 1",
        b"event: e",
        b"data: \xc3\xa4",
        b"data: b",
        b"",
        b": c",
        b"data: d",
        b"",
        b"id: 2",
        b"",
    ]
    stream = end.join([*lines, b""])
    assert read(*[bytes((byte,)) for byte in stream]) == [
        Event("e", "ä\nb".encode(), "1"),
        Event("message", b"d", "1"),
    ]


@given(STREAMS, st.data())
def test_sse_reader_returns_the_same_events_wherever_the_received_bytes_are_split(
    stream: bytes, draw: st.DataObject
) -> None:
    limit = draw.draw(st.sampled_from([8, 20, 1000]))
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(stream)))))
    chunks = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    whole = read(stream, limit=limit)
    assert read(*chunks, limit=limit) == whole
    assert read(*[bytes((byte,)) for byte in stream], limit=limit) == whole


def by_the_book(stream: bytes) -> list[Event]:
    """The events as the WHATWG text describes reading them, one step after another, on text and with no cuts."""
    text = stream.decode("utf-8", "replace").removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    buffer, name, last_id, next_id = "", "", "", ""
    found = list[Event]()
    for line in text.split("\n")[:-1]:
        if line == "":
            last_id = next_id
            if buffer:
                found.append(Event(name or "message", buffer.removesuffix("\n").encode(), last_id))
            buffer, name = "", ""
            continue
        if line.startswith(":"):
            continue
        field, _, content = line.partition(":")
        content = content.removeprefix(" ")
        if field == "event":
            name = content
        elif field == "data":
            buffer += content + "\n"
        elif field == "id" and "\0" not in content:
            next_id = content
    return found


@given(STREAMS)
def test_sse_reader_returns_the_same_events_as_a_reference_parser(stream: bytes) -> None:
    assert read(stream) == by_the_book(stream)
