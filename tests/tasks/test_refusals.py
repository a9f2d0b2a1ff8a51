"""Errors instead of answers are kept, and told from every answer."""

from __future__ import annotations

import pytest

from trio_mcp import PeerError, ProtocolViolation
from trio_mcp.tasks.core_questions import decode_answer, encode_refusal


@pytest.mark.parametrize("data", [None, {"a": 1}, [1]])
def test_an_error_of_the_client_comes_back_as_it_was(data: object) -> None:
    kept = decode_answer(encode_refusal(PeerError(-1, "no", data)))
    assert isinstance(kept, PeerError)
    assert (kept.code, kept.message, kept.data) == (-1, "no", data)


@pytest.mark.parametrize("error", [ProtocolViolation("the answer cannot be read"), None])
def test_any_other_error_is_a_violation_of_the_protocol(error: ProtocolViolation | None) -> None:
    assert isinstance(decode_answer(encode_refusal(error)), ProtocolViolation)


def test_an_answer_is_an_answer_whatever_is_in_it() -> None:
    assert decode_answer(b'{"error":{"code":-1}}') == {"error": {"code": -1}}
