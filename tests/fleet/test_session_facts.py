"""Facts of sessions: their form, and changes that may be made twice."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mcp.fleet.sessions.state import (
    CANCELS_LIMIT,
    Change,
    SessionState,
    SessionStateUnreadable,
    add_cancel,
    change_listener,
    change_log_level,
    change_subscriptions,
    decode_state,
    encode_state,
    mark_initialized,
)

FACTS = SessionState(b'{"protocolVersion":"2025-11-25"}', "2025-11-25", '["iss","alice",false]', "0123abcd")

texts = st.text(max_size=20)
changes = st.one_of(
    st.just(mark_initialized),
    texts.map(change_log_level),
    st.builds(change_subscriptions, st.lists(texts, max_size=3), st.lists(texts, max_size=3)),
    texts.map(change_listener),
    st.builds(add_cancel, texts, st.one_of(st.integers(), texts), st.one_of(st.none(), st.text(max_size=500))),
)


@given(st.lists(changes, max_size=20))
def test_session_state_is_equal_after_encoding_and_decoding(applied: list[Change]) -> None:
    facts = FACTS
    for change in applied:
        facts = change(facts)
        assert decode_state(encode_state(facts)) == facts


@given(st.lists(changes, max_size=10), changes)
def test_session_change_that_is_applied_twice_has_the_same_effect_as_applied_once(
    applied: list[Change], change: Change
) -> None:
    facts = FACTS
    for each in applied:
        facts = each(facts)
    once = change(facts)
    assert change(once) == once


def test_session_fields_of_a_later_version_are_kept_when_an_earlier_version_changes_the_session() -> None:
    later = msgspec.msgpack.decode(encode_state(FACTS)) | {"later": {"x": [1, 2]}, "later still": None}
    facts = change_log_level("debug")(decode_state(msgspec.msgpack.encode(later)))
    assert msgspec.msgpack.decode(encode_state(facts)) == later | {"log_level": "debug"}


def test_session_state_of_an_earlier_version_without_a_cursor_can_be_decoded() -> None:
    earlier = msgspec.msgpack.decode(encode_state(FACTS))
    del earlier["place"]
    assert decode_state(msgspec.msgpack.encode(earlier)) == FACTS


@pytest.mark.parametrize("text", [b"", b"\x00", b"{}", msgspec.msgpack.encode({"form": 1})])
def test_invalid_session_state_raises_session_state_unreadable(text: bytes) -> None:
    with pytest.raises(SessionStateUnreadable, match="is invalid"):
        decode_state(text)


def test_session_state_in_another_format_raises_session_state_unreadable() -> None:
    other = msgspec.msgpack.decode(encode_state(FACTS)) | {"form": 2}
    with pytest.raises(SessionStateUnreadable, match="unknown format 2"):
        decode_state(msgspec.msgpack.encode(other))


def test_session_state_stores_only_a_limited_number_of_newest_cancels() -> None:
    facts = FACTS
    for number in range(CANCELS_LIMIT + 50):
        facts = add_cancel(str(number), number, "enough")(facts)
    assert [each.request_id for each in facts.cancels] == [b"%d" % n for n in range(50, CANCELS_LIMIT + 50)]
