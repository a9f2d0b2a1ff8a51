"""Arguments of a call become an HTTP request, and can't change other parts of it."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from tests.openapi.api import API, open_api
from tests.openapi.test_from_openapi import HTTP, document, everything, tools_of

from trio_mcp import from_openapi, open_memory
from trio_mcp.types import CallToolResult


async def called(api: API, described: dict[str, Any], arguments: dict[str, Any], **options: Any) -> CallToolResult:
    server = from_openapi(described, http=api.http, operations=everything, **options)
    async with open_memory(server) as client:
        return await client.call_tool("do", arguments)


def parameter(place: str, name: str = "p", schema: Any = True, **more: Any) -> dict[str, Any]:
    path = f"/do/{{{name}}}/end" if place == "path" else "/do"
    return document(path=path, parameters=[{"name": name, "in": place, "schema": schema, **more}])


LIST, OBJECT = ["a", "b,c"], {"r": 1, "g": "x y"}


@pytest.mark.parametrize(
    ("place", "said", "value", "sent"),
    [
        ("path", {}, "a b", "/do/a%20b/end"),
        ("path", {}, LIST, "/do/a,b%2Cc/end"),
        ("path", {}, OBJECT, "/do/r,1,g,x%20y/end"),
        ("path", {"explode": True}, OBJECT, "/do/r=1,g=x%20y/end"),
        ("path", {"style": "label", "explode": True}, LIST, "/do/.a.b%2Cc/end"),
        ("path", {"style": "label"}, "v", "/do/.v/end"),
        ("path", {"style": "matrix"}, LIST, "/do/;p=a,b%2Cc/end"),
        ("path", {"style": "matrix", "explode": True}, LIST, "/do/;p=a;p=b%2Cc/end"),
        ("query", {}, LIST, "/do?p=a&p=b%2Cc"),
        ("query", {"explode": False}, LIST, "/do?p=a,b%2Cc"),
        ("query", {"style": "spaceDelimited", "explode": False}, LIST, "/do?p=a%20b%2Cc"),
        ("query", {"style": "pipeDelimited", "explode": False}, LIST, "/do?p=a%7Cb%2Cc"),
        ("query", {}, OBJECT, "/do?r=1&g=x%20y"),
        ("query", {"explode": False}, OBJECT, "/do?p=r,1,g,x%20y"),
        (
            "query",
            {"style": "deepObject"},
            {"a": 1, "b": {"c": [1, 2]}},
            "/do?p%5Ba%5D=1&p%5Bb%5D%5Bc%5D=1&p%5Bb%5D%5Bc%5D=2",
        ),
        ("query", {}, [], "/do"),
        ("query", {}, None, "/do"),
        ("query", {}, True, "/do?p=true"),
        ("query", {}, 1.5, "/do?p=1.5"),
        ("query", {}, "a/b?c&d=e#f%2F", "/do?p=a%2Fb%3Fc%26d%3De%23f%252F"),
        ("query", {"allowReserved": True}, "a/b?c&d=e#f%2F", "/do?p=a/b?c%26d%3De%23f%252F"),
        ("query", {"content": {"application/json": {}}}, {"a": [1]}, "/do?p=%7B%22a%22%3A%5B1%5D%7D"),
    ],
)
async def test_openapi_parameter_is_written_into_the_url_in_its_declared_style(
    place: str, said: Any, value: Any, sent: str
) -> None:
    async with open_api() as api:
        result = await called(api, parameter(place, **said), {"p": value})
        assert not result.is_error, result.text
    assert [seen.target for seen in api.seen] == [sent]


@pytest.mark.parametrize(
    ("value", "sent"),
    [("a/b", "a%2Fb"), ("?q=1#f", "%3Fq%3D1%23f"), ("%2e%2e", "%252e%252e"), ("a\r\nb", "a%0D%0Ab"), ("...", "...")],
)
async def test_openapi_path_parameter_is_written_as_one_path_segment(value: str, sent: str) -> None:
    async with open_api() as api:
        await called(api, parameter("path"), {"p": value})
    assert [seen.target for seen in api.seen] == [f"/do/{sent}/end"]


@pytest.mark.parametrize(
    "value", ["..", ".", "../admin", "a/../../b", "..\\admin", "a/.", "..;x", "", [], ["..", "x/.."]]
)
async def test_openapi_path_parameter_that_would_leave_the_path_is_refused(value: Any) -> None:
    async with open_api() as api:
        result = await called(api, parameter("path"), {"p": value})
    assert result.is_error
    assert result.text.startswith("Invalid arguments for do: p ")
    assert api.seen == []


async def test_openapi_path_parameters_that_together_could_form_a_dot_segment_are_refused() -> None:
    described = document(
        path="/x/{a}{b}/end", parameters=[{"name": name, "in": "path", "schema": {"type": "string"}} for name in "ab"]
    )
    async with open_api() as api:
        result = await called(api, described, {"a": ".", "b": "x"})
        assert result.is_error
        described["paths"]["/x/.{a}/end"] = described["paths"].pop("/x/{a}{b}/end")
        result = await called(api, described, {"a": "\u200b", "b": "x"})
        assert not result.is_error
    assert [seen.target for seen in api.seen] == ["/x/.%E2%80%8B/end"]


async def test_openapi_header_and_cookie_parameters_cannot_inject_other_headers() -> None:
    described = document(
        parameters=[
            {"name": "X-List", "in": "header", "schema": True},
            {"name": "c", "in": "cookie", "schema": True},
            {"name": "Host", "in": "header", "schema": True},
            {"name": "Authorization", "in": "header", "schema": True},
        ]
    )
    async with open_api() as api:
        await called(api, described, {"X-List": ["a", 2], "c": "1; d=2"})
        assert (api.seen[0].headers["x-list"], api.seen[0].headers["cookie"]) == ("a,2", "c=1%3B%20d%3D2")
        for value in ("a\r\nEvil: 1", "a\0", "a\x7f"):
            assert (await called(api, described, {"X-List": value})).is_error
        for name in ("Host", "Authorization"):
            assert "Additional properties" in (await called(api, described, {name: "evil"})).text
    assert len(api.seen) == 1


async def test_openapi_parameters_that_the_http_client_sets_are_not_tool_arguments() -> None:
    described = document(
        parameters=[
            {"name": "key", "in": "query", "required": True, "schema": True},
            {"name": "x-key", "in": "header", "required": True, "schema": True},
            {"name": "all", "in": "query", "schema": {"type": "object"}},
        ]
    )
    async with open_api(params={"key": "own"}, headers={"X-Key": "own"}) as api:
        await called(api, described, {"all": {"key": "theirs", "a": "b"}})
    assert api.seen[0].headers["x-key"] == "own"
    assert api.seen[0].target == "/do?a=b&key=own"


async def test_openapi_parameters_with_one_name_in_query_path_and_headers_become_separate_arguments() -> None:
    places = ("cookie", "header", "query", "path")
    described = document(
        path="/do/{id}",
        method="post",
        parameters=[
            *({"name": "id", "in": place, "required": True, "schema": {"type": "string"}} for place in places),
            {"name": "body", "in": "query", "schema": {"type": "string"}},
            {"name": "filter[name]", "in": "query", "schema": {"type": "string"}},
        ],
        requestBody={"content": {"application/json": {"schema": {"type": "object"}}}},
    )
    tools = await tools_of(from_openapi(described, http=HTTP, operations=["do"]))
    names = ["id", "id_query", "body", "filter_name", "id_header", "id_cookie", "body_body"]
    assert list(tools["do"].input_schema["properties"]) == names
    async with open_api() as api:
        given = {"id": "1", "id_query": "2", "id_header": "3", "id_cookie": "4", "body": "5", "body_body": {"id": "6"}}
        await called(api, described, given | {"filter_name": "7"})
    (seen,) = api.seen
    assert seen.target == "/do/1?id=2&body=5&filter%5Bname%5D=7"
    assert (seen.headers["id"], seen.headers["cookie"], seen.body) == ("3", "id=4", b'{"id":"6"}')


FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "tags": {"type": "array"},
        "file": {"type": "string", "format": "binary"},
    },
}


def posting(kind: str, schema: Any = True, **more: Any) -> dict[str, Any]:
    return document(method="post", requestBody={"content": {kind: {"schema": schema, **more}}})


@pytest.mark.parametrize(
    ("described", "body", "kind", "sent"),
    [
        (posting("application/merge-patch+json"), [1], "application/merge-patch+json", b"[1]"),
        (
            posting("application/x-www-form-urlencoded", FORM),
            {"name": "a&b=c", "tags": [1, 2], "o": {"x": 1}},
            "application/x-www-form-urlencoded",
            b"name=a%26b%3Dc&tags=1&tags=2&o=%7B%22x%22%3A1%7D",
        ),
        (
            posting("application/x-www-form-urlencoded", FORM, encoding={"tags": {"explode": False}}),
            {"tags": [1, 2]},
            "application/x-www-form-urlencoded",
            b"tags=1,2",
        ),
        (posting("text/plain"), "ü", "text/plain", "ü".encode()),
        (
            posting("application/octet-stream"),
            base64.b64encode(b"\0\xff").decode(),
            "application/octet-stream",
            b"\0\xff",
        ),
        (posting("*/*"), "", "application/octet-stream", b""),
    ],
)
async def test_openapi_request_body_is_sent_in_its_declared_media_type(
    described: Any, body: Any, kind: str, sent: bytes
) -> None:
    async with open_api() as api:
        result = await called(api, described, {"body": body})
        assert not result.is_error, result.text
    assert (api.seen[0].headers["content-type"], api.seen[0].body) == (kind, sent)


async def test_openapi_form_with_files_is_sent_as_multipart() -> None:
    described = posting("multipart/form-data", FORM)
    tools = await tools_of(from_openapi(described, http=HTTP, operations=["do"]))
    file = tools["do"].input_schema["properties"]["body"]["properties"]["file"]
    assert file == {"type": "string", "contentEncoding": "base64"}
    async with open_api() as api:
        given = {"name": 'a"\r\nb', "tags": [{"x": 1}, "t"], "file": base64.b64encode(b"\0\xff").decode()}
        await called(api, described, {"body": given})
        assert (await called(api, described, {"body": {"file": "no base64"}})).text.endswith(
            "file must be valid base64"
        )
    (seen,) = api.seen
    assert seen.headers["content-type"].startswith("multipart/form-data; boundary=")
    assert b'name="file"; filename="file"\r\nContent-Type: application/octet-stream\r\n\r\n\0\xff\r\n' in seen.body
    assert b'name="tags"\r\nContent-Type: application/json\r\n\r\n{"x":1}\r\n' in seen.body
    assert b'name="name"\r\nContent-Type: text/plain; charset=utf-8\r\n\r\na"\r\nb\r\n' in seen.body


async def test_caller_of_an_openapi_tool_can_set_the_file_name_of_a_form_file() -> None:
    many = {"type": "array", "items": {"type": "string", "format": "binary"}}
    described = posting("multipart/form-data", {"type": "object", "properties": FORM["properties"] | {"more": many}})
    tools = await tools_of(from_openapi(described, http=HTTP, operations=["do"]))
    properties = tools["do"].input_schema["properties"]["body"]["properties"]
    assert properties["file_filename"] == {"type": "string", "description": "File name of file."}
    assert properties["more_filename"]["items"] == {"type": "string"}
    data = base64.b64encode(b"\0\xff").decode()
    async with open_api() as api:
        body = {"file": data, "file_filename": 'a"\r\n.png', "more": [data, data], "more_filename": ["x.txt"]}
        assert not (await called(api, described, {"body": body})).is_error
    (seen,) = api.seen
    assert b'name="file"; filename="a%22%0D%0A.png"\r\nContent-Type: image/png\r\n' in seen.body
    assert b'name="more"; filename="x.txt"\r\nContent-Type: text/plain\r\n' in seen.body
    assert b'name="more"; filename="more"\r\nContent-Type: ' in seen.body
    assert b"file_filename" not in seen.body


async def test_openapi_request_body_with_several_media_types_is_sent_as_json_if_possible() -> None:
    kinds = ("application/xml", "multipart/form-data", "application/json; charset=utf-8", "application/vnd.x+json")
    described = document(method="post", requestBody={"content": {kind: {"schema": True} for kind in kinds}})
    async with open_api() as api:
        await called(api, described, {"body": {}})
        await called(api, described, {})
    assert api.seen[0].headers["content-type"] == "application/json"
    assert "content-type" not in api.seen[1].headers


async def test_invalid_arguments_of_an_openapi_tool_send_no_http_request() -> None:
    described = parameter("query", schema={"type": "integer"}, required=True)
    async with open_api() as api:
        for arguments in ({}, {"p": "x"}, {"p": 1, "q": 2}):
            assert (await called(api, described, arguments)).is_error
    assert api.seen == []


async def test_openapi_call_whose_url_is_too_long_gets_an_invalid_arguments_error() -> None:
    async with open_api() as api:
        result = await called(api, parameter("query"), {"p": "x" * 100_000})
    assert result.text == "Invalid arguments for do: the URL would be invalid or too long"


def serving(*urls: Any, **more: Any) -> dict[str, Any]:
    return document(servers=[url if isinstance(url, dict) else {"url": url} for url in urls], **more)


VARIABLES = {"url": "/{version}/{area}", "variables": {"version": {"default": "v1", "enum": ["v1", "v2"]}, "area": {}}}


@pytest.mark.parametrize(
    ("described", "base", "sent"),
    [
        (document(), "/base", "/base/do"),
        (serving("/v1"), "/base", "/v1/do"),
        (serving("v1/"), "/base", "/base/v1/do"),
        (serving("."), "/base", "/base/do"),
        (serving("https://else.test", "/v2?x=1#y"), "/", "/v2/do"),
        (serving(VARIABLES), "/", "/v2/eu%20west/do"),
        (document() | serving("https://else.test") | {"servers": []}, "/base", "/base/do"),
    ],
)
async def test_openapi_request_uses_only_the_path_of_the_server_url_in_the_document(
    described: Any, base: str, sent: str
) -> None:
    async with open_api(base=base) as api:
        await called(api, described, {}, variables={"version": "v2", "area": "eu west"})
    assert [seen.target for seen in api.seen] == [sent]


async def test_openapi_servers_of_an_operation_or_path_override_the_servers_of_the_document() -> None:
    described = document() | {"servers": [{"url": "/root"}]}
    item = described["paths"]["/do"]
    item["servers"] = [{"url": "/item"}]
    async with open_api() as api:
        await called(api, described, {})
        item["get"]["servers"] = [{"url": "/operation"}]
        await called(api, described, {})
    assert [seen.target for seen in api.seen] == ["/item/do", "/operation/do"]


@pytest.mark.parametrize(
    "url",
    ["https://else.test/v1", "//else.test", "http://api.test", "https://api.test:8443", "https://api.test@else.test"],
)
def test_openapi_operation_on_another_origin_is_refused_if_it_is_not_allowed(url: str) -> None:
    with pytest.raises(ValueError, match=r"GET /do: the document has this operation at .*: document\.pop\('servers'\)"):
        from_openapi(serving(url), http=HTTP, operations=["do"])
    origin = HTTP.base_url.join(url)
    from_openapi(serving(url), http=HTTP, operations=["do"], origins=[f"{origin.scheme}://{origin.netloc.decode()}"])


@pytest.mark.parametrize(
    ("variables", "words"),
    [({}, "'area' has no value"), ({"area": "x", "version": "v3"}, "must be one of .*, not 'v3'")],
)
def test_openapi_server_variable_without_a_valid_value_raises_value_error(
    variables: dict[str, str], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        from_openapi(serving(VARIABLES), http=HTTP, operations=["do"], variables=variables)


@pytest.mark.parametrize("place", ["document", "path", "operation"])
async def test_error_for_an_openapi_server_at_another_origin_suggests_a_valid_correction(place: str) -> None:
    described = document()
    item = described["paths"]["/do"]
    {"document": described, "path": item, "operation": item["get"]}[place]["servers"] = [{"url": "https://else.test"}]
    with pytest.raises(ValueError, match="to call the server of http instead") as caught:
        from_openapi(described, http=HTTP, operations=["do"])
    eval(str(caught.value).rpartition("run: ")[2], {"document": described})
    async with open_api() as api:
        assert not (await called(api, described, {})).is_error
