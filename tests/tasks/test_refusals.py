"""Errors instead of answers are kept, and told from every answer."""

from __future__ import annotations

import pytest

from trio_mcp import PeerError, ProtocolViolation
from trio_mcp.tasks.core_questions import decode_answer, encode_refusal


@pytest.mark.parametrize("data", [None, {"a": 1}, [1]])
def test_stored_elicitation_error_decodes_to_the_same_peer_error(data: object) -> None:
    kept = decode_answer(encode_refusal(PeerError(-1, "no", data)))
    assert isinstance(kept, PeerError)
    assert (kept.code, kept.message, kept.data) == (-1, "no", data)


@pytest.mark.parametrize("error", [ProtocolViolation("the answer cannot be read"), None])
def test_stored_elicitation_error_that_is_no_peer_error_decodes_to_protocol_violation(
    error: ProtocolViolation | None,
) -> None:
    assert isinstance(decode_answer(encode_refusal(error)), ProtocolViolation)


def test_stored_elicitation_answer_with_an_error_key_is_still_read_as_an_answer() -> None:
    assert decode_answer(b'{"error":{"code":-1}}') == {"error": {"code": -1}}
