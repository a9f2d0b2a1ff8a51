"""API answers become bounded results that reveal nothing of the server's internals."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import jsonschema_rs
import pytest
import trio
from tests.openapi.api import Answer, Seen, open_api
from tests.openapi.test_from_openapi import document, everything
from tests.openapi.test_requests import called

from trio_mcp import from_openapi, open_memory
from trio_mcp.openapi.responses import _CHARSETS
from trio_mcp.types import AudioContent, BlobResourceContents, EmbeddedResource, ImageContent, TextContent


def answering(schema: Any, *others: str) -> dict[str, Any]:
    content = {"content": {"application/json": {"schema": schema}}}
    return document(responses={"200": content, **{status: {"description": ""} for status in others}})


async def answered(answer: Answer, described: Any = None, **options: Any) -> Any:
    async with open_api(answer) as api:
        return await called(api, described or document(), {}, **options)


async def test_json_api_response_without_a_schema_becomes_structured_content_if_it_is_an_object() -> None:
    result = await answered(Answer(body=b' {"a": [1]}', kind="application/problem+json; charset=utf-8"))
    assert (result.structured_content, result.text) == ({"a": [1]}, '{"a":[1]}')
    result = await answered(Answer(body=b"[1]"))
    assert (result.structured_content, result.text) == (None, "[1]")


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[" * 5000 + b"]" * 5000, b'{"a": 1e999}', b"[" * 300 + b"]" * 300])
async def test_api_response_with_invalid_json_becomes_text(body: bytes) -> None:
    result = await answered(Answer(body=body))
    assert not result.is_error
    assert result.text == body.decode("utf-8", "replace")


async def test_text_image_audio_and_binary_api_responses_become_content_blocks() -> None:
    assert (await answered(Answer(body="ü".encode("latin-1"), kind="text/plain; charset=latin-1"))).text == "ü"
    assert (await answered(Answer(body=b"a\xff", kind="text/csv; charset=nonsense"))).text == "a�"
    data = base64.b64encode(b"\0\1").decode()
    assert (await answered(Answer(body=b"\0\1", kind="image/png"))).content == [ImageContent(data, "image/png")]
    assert (await answered(Answer(body=b"\0\1", kind="audio/wav"))).content == [AudioContent(data, "audio/wav")]
    (block,) = (await answered(Answer(body=b"\0\1", kind="application/pdf"))).content
    assert block == EmbeddedResource(BlobResourceContents("openapi:do", data, "application/pdf"))
    (block,) = (await answered(Answer(body=b"\0\1", kind="x" * 1000))).content
    assert block.resource.mime_type == "application/octet-stream"
    assert (await answered(Answer(204))).text == "204 No Content"


LARGER = "200 OK, and the answer is larger than 1,000 bytes; this is its beginning: ask for less"


async def test_too_large_api_response_is_truncated_even_if_it_is_compressed() -> None:
    result = await answered(Answer(body=b"x" * 1001, kind="text/plain"), max_bytes=1000)
    assert (result.is_error, result.content) == (None, [TextContent("x" * 1000), TextContent(LARGER)])
    bomb = Answer(body=gzip.compress(b"x" * 50_000_000), kind="text/plain", headers={"content-encoding": "gzip"})
    assert (await answered(bomb, max_bytes=1000)).content == result.content
    fine = Answer(body=gzip.compress(b"x" * 1000), kind="text/plain", headers={"content-encoding": "gzip"})
    assert (await answered(fine, max_bytes=1000)).text == "x" * 1000


GZIP = gzip.compress(b"x" * 1000, mtime=0)  # the names of tests must not depend on the time


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "identity, GZIP", "deflate"])
async def test_compressed_api_response_is_decompressed(coding: str) -> None:
    packed = zlib.compress(b"x" * 1000) if coding == "deflate" else GZIP
    result = await answered(Answer(body=packed, kind="text/plain", headers={"content-encoding": coding}))
    assert (result.is_error, result.text) == (None, "x" * 1000)


@pytest.mark.parametrize("coding", ["gzip, gzip", "gzip,gzip,gzip", "deflate, gzip", "br", "zstd", "gzip, aws-chunked"])
async def test_api_response_with_an_unaccepted_content_encoding_is_not_read(coding: str) -> None:
    bomb = gzip.compress(gzip.compress(gzip.compress(bytes(1 << 24))))
    result = await answered(Answer(200, bomb, "text/plain", {"content-encoding": coding}))
    assert (result.is_error, result.text) == (None, "200 OK, and the body has a content coding other than gzip")
    result = await answered(Answer(500, bomb, "text/plain", {"content-encoding": coding}))
    assert (result.is_error, result.text) == (True, "500 Internal Server Error")


@pytest.mark.parametrize("body", [GZIP[:-9], GZIP[:5], GZIP + GZIP, GZIP + b"x", b"no gzip", b"\0" * 100_000])
async def test_damaged_compressed_api_response_is_replaced_by_an_explanatory_text(body: bytes) -> None:
    result = await answered(Answer(body=body, kind="text/plain", headers={"content-encoding": "gzip"}))
    assert (result.is_error, result.text) == (None, "200 OK, and the body is incomplete or damaged")


async def test_other_tasks_run_while_an_api_response_is_decompressed() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    stream = gzip.compress(bytes(20_000_000))  # which a socket brings in one piece
    packed = httpx2.MockTransport(
        lambda _: httpx2.Response(200, headers={"content-encoding": "gzip"}, stream=OnePiece(stream))
    )
    async with (
        httpx2.AsyncClient(base_url="https://api.test", transport=packed) as http,
        trio.open_nursery() as nursery,
    ):
        server = from_openapi(document(), http=http, operations=["do"], max_bytes=20_000_000)
        async with open_memory(server) as client:
            nursery.start_soon(count)
            await client.call_tool("do")
        nursery.cancel_scope.cancel()
    assert turns > 20_000_000 >> 16


class OnePiece(httpx2.AsyncByteStream):
    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._body


@pytest.mark.parametrize("turns", range(12))
async def test_openapi_call_cancelled_at_any_checkpoint_of_the_response_leaves_no_connection_open(turns: int) -> None:
    packed = Answer(body=gzip.compress(bytes(900_000)), headers={"content-encoding": "gzip"})
    async with (
        open_api(packed) as api,
        open_memory(from_openapi(document(), http=api.http, operations=["do"])) as client,
    ):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "do")
            while not api.seen:
                await trio.lowlevel.checkpoint()
            for _ in range(2**turns >> 2):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert (await client.call_tool("do")).text == "\0" * 900_000  # on a connection that can be used


async def test_endless_api_response_is_truncated_at_the_size_limit() -> None:
    pieces = 0

    class Endless(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            nonlocal pieces
            while not self.is_closed:
                pieces += 1
                yield pack.compress(bytes(1 << 20)) + pack.flush(zlib.Z_SYNC_FLUSH)
            raise httpx2.ReadError("closed")

        is_closed = False

        async def aclose(self) -> None:
            self.is_closed = True

    pack = zlib.compressobj()
    endless = httpx2.MockTransport(
        lambda _: httpx2.Response(200, headers={"content-encoding": "deflate"}, stream=Endless())
    )
    async with httpx2.AsyncClient(base_url="https://api.test", transport=endless) as http:
        server = from_openapi(document(), http=http, operations=["do"], max_bytes=5 << 20)
        async with open_memory(server) as client:
            result = await client.call_tool("do")
    assert result.text == LARGER.replace("1,000", "5,242,880")
    assert pieces == 6


@pytest.mark.parametrize(
    "name", ["idna", "punycode", "undefined", "utf-7", "unicode_escape", "hex", "rot13", "ü", "x" * 5000, "", "\\", '"']
)
async def test_api_response_in_an_unsupported_charset_is_decoded_as_utf8(name: str) -> None:
    stream = OnePiece(b"a\\n" * 1000)
    kind = [(b"content-type", b"text/plain; charset=" + name.encode())]
    answer = httpx2.MockTransport(lambda _: httpx2.Response(200, headers=kind, stream=stream))
    async with (
        httpx2.AsyncClient(base_url="https://api.test", transport=answer) as http,
        open_memory(from_openapi(document(), http=http, operations=["do"])) as client,
    ):
        result = await client.call_tool("do")
    assert (result.is_error, result.text) == (None, "a\\n" * 1000)


@pytest.mark.parametrize("name", sorted(_CHARSETS))
async def test_api_response_is_decoded_in_each_supported_charset(name: str) -> None:
    text = "a" if name != "utf_16" else "ab"
    answer = Answer(body=text.encode(name), kind=f"text/plain; charset={name.replace('_', '-')}")
    assert (await answered(answer)).text == text


async def test_api_response_body_that_an_event_hook_has_read_is_still_returned_as_result() -> None:
    async def read(response: httpx2.Response) -> None:
        await response.aread()

    async with open_api(Answer(body=b'{"a": 1}'), event_hooks={"response": [read]}) as api:
        assert (await called(api, document(), {})).structured_content == {"a": 1}
        assert (await called(api, document(), {}, max_bytes=3)).text.startswith('{"a')


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (Answer(404, b'{"detail": "no pet"}'), '404 Not Found: {"detail": "no pet"}'),
        (Answer(500, b"\0\1", "image/png"), "500 Internal Server Error"),
        (Answer(599, b""), "599"),
        (Answer(429, b"", headers={"retry-after": "7"}), "429 Too Many Requests (try again in 7 seconds)"),
        (Answer(503, b"", headers={"retry-after": "7" * 5000}), "503 Service Unavailable"),
    ],
)
async def test_api_response_with_http_status_400_or_higher_causes_a_tool_error(answer: Answer, text: str) -> None:
    result = await answered(answer, answering({"type": "object"}))
    assert (result.is_error, result.text) == (True, text)


async def test_body_of_an_http_error_is_truncated() -> None:
    result = await answered(Answer(400, b"x" * 5_000_000, "text/plain"))
    assert result.text == "400 Bad Request: " + "x" * 2000


DECLARED = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}


@pytest.mark.parametrize("schema", [DECLARED, {"type": "array", "items": DECLARED}, {"allOf": [DECLARED]}])
@pytest.mark.parametrize(
    ("answer", "texts"),
    [
        (Answer(204), ["204 No Content"]),
        (Answer(205), ["205 Reset Content"]),
        (Answer(304), ["304 Not Modified"]),
        (Answer(200), ["200 OK"]),
        (Answer(201, headers={"location": "/pets/1"}), ["201 Created"]),
        (
            Answer(202, b"later", "text/plain"),
            ["later", "202 Accepted, but the answer is not JSON, which the API declares"],
        ),
        (Answer(200, b"{", "application/json"), ["{", "200 OK, but the answer is not JSON, which the API declares"]),
        (Answer(200, b"1", "application/json"), ["1", "200 OK, but the answer differs from what the API declares: "]),
        (Answer(200, b'{"id":"x"}'), ['{"id":"x"}', "200 OK, but the answer differs from what the API declares: "]),
        (Answer(200, b"null"), ["null", "200 OK, but the answer differs from what the API declares: "]),
    ],
)
async def test_api_response_that_differs_from_the_declared_responses_becomes_text_with_an_explanation(
    schema: Any, answer: Answer, texts: list[str]
) -> None:
    async with open_api(answer) as api:
        server = from_openapi(answering(schema), http=api.http, operations=["do"])
        async with open_memory(server) as client:
            (tool,) = [tool async for tool in client.list_tools()]
            result = await client.call_tool("do")
    assert not result.is_error
    assert [block.text[: len(text)] for block, text in zip(result.content, texts, strict=True)] == texts
    assert result.structured_content == {"note": result.content[-1].text}
    assert tool.output_schema is not None
    jsonschema_rs.validate(tool.output_schema, result.structured_content)


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "", "application/vnd.x+json"])
@pytest.mark.parametrize("body", [b'{"id": 1}', b'\xef\xbb\xbf{"id": 1}'])
async def test_api_response_that_matches_its_schema_becomes_structured_content_whatever_its_content_type(
    kind: str, body: bytes
) -> None:
    result = await answered(Answer(200, body, kind), answering(DECLARED))
    assert (result.structured_content, result.text) == ({"id": 1}, '{"id":1}')


@pytest.mark.parametrize(
    ("failure", "note"),
    [
        (httpx2.ReadError("10.0.0.7"), "201 Created, and the body is incomplete or damaged"),
        (httpx2.ReadTimeout("10.0.0.7"), "201 Created, and the body did not arrive in time"),
    ],
)
async def test_incomplete_api_response_with_a_success_status_becomes_text_with_an_explanation(
    failure: Exception, note: str
) -> None:
    class Broken(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b'{"id"'
            raise failure

    broken = httpx2.MockTransport(lambda _: httpx2.Response(201, stream=Broken()))
    async with (
        httpx2.AsyncClient(base_url="https://api.test", transport=broken) as http,
        open_memory(from_openapi(answering(DECLARED), http=http, operations=["do"])) as client,
    ):
        result = await client.call_tool("do")
    assert (result.is_error, result.text, result.structured_content) == (None, note, {"note": note})


@pytest.mark.parametrize(
    ("schema", "is_wrapped"),
    [
        ({"allOf": [{"properties": {"a": {}}}, {"required": ["a"]}]}, False),
        ({"oneOf": [{"type": "object"}, {"$ref": "#/components/schemas/O"}]}, False),
        ({"$ref": "#/components/schemas/O"}, False),
        ({"anyOf": [{"type": "object"}, {"type": "string"}]}, True),
        ({"type": "string"}, True),
        ({"enum": [1]}, True),
    ],
)
async def test_output_schema_wraps_only_api_response_schemas_that_are_not_objects(
    schema: Any, is_wrapped: bool
) -> None:
    described = answering(schema) | {"components": {"schemas": {"O": {"type": "object", "properties": {"a": {}}}}}}
    async with open_api(Answer(body=b'{"a": 1}')) as api:
        result = await called(api, described, {})
        server = from_openapi(described, http=api.http, operations=["do"])
    async with open_memory(server) as client:
        (tool,) = [tool async for tool in client.list_tools()]
    assert tool.output_schema is not None
    assert ("result" in tool.output_schema["anyOf"][0].get("properties", {})) is is_wrapped
    assert tool.output_schema["anyOf"][0]["type"] == "object"
    if not is_wrapped:
        assert result.structured_content == {"a": 1}


@pytest.mark.parametrize(
    ("schema", "others", "has"),
    [
        ({"type": "object"}, (), True),
        ({"type": "array"}, ("404", "default"), True),
        ({"type": "object"}, ("204",), False),
        ({}, (), False),
        (True, (), False),
    ],
)
async def test_openapi_tool_has_an_output_schema_only_if_all_successful_responses_have_a_schema(
    schema: Any, others: tuple[str, ...], has: bool
) -> None:
    async with open_api() as api:
        server = from_openapi(answering(schema, *others), http=api.http, operations=everything)
        async with open_memory(server) as client:
            (tool,) = [tool async for tool in client.list_tools()]
    assert (tool.output_schema is not None) is has


async def test_event_hook_that_raises_for_an_http_status_causes_a_tool_error_with_the_status() -> None:
    async def refuse(response: httpx2.Response) -> None:
        response.raise_for_status()

    async with open_api(Answer(403, b"secret"), event_hooks={"response": [refuse]}) as api:
        result = await called(api, document(), {})
    assert (result.is_error, result.text) == (True, "403 Forbidden")


async def test_api_response_to_a_head_request_has_no_body() -> None:
    described = answering({"type": "object"})
    described["paths"]["/do"]["head"] = described["paths"]["/do"].pop("get")
    async with open_api() as api:
        assert (await called(api, described, {})).text == "200 OK"


@pytest.mark.parametrize("follows", [True, False])
async def test_openapi_tool_follows_redirects_only_within_the_origin_of_the_api(follows: bool) -> None:
    async def answer(seen: Seen) -> Answer:
        return Answer(307, headers={"location": "/there"}) if seen.target == "/do" else Answer(body=b"{}")

    async with open_api() as elsewhere, open_api(answer, follow_redirects=follows, headers={"x-key": "secret"}) as api:
        result = await called(api, document(), {})
        assert [seen.target for seen in api.seen] == (["/do", "/there"] if follows else ["/do"])
        assert result.is_error is (not follows or None)

        async def leave(_: Seen) -> Answer:
            return Answer(302, headers={"location": elsewhere.url + "/steal"})

        async with open_api(leave, follow_redirects=follows, headers={"x-key": "secret"}) as api:
            result = await called(api, document(), {})
            assert result.text == "302 Found: the API redirects, and the redirect is not followed"
        assert elsewhere.seen == []


async def test_endless_redirects_of_the_api_cause_a_tool_error() -> None:
    async with open_api(Answer(302, headers={"location": "/do"}), follow_redirects=True) as api:
        assert (await called(api, document(), {})).is_error
    assert len(api.seen) == 6


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (httpx2.ConnectError("10.0.0.7 is internal"), "the API is unavailable, or sent an invalid answer"),
        (httpx2.ReadTimeout("10.0.0.7 is internal"), "the API did not answer in time"),
    ],
)
async def test_network_failure_of_an_openapi_tool_is_reported_without_internal_addresses(
    failure: Exception, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: httpx2.Request) -> httpx2.Response:
        raise failure

    async with httpx2.AsyncClient(base_url="http://internal", transport=httpx2.MockTransport(fail)) as http:
        server = from_openapi(document(), http=http, operations=["do"])
        async with open_memory(server) as client:
            result = await client.call_tool("do")
    assert (result.is_error, result.text) == (True, text)
    assert "10.0.0.7" not in json.dumps(result.text)
