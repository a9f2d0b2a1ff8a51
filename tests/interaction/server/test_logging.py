"""LOG: log messages of a server in another process."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.interaction.raw_client import LATEST_LEGACY, LEGACY, MODERN, RawClient, Start, across, serving

LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]


def set_level(client: RawClient, level: object) -> dict[str, object]:
    return client.reply(client.request("logging/setLevel", {"level": level}))


@pytest.mark.parametrize(("transport", "revision"), across(LEGACY))
def test_log_01_set_level_applies_to_connection_and_invalid_level_is_refused(start: Start, revision: str) -> None:
    with start(revision=revision) as client:
        client.result(client.call("log_all"))
        assert [level for level, _ in client.logged()] == [*LEVELS[1:], "emergency"], "info is the default"
        set_level(client, "error")
        for bad in ("loud", "ERROR", 4, None, ""):
            assert set_level(client, bad)["error"]["code"] == -32602
        del client.messages[:]
        client.result(client.call("log_all"))
        assert client.logged() == [(level, level) for level in LEVELS[4:]] + [("emergency", {"with": "a name"})]


@pytest.mark.commands
def test_log_01_two_stdio_sessions_do_not_share_a_log_level(tmp_path: Path) -> None:
    """Over stdio each session is a process; in one process see the requirement row LG-10."""
    with (
        serving(tmp_path / "a", revision=LATEST_LEGACY) as first,
        serving(tmp_path / "b", revision=LATEST_LEGACY) as second,
    ):
        set_level(first, "error")
        for client in (first, second):
            client.result(client.call("log_all"))
        assert len(first.logged()) == 4 + 1
        assert len(second.logged()) == 7 + 1


@pytest.mark.parametrize("transport", ["websocket", "tcp", "http"])
def test_log_01_two_connections_to_one_server_do_not_share_a_log_level(start: Start) -> None:
    with start(revision=LATEST_LEGACY) as first, first.beside(LATEST_LEGACY) as second:
        set_level(first, "error")
        assert set_level(second, "loud")["error"]["code"] == -32602
        for client in (first, second):
            client.result(client.call("log_all"))
        assert [level for level, _ in first.logged()] == [*LEVELS[4:], "emergency"]
        assert [level for level, _ in second.logged()] == [*LEVELS[1:], "emergency"]


def test_log_01_server_at_debug_level_sends_all_logs_and_omits_a_missing_logger_name(start: Start) -> None:
    with start(revision=LATEST_LEGACY) as client:
        set_level(client, "debug")
        client.result(client.call("log_all"))
        *plain, named = client.notifications("notifications/message")
        assert plain == [{"level": level, "data": level} for level in LEVELS]
        assert named == {"level": "emergency", "logger": "fixture", "data": {"with": "a name"}}


def test_log_01_logs_that_pass_the_level_filter_are_sent_before_the_response(start: Start) -> None:
    with start(revision=LATEST_LEGACY) as client:
        request_id = client.call("log_all")
        client.result(request_id)
        assert client.finish() == 0
        assert client.messages[-1]["id"] == request_id


def test_log_02_modern_request_gets_only_logs_that_reach_the_log_level_in_its_meta(start: Start) -> None:
    with start(revision=MODERN) as client:
        client.result(client.call("log_all"))
        assert client.logged() == []
        client.result(client.call("log_all", log_level="error"))
        assert len(client.logged()) == 5
        assert client.error(client.call("log_all", log_level="loud"))["code"] == -32602
        assert client.error(client.request("logging/setLevel", {"level": "debug"}))["code"] == -32601
        client.result(client.call("log_all"))
        assert client.finish() == 0
        assert len(client.logged()) == 5


@pytest.mark.parametrize("transport", ["websocket", "tcp", "http"])
def test_log_02_logs_are_not_sent_to_other_connections(start: Start) -> None:
    with start(revision=MODERN) as first, first.beside(MODERN) as second:
        calls = [
            (client, client.call("log_all", log_level=level)) for client, level in ((first, "debug"), (second, "alert"))
        ]
        for client, call in calls:
            client.result(call)
            client.ping()
        assert len(first.logged()) == 8 + 1
        assert len(second.logged()) == 2 + 1


def test_log_02_legacy_and_modern_requests_on_one_connection_keep_their_log_levels(start: Start) -> None:
    with start(revision=LATEST_LEGACY) as client:
        set_level(client, "emergency")
        client.revision = MODERN
        client.result(client.call("log_all"))
        assert client.logged() == []
        client.result(client.call("log_all", log_level="alert"))
        assert len(client.logged()) == 3
        client.revision = LATEST_LEGACY
        client.result(client.call("log_all"))
        assert len(client.logged()) == 3 + 2
