"""Which bounds there may be, and what they are by default."""

from __future__ import annotations

import math
import re
from typing import Any

import attrs
import pytest

from trio_mcp import Server, proxy
from trio_mcp.runtime.limits import DEFAULT_LIMITS, Limits
from trio_mcp.types import ClientSettings

MAY_BE_NOTHING = {
    "max_queued",
    "priming_delay",
    "progress_interval",
    "cleanup_grace",
    "shutdown_grace",
    "handshake_timeout",
    "callback_grace",
    "deadline_grace",
    "drain_delay",
    "drain_timeout",
}
NAMES = [field.name for field in attrs.fields(Limits)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [-1, -0.5, math.nan])
def test_negative_or_nan_limit_raises_value_error(name: str, value: float) -> None:
    wrong: Any = {name: value}
    with pytest.raises(ValueError, match=rf"{name} must .* not (-1|-0.5|nan)"):
        Limits(**wrong)


@pytest.mark.parametrize("name", NAMES)
def test_limits_object_accepts_zero_for_some_limits(name: str) -> None:
    nothing: Any = {name: 0}
    if name in MAY_BE_NOTHING:
        assert getattr(Limits(**nothing), name) == 0
    else:
        with pytest.raises(ValueError, match=f"{name} must be greater than 0, not 0"):
            Limits(**nothing)


@pytest.mark.parametrize("name", NAMES)
def test_limits_object_accepts_small_and_infinite_limits(name: str) -> None:
    for value in (0.001, math.inf):
        bound: Any = {name: value}
        assert getattr(Limits(**bound), name) == value


def test_default_limits_match_the_documentation() -> None:
    assert attrs.asdict(DEFAULT_LIMITS) == attrs.asdict(Limits()) == {
        "max_in_flight": 1000,
        "max_queued": 1000,
        "max_inbound_bytes": 67_108_864,
        "max_message_bytes": 16_777_216,
        "max_batch": 100,
        "max_parked": 1000,
        "max_rounds": 32,
        "max_pending_notifications": 10_000,
        "max_subscriptions": 1000,
        "high_water": 16_384,
        "max_connections": 2000,
        "max_server_requests": 20_000,
        "max_cancel_waits": 1000,
        "max_endings": 1000,
        "max_server_endings": 20_000,
        "max_server_streams": 20_000,
        "max_server_bytes": 536_870_912,
        "worker_threads": 40,
        "max_abandoned_threads": 100,
        "max_asking_threads": 200,
        "max_sessions": 10_000,
        "max_upstreams": 1000,
        "max_replay_bytes": 1_048_576,
        "max_server_replay_bytes": 268_435_456,
        "max_unread_bytes": 134_217_728,
        "max_head_bytes": 16_384,
        "body_timeout": 60,
        "idle_timeout": 75,
        "session_timeout": 1800,
        "answer_timeout": 1800,
        "replay_timeout": 60,
        "stream_interval": 15,
        "priming_delay": 0.1,
        "progress_interval": 0.1,
        "cleanup_grace": 5,
        "shutdown_grace": 1,
        "handshake_timeout": 10,
        "ping_interval": 20,
        "ping_timeout": 20,
        "callback_grace": 5,
        "deadline_grace": 1,
        "retry_timeout": 600,
        "max_state_bytes": 64 * 1024,
        "max_state_keys": 100,
        "max_server_states": 10_000,
        "state_timeout": 3600,
        "ending_timeout": 60,
        "drain_delay": 0,
        "drain_timeout": 2,
    }  # fmt: skip


def test_limits_are_keyword_only_and_immutable() -> None:
    positional: Any = Limits
    with pytest.raises(TypeError):
        positional(5)
    frozen: Any = Limits()
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        frozen.max_queued = 5


def test_limits_docstring_names_each_limit_once_in_the_order_of_the_fields() -> None:
    groups = (Limits.__doc__ or "").partition("four groups:")[2].partition("`TaskSettings`")[0]
    assert re.findall(r"``(\w+)``", groups) == [field.name for field in attrs.fields(Limits)]


def test_server_without_limits_uses_the_defaults() -> None:
    assert (
        Server("s", limits=None).limits == ClientSettings(limits=None).limits == proxy(Server("s")).limits == Limits()
    )
