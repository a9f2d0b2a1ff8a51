"""Converts an HTTP API's response to the result of a tool: data, text, an image, audio, bytes, or an error."""

from __future__ import annotations

import base64
import logging
import zlib
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from encodings import normalize_encoding
from encodings.aliases import aliases
from http import HTTPStatus
from typing import Any, Final, cast

import msgspec
import trio

from ..classes import frozen
from ..jsonrpc.codec import encode_value
from ..jsonrpc.errors import NotSerializable, clean
from ..jsonrpc.sizes import has_many_far
from ..protocol.fields import JSONObject, as_object
from ..protocol.types.content import (
    AudioContent,
    BlobResourceContents,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    TextContent,
)
from ..protocol.types.tools import CallToolResult
from ..server.calling.results import error_result
from . import httpx2
from .document import APIOperation, Document, is_json
from .schemas import LateValidator, Schemas

logger = logging.getLogger("trio_mcp")

_MAX_ERROR_TEXT: Final = 2000
"""Maximum number of characters of an error response's body that the model gets."""
_CODINGS: Final = (["gzip"], ["x-gzip"], ["deflate"])
_PIECE: Final = 1 << 16
"""Number of bytes that are decompressed between two checkpoints."""
_LONGEST_CHARSET: Final = 40
"""Maximum number of characters in a charset's name."""
_CHARSETS: Final = frozenset(
    (
        *("ascii", "latin_1", "utf_8", "utf_8_sig", "utf_16", "utf_16_be", "utf_16_le", "utf_32", "utf_32_be"),
        "utf_32_le",
        *(f"iso8859_{part}" for part in range(1, 17) if part != 12),
        *(f"cp{page}" for page in (*range(1250, 1259), 437, 850, 852, 866, 874, 932, 949, 950)),
        *("big5", "big5hkscs", "gb2312", "gbk", "gb18030", "hz", "euc_jp", "euc_kr", "shift_jis", "iso2022_jp"),
        *("iso2022_kr", "johab", "koi8_r", "koi8_u", "mac_roman", "mac_cyrillic", "tis_620"),
    )
)
"""Python's names of the accepted charsets, each of which is decoded in linear time. Other text is decoded as UTF-8."""
_NOTE: Final[JSONObject] = {
    "type": "object",
    "properties": {"note": {"type": "string", "description": "How the answer differs from what the API declares."}},
    "required": ["note"],
    "additionalProperties": False,
}
_TEXTS: Final = ("text/", "application/xml", "application/yaml", "application/javascript", "application/x-ndjson")


class ResponseReader:
    """Reads which responses the operations of the OpenAPI ``document`` declare."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._schemas = Schemas(document, "writeOnly")

    def read(self, operation: APIOperation) -> OperationResponses:
        """Return the responses that ``operation`` declares.

        The returned object has an output schema if every successful response is JSON with the same schema, or has no
        content.
        """
        found: list[Any] = []
        if operation.method == "HEAD":
            return OperationResponses(operation.name)
        for status, value in as_object(operation.data.get("responses")).items():
            if status.startswith("2"):
                answer, base = self._document.follow(value, operation.base)
                content = as_object(answer.get("content"))
                media = [as_object(each) for kind, each in content.items() if is_json(kind)]
                if len(media) != 1 or len(content) != 1 or "schema" not in media[0]:
                    return OperationResponses(operation.name)
                made = self._schemas.converted(media[0]["schema"], base)
                found += [] if made in found else [made]
        if len(found) != 1 or found[0] in ({}, True, False):
            return OperationResponses(operation.name)
        return self._with_schema(operation.name, found[0])

    def _with_schema(self, name: str, schema: Any) -> OperationResponses:
        is_wrapped = not self._is_object(schema)
        declared: JSONObject = {"type": "object", "properties": {"result": schema}, "required": ["result"]}
        if not is_wrapped:
            declared = {**self._schemas.resolved(schema), "type": "object"}
        # Besides the declared response, the tool may return a note (`_NOTE`) about how the response differs from it.
        complete = self._schemas.complete({"type": "object", "anyOf": [declared, _NOTE]})
        without_note = {**complete["anyOf"][0], "$defs": complete.get("$defs", {})}
        return OperationResponses(name, complete, LateValidator(without_note), is_wrapped)

    def _is_object(self, schema: Any, levels: int = 8) -> bool:
        """Return whether ``schema``, an OpenAPI schema converted to JSON Schema, allows only JSON objects."""
        root = as_object(self._schemas.resolved(schema))
        if "type" in root or not levels:
            return root.get("type") == "object"
        if "properties" in root:
            return True
        parts = [self._is_object(part, levels - 1) for part in root.get("allOf", ())]
        either = [self._is_object(part, levels - 1) for part in root.get("anyOf", ())]
        return any(parts) or (bool(either) and all(either))


@frozen(eq=False)
class OperationResponses:
    """Converts the HTTP responses of one OpenAPI operation to results of the tool ``name``."""

    _name: str
    schema: JSONObject | None = None
    """The output schema of the tool."""
    _declared: LateValidator | None = None
    """Validates structured content against the output schema, except notes."""
    _is_wrapped: bool = False

    async def result(self, response: httpx2.Response, limit: int) -> CallToolResult:
        """Return the tool result for the open HTTP response ``response``, of which at most ``limit`` bytes are read.

        Only redirects and statuses from 400 on become errors, because a model repeats calls that fail.
        """
        status = status_of(response)
        if response.is_redirect and response.status_code != HTTPStatus.NOT_MODIFIED:
            return error_result(f"{status}: the API redirects, and the redirect is not followed")
        if response.is_error:
            head, _ = await _read(response, 4 * _MAX_ERROR_TEXT)
            wait = response.headers.get("retry-after", "")
            after = (
                f" (try again in {int(wait)} seconds)" if wait.isascii() and wait.isdigit() and len(wait) < 7 else ""
            )
            told = _text(response, head)[:_MAX_ERROR_TEXT] if _is_readable(_kind(response)) else ""
            return error_result(f"{status}{after}: {told}" if told.strip() else status + after)
        body, fault = await _read(response, limit)
        if fault:
            shown = (
                [TextContent(_text(response, body)[:_MAX_ERROR_TEXT])] if body and _is_readable(_kind(response)) else []
            )
            return self._with_note(f"{status}, and {fault}", shown)
        return self._of_body(response, status, body)

    def _of_body(self, response: httpx2.Response, status: str, body: bytes) -> CallToolResult:
        if not body:
            return self._with_note(status, ())
        kind = _kind(response)
        is_declared = self._declared is not None
        # Some APIs send JSON with a media type for text, or with no media type.
        may_be_data = is_json(kind) or (is_declared and (not kind or kind.startswith("text/")))
        value, is_data = _decoded(body) if may_be_data else (None, False)
        if not is_data:
            note = f"{status}, but the answer is not JSON, which the API declares"
            block = self._block(response, kind, body)
            return self._with_note(note, [block]) if is_declared else CallToolResult([block])
        shown: list[ContentBlock] = [TextContent(encode_value(value).decode())]
        if self._declared is None:
            return CallToolResult(shown, structured_content=cast("Any", value) if isinstance(value, dict) else None)
        structured = {"result": value} if self._is_wrapped else value
        if fault := self._declared.faults(structured):
            return self._with_note(f"{status}, but the answer differs from what the API declares: {fault}", shown)
        return CallToolResult(shown, structured_content=structured)

    def _with_note(self, note: str, shown: Sequence[ContentBlock]) -> CallToolResult:
        """Return the tool result for an HTTP response that doesn't match its declared schema: the content blocks
        ``shown``, then the text ``note``."""
        structured: JSONObject | None = None if self.schema is None else {"note": note}
        return CallToolResult([*shown, TextContent(note)], structured_content=structured)

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
    """Return the status code of an HTTP response with the standard phrase for this code.

    The server's own phrase isn't used, because it may be any text.
    """
    try:
        return f"{response.status_code} {HTTPStatus(response.status_code).phrase}"
    except ValueError:
        return str(response.status_code)


async def _read(response: httpx2.Response, limit: int) -> tuple[bytes, str]:
    """Read the body of an HTTP response. Return the body, which may be truncated, and an error text, which is empty if
    the body is complete."""
    try:
        body = response.content  # this raises an error unless an event hook of the HTTP client has read the body
    except httpx2.ResponseNotRead:
        codings = [each.strip() for each in response.headers.get("content-encoding", "").lower().split(",")]
        codings = [each for each in codings if each not in ("", "identity")]
        # refuse unknown or repeated codings: 4 GiB that are compressed three times with gzip have only 300 bytes
        if codings and codings not in _CODINGS:
            return b"", "the body has a content coding other than gzip"
        try:
            body = await _unpacked(response, limit, is_packed=bool(codings))
        except httpx2.TimeoutException:
            return b"", "the body did not arrive in time"
        except httpx2.HTTPError as error:
            logger.warning(
                "could not read the body of an API response: %s: %s", type(error).__name__, clean(str(error))[:200]
            )
            return b"", "the body is incomplete or damaged"
    if len(body) > limit:
        return body[:limit], f"the answer is larger than {limit:,} bytes; this is its beginning: ask for less"
    return body, ""


async def _unpacked(response: httpx2.Response, limit: int, *, is_packed: bool) -> bytes:
    """Read and decompress the body of ``response``. If it is longer than ``limit`` bytes, return at least its first
    ``limit`` + 1 bytes."""
    unpack = zlib.decompressobj(wbits=zlib.MAX_WBITS + 32)  # detect gzip or zlib by the header
    body = bytearray()
    pieces = response.aiter_raw()
    try:
        async for piece in pieces:
            while piece and len(body) <= limit:
                if unpack.eof:
                    raise httpx2.DecodingError(
                        "the compressed body must end with the response, but more bytes follow it"
                    )
                body += unpack.decompress(piece, min(_PIECE, limit + 1 - len(body))) if is_packed else piece
                piece = unpack.unconsumed_tail or unpack.unused_data
                await trio.lowlevel.checkpoint()
            if len(body) > limit:
                return bytes(body)
        if is_packed and response.num_bytes_downloaded and not unpack.eof:
            raise httpx2.DecodingError("the compressed body is incomplete")
    except zlib.error as error:
        raise httpx2.DecodingError(str(error)) from None
    finally:
        await _close_response(response, pieces)
    return bytes(body)


async def _close_response(response: httpx2.Response, pieces: AsyncIterator[bytes]) -> None:
    """Close the HTTP response, and end the generators that read its body.

    Otherwise httpx2 would leave the generators to the garbage collector.
    """
    try:
        await response.aclose()
    finally:
        with suppress(httpx2.HTTPError):
            async for _ in pieces:
                pass


def _kind(response: httpx2.Response) -> str:
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind if kind.isascii() and len(kind) <= 100 else ""


def _is_readable(kind: str) -> bool:
    return is_json(kind) or kind.startswith(_TEXTS) or (kind.endswith("+xml") and not kind.startswith("image/"))


def _text(response: httpx2.Response, body: bytes) -> str:
    # Check the codec's name before Python looks it up: some codecs are slow or raise, and Python caches unknown names.
    name = normalize_encoding((response.charset_encoding or "")[:_LONGEST_CHARSET]).lower()
    name = aliases.get(name, name)
    return body.decode(name if name in _CHARSETS else "utf-8", "replace")


def _decoded(body: bytes) -> tuple[Any, bool]:
    """Decode a JSON body. Return its value, and whether the value can be sent to the client."""
    if has_many_far(body):
        return None, False
    try:
        body = body.removeprefix(BOM_UTF8)
        value = msgspec.json.decode(body)
        encode_value(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, NotSerializable):
        return None, False
    return value, True
