"""Operations of an OpenAPI document become tools: selection, names, and calls to the API."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
import trio
import trio.testing
from tests.openapi.api import Answer, Seen, open_api
from tests.patience import PATIENCE

from trio_mcp import Server, from_openapi, open_memory
from trio_mcp.types import APIOperation, Tool

LIMIT = {"type": "integer", "minimum": 0, "exclusiveMinimum": True}
PETS: dict[str, Any] = {
    "openapi": "3.0.3",
    "info": {"title": "Pets", "version": "1.2"},
    "paths": {
        "/pets": {
            "get": {
                "operationId": "listPets",
                "summary": "All pets.",
                "tags": ["pets"],
                "parameters": [
                    {"name": "limit", "in": "query", "schema": LIMIT},
                    {"name": "tags", "in": "query", "schema": {"type": "array", "items": {"type": "string"}}},
                ],
                "responses": {
                    "200": {
                        "description": "ok",
                        "content": {
                            "application/json": {
                                "schema": {"type": "array", "items": {"$ref": "#/components/schemas/Pet"}}
                            }
                        },
                    }
                },
            },
            "post": {
                "operationId": "add pet!",
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}},
                },
                "responses": {"201": {"description": "made"}},
            },
        },
        "/pets/{id}": {
            "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}],
            "get": {
                "responses": {
                    "200": {
                        "description": "ok",
                        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}},
                    }
                }
            },
            "delete": {"operationId": "drop", "deprecated": True, "responses": {}},
            "put": {"operationId": "change", "responses": {}},
        },
    },
    "components": {
        "schemas": {
            "Pet": {
                "type": "object",
                "required": ["id", "name", "secret"],
                "properties": {
                    "id": {"type": "integer", "readOnly": True},
                    "name": {"type": "string", "nullable": True, "example": "Rex"},
                    "secret": {"type": "string", "writeOnly": True},
                    "mother": {"$ref": "#/components/schemas/Pet"},
                },
            }
        }
    },
}


def document(**operation: Any) -> dict[str, Any]:
    """A document of one operation, ``do``, by GET at ``/do`` unless said otherwise."""
    path, method = operation.pop("path", "/do"), operation.pop("method", "get")
    more = {key: operation.pop(key) for key in ("servers", "components", "openapi") if key in operation}
    return {
        "openapi": "3.1.0",
        "info": {"title": "t", "version": "1"},
        "paths": {path: {method: {"operationId": "do", **operation}}},
        **more,
    }


async def tools_of(server: Server) -> dict[str, Tool]:
    async with open_memory(server) as client:
        return {tool.name: tool async for tool in client.list_tools()}


def everything(_: APIOperation) -> bool:
    return True


HTTP = httpx2.AsyncClient(base_url="https://api.test/")


async def test_from_openapi_creates_tools_only_for_the_selected_operations() -> None:
    for asked, names in (
        (["listPets", "GET /pets/{id}"], ["listPets", "get_pets_id"]),
        (lambda operation: "pets" in operation.tags, ["listPets"]),
        (lambda operation: operation.method == "GET" and operation.path.startswith("/pets/"), ["get_pets_id"]),
        ([], []),
    ):
        assert list(await tools_of(from_openapi(PETS, http=HTTP, operations=asked))) == names


async def test_tags_of_openapi_operations_become_tags_of_their_tools() -> None:
    server = from_openapi(PETS, http=HTTP, operations=everything)
    server.disable("pets")
    assert "listPets" not in await tools_of(server)


async def test_from_openapi_with_an_unknown_operation_name_raises_value_error() -> None:
    with pytest.raises(ValueError, match=r"no operation 'POST /dogs', 'listpets'"):
        from_openapi(PETS, http=HTTP, operations=["listpets", "POST /dogs", "drop"])


async def test_openapi_tools_have_valid_names_and_annotations_that_fit_their_http_methods() -> None:
    tools = await tools_of(from_openapi(PETS, http=HTTP, operations=everything))
    assert set(tools) == {"listPets", "add_pet", "get_pets_id", "drop", "change"}
    hints = {name: tool.annotations for name, tool in tools.items()}
    assert hints["listPets"] is not None
    assert hints["listPets"].read_only_hint
    assert hints["drop"] is not None
    assert hints["drop"].destructive_hint
    assert hints["change"] is not None
    assert (hints["change"].read_only_hint, hints["change"].idempotent_hint) == (False, True)
    assert tools["listPets"].description == "All pets."
    assert tools["drop"].description == "Deprecated."


async def test_openapi_operations_with_similar_ids_become_tools_with_different_names() -> None:
    same: dict[str, Any] = {
        "openapi": "3.0.0",
        "paths": {"/a": {"get": {"operationId": "a.b"}}, "/b": {"get": {"operationId": "a b"}}, "/a.b": {"get": {}}},
    }
    assert list(await tools_of(from_openapi(same, http=HTTP, operations=everything))) == ["a_b", "a_b_2", "get_a_b"]


@pytest.mark.parametrize(("length", "kept"), [(64, 64), (65, 64)])
async def test_openapi_tool_name_has_at_most_64_characters(length: int, kept: int) -> None:
    paths = {f"/{number}": {"get": {"operationId": "a" * length + end}} for number, end in enumerate(("", "."))}
    described: dict[str, Any] = {"openapi": "3.0.0", "paths": paths}
    names = list(await tools_of(from_openapi(described, http=HTTP, operations=everything)))
    assert names == ["a" * kept, "a" * 56 + "_2"]


async def test_openapi_3_0_schemas_omit_read_only_properties_in_requests_and_write_only_ones_in_responses() -> None:
    tools = await tools_of(from_openapi(PETS, http=HTTP, operations=everything))
    assert tools["listPets"].input_schema["properties"]["limit"] == {"type": "integer", "exclusiveMinimum": 0}
    sent = tools["add_pet"].input_schema["$defs"]["Pet"]
    assert sent["required"] == ["name", "secret"]
    assert set(sent["properties"]) == {"name", "secret", "mother"}
    assert sent["properties"]["name"] == {"type": ["string", "null"], "examples": ["Rex"]}
    assert sent["properties"]["mother"] == {"$ref": "#/$defs/Pet"}
    given = tools["get_pets_id"].output_schema
    assert given is not None
    assert given["anyOf"][0]["required"] == ["id", "name"]


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_openapi_tool_call_sends_an_http_request_and_returns_the_api_response(era: Any) -> None:
    async with open_api(Answer(body=b'[{"id": 1, "name": null}]'), base="/v1") as api:
        server = from_openapi(PETS, http=api.http, operations=everything)
        async with open_memory(server, era=era) as client:
            result = await client.call_tool("listPets", {"limit": 2, "tags": ["a&b", "c d"]})
            assert result.structured_content == {"result": [{"id": 1, "name": None}]}
            assert result.text == '[{"id":1,"name":null}]'
            await client.call_tool("add_pet", {"body": {"name": "Rex", "secret": "s"}})
    first, second = api.seen
    assert (first.method, first.target) == ("GET", "/v1/pets?limit=2&tags=a%26b&tags=c%20d")
    assert (second.method, second.target, second.body) == ("POST", "/v1/pets", b'{"name":"Rex","secret":"s"}')
    assert second.headers["content-type"] == "application/json"


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_cancelled_call_of_an_openapi_tool_closes_the_http_request_to_the_api(era: Any) -> None:
    begun = trio.Event()

    async def wait(_: Seen) -> Answer:
        begun.set()
        await trio.sleep_forever()
        raise AssertionError

    async with open_api(wait) as api:
        server = from_openapi(document(), http=api.http, operations=["do"])
        async with open_memory(server, era=era) as client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "do")
                await begun.wait()
                nursery.cancel_scope.cancel()
            with trio.fail_after(PATIENCE):
                await api.left.wait()


async def test_timeout_of_an_openapi_tool_ends_its_http_request(autojump_clock: trio.testing.MockClock) -> None:
    ended = trio.Event()

    async def wait(_: httpx2.Request) -> httpx2.Response:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()
        raise AssertionError

    async with httpx2.AsyncClient(base_url="https://api.test", transport=httpx2.MockTransport(wait)) as http:
        server = from_openapi(document(), http=http, operations=["do"], options=lambda _: {"timeout": 5})
        async with open_memory(server) as client:
            result = await client.call_tool("do")
    assert (result.is_error, result.text) == (True, "do took longer than its limit of 5 seconds")
    assert ended.is_set()


SHADOWED: dict[str, Any] = {
    "openapi": "3.0.0",
    "paths": {
        "/admin": {"delete": {"operationId": "GET /pets"}},
        "/pets": {"get": {"operationId": "list"}},
        "/all": {"get": {"operationId": "twice"}, "put": {"operationId": "twice"}},
    },
}


async def test_operation_selected_by_method_and_path_is_never_found_by_an_equal_operation_id() -> None:
    server = from_openapi(SHADOWED, http=HTTP, operations=["GET /pets"])
    assert list(await tools_of(server)) == ["list"]
    with pytest.raises(ValueError, match=r"no operation 'GET /dogs'"):
        from_openapi(
            {"openapi": "3.0.0", "paths": {"/admin": {"delete": {"operationId": "GET /dogs"}}}},
            http=HTTP,
            operations=["GET /dogs"],
        )


async def test_from_openapi_raises_if_a_selected_operation_id_occurs_twice() -> None:
    with pytest.raises(ValueError, match=r"'twice' twice: write 'GET /all' or 'PUT /all' instead"):
        from_openapi(SHADOWED, http=HTTP, operations=["list", "twice"])
    assert list(await tools_of(from_openapi(SHADOWED, http=HTTP, operations=["PUT /all"]))) == ["twice_2"]
    assert list(await tools_of(from_openapi(SHADOWED, http=HTTP, operations=["list", "GET /pets"]))) == ["list"]


async def test_from_openapi_with_operations_that_are_not_strings_raises_type_error() -> None:
    with pytest.raises(TypeError, match="operations must be strings or a function"):
        from_openapi(PETS, http=HTTP, operations=[None])  # type: ignore[list-item]


async def test_openapi_tool_keeps_cookies_set_by_the_api_only_during_the_call() -> None:
    async def answer(seen: Seen) -> Answer:
        if seen.target == "/do":
            return Answer(302, headers={"set-cookie": "hop=1", "location": "/there"})
        return Answer(body=b"{}", headers={"set-cookie": "session=ann; Path=/"})

    async with open_api(answer, cookies={"key": "author"}, follow_redirects=True) as api:
        server = from_openapi(document(), http=api.http, operations=["do"])
        async with open_memory(server) as client:
            await client.call_tool("do")
            await client.call_tool("do")
        assert dict(api.http.cookies) == {"key": "author"}
        assert [seen.headers["cookie"] for seen in api.seen] == ["key=author", "key=author; hop=1"] * 2
        api.http.cookies.set("key", "changed")
        async with open_memory(server) as client:
            await client.call_tool("do")
        assert api.seen[-2].headers["cookie"] == "key=changed"


def test_openapi_operations_are_hashable() -> None:
    seen = set[APIOperation]()
    from_openapi(PETS, http=HTTP, operations=lambda operation: bool(seen.add(operation)))
    assert {operation.id for operation in seen} == {"listPets", "add pet!", None, "drop", "change"}
