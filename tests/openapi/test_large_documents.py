"""Large OpenAPI documents: many operations, long chains, and multiplying references."""

from __future__ import annotations

from typing import Any

import pytest
from tests.instructions import instructions_of
from tests.openapi.api import open_api
from tests.openapi.test_from_openapi import HTTP, document, everything, tools_of
from tests.openapi.test_requests import called

from trio_mcp import from_openapi, open_memory
from trio_mcp.openapi import schemas


def large(count: int) -> dict[str, Any]:
    """``count`` operations whose schemas refer to each other, in cycles, too."""
    schemas: dict[str, Any] = {
        f"S{number}": {
            "type": "object",
            "properties": {
                "next": {"$ref": f"#/components/schemas/S{number // 10 * 10 + (number * 7 + 1) % 10}"},
                "others": {"type": "array", "items": {"$ref": f"#/components/schemas/S{number % 10}"}},
                **{f"field{field}": {"type": "string", "description": "A field."} for field in range(10)},
            },
        }
        for number in range(count)
    }
    paths: dict[str, Any] = {
        f"/things{number}/{{id}}": {
            "put": {
                "operationId": f"put{number}",
                "parameters": [{"name": "id", "in": "path", "schema": {"type": "string"}}],
                "requestBody": {
                    "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/S{number}"}}}
                },
                "responses": {
                    "200": {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/S{number}"}}}}
                },
            }
        }
        for number in range(count)
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "t", "version": "1"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


async def test_large_openapi_document_is_read_in_linear_time() -> None:
    def read(count: int, operations: Any = everything) -> int:
        described = large(count)
        return instructions_of(lambda: from_openapi(described, http=HTTP, operations=operations))

    whole = read(20)
    assert read(60) < 3.5 * whole
    assert read(60, ["put7"]) < whole


async def test_each_operation_of_a_large_openapi_document_becomes_a_tool() -> None:
    assert len(await tools_of(from_openapi(large(100), http=HTTP, operations=everything))) == 100


async def test_openapi_schema_with_too_many_definitions_keeps_those_with_the_shortest_reference_chain() -> None:
    chain: dict[str, Any] = {
        f"S{number}": {"type": "object", "properties": {"next": {"$ref": f"#/components/schemas/S{number + 1}"}}}
        for number in range(200)
    }
    schema = {"schema": {"$ref": "#/components/schemas/S0"}}
    described = document(
        method="post",
        requestBody={"content": {"application/json": schema}},
        components={"schemas": chain | {"S200": {"type": "integer"}}},
    )
    made = (await tools_of(from_openapi(described, http=HTTP, operations=["do"])))["do"].input_schema["$defs"]
    assert [name for name, definition in made.items() if definition] == [f"S{number}" for number in range(50)]
    assert made["S50"] == {}
    async with open_api() as api:
        value: Any = 1
        for _ in range(100):
            value = {"next": value}
        assert not (await called(api, described, {"body": value})).is_error


def test_operation_of_a_large_openapi_document_is_declared_in_few_instructions() -> None:
    described, names = large(150), [f"put{number}" for number in range(100)]

    def read(count: int) -> int:
        return instructions_of(lambda: from_openapi(described, http=HTTP, operations=names[:count]))

    assert (read(100) - read(50)) / 50 < 100_000


async def test_validators_of_an_openapi_operation_are_created_at_its_first_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []

    class Counted(schemas.SchemaValidator):
        def __init__(self, schema: Any) -> None:
            made.append(schema)
            super().__init__(schema)

    monkeypatch.setattr(schemas, "SchemaValidator", Counted)
    async with open_api() as api:
        server = from_openapi(large(10), http=api.http, operations=everything)
        assert not made
        async with open_memory(server) as client:
            for _ in range(2):
                refused = await client.call_tool("put1", {"id": "a", "body": {"field0": 5}})
                assert refused.is_error
                assert "5 is not of type" in refused.text
            assert len(made) == 1
            await client.call_tool("put1", {"id": "a", "body": {}})
            assert len(made) == 2


def multiplying(levels: int) -> dict[str, Any]:
    return {
        f"S{number}": {"allOf": [{"$ref": f"#/components/schemas/S{number + 1}"}] * 2} for number in range(levels)
    } | {f"S{levels}": {"type": "integer"}}


@pytest.mark.parametrize(
    ("schema", "components"),
    [
        ({"$ref": "#/components/schemas/S0"}, multiplying(30)),
        ({"$ref": "#/components/schemas/S0"}, {"S0": {"anyOf": [{"$ref": "#/components/schemas/S0"}]}}),
        ({"anyOf": [{"$ref": "#/components/schemas/S0"}] * 50}, multiplying(20)),
    ],
)
def test_from_openapi_refuses_an_operation_whose_schema_has_exponentially_many_nested_references(
    schema: Any, components: Any
) -> None:
    described = document(
        parameters=[{"name": "p", "in": "query", "schema": schema}], components={"schemas": components}
    )
    described["paths"]["/other"] = {"get": {"operationId": "other", "responses": {}}}
    with pytest.raises(ValueError, match=r"^GET /do: the JSON Schema can't be used: it has so many nested references"):
        from_openapi(described, http=HTTP, operations=everything)
    from_openapi(described, http=HTTP, operations=["other"])


async def test_api_response_becomes_text_with_an_explanation_if_its_schema_cannot_be_checked() -> None:
    schema = {"type": "object", "allOf": [{"$ref": "#/components/schemas/S0"}]}
    described = document(
        responses={200: {"content": {"application/json": {"schema": schema}}}},
        components={"schemas": multiplying(30)},
    )
    async with open_api() as api:
        result = await called(api, described, {})
    assert not result.is_error
    assert "nested references" in result.text


def chain(length: int) -> dict[str, Any]:
    """Components of which each is the one before and a property more. The first property is only read."""
    return {"S0": {"properties": {"p0": {"type": "string", "readOnly": True}}}} | {
        f"S{number}": {"allOf": [{"$ref": f"#/components/schemas/S{number - 1}"}, {"properties": {f"p{number}": {}}}]}
        for number in range(1, length)
    }


def with_body(schema: Any, components: dict[str, Any]) -> dict[str, Any]:
    body = {"content": {"application/json": {"schema": schema}}}
    return document(method="post", requestBody=body, components={"schemas": components})


def test_openapi_schema_that_includes_too_many_schemas_by_all_of_is_refused_in_linear_time() -> None:
    def refused(length: int) -> int:
        described = with_body({"$ref": f"#/components/schemas/S{length - 1}"}, chain(length))

        def declare() -> None:
            with pytest.raises(ValueError, match=r"^POST /do: a schema may include at most 500 schemas through allOf"):
                from_openapi(described, http=HTTP, operations=["do"])

        return instructions_of(declare)

    assert refused(1200) < 3 * refused(600)
    from_openapi(with_body({"$ref": "#/components/schemas/S99"}, chain(100)), http=HTTP, operations=["do"])


async def test_openapi_schema_with_a_property_pattern_that_cannot_be_checked_accepts_every_value() -> None:
    schema = {"patternProperties": {"^(?!x)": {"type": "integer"}, "^y": {}}, "additionalProperties": False}
    read = (await tools_of(from_openapi(with_body(schema, {}), http=HTTP, operations=["do"])))["do"]
    assert read.input_schema["properties"]["body"] == {}
    good = {"patternProperties": {"^y": {"type": "integer"}}, "additionalProperties": False}
    read = (await tools_of(from_openapi(with_body(good, {}), http=HTTP, operations=["do"])))["do"]
    assert read.input_schema["properties"]["body"] == good
