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


def test_proxy_does_not_validate_messages_between_peers_of_the_same_revision() -> None:
    data: dict[str, Any] = {"content": 5}
    assert translated(data, CallToolResult, MODERN, MODERN) is data


def test_translation_to_another_revision_removes_unknown_standard_fields_but_keeps_custom_fields() -> None:
    tool = {"name": "t", "title": "T", "inputSchema": {"type": "object", "title": "kept"}, "x-new": {"title": "kept"}}
    assert translated({"tools": [tool], "more": 1}, ListToolsResult, LATEST_LEGACY, FIRST) == {
        "tools": [{"name": "t", "inputSchema": {"type": "object", "title": "kept"}, "x-new": {"title": "kept"}}],
        "more": 1,
    }


def test_translation_to_another_revision_keeps_custom_fields_inside_lists() -> None:
    data = {"content": [{**TEXT, "x": 1}, {**TEXT, "_meta": {"y": 2}}], "structuredContent": [1]}
    assert translated(data, CallToolResult, MODERN, LATEST_LEGACY) == {
        "content": [{**TEXT, "x": 1}, {**TEXT, "_meta": {"y": 2}}]
    }


def test_translation_of_content_to_a_protocol_revision_that_lacks_it_raises_not_expressible() -> None:
    audio = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}
    with pytest.raises(NotExpressible, match="2024-11-05"):
        translated({"content": [audio]}, CallToolResult, MODERN, FIRST)


def test_translation_of_an_invalid_result_raises_value_error() -> None:
    with pytest.raises(ValueError, match="content"):
        translated({"content": 5}, CallToolResult, MODERN, FIRST)


def test_translation_to_a_legacy_revision_removes_result_type_and_server_info() -> None:
    server_info = {"io.modelcontextprotocol/serverInfo": {"name": "s", "version": "1"}}
    data = {"resultType": "complete", "content": [TEXT], "_meta": {**server_info, "a": 1}}
    assert translated_result(data, CallToolResult, MODERN, LATEST_LEGACY) == {"content": [TEXT], "_meta": {"a": 1}}
    data = {"resultType": "complete", "content": [TEXT], "_meta": server_info}
    assert translated_result(data, CallToolResult, MODERN, LATEST_LEGACY) == {"content": [TEXT]}


def test_translation_of_a_legacy_list_to_the_modern_revision_marks_it_as_not_cacheable() -> None:
    modern = translated_result({"tools": [], "x": 1}, ListToolsResult, LATEST_LEGACY, MODERN)
    assert modern == {"tools": [], "ttlMs": 0, "cacheScope": "private", "x": 1}
