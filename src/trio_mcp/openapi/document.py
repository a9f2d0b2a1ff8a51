"""`Document`: an OpenAPI 3.0 or 3.1 document, with its operations, the targets of its references, and its server URLs.

A document is plain data. References to other documents are followed only with the author's loader, and each document is
loaded once.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, TypeAlias, cast
from urllib.parse import unquote, urldefrag, urljoin

from ..classes import frozen
from ..jsonrpc.sizes import is_too_deep
from ..protocol.fields import JSONObject, as_object
from ..protocol.inlining import at_pointer
from ..server.calling.results import to_plain
from . import httpx2

Loader: TypeAlias = Callable[[str], Mapping[str, Any]]
"""Function that returns the document at a URI as plain data. A relative URI is relative to the author's document."""

_METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
_VERSION: Final = re.compile(r"3\.[01]\.\d+")
_MAX_LEVELS: Final = 500
"""Maximum nesting of an OpenAPI document."""
_HOPS: Final = 32
"""Maximum length of a chain of references, each of which leads to the next."""
_LONGEST_NAME: Final = 64
"""Characters that all model providers accept in names of tools and arguments."""


@frozen(eq=False)
class APIOperation:
    """An operation of an OpenAPI document. `from_openapi` passes it to your functions that choose or describe
    operations."""

    name: str
    """Name of the tool for the operation."""
    id: str | None
    """The ``operationId`` in the document."""
    method: str
    """HTTP method of the operation in capital letters."""
    path: str
    """Path of the operation, with the names of its parameters in braces."""
    tags: tuple[str, ...]
    """Tags of the operation in the document."""
    deprecated: bool
    """True if the document marks the operation as deprecated."""
    data: JSONObject
    """The operation object in the document, including extensions."""
    item: JSONObject
    """The path item of the operation."""
    base: str
    """URI of the document that contains the operation. Empty for the document that you passed."""


def legal_name(text: str, taken: Collection[str]) -> str:
    """Return a tool name based on ``text`` that all model providers accept, and that isn't in ``taken``."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_")[:_LONGEST_NAME] or "_"
    number = 1
    unique = name
    while unique in taken:
        number += 1
        unique = f"{name[: _LONGEST_NAME - 8]}_{number}"
    return unique


def is_json(media_type: str) -> bool:
    """Return whether ``media_type`` means JSON, in any case and with any parameters."""
    kind = media_type.partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def items_of(holder: JSONObject, key: str) -> list[Any]:
    """Return the list ``holder[key]``. Return an empty list if the value is missing or null. Raises `ValueError` for
    any other value."""
    value = holder.get(key)
    if value is not None and not isinstance(value, list):
        raise ValueError(f"{key} must be a list, not {reprlib.repr(value)}")
    return cast("list[Any]", value or [])


class Document:
    """An OpenAPI document. ``root`` is its JSON data.

    If ``root`` refers to other documents, ``loader`` returns these documents. Raises `ValueError` if the OpenAPI
    version isn't supported.
    """

    def __init__(self, root: Mapping[str, Any], loader: Loader | None) -> None:
        self.root = _plain(root, "the document")
        version = str(self.root.get("openapi", self.root.get("swagger", "none")))
        if not _VERSION.fullmatch(version):
            raise ValueError(f"the OpenAPI version must be 3.0 or 3.1, not {version[:50]!r}")
        self.is_old = version.startswith("3.0")
        """True if the document is OpenAPI 3.0, whose schemas aren't JSON Schemas."""
        self._loader = loader
        self._loaded: dict[str, JSONObject] = {"": self.root}
        self._targets: dict[tuple[str, str], tuple[Any, str, str]] = {}

    def target(self, reference: Any, base: str) -> tuple[Any, str, str]:
        """Return what ``reference``, in the document ``base``, refers to: the value, the URI of its document, and the
        JSON pointer to the value.

        Raises `ValueError` if the target doesn't exist.
        """
        if not isinstance(reference, str):
            raise ValueError(f"$ref must be a string, not {reprlib.repr(reference)}")  # noqa: TRY004 - a document's fault
        if (found := self._targets.get((reference, base))) is None:
            found = self._targets[reference, base] = self._target(reference, base)
        return found

    def _target(self, reference: str, base: str) -> tuple[Any, str, str]:
        uri, pointer = urldefrag(urljoin(base, reference) if not reference.startswith("#") else base + reference)
        if (value := at_pointer(self._document(uri, reference), unquote(pointer))) is None:
            raise ValueError(f"the reference {reference[:200]!r} has no target")
        if pointer and not pointer.startswith("/"):
            raise ValueError(f"the reference {reference[:200]!r} is not a JSON pointer; anchors are not supported")
        return value, uri, pointer

    def follow(self, value: Any, base: str) -> tuple[JSONObject, str]:
        """Return ``value``. If it is a reference, return the object that it refers to.

        Also return the URI of the document that contains this object.
        """
        for _ in range(_HOPS):
            members = as_object(value)
            if not isinstance(members.get("$ref"), str):
                return members, base
            value, base, _ = self.target(members["$ref"], base)
        raise ValueError("a $ref in the document refers to itself, directly or through other references")

    def _document(self, uri: str, reference: str) -> JSONObject:
        if uri not in self._loaded:
            if self._loader is None:
                raise ValueError(
                    f"the reference {reference[:200]!r} leads to another document, which is not fetched: pass a "
                    f"loader, for example from_openapi(..., loader={{{uri[:200]!r}: document}}.__getitem__)"
                )
            try:
                loaded = self._loader(uri)
            except KeyError:  # a loader such as `mapping.__getitem__` raises KeyError for an unknown document
                raise ValueError(f"the loader has no document {uri[:200]!r}") from None
            self._loaded[uri] = _plain(loaded, f"the document {uri[:200]!r}")
        return self._loaded[uri]

    def operations(self) -> Iterator[APIOperation]:
        """Yield all operations in the order of the OpenAPI document. Each operation has a unique name."""
        taken: set[str] = set()
        for path, value in as_object(self.root.get("paths")).items():
            if not path.startswith("/"):  # an extension
                continue
            item, base = self.follow(value, "")
            for method in _METHODS:
                if method not in item:
                    continue
                data = as_object(item[method])
                said: Any = data.get("operationId")
                given = said if isinstance(said, str) else None
                name = legal_name(given if given is not None else f"{method}{path}", taken)
                taken.add(name)
                tags = tuple(tag for tag in items_of(data, "tags") if isinstance(tag, str))
                deprecated = data.get("deprecated") is True
                yield APIOperation(name, given, method.upper(), path, tags, deprecated, data, item, base)

    def server_of(
        self, operation: APIOperation, home: httpx2.URL, variables: Mapping[str, str]
    ) -> tuple[httpx2.URL, str]:
        """Return the base URL of ``operation``, with a slash at the end.

        Also return Python code to show in an error message: the code removes the operation's servers from the document.

        The servers are those of the operation, otherwise of the path, otherwise of the document. The first server at
        ``home`` is preferred, otherwise the first of all. Without servers, ``home`` is the server.
        """
        item = f"document['paths'][{operation.path!r}]"
        holders = {
            f"{item}[{operation.method.lower()!r}].pop('servers')": operation.data,
            f"{item}.pop('servers')": operation.item,
            "document.pop('servers')": self.root,
        }
        found = [(items, code) for code, holder in holders.items() if (items := items_of(holder, "servers"))]
        if not found:
            return home, ""
        servers, removal = found[0]
        try:
            urls = [home.join(_expanded(as_object(server), variables)) for server in servers]
        except httpx2.InvalidURL as error:
            raise ValueError(f"the server URL cannot be used: {error}") from None
        url = next((url for url in urls if url.origin == home.origin), urls[0])
        return url.copy_with(path=url.path.rstrip("/") + "/", query=None, fragment=None), removal


def _expanded(server: JSONObject, variables: Mapping[str, str]) -> str:
    """Return the URL of ``server`` with its variables replaced by ``variables``, or by the defaults in the document."""
    known = as_object(server.get("variables"))

    def value_of(found: re.Match[str]) -> str:
        variable = as_object(known.get(found[1]))
        value = variables.get(found[1], variable.get("default"))
        if value is None:
            raise ValueError(
                f"the server variable {found[1]!r} has no value: pass from_openapi(..., variables={{...}})"
            )
        if (allowed := items_of(variable, "enum")) and value not in allowed:
            raise ValueError(f"the server variable {found[1]!r} must be one of {allowed}, not {value!r}")
        return str(value)

    return re.sub(r"\{([^{}]*)\}", value_of, str(server.get("url", "/")))


def _plain(document: object, name: str) -> JSONObject:
    """Return ``document`` as plain JSON data, with strings as keys. Raises `ValueError` if the document can't be
    converted."""
    if isinstance(document, Mapping):
        try:
            text = json.dumps(document, default=_spelled, ensure_ascii=False)
            plain = json.loads(text.encode("utf-8", "replace"), parse_constant=lambda _: None)
        except RecursionError:
            plain = None
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} cannot be written as JSON: {error}") from None
        # in some Python versions, json.dumps succeeds for deeply nested values
        if plain is None or is_too_deep(plain, _MAX_LEVELS):
            raise ValueError(f"{name} has more than {_MAX_LEVELS} levels, or contains itself")
        return plain
    raise ValueError(f"{name} must be a mapping, not {reprlib.repr(document)}")


def _spelled(value: Any) -> Any:
    return dict(cast("Mapping[Any, Any]", value)) if isinstance(value, Mapping) else to_plain(value)
