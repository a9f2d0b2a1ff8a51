"""Change: a list or a resource of the server that has changed."""

from __future__ import annotations

from typing import Literal, TypeAlias, cast

from ..classes import frozen
from ..protocol.converters import structure
from ..protocol.types.notifications import ResourceUpdatedParams, SubscriptionFilter
from ..state.events import NotificationReceived

ChangeKind: TypeAlias = Literal["tools", "prompts", "resources", "resource"]


@frozen
class Change:
    """A change: the list of ``tools``, ``prompts`` or ``resources`` has changed, or a ``resource`` has new contents.

    ``uri`` is the URI of the resource, which may be part of the resource subscribed to; `None` for lists.
    """

    kind: ChangeKind
    uri: str | None = None


def change_in(event: NotificationReceived) -> Change | None:
    """Return the change that a notification tells of; `None` for other notifications and for malformed notifications,
    since a notification has no error reply."""
    name = event.method.name
    if name == "notifications/resources/updated":
        try:
            return Change("resource", structure(event.params, ResourceUpdatedParams).uri)
        except ValueError:
            return None
    return Change(cast("ChangeKind", name.split("/")[1])) if name.endswith("/list_changed") else None


def kinds_in(asked: SubscriptionFilter) -> frozenset[ChangeKind]:
    """Return the kinds of changes on a stream with the filter ``asked``."""
    kinds: dict[ChangeKind, object] = {
        "tools": asked.tools_list_changed,
        "prompts": asked.prompts_list_changed,
        "resources": asked.resources_list_changed,
        "resource": asked.resource_subscriptions,
    }
    return frozenset(kind for kind, wanted in kinds.items() if wanted)
