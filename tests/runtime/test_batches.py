"""Replies that go out in one array."""

from __future__ import annotations

import pytest

from trio_mcp.runtime.batches import BatchReplies


@pytest.fixture
def sent() -> list[bytes]:
    return []


def test_the_replies_go_out_together_when_the_last_member_is_settled(sent: list[bytes]) -> None:
    replies = BatchReplies(3, sent.append)
    replies.settle(b'{"id":1}\n')
    replies.settle(b'{"id":2}\n')
    assert sent == []
    replies.settle(b'{"id":3}\n')
    assert sent == [b'[{"id":1},{"id":2},{"id":3}]\n']


@pytest.mark.parametrize("silent", [0, 1, 2])
def test_a_member_without_a_reply_is_waited_for_and_leaves_no_gap(sent: list[bytes], silent: int) -> None:
    replies = BatchReplies(3, sent.append)
    for number in range(3):
        assert sent == []
        replies.settle(None if number == silent else b"{}\n")
    assert sent == [b"[{},{}]\n"]


def test_a_batch_in_which_nobody_replies_is_not_replied_to(sent: list[bytes]) -> None:
    replies = BatchReplies(2, sent.append)
    replies.settle(None)
    replies.settle(None)
    assert sent == []
