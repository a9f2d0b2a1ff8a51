"""The keys of ``_meta`` that the specification reserves, such as the progress token and the trace context.

``_meta`` itself stays the received dict, with every unknown key unchanged. The ``_meta`` of a request is kept beside
its parameters. Results, notifications and their parts have a field for ``_meta``. `TraceContext` is the distributed
trace that a request belongs to (W3C Trace Context, W3C Baggage).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias, cast

from ..classes import frozen
from ..lazy import lazy_pattern

PROTOCOL_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
CLIENT_INFO: Final = "io.modelcontextprotocol/clientInfo"
CLIENT_CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL: Final = "io.modelcontextprotocol/logLevel"
SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION_ID: Final = "io.modelcontextprotocol/subscriptionId"
RELATED_TASK: Final = "io.modelcontextprotocol/related-task"
PROGRESS_TOKEN: Final = "progressToken"  # noqa: S105 - a key, not a password
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
BAGGAGE: Final = "baggage"
CANCEL_TOKEN: Final = "trio-mcp/cancelToken"  # noqa: S105 - a key, not a password
"""Key in ``_meta`` of the token that identifies a call in ``trio-mcp/cancelAcknowledged``."""
CLIENT: Final = "trio-mcp/client"
"""Key in ``_meta`` of a random name of the client, if clients share connections, or a client uses several. A server
divides a caller's limits among these names (ruling 11)."""

ProgressToken: TypeAlias = int | str

_LABEL: Final = r"[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
PREFIX: Final = rf"{_LABEL}(?:\.{_LABEL})*"
"""Pattern of the prefix of a key of ``_meta`` or of an extension's name: labels with dots in between."""
NAME: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_KEY: Final = lazy_pattern(rf"(?:({PREFIX})/)?(?:{NAME})?")
_DEFINED: Final = frozenset(
    (PROTOCOL_VERSION, CLIENT_INFO, CLIENT_CAPABILITIES, LOG_LEVEL, SERVER_INFO, SUBSCRIPTION_ID, RELATED_TASK)
)


def reserved_label(prefix: str) -> str | None:
    """Return the second label of ``prefix`` if it reserves the prefix for the authors of the specification."""
    labels = prefix.lower().split(".")
    return labels[1] if len(labels) > 1 and labels[1] in ("modelcontextprotocol", "mcp") else None


def check_meta_keys(meta: Iterable[str] | None) -> None:
    """Raise `ValueError` for a ``_meta`` key that a server or client must not create (2026-07-28 basic, ``_meta``).

    Such a key is malformed, or has a prefix that is reserved for MCP without being defined by MCP. Keys from peers
    aren't checked, and are kept unchanged.
    """
    for key in meta or ():
        match = _KEY.fullmatch(key)
        if match is None:
            raise ValueError(
                f"{key!r} is not a valid key of _meta: write a name like retries or run.id, preferably after your "
                "reversed domain, as in com.example/retries"
            )
        label = reserved_label(match[1] or "")
        if label is not None and key not in _DEFINED:
            raise ValueError(
                f"the _meta key {key!r} is reserved for MCP, because the second label of its prefix is {label!r}; "
                "use your own reversed domain, as in com.example/retries"
            )


def related_task_of(params: dict[str, Any]) -> str | None:
    """Return the id of the background task to which a message belongs, or `None`. ``params`` are the message's
    parameters."""
    meta: Any = params.get("_meta")
    related: Any = cast("dict[str, Any]", meta).get(RELATED_TASK) if type(meta) is dict else None
    task_id: Any = cast("dict[str, Any]", related).get("taskId") if type(related) is dict else None
    return task_id if type(task_id) is str else None


def with_related_task(members: dict[str, Any] | None, task_id: str) -> dict[str, Any]:
    """Return request parameters or a result with the id of a background task added to ``_meta``.

    (2025-11-25 tasks, Related Task Metadata.)
    """
    members = members or {}
    return {**members, "_meta": {**(members.get("_meta") or {}), RELATED_TASK: {"taskId": task_id}}}


_LONGEST: Final = 8192
"""Maximum number of characters of each of the three texts of a trace context. W3C Baggage, section Limits, requires
that texts of this length are propagated. Longer texts are ignored."""
_MOST_STATES: Final = 32  # W3C Trace Context, section "tracestate Header Field Values", allows at most 32

_TRACEPARENT: Final = lazy_pattern(
    r"(?!ff|00.{54})[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[\x21-\x7e]*+)?"
)
"""Length of a version 00 ``traceparent`` (W3C Trace Context, traceparent Header Field Values). Later versions may be
longer."""
_STATE: Final = lazy_pattern(r"([a-z0-9][a-z0-9_\-*/@]{0,255})=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{1,256}")
# Possessive quantifiers such as `*+` never backtrack, so matching takes linear time.
_TOKEN: Final = r"[ \t]*+[!#$%&'*+\-.^_`|~0-9A-Za-z]++[ \t]*+"  # noqa: S105 - a token of RFC 9110
_VALUE: Final = r"[ \t]*+[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*+[ \t]*+"
_BAGGAGE: Final = lazy_pattern(rf"{_TOKEN}={_VALUE}(?:;{_TOKEN}(?:={_VALUE})?)*+")


@frozen
class TraceContext:
    """The trace context in the ``_meta`` of a request (2026-07-28 basic, OpenTelemetry trace context).

    Its values are kept unchanged. Each member is well-formed or `None`. There is no ``tracestate`` without a
    ``traceparent``.
    """

    traceparent: str | None = None
    """The position in the trace, as ``00-<trace id>-<parent id>-<flags>``."""
    tracestate: str | None = None
    """Data that vendors of tracing systems have added."""
    baggage: str | None = None
    """Names and values that the application has added."""

    @classmethod
    def of(cls, meta: Mapping[str, Any]) -> TraceContext | None:
        """Return the trace context in ``meta``, or `None` if it has none.

        Malformed members are ignored.
        """
        if TRACEPARENT not in meta and BAGGAGE not in meta:
            return None
        traceparent = _text(meta.get(TRACEPARENT), lambda text: _TRACEPARENT.fullmatch(text) is not None)
        # W3C Trace Context, Processing Model: ignore tracestate if traceparent is missing or invalid.
        tracestate = _text(meta.get(TRACESTATE), _is_tracestate) if traceparent is not None else None
        baggage = _text(meta.get(BAGGAGE), lambda text: all(map(_BAGGAGE.fullmatch, text.split(","))))
        return cls(traceparent, tracestate, baggage) if traceparent is not None or baggage is not None else None

    @property
    def trace_id(self) -> str | None:
        """The trace id: 32 hexadecimal digits, the same in all requests of a trace."""
        return None if self.traceparent is None else self.traceparent[3:35]

    @property
    def parent_id(self) -> str | None:
        """The id of the span in which the request was sent: 16 hexadecimal digits."""
        return None if self.traceparent is None else self.traceparent[36:52]

    @property
    def is_sampled(self) -> bool:
        """True if the sender of the request may have recorded this trace: the ``sampled`` flag."""
        return self.traceparent is not None and bool(int(self.traceparent[53:55], 16) & 1)

    def inject_into(self, meta: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``meta`` with this trace context added, so that a nested request belongs to the same trace.

        A trace context that ``meta`` already has stays unchanged.
        """
        carried: dict[str, Any] = {}
        if self.traceparent is not None and TRACEPARENT not in meta and TRACESTATE not in meta:
            carried[TRACEPARENT] = self.traceparent
            if self.tracestate is not None:
                carried[TRACESTATE] = self.tracestate
        if self.baggage is not None:
            carried[BAGGAGE] = self.baggage
        return {**carried, **meta}


def _text(value: Any, is_valid: Callable[[str], bool]) -> str | None:
    return value if type(value) is str and 0 < len(value) <= _LONGEST and is_valid(value) else None


def _is_tracestate(value: str) -> bool:
    keys: list[str] = []
    for member in value.split(","):
        if not (member := member.strip(" \t")):
            continue
        if (match := _STATE.fullmatch(member)) is None:
            return False
        keys.append(match[1])
    return 0 < len(keys) <= _MOST_STATES and len(set(keys)) == len(keys)
