"""show_result: print results, for people and for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import TextIO

from ...protocol.converters import unstructure
from ...protocol.revisions import Revision
from ...protocol.types.content import (
    AudioContent,
    ContentBlock,
    ImageContent,
    ResourceContents,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from ...protocol.types.tools import CallToolResult
from .printable import printable


def show_result(result: CallToolResult, revision: Revision, *, raw: bool) -> None:
    """Print a result to standard output, or to standard error if the tool failed. With ``raw`` the whole result is
    printed as JSON, always to standard output."""
    out = sys.stderr if result.is_error and not raw else sys.stdout
    if raw:
        print(json.dumps(unstructure(result, revision), indent=2, ensure_ascii=out.isatty()), file=out)
        return
    for line in _lines(result, out):
        print(printable(line) if out.isatty() else line, file=out)


def _lines(result: CallToolResult, out: TextIO) -> Iterable[str]:
    for block in result.content:
        yield words_of_block(block)
    if not result.content and result.structured_content is not None:
        yield json.dumps(result.structured_content, indent=2, ensure_ascii=out.isatty())


def words_of_block(block: ContentBlock) -> str:
    """Return the text of a block, or a description of a block that is no text."""
    match block:
        case TextContent():
            return block.text
        case ImageContent() | AudioContent():
            return f"[{block.type}, {block.mime_type}, {_size(block.data)}]"
        case ResourceLink():
            return f"[resource {block.uri}: {block.title or block.name}]"
        case _:
            return words_of_resource(block.resource)


def words_of_resource(contents: ResourceContents) -> str:
    """Return the text of a resource's contents, or a description of contents that are no text."""
    if isinstance(contents, TextResourceContents):
        return contents.text
    kind = f", {contents.mime_type}" if contents.mime_type else ""
    return f"[resource {contents.uri}{kind}, {_size(contents.blob)}]"


def _size(base64: str) -> str:
    return f"{len(base64) * 3 // 4 - base64[-2:].count('=')} bytes"
