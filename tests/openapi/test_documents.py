"""OpenAPI documents of both versions: split into files, with cycles, and invalid."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import httpx2
import pytest
from tests.openapi.api import open_api
from tests.openapi.test_from_openapi import HTTP, PETS, document, everything, tools_of
from tests.openapi.test_requests import called

from trio_mcp import Server, from_openapi, open_memory
from trio_mcp.protocol.schema_validator import SchemaValidator


def parts() -> dict[str, Any]:
    pets = {
        "Id": {"name": "id", "in": "query", "schema": {"$ref": "schemas/id.json#/Id"}},
        "item": {"get": {"operationId": "do", "parameters": [{"$ref": "#/Id"}]}},
    }
    return {"pets.json": pets, "schemas/id.json": {"Id": {"$ref": "../common.json#/a~1b"}}, "common.json": {"a/b": {}}}


def in_parts() -> dict[str, Any]:
    return document() | {"paths": {"/do": {"$ref": "pets.json#/item"}}}


async def test_relative_references_of_an_openapi_document_are_loaded_once_per_document() -> None:
    asked: list[str] = []

    def load(uri: str) -> dict[str, Any]:
        asked.append(uri)
        return parts()[uri]

    async with open_api() as api:
        await called(api, in_parts(), {"id": 1}, loader=load)
    assert asked == ["pets.json", "schemas/id.json", "common.json"]
    assert [seen.target for seen in api.seen] == ["/do?id=1"]


@pytest.mark.parametrize("uri", ["pets.json", "https://evil.test/pets.json", "file:///etc/passwd", "//evil.test/x"])
def test_reference_to_another_document_without_a_loader_raises_value_error(uri: str) -> None:
    described = document(parameters=[{"$ref": f"{uri}#/Id"}])
    with pytest.raises(ValueError, match=r"leads to another document, which is not fetched: pass a loader"):
        from_openapi(described, http=HTTP, operations=["do"])


@pytest.mark.parametrize(
    ("parameter", "words"),
    [
        ({"$ref": "#/components/parameters/none"}, "has no target"),
        ({"$ref": "#anchor"}, "anchors are not supported"),
        ({"$ref": "#/components/loop"}, r"a \$ref in the document refers to itself"),
        ({"name": "p", "in": "nowhere", "schema": {}}, "must be in path, query, header or cookie, not in 'nowhere'"),
        ({"name": "a b", "in": "header", "schema": {}}, "is not a valid header name"),
        ({"name": "p", "in": "query", "schema": "text"}, "a schema must be an object, not 'text'"),
        ({"name": "p", "in": "query", "schema": {"$dynamicRef": "#x"}}, r"\$dynamicRef, which is not supported"),
        ({"name": "p", "in": "query", "schema": {"type": "integr"}}, "the schema of the arguments is invalid"),
    ],
)
def test_error_for_an_invalid_openapi_operation_names_the_operation(parameter: Any, words: str) -> None:
    described = document(parameters=[parameter], components={"loop": {"$ref": "#/components/loop"}})
    with pytest.raises(ValueError, match=rf"^GET /do: .*{words}"):
        from_openapi(described, http=HTTP, operations=["do"])
    from_openapi(described, http=HTTP, operations=[])


@pytest.mark.parametrize("path", ["/do/{id}", "/../do", "/a/./b"])
def test_invalid_path_template_of_an_openapi_document_raises_value_error(path: str) -> None:
    with pytest.raises(ValueError, match=r"the path has"):
        from_openapi(document(path=path), http=HTTP, operations=["do"])


@pytest.mark.parametrize("version", ["2.0", "3.2.0", "4", ""])
def test_unsupported_openapi_versions_are_refused(version: str) -> None:
    with pytest.raises(ValueError, match=r"the OpenAPI version must be 3\.0 or 3\.1"):
        from_openapi({"swagger" if version == "2.0" else "openapi": version}, http=HTTP, operations=[])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"document": "openapi.json"}, "right:  from_openapi\\(json.loads"),
        ({"operations": "do"}, r"right:  \['do'\]"),
        ({"http": httpx2.Client(base_url="http://api.test")}, "AsyncClient, which runs on trio, not Client"),
    ],
)
def test_from_openapi_with_a_wrong_argument_raises_an_error_with_advice(changed: Any, words: str) -> None:
    given: Any = {"document": document(), "http": HTTP, "operations": ["do"]} | changed
    with pytest.raises(TypeError, match=words):
        from_openapi(given.pop("document"), **given)
    with pytest.raises(ValueError, match="http needs the URL of the API"):
        from_openapi(document(), http=httpx2.AsyncClient(), operations=["do"])


@pytest.mark.parametrize("is_old", [True, False])
async def test_openapi_schemas_are_converted_to_json_schemas(is_old: bool) -> None:
    schema = {
        "x-internal": 1,
        "anyOf": [{"type": "string", "nullable": True, "enum": ["a"]}, {"$ref": "#/components/schemas/N"}],
        "nullable": True,
        "discriminator": {"propertyName": "kind"},
        "pattern": "(?=look)ahead",
    }
    described = document(
        parameters=[{"name": "p", "in": "query", "schema": schema}],
        components={"schemas": {"N": {"type": "integer", "maximum": 9, "exclusiveMaximum": True if is_old else 9}}},
        openapi="3.0.1" if is_old else "3.1.0",
    )
    made = (await tools_of(from_openapi(described, http=HTTP, operations=["do"])))["do"].input_schema
    if is_old:
        text = {"type": ["string", "null"], "enum": ["a", None]}
        either = {"anyOf": [text, {"$ref": "#/$defs/N"}], "required": ["kind"]}
        assert made["properties"]["p"] == {"anyOf": [either, {"type": "null"}]}
        assert made["$defs"] == {"N": {"type": "integer", "exclusiveMaximum": 9}}
    else:
        text = {"type": "string", "enum": ["a"]}
        assert made["properties"]["p"] == {"anyOf": [text, {"$ref": "#/$defs/N"}], "required": ["kind"]}
        assert made["$defs"] == {"N": {"type": "integer", "maximum": 9, "exclusiveMaximum": 9}}


@pytest.mark.commands
def test_error_for_missing_httpx2_names_the_extra_to_install() -> None:
    code = "import sys; sys.modules['httpx2'] = None\nfrom trio_mcp import from_openapi\n"
    code += "from_openapi({}, http=None, operations=[])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.stderr.splitlines()[-1] == "ImportError: from_openapi needs httpx2: install 'trio-mcp[openapi]'"


async def test_openapi_server_can_be_mounted_in_another_server() -> None:
    server = Server("all")
    server.mount(from_openapi(PETS, http=HTTP, operations=["listPets"]), prefix="pets")
    assert list(await tools_of(server)) == ["pets_listPets"]


async def test_openapi_document_in_yaml_can_have_integer_statuses_and_date_examples() -> None:
    yaml = pytest.importorskip("yaml")
    described = yaml.safe_load("""
        openapi: 3.0.0
        info: {title: t, version: 1}
        paths:
          /do:
            get:
              operationId: do
              parameters: [{name: day, in: query, schema: {type: string, format: date, example: 2026-01-02}}]
              responses: {200: {content: {application/json: {schema: {type: object}}}}}
    """)
    async with open_api() as api:
        server = from_openapi(described, http=api.http, operations=["do"])
        async with open_memory(server) as client:
            (tool,) = [tool async for tool in client.list_tools()]
            assert tool.input_schema["properties"]["day"]["examples"] == ["2026-01-02"]
            assert (await client.call_tool("do", {})).structured_content == {"ok": True}


async def test_data_in_an_openapi_schema_that_looks_like_a_reference_is_not_resolved() -> None:
    data = {"$ref": "#/components/schemas/Missing"}
    schema = {
        "type": "object",
        "properties": {"$ref": {"type": "string"}, "p": {"type": "object", "const": data, "enum": [data]}},
        "default": data,
    }
    described = document(parameters=[{"name": "q", "in": "query", "schema": schema}])
    made = (await tools_of(from_openapi(described, http=HTTP, operations=everything)))["do"].input_schema
    assert made["properties"]["q"] == schema
    assert "$defs" not in made


@pytest.mark.parametrize("is_old", [True, False])
@pytest.mark.parametrize(
    "identity",
    [
        {"type": "integer", "readOnly": True},
        {"allOf": [{"type": "integer"}], "readOnly": True},
        {"$ref": "#/components/schemas/Id"},
        {"allOf": [{"$ref": "#/components/schemas/Id"}]},
    ],
    ids=["property", "allOf", "component", "component in allOf"],
)
async def test_read_only_openapi_properties_are_not_required_in_requests(identity: Any, is_old: bool) -> None:
    schemas = {
        "Id": {"type": "integer", "readOnly": True},
        "Named": {"type": "object", "properties": {"id": identity, "name": {}}},
        "Complete": {"required": ["id", "name"]},
        "Deep": {"allOf": [{"$ref": "#/components/schemas/Complete"}, {"required": ["name"]}]},
        "Pet": {"allOf": [{"$ref": "#/components/schemas/Named"}, {"$ref": "#/components/schemas/Deep"}]},
        "Other": {"allOf": [{"$ref": "#/components/schemas/Complete"}]},
    }
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}}
    described = document(
        openapi="3.0.3" if is_old else "3.1.0",
        method="post",
        parameters=[{"name": "p", "in": "query", "schema": {"$ref": "#/components/schemas/Other"}}],
        requestBody={"content": content},
        responses={"200": {"content": content}},
        components={"schemas": schemas},
    )
    tool = (await tools_of(from_openapi(described, http=HTTP, operations=everything)))["do"]
    sent, given = SchemaValidator(tool.input_schema), SchemaValidator(tool.output_schema or {})
    assert sent.faults({"body": {"name": "Rex"}}) is None
    assert sent.faults({"body": {}}) is not None
    assert sent.faults({"p": {"name": 1}}) is not None, "what another schema requires stays required"
    assert given.faults({"name": "Rex"}) is not None
    assert given.faults({"name": "Rex", "id": 1}) is None


async def test_openapi_discriminator_property_is_required_in_requests() -> None:
    kinds = [{"type": "object", "properties": {"kind": {"type": "string"}, each: {}}} for each in "ab"]
    schema = {"oneOf": kinds, "discriminator": {"propertyName": "kind", "mapping": {"a": "#/components/schemas/A"}}}
    described = document(method="post", requestBody={"content": {"application/json": {"schema": schema}}})
    made = (await tools_of(from_openapi(described, http=HTTP, operations=everything)))["do"].input_schema
    assert made["properties"]["body"] == {"anyOf": kinds, "required": ["kind"]}


async def test_input_schemas_of_openapi_tools_omit_formats_that_only_openapi_defines() -> None:
    parts = {
        "Item": {
            "type": "object",
            "properties": {
                "id": {"type": "integer", "format": "int64"},
                "data": {"type": "string", "format": "byte"},
                "at": {"type": "string", "format": "date-time"},
                "kind": {"enum": ["b", "a", "b"]},
            },
        }
    }
    size = {"type": "number", "format": "float"}
    described = document(
        parameters=[{"name": "size", "in": "query", "schema": size}],
        requestBody={"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Item"}}}},
        responses={"200": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Item"}}}}},
    )
    described["components"] = {"schemas": parts}
    tool = (await tools_of(from_openapi(described, http=HTTP, operations=everything)))["do"]
    expected = {
        "id": {"type": "integer"},
        "data": {"type": "string", "contentEncoding": "base64"},
        "at": {"type": "string", "format": "date-time"},
        "kind": {"type": "string", "enum": ["b", "a"]},
    }
    assert tool.input_schema["properties"]["size"] == {"type": "number"}
    assert tool.input_schema["$defs"]["Item"]["properties"] == expected
    assert tool.output_schema is not None
    assert tool.output_schema["anyOf"][0]["properties"] == expected
