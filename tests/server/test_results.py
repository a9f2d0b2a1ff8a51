"""What tools return becomes content, and structured content where the annotation says so."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from trio_mcp import CallToolResult, ImageContent, TextContent, error_result, text_result
from trio_mcp.server.results import result_maker


@attrs.frozen
class Weather:
    degrees: float
    sunny: bool = True


def made(returns: Any, value: Any) -> CallToolResult:
    return result_maker(returns, None)[1](value)


@pytest.mark.parametrize(
    "returns",
    [str, None, CallToolResult, TextContent, list[TextContent | ImageContent], TextContent | str, Any],
)
def test_text_and_content_are_unstructured(returns: Any) -> None:
    assert result_maker(returns, None)[0] is None


def test_text_is_one_block() -> None:
    assert made(str, "hello") == CallToolResult([TextContent("hello")])


def test_nothing_is_no_content_at_all() -> None:
    assert made(None, None) == CallToolResult([])


def test_blocks_stay_blocks() -> None:
    image = ImageContent("aGk=", "image/png")
    assert made(list[TextContent | ImageContent], [TextContent("a"), image]).content == [TextContent("a"), image]


def test_an_object_is_structured_and_repeated_as_text() -> None:
    schema, make = result_maker(Weather, None)
    result = make(Weather(21.5))
    assert schema is not None
    assert schema["properties"]["degrees"] == {"type": "number"}
    assert result.structured_content == {"degrees": 21.5, "sunny": True}
    assert result.content == [TextContent('{"degrees":21.5,"sunny":true}')]


@pytest.mark.parametrize(("returns", "value"), [(int, 3), (list[str], ["a"]), (int | None, None), (bool, True)])
def test_what_is_no_object_is_wrapped(returns: Any, value: Any) -> None:
    schema, make = result_maker(returns, None)
    assert schema is not None
    assert schema["required"] == ["result"]
    assert make(value).structured_content == {"result": value}


def test_a_list_of_classes_keeps_its_definitions_beside_the_wrapper() -> None:
    schema, _ = result_maker(list[Weather], None)
    assert schema is not None
    assert schema["properties"]["result"]["items"] == {"$ref": "#/$defs/Weather"}
    assert "Weather" in schema["$defs"]


def test_an_explicit_schema_is_kept_verbatim() -> None:
    explicit = {"type": "object", "x-note": 1}
    assert result_maker(str, explicit)[0] is explicit


def test_helpers_make_text_and_errors() -> None:
    assert text_result("a").is_error is None
    assert error_result("a") == CallToolResult([TextContent("a")], is_error=True)


def test_a_ready_result_passes_through_a_structured_tool() -> None:
    assert made(Weather, error_result("no data")) == error_result("no data")
