"""Answers: the answer of an API as the result of a tool: data, text, an image, sound, bytes, or a failure."""

from __future__ import annotations

import base64
from http import HTTPStatus
from typing import Any, Final, cast

import httpx2
import msgspec

from ..jsonrpc.codec import encode_value
from ..jsonrpc.errors import NotSerializable
from ..jsonrpc.sizes import has_many_far
from ..protocol.fields import JSONObject
from ..protocol.schema_validator import SchemaValidator
from ..protocol.types.content import (
    AudioContent,
    BlobResourceContents,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    TextContent,
)
from ..protocol.types.tools import CallToolResult, ToolError
from ..server.results import error_result, text_result
from .document import APIOperation, Document, members_of
from .schemas import Schemas

_MOST_TOLD: Final = 2000
"""Characters of the body of an error that the model is told."""
_TEXTS: Final = ("text/", "application/xml", "application/yaml", "application/javascript", "application/x-ndjson")


class AnswerReader:
    """Reads the answers that the operations of ``document`` declare."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._schemas = Schemas(document, "writeOnly")

    def read(self, operation: APIOperation) -> OperationAnswers:
        """Return the answers of ``operation``. There is an output schema where all answers that tell of success are
        JSON of one schema: a result must have structured content then."""
        found: list[Any] = []
        if operation.method == "HEAD":
            return OperationAnswers(operation.name, None, False)
        for status, value in members_of(operation.data.get("responses")).items():
            if str(status)[0] == "2":
                answer, base = self._document.follow(value, operation.base)
                content = members_of(answer.get("content"))
                media = [members_of(each) for kind, each in content.items() if _is_json(kind)]
                if len(media) != 1 or len(content) != 1 or "schema" not in media[0]:
                    return OperationAnswers(operation.name, None, False)
                made = self._schemas.converted(media[0]["schema"], base)
                found += [] if made in found else [made]
        if len(found) != 1 or found[0] in ({}, True, False):
            return OperationAnswers(operation.name, None, False)
        return self._with_schema(operation.name, found[0])

    def _with_schema(self, name: str, schema: Any) -> OperationAnswers:
        root = self._schemas.resolved(schema)
        is_object = root.get("type") == "object"
        if not is_object:
            root = {"type": "object", "properties": {"result": schema}, "required": ["result"]}
        return OperationAnswers(name, self._schemas.complete(root), not is_object)


class OperationAnswers:
    """The answers of one operation, the tool ``name``."""

    def __init__(self, name: str, schema: JSONObject | None, is_wrapped: bool) -> None:
        self._name = name
        self.schema = schema
        """The output schema of the tool."""
        self._is_wrapped = is_wrapped
        self._validator: SchemaValidator | None = None

    async def result(self, response: httpx2.Response, most: int) -> CallToolResult:
        """Return the result of an open ``response``, of ``most`` bytes at most."""
        status = status_of(response)
        if response.is_redirect:
            return error_result(f"{status}: the API redirects, and the redirect is not followed")
        if response.is_error:
            head = await _read(response, 4 * _MOST_TOLD, is_cut=True)
            wait = response.headers.get("retry-after", "")
            after = (
                f" (try again in {int(wait)} seconds)" if wait.isascii() and wait.isdigit() and len(wait) < 7 else ""
            )
            told = _text(response, head)[:_MOST_TOLD] if _is_readable(_kind(response)) else ""
            return error_result(f"{status}{after}: {told}" if told.strip() else status + after)
        return self._of_body(response, status, await _read(response, most))

    def _of_body(self, response: httpx2.Response, status: str, body: bytes) -> CallToolResult:
        kind = _kind(response)
        value, is_data = _decoded(body) if _is_json(kind) else (None, False)
        if self.schema is not None:
            if self._validator is None:  # with the first answer: a document may have hundreds
                self._validator = SchemaValidator(self.schema)
            structured = {"result": value} if self._is_wrapped else value
            if not is_data:
                return error_result(
                    f"{status}, and no JSON, which the API declares: {_text(response, body)[:_MOST_TOLD]}"
                )
            if fault := self._validator.faults(structured):
                text = _text(response, body)[:_MOST_TOLD]
                return error_result(f"{status}, and the answer is not as the API declares: {fault}. The answer: {text}")
            return CallToolResult([TextContent(encode_value(value).decode())], structured_content=structured)
        if is_data:
            structured = cast("Any", value) if isinstance(value, dict) else None
            return CallToolResult([TextContent(encode_value(value).decode())], structured_content=structured)
        if not body:
            return text_result(status)
        return CallToolResult([self._block(response, kind, body)])

    def _block(self, response: httpx2.Response, kind: str, body: bytes) -> ContentBlock:
        if _is_readable(kind):
            return TextContent(_text(response, body))
        data = base64.b64encode(body).decode()
        if kind.startswith("image/"):
            return ImageContent(data, kind)
        if kind.startswith("audio/"):
            return AudioContent(data, kind)
        return EmbeddedResource(BlobResourceContents(f"openapi:{self._name}", data, kind or "application/octet-stream"))


def status_of(response: httpx2.Response) -> str:
    """Return the status in the words of the standard: a server may write any words."""
    try:
        return f"{response.status_code} {HTTPStatus(response.status_code).phrase}"
    except ValueError:
        return str(response.status_code)


async def _read(response: httpx2.Response, most: int, *, is_cut: bool = False) -> bytes:
    """Return the body, or its beginning where the body ``is_cut``. Raises `ToolError` for a body that is too long."""
    body = bytearray()
    try:
        async for chunk in response.aiter_bytes():
            if len(body) <= most:
                body += chunk
            if len(body) > most:
                # No break: httpx2 would leave generators to the garbage collector. Now its next read fails.
                await response.aclose()
    except httpx2.HTTPError:
        if len(body) <= most:
            raise
    if len(body) > most and not is_cut:
        raise ToolError(f"{status_of(response)}, and the answer is larger than {most:,} bytes: ask for less")
    return bytes(body[:most])


def _kind(response: httpx2.Response) -> str:
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind if kind.isascii() and len(kind) <= 100 else ""


def _is_json(kind: str) -> bool:
    kind = kind.partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def _is_readable(kind: str) -> bool:
    return _is_json(kind) or kind.startswith(_TEXTS) or (kind.endswith("+xml") and not kind.startswith("image/"))


def _text(response: httpx2.Response, body: bytes) -> str:
    try:
        return body.decode(response.charset_encoding or "utf-8", "replace")
    except LookupError:
        return body.decode("utf-8", "replace")


def _decoded(body: bytes) -> tuple[Any, bool]:
    """Return the value of a body of JSON, and whether there is one that can be sent on."""
    if has_many_far(body):
        return None, False
    try:
        value = msgspec.json.decode(body)
        encode_value(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, NotSerializable):
        return None, False
    return value, True
