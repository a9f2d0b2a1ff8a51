"""The keys of ``_meta`` reserved by the specification, and how to read a progress token.

``_meta`` itself stays the plain dict received: every unknown key is kept verbatim. The ``_meta`` of a request is kept
beside its parameters; results, notifications and their parts have a field for ``_meta``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, TypeAlias, cast

PROTOCOL_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
CLIENT_INFO: Final = "io.modelcontextprotocol/clientInfo"
CLIENT_CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL: Final = "io.modelcontextprotocol/logLevel"
SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION_ID: Final = "io.modelcontextprotocol/subscriptionId"
RELATED_TASK: Final = "io.modelcontextprotocol/related-task"
PROGRESS_TOKEN: Final = "progressToken"  # noqa: S105, a key and no password
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
BAGGAGE: Final = "baggage"

ProgressToken: TypeAlias = int | str

_LABEL: Final = r"[A-Za-z](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_KEY: Final = re.compile(rf"(?:({_LABEL}(?:\.{_LABEL})*)/)?(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)?")
_RESERVED_LABELS: Final = ("modelcontextprotocol", "mcp")
_DEFINED: Final = frozenset(
    (PROTOCOL_VERSION, CLIENT_INFO, CLIENT_CAPABILITIES, LOG_LEVEL, SERVER_INFO, SUBSCRIPTION_ID, RELATED_TASK)
)


def check_meta_keys(meta: Iterable[str] | None) -> None:
    """Raise `ValueError` for a key that an author may not put into ``_meta`` (2026-07-28 basic, ``_meta``).

    Such a key is malformed, or has a prefix reserved for MCP without being defined by MCP. Keys from peers are not
    checked, and are kept unchanged.
    """
    for key in meta or ():
        match = _KEY.fullmatch(key)
        if match is None:
            raise ValueError(
                f"{key!r} is no key of _meta: a key is a name like retries or run.id, best with the reversed name of "
                "a domain before it, as in com.example/retries"
            )
        labels = (match[1] or "").lower().split(".")
        if len(labels) > 1 and labels[1] in _RESERVED_LABELS and key not in _DEFINED:
            raise ValueError(
                f"{key!r} is no key of yours: prefixes with {labels[1]!r} as their second label are reserved for MCP; "
                "take the reversed name of a domain of yours, as in com.example/retries"
            )


def progress_token_of(meta: object) -> ProgressToken | None:
    """Return the progress token in ``meta``, `None` when there is none.

    ``0`` and ``""`` are tokens. Any other value than a string or an integer is no token, and the request is served
    without progress (2025-11-25 progress, Progress Flow: MUST be a string or integer value).
    """
    if type(meta) is not dict:
        return None
    token = cast("dict[str, Any]", meta).get(PROGRESS_TOKEN)
    return token if type(token) is int or type(token) is str else None


def related_task_of(params: dict[str, Any]) -> str | None:
    """Return the id of the task that a message with these parameters belongs to; `None` where it names none."""
    meta: Any = params.get("_meta")
    related: Any = cast("dict[str, Any]", meta).get(RELATED_TASK) if type(meta) is dict else None
    task_id: Any = cast("dict[str, Any]", related).get("taskId") if type(related) is dict else None
    return task_id if type(task_id) is str else None


def with_related_task(members: dict[str, Any] | None, task_id: str) -> dict[str, Any]:
    """Return parameters, or a result, with the task that they belong to in ``_meta`` (2025-11-25 tasks, Related Task
    Metadata)."""
    members = members or {}
    return {**members, "_meta": {**(members.get("_meta") or {}), RELATED_TASK: {"taskId": task_id}}}
