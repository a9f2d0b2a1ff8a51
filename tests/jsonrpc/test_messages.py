"""Valid and invalid request ids."""

from __future__ import annotations

import pytest

from trio_mcp.jsonrpc.messages import Request, is_request_id


@pytest.mark.parametrize("value", [0, -1, 10**25, 2**53 + 1, "", "1", "x" * 4096, "🦑"])
def test_strings_and_integers_are_valid_request_ids(value: object) -> None:
    assert is_request_id(value)


@pytest.mark.parametrize("value", [None, True, False, 1.5, 1.0, [], {}, b"1"])
def test_values_that_are_neither_strings_nor_integers_are_invalid_request_ids(value: object) -> None:
    assert not is_request_id(value)


def test_integer_and_string_of_the_same_number_are_different_ids() -> None:
    assert Request(1, "ping") != Request("1", "ping")


def test_json_rpc_requests_of_different_sizes_can_be_equal() -> None:
    assert Request(1, "ping", size=40) == Request(1, "ping")
