"""The keys of ``_meta`` that the specification reserves, and how to read a progress token.

``_meta`` itself stays the plain dict that arrived: every unknown key is kept verbatim. That of a request is
kept beside its parameters; results, notifications and what they are made of have a field for theirs.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias, cast

__all__ = [
    "BAGGAGE",
    "CLIENT_CAPABILITIES",
    "CLIENT_INFO",
    "LOG_LEVEL",
    "PROGRESS_TOKEN",
    "PROTOCOL_VERSION",
    "RELATED_TASK",
    "SERVER_INFO",
    "SUBSCRIPTION_ID",
    "TRACEPARENT",
    "TRACESTATE",
    "ProgressToken",
    "progress_token_of",
]

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


def progress_token_of(meta: object) -> ProgressToken | None:
    """The progress token in ``meta``, `None` when there is none.

    ``0`` and ``""`` are tokens. What is neither string nor integer is no token, and the request is served
    without progress (2025-11-25 progress, Progress Flow: MUST be a string or integer value).
    """
    if type(meta) is not dict:
        return None
    token = cast("dict[str, Any]", meta).get(PROGRESS_TOKEN)
    return token if type(token) is int or type(token) is str else None
