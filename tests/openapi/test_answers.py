"""What an API answers is a result that is bounded, and tells nothing of the author's side."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import httpx2
import pytest
from tests.openapi.api import Answer, Seen, open_api
from tests.openapi.test_from_openapi import document, everything
from tests.openapi.test_requests import called

from trio_mcp import AudioContent, BlobResourceContents, EmbeddedResource, ImageContent, from_openapi, open_memory


def answering(schema: Any, *others: str) -> dict[str, Any]:
    content = {"content": {"application/json": {"schema": schema}}}
    return document(responses={"200": content, **{status: {"description": ""} for status in others}})


async def answered(answer: Answer, described: Any = None, **options: Any) -> Any:
    async with open_api(answer) as api:
        return await called(api, described or document(), {}, **options)


async def test_json_without_a_schema_is_structured_when_it_is_an_object() -> None:
    result = await answered(Answer(body=b' {"a": [1]}', kind="application/problem+json; charset=utf-8"))
    assert (result.structured_content, result.text) == ({"a": [1]}, '{"a":[1]}')
    result = await answered(Answer(body=b"[1]"))
    assert (result.structured_content, result.text) == (None, "[1]")


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[" * 5000 + b"]" * 5000, b'{"a": 1e999}', b"[" * 300 + b"]" * 300])
async def test_json_that_cannot_be_sent_on_is_text(body: bytes) -> None:
    result = await answered(Answer(body=body))
    assert not result.is_error
    assert result.text == body.decode("utf-8", "replace")


async def test_text_images_sound_and_bytes_are_content() -> None:
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


async def test_an_answer_that_is_too_large_is_an_error_also_when_it_is_compressed() -> None:
    assert (await answered(Answer(body=b"x" * 1001, kind="text/plain"), max_bytes=1000)).text == (
        "200 OK, and the answer is larger than 1,000 bytes: ask for less"
    )
    bomb = Answer(body=gzip.compress(b"x" * 50_000_000), kind="text/plain", headers={"content-encoding": "gzip"})
    assert (await answered(bomb)).is_error
    fine = Answer(body=gzip.compress(b"x" * 1000), kind="text/plain", headers={"content-encoding": "gzip"})
    assert (await answered(fine, max_bytes=1000)).text == "x" * 1000


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
async def test_a_status_from_400_on_is_an_error_of_the_tool(answer: Answer, text: str) -> None:
    result = await answered(answer, answering({"type": "object"}))
    assert (result.is_error, result.text) == (True, text)


async def test_of_the_body_of_an_error_the_beginning_is_told() -> None:
    result = await answered(Answer(400, b"x" * 5_000_000, "text/plain"))
    assert result.text == "400 Bad Request: " + "x" * 2000


async def test_an_answer_that_is_not_as_declared_is_an_error_that_shows_it() -> None:
    described = answering({"type": "object", "properties": {"id": {"type": "integer"}}})
    assert (await answered(Answer(body=b'{"id": 1}'), described)).structured_content == {"id": 1}
    result = await answered(Answer(body=b'{"id": "x"}'), described)
    assert result.is_error
    assert result.text.startswith("200 OK, and the answer is not as the API declares: ")
    assert result.text.endswith('The answer: {"id": "x"}')
    result = await answered(Answer(body=b"<p>", kind="text/html"), described)
    assert result.text == "200 OK, and no JSON, which the API declares: <p>"


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
async def test_there_is_an_output_schema_where_all_answers_of_success_have_it(
    schema: Any, others: tuple[str, ...], has: bool
) -> None:
    async with open_api() as api:
        server = from_openapi(answering(schema, *others), http=api.http, operations=everything)
        async with open_memory(server) as client:
            (tool,) = [tool async for tool in client.list_tools()]
    assert (tool.output_schema is not None) is has


async def test_a_hook_of_the_author_that_refuses_a_status_gives_the_status() -> None:
    async def refuse(response: httpx2.Response) -> None:
        response.raise_for_status()

    async with open_api(Answer(403, b"secret"), event_hooks={"response": [refuse]}) as api:
        result = await called(api, document(), {})
    assert (result.is_error, result.text) == (True, "403 Forbidden")


async def test_the_answer_to_a_request_for_the_head_has_no_body() -> None:
    described = answering({"type": "object"})
    described["paths"]["/do"]["head"] = described["paths"]["/do"].pop("get")
    async with open_api() as api:
        assert (await called(api, described, {})).text == "200 OK"


@pytest.mark.parametrize("follows", [True, False])
async def test_redirects_are_followed_within_the_origin_and_nowhere_else(follows: bool) -> None:
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


async def test_redirects_without_end_are_an_error() -> None:
    async with open_api(Answer(302, headers={"location": "/do"}), follow_redirects=True) as api:
        assert (await called(api, document(), {})).is_error
    assert len(api.seen) == 6


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (httpx2.ConnectError("10.0.0.7 is internal"), "the API cannot be reached, or has given no proper answer"),
        (httpx2.ReadTimeout("10.0.0.7 is internal"), "the API has not answered in time"),
    ],
)
async def test_a_failure_of_the_network_tells_nothing_internal(
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
