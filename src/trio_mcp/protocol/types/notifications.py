"""Parameters of the notifications, both ways."""

from __future__ import annotations

from typing import Any

from ...jsonrpc.values import value
from ..fields import JSONObject, since
from ..log_levels import LogLevel
from .tasks import TaskStatus


@value
class NotificationParams:
    """The parameters of a notification that has none of its own."""

    meta: JSONObject | None = None


@value
class CancelledParams:
    """The sender no longer wants the answer to ``request_id``; ``reason`` is for people."""

    request_id: int | str
    reason: str | None = None
    meta: JSONObject | None = None


@value
class ProgressParams:
    """The progress of a request. ``progress`` only grows; ``total`` is in the same unit."""

    progress_token: int | str
    progress: int | float
    total: int | float | None = None
    message: str | None = since("2025-03-26")
    meta: JSONObject | None = None


@value
class SetLevelParams:
    """The least severe level to send from now on (legacy revisions)."""

    level: LogLevel


@value
class LogParams:
    """A log message. ``data`` is any JSON value and always written, null included."""

    level: str
    data: Any
    logger: str | None = None
    meta: JSONObject | None = None


@value
class ResourceUpdatedParams:
    """The resource that changed."""

    uri: str
    meta: JSONObject | None = None


@value
class ElicitationCompleteParams:
    """The user finished a URL elicitation elsewhere (2025-11-25 only)."""

    elicitation_id: str
    meta: JSONObject | None = None


@value
class TaskStatusParams:
    """A task changed its state (2025-11-25 only)."""

    task_id: str
    status: TaskStatus
    created_at: str
    last_updated_at: str
    ttl: int | None
    status_message: str | None = None
    poll_interval: int | None = None
    meta: JSONObject | None = None
