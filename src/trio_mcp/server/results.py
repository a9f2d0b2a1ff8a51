"""From what a tool returned to what goes on the wire."""

from __future__ import annotations

import types
from collections.abc import Callable
from inspect import Parameter
from typing import Annotated, Any, TypeAlias, TypeVar, Union, cast, get_args, get_origin

from ..jsonrpc.codec import encode_value
from ..spec.content import (
    AudioContent,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
)
from ..spec.fields import JSONObject
from ..spec.tools import CallToolResult
from .signature import schema_of, to_plain

__all__ = ["ToResult", "error_result", "result_maker", "text_result"]

T = TypeVar("T")
ToResult: TypeAlias = Callable[[Any], CallToolResult]

_BLOCKS = (TextContent, ImageContent, AudioContent, ResourceLink, EmbeddedResource)


def text_result(text: str) -> CallToolResult:
    """A result that is one piece of text."""
    return CallToolResult([TextContent(text)])


def error_result(text: str) -> CallToolResult:
    """A failure of the tool, told to the model so that it can mend its call (``isError``)."""
    return CallToolResult([TextContent(text)], is_error=True)


def result_maker(returns: Any, output_schema: JSONObject | None) -> tuple[JSONObject | None, ToResult]:
    """The output schema of a tool, and how its return values become results.

    An explicit schema is kept as it is. Without one the return annotation decides: text, content blocks, a
    `CallToolResult`, nothing or no annotation mean unstructured; everything else is structured, and what is
    not an object is wrapped as ``{"result": …}``. Raises `TypeError` for an annotation without a JSON Schema.
    """
    if output_schema is not None:
        return output_schema, _structured
    if _is_unstructured(returns):
        return None, _unstructured
    schema = schema_of(returns)
    if schema.get("type") == "object":
        return schema, _structured
    definitions = schema.pop("$defs", None)
    wrapped: JSONObject = {"type": "object", "properties": {"result": schema}, "required": ["result"]}
    if definitions:
        wrapped["$defs"] = definitions
    return wrapped, _wrapped


def _is_unstructured(returns: Any) -> bool:
    if returns in (Parameter.empty, Any, object, None, type(None), str, CallToolResult) or returns in _BLOCKS:
        return True
    origin = get_origin(returns)
    if origin is Annotated:
        return _is_unstructured(get_args(returns)[0])
    if origin in (Union, types.UnionType):
        return all(_is_unstructured(member) for member in get_args(returns))
    if origin is list:
        (item,) = get_args(returns)
        return item not in (str, Any, object, None, type(None)) and _is_unstructured(item)
    return False


def _unstructured(value: Any) -> CallToolResult:
    if type(value) is str:
        return CallToolResult([TextContent(value)])
    if value is None:
        return CallToolResult()
    if isinstance(value, CallToolResult):
        return value
    if isinstance(value, _BLOCKS):
        return CallToolResult([value])
    if isinstance(value, list) and value and all(isinstance(item, _BLOCKS) for item in cast("list[Any]", value)):
        return CallToolResult(cast("list[ContentBlock]", value))
    return CallToolResult([_as_text(to_plain(value))])


def _structured(value: Any) -> CallToolResult:
    if isinstance(value, CallToolResult):
        return value
    plain = to_plain(value)
    # The same as text, for clients that know no structured content (2025-06-18 tools, Structured Content: SHOULD).
    return CallToolResult([_as_text(plain)], structured_content=plain)


def _wrapped(value: Any) -> CallToolResult:
    if isinstance(value, CallToolResult):
        return value
    plain = to_plain(value)
    return CallToolResult([_as_text(plain)], structured_content={"result": plain})


def _as_text(plain: Any) -> TextContent:
    return TextContent(plain if isinstance(plain, str) else encode_value(plain).decode())
