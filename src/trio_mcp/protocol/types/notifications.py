"""Parameters of all notifications, and of ``subscriptions/listen``.

This module also has the eight log levels of RFC 5424.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias

from ...classes import value
from ..fields import JSONObject, since
from .lifecycle import ServerCapabilities


class LogLevel(StrEnum):
    """Severity of a log message, from the lowest to the highest (RFC 5424, section 6.2.1)."""

    DEBUG = "debug"
    """Details for debugging."""
    INFO = "info"
    """Normal events, such as the progress of an operation."""
    NOTICE = "notice"
    """Normal but significant events, such as changes of the configuration."""
    WARNING = "warning"
    """Conditions that could lead to an error."""
    ERROR = "error"
    """Failures of an operation."""
    CRITICAL = "critical"
    """Critical conditions, such as the failure of a component."""
    ALERT = "alert"
    """Conditions that require immediate action, such as corrupted data."""
    EMERGENCY = "emergency"
    """The system is unusable."""


DEFAULT_LOG_LEVEL: Final = LogLevel.INFO
"""Minimum log level on a legacy connection before any ``logging/setLevel``. Servers are free to choose it."""

_RANKS: Final[dict[str, int]] = {level.value: rank for rank, level in enumerate(LogLevel)}


def log_level_rank(level: str) -> int:
    """Return the rank of a log level, from 0 for debug to 7 for emergency. Return -1 for a level that isn't in RFC
    5424."""
    return _RANKS.get(level, -1)


def should_log(level: str, minimum: str) -> bool:
    """Return true if a log message of ``level`` should be sent to a client that requested the ``minimum`` level.

    Messages with an unknown level are always sent, and if the minimum is unknown, all messages are sent, so that no
    messages with custom levels are lost. Levels in received messages are checked elsewhere.
    """
    rank = log_level_rank(level)
    return rank < 0 or rank >= log_level_rank(minimum)


@value
class NotificationParams:
    """Parameters of a notification that has no parameters except ``_meta``."""

    meta: JSONObject | None = None


@value
class CancelledParams:
    """Parameters of ``notifications/cancelled``, which cancels the request ``request_id``.

    ``reason`` is a text to display or log.
    """

    request_id: int | str
    reason: str | None = None
    meta: JSONObject | None = None


@value
class ProgressParams:
    """Parameters of ``notifications/progress``: how far a request has progressed.

    ``progress`` increases with each notification, and ``total`` has the same unit.
    """

    progress_token: int | str
    progress: int | float
    total: int | float | None = None
    message: str | None = since("2025-03-26")
    meta: JSONObject | None = None


@value
class SetLevelParams:
    """Parameters of ``logging/setLevel`` (legacy protocol revisions).

    ``level`` is the minimum level of the log messages that the client wants to get.
    """

    level: LogLevel


@value
class LogParams:
    """Parameters of ``notifications/message``, a log message.

    ``data`` is any JSON value, and is sent even if it is null.
    """

    level: str
    """Severity of the message, usually a value of `LogLevel`."""
    data: Any
    """The content of the message: a string, an object or any other JSON value."""
    logger: str | None = None
    """Name of the logger that sent the message; `None` if it has no name."""
    meta: JSONObject | None = None
    """The ``_meta`` object, for metadata."""


@value
class ResourceUpdatedParams:
    """Parameters of ``notifications/resources/updated``: the resource that changed."""

    uri: str
    meta: JSONObject | None = None


@value
class ElicitationCompleteParams:
    """Parameters of ``notifications/elicitation/complete``: the user has finished a URL elicitation (2025-11-25
    only)."""

    elicitation_id: str
    meta: JSONObject | None = None


@value
class SubscriptionFilter:
    """The kinds of changes for which a client requests notifications with ``subscriptions/listen``."""

    tools_list_changed: bool | None = None
    """True to be notified when the server's list of tools changes."""
    prompts_list_changed: bool | None = None
    """True to be notified when the server's list of prompts changes."""
    resources_list_changed: bool | None = None
    """True to be notified when the server's list of resources changes."""
    resource_subscriptions: list[str] | None = None
    """URIs of the resources for whose changes the client wants notifications."""
    task_ids: list[str] | None = None
    """Ids of background tasks of the extension ``io.modelcontextprotocol/tasks``."""
    extensions: list[str] | None = None
    """Other extensions from which the client wants notifications outside of requests. Each is a JSON member, such as
    ``"com.example/search": true``."""


ChangedList: TypeAlias = Literal["tools", "resources", "prompts"]
"""The lists whose changes a server announces."""
_LISTS: Final[tuple[ChangedList, ...]] = ("tools", "prompts", "resources")


def changing_lists(declared: ServerCapabilities) -> list[ChangedList]:
    """Return the names of the lists whose changes a server announces to its clients. ``declared`` are the server's
    capabilities.

    The lists are tools, prompts and resources.
    """
    capabilities: dict[ChangedList, Any] = {name: getattr(declared, name) for name in _LISTS}
    return [name for name, each in capabilities.items() if each is not None and each.list_changed]


def lists_in(asked: SubscriptionFilter) -> list[ChangedList]:
    """Return the lists that a subscription filter selects.

    The lists are tools, prompts and resources.
    """
    return [name for name in _LISTS if getattr(asked, f"{name}_list_changed")]


def filter_of(lists: Collection[str], **others: list[str] | None) -> SubscriptionFilter:
    """Return a subscription filter for changes of the lists that are named in ``lists``, such as ``tools``.

    ``others`` are the other members of the filter. Empty members are omitted.
    """
    wanted: Any = (name in lists or None for name in _LISTS)
    return SubscriptionFilter(*wanted, **{key: each or None for key, each in others.items()})


@value
class ListenParams:
    """Parameters of ``subscriptions/listen``: the changes to which the client subscribes."""

    notifications: SubscriptionFilter


@value
class ListenResult:
    """Result of ``subscriptions/listen``, sent when the subscription ends normally.

    ``meta`` contains the subscription id.
    """

    meta: JSONObject


@value
class SubscriptionsAcknowledgedParams:
    """Parameters of the first notification of a subscription. They name the changes that the server will report."""

    notifications: SubscriptionFilter
    meta: JSONObject | None = None
