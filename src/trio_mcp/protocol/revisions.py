"""The five revisions as rows of facts: each is its predecessor plus the lines of the official changelog.

`declares` tells whether a client has declared a capability, as far as the client's revision has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from ..classes import evolve, frozen
from .methods import METHODS, ROWS, Method
from .types.lifecycle import ClientCapabilities


@frozen(eq=False)
class Revision:
    """A revision of the specification, as facts. Compared by identity: there is one row of each."""

    name: str
    handshake: bool
    """True: connections open with ``initialize``. False: each request has its version and capabilities in ``_meta``."""
    server_requests: bool
    """True: the server may send requests. False: it asks by returning ``InputRequiredResult``."""
    batches: bool
    """True: arrays of messages are accepted."""
    log_level: Literal["connection", "request"]
    """Place where the minimum log level is set: ``logging/setLevel``, or ``_meta`` of each request."""
    changes: Literal["free", "listen"]
    """List changes and resource updates are sent freely, or on ``subscriptions/listen`` only."""
    result_type: bool
    """True: results carry ``resultType``."""
    cache_hints: bool
    """True: results of cacheable methods carry ``ttlMs`` and ``cacheScope``."""
    server_info_in_meta: bool
    """True: results carry the server's name and version in ``_meta``."""
    resource_not_found: int
    """The error code for an unknown resource."""
    invalid_arguments: Literal["error", "result"]
    """A tool's bad arguments are a JSON-RPC error, or a result with ``isError`` that the model can read."""
    missing_capability: int
    """The error code for a request whose required capability the client did not declare."""
    renamed_errors: Mapping[int, int]
    """Error codes of other revisions, mapped to the codes of this revision."""
    structured_content: Literal["none", "object", "any"]
    """Values that ``structuredContent`` may hold."""
    progress_message: bool
    """True: progress notifications may carry a ``message``."""
    polling: bool
    """True: over HTTP, a server may end a response before its time, and the client comes back for the rest."""
    tasks: Literal["none", "core", "extension"]
    """Form of tasks: asked for by the requestor, or decided on by the server as the extension says."""
    sub_capabilities: bool
    """True: clients declare parts of ``sampling`` and of ``elicitation``, ``sampling.tools`` for example."""
    _methods: Mapping[str, Method] = MappingProxyType({})
    """The methods of the revision, by name."""

    def __str__(self) -> str:
        return self.name


def _chain() -> list[Revision]:
    first = Revision(
        "2024-11-05",
        handshake=True,
        server_requests=True,
        batches=True,  # base JSON-RPC; the specification does not speak of them yet
        log_level="connection",
        changes="free",
        result_type=False,
        cache_hints=False,
        server_info_in_meta=False,
        resource_not_found=-32002,
        invalid_arguments="error",
        missing_capability=-32600,
        # a proxy passes on the error of a modern server about its client's capabilities
        renamed_errors=MappingProxyType({-32021: -32600}),
        structured_content="none",
        progress_message=False,
        polling=False,
        tasks="none",
        sub_capabilities=False,
    )
    # changelog 2025-03-26: audio, completions capability, progress message, tool annotations, batches
    second = evolve(first, name="2025-03-26", progress_message=True)
    # changelog 2025-06-18: batches removed, structured output, elicitation, resource links, titles
    third = evolve(second, name="2025-06-18", batches=False, structured_content="object")
    # changelog 2025-11-25: input validation errors are tool errors (SEP-1303), polling (SEP-1699), icons, URL
    # elicitation, tasks
    fourth = evolve(
        third, name="2025-11-25", invalid_arguments="result", polling=True, tasks="core", sub_capabilities=True
    )
    # changelog 2026-07-28: no handshake, no server requests, results say their type
    fifth = evolve(
        fourth,
        name="2026-07-28",
        handshake=False,
        server_requests=False,
        log_level="request",
        changes="listen",
        result_type=True,
        cache_hints=True,
        server_info_in_meta=True,
        resource_not_found=-32602,
        missing_capability=-32021,
        # basic, Error Codes: "replaced by -32602"; URLs are asked for by returning InputRequiredResult
        renamed_errors=MappingProxyType({-32002: -32602, -32042: -32603}),
        structured_content="any",
        polling=False,
        tasks="extension",  # removed from the core, and back as an extension
    )
    return [first, second, third, fourth, fifth]


def _with_methods(row: Revision) -> Revision:
    has: dict[str, Any] = {method.name: method for method in ROWS if method.is_in(row.name)}
    return evolve(row, methods=MappingProxyType(has))


REVISIONS: Final[Mapping[str, Revision]] = MappingProxyType({row.name: _with_methods(row) for row in _chain()})
"""The revisions by name, oldest first."""

LEGACY_REVISIONS: Final = tuple(row for row in REVISIONS.values() if row.handshake)
MODERN_REVISIONS: Final = tuple(row for row in REVISIONS.values() if not row.handshake)
LATEST_LEGACY: Final = LEGACY_REVISIONS[-1]
LATEST_MODERN: Final = MODERN_REVISIONS[-1]


@cache
def requests_of(role: Literal["client", "server"], revision: Revision) -> Mapping[str, Method]:
    """Return the requests that ``role`` may send in ``revision``, by name."""
    return {name: row for name, row in revision._methods.items() if row.is_request and row.sent_by(role)}


@cache
def notifications_of(role: Literal["client", "server"], revision: Revision) -> Mapping[str, Method]:
    """Return the notifications that ``role`` may send in ``revision``, by name."""
    return {name: row for name, row in revision._methods.items() if not row.is_request and row.sent_by(role)}


Rows: TypeAlias = Callable[[Literal["client", "server"], Revision], Mapping[str, Method]]


@frozen(eq=False)
class Vocabulary:
    """The methods of a connection: those of the specification and, besides, those of extensions."""

    requests_of: Rows
    """Returns the requests that a role may send in a revision, by name."""
    notifications_of: Rows
    """Returns the notifications that a role may send in a revision, by name."""
    names: frozenset[str]
    """The names of the methods of all revisions."""


CORE: Final = Vocabulary(requests_of, notifications_of, frozenset(METHODS))
"""The methods of the specification alone."""


def lacks_notification(method: str, role: Literal["client", "server"], revision: Revision) -> bool:
    """Return whether ``method`` is one of the specification that ``role`` cannot send as a notification in
    ``revision``. Names of others, such as those of extensions, are not judged."""
    return method in METHODS and method not in notifications_of(role, revision)


def negotiate(requested: str) -> Revision:
    """Return the legacy revision for the answer to ``initialize``: the requested one if known, else the server's
    latest.

    2025-11-25 lifecycle, Version Negotiation.
    """
    row = REVISIONS.get(requested)
    return row if row is not None and row.handshake else LATEST_LEGACY


ASKED_BY: Final[Mapping[str, str]] = {
    "sampling": "sampling/createMessage",
    "elicitation": "elicitation/create",
    "roots": "roots/list",
}
"""Capabilities that allow requests to a client, and the requests."""

_ALWAYS: Final = frozenset(("sampling.context", "elicitation.form"))
"""Parts that belonged to the whole capability before parts were declared (2025-11-25 changelog)."""


def has_capability(revision: Revision, path: str) -> bool:
    """Return whether a client that speaks ``revision`` can declare ``path``, ``"sampling.tools"`` for example.

    A capability that allows no request, such as an extension, can be declared in all revisions.
    """
    kind, _, part = path.partition(".")
    if kind == "tasks":
        return revision.tasks == "core"
    method = ASKED_BY.get(kind)
    if method is None:
        return True
    return METHODS[method].since <= revision.name and (not part or revision.sub_capabilities or path in _ALWAYS)


def declares(capabilities: ClientCapabilities, path: str, revision: Revision) -> bool:
    """Return whether a client that speaks ``revision`` and declared ``capabilities`` supports ``path``.

    A member introduced by a later revision is ignored. In a revision that declares no parts, each part is supported
    with the whole.
    """
    said = _declared_path(revision, path)
    return said is not None and capabilities.supports(said)


@lru_cache(maxsize=256)
def _declared_path(revision: Revision, path: str) -> str | None:
    """Return the path that a client of ``revision`` declares to support ``path``; `None` if there is no such path."""
    if not has_capability(revision, path):
        return None
    return path if revision.sub_capabilities or path not in _ALWAYS else path.partition(".")[0]
