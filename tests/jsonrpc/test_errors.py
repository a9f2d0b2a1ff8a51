"""Errors with a JSON-RPC code."""

from __future__ import annotations

import copy

import pytest

from trio_mcp.jsonrpc.errors import CodedError, MCPError, NotSerializable, PeerError, ProtocolViolation


@pytest.mark.parametrize("kind", [CodedError, PeerError])
def test_coded_error_has_code_message_and_data_and_shows_code_and_message_as_text(
    kind: type[CodedError] | type[PeerError],
) -> None:
    error = kind(-32602, "Invalid params", {"field": "x"})
    assert (error.code, error.message, error.data) == (-32602, "Invalid params", {"field": "x"})
    assert "Invalid params (-32602)" in str(error)


@pytest.mark.parametrize("kind", [CodedError, PeerError])
def test_coded_error_can_be_copied(kind: type[CodedError] | type[PeerError]) -> None:
    error = copy.copy(kind(-1, "refused"))
    assert (error.code, error.message, error.data) == (-1, "refused", None)


@pytest.mark.parametrize("kind", [CodedError, PeerError, ProtocolViolation, NotSerializable])
def test_every_public_exception_is_a_subclass_of_mcp_error(kind: type[Exception]) -> None:
    assert issubclass(kind, MCPError)


def test_not_serializable_is_a_subclass_of_value_error() -> None:
    assert issubclass(NotSerializable, ValueError)
