"""Tools say which of their arguments are mirrored in headers (2026-07-28 tools, x-mcp-header)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import pytest

from trio_mcp import Header, Server
from trio_mcp.protocol.param_headers import ParamHeader

Region = Annotated[str, Header("Region")]


@dataclass
class Place:
    zone: Annotated[str, Header("Zone")]


def mirrored(server: Server[Any], name: str) -> tuple[ParamHeader, ...]:
    entry = server._tools.registry.get(name)
    assert entry is not None
    return entry.param_headers


def test_parameter_with_a_header_annotation_must_also_be_sent_in_that_http_header() -> None:
    server = Server("s")

    @server.tool
    async def query(
        region: Region,
        count: Annotated[int, "How many", msgspec.Meta(ge=1), Header("Count")] = 3,
        text: str = "",
    ) -> str:
        return ""

    assert mirrored(server, "query") == (
        ParamHeader(("region",), "Mcp-Param-Region"),
        ParamHeader(("count",), "Mcp-Param-Count"),
    )
    entry = server._tools.registry.get("query")
    assert entry is not None
    assert entry.listed.input_schema["properties"]["region"] == {"type": "string", "x-mcp-header": "Region"}


def test_x_mcp_header_in_an_explicit_input_schema_assigns_the_http_header_to_the_argument() -> None:
    server = Server("s")
    inner = {"type": "object", "properties": {"id": {"type": "integer", "x-mcp-header": "Tenant"}}}

    @server.tool(input_schema={"type": "object", "properties": {"tenant": inner}})
    async def query(arguments: dict[str, Any]) -> str:
        return ""

    assert mirrored(server, "query") == (ParamHeader(("tenant", "id"), "Mcp-Param-Tenant"),)


def test_tool_without_header_annotations_expects_no_arguments_in_http_headers() -> None:
    server = Server("s")

    @server.tool
    async def query(region: str) -> str:
        return ""

    assert mirrored(server, "query") == ()


def test_tool_with_invalid_header_annotations_raises_at_registration() -> None:
    server = Server("s")

    async def query(region: Region, other: Region) -> str:
        return ""

    with pytest.raises(
        ValueError, match="tool 'query': x-mcp-header at properties/other: 'Region' is already the header of 'region'"
    ):
        server.tool(query)
    assert len(server._tools.registry) == 0


def test_header_annotation_of_a_class_field_assigns_the_http_header_to_the_nested_argument() -> None:
    server = Server("s")

    @server.tool
    async def query(place: Place) -> str:
        return place.zone

    assert mirrored(server, "query") == (ParamHeader(("place", "zone"), "Mcp-Param-Zone"),)


def test_header_annotation_written_as_json_schema_assigns_the_http_header_to_the_argument() -> None:
    server = Server("s")

    @server.tool
    async def query(region: Annotated[str, msgspec.Meta(extra_json_schema={"x-mcp-header": "Region"})]) -> str:
        return region

    assert mirrored(server, "query") == (ParamHeader(("region",), "Mcp-Param-Region"),)


@pytest.mark.parametrize("name", ["", "two words", "Größe", "a:b", 3])
def test_parameter_header_name_that_is_not_a_token_raises(name: Any) -> None:
    with pytest.raises(ValueError, match="letters, digits and hyphens"):
        Header(name)


def test_header_annotation_on_a_parameter_that_allows_none_raises_an_error_with_instructions() -> None:
    async def query(region: Annotated[str | None, Header("R")] = None) -> str:
        return ""

    with pytest.raises(ValueError, match="give it a default of that type instead of null"):
        Server("s").tool(query)


def test_invalid_header_annotations_in_an_explicit_input_schema_raise() -> None:
    async def query(arguments: dict[str, Any]) -> str:
        return ""

    schema = {"type": "object", "properties": {"a": {"type": "number", "x-mcp-header": "A"}}}
    with pytest.raises(ValueError, match="but has 'number'"):
        Server("s").tool(input_schema=schema)(query)
