"""Parameters of the notifications, both ways, and of ``subscriptions/listen``, by which a client of a modern
revision asks for some of them.

The eight log levels of RFC 5424 stand here, too, and when a message passes.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias

from ...classes import value
from ..fields import JSONObject, since
from .lifecycle import ServerCapabilities


class LogLevel(StrEnum):
    """Severity, least first (RFC 5424, section 6.2.1)."""

    DEBUG = "debug"
    INFO = "info"
    NOTICE = "notice"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"
    ALERT = "alert"
    EMERGENCY = "emergency"


DEFAULT_LOG_LEVEL: Final = LogLevel.INFO
"""Least severe level on a legacy connection before any ``logging/setLevel``; servers are free to choose it."""

_RANKS: Final[dict[str, int]] = {level.value: rank for rank, level in enumerate(LogLevel)}


def log_level_rank(level: str) -> int:
    """Return 0 for debug to 7 for emergency, -1 for a level that RFC 5424 does not know."""
    return _RANKS.get(level, -1)


def should_log(level: str, minimum: str) -> bool:
    """Return whether a message of ``level`` passes ``minimum``.

    Fails open: an unknown level always passes, and an unknown minimum admits everything, so that a custom
    level is never lost in silence. Levels that arrive from the wire are checked strictly, elsewhere.
    """
    rank = log_level_rank(level)
    return rank < 0 or rank >= log_level_rank(minimum)


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
class SubscriptionFilter:
    """The changes to be told of."""

    tools_list_changed: bool | None = None
    prompts_list_changed: bool | None = None
    resources_list_changed: bool | None = None
    resource_subscriptions: list[str] | None = None
    task_ids: list[str] | None = None
    """Tasks of the extension ``io.modelcontextprotocol/tasks``."""
    extensions: list[str] | None = None
    """Extensions of other authors with notifications that are wanted outside of requests: each is a member in JSON,
    ``"com.example/search": true``."""


ChangedList: TypeAlias = Literal["tools", "resources", "prompts"]
"""The lists whose changes a server announces."""
_LISTS: Final[tuple[ChangedList, ...]] = ("tools", "prompts", "resources")


def changing_lists(declared: ServerCapabilities) -> list[ChangedList]:
    """Return the lists whose changes a server announces."""
    capabilities: dict[ChangedList, Any] = {name: getattr(declared, name) for name in _LISTS}
    return [name for name, each in capabilities.items() if each is not None and each.list_changed]


def lists_in(asked: SubscriptionFilter) -> list[ChangedList]:
    """Return the lists that a filter names."""
    return [name for name in _LISTS if getattr(asked, f"{name}_list_changed")]


def filter_of(lists: Collection[str], **others: list[str] | None) -> SubscriptionFilter:
    """Return a filter for ``lists``, and for ``others``, members that may be empty."""
    wanted: Any = (name in lists or None for name in _LISTS)
    return SubscriptionFilter(*wanted, **{key: each or None for key, each in others.items()})


@value
class ListenParams:
    """Parameters of ``subscriptions/listen``: the changes to be told of."""

    notifications: SubscriptionFilter


@value
class ListenResult:
    """The graceful end of a subscription; ``meta`` names it by its subscription id."""

    meta: JSONObject


@value
class SubscriptionsAcknowledgedParams:
    """The first message of a subscription: the changes that the server will announce."""

    notifications: SubscriptionFilter
    meta: JSONObject | None = None
