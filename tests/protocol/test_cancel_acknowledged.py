"""CancelAcknowledged: its tokens, its parameters and the bounds of its times."""

from __future__ import annotations

from typing import Any

import pytest

from trio_mcp import CancelAcknowledged
from trio_mcp.protocol.cancel_acknowledged import CancelParams, token_in
from trio_mcp.protocol.meta import CANCEL_TOKEN

DAY = 24 * 3600
SHORTEST, LONGEST = "a_-Z0123456789bc", "x" * 64
WRONG = [SHORTEST[1:], LONGEST + "x", "é" * 20, SHORTEST + "\n", SHORTEST + " ", ""]


@pytest.mark.parametrize("token", [SHORTEST, LONGEST])
def test_cancel_token_of_16_to_64_characters_is_found_in_call_meta(token: str) -> None:
    assert token_in({CANCEL_TOKEN: token}) == token
    assert CancelParams(token).cancel_token == token


@pytest.mark.parametrize("token", [*WRONG, None, 1, [SHORTEST]])
def test_malformed_cancel_token_in_call_meta_is_ignored(token: Any) -> None:
    assert token_in({}) is None
    assert token_in({CANCEL_TOKEN: token}) is None


@pytest.mark.parametrize("token", WRONG)
def test_malformed_cancel_token_in_params_raises_value_error(token: str) -> None:
    with pytest.raises(ValueError, match="cancelToken"):
        CancelParams(token)


def test_negative_wait_or_a_wait_longer_than_a_day_in_cancel_params_raises_value_error() -> None:
    for wait in (0, DAY * 1000):
        assert CancelParams(LONGEST, wait_ms=wait).wait_ms == wait
    for wait in (-1, DAY * 1000 + 1):
        with pytest.raises(ValueError, match="waitMs"):
            CancelParams(LONGEST, wait_ms=wait)


def test_cancel_acknowledged_extension_declares_its_longest_wait_in_milliseconds() -> None:
    for seconds, declared in ((30.0, 30_000), (0.0001, 1), (DAY, DAY * 1000)):
        assert CancelAcknowledged(max_wait=seconds).server.max_wait_ms == declared
    assert CancelAcknowledged().server.max_wait_ms == 30_000
    for seconds in (0.0, -1.0, DAY + 1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="max_wait"):
            CancelAcknowledged(max_wait=seconds)
