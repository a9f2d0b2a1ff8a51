"""From one revision to another, without losing what neither knows."""

from __future__ import annotations

from typing import Any

import pytest

from trio_mcp import NotExpressible
from trio_mcp.protocol.types.tools import ListToolsResult
from trio_mcp.proxying.server_requests import translated, translated_result
from trio_mcp.types import REVISIONS, CallToolResult

FIRST, LATEST_LEGACY, MODERN = REVISIONS["2024-11-05"], REVISIONS["2025-11-25"], REVISIONS["2026-07-28"]
TEXT = {"type": "text", "text": "x"}


def test_within_one_revision_anything_passes_unchecked() -> None:
    data: dict[str, Any] = {"content": 5}
    assert translated(data, CallToolResult, MODERN, MODERN) is data


def test_members_that_the_other_revision_has_no_words_for_are_left_out_and_unknown_ones_stay() -> None:
    tool = {"name": "t", "title": "T", "inputSchema": {"type": "object", "title": "kept"}, "x-new": {"title": "kept"}}
    assert translated({"tools": [tool], "more": 1}, ListToolsResult, LATEST_LEGACY, FIRST) == {
        "tools": [{"name": "t", "inputSchema": {"type": "object", "title": "kept"}, "x-new": {"title": "kept"}}],
        "more": 1,
    }


def test_unknown_members_inside_of_lists_stay() -> None:
    data = {"content": [{**TEXT, "x": 1}, {**TEXT, "_meta": {"y": 2}}], "structuredContent": [1]}
    assert translated(data, CallToolResult, MODERN, LATEST_LEGACY) == {
        "content": [{**TEXT, "x": 1}, {**TEXT, "_meta": {"y": 2}}]
    }


def test_what_cannot_be_said_is_an_error() -> None:
    audio = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}
    with pytest.raises(NotExpressible, match="2024-11-05"):
        translated({"content": [audio]}, CallToolResult, MODERN, FIRST)


def test_what_is_none_of_its_kind_is_an_error() -> None:
    with pytest.raises(ValueError, match="content"):
        translated({"content": 5}, CallToolResult, MODERN, FIRST)


def test_what_every_result_of_a_revision_carries_goes_with_it() -> None:
    server_info = {"io.modelcontextprotocol/serverInfo": {"name": "s", "version": "1"}}
    data = {"resultType": "complete", "content": [TEXT], "_meta": {**server_info, "a": 1}}
    assert translated_result(data, CallToolResult, MODERN, LATEST_LEGACY) == {"content": [TEXT], "_meta": {"a": 1}}
    data = {"resultType": "complete", "content": [TEXT], "_meta": server_info}
    assert translated_result(data, CallToolResult, MODERN, LATEST_LEGACY) == {"content": [TEXT]}


def test_a_legacy_list_says_to_a_modern_client_that_it_is_not_to_be_kept() -> None:
    modern = translated_result({"tools": [], "x": 1}, ListToolsResult, LATEST_LEGACY, MODERN)
    assert modern == {"tools": [], "ttlMs": 0, "cacheScope": "private", "x": 1}
