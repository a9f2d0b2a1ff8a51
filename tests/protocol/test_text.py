"""The `text` of a result."""

from __future__ import annotations

from typing import Any

import pytest

from trio_mcp.types import (
    BlobResourceContents,
    CallToolResult,
    CreateMessageResult,
    GetPromptResult,
    ImageContent,
    PromptMessage,
    ReadResourceResult,
    TextContent,
    TextResourceContents,
)

IMAGE = ImageContent("AAAA", "image/png")
ONE, TWO = TextContent("one"), TextContent("two")


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (CallToolResult([ONE, IMAGE, TWO]), "one\ntwo"),
        (CallToolResult([]), ""),
        (GetPromptResult([PromptMessage("user", ONE), PromptMessage("assistant", TWO)]), "one\ntwo"),
        (GetPromptResult([PromptMessage("user", IMAGE)]), ""),
        (
            ReadResourceResult(
                [
                    TextResourceContents("a:1", "one"),
                    BlobResourceContents("a:2", "AAAA"),
                    TextResourceContents("a:3", "two"),
                ]
            ),
            "one\ntwo",
        ),
        (ReadResourceResult([]), ""),
        (CreateMessageResult("assistant", ONE, "model"), "one"),
        (CreateMessageResult("assistant", [ONE, IMAGE, TWO], "model"), "one\ntwo"),
        (CreateMessageResult("assistant", IMAGE, "model"), ""),
    ],
)
def test_text_attribute_of_a_result_joins_its_text_blocks_with_newlines(result: Any, text: str) -> None:
    assert result.text == text
