"""The five protocol revisions as tables of facts. Each is defined as its predecessor plus the changes in the official
changelog.

`declares` returns whether a client has declared a capability, if the client's revision has it.
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
    """A revision of the MCP specification, with attributes that describe its features.

    There is one instance of each revision. Compared by identity.
    """

    name: str
    """Name of the revision, which is its date, such as ``2025-11-25``."""
    handshake: bool
    """True if connections open with ``initialize``. Otherwise, each request has its version and capabilities in
    ``_meta``."""
    server_requests: bool
    """True if the server may send requests. Otherwise, it returns ``InputRequiredResult`` to ask for input."""
    batches: bool
    """True if JSON-RPC batches (arrays of messages) are accepted."""
    log_level: Literal["connection", "request"]
    """How the minimum log level is set: with ``logging/setLevel``, or in ``_meta`` of each request."""
    changes: Literal["free", "listen"]
    """When list changes and resource updates are sent: at any time, or only on ``subscriptions/listen``."""
    result_type: bool
    """True if results contain ``resultType``."""
    cache_hints: bool
    """True if results of cacheable methods contain ``ttlMs`` and ``cacheScope``."""
    server_info_in_meta: bool
    """True if results contain the server's name and version in ``_meta``."""
    resource_not_found: int
    """The error code for an unknown resource."""
    invalid_arguments: Literal["error", "result"]
    """Kind of the reply to invalid arguments of a tool: a JSON-RPC error, or a result with ``isError`` that the model
    can read."""
    missing_capability: int
    """The error code for a request that requires a capability which the client hasn't declared."""
    renamed_errors: Mapping[int, int]
    """Error codes of other revisions, mapped to the codes of this revision."""
    structured_content: Literal["none", "object", "any"]
    """The JSON types of values that ``structuredContent`` can have."""
    progress_message: bool
    """True if progress notifications may contain a ``message``."""
    polling: bool
    """True if a server may end an HTTP response early, so that the client must reconnect for the rest."""
    tasks: Literal["none", "core", "extension"]
    """The form of background tasks: requested by the caller, or, as in the tasks extension, chosen by the server."""
    sub_capabilities: bool
    """True if clients declare parts of ``sampling`` and ``elicitation``, such as ``sampling.tools``."""
    _methods: Mapping[str, Method] = MappingProxyType({})
    """The methods of the protocol revision, keyed by name."""

    def __str__(self) -> str:
        return self.name


def _chain() -> list[Revision]:
    first = Revision(
        "2024-11-05",
        handshake=True,
        server_requests=True,
        batches=True,  # JSON-RPC 2.0 defines batches, and MCP 2024-11-05 doesn't exclude them
        log_level="connection",
        changes="free",
        result_type=False,
        cache_hints=False,
        server_info_in_meta=False,
        resource_not_found=-32002,
        invalid_arguments="error",
        missing_capability=-32600,
        # If a proxy forwards the error -32021 (missing client capability) to a legacy client, the client gets -32600.
        renamed_errors=MappingProxyType({-32021: -32600}),
        structured_content="none",
        progress_message=False,
        polling=False,
        tasks="none",
        sub_capabilities=False,
    )
    # New in MCP 2025-03-26 (changelog): audio, completions capability, progress message, tool annotations, batches
    second = evolve(first, name="2025-03-26", progress_message=True)
    # New in MCP 2025-06-18 (changelog): structured output, elicitation, resource links, titles, no more batches
    third = evolve(second, name="2025-06-18", batches=False, structured_content="object")
    # New in MCP 2025-11-25 (changelog): polling of SSE streams (SEP-1699), icons, URL elicitation, tasks.
    # Since MCP 2025-11-25, invalid tool arguments are tool errors, not protocol errors (SEP-1303).
    fourth = evolve(
        third, name="2025-11-25", invalid_arguments="result", polling=True, tasks="core", sub_capabilities=True
    )
    # New in MCP 2026-07-28 (changelog): no handshake, no requests from the server, results have a type
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
        # MCP 2026-07-28 replaces the error -32002 (resource not found) by -32602 (basic, Error Codes).
        # MCP 2026-07-28 doesn't have the error -32042 (URL elicitation required), so send -32603.
        renamed_errors=MappingProxyType({-32002: -32602, -32042: -32603}),
        structured_content="any",
        polling=False,
        tasks="extension",  # background tasks became an extension in MCP 2026-07-28
    )
    return [first, second, third, fourth, fifth]


def _with_methods(row: Revision) -> Revision:
    has: dict[str, Any] = {method.name: method for method in ROWS if method.is_in(row.name)}
    return evolve(row, methods=MappingProxyType(has))


REVISIONS: Final[Mapping[str, Revision]] = MappingProxyType({row.name: _with_methods(row) for row in _chain()})
"""The protocol revisions, keyed by name, oldest first."""

LEGACY_REVISIONS: Final = tuple(row for row in REVISIONS.values() if row.handshake)
MODERN_REVISIONS: Final = tuple(row for row in REVISIONS.values() if not row.handshake)
LATEST_LEGACY: Final = LEGACY_REVISIONS[-1]
LATEST_MODERN: Final = MODERN_REVISIONS[-1]


@cache
def requests_of(role: Literal["client", "server"], revision: Revision) -> Mapping[str, Method]:
    """Return the request methods that ``role`` may send in ``revision``, keyed by name."""
    return {name: row for name, row in revision._methods.items() if row.is_request and row.sent_by(role)}


@cache
def notifications_of(role: Literal["client", "server"], revision: Revision) -> Mapping[str, Method]:
    """Return the notification methods that ``role`` may send in ``revision``, keyed by name."""
    return {name: row for name, row in revision._methods.items() if not row.is_request and row.sent_by(role)}


Rows: TypeAlias = Callable[[Literal["client", "server"], Revision], Mapping[str, Method]]


@frozen(eq=False)
class Vocabulary:
    """The methods that may be used on a connection: those of the specification, and those of the connection's
    extensions."""

    requests_of: Rows
    """Function that returns the request methods that a role may send in a revision, keyed by name."""
    notifications_of: Rows
    """Function that returns the notification methods that a role may send in a revision, keyed by name."""
    names: frozenset[str]
    """The names of all methods, in all revisions."""


CORE: Final = Vocabulary(requests_of, notifications_of, frozenset(METHODS))
"""The methods of the specification, without extensions."""


def lacks_notification(method: str, role: Literal["client", "server"], revision: Revision) -> bool:
    """Return true if the specification has the notification ``method``, but ``role`` can't send it in ``revision``.

    Return false for names outside the specification, such as those of extensions.
    """
    return method in METHODS and method not in notifications_of(role, revision)


def negotiate(requested: str) -> Revision:
    """Return the legacy protocol revision that a server selects in its response to ``initialize``.

    This is the requested revision if it is known, otherwise the latest legacy revision. 2025-11-25 lifecycle, Version
    Negotiation.
    """
    row = REVISIONS.get(requested)
    return row if row is not None and row.handshake else LATEST_LEGACY


ASKED_BY: Final[Mapping[str, str]] = {
    "sampling": "sampling/createMessage",
    "elicitation": "elicitation/create",
    "roots": "roots/list",
}
"""The client capabilities that allow a server to send requests, each with the methods of these requests."""

_ALWAYS: Final = frozenset(("sampling.context", "elicitation.form"))
"""Sub-capabilities that every client with the main capability has, because older revisions don't declare
sub-capabilities (2025-11-25 changelog)."""


def has_capability(revision: Revision, path: str) -> bool:
    """Return true if a client of ``revision`` can declare the capability ``path``, such as ``"sampling.tools"``.

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
    """Return true if a client that declared ``capabilities`` in ``revision`` supports the capability ``path``.

    A member that was introduced by a later revision is ignored. In a revision that declares no parts, each part is
    supported together with the whole.
    """
    said = _declared_path(revision, path)
    return said is not None and capabilities.supports(said)


@lru_cache(maxsize=256)
def _declared_path(revision: Revision, path: str) -> str | None:
    """Return the name under which a client of ``revision`` declares the capability ``path``: ``path`` itself, or the
    capability that contains it.

    Return `None` if the revision has no such capability.
    """
    if not has_capability(revision, path):
        return None
    return path if revision.sub_capabilities or path not in _ALWAYS else path.partition(".")[0]
