"""ListenStream: the server's side of one ``subscriptions/listen``, from its acknowledgement to its end."""

from __future__ import annotations

from typing import Any, Final

import trio

from ..jsonrpc.codec import frame_notification
from ..protocol.converters import unstructure
from ..protocol.meta import SUBSCRIPTION_ID
from ..protocol.types.lifecycle import ServerCapabilities
from ..protocol.types.notifications import ListenResult, SubscriptionFilter, SubscriptionsAcknowledgedParams
from ..protocol.types.tasks import DetailedTask
from ..runtime.requests.request_scope import RequestScope

CONNECTION_ENDS: Final = "the connection is ending"
"""Reason for the end of a stream that its connection ends."""


def honoured_part(
    asked: SubscriptionFilter, declared: ServerCapabilities, uris: list[str], task_ids: list[str] | None = None
) -> SubscriptionFilter:
    """Return the part of ``asked`` that a server with the ``declared`` capabilities can report, with ``uris`` for its
    resources, and ``task_ids`` for its tasks (2026-07-28 subscriptions, Acknowledgment)."""
    return SubscriptionFilter(
        True if asked.tools_list_changed and declared.tools and declared.tools.list_changed else None,
        True if asked.prompts_list_changed and declared.prompts and declared.prompts.list_changed else None,
        True if asked.resources_list_changed and declared.resources and declared.resources.list_changed else None,
        uris or None,
        task_ids or None,
    )


class ListenStream:
    """A stream of changes to a client, open from `acknowledge` to `end`.

    The lines of a stream belong to the ``scope`` of its request, so a cancel takes back the unwritten lines. While the
    outbox is full, changes wait here instead, each at most once: no sender waits for a client that reads slowly. A
    sender of an unbounded number of changes waits for `room` after each change.
    """

    def __init__(self, scope: RequestScope, honoured: SubscriptionFilter) -> None:
        self.uris = frozenset(honoured.resource_subscriptions or ())
        """URIs of the resources whose changes are reported."""
        self.task_ids = tuple(honoured.task_ids or ())
        """Ids of the tasks that the stream reports."""
        asked = {
            "tools": honoured.tools_list_changed,
            "prompts": honoured.prompts_list_changed,
            "resources": honoured.resources_list_changed,
        }
        self.lists = frozenset(f"notifications/{kind}/list_changed" for kind, wanted in asked.items() if wanted)
        """Methods of the notifications for the lists whose changes are reported."""
        self.exchange = scope.exchange
        """The exchange that the stream belongs to."""
        self._scope = scope
        self._outbox = scope.outbox
        self._honoured = honoured
        # 2026-07-28 subscriptions, Receiving Notifications: the id of the request, of its very JSON type.
        self._meta = {SUBSCRIPTION_ID: scope.request.id}
        self._waiting: dict[bytes, None] = {}
        self._letting_out = trio.CancelScope()

    def acknowledge(self) -> None:
        """Open the stream: tell the client which changes will be reported."""
        params = SubscriptionsAcknowledgedParams(self._honoured, self._meta)
        self._put(_line("notifications/subscriptions/acknowledged", unstructure(params, self._scope.request.revision)))

    def list_changed(self, method: str) -> None:
        """Tell that a list changed, for which ``method`` is the notification."""
        self._tell(_line(method, self._params()))

    def resource_updated(self, uri: str) -> None:
        """Tell that a resource changed."""
        self._tell(_line("notifications/resources/updated", self._params(uri=uri)))

    def task_changed(self, state: DetailedTask) -> None:
        """Tell the state of a task. Unlike the other changes, states are not kept here while the client reads slowly:
        the caller waits for `room`, and tells the latest state then."""
        self.task_told(unstructure(state, self._scope.request.revision))

    def task_told(self, params: dict[str, Any]) -> None:
        """Tell the state of a task as `task_changed`, with these parameters."""
        meta: dict[str, Any] = params.get("_meta") or {}
        self._put(_line("notifications/tasks", {**params, "_meta": {**meta, **self._meta}}))

    def end(self, reason: str) -> ListenResult:
        """Send the changes that wait and, since the request is still open, its cancel with ``reason`` (2026-07-28
        cancellation: MUST). Return the result of the request, which ends the stream."""
        self._letting_out.cancel(reason="the stream ends")
        for line in self._waiting:
            self._put(line)
        self._waiting.clear()
        self._put(_line("notifications/cancelled", self._params(requestId=self._scope.request.id, reason=reason)))
        return ListenResult(self._meta)

    @property
    def has_room(self) -> bool:
        """True when a change that is reported now need not wait."""
        return not (self._waiting or self._outbox.is_full())

    async def room(self) -> None:
        """Wait until the client has read enough for a further change. No checkpoint when there is room."""
        await self._outbox.room()

    def _params(self, **more: Any) -> dict[str, Any]:
        return {"_meta": self._meta, **more}

    def _tell(self, line: bytes) -> None:
        if not self._scope.sends:
            return
        if self.has_room:
            self._put(line)
            return
        if not self._waiting:
            nursery = self._scope.abort.nursery
            assert nursery is not None, "a stream is open inside its nursery"
            nursery.start_soon(self._let_out)
        self._waiting[line] = None

    async def _let_out(self) -> None:
        """Put the changes that wait into the outbox, in the order of their arrival, as there is room."""
        with trio.CancelScope() as self._letting_out:
            while self._waiting:
                await self._outbox.room()
                while self._waiting and not self._outbox.is_full():
                    line = next(iter(self._waiting))
                    del self._waiting[line]
                    self._put(line)

    def _put(self, line: bytes) -> None:
        self._scope.put(line)


def _line(method: str, params: dict[str, Any]) -> bytes:
    return frame_notification(method, params) + b"\n"
