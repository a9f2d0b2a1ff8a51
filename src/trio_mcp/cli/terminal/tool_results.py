"""Results of tools, for people and for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import TextIO

from ...spec.content import AudioContent, ContentBlock, ImageContent, ResourceLink, TextContent, TextResourceContents
from ...spec.converters import unstructure
from ...spec.revisions import Revision
from ...spec.tools import CallToolResult
from .plain import printable

__all__ = ["show_result"]


def show_result(result: CallToolResult, revision: Revision, *, raw: bool) -> None:
    """Print it to standard output, or, what a tool that failed says, to standard error; ``raw``: all of it as JSON,
    to standard output in any case."""
    out = sys.stderr if result.is_error and not raw else sys.stdout
    if raw:
        print(json.dumps(unstructure(result, revision), indent=2, ensure_ascii=out.isatty()), file=out)
        return
    for line in _lines(result, out):
        print(printable(line) if out.isatty() else line, file=out)


def _lines(result: CallToolResult, out: TextIO) -> Iterable[str]:
    for block in result.content:
        yield _words(block)
    if not result.content and result.structured_content is not None:
        yield json.dumps(result.structured_content, indent=2, ensure_ascii=out.isatty())


def _words(block: ContentBlock) -> str:
    match block:
        case TextContent():
            return block.text
        case ImageContent() | AudioContent():
            return f"[{block.type}, {block.mime_type}, {len(block.data) * 3 // 4} bytes]"
        case ResourceLink():
            return f"[resource {block.uri}: {block.title or block.name}]"
        case _:
            resource = block.resource
            if isinstance(resource, TextResourceContents):
                return resource.text
            return f"[resource {resource.uri}, {len(resource.blob) * 3 // 4} bytes]"
