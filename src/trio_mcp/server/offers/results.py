"""Results: a tool's return value, turned into a result for the wire."""

from __future__ import annotations

import types
from collections.abc import Callable
from inspect import Parameter
from typing import Annotated, Any, TypeAlias, TypeVar, Union, cast, get_args, get_origin

from ...jsonrpc.codec import encode_value
from ...protocol.fields import JSONObject
from ...protocol.types.content import ContentBlock, TextContent
from ...protocol.types.tools import CallToolResult
from ..signatures.inspected_types import classes_in
from ..signatures.signature import schema_of
from .plain_values import BLOCKS, to_plain

T = TypeVar("T")
ToResult: TypeAlias = Callable[[Any], CallToolResult]


def text_result(text: str) -> CallToolResult:
    """Return a result that is one piece of text."""
    return CallToolResult([TextContent(text)])


def error_result(text: str) -> CallToolResult:
    """Return a failure of the tool, told to the model so that the model can mend its call (``isError``)."""
    return CallToolResult([TextContent(text)], is_error=True)


def result_maker(returns: Any, output_schema: JSONObject | None) -> tuple[JSONObject | None, ToResult]:
    """Return the output schema of a tool, and how its return values become results.

    An explicit schema is kept unchanged. Without a schema the return annotation decides: text, content blocks and types
    that hold content blocks, a `CallToolResult`, nothing or no annotation mean unstructured; all other types are
    structured, and a type that is not an object is wrapped as ``{"result": …}``. Raises `TypeError` for an annotation
    without a JSON Schema.
    """
    if output_schema is not None:
        return output_schema, _structured
    returns = _without_results(returns)
    if returns in (Parameter.empty, object) or _is_text(returns):
        return None, _unstructured
    if _names_blocks(returns):
        return None, _content
    schema = schema_of(returns)
    if not classes_in(returns).isdisjoint(BLOCKS):
        return None, _content
    if schema.get("type") == "object":
        return schema, _structured
    definitions = schema.pop("$defs", None)
    wrapped: JSONObject = {"type": "object", "properties": {"result": schema}, "required": ["result"]}
    if definitions:
        wrapped["$defs"] = definitions
    return wrapped, _wrapped


def _without_results(returns: Any) -> Any:
    """Return an annotation without `CallToolResult`, for which no schema or content is to be made."""
    if returns is CallToolResult:
        return Parameter.empty
    if get_origin(returns) in (Union, types.UnionType) and CallToolResult in get_args(returns):
        return Union[tuple(member for member in get_args(returns) if member is not CallToolResult)]  # noqa: UP007, made
    return returns


def _is_text(returns: Any) -> bool:
    """Return whether ``returns`` is text or nothing, in any spelling."""
    origin = get_origin(returns)
    if origin is Annotated:
        return _is_text(get_args(returns)[0])
    if origin in (Union, types.UnionType):
        return all(map(_is_text, get_args(returns)))
    return returns in (str, Any, None, type(None))


def _names_blocks(returns: Any) -> bool:
    return returns in BLOCKS or any(map(_names_blocks, get_args(returns)))


def _unstructured(value: Any) -> CallToolResult:
    """Return the result of a value whose annotation leaves the form open: a list or tuple is content when there is a
    block inside or no item at all."""
    if type(value) is str:
        return CallToolResult([TextContent(value)])
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        if items and not any(isinstance(item, BLOCKS) for item in items):
            return CallToolResult([_as_text(to_plain(items))])
    return _content(value)


def _content(value: Any) -> CallToolResult:
    """Return ``value`` as content: the items of a list or tuple one by one, text and blocks unchanged, all other items
    as JSON."""
    if isinstance(value, CallToolResult):
        return value
    items = cast("list[Any]", value) if isinstance(value, list | tuple) else [value]
    return CallToolResult([_block(item) for item in items if item is not None])


def _block(value: Any) -> ContentBlock:
    return value if isinstance(value, BLOCKS) else _as_text(value if isinstance(value, str) else to_plain(value))


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
