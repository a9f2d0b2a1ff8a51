"""The table of methods: which role sends which method in which revision."""

from __future__ import annotations

from typing import Literal, TypeAlias

import pytest

from trio_mcp.protocol.methods import METHODS, ROWS, next_cursor
from trio_mcp.protocol.revisions import LATEST_MODERN, LEGACY_REVISIONS, REVISIONS, Revision

Role: TypeAlias = Literal["client", "server"]

LEGACY_CLIENT = {
    "initialize", "ping", "tools/list", "tools/call", "resources/list", "resources/templates/list",
    "resources/read", "resources/subscribe", "resources/unsubscribe", "prompts/list", "prompts/get",
    "completion/complete", "logging/setLevel",
}  # fmt: skip
LEGACY_CLIENT_TELLS = {
    "notifications/initialized", "notifications/cancelled", "notifications/progress",
    "notifications/roots/list_changed",
}  # fmt: skip
LEGACY_SERVER = {"ping", "sampling/createMessage", "roots/list"}
LEGACY_SERVER_TELLS = {
    "notifications/cancelled", "notifications/progress", "notifications/message",
    "notifications/resources/updated", "notifications/resources/list_changed",
    "notifications/tools/list_changed", "notifications/prompts/list_changed",
}  # fmt: skip
TASKS = {"tasks/get", "tasks/result", "tasks/list", "tasks/cancel"}

REQUESTS: dict[tuple[Role, str], set[str]] = {
    ("client", "2024-11-05"): LEGACY_CLIENT,
    ("client", "2025-03-26"): LEGACY_CLIENT,
    ("client", "2025-06-18"): LEGACY_CLIENT,
    ("client", "2025-11-25"): LEGACY_CLIENT | TASKS,
    ("client", "2026-07-28"): {
        "server/discover", "tools/list", "tools/call", "resources/list", "resources/templates/list",
        "resources/read", "prompts/list", "prompts/get", "completion/complete", "subscriptions/listen",
        "tasks/get", "tasks/update", "tasks/cancel",
    },
    ("server", "2024-11-05"): LEGACY_SERVER,
    ("server", "2025-03-26"): LEGACY_SERVER,
    ("server", "2025-06-18"): LEGACY_SERVER | {"elicitation/create"},
    ("server", "2025-11-25"): LEGACY_SERVER | {"elicitation/create"} | TASKS,
    ("server", "2026-07-28"): set(),
}  # fmt: skip
NOTIFICATIONS: dict[tuple[Role, str], set[str]] = {
    ("client", "2024-11-05"): LEGACY_CLIENT_TELLS,
    ("client", "2025-03-26"): LEGACY_CLIENT_TELLS,
    ("client", "2025-06-18"): LEGACY_CLIENT_TELLS,
    ("client", "2025-11-25"): LEGACY_CLIENT_TELLS | {"notifications/tasks/status"},
    ("client", "2026-07-28"): {"notifications/cancelled"},
    ("server", "2024-11-05"): LEGACY_SERVER_TELLS,
    ("server", "2025-03-26"): LEGACY_SERVER_TELLS,
    ("server", "2025-06-18"): LEGACY_SERVER_TELLS,
    ("server", "2025-11-25"): LEGACY_SERVER_TELLS
    | {"notifications/tasks/status", "notifications/elicitation/complete"},
    ("server", "2026-07-28"): LEGACY_SERVER_TELLS | {"notifications/subscriptions/acknowledged", "notifications/tasks"},
}


@pytest.mark.parametrize(("role", "name"), REQUESTS)
def test_clients_and_servers_may_send_exactly_the_requests_of_their_revision(role: Role, name: str) -> None:
    rows = REVISIONS[name]._methods.values()
    assert {row.name for row in rows if row.is_request and row.sent_by(role)} == REQUESTS[role, name]


@pytest.mark.parametrize(("role", "name"), NOTIFICATIONS)
def test_clients_and_servers_may_send_exactly_the_notifications_of_their_revision(role: Role, name: str) -> None:
    rows = REVISIONS[name]._methods.values()
    assert {row.name for row in rows if not row.is_request and row.sent_by(role)} == NOTIFICATIONS[role, name]


def test_only_tool_calls_prompt_requests_and_resource_reads_may_return_input_required() -> None:
    asking = {row.name for row in ROWS if row.may_ask}
    assert asking == {"tools/call", "prompts/get", "resources/read"}


def test_only_results_of_list_read_and_discover_requests_are_cacheable() -> None:
    cacheable = {row.name for row in ROWS if row.cacheable}
    assert cacheable == {
        "server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list",
        "resources/read",
    }  # fmt: skip


def test_table_of_protocol_methods_has_each_method_under_its_name() -> None:
    assert {row.name for row in ROWS} == set(METHODS)
    assert all(name == row.name for name, row in METHODS.items())


@pytest.mark.parametrize("revision", LEGACY_REVISIONS, ids=str)
def test_clients_and_servers_can_send_progress_in_legacy_revisions(revision: Revision) -> None:
    assert revision._methods["notifications/progress"].sent_by("client")
    assert revision._methods["notifications/progress"].sent_by("server")


def test_only_servers_can_send_progress_in_modern_revisions() -> None:
    assert not LATEST_MODERN._methods["notifications/progress"].sent_by("client")
    assert LATEST_MODERN._methods["notifications/progress"].sent_by("server")


@pytest.mark.parametrize(
    ("pages", "followed"),
    [
        ([("a", "1"), ("b", "2"), ("c", None)], 2),
        ([("a", "1"), ("b", "1"), ("c", "1")], 1),
        ([("a", "1"), ("b", ""), ("c", "")], 2),
        ([("ab", "1"), ("ab", "2"), ("ab", "3")], 1),
        ([("a", "1"), ("b", "2"), ("a", "3")], 2),
        ([("a", "1"), ("", "2"), ("b", "3"), ("ac", "4")], 4),
        ([("a", 1), ("b", 2)], 0),
    ],
)
def test_pagination_stops_if_a_cursor_repeats_or_a_page_has_no_new_items(
    pages: list[tuple[str, object]], followed: int
) -> None:
    seen = set[int]()
    cursors = [
        next_cursor({"tools": [{"name": each} for each in names], "nextCursor": to}, seen) for names, to in pages
    ]
    assert [cursor is not None for cursor in cursors] == [True] * followed + [False] * (len(pages) - followed)
    assert next_cursor({"tools": [None, {"name": []}, 5], "nextCursor": "x"}, set()) == "x"
    assert next_cursor([], set()) is None
