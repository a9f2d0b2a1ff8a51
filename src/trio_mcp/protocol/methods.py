"""A table of all MCP methods: who sends them, their parameters and results, and the protocol revisions that have
them."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias, cast

from ..classes import frozen
from .fields import as_object
from .types import elicitation, lifecycle, notifications, offers, sampling, tools

Sender: TypeAlias = Literal["client", "server", "both"]
"""The side that sends a method: client or server."""


@frozen
class Method:
    """One MCP method: its name, its sender, its parameters and result, and the protocol revisions that define it."""

    name: str
    """Name of the method in messages, such as ``tools/call``."""
    sender: Sender
    """The side that sends the method: ``client``, ``server`` or ``both``."""
    params: Any
    """Class of the parameters."""
    result: Any = None
    """Class of the result; `None` for notifications."""
    since: str = "2024-11-05"
    """The first protocol revision that has the method."""
    until: str | None = None
    """The last protocol revision that has the method; `None` for no end."""
    may_ask: bool = False
    """True if a modern server may return an ``InputRequiredResult``."""
    cacheable: bool = False
    """True if modern results have ``ttlMs`` and ``cacheScope``, so that clients can cache them."""
    streams: bool = False
    """True if the request stays open for notifications until its result."""
    tells_failures: bool = False
    """True if a failed handler returns a result with ``isError``, which the model can read. (2025-11-25 tools, Error
    Handling.)"""
    of_request: bool = False
    """True if the notification belongs to a request in flight."""
    extension: str | None = None
    """Name of the extension that defines the method; `None` for the specification."""
    requires_client: bool = False
    """True if the client must have declared the extension."""
    scopes: frozenset[str] = frozenset()
    """OAuth scopes that the caller's token must have, if the server requires tokens."""
    ahead: bool = False
    """True if the request has its own limit, instead of the limit of requests in flight."""

    @property
    def is_request(self) -> bool:
        """True if the method is a request, which gets a response, and false if it is a notification."""
        return self.result is not None

    def is_in(self, revision: str) -> bool:
        """Return true if the protocol revision named ``revision`` has this method."""
        # The name of an MCP revision is its ISO date, so comparing the names compares the dates.
        return self.since <= revision and (self.until is None or revision <= self.until)

    def sent_by(self, role: Literal["client", "server"]) -> bool:
        """Return true if ``role``, which is ``client`` or ``server``, may send this method."""
        return self.sender == "both" or self.sender == role


_LEGACY: Final = "2025-11-25"
_MODERN: Final = "2026-07-28"
_EMPTY: Final = lifecycle.EmptyParams
_DONE: Final = lifecycle.EmptyResult
_TOLD: Final = notifications.NotificationParams
_PAGE: Final = offers.PageParams

ROWS: Final = (
    # Life cycle
    Method("initialize", "client", lifecycle.InitializeParams, lifecycle.InitializeResult, until=_LEGACY),
    Method("notifications/initialized", "client", _TOLD, until=_LEGACY),
    Method("server/discover", "client", _EMPTY, lifecycle.DiscoverResult, since=_MODERN, cacheable=True),
    Method("ping", "both", _EMPTY, _DONE, until=_LEGACY),
    Method("notifications/cancelled", "both", notifications.CancelledParams),
    Method("notifications/progress", "both", notifications.ProgressParams, until=_LEGACY, of_request=True),
    Method("notifications/progress", "server", notifications.ProgressParams, since=_MODERN, of_request=True),
    # What servers offer
    Method("tools/list", "client", _PAGE, tools.ListToolsResult, cacheable=True),
    Method("tools/call", "client", tools.CallToolParams, tools.CallToolResult, may_ask=True, tells_failures=True),
    Method("resources/list", "client", _PAGE, offers.ListResourcesResult, cacheable=True),
    Method("resources/templates/list", "client", _PAGE, offers.ListResourceTemplatesResult, cacheable=True),
    Method(
        "resources/read",
        "client",
        offers.ReadResourceParams,
        offers.ReadResourceResult,
        may_ask=True,
        cacheable=True,
    ),
    Method("resources/subscribe", "client", offers.SubscribeParams, _DONE, until=_LEGACY),
    Method("resources/unsubscribe", "client", offers.SubscribeParams, _DONE, until=_LEGACY),
    Method("prompts/list", "client", _PAGE, offers.ListPromptsResult, cacheable=True),
    Method("prompts/get", "client", offers.GetPromptParams, offers.GetPromptResult, may_ask=True),
    Method("completion/complete", "client", offers.CompleteParams, offers.CompleteResult),
    Method("logging/setLevel", "client", notifications.SetLevelParams, _DONE, until=_LEGACY),
    Method(
        "subscriptions/listen",
        "client",
        notifications.ListenParams,
        notifications.ListenResult,
        since=_MODERN,
        streams=True,
    ),
    # What servers tell
    Method("notifications/message", "server", notifications.LogParams, of_request=True),
    Method("notifications/resources/updated", "server", notifications.ResourceUpdatedParams),
    Method("notifications/resources/list_changed", "server", _TOLD),
    Method("notifications/tools/list_changed", "server", _TOLD),
    Method("notifications/prompts/list_changed", "server", _TOLD),
    Method(
        "notifications/subscriptions/acknowledged",
        "server",
        notifications.SubscriptionsAcknowledgedParams,
        since=_MODERN,
    ),
    # The following methods exist only in legacy revisions: server-to-client requests and related notifications.
    Method(
        "sampling/createMessage", "server", sampling.CreateMessageParams, sampling.CreateMessageResult, until=_LEGACY
    ),
    Method(
        "elicitation/create",
        "server",
        elicitation.ElicitParams,
        elicitation.ElicitResult,
        since="2025-06-18",
        until=_LEGACY,
    ),
    Method("roots/list", "server", _EMPTY, sampling.ListRootsResult, until=_LEGACY),
    Method("notifications/roots/list_changed", "client", _TOLD, until=_LEGACY),
    Method(
        "notifications/elicitation/complete",
        "server",
        notifications.ElicitationCompleteParams,
        since="2025-11-25",
        until=_LEGACY,
    ),
    # In MCP 2025-11-25, both sides have task methods. Later, these methods belong to the tasks extension.
    Method("tasks/get", "both", tools.TaskParams, tools.Task, since="2025-11-25", until=_LEGACY),
    Method("tasks/result", "both", tools.TaskParams, dict[str, Any], since="2025-11-25", until=_LEGACY),
    Method("tasks/list", "both", _PAGE, tools.ListTasksResult, since="2025-11-25", until=_LEGACY),
    Method("tasks/cancel", "both", tools.TaskParams, tools.Task, since="2025-11-25", until=_LEGACY),
    Method("notifications/tasks/status", "both", tools.Task, since="2025-11-25", until=_LEGACY),
    Method("tasks/get", "client", tools.TaskParams, tools.DetailedTask, since=_MODERN),
    Method("tasks/update", "client", tools.UpdateTaskParams, _DONE, since=_MODERN),
    Method("tasks/cancel", "client", tools.TaskParams, _DONE, since=_MODERN),
    Method("notifications/tasks", "server", tools.DetailedTask, since=_MODERN),
)
"""The rows of all methods. A method has several rows if its sender or its parameters differ between revisions."""

METHODS: Final[dict[str, Method]] = {row.name: row for row in ROWS}
"""Every method of every revision, keyed by name, in its newest row."""


def next_cursor(page: object, seen: set[int]) -> str | None:
    """Return the cursor in a result of ``tools/list``, with which a client requests the next page. Return `None` for
    the last page.

    ``page`` is the result for the current page, as JSON data. Return `None` at the end, if the cursor isn't a string or
    was returned before, and if no tool of the page is new, because a list may be endless. ``seen`` has the hashes of
    all cursors and names of one list, which may be long.
    """
    cursor: Any = as_object(page).get("nextCursor")
    listed = as_object(page).get("tools")
    named = cast("list[Any]", listed) if isinstance(listed, list) else []
    names = {hash(("name", repr(as_object(tool).get("name")))) for tool in named}
    if not isinstance(cursor, str) or hash(cursor) in seen or (names and names <= seen):
        return None
    seen |= {hash(cursor), *names}
    return cursor
