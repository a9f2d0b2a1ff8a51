"""``subscriptions/listen`` of the modern revisions."""

from __future__ import annotations

from ...jsonrpc.values import value
from ..fields import JSONObject


@value
class SubscriptionFilter:
    """The changes to be told of."""

    tools_list_changed: bool | None = None
    prompts_list_changed: bool | None = None
    resources_list_changed: bool | None = None
    resource_subscriptions: list[str] | None = None
    task_ids: list[str] | None = None
    """Tasks of the extension ``io.modelcontextprotocol/tasks``."""


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
