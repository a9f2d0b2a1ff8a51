"""Refusals: the errors with which clients answer questions of tasks, in the form in which records keep answers.

An answer is an object. So an array can be told from all answers: the code and the message of an error, and its data.
"""

from __future__ import annotations

from typing import Any

from ...jsonrpc.codec import decode_value, encode_value
from ...jsonrpc.errors import MCPError, PeerError, ProtocolViolation
from ...protocol.fields import JSONObject

_NO_ANSWER = "the answer to a question of a task is no object"


def refusal(error: MCPError | None) -> bytes:
    """Return what is kept of ``error``; `None`: the answer was no object."""
    if isinstance(error, PeerError):
        return encode_value([error.code, error.message, error.data])
    return encode_value([None, _NO_ANSWER if error is None else str(error), None])


def answer_of(text: bytes) -> JSONObject | MCPError:
    """Return the answer that a record keeps, or the error instead of an answer."""
    kept: Any = decode_value(text)
    if isinstance(kept, dict):
        return kept  # pyright: ignore[reportUnknownVariableType]
    code, message, data = kept
    return ProtocolViolation(message) if code is None else PeerError(code, message, data)
