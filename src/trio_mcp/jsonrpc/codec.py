"""Decodes bytes to JSON-RPC messages, and encodes messages to bytes.

The rule of this file: **any bytes give a message, a batch or one `Unreadable`**, and only valid JSON is written. One
message is one line: the encoder never writes a raw newline. `decode_base64url` decodes the text in which cursors,
states and tokens carry their content.
"""

from __future__ import annotations

import base64
import gc
import math
from collections.abc import Callable
from functools import lru_cache
from numbers import Integral, Real
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import msgspec
from msgspec import UNSET

from ..lazy import lazy_pattern
from .errors import INVALID_REQUEST, PARSE_ERROR, NotSerializable
from .messages import (
    Batch,
    ErrorResponse,
    Message,
    Notification,
    Request,
    RequestId,
    Response,
    Unreadable,
    is_request_id,
)
from .sizes import LONG, MOST_FAR, MOST_LEVELS, bytes_of, few_parts, has_json_form, has_many_far, is_too_deep, weight_of

if TYPE_CHECKING:
    from .salvage import Salvage


def plain_scalar(value: object) -> int | float | str:
    """Convert a number or string of any class, such as a numpy number, to a plain `int`, `float` or `str`.

    Raises `TypeError` for anything else.
    """
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    kind = type(value)
    raise TypeError(f"{kind.__module__}.{kind.__qualname__} has no JSON form")


def _searched(value: object) -> int | float | str:
    """Convert ``value`` in the same way as `plain_scalar`, to search it for numbers that JSON can't express.

    If the value is text that was checked before, return an empty string.
    """
    return "" if type(value) is msgspec.Raw else plain_scalar(value)


_encoder = msgspec.json.Encoder(enc_hook=plain_scalar)
_canonical = msgspec.json.Encoder(enc_hook=plain_scalar, order="sorted")
_decoder = msgspec.json.Decoder()
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _RawMessage(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The fields of a JSON-RPC message, as decoded from JSON.

    Decoding to this class is a quarter of a microsecond faster than decoding to a dict. The decoder checks ``jsonrpc``
    and ``method``; an object that `of` creates is unchecked.
    """

    jsonrpc: Literal["2.0"]
    id: Any = UNSET
    method: str | msgspec.UnsetType = UNSET
    params: Any = None
    result: Any = UNSET
    error: Any = UNSET

    @classmethod
    def of(cls, data: dict[str, Any]) -> _RawMessage:
        """Return the JSON-RPC fields of a decoded message, without checking them.

        All other fields of the message are left out.
        """
        version, request_id, method = cast("Any", data.get("jsonrpc")), data.get("id", UNSET), data.get("method", UNSET)
        return cls(version, request_id, method, data.get("params"), data.get("result", UNSET), data.get("error", UNSET))


_raw_message_decoder = msgspec.json.Decoder(_RawMessage)

_OBJECT: Final = lazy_pattern(rb"\s*+\{")
_BEGUN: Final = lazy_pattern(rb"\s*+[\[{]?\s*+[\"']?jsonrpc[\"']?\s*+:")
"""Pattern for the beginning of a message that a server has written over several lines, or with single quotes."""
_SHALLOW: Final = 2 * (MOST_LEVELS - 2)
"""Maximum number of bytes of a text that can't be nested too deeply, even with two levels around it."""
_LARGE: Final = 64 * 1024
"""Number of bytes above which the garbage collector could run while a text is decoded, because of the many objects."""
_NESTED: Final = f"not serializable as JSON: more than {MOST_LEVELS} levels of nesting"
_TOO_DEEP: Final = f"the message has more than {MOST_LEVELS} levels of nesting"
_TOO_FAR: Final = f"the message has more than {MOST_FAR} numbers with exponents of three digits"


def decode(line: bytes | bytearray, *, max_batch: int = 1000) -> Message | Batch | Unreadable:
    """Decode one line of bytes to a JSON-RPC message, or to a batch of at most ``max_batch`` messages.

    Never raises, whatever a peer sends. An `Unreadable` carries the error reply for the peer:

    - -32700 for text that isn't JSON in UTF-8, is nested deeper than `MOST_LEVELS`, or has more slow numbers than
      `MOST_FAR` (RFC 8259, section 9: a parser may limit depth and range);
    - -32600 for JSON that isn't a JSON-RPC 2.0 message, with the request's own id if it is readable, or else null
      (JSON-RPC 2.0, section 5).

    An unreadable reply gets no error reply; the pending call fails instead (`Unreadable.settles`).
    """
    size = len(line)
    try:
        if size < _LARGE:
            data = _read(line)
        elif has_many_far(line):
            return _unread_message(line, _TOO_FAR)
        else:
            with CollectorPause():
                data = _read(line)
    except RecursionError:
        return _unread_message(line, _TOO_DEEP)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        reason = "not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        owed = "Parse error: the message is not JSON in UTF-8"
        is_begun = _BEGUN.match(line) is not None
        return _unreadable(_salvage(line), f"not JSON: {reason}", PARSE_ERROR, owed, may_be_answer=is_begun)
    if size > _SHALLOW:
        plain = msgspec.structs.astuple(data) if type(data) is _RawMessage else data
        if size > LONG and (parts := few_parts(plain)) is not None:
            size = max(size, bytes_of(parts))
        elif line.count(b"[") + line.count(b"{") > MOST_LEVELS and is_too_deep(plain):
            return _unread_message(line, _TOO_DEEP)
        else:
            size = weight_of(line)
    if type(data) is _RawMessage:
        if data.method is UNSET:
            if data.error is UNSET is not data.result and type(data.id) is int:
                return Response(data.id, data.result)
        elif data.error is UNSET is data.result:
            if data.id is UNSET:
                return Notification(data.method, data.params)
            if type(data.id) is int:
                return Request(data.id, data.method, data.params, size)
        return _classify(data, size)
    if type(data) is dict:
        return _classify(_RawMessage.of(cast("dict[str, Any]", data)), size)
    if type(data) is list:
        return _classify_batch(cast("list[Any]", data), size, max_batch)
    return _invalid("a message must be a JSON object")


def _read(line: bytes | bytearray) -> Any:
    """Decode the JSON text ``line``.

    The result is nearly always a checked `_RawMessage`, otherwise plain data.
    """
    try:
        return _raw_message_decoder.decode(line)
    except msgspec.ValidationError:  # the line isn't a JSON-RPC message, or has unknown fields
        return _decoder.decode(line)


def _unread_message(line: bytes | bytearray, reason: str) -> Unreadable:
    """Return the `Unreadable` that describes ``line``, a line that isn't a valid message.

    The line may be JSON.
    """
    return _unreadable(
        _salvage(line), reason, PARSE_ERROR, f"Parse error: {reason}", may_be_answer=_OBJECT.match(line) is not None
    )


def skipped(head: bytes | bytearray, tail: bytes | bytearray, reason: str) -> Unreadable:
    """Return the `Unreadable` for a message that is too long.

    ``reason`` says why the message was skipped. Only its beginning ``head`` and its end ``tail`` are known.
    """
    remains = _salvage(head, tail)
    is_object = _OBJECT.match(head) is not None
    words = f"Invalid request: {reason}"
    return _unreadable(remains, reason, INVALID_REQUEST, words, too_long=True, may_be_answer=is_object)


def _salvage(head: bytes | bytearray, tail: bytes | bytearray = b"") -> Salvage:
    from .salvage import salvage  # import `salvage` only here, because few peers send unreadable messages

    return salvage(head, tail)


def _unreadable(
    remains: Salvage, reason: str, code: int, message: str, *, too_long: bool = False, may_be_answer: bool = False
) -> Unreadable:
    if remains.is_reply:
        return Unreadable(reason, None, remains.id, is_answer=True, also=remains.also)
    if remains.is_request or not may_be_answer:
        owed = ErrorResponse(remains.id if remains.is_request else None, code, message)
        return Unreadable(reason, owed, too_long=too_long, also=remains.also)
    return Unreadable(reason, ErrorResponse(None, code, message), remains.id, too_long=too_long, may_be_answer=True)


def _classify(data: _RawMessage, size: int) -> Message | Unreadable:
    method = data.method
    if method is UNSET:
        return _classify_reply(data)
    request_id = data.id
    if data.jsonrpc != "2.0":
        return _no_request('the member "jsonrpc" must be "2.0"', data)
    if type(method) is not str:
        return _no_request("the method must be a string", data)
    if data.result is not UNSET or data.error is not UNSET:
        return _no_request("a request must not have a result or an error", data)
    if request_id is UNSET:
        return Notification(method, data.params)
    if type(request_id) is not int and not is_request_id(request_id):
        # In MCP 2026-07-28 (basic page), a request id is a string or integer. Unlike in JSON-RPC, it is never null.
        return _invalid("the id must be a string or an integer")
    return Request(request_id, method, data.params, size)


def _classify_reply(data: _RawMessage) -> Message | Unreadable:
    reply_id = None if data.id is UNSET else data.id
    has_result, has_error = data.result is not UNSET, data.error is not UNSET
    if not has_result and not has_error:
        # The object may be a broken request or a broken reply, so respond with an error that has a null id.
        # If this error had the id of the broken object, the peer could take it for the reply to one of its calls.
        return _invalid("a message must have a method, a result or an error", named=reply_id)
    if data.jsonrpc != "2.0":
        return _bad_reply('a reply whose member "jsonrpc" is not "2.0"', data)
    if has_result and has_error:
        # JSON-RPC 2.0 doesn't allow both a result and an error in one reply.
        # Many peers still send both a result and an error, one of which is null, so ignore the null.
        has_result = data.error is None
        if not has_result and data.result is not None:
            return _bad_reply("a reply with both a result and an error", data)
    if has_result:
        if type(reply_id) is not int and not is_request_id(reply_id):
            return _bad_reply("a result without a usable id", data)
        return Response(reply_id, data.result)
    error = data.error
    body = cast("dict[str, Any]", error) if type(error) is dict else {}
    code, message = body.get("code"), body.get("message")
    if type(code) is not int or type(message) is not str:
        from .salvage import code_of, error_text  # late, as above

        if not (message := error_text(error)):
            return _bad_reply("a reply whose error is empty", data)
        code = code_of(code)
    if reply_id is not None and not is_request_id(reply_id):
        return _bad_reply("an error without a usable id", data)
    return ErrorResponse(reply_id, code, message, body.get("data"))


def _bad_reply(reason: str, data: _RawMessage) -> Unreadable:
    """Return the `Unreadable` for a malformed reply.

    The call that the reply names fails, and the peer gets no error reply.
    """
    from .salvage import error_text  # late, as above

    reply_id = None if data.id is UNSET else data.id
    if data.error is not UNSET and (words := error_text(data.error)):
        reason = f"{reason}: {words}"
    if is_request_id(reply_id):
        return Unreadable(reason, None, reply_id, is_answer=True, named=reply_id)
    # An error with a null id isn't surely a reply to a call, because it may concern any request.
    # An object without "jsonrpc" may be text that the peer has printed, so it isn't surely a reply to a call.
    surely = data.jsonrpc == "2.0" and (data.result is not UNSET or reply_id is not None)
    return Unreadable(reason, None, is_answer=surely, named=reply_id)


def _classify_batch(data: list[Any], size: int, max_batch: int) -> Batch | Unreadable:
    if not data:
        return _invalid("an empty batch")  # JSON-RPC 2.0, section 6
    if len(data) > max_batch:
        return _invalid(f"a batch of more than {max_batch} messages")
    share = size // len(data) if size <= _SHALLOW else None
    return Batch(
        tuple(
            # Measure each message of the batch separately: a small message may be done long before a large one.
            _classify(_RawMessage.of(member), weight_of(_encoder.encode(member)) if share is None else share)
            if type(member) is dict
            else _invalid("a message must be a JSON object")
            for member in cast("list[dict[str, Any]]", data)
        )
    )


def _no_request(reason: str, data: _RawMessage) -> Unreadable:
    """Return the `Unreadable` for an object that has a method but isn't a valid request."""
    named = None if data.id is UNSET else data.id
    is_reply = data.result is not UNSET or data.error is not UNSET
    asks = data.method if type(data.method) is str and not is_reply else None
    return _invalid(reason, named, named=named, asks=asks)


def _invalid(reason: str, request_id: Any = None, *, named: Any = None, asks: str | None = None) -> Unreadable:
    known = request_id if is_request_id(request_id) else None
    owed = ErrorResponse(known, INVALID_REQUEST, f"Invalid request: {reason}")
    return Unreadable(reason, owed, named=named, asks=asks)


def encode_value(value: Any, around: int = 0, write: Callable[[Any], bytes] = _encoder.encode) -> bytes:
    """Encode any JSON value as one line of bytes, without a newline.

    ``around``, 0 to 3, is the number of levels that the message will put around the value. With -1, the outermost level
    isn't counted: ``write``, which does the encoding, omits it. A `msgspec.Raw` inside is text that this function has
    written, and is kept unchanged.

    Numbers and strings of other classes become plain ones (`plain_scalar`). Raises `NotSerializable` for a value that
    JSON can't carry. msgspec writes NaN and infinities as ``null``. So a value is searched for them if its text
    contains a ``null`` without quotes; other values don't pay for the search.
    """
    try:
        text = write(value)
        if len(text) <= _SHALLOW and b"null" not in text:
            return text
        if len(text) > LONG and (parts := few_parts(value)) is not None and has_json_form(parts):
            return text
        # Don't count "null" in quotes, which is a type name in JSON Schemas. A null without quotes may come from a NaN.
        has_null = text.count(b"null") > text.count(b'"null"')
        finite = not has_null or _is_finite(msgspec.to_builtins(value, enc_hook=_searched))
        levels = MOST_LEVELS - around
        deep = text.count(b"[") + text.count(b"{") >= levels and is_too_deep(value, levels)
    except RecursionError:
        raise NotSerializable(_NESTED) from None
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise NotSerializable(f"not serializable as JSON: {error}") from None
    if deep:
        raise NotSerializable(_NESTED)
    if not finite:
        raise NotSerializable("not serializable as JSON: JSON can't contain NaN or infinity")
    return text


def encode_readable(value: Any, around: int = 0, write: Callable[[Any], bytes] = _encoder.encode) -> bytes:
    r"""Encode a value like `encode_value`, but write lone surrogates as escapes of six characters, such as ``\udce9``.

    Python uses lone surrogates for file names that aren't UTF-8. Use this function for text that people and models
    read, where names must stay distinct.
    """
    try:
        return encode_value(value, around, write)
    except NotSerializable as fault:
        try:
            value = _escaped(value)
        except RecursionError:
            raise fault from None
    return encode_value(value, around, write)


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_escaped(name): _escaped(each) for name, each in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_escaped(each) for each in cast("list[Any]", value)]
    return value


def canonical_value(value: Any) -> bytes:
    """Encode a value like `encode_value`, but with sorted field names, so that equal values always give equal bytes."""
    encode_value(value)  # check the value: `encode_value` raises for a value that JSON can't contain
    return _canonical.encode(value)


def pack_value(value: Any) -> bytes:
    """Encode a value from a message that `decode` has decoded. `decode_value` restores the value."""
    return _encoder.encode(value)


def check_levels(text: bytes | str) -> None:
    """Raise `RecursionError` for JSON that is nested more than `MOST_LEVELS` levels deep.

    msgspec's own limit depends on the stack, and is much higher in CPython 3.14 and later.
    """
    brackets = ("[", "{") if isinstance(text, str) else (b"[", b"{")
    if sum(text.count(each) for each in cast("Any", brackets)) > MOST_LEVELS and is_too_deep(_decoder.decode(text)):
        raise RecursionError(_TOO_DEEP)


def decode_value(text: bytes) -> Any:
    """Decode a value that `encode_value` or `pack_value` has encoded.

    Raises `RecursionError` if the stack is nearly full.
    """
    if len(text) < _LARGE:
        return _decoder.decode(text)
    with CollectorPause():
        return _decoder.decode(text)


def decode_members(text: bytes) -> dict[str, Any]:
    """Decode only the outermost fields of a JSON object that `encode_value` has encoded.

    The values of these fields stay text, as `msgspec.Raw`.
    """
    return _members.decode(text)


def _is_finite(value: Any) -> bool:
    pending = [value]  # use a loop, not recursion, because the value may be nested deeply
    while pending:
        item = pending.pop()
        if isinstance(item, float):
            if not math.isfinite(item):
                return False
        elif isinstance(item, dict):
            pending.extend(cast("dict[Any, Any]", item).values())
        elif isinstance(item, list | tuple):
            pending.extend(cast("list[Any]", item))
    return True


def encode(message: Message) -> bytes:
    """Encode one message as a line of bytes, without the newline.

    Raises `NotSerializable` if the message can't be written as JSON.
    """
    match message:
        case Request():
            return frame_request(message.id, message.method, message.params)
        case Notification():
            return frame_notification(message.method, message.params)
        case Response():
            return frame_result(message.id, message.result)
        case ErrorResponse():
            return frame_error(message.id, message.code, message.message, message.data)


_method_text = lru_cache(maxsize=256)(encode_value)
"""Return the JSON text of a method name. There are few methods, so each is encoded once."""


def frame_request(request_id: RequestId, method: str, params: Any, *, newline: bool = False) -> bytes:
    """Encode a request as one line. It ends with a newline if ``newline`` is true.

    ``params`` is omitted if it is `None`.
    """
    # Encode the whole message at once. Encoding the parameters first would copy their text once more.
    message = {"jsonrpc": "2.0", "id": request_id, "method": method}
    if params is not None:
        message["params"] = params
    return encode_value((message,), -1, _encoder.encode_lines) if newline else encode_value(message)


def frame_notification(method: str, params: Any) -> bytes:
    """Encode a notification as one line, without the newline.

    ``params`` is omitted if it is `None`.
    """
    head = b'{"jsonrpc":"2.0","method":' + _method_text(method)
    return head + b"}" if params is None else head + b',"params":' + encode_value(params, 1) + b"}"


def frame_result(request_id: RequestId, result: Any, *, newline: bool = False) -> bytes:
    """Encode the result of a request as one line. It ends with a newline if ``newline`` is true."""
    message = {"jsonrpc": "2.0", "id": request_id, "result": result}
    try:
        return encode_value((message,), -1, _encoder.encode_lines) if newline else encode_value(message)
    except NotSerializable:
        return encode_readable((message,), -1, _encoder.encode_lines) if newline else encode_readable(message)


def frame_error(request_id: RequestId | None, code: int, message: str, data: Any = None) -> bytes:
    """Encode an error reply as one line, without the newline.

    ``data`` is omitted if it is `None`, and an id of `None` is written as null.
    """
    body = b'{"code":%d,"message":%b' % (code, encode_value(message))
    if data is not None:
        body += b',"data":' + encode_value(data, 2)
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}}' % (_encoder.encode(request_id), body)


class CollectorPause:
    """Context manager that pauses Python's garbage collector while the block creates many objects.

    Otherwise, the collector would search these objects repeatedly without finding garbage.

    The collector is switched off for the whole process, so nothing may be awaited inside. If the application has
    switched it off, it stays off. If two threads are inside at once, the collector is on after both have left, and may
    already be on while the second is still inside.
    """

    __slots__ = ("_was_on",)

    def __enter__(self) -> None:
        self._was_on = gc.isenabled()
        gc.disable()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._was_on:
            gc.enable()


_NOT_IN_URLS: Final = frozenset("+/")
_STANDARD: Final = str.maketrans("-_", "+/")


def decode_base64url(text: str, *, padded: bool = True) -> bytes:
    """Decode URL-safe base64 ``text`` (RFC 4648 section 5) strictly, and return the bytes.

    `base64.urlsafe_b64decode` skips other characters. It also accepts ``+`` and ``/``, for which CPython 3.15 warns.

    Raises `ValueError` if ``text`` has a character outside the alphabet, or a wrong length. With ``padded=False``,
    ``text`` has no ``=`` at the end.
    """
    if not _NOT_IN_URLS.isdisjoint(text):
        raise ValueError("URL-safe base64 must not contain + or /")
    if not padded:
        text += "=" * (-len(text) % 4)
    return base64.b64decode(text.translate(_STANDARD), validate=True)
