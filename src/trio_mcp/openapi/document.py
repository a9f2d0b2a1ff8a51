"""Document: the operations of an OpenAPI 3.0 or 3.1 document, the targets of references, and the URLs of servers.

A document is read as plain data. A reference to another document is followed by the author's loader alone, and each
document is loaded once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, TypeAlias, cast
from urllib.parse import unquote, urldefrag, urljoin

import httpx2

from ..classes import frozen
from ..protocol.fields import JSONObject

Loader: TypeAlias = Callable[[str], Mapping[str, Any]]
"""Returns the document of a URI, as plain data. A relative URI is relative to the document that the author gives."""

_METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
_VERSION: Final = re.compile(r"3\.[01]\.\d+")
_HOPS: Final = 32
"""References that lead to references."""
_LONGEST_NAME: Final = 64
"""Characters of a tool's or argument's name that all providers of models take."""


@frozen(eq=False)
class APIOperation:
    """An operation of an OpenAPI document, for the author to choose and to describe."""

    name: str
    """Name of the tool."""
    id: str | None
    """``operationId``."""
    method: str
    """HTTP method in capitals."""
    path: str
    """Path, with the names of its parameters in braces."""
    tags: tuple[str, ...]
    """Tags that the document gives the operation."""
    deprecated: bool
    """True where the document advises against the operation."""
    data: JSONObject
    """The operation as the document has it, extensions included."""
    item: JSONObject
    """The path item of the operation."""
    base: str
    """URI of the document that the operation stands in; empty for the document that the author has given."""


def legal_name(text: str, taken: Collection[str]) -> str:
    """Return ``text`` as a name that all providers of models take, unlike all that are ``taken``."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_")[:_LONGEST_NAME] or "_"
    number = 1
    unique = name
    while unique in taken:
        number += 1
        unique = f"{name[: _LONGEST_NAME - 8]}_{number}"
    return unique


def members_of(value: Any) -> JSONObject:
    """Return the members of an object, none for any other value."""
    return dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else {}


class Document:
    """The document ``root``, with the documents that ``loader`` gives. Raises `ValueError` for a document of another
    version."""

    def __init__(self, root: Mapping[str, Any], loader: Loader | None) -> None:
        version = str(root.get("openapi", root.get("swagger", "none")))
        if not _VERSION.fullmatch(version):
            raise ValueError(f"documents of OpenAPI 3.0 and 3.1 are read, and this one is of version {version[:50]!r}")
        self.root = root
        self.is_old = version.startswith("3.0")
        """True for OpenAPI 3.0, whose schemas are no JSON Schemas."""
        self._loader = loader
        self._loaded: dict[str, Mapping[str, Any]] = {"": root}

    def target(self, reference: str, base: str) -> tuple[Any, str, str]:
        """Return the target of ``reference`` in the document ``base``: the value, the document of the value, and the
        pointer there. Raises `ValueError` where there is nothing."""
        uri, pointer = urldefrag(urljoin(base, reference) if not reference.startswith("#") else base + reference)
        value: Any = self._document(uri, reference)
        for token in unquote(pointer).split("/")[1:]:
            token = token.replace("~1", "/").replace("~0", "~")
            if isinstance(value, Mapping) and token in value:
                value = cast("Mapping[str, Any]", value)[token]
            elif isinstance(value, list) and token.isdecimal() and int(token) < len(cast("list[Any]", value)):
                value = cast("list[Any]", value)[int(token)]
            else:
                raise ValueError(f"the reference {reference[:200]!r} leads nowhere")
        if pointer and not pointer.startswith("/"):
            raise ValueError(f"the reference {reference[:200]!r} is no JSON pointer; anchors are not read")
        return value, uri, pointer

    def follow(self, value: Any, base: str) -> tuple[JSONObject, str]:
        """Return the object that ``value`` is or refers to, and the document in which it stands."""
        for _ in range(_HOPS):
            members = members_of(value)
            if not isinstance(members.get("$ref"), str):
                return members, base
            value, base, _ = self.target(members["$ref"], base)
        raise ValueError("a reference leads back to itself")

    def _document(self, uri: str, reference: str) -> Mapping[str, Any]:
        if uri not in self._loaded:
            if self._loader is None:
                raise ValueError(
                    f"the reference {reference[:200]!r} leads to another document, and none is fetched: give a loader, "
                    f"from_openapi(..., loader={{{uri[:200]!r}: document}}.__getitem__) for example"
                )
            self._loaded[uri] = self._loader(uri)
        return self._loaded[uri]

    def operations(self) -> Iterator[APIOperation]:
        """Yield all operations in the order of the document, each under a name of its own."""
        taken: set[str] = set()
        for path, value in members_of(self.root.get("paths")).items():
            if not path.startswith("/"):  # an extension
                continue
            item, base = self.follow(value, "")
            for method in _METHODS:
                if method not in item:
                    continue
                data = members_of(item[method])
                given: Any = data.get("operationId")
                name = legal_name(given if isinstance(given, str) else f"{method}{path}", taken)
                taken.add(name)
                tags = tuple(map(str, data.get("tags") or ()))
                deprecated = data.get("deprecated") is True
                yield APIOperation(name, given, method.upper(), path, tags, deprecated, data, item, base)

    def server_of(self, operation: APIOperation, home: httpx2.URL, variables: Mapping[str, str]) -> httpx2.URL:
        """Return the URL before the path of ``operation``, with a slash at its end: of the servers of the operation,
        else of the path, else of the document, the first at ``home``, else the first. Without servers ``home`` is the
        server."""
        for holder in (operation.data, operation.item, self.root):
            if servers := cast("list[Any]", holder.get("servers") or []):
                break
        else:
            return home
        urls = [home.join(_expanded(members_of(server), variables)) for server in servers]
        url = next((url for url in urls if url.origin == home.origin), urls[0])
        return url.copy_with(path=url.path.rstrip("/") + "/", query=None, fragment=None)


def _expanded(server: JSONObject, variables: Mapping[str, str]) -> str:
    """Return the URL of ``server`` with a value for each variable: the author's, else the default."""
    known = members_of(server.get("variables"))

    def value_of(found: re.Match[str]) -> str:
        variable = members_of(known.get(found[1]))
        value = variables.get(found[1], variable.get("default"))
        if value is None:
            raise ValueError(f"the server variable {found[1]!r} has no value: from_openapi(..., variables={{...}})")
        if (allowed := variable.get("enum")) and value not in allowed:
            raise ValueError(f"the server variable {found[1]!r} is one of {allowed}, not {value!r}")
        return str(value)

    return re.sub(r"\{([^{}]*)\}", value_of, str(server.get("url", "/")))
