"""The table of revisions, and which one a server negotiates."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from trio_mcp.protocol.revisions import (
    LATEST_LEGACY,
    LATEST_MODERN,
    LEGACY_REVISIONS,
    MODERN_REVISIONS,
    REVISIONS,
    Revision,
    negotiate,
)

LEGACY = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
MODERN = ["2026-07-28"]

# One line per fact, oldest revision first.
FACTS: dict[str, list[Any]] = {
    "handshake": [True, True, True, True, False],
    "server_requests": [True, True, True, True, False],
    "batches": [True, True, False, False, False],
    "log_level": ["connection", "connection", "connection", "connection", "request"],
    "changes": ["free", "free", "free", "free", "listen"],
    "result_type": [False, False, False, False, True],
    "cache_hints": [False, False, False, False, True],
    "server_info_in_meta": [False, False, False, False, True],
    "resource_not_found": [-32002, -32002, -32002, -32002, -32602],
    "invalid_arguments": ["error", "error", "error", "result", "result"],
    "missing_capability": [-32600, -32600, -32600, -32600, -32021],
    "renamed_errors": [*[{-32021: -32600}] * 4, {-32002: -32602, -32042: -32603}],
    "structured_content": ["none", "none", "object", "object", "any"],
    "progress_message": [False, True, True, True, True],
    "tasks": ["none", "none", "none", "core", "extension"],
    "polling": [False, False, False, True, False],
    "sub_capabilities": [False, False, False, True, True],
}


def test_list_of_protocol_revisions_has_five_entries_oldest_first() -> None:
    assert list(REVISIONS) == LEGACY + MODERN
    assert [str(row) for row in REVISIONS.values()] == LEGACY + MODERN


def test_legacy_revisions_have_a_handshake_and_modern_revisions_do_not() -> None:
    assert [row.name for row in LEGACY_REVISIONS] == LEGACY
    assert [row.name for row in MODERN_REVISIONS] == MODERN
    assert (LATEST_LEGACY.name, LATEST_MODERN.name) == (LEGACY[-1], MODERN[-1])


@pytest.mark.parametrize("fact", FACTS)
def test_revision_table_matches_the_specification(fact: str) -> None:
    assert [getattr(row, fact) for row in REVISIONS.values()] == FACTS[fact]


def test_every_field_of_the_revision_table_is_compared_with_the_specification() -> None:
    assert {field.name for field in attrs.fields(Revision)} == {*FACTS, "name", "_methods"}


def test_copy_of_a_protocol_revision_is_not_equal_to_the_revision() -> None:
    assert attrs.evolve(LATEST_LEGACY) != LATEST_LEGACY
    assert len({*REVISIONS.values()}) == 5


@pytest.mark.parametrize("requested", LEGACY)
def test_revision_negotiation_selects_the_requested_legacy_revision(requested: str) -> None:
    assert negotiate(requested).name == requested


@pytest.mark.parametrize("requested", ["", "1.0", "2024-10-07", "2099-01-01", *MODERN])
def test_revision_negotiation_selects_the_latest_legacy_revision_if_the_requested_one_is_unknown(
    requested: str,
) -> None:
    assert negotiate(requested) is LATEST_LEGACY
