"""What may be the id of a request."""

from __future__ import annotations

import pytest

from trio_mcp.jsonrpc.messages import Request, is_request_id


@pytest.mark.parametrize("value", [0, -1, 10**25, 2**53 + 1, "", "1", "x" * 4096, "🦑"])
def test_strings_and_integers_are_ids(value: object) -> None:
    assert is_request_id(value)


@pytest.mark.parametrize("value", [None, True, False, 1.5, 1.0, [], {}, b"1"])
def test_everything_else_is_no_id(value: object) -> None:
    assert not is_request_id(value)


def test_an_integer_and_its_text_are_two_ids() -> None:
    assert Request(1, "ping") != Request("1", "ping")


def test_the_size_on_the_wire_is_no_part_of_a_requests_identity() -> None:
    assert Request(1, "ping", size=40) == Request(1, "ping")
