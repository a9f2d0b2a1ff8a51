"""HTTP headers that repeat arguments of a tool call (2026-07-28 Streamable HTTP, Custom Headers from Tool Parameters;
SEP-2243). This module finds them in schemas, encodes and decodes their values, and compares them with the arguments."""

from __future__ import annotations

import base64
import binascii
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, cast

import msgspec

from ..classes import value
from ..jsonrpc.codec import plain_scalar
from ..jsonrpc.errors import clean
from ..lazy import lazy_pattern

NAMED_BY: Final = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
"""For each method, the parameter that the header ``Mcp-Name`` mirrors (2026-07-28 Streamable HTTP, Standard Request
Headers)."""

_ANNOTATION: Final = "x-mcp-header"
_PREFIX: Final = "Mcp-Param-"
_KINDS: Final = ("string", "integer", "boolean")
_TOKEN: Final = lazy_pattern(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # RFC 9110, section 5.6.2

_SCHEMA: Final = frozenset(
    (
        *("items", "additionalItems", "contains", "unevaluatedItems", "additionalProperties", "unevaluatedProperties"),
        *("propertyNames", "not", "if", "then", "else", "contentSchema"),
    )
)
"""JSON Schema keywords whose value is a schema. The older ``items`` may also be a list of schemas."""
_SCHEMAS: Final = frozenset(("allOf", "anyOf", "oneOf", "prefixItems", "items"))
"""JSON Schema keywords whose value is a list of schemas."""
_NAMED_SCHEMAS: Final = frozenset(
    ("properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions")
)
"""JSON Schema keywords whose value is an object with a schema under each name. The keywords that aren't listed here
contain data instead of schemas, such as ``default``."""

_SENTINEL: Final = lazy_pattern(r"=\?base64\?(.*)\?=", re.DOTALL)
_PLAIN: Final = lazy_pattern(r"[\x20-\x7e]*")
_SENDABLE: Final = lazy_pattern(r"[\x20-\x7e\t]*")
# Allow at most 400 digits, because Python refuses to convert a number with thousands of digits.
_WHOLE: Final = lazy_pattern(r"(-?[0-9]{1,400})(?:\.0+)?")
_MOST: Final = 2**53 - 1
"""The largest integer that every JSON parser reads exactly."""
_SHOWN: Final = 100
"""Maximum number of characters of a peer's text that an error message repeats."""
_MOST_HEADERS: Final = 100
"""Maximum number of headers of one tool. Servers limit the head of an HTTP request, so the headers that a peer's
schemas request must be limited too."""


@value
class ParamHeader:
    """An HTTP header that repeats the value of one tool argument.

    ``path`` lists the property names that lead to the argument. ``name`` is the full header name, such as
    ``Mcp-Param-Region``.
    """

    path: tuple[str, ...]
    name: str

    @property
    def argument(self) -> str:
        """The path of the tool argument as quoted text, for error messages."""
        return repr(".".join(self.path)[:_SHOWN])


# The classes and functions below find the HTTP headers that a schema requests


def Header(name: str) -> msgspec.Meta:
    """Annotation metadata for a parameter of a tool. Clients repeat its argument in the HTTP header ``Mcp-Param-NAME``.

        @server.tool
        async def forecast(region: Annotated[str, Header("Region")]) -> str: ...

    The argument must be a string, an integer or a boolean. Modern clients repeat it in the header, so that gateways can
    route by it without reading the body. The server refuses a request in which header and argument differ. The function
    gets the argument, not the header, unlike with FastAPI's ``Header``. Intermediaries see the value, so it must not be
    secret. (2026-07-28 tools, x-mcp-header.)

    Raises `ValueError` if ``name`` can't be part of a header name.
    """
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(
            f"the name of a header must consist of letters, digits and hyphens, as in Region, not {name!r}"
        )
    return msgspec.Meta(extra_json_schema={_ANNOTATION: name})


def param_headers(input_schema: Mapping[str, Any]) -> tuple[ParamHeader, ...]:
    """Return the HTTP headers that ``input_schema`` defines with ``x-mcp-header``.

    Raises `ValueError` if any of these annotations is invalid, because the whole tool is invalid then (Schema
    Extension).
    """
    found: dict[str, ParamHeader] = {}
    for place in _places_in(input_schema) if _may_ask(input_schema) else ():
        if _ANNOTATION not in place.schema:
            continue
        where = f"{_ANNOTATION} at {clean('/'.join(place.keys())[:_SHOWN]) or 'the root of the schema'}"
        if not place.is_property:
            raise ValueError(
                f"{where}: an argument that is also sent as an HTTP header must be a property that is reachable "
                'from the root of the schema only through "properties"'
            )
        name, kind = place.schema[_ANNOTATION], place.schema.get("type")
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            shown = repr(name[:_SHOWN]) if isinstance(name, str) else f"a value of type {type(name).__name__}"
            raise ValueError(f"{where}: {shown} can't be part of a header name (RFC 9110, token)")
        if kind not in _KINDS:
            shown = repr(kind[:_SHOWN]) if isinstance(kind, str) else "none" if kind is None else "several"
            raise ValueError(
                f'{where}: an argument that is also sent as an HTTP header must have one "type" (string, integer '
                f"or boolean), but has {shown}. If the argument is optional, give it a default of that type instead "
                "of null"
            )
        header = ParamHeader(tuple(place.keys()[1::2]), _PREFIX + name)
        if (other := found.setdefault(name.lower(), header)) is not header:
            raise ValueError(f"{where}: {name[:_SHOWN]!r} is already the header of {other.argument} (case is ignored)")
        if len(found) > _MOST_HEADERS:
            raise ValueError(f"{where}: a tool can have at most {_MOST_HEADERS} arguments in headers")
    return tuple(found.values())


def _may_ask(schema: Mapping[str, Any]) -> bool:
    """Return true if ``x-mcp-header`` occurs in the JSON text of ``schema``.

    Searching the text is a hundred times faster than searching the objects of the schema.
    """
    try:
        return _ANNOTATION.encode() in msgspec.json.encode(schema, enc_hook=plain_scalar)
    # The text can't be searched for x-mcp-header if the schema can't be encoded, or is nested too deeply.
    # So the caller must search the schema's objects.
    except (TypeError, ValueError, RecursionError):
        return True


class _SchemaPlace:
    """A subschema and its position in the schema.

    The position is the keyword that leads to the subschema, and the name after that keyword.
    """

    __slots__ = ("_keys", "_outer", "is_property", "schema")

    def __init__(self, schema: dict[str, Any], outer: _SchemaPlace | None, *keys: str) -> None:
        self.schema = schema
        # Compute the keys on demand, because storing all keys for each subschema would need much memory.
        self._outer = outer
        self._keys = keys
        self.is_property = outer is not None and (outer._outer is None or outer.is_property) and keys[0] == "properties"
        """True if only properties lead from the root to the subschema."""

    def keys(self) -> list[str]:
        """Return the keys that lead from the root of the schema to this subschema."""
        found: list[str] = []
        place: _SchemaPlace | None = self
        while place is not None:
            found += reversed(place._keys)
            place = place._outer
        return found[::-1]

    def inside(self) -> Iterator[tuple[Any, tuple[str, ...]]]:
        """Yield the direct subschemas, each with the keys that lead to it.

        References (``$ref``) aren't followed.
        """
        for keyword, content in self.schema.items():
            if isinstance(content, dict) and keyword in _NAMED_SCHEMAS:
                yield from ((inner, (keyword, name)) for name, inner in cast("dict[str, Any]", content).items())
            elif isinstance(content, list) and keyword in _SCHEMAS:
                yield from ((inner, (keyword,)) for inner in cast("list[Any]", content))
            elif keyword in _SCHEMA:
                yield content, (keyword,)


def _places_in(root: Mapping[str, Any]) -> Iterator[_SchemaPlace]:
    """Yield the schema ``root`` and all its subschemas, with their positions. Outer schemas come first."""
    ahead = deque([_SchemaPlace(dict(root), None)])
    while ahead:  # use a loop, not recursion, because a peer's schema may be deeply nested
        place = ahead.popleft()
        yield place
        for inner, keys in place.inside():
            if isinstance(inner, dict):
                ahead.append(_SchemaPlace(cast("dict[str, Any]", inner), place, *keys))


# The functions below encode and decode the values of HTTP headers


def header_value(value: object) -> str | None:
    """Return ``value`` as the text of an HTTP header (2026-07-28, Value Encoding). Return `None` if it isn't sent in a
    header.

    Return `None` for null, and for values that aren't strings, whole numbers or booleans. Raises `ValueError` for a
    number beyond ±(2^53 - 1), because some readers can't represent such numbers exactly.
    """
    match _plain(value):
        case bool() as truth:
            return "true" if truth else "false"
        case str() as text:
            return encoded_name(text)
        case int() | float() as number if number == number // 1:
            if abs(number) > _MOST:
                raise ValueError(f"a number in a header must be within ±{_MOST}")
            return str(int(number))
        case _:
            return None


def encoded_name(text: str) -> str:
    """Encode ``text`` as the value of an HTTP header: of ``Mcp-Name``, or of a header that repeats an argument.

    Text that a header can't carry unchanged, or that looks like base64 itself, is encoded in base64. Raises
    `ValueError` for lone surrogates.
    """
    looks_encoded = text.startswith("=?base64?") and text.endswith("?=")
    if _PLAIN.fullmatch(text) and text == text.strip(" ") and not looks_encoded:
        return text
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


def decoded(text: str) -> str:
    """Return the text that the value of an HTTP header encodes.

    Raises `ValueError` for invalid characters, and for base64 that `encoded_name` wouldn't produce, because each text
    has only one valid encoding.
    """
    if not _SENDABLE.fullmatch(text):
        raise ValueError("the value contains characters that aren't allowed in a header")
    if (match := _SENTINEL.fullmatch(text)) is None:
        return text
    try:
        content = base64.b64decode(match[1], validate=True)
        if base64.b64encode(content).decode() != match[1]:
            raise binascii.Error("the base64 text is not in canonical form")
        return content.decode()
    except ValueError:
        raise ValueError("invalid header value: it must be UTF-8 text in base64") from None


def headers_for(table: Iterable[ParamHeader], arguments: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the HTTP headers that a client sends with a tool call (2026-07-28, Client Behavior).

    Raises `ValueError` for an argument that a header can't carry.
    """
    headers: list[tuple[str, str]] = []
    for header in table:
        try:
            text = header_value(_at(header.path, arguments))
        except ValueError as error:
            raise ValueError(f"argument {header.argument}: {error}") from None
        if text is not None:
            headers.append((header.name, text))
    return headers


# The functions below compare received HTTP headers with the arguments of a tool call


def check(
    headers: Mapping[str, str],
    arguments: Mapping[str, Any],
    table: Iterable[ParamHeader],
    repeated: Collection[str] = (),
) -> str | None:
    """Check that the HTTP headers of a tool call match its arguments (2026-07-28, Server Behavior for Custom Headers).

    Return the text of a `HEADER_MISMATCH` error, or `None` if they agree. The names in ``headers`` are in lower case,
    and those in ``repeated`` occurred more than once.
    """
    for header in table:
        name = header.name.lower()
        if name in repeated:  # two recipients of a repeated header could use different values
            return f"{header.name} occurs more than once"
        text, argument = headers.get(name), _plain(_at(header.path, arguments))
        if not isinstance(argument, str | int) and not (isinstance(argument, float) and argument.is_integer()):
            if text is not None:
                return (
                    f"{header.name} is present, but the argument {header.argument} is missing, or can't be in a header"
                )
        elif text is None:
            return f"{header.name} is missing, but the argument {header.argument} is present"
        else:
            try:
                agrees = _agree(decoded(text), argument)
            except ValueError as error:
                return f"{header.name}: {error}"
            if not agrees:
                return f"{header.name} and the argument {header.argument} have different values"
    return None


def _agree(text: str, argument: str | float) -> bool:
    if isinstance(argument, str):
        return text == argument
    if isinstance(argument, bool):
        return text == ("true" if argument else "false")
    # Compare numbers by value, so that 42.0 equals 42 (2026-07-28, Server Validation).
    match = _WHOLE.fullmatch(text)
    return match is not None and int(match[1]) == argument


def _at(path: tuple[str, ...], arguments: Mapping[str, Any]) -> object:
    """Return the value at ``path`` in the tool's ``arguments``, or `None` if it doesn't exist."""
    found: Any = arguments
    for name in path:
        found = _plain(found)
        if not isinstance(found, dict):
            return None
        found = cast("dict[str, Any]", found).get(name)
    return found


def _plain(value: object) -> Any:
    """Convert the argument ``value``, which may be an enum, a date, etc., to JSON data."""
    if type(value) in (str, int, bool, float, dict, list, type(None)):
        return value
    try:
        return msgspec.to_builtins(value, enc_hook=plain_scalar)
    except (TypeError, ValueError):
        return None  # encoding the request body will raise this error again
