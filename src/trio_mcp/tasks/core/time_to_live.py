"""The time to live of tasks: as asked for by a requestor, and as kept."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from ...jsonrpc.errors import INVALID_PARAMS, CodedError

if TYPE_CHECKING:
    from ...runtime.requests.request_scope import RequestScope
    from ..settings import TaskSettings

_MILLISECONDS: Final = 1000


def asked_ttl(scope: RequestScope, settings: TaskSettings) -> int | None:
    """Return the milliseconds for which the task of this request, whose parameters were checked, exists; `None`: for
    ever. Raises `CodedError` (-32602) for a time that makes no sense."""
    asked = scope.request.params["task"].get("ttl", settings.ttl * _MILLISECONDS)
    if asked is None:
        return milliseconds(settings.max_ttl)
    if not asked > 0:
        raise CodedError(INVALID_PARAMS, "Invalid params: task.ttl is greater than 0")
    return milliseconds(min(asked / _MILLISECONDS, settings.max_ttl))  # 2025-11-25 tasks, TTL 3: MAY be overridden


def milliseconds(seconds: float) -> int | None:
    """Return a time to live in milliseconds, at least one; `None` for ever."""
    return None if seconds == math.inf else max(1, int(seconds * _MILLISECONDS))
