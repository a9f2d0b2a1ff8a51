"""Converts the parameters and the body of an OpenAPI operation to arguments of a tool, and the arguments of a call to
an HTTP request.

If a name occurs in several places (path, query, header, cookie, body, in this order), it is the argument for the first
place. In each further place, the argument is called ``NAME_PLACE``, for example ``id_query``. The body is one argument,
``body``. Parameters that the author's HTTP client sets itself aren't arguments: the author's values are used.
"""

from __future__ import annotations

import base64
import binascii
import re
import reprlib
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import zip_longest
from mimetypes import guess_type
from typing import Any, Final, cast
from urllib.parse import quote, unquote

from ..classes import frozen
from ..jsonrpc.codec import encode_value
from ..protocol.fields import JSONObject, as_object
from . import httpx2
from .document import APIOperation, Document, is_json, items_of, legal_name
from .schemas import LateValidator, Schemas

_LOCATIONS: Final = ("path", "query", "header", "cookie")
_STYLES: Final = {"path": "simple", "query": "form", "header": "simple", "cookie": "form"}
_OWN_HEADERS: Final = frozenset(
    ("accept", "accept-encoding", "authorization", "connection", "content-encoding", "content-length", "content-type")
) | {"cookie", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect"}
"""HTTP headers that cannot be parameters: headers that OpenAPI excludes, and headers that change the request as a
whole."""
_RESERVED: Final = "/:?@!$'()*,;"
"""Characters that ``allowReserved`` leaves unencoded, except characters that would end a value."""
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110 section 5.1
_BASE64: Final = {"type": "string", "contentEncoding": "base64"}


class UnsendableArguments(ValueError):
    """The arguments of a tool call can't be sent as an HTTP request. The message is returned to the client that called
    the tool."""


@frozen
class Parameter:
    """A parameter of an OpenAPI operation, and the tool's argument for it."""

    argument: str
    name: str
    location: str
    style: str
    explode: bool
    is_json: bool
    is_reserved: bool

    def texts(self, value: Any) -> list[str]:
        """Return ``value``, the tool's argument for this parameter, in encoded form for the HTTP request.

        For a parameter in the path, the result has one string. For a parameter in the query, the result has strings
        like ``name=value``.
        """
        if self.is_json:
            value = encode_value(value).decode()
        if self.location == "query":
            return list(_pairs(self.name, value, self.style, self.explode, _RESERVED if self.is_reserved else ""))
        return [_simple(self, value, _encoded)]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else encode_value(value).decode()


def _encoded(value: Any, safe: str = "") -> str:
    return quote(_text(value), safe=safe)


def _pairs(name: str, value: Any, style: str, explode: bool, safe: str = "") -> Iterator[str]:
    """Yield the encoded ``name=value`` strings of a query or form for the parameter ``name``."""
    key = quote(name, safe="")
    if isinstance(value, dict):
        members = cast("JSONObject", value)
        if style == "deepObject":
            for each, member in members.items():
                inside = isinstance(member, dict)
                yield from _pairs(f"{name}[{each}]", member, "deepObject" if inside else "form", True, safe)
        elif explode:
            for each, member in members.items():
                yield f"{quote(each, safe='')}={_encoded(member, safe)}"
        else:
            yield f"{key}={','.join(_encoded(part, safe) for pair in members.items() for part in pair)}"
    elif isinstance(value, list):
        items = [_encoded(item, safe) for item in cast("list[Any]", value)]
        if explode and style == "form":
            yield from (f"{key}={item}" for item in items)
        elif items:
            yield f"{key}={ {'spaceDelimited': '%20', 'pipeDelimited': '%7C'}.get(style, ',').join(items) }"
    elif value is not None:
        yield f"{key}={_encoded(value, safe)}"


def _simple(parameter: Parameter, value: Any, encoded: Callable[[Any], str]) -> str:
    """Return the text of a parameter's value in a path, header or cookie."""
    before, joint, name = {"label": (".", ".", ""), "matrix": (";", ";", f"{quote(parameter.name, safe='')}=")}.get(
        parameter.style, ("", ",", "")
    )
    if isinstance(value, dict):
        pairs = cast("JSONObject", value).items()
        if parameter.explode:
            return before + joint.join(f"{encoded(key)}={encoded(member)}" for key, member in pairs)
        value = [part for pair in pairs for part in pair]
    items = [encoded(item) for item in _listed(value)]
    if parameter.explode:
        return before + joint.join(name + item for item in items)
    return before + name + ",".join(items)


@frozen
class Body:
    """The request body of an OpenAPI operation, and the tool's argument for it."""

    argument: str
    media_type: str
    files: Mapping[str, str]
    """The properties of a form that are files, each with the name of the property for its file name."""
    styles: JSONObject
    """The ``encoding`` object of each property of a form."""

    def parts(self, value: Any) -> JSONObject:
        """Return the keyword arguments for `httpx2.AsyncClient.build_request` that send ``value`` as the request body.

        Raises `UnsendableArguments` if ``value`` can't be sent.
        """
        kind = {"Content-Type": self.media_type}
        if is_json(self.media_type):
            return {"content": encode_value(value), "headers": kind}
        if self.media_type == "application/x-www-form-urlencoded":
            pairs = [pair for name, member in as_object(value).items() for pair in self._form(name, member)]
            return {"content": "&".join(pairs).encode(), "headers": kind}
        if self.media_type == "multipart/form-data":
            return {"files": [*self._parts(as_object(value))]}
        text = _text(value)
        return {"content": text.encode() if _is_text(self.media_type) else _bytes(self.argument, text), "headers": kind}

    def _form(self, name: str, value: Any) -> Iterator[str]:
        told = as_object(self.styles.get(name))
        style = str(told.get("style", "form"))
        if isinstance(value, dict) and "style" not in told:
            value = encode_value(value).decode()
        return _pairs(name, value, style, bool(told.get("explode", style == "form")))

    def _parts(self, form: JSONObject) -> Iterator[tuple[str, tuple[str | None, bytes, str]]]:
        names = set(self.files.values())
        for name, value in form.items():
            if name in names:
                continue
            told = as_object(self.styles.get(name)).get("contentType")
            kind = told if isinstance(told, str) and "," not in told and "*" not in told else None
            items, filenames = _listed(value), _listed(form.get(self.files.get(name, "")))
            for item, filename in zip_longest(items, filenames[: len(items)]):
                if name in self.files:
                    file = str(filename or name)
                    kind = kind or guess_type(file)[0] or "application/octet-stream"
                    yield name, (file, _bytes(name, _text(item)), kind)
                elif item is not None:
                    plain = "application/json" if isinstance(item, dict | list) else "text/plain; charset=utf-8"
                    yield name, (None, _text(item).encode(), kind or plain)


def _listed(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else [value]


def _bytes(name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise UnsendableArguments(f"{name} must be valid base64") from None


def _is_text(media_type: str) -> bool:
    return media_type.startswith("text/") or media_type.endswith(("/xml", "+xml", "/yaml", "/x-ndjson"))


@frozen(eq=False)
class Arguments:
    """The arguments of a tool that calls an OpenAPI operation: their JSON schema, and how to send them over HTTP."""

    schema: JSONObject
    validator: LateValidator
    """Validates the arguments of a call against the schema."""
    _path: str
    _parameters: tuple[Parameter, ...]
    _body: Body | None

    def request(self, http: httpx2.AsyncClient, method: str, server: httpx2.URL, given: JSONObject) -> httpx2.Request:
        """Return the HTTP request for a tool call with the arguments ``given``. Raises `UnsendableArguments` if the
        arguments can't be sent."""
        path, query = self._path, list[str]()
        headers: dict[bytes, bytes] = {}
        cookies: dict[str, str] = {}
        for parameter in self._parameters:
            value = given.get(parameter.argument)
            if parameter.location == "path":
                path = path.replace(f"{{{parameter.name}}}", _segment(parameter, value))
            elif value is None:
                continue
            elif parameter.location == "query":
                query += parameter.texts(value)
            elif parameter.location == "header":
                headers[parameter.name.encode()] = _header(parameter, value)
            else:
                cookies[parameter.name] = parameter.texts(value)[0]
        if {".", ".."} & set(path.split("/")):
            raise UnsendableArguments("the URL's path must not contain the segment '.' or '..'")
        content: JSONObject = {}
        if self._body is not None and (body := given.get(self._body.argument, self)) is not self:
            content = self._body.parts(body)
        headers |= {name.encode(): said.encode() for name, said in content.pop("headers", {}).items()}
        if http.params:  # add `http.params` here, because httpx2 would replace the URL's query with them
            query = [part for part in query if unquote(part.partition("=")[0]) not in http.params]
            query.append(str(http.params))
        target = server.raw_path.rstrip(b"/") + path.encode() + (b"?" + "&".join(query).encode() if query else b"")
        try:
            url = server.copy_with(raw_path=target)
            request = http.build_request(method, url, headers=headers or None, cookies=cookies or None, **content)
            request.url = url
            request.headers["Accept-Encoding"] = "gzip"
        except httpx2.InvalidURL:
            raise UnsendableArguments("the URL would be invalid or too long") from None
        return request


def _segment(parameter: Parameter, value: Any) -> str:
    texts = [str(part) for part in re.split(r"[/\\;]", _simple(parameter, value, _text))]
    if ".." in texts or "." in texts:  # some servers decode the path before they resolve '.' and '..'
        raise UnsendableArguments(f"{parameter.argument} must not contain the path segment '.' or '..'")
    if not (text := parameter.texts(value)[0]):
        raise UnsendableArguments(f"{parameter.argument} must not be empty, because the URL's path would change")
    return text


def _header(parameter: Parameter, value: Any) -> bytes:
    text = encode_value(value).decode() if parameter.is_json else _simple(parameter, value, _text)
    if not text.isprintable():
        raise UnsendableArguments(
            f"{parameter.argument} must not have control characters, because it is sent in a header"
        )
    return text.encode()


class ArgumentReader:
    """Converts the parameters and bodies of the operations in the OpenAPI ``document`` to tool arguments.

    Leaves out parameters that the HTTP client ``http`` sets itself.
    """

    def __init__(self, document: Document, http: httpx2.AsyncClient) -> None:
        self._document = document
        self.schemas = Schemas(document, "readOnly")
        self._own: dict[str, Collection[str]] = {
            "path": (),
            "query": frozenset(http.params),
            "header": _OWN_HEADERS | frozenset(name.lower() for name in http.headers),
            "cookie": frozenset(http.cookies),
        }

    def read(self, operation: APIOperation) -> Arguments:
        """Return the tool arguments for the OpenAPI ``operation``. Raises `ValueError` if the operation can't be
        called."""
        properties: JSONObject = {}
        required: list[str] = []
        parameters = [self._parameter(*each, properties, required) for each in self._parameters(operation)]
        missing = set(re.findall(r"\{([^{}]*)\}", operation.path)) - {
            each.name for each in parameters if each.location == "path"
        }
        if missing or any(part in (".", "..") for part in operation.path.split("/")):
            raise ValueError(
                f"the path has no parameter {', '.join(sorted(missing))}" if missing else "the path has .."
            )
        body = self._body(operation, properties, required)
        schema: JSONObject = {"type": "object", "properties": properties, "additionalProperties": False}
        if required:
            schema["required"] = required
        path = re.sub(r"[^{}]+", lambda found: quote(found[0], safe="/%:@!$&'()*+,;=~"), operation.path)
        complete = self.schemas.complete(schema)
        return Arguments(complete, LateValidator(complete), path, tuple(parameters), body)

    def _parameters(self, operation: APIOperation) -> list[tuple[JSONObject, str]]:
        """Return the operation's parameters, ordered by where they are sent (path, query and so on).

        Each parameter comes with the URI of the document that contains the parameter.
        """
        found: dict[tuple[str, str], tuple[JSONObject, str]] = {}
        for holder in (operation.item, operation.data):
            for value in items_of(holder, "parameters"):
                parameter, base = self._document.follow(value, operation.base)
                place, name = str(parameter.get("in")), parameter.get("name")
                if not isinstance(name, str) or not name:
                    raise ValueError(f"the name of a parameter must be a non-empty string, not {reprlib.repr(name)}")
                if place not in _LOCATIONS:
                    raise ValueError(
                        f"the parameter {name!r} must be in path, query, header or cookie, not in {place!r}"
                    )
                if place == "header" and not _TOKEN.fullmatch(name):
                    raise ValueError(f"{name!r} is not a valid header name")
                if (name.lower() if place == "header" else name) not in self._own[place]:
                    found[place, name] = parameter, base
        return sorted(found.values(), key=lambda each: _LOCATIONS.index(each[0]["in"]))

    def _parameter(self, data: JSONObject, base: str, properties: JSONObject, required: list[str]) -> Parameter:
        name, place = data["name"], data["in"]
        content = as_object(data.get("content"))
        schema: Any = data.get("schema", {})
        for media in content.values():
            schema = as_object(media).get("schema", {})
        made = self.schemas.converted(schema, base)
        argument = _argument(name, place, properties)
        properties[argument] = _described(made, data)
        if data.get("required") is True or place == "path":
            required.append(argument)
        style = str(data.get("style", _STYLES[place]))
        explode = bool(data.get("explode", style in ("form", "deepObject")))
        reserved = data.get("allowReserved") is True
        return Parameter(argument, name, place, style, explode, bool(content), reserved)

    def _body(self, operation: APIOperation, properties: JSONObject, required: list[str]) -> Body | None:
        data, base = self._document.follow(operation.data.get("requestBody"), operation.base)
        kinds = {kind.partition(";")[0].strip().lower(): kind for kind in as_object(data.get("content"))}
        if not kinds:
            return None
        chosen = min(kinds, key=_preference)
        media, base = self._document.follow(data["content"][kinds[chosen]], base)
        argument = _argument("body", "body", properties)
        schema: Any = _BASE64
        files: Mapping[str, str] = {}
        if _is_text(chosen):
            schema = {"type": "string"}
        elif _preference(chosen) < _preference("text/plain"):
            schema = self.schemas.converted(media.get("schema", {}), base)
            if chosen == "multipart/form-data":
                schema, files = self._with_files(schema)
        if "*" in chosen:
            chosen = "application/octet-stream"
        properties[argument] = _described(schema, data)
        if data.get("required") is True:
            required.append(argument)
        return Body(argument, chosen, files, as_object(media.get("encoding")))

    def _with_files(self, schema: Any) -> tuple[Any, Mapping[str, str]]:
        """Return the form's schema ``schema``, changed so that files are base64 text. Each file gets another property
        for its file name.

        Also returns a mapping from each file's property to the property with its file name.
        """
        form = self.schemas.resolved(schema)
        parts = as_object(as_object(form).get("properties"))
        files: JSONObject = {}
        names: dict[str, str] = {}
        for name, part in parts.items():
            plain = as_object(self.schemas.resolved(part))
            item = self.schemas.resolved(plain.get("items"))
            filename: JSONObject = {"type": "string"}
            if _is_file(plain):
                files[name] = _title_and_description(plain) | _BASE64
            elif _is_file(item):
                files[name] = {**plain, "items": _BASE64}
                filename = {"type": "array", "items": {"type": "string"}}
            else:
                continue
            names[name] = legal_name(f"{name}_filename", {*parts, *names.values()})
            files[names[name]] = {**filename, "description": f"File name of {name}."}
        if not files:
            return schema, {}
        return {**cast("JSONObject", form), "properties": parts | files}, names


def _is_file(schema: Any) -> bool:
    said = as_object(schema)
    return said.get("format") == "binary" or ("contentMediaType" in said and "contentEncoding" not in said)


def _title_and_description(schema: JSONObject) -> JSONObject:
    return {key: said for key, said in schema.items() if key in ("title", "description")}


def _preference(media_type: str) -> int:
    """Return a number that is lower if a media type suits a request body better."""
    if is_json(media_type):
        return 0 if media_type == "application/json" else 1
    if media_type in (forms := ("application/x-www-form-urlencoded", "multipart/form-data")):
        return 2 + forms.index(media_type)
    return 4 if _is_text(media_type) else 5


def _argument(name: str, location: str, taken: Collection[str]) -> str:
    plain = legal_name(name, ())
    return legal_name(f"{plain}_{location}", taken) if plain in taken else plain


def _described(schema: Any, data: JSONObject) -> Any:
    """Return ``schema`` with the description of its parameter or body added."""
    words = data.get("description")
    deprecated = {"deprecated": True} if data.get("deprecated") is True else {}
    if not isinstance(words, str) or not isinstance(schema, dict):
        return schema
    return {**cast("JSONObject", schema), "description": words, **deprecated}
