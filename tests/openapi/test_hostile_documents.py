"""For any document, `from_openapi` returns a server whose tools can be listed and called, or raises `ValueError`."""

from __future__ import annotations

import copy
import datetime
import random
from collections.abc import Iterator
from typing import Any, TypeAlias

import httpx2
import pytest
from tests.openapi.test_from_openapi import HTTP, PETS, document, everything, tools_of

from trio_mcp import from_openapi, open_memory

Place: TypeAlias = tuple[str | int, ...]


def nested(levels: int, key: str | None = None) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = [value] if key is None else {key: [value]}
    return value


def rich() -> dict[str, Any]:
    """A document with something of each kind that is read."""
    made = copy.deepcopy(PETS)
    made["servers"] = [{"url": "https://api.test/{v}", "variables": {"v": {"default": "v1", "enum": ["v1"]}}}]
    files = {"f": {"type": "string", "format": "binary"}, "g": {"items": {"type": "string", "format": "binary"}}}
    made["paths"]["/pets"]["post"]["requestBody"]["content"] = {
        "multipart/form-data": {
            "schema": {"type": "object", "properties": files},
            "encoding": {"f": {"contentType": "image/png", "style": "form"}},
        }
    }
    made["paths"]["/pets"]["get"]["parameters"] += [
        {"name": "X-A", "in": "header", "schema": {"type": "string", "pattern": "a+"}},
        {"name": "c", "in": "cookie", "style": "form", "schema": {"allOf": [{"default": "x", "examples": ["a"]}]}},
        {"$ref": "#/components/parameters/q"},
    ]
    schema = {"type": "object", "nullable": True, "enum": [{}], "additionalProperties": False, "required": ["a"]}
    made["components"]["parameters"] = {
        "q": {"name": "q", "in": "query", "content": {"application/json": {"schema": schema}}, "description": "d"}
    }
    return made


def places(node: Any, at: Place = ()) -> Iterator[Place]:
    yield at
    for key, each in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from places(each, (*at, key))


def with_value(node: dict[str, Any], at: Place, value: Any) -> dict[str, Any]:
    made = target = copy.deepcopy(node)
    for key in at[:-1]:
        target = target[key]  # type: ignore[index]
    target[at[-1]] = value  # type: ignore[index]
    return made


VALUES: list[Any] = [
    *(None, 5, -1, 1.5, float("nan"), float("inf"), True, False, 10**400, object(), b"x", ("a",), {1, 2}),
    *("x", "", "\ud800", "\0", "{", "http://[", "http://h:99999999/", "a" * 5000, datetime.date(2026, 1, 1)),
    *([], {}, [5], [[]], [None], {"a": 5}, {5: 6}, {"": None}, nested(90), nested(900), nested(5000, "allOf")),
    *({"$ref": each} for each in (5, "#", "#/x", "#/%ff", "http://[", "#/paths/" + "9" * 5000, "other.json", None)),
    *({"type": each} for each in ("nope", 5, ["string", 5])),
    *({"minimum": "x"}, {"minimum": float("-inf")}, {"required": 5}, {"required": [5]}, {"properties": [1]}),
    *({"default": float("nan")}, {"enum": {}}, {"pattern": 5}, {"pattern": {}}, {"multipleOf": 0}, {"allOf": 5}),
]


async def check(described: dict[str, Any]) -> None:
    try:
        server = from_openapi(described, http=ANSWERING, operations=everything)
    except ValueError as error:
        if type(error) is ValueError and str(error):
            return
        raise  # of httpx2 or of a codec
    async with open_memory(server) as client:
        for tool in [tool async for tool in client.list_tools()]:
            result = await client.call_tool(tool.name, dict.fromkeys(tool.input_schema.get("required", ()), "x"))
            assert "internal" not in result.text


ANSWERING = httpx2.AsyncClient(
    base_url="https://api.test/", transport=httpx2.MockTransport(lambda _: httpx2.Response(200, json=[{"id": 1}]))
)


@pytest.mark.parametrize("version", ["3.0.3", "3.1.0"])
async def test_openapi_document_with_any_value_at_any_position_is_read_or_raises_value_error(version: str) -> None:
    described = rich() | {"openapi": version}
    chosen = random.Random(version)
    for at in list(places(described))[1:]:
        for value in chosen.sample(VALUES, 2):
            await check(with_value(described, at, value))


@pytest.mark.parametrize(
    ("described", "words"),
    [
        (document(parameters=5), "GET /do: parameters must be a list, not 5"),
        (
            document(parameters=[{"in": "query"}]),
            "GET /do: the name of a parameter must be a non-empty string, not None",
        ),
        (document(servers=[{"url": "http://[::1"}]), "GET /do: the server URL cannot be used: "),
        (document(servers=7), "GET /do: servers must be a list, not 7"),
        (document(tags="pets"), "tags must be a list, not 'pets'"),
        (document(parameters=[{"$ref": 5}]), None),
        (document(parameters=[{"name": "p", "in": "query", "schema": {"$ref": 5}}]), r"\$ref must be a string, not 5"),
        (document(parameters=[{"name": "p", "in": "query", "schema": {"allOf": 5}}]), "allOf must be a list, not 5"),
        (document(parameters=nested(2000)), "the document has more than 500 levels, or contains itself"),
        (document(summary=object()), "the document cannot be written as JSON: "),
        (
            document(responses={200: {"content": {"application/json": {"schema": {"type": "nope"}}}}}),
            "GET /do: the schema of the answer is invalid: ",
        ),
    ],
)
async def test_error_for_an_unreadable_openapi_document_names_the_fault(
    described: dict[str, Any], words: str | None
) -> None:
    with pytest.raises(ValueError, match=words):
        from_openapi(described, http=HTTP, operations=everything)


@pytest.mark.parametrize("loader", [{}.__getitem__, lambda _: None, lambda _: [], lambda _: {"a": object()}])
async def test_openapi_reference_to_a_document_that_the_loader_does_not_have_raises_value_error(loader: Any) -> None:
    described = document(parameters=[{"$ref": "other.json#/p"}])
    with pytest.raises(ValueError, match=r"GET /do: the (loader has no )?document 'other\.json'"):
        from_openapi(described, http=HTTP, operations=everything, loader=loader)


async def test_tools_list_succeeds_although_an_openapi_schema_contains_nan_or_infinity() -> None:
    schema = {"type": "number", "default": float("nan"), "maximum": float("inf"), "minimum": None}
    described = document(parameters=[{"name": "p", "in": "query", "schema": schema}])
    tools = await tools_of(from_openapi(described, http=HTTP, operations=everything))
    assert tools["do"].input_schema["properties"]["p"] == {"type": "number", "default": None}


async def test_openapi_document_read_from_yaml_can_contain_integer_statuses_and_dates() -> None:
    schema = {"type": "object", "properties": {"d": {"type": "string", "example": datetime.date(2026, 1, 2)}}}
    described = document(responses={200: {"content": {"application/json": {"schema": schema}}}})
    tools = await tools_of(from_openapi(described, http=HTTP, operations=everything))
    read = tools["do"].output_schema
    assert read is not None
    assert read["anyOf"][0]["properties"]["d"] == {"type": "string", "examples": ["2026-01-02"]}
