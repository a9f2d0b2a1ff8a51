"""Order and filtering of log levels (LG-06 to LG-10)."""

from __future__ import annotations

import pytest

from trio_mcp.protocol.types.notifications import DEFAULT_LOG_LEVEL, LogLevel, log_level_rank, should_log

LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]


def test_log_levels_are_ordered_from_debug_to_emergency() -> None:
    assert [log_level_rank(level) for level in LEVELS] == [0, 1, 2, 3, 4, 5, 6, 7]


def test_log_level_enum_has_the_levels_in_order() -> None:
    assert [level.value for level in LogLevel] == LEVELS


@pytest.mark.parametrize("level", ["loud", "", "DEBUG", "warn", "Error"])
def test_unknown_log_level_is_ordered_below_all_others(level: str) -> None:
    assert log_level_rank(level) == -1


@pytest.mark.parametrize("minimum", LEVELS)
def test_log_message_is_sent_if_its_level_is_at_or_above_the_minimum(minimum: str) -> None:
    assert [level for level in LEVELS if should_log(level, minimum)] == LEVELS[LEVELS.index(minimum) :]


@pytest.mark.parametrize("minimum", [*LEVELS, "loud"])
def test_log_message_with_an_unknown_level_is_always_sent(minimum: str) -> None:
    assert should_log("custom", minimum)


@pytest.mark.parametrize("level", LEVELS)
def test_log_messages_of_every_level_are_sent_if_the_minimum_level_is_unknown(level: str) -> None:
    assert should_log(level, "loud")


def test_default_minimum_log_level_is_info() -> None:
    assert DEFAULT_LOG_LEVEL == "info"
